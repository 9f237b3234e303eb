"""Builder methods of Graph: embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.ops.builder.base import Base
from vlug.tensor import Tensor

__all__ = ["EmbeddingMethods"]


class EmbeddingMethods(Base):
    """Rows of a table by index."""

    def embedding(self, weight: Tensor, indices: Tensor, *, padding_idx: int = -1, **options: Any) -> Tensor:
        """weight[indices]; padding_idx: a row whose gradient is 0 (-1: none)."""
        y: Tensor = self.call("embedding", weight, indices, padding_idx=padding_idx, **options)
        return y

    def embedding_backward(
        self, dy: Tensor, indices: Tensor, *, size: Sequence[int], padding_idx: int = -1, **options: Any
    ) -> Tensor:
        """dweight, of dims `size`, of embedding's dy."""
        at = {"size": tuple(size), "padding_idx": padding_idx}
        dweight: Tensor = self.call("embedding_backward", dy, indices, **at, **options)
        return dweight
