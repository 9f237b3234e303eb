"""Builder methods of Graph: products of matrices, and the linear layer."""

from __future__ import annotations

from typing import Any

from vlug.ops.builder.base import Base
from vlug.tensor import Tensor

__all__ = ["MatmulMethods"]


class MatmulMethods(Base):
    """Products of matrices, and the linear layer."""

    def matmul(
        self, a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False, **options: Any
    ) -> Tensor:
        """c = a·b over the last two dimensions, the others broadcast."""
        c: Tensor = self.call("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b, **options)
        return c
