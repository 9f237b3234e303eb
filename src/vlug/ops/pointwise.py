"""Pointwise operations: what they share, bias, scale, add, mul, relu (clipped, leaky) and its gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from vlug.dtypes import BF16, F16, F32, F64, I32, I64, U8, DType
from vlug.ops.base import Array, Builder, Cost, Operation, axis_of, broadcast_dims, dense_like, need, register
from vlug.ops.reduction import Reduction, unbroadcast
from vlug.tensor import Tensor, contiguous_strides

__all__ = ["Add", "Bias", "Binary", "Mul", "Relu", "ReluBackward", "Scale", "Unary", "pointwise_out"]

#: What sums, products, extremes and comparisons also take: integers wrap around as C's unsigned ones do.
NUMBERS = (F32, BF16, F16, F64, I32, I64, U8)


def pointwise_out(dim: tuple[int, ...], *inputs: Tensor, dtype: DType | None = None) -> Tensor:
    """A result with gap-free strides in the memory order of the first full-sized input."""
    like = next((t for t in inputs if t.dim == dim), None)
    stride = contiguous_strides(dim) if like is None else dense_like(like, dim)
    return Tensor(dim, stride, dtype or inputs[0].dtype)


@dataclass(frozen=True)
class _AlongAxis(Operation):
    """x and a vector b along one of its axes."""

    axis: int = 1

    inputs: ClassVar[tuple[str, ...]] = ("x", "b")
    exact: ClassVar[bool] = True

    def bind(self, inputs: Sequence[Tensor | None]) -> Self:
        (x,) = need(inputs[:1])
        return replace(self, axis=axis_of(self.axis, x.rank, f"{self.name}: axis"))

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        x, b = need(inputs)
        self.check_dtypes(x, b, same=(1,))
        axis = axis_of(self.axis, x.rank, f"{self.name}: axis")
        self.expect(
            b.dim == (x.dim[axis],), f"b {b.dim} must be ({x.dim[axis]},), dimension {axis} of x {x.dim}"
        )
        return (pointwise_out(x.dim, x),)

    def _along(self, x: Array, b: Array) -> Array:
        shape = [1] * x.ndim
        shape[self.axis] = b.shape[0]
        return b.reshape(shape)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield f"{cls.name} x=2x35x6x5 b=35"
        yield f"{cls.name} x=17x33 b=33"
        yield f"{cls.name} x=4x9x21 b=21 axis=2"
        yield f"{cls.name} x=4x9x21 b=4 axis=0"
        yield f"{cls.name} x=0x3x4x4 b=3"


@register
@dataclass(frozen=True)
class Bias(_AlongAxis):
    """y = x + b with b (one dimension) along `axis` of x."""

    name: ClassVar[str] = "bias"

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, b = need(inputs)
        return (x + self._along(x, b),)

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


@register
@dataclass(frozen=True)
class Scale(_AlongAxis):
    """y = x · b with b (one dimension) along `axis` of x."""

    name: ClassVar[str] = "scale"

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, b = need(inputs)
        return (x * self._along(x, b),)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        x, b = need(inputs)
        dy = grads[0]
        if dy is None:
            return None, None
        axis = axis_of(self.axis, x.rank, "scale: axis")
        rest = tuple(i for i in range(x.rank) if i != axis)
        (db,) = g.append(Mul(), (dy, x))
        return g.append(self, (dy, b))[0], g.append(Reduction("add", rest, False), (db,))[0] if rest else db


@dataclass(frozen=True)
class Unary(Operation):
    """One operand; the result has its dims. flops: of each element, roughly."""

    inputs: ClassVar[tuple[str, ...]] = ("x",)
    flops: ClassVar[int] = 1

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs)
        self.check_dtypes(x)
        return (pointwise_out(x.dim, x),)

    def cost(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]) -> Cost:
        plain = super().cost(inputs, outputs)
        return Cost(self.flops * plain.flops, plain.bytes)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield f"{cls.name} x=3x35x6x5"
        yield f"{cls.name} x=1000"
        yield f"{cls.name} x=0x3"


#: Dims of two operands, how broadcasting may go.
SHAPES = (
    ("3x35x6x5", "3x1x6x5"),
    ("1000", "1000"),
    ("0x4", "1x4"),
    ("3x35x6x5", "3x35x6x5"),
    ("3x35x6x5", "1x35x1x1"),
    ("3x35x6x5", "6x5"),
    ("7x1", "1x9"),
    ("4x5", "scalar"),
    ("scalar", "scalar"),
)


@dataclass(frozen=True)
class Binary(Operation):
    """Two operands of one dtype with NumPy broadcasting."""

    inputs: ClassVar[tuple[str, ...]] = ("a", "b")
    flops: ClassVar[int] = 1

    def cost(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]) -> Cost:
        plain = super().cost(inputs, outputs)
        return Cost(self.flops * plain.flops, plain.bytes)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        a, b = need(inputs)
        self.check_dtypes(a, b, same=(1,))
        return (pointwise_out(broadcast_dims(a, b, self.name), a, b),)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for a, b in SHAPES[:3]:
            yield f"{cls.name} a={a} b={b}"


@register
@dataclass(frozen=True)
class Add(Binary):
    """y = a + b with NumPy broadcasting."""

    name: ClassVar[str] = "add"
    exact: ClassVar[bool] = True
    dtypes: ClassVar[tuple[DType, ...]] = NUMBERS

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

    @classmethod
    def samples(cls) -> Iterator[str]:
        for a, b in SHAPES:
            yield f"{cls.name} a={a} b={b}"


@register
@dataclass(frozen=True)
class Mul(Binary):
    """y = a · b with NumPy broadcasting."""

    name: ClassVar[str] = "mul"
    exact: ClassVar[bool] = True
    dtypes: ClassVar[tuple[DType, ...]] = NUMBERS

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

    @classmethod
    def samples(cls) -> Iterator[str]:
        for a, b in SHAPES:
            yield f"{cls.name} a={a} b={b}"


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
        return (pointwise_out(x.dim, x),)

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

    x may be relu's y instead where negative_slope ≥ 0. Where x is NaN, dx = dy; of a leaky one (the slope is
    not 0) negative_slope · dy, as PyTorch's.
    """

    name: ClassVar[str] = "relu_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "x")
    outputs: ClassVar[tuple[str, ...]] = ("dx",)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        dy, x = need(inputs)
        self.check_dtypes(dy, x, same=(1,))
        self._check()
        self.expect(dy.dim == x.dim, f"dy {dy.dim} and x {x.dim} must have the same dims")
        return (pointwise_out(x.dim, dy, x),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dy, x = need(inputs)
        below = np.zeros_like(dy) if self.negative_slope == 0 else self.negative_slope * dy
        clipped = (x >= self.upper_clip) & (self.upper_clip < math.inf)
        under = (x <= self.lower_clip) | (np.isnan(x) & (self.negative_slope != 0))
        return (np.where(under, below, np.where(clipped, 0.0, dy)),)

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
