"""Pointwise arithmetic and elementary functions: sub … rsqrt, exp … floor, affine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vlug.dtypes import DType
from vlug.ops.base import Array, Builder, need, register
from vlug.ops.identity import put
from vlug.ops.logic import BinarySelect, CmpEq, CmpGe, CmpGt, LogicalAnd, zeros_like
from vlug.ops.pointwise import NUMBERS, Binary, Mul, Unary
from vlug.ops.reduction import unbroadcast
from vlug.tensor import Tensor

__all__ = [
    "Abs", "AddSquare", "Affine", "Ceil", "Cos", "Div", "Erf", "Exp", "Floor", "Log", "Max", "Min",
    "Mod", "Neg", "Pow", "Reciprocal", "Rsqrt", "Sign", "Sin", "Sqrt", "Sub", "Tan", "erf",
]  # fmt: skip

Found = tuple[Tensor | None, ...]
Given = Sequence[Tensor | None]


def erf(x: Array) -> Array:
    """The error function, rounded to x's dtype."""
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x)).astype(x.dtype)


# --- two operands ---
@dataclass(frozen=True)
class _Differentiable(Binary):
    """Two operands whose gradients are `_grads`, before broadcasting is undone."""

    def vjp(self, g: Builder, inputs: Given, outputs: Given, grads: Given) -> Found:
        a, b = need(inputs)
        if grads[0] is None or outputs[0] is None:
            return None, None
        da, db = self._grads(g, a, b, outputs[0], grads[0])
        return unbroadcast(g, da, a.dim), unbroadcast(g, db, b.dim)

    def _grads(self, g: Builder, a: Tensor, b: Tensor, y: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


@register
@dataclass(frozen=True)
class Sub(_Differentiable):
    """y = a - b with NumPy broadcasting."""

    name: ClassVar[str] = "sub"
    exact: ClassVar[bool] = True
    dtypes: ClassVar[tuple[DType, ...]] = NUMBERS

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = need(inputs)
        return (np.asarray(a - b),)

    def _grads(self, g: Builder, a: Tensor, b: Tensor, y: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        return dy, put(g, Neg(), dy)


@register
@dataclass(frozen=True)
class Div(_Differentiable):
    """y = a / b with NumPy broadcasting; of floating-point numbers, as IEEE 754."""

    name: ClassVar[str] = "div"

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = need(inputs)
        return (np.asarray(a / b),)

    def _grads(self, g: Builder, a: Tensor, b: Tensor, y: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        da = put(g, Div(), dy, b)
        return da, put(g, Neg(), put(g, Mul(), da, y))


@register
@dataclass(frozen=True)
class Mod(_Differentiable):
    """y = a - b · trunc(a / b), exactly: C's fmod, with the sign of a. NaN where b is 0 or a infinite."""

    name: ClassVar[str] = "mod"
    flops: ClassVar[int] = 40
    exact: ClassVar[bool] = True

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = need(inputs)
        return (np.asarray(np.fmod(a, b)),)

    def _grads(self, g: Builder, a: Tensor, b: Tensor, y: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        turns = put(g, Div(), put(g, Sub(), a, y), b)
        return dy, put(g, Neg(), put(g, Mul(), dy, turns))


@register
@dataclass(frozen=True)
class Pow(_Differentiable):
    """y = a ^ b as C's pow: 1 where b is 0 or a is 1, NaN where a < 0 and b no integer."""

    name: ClassVar[str] = "pow"
    flops: ClassVar[int] = 100

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = need(inputs)
        return (np.asarray(np.power(a, b)),)

    def _grads(self, g: Builder, a: Tensor, b: Tensor, y: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        none, nothing = zeros_like(g, a), zeros_like(g, b)
        slope = put(g, Mul(), b, put(g, Pow(), a, put(g, Affine(1.0, -1.0), b)))
        da = put(g, BinarySelect(), nothing, put(g, Mul(), dy, slope), put(g, CmpEq(), b, nothing))
        empty = put(g, LogicalAnd(), put(g, CmpEq(), a, none), put(g, CmpGe(), b, nothing))
        db = put(g, Mul(), dy, put(g, Mul(), y, put(g, Log(), a)))
        return da, put(g, BinarySelect(), none, db, empty)


@register
@dataclass(frozen=True)
class AddSquare(_Differentiable):
    """y = a + b² with NumPy broadcasting."""

    name: ClassVar[str] = "add_square"
    exact: ClassVar[bool] = True

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = need(inputs)
        return (np.asarray(a + b * b),)

    def _grads(self, g: Builder, a: Tensor, b: Tensor, y: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        return dy, put(g, Mul(), put(g, Affine(2.0, 0.0), dy), b)


@dataclass(frozen=True)
class _Extreme(_Differentiable):
    exact: ClassVar[bool] = True
    dtypes: ClassVar[tuple[DType, ...]] = NUMBERS

    def _grads(self, g: Builder, a: Tensor, b: Tensor, y: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        half, none = put(g, Affine(0.5, 0.0), dy), zeros_like(g, dy)
        same = put(g, CmpEq(), a, b)

        def share(x: Tensor, other: Tensor) -> Tensor:
            won = put(g, CmpGt(), x, other) if self.name == "max" else put(g, CmpGt(), other, x)
            return put(g, BinarySelect(), half, put(g, BinarySelect(), dy, none, won), same)

        return share(a, b), share(b, a)


@register
@dataclass(frozen=True)
class Max(_Extreme):
    """y = the larger of a and b; NaN if either is. Equal operands share the gradient."""

    name: ClassVar[str] = "max"

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = need(inputs)
        return (np.asarray(np.maximum(a, b)),)


@register
@dataclass(frozen=True)
class Min(_Extreme):
    """y = the smaller of a and b; NaN if either is. Equal operands share the gradient."""

    name: ClassVar[str] = "min"

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = need(inputs)
        return (np.asarray(np.minimum(a, b)),)


# --- one operand ---
@dataclass(frozen=True)
class _Function(Unary):
    """A function of x whose gradient is `_grad`."""

    def vjp(self, g: Builder, inputs: Given, outputs: Given, grads: Given) -> Found:
        (x,) = need(inputs)
        if grads[0] is None or outputs[0] is None:
            return (None,)
        return (self._grad(g, x, outputs[0], grads[0]),)

    def _grad(self, g: Builder, x: Tensor, y: Tensor, dy: Tensor) -> Tensor | None:
        raise NotImplementedError

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs)
        return (np.asarray(self._of(x)),)

    def _of(self, x: Array) -> Array:
        raise NotImplementedError


@register
@dataclass(frozen=True)
class Neg(_Function):
    """y = -x."""

    name: ClassVar[str] = "neg"
    exact: ClassVar[bool] = True
    dtypes: ClassVar[tuple[DType, ...]] = NUMBERS

    def _of(self, x: Array) -> Array:
        return -x

    def _grad(self, g: Builder, x: Tensor, y: Tensor, dy: Tensor) -> Tensor | None:
        return put(g, Neg(), dy)


@register
@dataclass(frozen=True)
class Abs(_Function):
    """y = |x|; the gradient at 0 is 0."""

    name: ClassVar[str] = "abs"
    exact: ClassVar[bool] = True
    dtypes: ClassVar[tuple[DType, ...]] = NUMBERS

    def _of(self, x: Array) -> Array:
        return np.abs(x)

    def _grad(self, g: Builder, x: Tensor, y: Tensor, dy: Tensor) -> Tensor | None:
        return put(g, Mul(), dy, put(g, Sign(), x))


@register
@dataclass(frozen=True)
class Sign(_Function):
    """y = -1, 0 or 1 as x is below, at or above 0; NaN of NaN."""

    name: ClassVar[str] = "sign"
    exact: ClassVar[bool] = True
    dtypes: ClassVar[tuple[DType, ...]] = NUMBERS

    def _of(self, x: Array) -> Array:
        return np.sign(x)

    def _grad(self, g: Builder, x: Tensor, y: Tensor, dy: Tensor) -> Tensor | None:
        return None


@register
@dataclass(frozen=True)
class Reciprocal(_Function):
    """y = 1 / x."""

    name: ClassVar[str] = "reciprocal"

    def _of(self, x: Array) -> Array:
        return np.asarray(1, x.dtype) / x

    def _grad(self, g: Builder, x: Tensor, y: Tensor, dy: Tensor) -> Tensor | None:
        return put(g, Neg(), put(g, Mul(), put(g, Mul(), dy, y), y))


@register
@dataclass(frozen=True)
class Sqrt(_Function):
    """y = √x; NaN below 0."""

    name: ClassVar[str] = "sqrt"

    def _of(self, x: Array) -> Array:
        return np.sqrt(x)

    def _grad(self, g: Builder, x: Tensor, y: Tensor, dy: Tensor) -> Tensor | None:
        return put(g, Div(), put(g, Affine(0.5, 0.0), dy), y)


@register
@dataclass(frozen=True)
class Rsqrt(_Function):
    """y = 1 / √x; NaN below 0."""

    name: ClassVar[str] = "rsqrt"
    flops: ClassVar[int] = 4

    def _of(self, x: Array) -> Array:
        return np.asarray(1, x.dtype) / np.sqrt(x)

    def _grad(self, g: Builder, x: Tensor, y: Tensor, dy: Tensor) -> Tensor | None:
        return put(g, Mul(), put(g, Affine(-0.5, 0.0), dy), put(g, Div(), y, x))


@register
@dataclass(frozen=True)
class Exp(_Function):
    """y = e^x."""

    name: ClassVar[str] = "exp"
    flops: ClassVar[int] = 20

    def _of(self, x: Array) -> Array:
        return np.exp(x)

    def _grad(self, g: Builder, x: Tensor, y: Tensor, dy: Tensor) -> Tensor | None:
        return put(g, Mul(), dy, y)


@register
@dataclass(frozen=True)
class Log(_Function):
    """y = the natural logarithm of x; -inf of 0, NaN below."""

    name: ClassVar[str] = "log"
    flops: ClassVar[int] = 24

    def _of(self, x: Array) -> Array:
        return np.log(x)

    def _grad(self, g: Builder, x: Tensor, y: Tensor, dy: Tensor) -> Tensor | None:
        return put(g, Div(), dy, x)


@register
@dataclass(frozen=True)
class Erf(_Function):
    """y = 2/√π · ∫₀ˣ e^(-t²) dt."""

    name: ClassVar[str] = "erf"
    flops: ClassVar[int] = 40

    def _of(self, x: Array) -> Array:
        return erf(x)

    def _grad(self, g: Builder, x: Tensor, y: Tensor, dy: Tensor) -> Tensor | None:
        bell = put(g, Exp(), put(g, Neg(), put(g, Mul(), x, x)))
        return put(g, Mul(), dy, put(g, Affine(2 / math.sqrt(math.pi), 0.0), bell))


@register
@dataclass(frozen=True)
class Sin(_Function):
    """y = the sine of x (radians), of any finite x; NaN of infinities."""

    name: ClassVar[str] = "sin"
    flops: ClassVar[int] = 30

    def _of(self, x: Array) -> Array:
        return np.sin(x)

    def _grad(self, g: Builder, x: Tensor, y: Tensor, dy: Tensor) -> Tensor | None:
        return put(g, Mul(), dy, put(g, Cos(), x))


@register
@dataclass(frozen=True)
class Cos(_Function):
    """y = the cosine of x (radians), of any finite x; NaN of infinities."""

    name: ClassVar[str] = "cos"
    flops: ClassVar[int] = 30

    def _of(self, x: Array) -> Array:
        return np.cos(x)

    def _grad(self, g: Builder, x: Tensor, y: Tensor, dy: Tensor) -> Tensor | None:
        return put(g, Mul(), dy, put(g, Neg(), put(g, Sin(), x)))


@register
@dataclass(frozen=True)
class Tan(_Function):
    """y = the tangent of x (radians), of any finite x; NaN of infinities."""

    name: ClassVar[str] = "tan"
    flops: ClassVar[int] = 40

    def _of(self, x: Array) -> Array:
        return np.tan(x)

    def _grad(self, g: Builder, x: Tensor, y: Tensor, dy: Tensor) -> Tensor | None:
        return put(g, Mul(), dy, put(g, Affine(1.0, 1.0), put(g, Mul(), y, y)))


@dataclass(frozen=True)
class _Step(_Function):
    exact: ClassVar[bool] = True

    def _grad(self, g: Builder, x: Tensor, y: Tensor, dy: Tensor) -> Tensor | None:
        return None


@register
@dataclass(frozen=True)
class Ceil(_Step):
    """y = the least integer not below x."""

    name: ClassVar[str] = "ceil"

    def _of(self, x: Array) -> Array:
        return np.ceil(x)


@register
@dataclass(frozen=True)
class Floor(_Step):
    """y = the largest integer not above x."""

    name: ClassVar[str] = "floor"

    def _of(self, x: Array) -> Array:
        return np.floor(x)


@register
@dataclass(frozen=True)
class Affine(_Function):
    """y = alpha · x + beta with numbers alpha and beta."""

    alpha: float = 1.0
    beta: float = 0.0

    name: ClassVar[str] = "affine"
    flops: ClassVar[int] = 2

    @property
    def is_exact(self) -> bool:
        return float(self.alpha).is_integer() and float(self.beta).is_integer()

    def _of(self, x: Array) -> Array:
        return np.asarray(np.asarray(self.alpha, x.dtype) * x + np.asarray(self.beta, x.dtype))

    def _grad(self, g: Builder, x: Tensor, y: Tensor, dy: Tensor) -> Tensor | None:
        return put(g, Affine(self.alpha, 0.0), dy)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield "affine x=3x35x6x5 alpha=2.0 beta=-3.0"
        yield "affine x=1000 alpha=0.3"
        yield "affine x=scalar beta=1.5"
