"""Pointwise operations: bias, add, mul, relu (clipped, leaky) and its gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from vlug.ops.base import Array, Builder, Operation, axis_of, broadcast_dims, dense_like, need, register
from vlug.ops.reduction import Reduction, unbroadcast
from vlug.tensor import Tensor, contiguous_strides

__all__ = ["Add", "Bias", "Mul", "Relu", "ReluBackward"]


def _pointwise_out(dim: tuple[int, ...], *inputs: Tensor) -> Tensor:
    """A result with gap-free strides in the memory order of the first full-sized input."""
    like = next((t for t in inputs if t.dim == dim), None)
    stride = contiguous_strides(dim) if like is None else dense_like(like, dim)
    return Tensor(dim, stride, inputs[0].dtype)


@register
@dataclass(frozen=True)
class Bias(Operation):
    """y = x + b with b (one dimension) along `axis` of x."""

    axis: int = 1

    name: ClassVar[str] = "bias"
    inputs: ClassVar[tuple[str, ...]] = ("x", "b")
    exact: ClassVar[bool] = True

    def bind(self, inputs: Sequence[Tensor | None]) -> Self:
        (x,) = need(inputs[:1])
        return replace(self, axis=axis_of(self.axis, x.rank, "bias: axis"))

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        x, b = need(inputs)
        self.check_dtypes(x, b, same=(1,))
        axis = axis_of(self.axis, x.rank, "bias: axis")
        self.expect(
            b.dim == (x.dim[axis],), f"b {b.dim} must be ({x.dim[axis]},), dimension {axis} of x {x.dim}"
        )
        return (_pointwise_out(x.dim, x),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, b = need(inputs)
        shape = [1] * x.ndim
        shape[self.axis] = b.shape[0]
        return (x + b.reshape(shape),)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        x, dy = need(inputs[:1])[0], grads[0]
        if dy is None:
            return None, None
        axis = axis_of(self.axis, x.rank, "bias: axis")
        rest = tuple(i for i in range(x.rank) if i != axis)
        return dy, (g.append(Reduction("add", rest, False), (dy,))[0] if rest else dy)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield "bias x=2x35x6x5 b=35"
        yield "bias x=17x33 b=33"
        yield "bias x=4x9x21 b=21 axis=2"
        yield "bias x=4x9x21 b=4 axis=0"
        yield "bias x=0x3x4x4 b=3"


@dataclass(frozen=True)
class _Binary(Operation):
    inputs: ClassVar[tuple[str, ...]] = ("a", "b")
    exact: ClassVar[bool] = True

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        a, b = need(inputs)
        self.check_dtypes(a, b, same=(1,))
        return (_pointwise_out(broadcast_dims(a, b, self.name), a, b),)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for a, b in (
            ("3x35x6x5", "3x35x6x5"),
            ("1000", "1000"),
            ("3x35x6x5", "1x35x1x1"),
            ("3x35x6x5", "3x1x6x5"),
            ("3x35x6x5", "6x5"),
            ("7x1", "1x9"),
            ("4x5", "scalar"),
            ("scalar", "scalar"),
            ("0x4", "1x4"),
        ):
            yield f"{cls.name} a={a} b={b}"


@register
@dataclass(frozen=True)
class Add(_Binary):
    """y = a + b with NumPy broadcasting."""

    name: ClassVar[str] = "add"

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = need(inputs)
        return (np.asarray(a + b),)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        a, b = need(inputs)
        dy = grads[0]
        if dy is None:
            return None, None
        return unbroadcast(g, dy, a.dim), unbroadcast(g, dy, b.dim)


@register
@dataclass(frozen=True)
class Mul(_Binary):
    """y = a · b with NumPy broadcasting."""

    name: ClassVar[str] = "mul"

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = need(inputs)
        return (np.asarray(a * b),)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        a, b = need(inputs)
        dy = grads[0]
        if dy is None:
            return None, None
        da, db = g.append(Mul(), (dy, b))[0], g.append(Mul(), (dy, a))[0]
        return unbroadcast(g, da, a.dim), unbroadcast(g, db, b.dim)


@dataclass(frozen=True)
class _Relu(Operation):
    negative_slope: float = 0.0
    lower_clip: float = 0.0
    upper_clip: float = math.inf

    @property
    def is_exact(self) -> bool:
        return self.negative_slope == 0 and float(self.lower_clip).is_integer()

    def _check(self) -> None:
        self.expect(
            math.isfinite(self.negative_slope), f"negative_slope {self.negative_slope} must be finite"
        )
        self.expect(math.isfinite(self.lower_clip), f"lower_clip {self.lower_clip} must be finite")
        self.expect(
            self.upper_clip >= self.lower_clip,
            f"upper_clip {self.upper_clip} must be lower_clip {self.lower_clip} or more",
        )


_RELU_SAMPLES = (
    "",
    "negative_slope=0.01",
    "upper_clip=6.0",
    "negative_slope=0.2 lower_clip=-1.0 upper_clip=1.0",
)


@register
@dataclass(frozen=True)
class Relu(_Relu):
    """y = x between the clips, lower_clip + negative_slope · (x - lower_clip) below, upper_clip above.

    NaN stays NaN. With negative_slope 0 the result below is lower_clip exactly, for -inf too.
    """

    name: ClassVar[str] = "relu"
    inputs: ClassVar[tuple[str, ...]] = ("x",)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs)
        self.check_dtypes(x)
        self._check()
        return (_pointwise_out(x.dim, x),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs[:1])
        low = np.asarray(self.lower_clip, x.dtype)
        below = low if self.negative_slope == 0 else low + self.negative_slope * (x - low)
        return (np.where(x <= low, below, np.where(x >= self.upper_clip, self.upper_clip, x)),)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return (None,)
        op = ReluBackward(self.negative_slope, self.lower_clip, self.upper_clip)
        return (g.append(op, (grads[0], inputs[0]))[0],)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for tail in _RELU_SAMPLES:
            yield f"relu x=3x35x6x5 {tail}".strip()
        yield "relu x=1000"
        yield "relu x=scalar"
        yield "relu x=0x3"


@register
@dataclass(frozen=True)
class ReluBackward(_Relu):
    """dx = dy where lower_clip < x < upper_clip, negative_slope · dy below, 0 above (nothing is above inf).

    x may be relu's y instead where negative_slope ≥ 0. Where x is NaN, dx = dy.
    """

    name: ClassVar[str] = "relu_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "x")
    outputs: ClassVar[tuple[str, ...]] = ("dx",)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        dy, x = need(inputs)
        self.check_dtypes(dy, x, same=(1,))
        self._check()
        self.expect(dy.dim == x.dim, f"dy {dy.dim} and x {x.dim} must have the same dims")
        return (_pointwise_out(x.dim, dy, x),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dy, x = need(inputs)
        below = np.zeros_like(dy) if self.negative_slope == 0 else self.negative_slope * dy
        clipped = (x >= self.upper_clip) & (self.upper_clip < math.inf)
        return (np.where(x <= self.lower_clip, below, np.where(clipped, 0.0, dy)),)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return None, None
        return g.append(self, (grads[0], inputs[1]))[0], None  # piecewise linear: no gradient in x

    @classmethod
    def samples(cls) -> Iterator[str]:
        for tail in _RELU_SAMPLES:
            yield f"relu_backward dy=3x35x6x5 x=3x35x6x5 {tail}".strip()
        yield "relu_backward dy=1000 x=1000"
        yield "relu_backward dy=0x3 x=0x3"
