"""Builder methods of Graph: activations and their gradients."""

from __future__ import annotations

from typing import Any

from vlug.ops.builder.base import Base
from vlug.tensor import Tensor

__all__ = ["ActivationMethods"]


class ActivationMethods(Base):
    """Activations and their gradients."""

    def sigmoid(self, x: Tensor, **options: Any) -> Tensor:
        """y = 1 / (1 + e^-x)."""
        y: Tensor = self.call("sigmoid", x, **options)
        return y

    def sigmoid_backward(self, dy: Tensor, y: Tensor, **options: Any) -> Tensor:
        """dx of dy and sigmoid's y."""
        dx: Tensor = self.call("sigmoid_backward", dy, y, **options)
        return dx

    def tanh(self, x: Tensor, **options: Any) -> Tensor:
        """y = tanh x."""
        y: Tensor = self.call("tanh", x, **options)
        return y

    def tanh_backward(self, dy: Tensor, y: Tensor, **options: Any) -> Tensor:
        """dx of dy and tanh's y."""
        dx: Tensor = self.call("tanh_backward", dy, y, **options)
        return dx

    def gelu(self, x: Tensor, **options: Any) -> Tensor:
        """y = x · (1 + erf(x/√2)) / 2."""
        y: Tensor = self.call("gelu", x, **options)
        return y

    def gelu_backward(self, dy: Tensor, x: Tensor, **options: Any) -> Tensor:
        """dx of dy and gelu's x."""
        dx: Tensor = self.call("gelu_backward", dy, x, **options)
        return dx

    def gelu_approx_tanh(self, x: Tensor, **options: Any) -> Tensor:
        """y = x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))."""
        y: Tensor = self.call("gelu_approx_tanh", x, **options)
        return y

    def gelu_approx_tanh_backward(self, dy: Tensor, x: Tensor, **options: Any) -> Tensor:
        """dx of dy and gelu_approx_tanh's x."""
        dx: Tensor = self.call("gelu_approx_tanh_backward", dy, x, **options)
        return dx

    def swish(self, x: Tensor, *, beta: float = 1.0, **options: Any) -> Tensor:
        """y = x · sigmoid(beta · x); SiLU where beta is 1."""
        y: Tensor = self.call("swish", x, beta=float(beta), **options)
        return y

    def swish_backward(self, dy: Tensor, x: Tensor, *, beta: float = 1.0, **options: Any) -> Tensor:
        """dx of dy and swish's x."""
        dx: Tensor = self.call("swish_backward", dy, x, beta=float(beta), **options)
        return dx

    def elu(
        self, x: Tensor, *, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0, **options: Any
    ) -> Tensor:
        """y = scale · (x where x > 0, else alpha · (e^(input_scale · x) - 1))."""
        y: Tensor = self.call(
            "elu", x, alpha=float(alpha), scale=float(scale), input_scale=float(input_scale), **options
        )
        return y

    def elu_backward(
        self,
        dy: Tensor,
        x: Tensor,
        *,
        alpha: float = 1.0,
        scale: float = 1.0,
        input_scale: float = 1.0,
        **options: Any,
    ) -> Tensor:
        """dx of dy and elu's x."""
        dx: Tensor = self.call(
            "elu_backward",
            dy,
            x,
            alpha=float(alpha),
            scale=float(scale),
            input_scale=float(input_scale),
            **options,
        )
        return dx

    def softplus(self, x: Tensor, *, beta: float = 1.0, threshold: float = 20.0, **options: Any) -> Tensor:
        """y = log(1 + e^(beta x)) / beta; x where beta · x > threshold."""
        y: Tensor = self.call("softplus", x, beta=float(beta), threshold=float(threshold), **options)
        return y

    def softplus_backward(
        self, dy: Tensor, x: Tensor, *, beta: float = 1.0, threshold: float = 20.0, **options: Any
    ) -> Tensor:
        """dx of dy and softplus's x."""
        dx: Tensor = self.call(
            "softplus_backward", dy, x, beta=float(beta), threshold=float(threshold), **options
        )
        return dx

    def hardswish(self, x: Tensor, **options: Any) -> Tensor:
        """y = x · min(max(x + 3, 0), 6) / 6."""
        y: Tensor = self.call("hardswish", x, **options)
        return y

    def hardswish_backward(self, dy: Tensor, x: Tensor, **options: Any) -> Tensor:
        """dx of dy and hardswish's x."""
        dx: Tensor = self.call("hardswish_backward", dy, x, **options)
        return dx

    def hardsigmoid(self, x: Tensor, **options: Any) -> Tensor:
        """y = min(max(x + 3, 0), 6) / 6."""
        y: Tensor = self.call("hardsigmoid", x, **options)
        return y

    def hardsigmoid_backward(self, dy: Tensor, x: Tensor, **options: Any) -> Tensor:
        """dx of dy and hardsigmoid's x."""
        dx: Tensor = self.call("hardsigmoid_backward", dy, x, **options)
        return dx

    def mish(self, x: Tensor, **options: Any) -> Tensor:
        """y = x · tanh(log(1 + e^x))."""
        y: Tensor = self.call("mish", x, **options)
        return y

    def mish_backward(self, dy: Tensor, x: Tensor, **options: Any) -> Tensor:
        """dx of dy and mish's x."""
        dx: Tensor = self.call("mish_backward", dy, x, **options)
        return dx

    def prelu(self, x: Tensor, w: Tensor, *, axis: int = 1, **options: Any) -> Tensor:
        """y = x where x > 0, else w · x; w of one element, or along `axis`."""
        y: Tensor = self.call("prelu", x, w, axis=axis, **options)
        return y

    def prelu_backward(self, dy: Tensor, x: Tensor, w: Tensor, *, axis: int = 1, **options: Any) -> Tensor:
        """dx of dy and prelu's x and w."""
        dx: Tensor = self.call("prelu_backward", dy, x, w, axis=axis, **options)
        return dx
