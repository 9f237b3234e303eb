"""Reductions over dimensions, their gradients, and the sum that undoes a broadcast."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from vlug.ops.base import Array, Builder, Operation, axis_of, dense_like, need, register, total
from vlug.tensor import Tensor, contiguous_strides

__all__ = ["MODES", "Reduction", "ReductionBackward", "unbroadcast"]

MODES = ("add", "mean", "mul", "mul_no_zeros", "min", "max", "amax", "norm1", "norm2")
#: Modes whose gradient needs x, and those that need the result too.
OF_X = MODES[2:]
OF_Y = ("min", "max", "amax", "norm2")


@dataclass(frozen=True)
class _Reduction(Operation):
    mode: str = "add"
    axes: tuple[int, ...] = ()
    keepdim: bool = False

    @classmethod
    def spatial_rank(cls, inputs: Sequence[Tensor | None]) -> int:
        return 1

    def _axes(self, rank: int) -> tuple[int, ...]:
        self.expect(self.mode in MODES, f"mode {self.mode!r} must be one of {', '.join(MODES)}")
        axes = tuple(axis_of(a, rank, f"{self.name}: axis") for a in self.axes) or tuple(range(rank))
        self.expect(len(set(axes)) == len(axes), f"axes {self.axes} name a dimension twice")
        return tuple(sorted(axes))

    def _reduced(self, dim: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
        if self.keepdim:
            return tuple(1 if i in axes else d for i, d in enumerate(dim))
        return tuple(d for i, d in enumerate(dim) if i not in axes)


def _reduce(mode: str, x: Array, axes: tuple[int, ...], keepdim: bool) -> Array:
    at: dict[str, Any] = {"axis": axes, "keepdims": keepdim}
    match mode:
        case (
            "mul" | "mul_no_zeros"
        ):  # of float64 in more than that: products have no exact sum to fall back on
            wider = np.longdouble if x.dtype == np.float64 else x.dtype
            factors = np.where(x == 0, 1, x) if mode == "mul_no_zeros" else x
            return np.asarray(np.prod(factors, dtype=wider, **at)).astype(x.dtype)
        case "min":
            return np.asarray(np.min(x, initial=np.inf, **at))
        case "max":
            return np.asarray(np.max(x, initial=-np.inf, **at))
        case "amax":
            return np.asarray(np.max(np.abs(x), initial=0, **at))
        case "norm1":
            return total(np.abs(x), axes, keepdim)
        case "norm2":
            top = np.max(np.abs(x), axis=axes, keepdims=True, initial=0)
            scale = np.where((top > 0) & np.isfinite(top), top, 1)
            y = np.sqrt(total(np.square(x / scale), axes, True)) * scale
            return np.asarray(y if keepdim else np.squeeze(y, axes))
    return total(x, axes, keepdim)


@register
@dataclass(frozen=True)
class Reduction(_Reduction):
    """y = x reduced over `axes` (all if none are given); keepdim leaves them with size 1.

    mode: add, mean, mul, mul_no_zeros (the product of what is not 0), min, max, amax (largest magnitude),
    norm1 (sum of magnitudes), norm2 (root of the sum of squares). NaN goes into every result. Of nothing:
    sums, norms and amax 0, products 1, the mean NaN, min inf, max -inf. The squares of norm2 neither over-
    nor underflow; products are kept in f64.
    """

    name: ClassVar[str] = "reduction"
    inputs: ClassVar[tuple[str, ...]] = ("x",)
    outputs: ClassVar[tuple[str, ...]] = ("y",)

    @property
    def is_exact(self) -> bool:
        return self.mode in ("add", "min", "max", "amax", "norm1")

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
        with np.errstate(all="ignore"):
            y = _reduce(self.mode, x, axes, self.keepdim)
            if self.mode == "mean":
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
        more = (x if self.mode in OF_X else None, outputs[0] if self.mode in OF_Y else None)
        return (g.append(op, (dy, *more))[0],)

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
        for mode in MODES[2:]:
            yield f"reduction x=7x33 axes=1 mode={mode}"
            yield f"reduction x=3x35x6x5 axes=0x2x3 mode={mode} keepdim=1"
            yield f"reduction x=0x5 axes=0 mode={mode}"
        yield "reduction x=900 mode=norm2"
        yield "reduction x=900 mode=max"


@register
@dataclass(frozen=True)
class ReductionBackward(_Reduction):
    """dx of reduction's dy; size: all dims of dx.

    add: dy spread over the dimensions that were summed; mean: divided by their number. The other modes need
    x, and min, max, amax and norm2 the result y. min, max: dy over the number of elements equal to y, where x
    is one of them (ties share evenly, as torch.amax's); amax: the same of |x|, times sign x; norm1:
    dy · sign x; norm2: dy · x / y, 0 where y is; mul: dy · the product of the other elements; mul_no_zeros:
    dy · y / x, 0 where x is.
    """

    size: tuple[int, ...] = field(kw_only=True)

    name: ClassVar[str] = "reduction_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "x?", "y?")
    outputs: ClassVar[tuple[str, ...]] = ("dx",)

    @property
    def is_exact(self) -> bool:
        return self.mode in ("add", "norm1")

    def bind(self, inputs: Sequence[Tensor | None]) -> Self:
        return replace(self, axes=self._axes(len(self.size)))

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (dy,) = need(inputs[:1])
        x, y = inputs[1:]
        self.check_dtypes(dy, x, y, same=(1, 2))
        want = self._reduced(self.size, self._axes(len(self.size)))
        self.expect(dy.dim == want, f"size {self.size} gives dy dims {want}, but dy is {dy.dim}")
        for t, port, modes, dim in ((x, "x", OF_X, self.size), (y, "y", OF_Y, dy.dim)):
            self.expect(t is None or self.mode in modes, f"{port} is not taken with mode {self.mode}")
            self.expect(
                t is not None or self.mode not in modes, f"{port} is missing, mode {self.mode} needs it"
            )
            self.expect(t is None or t.dim == dim, f"{port} {t and t.dim} must be {dim}")
        stride = contiguous_strides(self.size) if x is None else dense_like(x, self.size)
        return (Tensor(self.size, stride, dy.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (dy,) = need(inputs[:1])
        x, y = inputs[1:]
        axes = self._axes(len(self.size))

        def spread(a: Array) -> Array:
            return a if self.keepdim else np.expand_dims(a, axes)

        g = spread(dy)
        with np.errstate(all="ignore"):
            if x is not None:
                dx = g * self._slope(x, None if y is None else spread(y), axes)
            else:
                dx = np.broadcast_to(g, self.size)
                if self.mode == "mean":
                    dx = dx / max(math.prod(self.size[a] for a in axes), 1)
        return (np.array(dx, g.dtype),)

    def _slope(self, x: Array, y: Array | None, axes: tuple[int, ...]) -> Array:
        """What dy is multiplied with."""
        sign = np.where(np.isnan(x), x, np.sign(x))
        if y is None:
            if self.mode == "norm1":
                return sign
            zeros = (x == 0).sum(axes, keepdims=True)
            product = _reduce("mul_no_zeros", x, axes, True)
            other = np.where(x == 0, product if self.mode == "mul" else 0, 0)
            if self.mode == "mul_no_zeros":
                return np.asarray(np.where(x == 0, 0, product / x))
            return np.asarray(np.where(zeros == 0, product / x, np.where(zeros == 1, other, 0)))
        if self.mode == "norm2":
            return np.asarray(np.where(y == 0, 0, x / y))
        hit = (np.abs(x) if self.mode == "amax" else x) == y
        share = hit * (1 / hit.sum(axes, keepdims=True))
        return np.asarray(share * sign if self.mode == "amax" else share)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        v = grads[0]
        if v is None:
            return (None,) * len(inputs)
        if self.mode in OF_X:
            raise NotImplementedError(f"reduction_backward: no gradient of mode {self.mode}")
        return g.append(Reduction(self.mode, self._axes(len(self.size)), self.keepdim), (v,))[0], None, None

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield "reduction_backward dy=7 axes=1 size=7x33"
        yield "reduction_backward dy=3x35 axes=2x3 mode=mean size=3x35x6x5"
        yield "reduction_backward dy=35 axes=0x2x3 size=3x35x6x5"
        yield "reduction_backward dy=2x1x4 axes=1 keepdim=1 size=2x5x4"
        yield "reduction_backward dy=scalar size=40x30 mode=mean"
        yield "reduction_backward dy=4 axes=1 size=4x0"
        for mode in OF_X:
            y, row = (" y=35", " y=7x1") if mode in OF_Y else ("", "")
            yield f"reduction_backward dy=35 x=3x35x6x5{y} axes=0x2x3 mode={mode} size=3x35x6x5"
            yield f"reduction_backward dy=7x1 x=7x33{row} axes=1 keepdim=1 mode={mode} size=7x33"
        yield "reduction_backward dy=4 x=4x0 y=4 axes=1 mode=max size=4x0"
        yield "reduction_backward dy=scalar x=40x30 mode=norm1 size=40x30"


def unbroadcast(g: Builder, t: Tensor, dim: Sequence[int]) -> Tensor:
    """The gradient `t` of a broadcast result summed down to the shape `dim` of the operand."""
    extra = t.rank - len(dim)
    if extra:
        t = g.append(Reduction("add", tuple(range(extra)), False), (t,))[0]
    axes = tuple(i for i, (a, b) in enumerate(zip(t.dim, dim)) if a != b)
    return g.append(Reduction("add", axes, True), (t,))[0] if axes else t
