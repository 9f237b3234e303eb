"""Sums and means over dimensions, their gradient, and the sum that undoes a broadcast."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from vlug.ops.base import Array, Builder, Operation, axis_of, need, register, total
from vlug.tensor import Tensor, contiguous_strides

__all__ = ["Reduction", "ReductionBackward", "unbroadcast"]


@dataclass(frozen=True)
class _Reduction(Operation):
    mode: str = "add"
    axes: tuple[int, ...] = ()
    keepdim: bool = False

    @classmethod
    def spatial_rank(cls, inputs: Sequence[Tensor | None]) -> int:
        return 1

    def _axes(self, rank: int) -> tuple[int, ...]:
        self.expect(self.mode in ("add", "mean"), f"mode {self.mode!r} must be add or mean")
        axes = tuple(axis_of(a, rank, f"{self.name}: axis") for a in self.axes) or tuple(range(rank))
        self.expect(len(set(axes)) == len(axes), f"axes {self.axes} name a dimension twice")
        return tuple(sorted(axes))

    def _reduced(self, dim: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
        if self.keepdim:
            return tuple(1 if i in axes else d for i, d in enumerate(dim))
        return tuple(d for i, d in enumerate(dim) if i not in axes)


@register
@dataclass(frozen=True)
class Reduction(_Reduction):
    """y = sum (mode add) or mean of x over `axes` (all if none are given); keepdim leaves them with size 1.

    The sum of nothing is 0, the mean of nothing NaN.
    """

    name: ClassVar[str] = "reduction"
    inputs: ClassVar[tuple[str, ...]] = ("x",)
    outputs: ClassVar[tuple[str, ...]] = ("y",)

    @property
    def is_exact(self) -> bool:
        return self.mode == "add"

    def bind(self, inputs: Sequence[Tensor | None]) -> Self:
        (x,) = need(inputs[:1])
        return replace(self, axes=self._axes(x.rank))

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs)
        self.check_dtypes(x)
        dim = self._reduced(x.dim, self._axes(x.rank))
        nhwc = self.keepdim and x.layout == "nhwc"
        return (Tensor.of(dim, x.dtype, "nhwc" if nhwc else "nchw"),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs[:1])
        axes = self._axes(x.ndim)
        y = total(x, axes, self.keepdim)
        if self.mode == "mean":
            with np.errstate(invalid="ignore", divide="ignore"):
                y = np.divide(y, math.prod(x.shape[a] for a in axes), dtype=x.dtype)
        return (np.asarray(y),)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        x, dy = need(inputs[:1])[0], grads[0]
        if dy is None:
            return (None,)
        op = ReductionBackward(self.mode, self._axes(x.rank), self.keepdim, size=x.dim)
        return (g.append(op, (dy,))[0],)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield "reduction x=7x33 axes=1"
        yield "reduction x=33x7 axes=0"
        yield "reduction x=3x35x6x5 axes=0x2x3"
        yield "reduction x=3x35x6x5 axes=2x3 mode=mean"
        yield "reduction x=3x35x6x5 axes=2x3 mode=mean keepdim=1"
        yield "reduction x=2x19x4x3 axes=1 keepdim=1"
        yield "reduction x=5x4x3x2 axes=0x2"
        yield "reduction x=1000"
        yield "reduction x=1x1"
        yield "reduction x=40x30 mode=mean"
        yield "reduction x=scalar"
        yield "reduction x=4x0 axes=1"
        yield "reduction x=0x5 axes=1"
        yield "reduction x=0x5 axes=0 mode=mean"


@register
@dataclass(frozen=True)
class ReductionBackward(_Reduction):
    """dx = dy spread over the dimensions that reduction summed (mode mean: divided by their number).

    size: all dims of dx.
    """

    size: tuple[int, ...] = field(kw_only=True)

    name: ClassVar[str] = "reduction_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy",)
    outputs: ClassVar[tuple[str, ...]] = ("dx",)

    @property
    def is_exact(self) -> bool:
        return self.mode == "add"

    def bind(self, inputs: Sequence[Tensor | None]) -> Self:
        return replace(self, axes=self._axes(len(self.size)))

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (dy,) = need(inputs)
        self.check_dtypes(dy)
        want = self._reduced(self.size, self._axes(len(self.size)))
        self.expect(dy.dim == want, f"size {self.size} gives dy dims {want}, but dy is {dy.dim}")
        return (Tensor(self.size, contiguous_strides(self.size), dy.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (dy,) = need(inputs)
        axes = self._axes(len(self.size))
        dx = np.broadcast_to(dy if self.keepdim else np.expand_dims(dy, axes), self.size)
        return (dx / max(math.prod(self.size[a] for a in axes), 1) if self.mode == "mean" else dx.copy(),)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        v = grads[0]
        if v is None:
            return (None,)
        return (g.append(Reduction(self.mode, self._axes(len(self.size)), self.keepdim), (v,))[0],)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield "reduction_backward dy=7 axes=1 size=7x33"
        yield "reduction_backward dy=3x35 axes=2x3 mode=mean size=3x35x6x5"
        yield "reduction_backward dy=35 axes=0x2x3 size=3x35x6x5"
        yield "reduction_backward dy=2x1x4 axes=1 keepdim=1 size=2x5x4"
        yield "reduction_backward dy=scalar size=40x30 mode=mean"
        yield "reduction_backward dy=4 axes=1 size=4x0"


def unbroadcast(g: Builder, t: Tensor, dim: Sequence[int]) -> Tensor:
    """The gradient `t` of a broadcast result summed down to the shape `dim` of the operand."""
    extra = t.rank - len(dim)
    if extra:
        t = g.append(Reduction("add", tuple(range(extra)), False), (t,))[0]
    axes = tuple(i for i, (a, b) in enumerate(zip(t.dim, dim)) if a != b)
    return g.append(Reduction("add", axes, True), (t,))[0] if axes else t
