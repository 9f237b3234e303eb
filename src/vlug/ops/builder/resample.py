"""Builder methods of Graph: resampling and adaptive pooling."""

from __future__ import annotations

from typing import Any

from vlug.ops.builder.base import Base, Ints
from vlug.tensor import Tensor

__all__ = ["ResampleMethods"]


class ResampleMethods(Base):
    """Resampling and adaptive pooling. size: spatial dims of the result."""

    def resample(
        self,
        x: Tensor,
        *,
        size: Ints,
        mode: str = "linear",
        align_corners: bool = False,
        scale_d: float = 0.0,
        scale_h: float = 0.0,
        scale_w: float = 0.0,
        **options: Any,
    ) -> Tensor:
        """y of x by interpolation: mode nearest, nearest_exact, linear or cubic; a scale of 0 is out / in."""
        scales = {"scale_d": float(scale_d), "scale_h": float(scale_h), "scale_w": float(scale_w)}
        y: Tensor = self.call(
            "resample", x, size=size, mode=mode, align_corners=align_corners, **scales, **options
        )
        return y

    def resample_backward(
        self,
        dy: Tensor,
        *,
        size: Ints,
        mode: str = "linear",
        align_corners: bool = False,
        scale_d: float = 0.0,
        scale_h: float = 0.0,
        scale_w: float = 0.0,
        **options: Any,
    ) -> Tensor:
        """dx of resample's dy; size: spatial dims of dx."""
        scales = {"scale_d": float(scale_d), "scale_h": float(scale_h), "scale_w": float(scale_w)}
        dx: Tensor = self.call(
            "resample_backward", dy, size=size, mode=mode, align_corners=align_corners, **scales, **options
        )
        return dx

    def adaptive_avg_pool(self, x: Tensor, *, size: Ints, **options: Any) -> Tensor:
        """y = means over windows that `size` says."""
        y: Tensor = self.call("adaptive_avg_pool", x, size=size, **options)
        return y

    def adaptive_avg_pool_backward(self, dy: Tensor, *, size: Ints, **options: Any) -> Tensor:
        """dx of adaptive_avg_pool's dy; size: spatial dims of dx."""
        dx: Tensor = self.call("adaptive_avg_pool_backward", dy, size=size, **options)
        return dx

    def adaptive_max_pool(self, x: Tensor, *, size: Ints, **options: Any) -> tuple[Tensor, Tensor]:
        """y and index of each window's largest; names=("y",) leaves index out."""
        made: tuple[Tensor, Tensor] = self.call("adaptive_max_pool", x, size=size, **options)
        return made

    def adaptive_max_pool_backward(self, dy: Tensor, index: Tensor, *, size: Ints, **options: Any) -> Tensor:
        """dx of dy and adaptive_max_pool's index; size: spatial dims of dx."""
        dx: Tensor = self.call("adaptive_max_pool_backward", dy, index, size=size, **options)
        return dx
