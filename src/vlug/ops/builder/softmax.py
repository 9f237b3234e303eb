"""Builder methods of Graph: softmax and its logarithm."""

from __future__ import annotations

from typing import Any

from vlug.ops.builder.base import Base
from vlug.tensor import Tensor

__all__ = ["SoftmaxMethods"]


class SoftmaxMethods(Base):
    """Softmax and its logarithm."""

    def softmax(self, x: Tensor, *, axis: int = -1, **options: Any) -> Tensor:
        """y = exp(x) / Σ exp(x) along axis."""
        y: Tensor = self.call("softmax", x, axis=axis, **options)
        return y

    def softmax_backward(self, dy: Tensor, y: Tensor, *, axis: int = -1, **options: Any) -> Tensor:
        """dx of dy and softmax's y."""
        dx: Tensor = self.call("softmax_backward", dy, y, axis=axis, **options)
        return dx

    def log_softmax(self, x: Tensor, *, axis: int = -1, **options: Any) -> Tensor:
        """y = x - log Σ exp(x) along axis."""
        y: Tensor = self.call("log_softmax", x, axis=axis, **options)
        return y

    def log_softmax_backward(self, dy: Tensor, y: Tensor, *, axis: int = -1, **options: Any) -> Tensor:
        """dx of dy and log_softmax's y."""
        dx: Tensor = self.call("log_softmax_backward", dy, y, axis=axis, **options)
        return dx
