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

    def batchnorm_inference_backward(
        self,
        dy: Tensor,
        x: Tensor,
        scale: Tensor | None,
        mean: Tensor,
        var: Tensor,
        *,
        eps: float = 1e-5,
        **options: Any,
    ) -> Any:
        """dx, dscale, dbias with mean and var constant; names= with "_" leaves some out."""
        return self.call(
            "batchnorm_inference_backward", dy, x, scale, mean, var, eps=float(eps), **options
        )

    def layernorm(
        self,
        x: Tensor,
        scale: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        axis: int = -1,
        eps: float = 1e-5,
        **options: Any,
    ) -> Any:
        """y, mean, inv_std of rows along dimensions `axis` and on."""
        return self.call("layernorm", x, scale, bias, axis=axis, eps=float(eps), **options)

    def layernorm_backward(
        self,
        dy: Tensor,
        x: Tensor,
        scale: Tensor | None,
        mean: Tensor,
        inv_std: Tensor,
        *,
        axis: int = -1,
        **options: Any,
    ) -> Any:
        """dx, dscale, dbias; names= with "_" leaves some out."""
        return self.call("layernorm_backward", dy, x, scale, mean, inv_std, axis=axis, **options)

    def rmsnorm(
        self,
        x: Tensor,
        scale: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        axis: int = -1,
        eps: float = 1e-5,
        **options: Any,
    ) -> Any:
        """y, inv_std of rows along dimensions `axis` and on."""
        return self.call("rmsnorm", x, scale, bias, axis=axis, eps=float(eps), **options)

    def rmsnorm_backward(
        self, dy: Tensor, x: Tensor, scale: Tensor | None, inv_std: Tensor, *, axis: int = -1, **options: Any
    ) -> Any:
        """dx, dscale, dbias; names= with "_" leaves some out."""
        return self.call("rmsnorm_backward", dy, x, scale, inv_std, axis=axis, **options)

    def groupnorm(
        self,
        x: Tensor,
        scale: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        groups: int,
        eps: float = 1e-5,
        **options: Any,
    ) -> Any:
        """y, mean, inv_std; the channels make `groups` groups of neighbours."""
        return self.call("groupnorm", x, scale, bias, groups=groups, eps=float(eps), **options)

    def groupnorm_backward(
        self,
        dy: Tensor,
        x: Tensor,
        scale: Tensor | None,
        mean: Tensor,
        inv_std: Tensor,
        *,
        groups: int,
        **options: Any,
    ) -> Any:
        """dx, dscale, dbias; names= with "_" leaves some out."""
        return self.call("groupnorm_backward", dy, x, scale, mean, inv_std, groups=groups, **options)

    def instancenorm(
        self,
        x: Tensor,
        scale: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        eps: float = 1e-5,
        **options: Any,
    ) -> Any:
        """y, mean, inv_std of each plane."""
        return self.call("instancenorm", x, scale, bias, eps=float(eps), **options)

    def instancenorm_backward(
        self, dy: Tensor, x: Tensor, scale: Tensor | None, mean: Tensor, inv_std: Tensor, **options: Any
    ) -> Any:
        """dx, dscale, dbias; names= with "_" leaves some out."""
        return self.call("instancenorm_backward", dy, x, scale, mean, inv_std, **options)
