"""LLVM types and the element types of tensors: how a value lies in memory and what it is computed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ir

I64, I32, I16, I8, I1 = (ir.IntType(n) for n in (64, 32, 16, 8, 1))
F64, F32, F16 = ir.DoubleType(), ir.FloatType(), ir.HalfType()
VOID, PTR = ir.VoidType(), ir.PointerType()

#: The program ABI: int32 f(void **tensors, const int64 *args, void *workspace, const Env *env)
PROGRAM = ir.FunctionType(I32, [PTR, PTR, PTR, PTR])
#: A parallel body: void body(void *ctx, int64 part, int64 begin, int64 end)
BODY = ir.FunctionType(VOID, [PTR, I64, I64, I64])
#: Env.parallel_for: void parallel_for(const Env *env, body, void *ctx, int64 n)
PARALLEL_FOR = ir.FunctionType(VOID, [PTR, PTR, PTR, I64])

MANGLED = {
    F64: "f64",
    F32: "f32",
    F16: "f16",
    I64: "i64",
    I32: "i32",
    I16: "i16",
    I8: "i8",
    I1: "i1",
    PTR: "p0",
}


@dataclass(frozen=True)
class Elem:
    """An element type: bytes in memory, LLVM type there, and the type its values are computed in."""

    name: str
    bytes: int
    storage: Any
    compute: Any


ELEMS: dict[str, Elem] = {
    e.name: e
    for e in (
        Elem("f32", 4, F32, F32),
        Elem("f64", 8, F64, F64),
        Elem("bf16", 2, I16, F32),
        Elem("f16", 2, I16, F32),
        Elem("u16", 2, I16, I32),  # the bits of a 16-bit float as an integer
        Elem("i16", 2, I16, I16),  # the same, only to be copied
        Elem("i64", 8, I64, I64),
        Elem("i32", 4, I32, I32),
        Elem("i8", 1, I8, I32),
        Elem("u8", 1, I8, I32),
        Elem("bool", 1, I8, I1),
        Elem("b16", 2, I16, I16),  # bits that are only moved
        Elem("b8", 1, I8, I8),
    )
}

#: Types that values (not tensors) can have, by name.
COMPUTE = {"f32": F32, "f64": F64, "i64": I64, "i32": I32, "i16": I16, "i8": I8, "bool": I1}


def elem(dtype: Any) -> Elem:
    """The element type of a name ("bf16") or of anything with such a `name`."""
    name = getattr(dtype, "name", dtype)
    if name not in ELEMS:
        raise ValueError(f"dtype {name!r} has no element type in codegen; known are {', '.join(ELEMS)}")
    return ELEMS[name]


def scalar(t: Any) -> Any:
    """The element type of a vector type, or the type itself."""
    return t.element if isinstance(t, ir.VectorType) else t


def is_float(t: Any) -> bool:
    s = scalar(t)
    return s is F32 or s is F64


def like(t: Any, v: Any) -> Any:
    """Type t in the shape (scalar or vector) of value v."""
    return ir.VectorType(t, v.type.count) if isinstance(v.type, ir.VectorType) else t


def const(t: Any, x: Any) -> Any:
    """The constant x of a scalar or vector type."""
    s = scalar(t)
    c = float(x) if is_float(s) else int(x)
    return ir.Constant(t, [s(c)] * t.count) if isinstance(t, ir.VectorType) else ir.Constant(t, c)


def slot_bytes(t: Any) -> int:
    """Room of a captured value in the context."""
    if isinstance(t, ir.VectorType):
        width = getattr(t.element, "width", {F32: 32, F64: 64}.get(t.element, 64))
        return int(-(-t.count * max(8, width) // 64) * 8)
    return 8
