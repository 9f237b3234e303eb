"""Builder methods of Graph: steps of optimisers."""

from __future__ import annotations

from typing import Any

from vlug.ops.builder.base import Base
from vlug.tensor import Tensor

__all__ = ["OptimMethods"]


class OptimMethods(Base):
    """Steps of optimisers. What changes from call to call is a tensor of one f32 or f64 number."""

    def sgd_step(
        self,
        p: Tensor,
        g: Tensor,
        buf: Tensor | None,
        lr: Tensor,
        momentum: Tensor,
        dampening: Tensor,
        weight_decay: Tensor,
        *,
        nesterov: bool = False,
        maximize: bool = False,
        first: bool = False,
        **options: Any,
    ) -> Any:
        """next_p, and next_buf where there is a buffer or this is the first step of one."""
        inputs = (p, g, buf, lr, momentum, dampening, weight_decay)
        return self.call("sgd_step", *inputs, nesterov=nesterov, maximize=maximize, first=first, **options)

    def adam_step(
        self,
        p: Tensor,
        g: Tensor,
        m: Tensor,
        v: Tensor,
        vmax: Tensor | None,
        step: Tensor,
        lr: Tensor,
        beta1: Tensor,
        beta2: Tensor,
        eps: Tensor,
        weight_decay: Tensor,
        *,
        decoupled: bool = False,
        maximize: bool = False,
        **options: Any,
    ) -> tuple[Tensor, ...]:
        """next_p, next_m, next_v, and next_vmax where vmax is there; decoupled: AdamW."""
        inputs = (p, g, m, v, vmax, step, lr, beta1, beta2, eps, weight_decay)
        made: tuple[Tensor, ...] = self.call(
            "adam_step", *inputs, decoupled=decoupled, maximize=maximize, **options
        )
        return made
