"""Builder methods of Graph: numbers of a generator, dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.ops.builder.base import Base
from vlug.tensor import Tensor

__all__ = ["DropoutMethods"]


class DropoutMethods(Base):
    """Numbers of a generator, dropout. seed and offset are tensors of one int64 each."""

    def rng(
        self,
        seed: Tensor,
        offset: Tensor,
        *,
        size: Sequence[int],
        distribution: str = "uniform",
        low: float = 0.0,
        high: float = 1.0,
        probability: float = 0.5,
        dtype: str = "f32",
        **options: Any,
    ) -> Tensor:
        """y of dims `size`: uniform in [low, high), or bernoulli: 1 with this probability, else 0."""
        y: Tensor = self.call(
            "rng",
            seed,
            offset,
            size=tuple(size),
            distribution=distribution,
            low=float(low),
            high=float(high),
            probability=float(probability),
            dtype=dtype,
            **options,
        )
        return y

    def dropout(self, x: Tensor, seed: Tensor, offset: Tensor, *, p: float = 0.5, **options: Any) -> Tensor:
        """y = x · m, m = 0 with probability p, else 1 / (1 - p)."""
        y: Tensor = self.call("dropout", x, seed, offset, p=float(p), **options)
        return y

    def dropout_backward(
        self, dy: Tensor, seed: Tensor, offset: Tensor, *, p: float = 0.5, **options: Any
    ) -> Tensor:
        """dx = dy · m with dropout's m of the same seed and offset."""
        dx: Tensor = self.call("dropout_backward", dy, seed, offset, p=float(p), **options)
        return dx
