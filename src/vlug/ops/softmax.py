"""Softmax and log-softmax along an axis, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from vlug.ops.base import Array, Builder, Operation, axis_of, dense_like, need, register, total
from vlug.tensor import Tensor

__all__ = ["LogSoftmax", "LogSoftmaxBackward", "Softmax", "SoftmaxBackward"]

_SAMPLES = (
    ("17x33", ""),
    ("5x1000", ""),
    ("3x35x6x5", "axis=1"),
    ("4x9x7", "axis=0"),
    ("9", ""),
    ("6x1", ""),
    ("2x3x5x16", ""),
    ("0x5", ""),
    ("4x0", ""),
)


@dataclass(frozen=True)
class _Softmax(Operation):
    axis: int = -1

    def bind(self, inputs: Sequence[Tensor | None]) -> Self:
        return replace(self, axis=self._axis(need(inputs[:1])[0].rank))

    def _axis(self, rank: int) -> int:
        self.expect(rank >= 1, f"{self.port(0)} must have 1 dimension or more")
        return axis_of(self.axis, rank, f"{self.name}: axis")

    def attributes(self, inputs: Sequence[Tensor | None] = ()) -> dict[str, str]:
        """The last axis is the default however it was said."""
        first = inputs[0] if inputs else None
        last = first is not None and self.axis in (-1, first.rank - 1)
        return {} if last else super().attributes(inputs)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        first = need(inputs)[0]
        self.check_dtypes(*inputs, same=range(1, len(inputs)))
        self._axis(first.rank)
        for i, t in enumerate(need(inputs)):
            self.expect(
                t.dim == first.dim, f"{self.port(i)} {t.dim} must have the dims of {self.port(0)} {first.dim}"
            )
        return (Tensor(first.dim, dense_like(first, first.dim), first.dtype),)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, tail in _SAMPLES:
            yield f"{cls.name} {' '.join(f'{p}={x}' for p in cls.inputs)} {tail}".strip()


def _shifted(x: Array, axis: int) -> Array:
    """x less its largest value along axis (what keeps exp in range)."""
    if x.shape[axis] == 0:
        return x
    with np.errstate(invalid="ignore"):
        return np.asarray(x - x.max(axis=axis, keepdims=True))


@register
@dataclass(frozen=True)
class Softmax(_Softmax):
    """y = exp(x) / Σ exp(x) along axis, shifted by the largest x. A row of -inf gives NaN, as in PyTorch."""

    name: ClassVar[str] = "softmax"
    inputs: ClassVar[tuple[str, ...]] = ("x",)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs)
        e = np.exp(_shifted(x, self.axis))
        return (e / total(e, self.axis, True),)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return (None,)
        return (g.append(SoftmaxBackward(self.axis), (grads[0], outputs[0]))[0],)


@register
@dataclass(frozen=True)
class LogSoftmax(_Softmax):
    """y = x - log Σ exp(x) along axis."""

    name: ClassVar[str] = "log_softmax"
    inputs: ClassVar[tuple[str, ...]] = ("x",)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs)
        d = _shifted(x, self.axis)
        with np.errstate(divide="ignore"):
            return (d - np.log(total(np.exp(d), self.axis, True)),)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return (None,)
        return (g.append(LogSoftmaxBackward(self.axis), (grads[0], outputs[0]))[0],)


@register
@dataclass(frozen=True)
class SoftmaxBackward(_Softmax):
    """dx = y · (dy - Σ dy · y) along axis; y is softmax's result."""

    name: ClassVar[str] = "softmax_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "y")
    outputs: ClassVar[tuple[str, ...]] = ("dx",)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dy, y = need(inputs)
        return (y * (dy - total(dy * y, self.axis, True)),)


@register
@dataclass(frozen=True)
class LogSoftmaxBackward(_Softmax):
    """dx = dy - exp(y) · Σ dy along axis; y is log_softmax's result."""

    name: ClassVar[str] = "log_softmax_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "y")
    outputs: ClassVar[tuple[str, ...]] = ("dx",)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dy, y = need(inputs)
        return (dy - np.exp(y) * total(dy, self.axis, True),)
