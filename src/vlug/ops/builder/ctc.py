"""Builder methods of Graph: CTC."""

from __future__ import annotations

from typing import Any

from vlug.ops.builder.base import Base
from vlug.tensor import Tensor

__all__ = ["CtcMethods"]


class CtcMethods(Base):
    """Connectionist temporal classification."""

    def ctc_loss(
        self,
        x: Tensor,
        target: Tensor,
        input_lengths: Tensor,
        target_lengths: Tensor,
        *,
        blank: int = 0,
        zero_infinity: bool = False,
        longest: bool = False,
        **options: Any,
    ) -> Any:
        """loss and alpha of log-probabilities x (T, N, C); names=("loss",) leaves alpha out."""
        at = {"blank": blank, "zero_infinity": zero_infinity, "longest": longest}
        return self.call("ctc_loss", x, target, input_lengths, target_lengths, **at, **options)

    def ctc_loss_backward(
        self,
        dloss: Tensor,
        x: Tensor,
        target: Tensor,
        input_lengths: Tensor,
        target_lengths: Tensor,
        alpha: Tensor | None = None,
        loss: Tensor | None = None,
        *,
        blank: int = 0,
        zero_infinity: bool = False,
        of_softmax: bool = True,
        **options: Any,
    ) -> Tensor:
        """dx of ctc_loss's dloss; of_softmax: of an x that is a log-softmax."""
        at = {"blank": blank, "zero_infinity": zero_infinity, "of_softmax": of_softmax}
        tensors = (dloss, x, target, input_lengths, target_lengths, alpha, loss)
        dx: Tensor = self.call("ctc_loss_backward", *tensors, **at, **options)
        return dx
