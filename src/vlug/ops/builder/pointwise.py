"""Builder methods of Graph: pointwise calls."""

from __future__ import annotations

import math
from typing import Any

from vlug.ops.builder.base import Base
from vlug.tensor import Tensor

__all__ = ["PointwiseMethods"]


class PointwiseMethods(Base):
    """Pointwise calls."""

    def bias(self, x: Tensor, b: Tensor, *, axis: int = 1, **options: Any) -> Tensor:
        """y = x + b, b along `axis` of x."""
        y: Tensor = self.call("bias", x, b, axis=axis, **options)
        return y

    def scale(self, x: Tensor, b: Tensor, *, axis: int = 1, **options: Any) -> Tensor:
        """y = x · b, b along `axis` of x."""
        y: Tensor = self.call("scale", x, b, axis=axis, **options)
        return y

    def add(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = a + b, broadcast."""
        y: Tensor = self.call("add", a, b, **options)
        return y

    def mul(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = a · b, broadcast."""
        y: Tensor = self.call("mul", a, b, **options)
        return y

    def relu(
        self,
        x: Tensor,
        *,
        negative_slope: float = 0.0,
        lower_clip: float = 0.0,
        upper_clip: float = math.inf,
        **options: Any,
    ) -> Tensor:
        """y = x between the clips, lower_clip + negative_slope·(x - lower_clip) below, upper_clip above."""
        y: Tensor = self.call(
            "relu",
            x,
            negative_slope=float(negative_slope),
            lower_clip=float(lower_clip),
            upper_clip=float(upper_clip),
            **options,
        )
        return y

    def relu_backward(
        self,
        dy: Tensor,
        x: Tensor,
        *,
        negative_slope: float = 0.0,
        lower_clip: float = 0.0,
        upper_clip: float = math.inf,
        **options: Any,
    ) -> Tensor:
        """dx of dy and relu's x (or its y)."""
        dx: Tensor = self.call(
            "relu_backward",
            dy,
            x,
            negative_slope=float(negative_slope),
            lower_clip=float(lower_clip),
            upper_clip=float(upper_clip),
            **options,
        )
        return dx
