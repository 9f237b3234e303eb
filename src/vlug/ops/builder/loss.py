"""Builder methods of Graph: losses."""

from __future__ import annotations

from typing import Any

from vlug.ops.builder.base import Base
from vlug.tensor import Tensor

__all__ = ["LossMethods"]


class LossMethods(Base):
    """Losses."""

    def cross_entropy(
        self,
        x: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        *,
        reduction: str = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        **options: Any,
    ) -> Any:
        """loss and lse of logits x and classes target; names=("loss",) leaves lse out."""
        return self.call(
            "cross_entropy",
            x,
            target,
            weight,
            reduction=reduction,
            ignore_index=ignore_index,
            label_smoothing=float(label_smoothing),
            **options,
        )

    def cross_entropy_backward(
        self,
        dloss: Tensor,
        x: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        lse: Tensor | None = None,
        *,
        reduction: str = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        **options: Any,
    ) -> Tensor:
        """dx of cross_entropy's dloss."""
        dx: Tensor = self.call(
            "cross_entropy_backward",
            dloss,
            x,
            target,
            weight,
            lse,
            reduction=reduction,
            ignore_index=ignore_index,
            label_smoothing=float(label_smoothing),
            **options,
        )
        return dx
