"""The register-tile product, which convolution and matmul share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vlug.codegen.kernel import Kernel
from vlug.codegen.values import Int, Val, Var


def product(k: Kernel, acc: Sequence[Var], c: tuple[Int, Int], a: Callable[[int, Int], Val],
            b: Callable[[Int], Val], unroll: int = 1) -> None:
    """acc[i] += a(i, c) * b(c) over c in [c0, c1): rows a are scalars, b is a row of vectors.

    In either orientation: a from the weights and b from x (vectors along pixels), or a from x and b from the
    weights (vectors along channels). Unroll 1 or 2 halves compile time against 4 at 2 % of speed; a tile that
    fills the registers (`isa.tile_rows`) may spill unrolled, and spills if rows of a lie at run-time strides.
    """
    for i in k.range(*c, unroll=unroll):
        row = b(i)
        for j, s in enumerate(acc):
            s += a(j, i) * row
