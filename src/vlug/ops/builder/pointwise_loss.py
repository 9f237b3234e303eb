"""Builder methods of Graph: losses of x against a target, element by element."""

from __future__ import annotations

from typing import Any

from vlug.ops.builder.base import Base
from vlug.tensor import Tensor

__all__ = ["PointwiseLossMethods"]


class PointwiseLossMethods(Base):
    """Losses element by element; reduction: mean, sum or none."""

    def mse_loss(self, x: Tensor, target: Tensor, *, reduction: str = "mean", **options: Any) -> Tensor:
        """(x - target)²."""
        loss: Tensor = self.call("mse_loss", x, target, reduction=reduction, **options)
        return loss

    def mse_loss_backward(
        self, dloss: Tensor, x: Tensor, target: Tensor, *, reduction: str = "mean", **options: Any
    ) -> Any:
        """dx and dtarget of mse_loss's dloss; names=("dx",) leaves dtarget out."""
        return self.call("mse_loss_backward", dloss, x, target, reduction=reduction, **options)

    def l1_loss(self, x: Tensor, target: Tensor, *, reduction: str = "mean", **options: Any) -> Tensor:
        """|x - target|."""
        loss: Tensor = self.call("l1_loss", x, target, reduction=reduction, **options)
        return loss

    def l1_loss_backward(
        self, dloss: Tensor, x: Tensor, target: Tensor, *, reduction: str = "mean", **options: Any
    ) -> Any:
        """dx and dtarget of l1_loss's dloss; names=("dx",) leaves dtarget out."""
        return self.call("l1_loss_backward", dloss, x, target, reduction=reduction, **options)

    def smooth_l1_loss(
        self, x: Tensor, target: Tensor, *, reduction: str = "mean", beta: float = 1.0, **options: Any
    ) -> Tensor:
        """Quadratic below beta, linear above."""
        loss: Tensor = self.call(
            "smooth_l1_loss", x, target, reduction=reduction, beta=float(beta), **options
        )
        return loss

    def smooth_l1_loss_backward(
        self,
        dloss: Tensor,
        x: Tensor,
        target: Tensor,
        *,
        reduction: str = "mean",
        beta: float = 1.0,
        **options: Any,
    ) -> Any:
        """dx and dtarget of smooth_l1_loss's dloss; names=("dx",) leaves dtarget out."""
        return self.call(
            "smooth_l1_loss_backward", dloss, x, target, reduction=reduction, beta=float(beta), **options
        )

    def huber_loss(
        self, x: Tensor, target: Tensor, *, reduction: str = "mean", delta: float = 1.0, **options: Any
    ) -> Tensor:
        """Quadratic below delta, linear with slope delta above."""
        loss: Tensor = self.call("huber_loss", x, target, reduction=reduction, delta=float(delta), **options)
        return loss

    def huber_loss_backward(
        self,
        dloss: Tensor,
        x: Tensor,
        target: Tensor,
        *,
        reduction: str = "mean",
        delta: float = 1.0,
        **options: Any,
    ) -> Any:
        """dx and dtarget of huber_loss's dloss; names=("dx",) leaves dtarget out."""
        return self.call(
            "huber_loss_backward", dloss, x, target, reduction=reduction, delta=float(delta), **options
        )

    def kl_div(
        self, x: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False, **options: Any
    ) -> Tensor:
        """target · (log target - x) of log-probabilities x."""
        loss: Tensor = self.call("kl_div", x, target, reduction=reduction, log_target=log_target, **options)
        return loss

    def kl_div_backward(
        self,
        dloss: Tensor,
        x: Tensor,
        target: Tensor,
        *,
        reduction: str = "mean",
        log_target: bool = False,
        **options: Any,
    ) -> Any:
        """dx and dtarget of kl_div's dloss; names=("dx",) leaves dtarget out."""
        return self.call(
            "kl_div_backward", dloss, x, target, reduction=reduction, log_target=log_target, **options
        )

    def bce_with_logits(
        self,
        x: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        pos_weight: Tensor | None = None,
        *,
        reduction: str = "mean",
        **options: Any,
    ) -> Tensor:
        """Binary cross-entropy of logits x."""
        loss: Tensor = self.call(
            "bce_with_logits", x, target, weight, pos_weight, reduction=reduction, **options
        )
        return loss

    def bce_with_logits_backward(
        self,
        dloss: Tensor,
        x: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        pos_weight: Tensor | None = None,
        *,
        reduction: str = "mean",
        **options: Any,
    ) -> Any:
        """dx and dtarget of bce_with_logits's dloss; names=("dx",) leaves dtarget out."""
        tensors = (dloss, x, target, weight, pos_weight)
        return self.call("bce_with_logits_backward", *tensors, reduction=reduction, **options)
