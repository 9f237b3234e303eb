"""Identity: a copy into another dtype or layout; and appending an operation of one result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vlug.dtypes import BF16, BOOL, F16, F32, F64, I32, I64, U8, DType, dtype
from vlug.ops.base import Array, Builder, Operation, need, register
from vlug.ops.pointwise import pointwise_out
from vlug.tensor import Tensor

__all__ = ["Identity", "put"]

Found = tuple[Tensor | None, ...]
Given = Sequence[Tensor | None]


def put(g: Builder, op: Operation, *inputs: Tensor | None) -> Tensor:
    """The one result of an operation appended to g."""
    return g.append(op, inputs)[0]


#: Casts that the samples reach.
FROM_TO = (
    ("f32", "bf16"), ("f32", "f64"), ("f64", "f32"), ("f64", "bf16"), ("f16", "f64"), ("f32", "i32"),
    ("f64", "i64"), ("f32", "u8"), ("f64", "i32"), ("f32", "i64"), ("i32", "f32"), ("i64", "f64"),
    ("u8", "f16"), ("i64", "f32"), ("i64", "u8"), ("f32", "bool"), ("bool", "f32"), ("bool", "i64"),
    ("i32", "bool"), ("u8", "i64"),
)  # fmt: skip

_KINDS = (F32, BF16, F16, F64, I32, I64, U8, BOOL)


@register
@dataclass(frozen=True)
class Identity(Operation):
    """y = x, in another dtype (`dtype`; "" keeps x's) or layout.

    Floats round to nearest even; to integers they are cut towards 0 and clamped to the range, NaN gives 0;
    an integer too large for a smaller type wraps around; to bool, 0 is false and anything else (NaN) true.
    """

    dtype: str = ""

    name: ClassVar[str] = "identity"
    inputs: ClassVar[tuple[str, ...]] = ("x",)
    dtypes: ClassVar[tuple[DType, ...]] = _KINDS
    exact: ClassVar[bool] = True

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs)
        self.check_dtypes(x)
        return (pointwise_out(x.dim, x, dtype=self._to(x.dtype)),)

    def _to(self, given: DType) -> DType:
        return dtype(self.dtype, "identity: dtype") if self.dtype else given

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs)
        if not self.dtype:
            return (np.array(x),)
        to = dtype(self.dtype)
        if to.kind == "f":
            return (x.astype(np.float64) if x.dtype.kind != "f" else np.array(x),)
        if to.kind == "b":
            return (np.asarray(x != 0).astype(np.int64),)
        if x.dtype.kind == "f":
            return (_cut(x, to),)
        return (np.asarray(x.astype(to.numpy).astype(np.int64)),)

    def vjp(self, g: Builder, inputs: Given, outputs: Given, grads: Given) -> Found:
        (x,) = need(inputs)
        if grads[0] is None or not x.dtype.is_float:
            return (None,)
        return (put(g, Identity(x.dtype.name), grads[0]),)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield "identity x=3x35x6x5"
        yield "identity x=3x35x6x5:f32:nhwc -> y=3x35x6x5"
        for a, b in FROM_TO:
            yield f"identity x=3x35x5:{a} dtype={b}"
        yield "identity x=scalar:f32 dtype=i64"
        yield "identity x=0x3:f32 dtype=f64"


def _cut(x: Array, to: DType) -> Array:
    """Floats as integers, towards 0 and within the range."""
    info = np.iinfo(to.numpy)
    inside = np.where(np.isnan(x), 0.0, np.trunc(np.clip(x.astype(np.float64), info.min, info.max)))
    top = inside >= float(info.max)  # 2^63 itself is no int64
    return np.where(top, info.max, np.where(top, 0.0, inside).astype(np.int64))
