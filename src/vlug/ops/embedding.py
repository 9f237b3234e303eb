"""Rows of a table by index, and the gradient of the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from vlug.dtypes import I32, I64
from vlug.errors import BadInput, DTypeError
from vlug.ops.base import Array, Builder, Cost, Operation, need, register
from vlug.tensor import Tensor, contiguous_strides

__all__ = ["Embedding", "EmbeddingBackward"]


@dataclass(frozen=True)
class _Embedding(Operation):
    padding_idx: int = -1

    def _check(self, rows: int, indices: Tensor) -> None:
        if indices.dtype not in (I32, I64):
            raise DTypeError(f"{self.name}: indices are {indices.dtype}, allowed are i32, i64")
        self.expect(
            -1 <= self.padding_idx < max(rows, 1),
            f"padding_idx {self.padding_idx} must be a row of weight, 0 to {rows - 1}, or -1 (none)",
        )

    def _in_range(self, indices: Array, rows: int) -> None:
        bad = (indices < 0) | (indices >= rows)
        if np.any(bad):
            raise BadInput(f"{self.name}: indices hold {indices[bad][0]}, allowed are 0 to {rows - 1}")


@register
@dataclass(frozen=True)
class Embedding(_Embedding):
    """y[i…, :] = weight[indices[i…], :].

    padding_idx: a row whose gradient is 0 (-1: none); it changes nothing here.
    """

    name: ClassVar[str] = "embedding"
    inputs: ClassVar[tuple[str, ...]] = ("weight", "indices")
    outputs: ClassVar[tuple[str, ...]] = ("y",)
    exact: ClassVar[bool] = True

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        weight, indices = need(inputs)
        self.check_dtypes(weight)
        self.expect(weight.rank == 2, f"weight {weight.dim} must have 2 dimensions: rows, elements")
        self._check(weight.dim[0], indices)
        return (Tensor.of((*indices.dim, weight.dim[1]), weight.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        weight, indices = need(inputs)
        self._in_range(indices, weight.shape[0])
        if 0 in weight.shape or not indices.size:
            return (np.zeros((*indices.shape, weight.shape[1]), weight.dtype),)
        return (weight[indices],)

    def cost(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]) -> Cost:
        (y,), (_, indices) = need(outputs), need(inputs)
        return Cost(0, 2 * y.nbytes + indices.nbytes)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return None, None
        (weight,) = need(inputs[:1])
        op = EmbeddingBackward(self.padding_idx, size=weight.dim)
        return g.append(op, (grads[0], inputs[1]))[0], None

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield "embedding weight=11x33 indices=40:i64"
        yield "embedding weight=11x70 indices=3x5x2:i64"
        yield "embedding weight=300x1 indices=17:i32"
        yield "embedding weight=5x8 indices=scalar:i64"
        yield "embedding weight=5x8 indices=0:i64"
        yield "embedding weight=5x0 indices=3:i64"


@register
@dataclass(frozen=True)
class EmbeddingBackward(_Embedding):
    """dweight[r, :] = the sum of dy[i…, :] over the places where indices[i…] is r, added in their order.

    size: the dims of dweight. The row padding_idx stays 0.
    """

    size: tuple[int, ...] = field(kw_only=True)

    name: ClassVar[str] = "embedding_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "indices")
    outputs: ClassVar[tuple[str, ...]] = ("dweight",)
    exact: ClassVar[bool] = True

    @classmethod
    def spatial_rank(cls, inputs: Sequence[Tensor | None]) -> int:
        return 2

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        dy, indices = need(inputs)
        self.check_dtypes(dy)
        self.expect(len(self.size) == 2, f"size {self.size} must have 2 dimensions: rows, elements")
        self._check(self.size[0], indices)
        want = (*indices.dim, self.size[1])
        self.expect(dy.dim == want, f"dy {dy.dim} must be {want}, the dims of indices and a row's")
        return (Tensor(self.size, contiguous_strides(self.size), dy.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dy, indices = need(inputs)
        self._in_range(indices, self.size[0])
        dw = np.zeros(self.size, dy.dtype)
        flat = indices.reshape(-1)
        keep = flat != self.padding_idx
        np.add.at(dw, flat[keep], dy.reshape(flat.size, self.size[1])[keep])
        return (dw,)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return None, None
        if self.padding_idx >= 0:
            raise NotImplementedError("embedding_backward: no gradient beside a padding_idx")
        return g.append(Embedding(), (grads[0], inputs[1]))[0], None

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield "embedding_backward dy=40x33 indices=40:i64 size=11x33"
        yield "embedding_backward dy=3x5x2x70 indices=3x5x2:i64 size=11x70 padding_idx=3"
        yield "embedding_backward dy=17x1 indices=17:i32 size=300x1"
        yield "embedding_backward dy=8 indices=scalar:i64 size=5x8"
        yield "embedding_backward dy=0x8 indices=0:i64 size=5x8"
        yield "embedding_backward dy=3x0 indices=3:i64 size=5x0"
