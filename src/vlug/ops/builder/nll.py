"""Builder methods of Graph: negative log-likelihood."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.ops.builder.base import Base
from vlug.tensor import Tensor

__all__ = ["NllMethods"]


class NllMethods(Base):
    """Negative log-likelihood of log-probabilities."""

    def nll_loss(
        self,
        x: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        *,
        reduction: str = "mean",
        ignore_index: int = -100,
        **options: Any,
    ) -> Any:
        """loss and total weight of log-probabilities x and classes; names=("loss",) leaves total out."""
        at = {"reduction": reduction, "ignore_index": ignore_index}
        return self.call("nll_loss", x, target, weight, **at, **options)

    def nll_loss_backward(
        self,
        dloss: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        total: Tensor | None = None,
        *,
        size: Sequence[int],
        reduction: str = "mean",
        ignore_index: int = -100,
        **options: Any,
    ) -> Tensor:
        """dx, of dims `size`, of nll_loss's dloss."""
        at = {"size": tuple(size), "reduction": reduction, "ignore_index": ignore_index}
        dx: Tensor = self.call("nll_loss_backward", dloss, target, weight, total, **at, **options)
        return dx
