"""Pointwise comparisons, logic, selection, and the index along an axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from vlug.dtypes import BF16, BOOL, F16, F32, F64, I32, I64, U8, DType, dtype
from vlug.errors import DTypeError, ShapeError
from vlug.ops.base import Array, Builder, Operation, axis_of, need, register
from vlug.ops.identity import Identity, put
from vlug.ops.pointwise import Binary, pointwise_out
from vlug.ops.reduction import unbroadcast
from vlug.tensor import Tensor

__all__ = [
    "BinarySelect", "CmpEq", "CmpGe", "CmpGt", "CmpLe", "CmpLt", "CmpNeq", "GenIndex", "LogicalAnd",
    "LogicalNot", "LogicalOr", "zeros_like",
]  # fmt: skip

_EVERY = (F32, BF16, F16, F64, I32, I64, U8, BOOL)
Given = Sequence[Tensor | None]


def zeros_like(g: Builder, x: Tensor) -> Tensor:
    """Zeros with x's dims and dtype, whatever x holds."""
    return put(g, Identity(x.dtype.name), put(g, CmpGt(), x, x))


@dataclass(frozen=True)
class _ToBool(Binary):
    exact: ClassVar[bool] = True

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (y,) = super().infer(*inputs)
        return (replace(y, dtype=BOOL),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = need(inputs)
        return (np.asarray(self._of(a, b)).astype(np.int64),)

    def _of(self, a: Array, b: Array) -> Array:
        raise NotImplementedError

    def vjp(self, g: Builder, inputs: Given, outputs: Given, grads: Given) -> tuple[Tensor | None, ...]:
        return None, None


@dataclass(frozen=True)
class _Compare(_ToBool):
    dtypes: ClassVar[tuple[DType, ...]] = _EVERY


@register
@dataclass(frozen=True)
class CmpEq(_Compare):
    """y = whether a and b are equal; false with NaN."""

    name: ClassVar[str] = "cmp_eq"

    def _of(self, a: Array, b: Array) -> Array:
        return np.asarray(a == b)


@register
@dataclass(frozen=True)
class CmpNeq(_Compare):
    """y = whether a and b differ; true with NaN."""

    name: ClassVar[str] = "cmp_neq"

    def _of(self, a: Array, b: Array) -> Array:
        return np.asarray(a != b)


@register
@dataclass(frozen=True)
class CmpGt(_Compare):
    """y = whether a > b; false with NaN."""

    name: ClassVar[str] = "cmp_gt"

    def _of(self, a: Array, b: Array) -> Array:
        return np.asarray(a > b)


@register
@dataclass(frozen=True)
class CmpGe(_Compare):
    """y = whether a ≥ b; false with NaN."""

    name: ClassVar[str] = "cmp_ge"

    def _of(self, a: Array, b: Array) -> Array:
        return np.asarray(a >= b)


@register
@dataclass(frozen=True)
class CmpLt(_Compare):
    """y = whether a < b; false with NaN."""

    name: ClassVar[str] = "cmp_lt"

    def _of(self, a: Array, b: Array) -> Array:
        return np.asarray(a < b)


@register
@dataclass(frozen=True)
class CmpLe(_Compare):
    """y = whether a ≤ b; false with NaN."""

    name: ClassVar[str] = "cmp_le"

    def _of(self, a: Array, b: Array) -> Array:
        return np.asarray(a <= b)


@dataclass(frozen=True)
class _Logical(_ToBool):
    dtypes: ClassVar[tuple[DType, ...]] = (BOOL,)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield f"{cls.name} a=3x35x6x5:bool b=1x35x1x1:bool"
        yield f"{cls.name} a=1000:bool b=1000:bool"
        yield f"{cls.name} a=0x3:bool b=0x3:bool"


@register
@dataclass(frozen=True)
class LogicalAnd(_Logical):
    """y = a and b."""

    name: ClassVar[str] = "logical_and"

    def _of(self, a: Array, b: Array) -> Array:
        return np.asarray((a != 0) & (b != 0))


@register
@dataclass(frozen=True)
class LogicalOr(_Logical):
    """y = a or b."""

    name: ClassVar[str] = "logical_or"

    def _of(self, a: Array, b: Array) -> Array:
        return np.asarray((a != 0) | (b != 0))


@register
@dataclass(frozen=True)
class LogicalNot(Operation):
    """y = not x."""

    name: ClassVar[str] = "logical_not"
    inputs: ClassVar[tuple[str, ...]] = ("x",)
    dtypes: ClassVar[tuple[DType, ...]] = (BOOL,)
    exact: ClassVar[bool] = True

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs)
        self.check_dtypes(x)
        return (pointwise_out(x.dim, x),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs)
        return (np.asarray(x == 0).astype(np.int64),)

    def vjp(self, g: Builder, inputs: Given, outputs: Given, grads: Given) -> tuple[Tensor | None, ...]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield "logical_not x=3x35x6x5:bool"
        yield "logical_not x=1000:bool"


@register
@dataclass(frozen=True)
class BinarySelect(Operation):
    """y = a where the mask is true, else b; all three broadcast."""

    name: ClassVar[str] = "binary_select"
    inputs: ClassVar[tuple[str, ...]] = ("a", "b", "mask")
    dtypes: ClassVar[tuple[DType, ...]] = _EVERY
    exact: ClassVar[bool] = True

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        a, b, mask = need(inputs)
        self.check_dtypes(a, b, same=(1,))
        if mask.dtype != BOOL:
            raise DTypeError(f"binary_select: mask is {mask.dtype}, allowed is bool")
        try:
            dim = tuple(np.broadcast_shapes(a.dim, b.dim, mask.dim))
        except ValueError:
            raise ShapeError(
                f"binary_select: a {a.dim}, b {b.dim} and mask {mask.dim} do not broadcast"
            ) from None
        return (pointwise_out(dim, *(t for t in (a, b, mask)), dtype=a.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b, mask = need(inputs)
        return (np.where(mask != 0, a, b),)

    def vjp(self, g: Builder, inputs: Given, outputs: Given, grads: Given) -> tuple[Tensor | None, ...]:
        a, b, mask = need(inputs)
        dy = grads[0]
        if dy is None or not a.dtype.is_float:
            return None, None, None
        none = zeros_like(g, dy)
        da, db = put(g, BinarySelect(), dy, none, mask), put(g, BinarySelect(), none, dy, mask)
        return unbroadcast(g, da, a.dim), unbroadcast(g, db, b.dim), None

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield "binary_select a=3x35x6x5 b=3x35x6x5 mask=3x35x6x5:bool"
        yield "binary_select a=3x35x6x5 b=1x35x1x1 mask=6x5:bool"
        yield "binary_select a=1000 b=scalar mask=1000:bool"
        yield "binary_select a=5x1 b=1x7 mask=scalar:bool"
        yield "binary_select a=100:i64 b=100:i64 mask=100:bool"
        yield "binary_select a=0x3 b=0x3 mask=0x3:bool"


@register
@dataclass(frozen=True)
class GenIndex(Operation):
    """y = the index along `axis` of each element of x (whose values do not matter), as `dtype`."""

    axis: int = 0
    dtype: str = "i64"

    name: ClassVar[str] = "gen_index"
    inputs: ClassVar[tuple[str, ...]] = ("x",)
    dtypes: ClassVar[tuple[DType, ...]] = _EVERY
    exact: ClassVar[bool] = True

    def bind(self, inputs: Given) -> Self:
        (x,) = need(inputs[:1])
        return replace(self, axis=axis_of(self.axis, x.rank, "gen_index: axis"))

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs)
        self.check_dtypes(x)
        axis_of(self.axis, x.rank, "gen_index: axis")
        kind = dtype(self.dtype, "gen_index: dtype")
        if kind not in (I64, I32, F32):
            raise DTypeError(f"gen_index: dtype is {kind}, allowed are i64, i32, f32")
        return (pointwise_out(x.dim, x, dtype=kind),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs)
        shape = [1] * x.ndim
        shape[self.axis] = -1
        index = np.broadcast_to(np.arange(x.shape[self.axis]).reshape(shape), x.shape)
        return (index.astype(np.float64 if self.dtype in ("f32", "float32") else np.int64),)

    def vjp(self, g: Builder, inputs: Given, outputs: Given, grads: Given) -> tuple[Tensor | None, ...]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield "gen_index x=3x35x6x5 axis=1"
        yield "gen_index x=1000"
        yield "gen_index x=3x35x6x5 axis=3 dtype=i32"
        yield "gen_index x=3x35x6x5 axis=0 dtype=f32"
        yield "gen_index x=0x3 axis=1"
