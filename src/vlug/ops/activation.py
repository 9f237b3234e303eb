"""Activations and their gradients: prelu, sigmoid, tanh, elu, gelu, swish, softplus, hardswish, mish, …"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from vlug.ops.arithmetic import Neg, erf
from vlug.ops.base import Array, Builder, Cost, Operation, axis_of, need, register
from vlug.ops.identity import put
from vlug.ops.pointwise import Mul, Relu, Unary, pointwise_out
from vlug.ops.reduction import Reduction
from vlug.tensor import Tensor

__all__ = [
    "Elu", "EluBackward", "Gelu", "GeluApproxTanh", "GeluApproxTanhBackward", "GeluBackward", "Hardsigmoid",
    "HardsigmoidBackward", "Hardswish", "HardswishBackward", "Mish", "MishBackward", "Prelu", "PreluBackward",
    "Sigmoid", "SigmoidBackward", "Softplus", "SoftplusBackward", "Swish", "SwishBackward", "Tanh",
    "TanhBackward",
]  # fmt: skip

Found = tuple[Tensor | None, ...]
Given = Sequence[Tensor | None]


def _sigmoid(x: Array) -> Array:
    return np.asarray(np.asarray(1, x.dtype) / (np.asarray(1, x.dtype) + np.exp(-x)))


@dataclass(frozen=True)
class _Forward(Unary):
    """y = f(x); its gradient is the operation `backward` of dy and x (or y, if that has such a port)."""

    flops: ClassVar[int] = 25

    def vjp(self, g: Builder, inputs: Given, outputs: Given, grads: Given) -> Found:
        if grads[0] is None:
            return (None,)
        back = self._backward()
        return (put(g, back, grads[0], outputs[0] if "y" in back.inputs else inputs[0]),)

    def _backward(self) -> Operation:
        raise NotImplementedError

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs)
        return (np.asarray(self._of(x), x.dtype),)

    def _of(self, x: Array) -> Array:
        raise NotImplementedError


@dataclass(frozen=True)
class _Backward(Operation):
    """dx = dy · slope(x), or slope(y)."""

    inputs: ClassVar[tuple[str, ...]] = ("dy", "x")
    outputs: ClassVar[tuple[str, ...]] = ("dx",)
    flops: ClassVar[int] = 30

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        dy, x = need(inputs)
        self.check_dtypes(dy, x, same=(1,))
        self.expect(dy.dim == x.dim, f"dy {dy.dim} and {self.port(1)} {x.dim} must have the same dims")
        return (pointwise_out(x.dim, dy, x),)

    def cost(self, inputs: Given, outputs: Given) -> Cost:
        plain = super().cost(inputs, outputs)
        return Cost(self.flops * plain.flops, plain.bytes)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dy, x = need(inputs)
        return (np.asarray(self._of(dy, x), dy.dtype),)

    def _of(self, dy: Array, x: Array) -> Array:
        raise NotImplementedError

    @classmethod
    def samples(cls) -> Iterator[str]:
        x = cls.port(1)
        yield f"{cls.name} dy=3x35x6x5 {x}=3x35x6x5"
        yield f"{cls.name} dy=1000 {x}=1000"
        yield f"{cls.name} dy=0x3 {x}=0x3"


@register
@dataclass(frozen=True)
class Sigmoid(_Forward):
    """y = 1 / (1 + e^-x)."""

    name: ClassVar[str] = "sigmoid"

    def _of(self, x: Array) -> Array:
        return _sigmoid(x)

    def _backward(self) -> Operation:
        return SigmoidBackward()


@register
@dataclass(frozen=True)
class SigmoidBackward(_Backward):
    """dx = dy · y · (1 - y), from sigmoid's y."""

    name: ClassVar[str] = "sigmoid_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "y")
    flops: ClassVar[int] = 3

    def _of(self, dy: Array, x: Array) -> Array:
        return np.asarray(dy * (1 - x) * x)


@register
@dataclass(frozen=True)
class Tanh(_Forward):
    """y = tanh x."""

    name: ClassVar[str] = "tanh"

    def _of(self, x: Array) -> Array:
        return np.tanh(x)

    def _backward(self) -> Operation:
        return TanhBackward()


@register
@dataclass(frozen=True)
class TanhBackward(_Backward):
    """dx = dy · (1 - y²), from tanh's y."""

    name: ClassVar[str] = "tanh_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "y")
    flops: ClassVar[int] = 3

    def _of(self, dy: Array, x: Array) -> Array:
        return np.asarray(dy * (1 - x * x))


_SQRT_HALF, _BELL = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)
_ROOT, _CUBE = math.sqrt(2 / math.pi), 0.044715


@register
@dataclass(frozen=True)
class Gelu(_Forward):
    """y = x · Φ(x), Φ(x) = (1 + erf(x/√2)) / 2 (Hendrycks and Gimpel 2016)."""

    name: ClassVar[str] = "gelu"
    flops: ClassVar[int] = 50

    def _of(self, x: Array) -> Array:
        return np.asarray(x * 0.5 * (1 + erf(x * _SQRT_HALF)))

    def _backward(self) -> Operation:
        return GeluBackward()


@register
@dataclass(frozen=True)
class GeluBackward(_Backward):
    """dx = dy · (Φ(x) + x · φ(x)), φ the normal density."""

    name: ClassVar[str] = "gelu_backward"
    flops: ClassVar[int] = 60

    def _of(self, dy: Array, x: Array) -> Array:
        return dy * (0.5 * (1 + erf(x * _SQRT_HALF)) + x * (np.exp(x * x * -0.5) * _BELL))


@register
@dataclass(frozen=True)
class GeluApproxTanh(_Forward):
    """y = x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))."""

    name: ClassVar[str] = "gelu_approx_tanh"

    def _of(self, x: Array) -> Array:
        return np.asarray(x * 0.5 * (1 + np.tanh(_ROOT * (x + _CUBE * x * x * x))))

    def _backward(self) -> Operation:
        return GeluApproxTanhBackward()


@register
@dataclass(frozen=True)
class GeluApproxTanhBackward(_Backward):
    """The gradient of gelu_approx_tanh."""

    name: ClassVar[str] = "gelu_approx_tanh_backward"
    flops: ClassVar[int] = 40

    def _of(self, dy: Array, x: Array) -> Array:
        t = np.tanh(_ROOT * (x + _CUBE * x * x * x))
        inner = _ROOT * (1 + 3 * _CUBE * x * x)
        return np.asarray(dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner))


@register
@dataclass(frozen=True)
class Swish(_Forward):
    """y = x / (1 + e^(-beta x)); SiLU where beta is 1."""

    beta: float = 1.0

    name: ClassVar[str] = "swish"

    def _of(self, x: Array) -> Array:
        return x * _sigmoid(np.asarray(self.beta * x, x.dtype))

    def _backward(self) -> Operation:
        return SwishBackward(self.beta)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield from super().samples()
        yield "swish x=1000 beta=1.702"


@register
@dataclass(frozen=True)
class SwishBackward(_Backward):
    """dx = dy · s · (1 + beta x · (1 - s)), s = sigmoid(beta x)."""

    beta: float = 1.0

    name: ClassVar[str] = "swish_backward"

    def _of(self, dy: Array, x: Array) -> Array:
        z = np.asarray(self.beta * x, x.dtype)
        s = _sigmoid(z)
        return np.asarray(dy * s * (1 + z * (1 - s)))

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield from super().samples()
        yield "swish_backward dy=1000 x=1000 beta=1.702"


@register
@dataclass(frozen=True)
class Elu(_Forward):
    """y = scale · x where x > 0, else scale · alpha · (e^(input_scale · x) - 1): ELU, SELU, CELU."""

    alpha: float = 1.0
    scale: float = 1.0
    input_scale: float = 1.0

    name: ClassVar[str] = "elu"

    def _of(self, x: Array) -> Array:
        below = self.scale * self.alpha * np.expm1(np.asarray(self.input_scale * np.minimum(x, 0), x.dtype))
        return np.where(x > 0, self.scale * x, below)

    def _backward(self) -> Operation:
        return EluBackward(self.alpha, self.scale, self.input_scale)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield from super().samples()
        yield "elu x=1000 alpha=0.5"
        yield "elu x=1000 alpha=1.6732632 scale=1.050701"
        yield "elu x=1000 alpha=2.0 input_scale=0.5"


@register
@dataclass(frozen=True)
class EluBackward(_Backward):
    """dx = dy · scale where x > 0, else dy · scale · alpha · input_scale · e^(input_scale · x)."""

    alpha: float = 1.0
    scale: float = 1.0
    input_scale: float = 1.0

    name: ClassVar[str] = "elu_backward"

    def _of(self, dy: Array, x: Array) -> Array:
        slope = np.exp(np.asarray(self.input_scale * np.minimum(x, 0), x.dtype))
        below = dy * (self.scale * self.alpha * self.input_scale) * slope
        return np.where(x > 0, dy * self.scale, below)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield from super().samples()
        yield "elu_backward dy=1000 x=1000 alpha=1.6732632 scale=1.050701"
        yield "elu_backward dy=1000 x=1000 alpha=2.0 input_scale=0.5"


@register
@dataclass(frozen=True)
class Softplus(_Forward):
    """y = log(1 + e^(beta x)) / beta, and x itself where beta · x > threshold (as PyTorch)."""

    beta: float = 1.0
    threshold: float = 20.0

    name: ClassVar[str] = "softplus"
    flops: ClassVar[int] = 50

    def _check(self) -> None:
        self.expect(math.isfinite(self.beta) and self.beta != 0, f"beta {self.beta} must be finite and not 0")

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        self._check()
        return super().infer(*inputs)

    def _of(self, x: Array) -> Array:
        z = np.asarray(self.beta * x, x.dtype)
        curve = np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))
        return np.where(z > self.threshold, x, np.asarray(curve / np.asarray(self.beta, x.dtype)))

    def _backward(self) -> Operation:
        return SoftplusBackward(self.beta, self.threshold)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield from super().samples()
        yield "softplus x=1000 beta=0.5"
        yield "softplus x=1000 beta=4.0 threshold=2.0"


@register
@dataclass(frozen=True)
class SoftplusBackward(_Backward):
    """dx = dy · sigmoid(beta x), and dy where beta · x > threshold."""

    beta: float = 1.0
    threshold: float = 20.0

    name: ClassVar[str] = "softplus_backward"

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        self.expect(math.isfinite(self.beta) and self.beta != 0, f"beta {self.beta} must be finite and not 0")
        return super().infer(*inputs)

    def _of(self, dy: Array, x: Array) -> Array:
        z = np.asarray(self.beta * x, x.dtype)
        return np.where(z > self.threshold, dy, dy * _sigmoid(z))

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield from super().samples()
        yield "softplus_backward dy=1000 x=1000 beta=4.0 threshold=2.0"


@register
@dataclass(frozen=True)
class Hardswish(_Forward):
    """y = x · min(max(x + 3, 0), 6) / 6."""

    name: ClassVar[str] = "hardswish"
    flops: ClassVar[int] = 5

    def _of(self, x: Array) -> Array:
        return np.asarray(x * np.minimum(np.maximum(x + 3, 0), 6) / 6)

    def _backward(self) -> Operation:
        return HardswishBackward()


@register
@dataclass(frozen=True)
class HardswishBackward(_Backward):
    """dx = 0 where x ≤ -3, dy where x ≥ 3, else dy · (x/3 + 1/2)."""

    name: ClassVar[str] = "hardswish_backward"
    flops: ClassVar[int] = 5

    def _of(self, dy: Array, x: Array) -> Array:
        return np.where(x <= -3, 0, np.where(x >= 3, dy, dy * (x / 3 + 0.5)))


@register
@dataclass(frozen=True)
class Hardsigmoid(_Forward):
    """y = min(max(x + 3, 0), 6) / 6."""

    name: ClassVar[str] = "hardsigmoid"
    flops: ClassVar[int] = 4

    def _of(self, x: Array) -> Array:
        return np.asarray(np.minimum(np.maximum(x + 3, 0), 6) / 6)

    def _backward(self) -> Operation:
        return HardsigmoidBackward()


@register
@dataclass(frozen=True)
class HardsigmoidBackward(_Backward):
    """dx = dy / 6 where -3 < x < 3, else 0."""

    name: ClassVar[str] = "hardsigmoid_backward"
    flops: ClassVar[int] = 4

    def _of(self, dy: Array, x: Array) -> Array:
        return np.where((x > -3) & (x < 3), dy / 6, 0)


@register
@dataclass(frozen=True)
class Mish(_Forward):
    """y = x · tanh(log(1 + e^x))."""

    name: ClassVar[str] = "mish"

    def _of(self, x: Array) -> Array:
        return np.asarray(x * np.tanh(np.logaddexp(x, np.asarray(0, x.dtype))))

    def _backward(self) -> Operation:
        return MishBackward()


@register
@dataclass(frozen=True)
class MishBackward(_Backward):
    """dx = dy · (t + x · sigmoid(x) · (1 - t²)), t = tanh(log(1 + e^x))."""

    name: ClassVar[str] = "mish_backward"

    def _of(self, dy: Array, x: Array) -> Array:
        t = np.tanh(np.logaddexp(x, np.asarray(0, x.dtype)))
        return np.asarray(dy * (t + x * _sigmoid(x) * (1 - t * t)))


# --- prelu ---
@dataclass(frozen=True)
class _Prelu(Operation):
    axis: int = 1

    exact: ClassVar[bool] = True

    def bind(self, inputs: Given) -> Self:
        x, w = need(inputs[-2:])
        axis = self.axis if w.dim == (1,) else axis_of(self.axis, x.rank, f"{self.name}: axis")
        return replace(self, axis=axis)

    def _check_weight(self, x: Tensor, w: Tensor) -> None:
        if w.dim != (1,):
            axis = axis_of(self.axis, x.rank, f"{self.name}: axis")
            self.expect(
                w.dim == (x.dim[axis],),
                f"w {w.dim} must be (1,) or ({x.dim[axis]},), dimension {axis} of x {x.dim}",
            )

    def _along(self, x: Array, w: Array) -> Array:
        if w.shape == (1,):
            return w.reshape((1,) * x.ndim)
        shape = [1] * x.ndim
        shape[self.axis] = -1
        return w.reshape(shape)


@register
@dataclass(frozen=True)
class Prelu(_Prelu):
    """y = x where x > 0, else w · x; w has one element, or one for each index along `axis`."""

    name: ClassVar[str] = "prelu"
    inputs: ClassVar[tuple[str, ...]] = ("x", "w")

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        x, w = need(inputs)
        self.check_dtypes(x, w, same=(1,))
        self._check_weight(x, w)
        return (pointwise_out(x.dim, x),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, w = need(inputs)
        return (np.where(x > 0, x, self._along(x, w) * x),)

    def vjp(self, g: Builder, inputs: Given, outputs: Given, grads: Given) -> Found:
        (x, w), dy = need(inputs), grads[0]
        if dy is None:
            return None, None
        dx = put(g, PreluBackward(self.axis), dy, x, w)
        each = put(g, Mul(), dy, put(g, Neg(), put(g, Relu(), put(g, Neg(), x))))  # dy · min(x, 0)
        if w.dim == (1,) and x.rank:
            rest = tuple(range(1, x.rank))
            row = put(g, Reduction("add", rest, False), each) if rest else each
            return dx, put(g, Reduction("add", (0,), True), row)
        axis = axis_of(self.axis, x.rank, "prelu: axis")
        rest = tuple(i for i in range(x.rank) if i != axis)
        return dx, put(g, Reduction("add", rest, False), each) if rest else each

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield "prelu x=3x35x6x5 w=35"
        yield "prelu x=3x35x6x5 w=1"
        yield "prelu x=17x33 w=17 axis=0"
        yield "prelu x=1000 w=1"
        yield "prelu x=0x3 w=3"


@register
@dataclass(frozen=True)
class PreluBackward(_Prelu):
    """dx = dy where x > 0, else w · dy."""

    name: ClassVar[str] = "prelu_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "x", "w")
    outputs: ClassVar[tuple[str, ...]] = ("dx",)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        dy, x, w = need(inputs)
        self.check_dtypes(dy, x, w, same=(1, 2))
        self.expect(dy.dim == x.dim, f"dy {dy.dim} and x {x.dim} must have the same dims")
        self._check_weight(x, w)
        return (pointwise_out(x.dim, dy, x),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dy, x, w = need(inputs)
        return (np.where(x > 0, dy, self._along(x, w) * dy),)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield "prelu_backward dy=3x35x6x5 x=3x35x6x5 w=35"
        yield "prelu_backward dy=3x35x6x5 x=3x35x6x5 w=1"
        yield "prelu_backward dy=1000 x=1000 w=1"
