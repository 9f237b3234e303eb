"""Sums of products of bf16: AMX's tile registers, and AVX512-BF16's dot products on vectors.

Both take rows of pairs: a 32-bit word holds two neighbours of the reduction, c and c + 1. A tile is 16 rows
of 16 words (64 bytes), and
    sum[i, j] += Σ over 16 words w of  a[i, w] · b[w, j]     (both halves of each word)
with fp32 sums. Denormals count as zero, in the operands and in the sums.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir

from vlug.codegen.kernel import Kernel
from vlug.codegen.types import I8, I16, PTR, VOID, like
from vlug.codegen.values import Int, Val
from vlug.codegen.view import View

__all__ = ["ROWS", "Tiles", "dot", "store_bf16"]

#: Rows of a tile, and 32-bit words of a row.
ROWS = 16


class _BFloat(ir.types._BaseFloatType):  # type: ignore[misc]
    """llvmlite has no bfloat; its printer needs only a name."""

    intrinsic_name, null = "bf16", "0.0"

    def __str__(self) -> str:
        return "bfloat"


_BFloat._create_instance()
BF16 = _BFloat()


class Tiles:
    """Eight tile registers of a parallel region, numbered 0 … 7, each of 16 rows of 64 bytes.

    Making it configures them. The region releases them at its end and wherever an error leaves it.
    """

    def __init__(self, k: Kernel):
        if not k.isa.has("amx"):
            raise ValueError(f"{k.isa} has no tiles")
        if k.part is None or k.tiled:
            raise RuntimeError("tiles are configured once in a parallel region")
        self.k, name = k, "tiles.config"
        if name not in k.module.globals:
            g = ir.GlobalVariable(k.module, ir.ArrayType(I8, 64), name)
            g.linkage, g.global_constant, g.align = "internal", True, 64
            # palette 1; from byte 16 each tile's bytes of a row (16 bits), from byte 48 its rows
            text = bytearray([1] + [0] * 15 + [64, 0] * 8 + [0] * 16 + [ROWS] * 8 + [0] * 8)
            g.initializer = ir.Constant(ir.ArrayType(I8, 64), text)
        config = k.b.bitcast(k.module.globals[name], PTR)
        k.intrinsic("llvm.x86.ldtilecfg", VOID, [config], [])
        k.tiled = True

    def zero(self, tile: int) -> None:
        self.k.intrinsic("llvm.x86.tilezero", VOID, [I8(tile)], [])

    def load(self, tile: int, address: Any, pitch: Int) -> None:
        """16 rows of 64 bytes, `pitch` bytes apart."""
        self.k.intrinsic("llvm.x86.tileloadd64", VOID, [I8(tile), address, self.k.raw(pitch)], [])

    def store(self, tile: int, address: Any, pitch: Int) -> None:
        self.k.intrinsic("llvm.x86.tilestored64", VOID, [I8(tile), address, self.k.raw(pitch)], [])

    def dot(self, sums: int, a: int, b: int) -> None:
        """sums += a · b, of tiles."""
        self.k.intrinsic("llvm.x86.tdpbf16ps", VOID, [I8(sums), I8(a), I8(b)], [])


def dot(sums: Val, a: Val, b: Val) -> Val:
    """sums + a · b for words of two bf16 each, lane by lane (AVX512-BF16); a scalar word is repeated."""
    k = sums.k
    if not k.isa.has("bf16") or k.V != ROWS:
        raise ValueError(f"{k.isa} has no dot products of bf16")
    pairs = ir.VectorType(BF16, 2 * k.V)

    def both(s: Any, x: Any, y: Any) -> Any:
        xs, ys = k.op("bitcast", x, pairs), k.op("bitcast", y, pairs)
        return k.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", s.type, [s, xs, ys], [])

    return k.zip(both, sums, a, b)


def store_bf16(view: View, value: Val, exact: bool, *idx: Any) -> None:
    """Store fp32 values to a bf16 tensor, rounded to the nearest even.

    exact=False takes the processor's conversion where it has one, which gives 0 for a denormal: for sums that
    cannot be denormal.
    """
    k = view.k
    if exact or not k.isa.has("bf16"):
        view.store(*idx, value)
        return

    def narrow(x: Any) -> Any:
        return k.op("bitcast", k.op("fptrunc", x, like(BF16, x)), like(I16, x))

    View(k, view.ptr, view.dims, view.strides, "i16").store(*idx, k.zip(narrow, value))

