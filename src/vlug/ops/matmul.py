"""Matrix product, batched and broadcast over leading dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vlug.errors import ShapeError
from vlug.ops.base import Array, Builder, Cost, Operation, need, register
from vlug.ops.reduction import unbroadcast
from vlug.tensor import Tensor

__all__ = ["Matmul"]


@register
@dataclass(frozen=True)
class Matmul(Operation):
    """c[…,m,n] = Σ_k a[…,m,k] · b[…,k,n]; leading dimensions broadcast as in NumPy.

    transpose_a: a is …,k,m in memory order of its dimensions; transpose_b: b is …,n,k.
    """

    transpose_a: bool = False
    transpose_b: bool = False

    name: ClassVar[str] = "matmul"
    inputs: ClassVar[tuple[str, ...]] = ("a", "b")
    outputs: ClassVar[tuple[str, ...]] = ("c",)
    exact: ClassVar[bool] = True

    def sizes(self, a: Tensor, b: Tensor) -> tuple[int, int, int]:
        """M, N, K."""
        m, k = a.dim[-2:][::-1] if self.transpose_a else a.dim[-2:]
        n = b.dim[-2] if self.transpose_b else b.dim[-1]
        return m, n, k

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        a, b = need(inputs)
        self.check_dtypes(a, b, same=(1,))
        for port, t in (("a", a), ("b", b)):
            self.expect(t.rank >= 2, f"{port} {t.dim} must have 2 dimensions or more")
        m, n, k = self.sizes(a, b)
        kb = b.dim[-1] if self.transpose_b else b.dim[-2]
        self.expect(k == kb, f"a {a.dim} has K = {k}, but b {b.dim} has {kb}")
        try:
            lead = np.broadcast_shapes(a.dim[:-2], b.dim[:-2])
        except ValueError:
            raise ShapeError(
                f"matmul: leading dimensions {a.dim[:-2]} of a and {b.dim[:-2]} of b do not broadcast"
            ) from None
        return (Tensor.of((*lead, m, n), a.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = need(inputs)
        return (
            np.matmul(
                np.swapaxes(a, -1, -2) if self.transpose_a else a,
                np.swapaxes(b, -1, -2) if self.transpose_b else b,
            ),
        )

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        a, b = need(inputs)
        dc = grads[0]
        if dc is None:
            return None, None
        ta, tb = self.transpose_a, self.transpose_b
        da = g.append(Matmul(tb, True), (b, dc)) if ta else g.append(Matmul(False, not tb), (dc, b))
        db = g.append(Matmul(True, ta), (dc, a)) if tb else g.append(Matmul(not ta, False), (a, dc))
        return unbroadcast(g, da[0], a.dim), unbroadcast(g, db[0], b.dim)

    def cost(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]) -> Cost:
        a, b = need(inputs)
        (c,) = need(outputs)
        return Cost(2 * c.numel * self.sizes(a, b)[2], a.nbytes + b.nbytes + c.nbytes)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield "matmul a=64x64 b=64x64"
        yield "matmul a=17x35 b=35x13"
        yield "matmul a=33x40 b=70x40 transpose_b=1"
        yield "matmul a=40x33 b=40x50 transpose_a=1"
        yield "matmul a=19x21 b=23x19 transpose_a=1 transpose_b=1"
        yield "matmul a=1x300 b=300x1"
        yield "matmul a=1x64 b=100x64 transpose_b=1"
        yield "matmul a=130x1 b=1x67"
        yield "matmul a=5x1000 b=1000x3"
        yield "matmul a=3x10x20 b=3x20x15"
        yield "matmul a=2x1x9x8 b=3x8x7"
        yield "matmul a=4x6x8 b=8x5"
        yield "matmul a=6x8 b=2x3x8x5"
        yield "matmul a=2x3x5x4 b=2x1x6x5 transpose_a=1 transpose_b=1"
        yield "matmul a=0x8 b=8x5"
        yield "matmul a=4x0 b=0x5"
        yield "matmul a=4x8 b=8x0"
        yield "matmul a=0x4x8 b=8x3"
