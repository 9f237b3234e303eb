"""Builder methods of Graph: normalisation."""

from __future__ import annotations

from typing import Any

from vlug.ops.builder.base import Base
from vlug.tensor import Tensor

__all__ = ["NormMethods"]


class NormMethods(Base):
    """Normalisation."""

    def batchnorm(
        self,
        x: Tensor,
        scale: Tensor | None = None,
        bias: Tensor | None = None,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        *,
        eps: float = 1e-5,
        momentum: float = 0.1,
        unbiased: bool = True,
        **options: Any,
    ) -> tuple[Tensor, ...]:
        """y, mean, inv_std and, where running statistics are given, next_running_mean, next_running_var."""
        outs: tuple[Tensor, ...] = self.call(
            "batchnorm",
            x,
            scale,
            bias,
            running_mean,
            running_var,
            eps=float(eps),
            momentum=float(momentum),
            unbiased=unbiased,
            **options,
        )
        return outs

    def batchnorm_inference(
        self,
        x: Tensor,
        mean: Tensor,
        var: Tensor,
        scale: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        eps: float = 1e-5,
        **options: Any,
    ) -> Tensor:
        """y = scale · (x - mean) / sqrt(var + eps) + bias."""
        y: Tensor = self.call("batchnorm_inference", x, mean, var, scale, bias, eps=float(eps), **options)
        return y

    def batchnorm_backward(
        self,
        dy: Tensor,
        x: Tensor,
        scale: Tensor | None,
        mean: Tensor,
        inv_std: Tensor,
        *,
        training: bool = True,
        **options: Any,
    ) -> Any:
        """dx, dscale, dbias; names= with "_" leaves some out."""
        return self.call("batchnorm_backward", dy, x, scale, mean, inv_std, training=training, **options)
