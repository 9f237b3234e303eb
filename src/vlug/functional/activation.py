"""Eager calls: activations and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from vlug.functional.arithmetic import sub
from vlug.functional.base import Array, arg, floats, integer, one, one_of
from vlug.functional.pointwise import relu, relu_backward

__all__ = [
    "elu",
    "elu_backward",
    "gelu",
    "gelu_backward",
    "hardsigmoid",
    "hardsigmoid_backward",
    "hardswish",
    "hardswish_backward",
    "hardtanh",
    "hardtanh_backward",
    "leaky_relu",
    "leaky_relu_backward",
    "mish",
    "mish_backward",
    "prelu",
    "prelu_backward",
    "relu6",
    "relu6_backward",
    "sigmoid",
    "sigmoid_backward",
    "silu",
    "silu_backward",
    "softplus",
    "softplus_backward",
    "swish",
    "swish_backward",
    "tanh",
    "tanh_backward",
]


def sigmoid(x: Any, *, out: Any = None) -> Array:
    """1 / (1 + e^-x)."""
    return one("sigmoid", {"x": arg(x, "x")}, "y", out)


def sigmoid_backward(dy: Any, y: Any, *, out: Any = None) -> Array:
    """dx of sigmoid's dy and its result y."""
    return one("sigmoid_backward", {"dy": arg(dy, "dy"), "y": arg(y, "y")}, "dx", out)


def tanh(x: Any, *, out: Any = None) -> Array:
    """Hyperbolic tangent."""
    return one("tanh", {"x": arg(x, "x")}, "y", out)


def tanh_backward(dy: Any, y: Any, *, out: Any = None) -> Array:
    """dx of tanh's dy and its result y."""
    return one("tanh_backward", {"dy": arg(dy, "dy"), "y": arg(y, "y")}, "dx", out)


def silu(x: Any, *, out: Any = None) -> Array:
    """x · sigmoid(x)."""
    return one("swish", {"x": arg(x, "x")}, "y", out)


def silu_backward(dy: Any, x: Any, *, out: Any = None) -> Array:
    """dx of silu's dy and x."""
    return one("swish_backward", {"dy": arg(dy, "dy"), "x": arg(x, "x")}, "dx", out)


def swish(x: Any, beta: float = 1.0, *, out: Any = None) -> Array:
    """x · sigmoid(beta · x)."""
    return one("swish", {"x": arg(x, "x")}, "y", out, **floats(beta=beta))


def swish_backward(dy: Any, x: Any, beta: float = 1.0, *, out: Any = None) -> Array:
    """dx of swish's dy and x."""
    return one("swish_backward", {"dy": arg(dy, "dy"), "x": arg(x, "x")}, "dx", out, **floats(beta=beta))


def elu(x: Any, alpha: float = 1.0, *, out: Any = None) -> Array:
    """x where x > 0, else alpha · (e^x - 1)."""
    return one("elu", {"x": arg(x, "x")}, "y", out, **floats(alpha=alpha))


def elu_backward(dy: Any, x: Any, alpha: float = 1.0, *, out: Any = None) -> Array:
    """dx of elu's dy and x."""
    return one("elu_backward", {"dy": arg(dy, "dy"), "x": arg(x, "x")}, "dx", out, **floats(alpha=alpha))


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0, *, out: Any = None) -> Array:
    """log(1 + e^(beta x)) / beta, x itself where beta · x > threshold."""
    return one("softplus", {"x": arg(x, "x")}, "y", out, **floats(beta=beta, threshold=threshold))


def softplus_backward(
    dy: Any, x: Any, beta: float = 1.0, threshold: float = 20.0, *, out: Any = None
) -> Array:
    """dx of softplus's dy and x."""
    return one(
        "softplus_backward",
        {"dy": arg(dy, "dy"), "x": arg(x, "x")},
        "dx",
        out,
        **floats(beta=beta, threshold=threshold),
    )


def hardswish(x: Any, *, out: Any = None) -> Array:
    """x · min(max(x + 3, 0), 6) / 6."""
    return one("hardswish", {"x": arg(x, "x")}, "y", out)


def hardswish_backward(dy: Any, x: Any, *, out: Any = None) -> Array:
    """dx of hardswish's dy and x."""
    return one("hardswish_backward", {"dy": arg(dy, "dy"), "x": arg(x, "x")}, "dx", out)


def hardsigmoid(x: Any, *, out: Any = None) -> Array:
    """min(max(x + 3, 0), 6) / 6."""
    return one("hardsigmoid", {"x": arg(x, "x")}, "y", out)


def hardsigmoid_backward(dy: Any, x: Any, *, out: Any = None) -> Array:
    """dx of hardsigmoid's dy and x."""
    return one("hardsigmoid_backward", {"dy": arg(dy, "dy"), "x": arg(x, "x")}, "dx", out)


def mish(x: Any, *, out: Any = None) -> Array:
    """x · tanh(log(1 + e^x))."""
    return one("mish", {"x": arg(x, "x")}, "y", out)


def mish_backward(dy: Any, x: Any, *, out: Any = None) -> Array:
    """dx of mish's dy and x."""
    return one("mish_backward", {"dy": arg(dy, "dy"), "x": arg(x, "x")}, "dx", out)


def gelu(x: Any, *, approximate: str = "none", out: Any = None) -> Array:
    """x · Φ(x), Φ the normal distribution; approximate="tanh": x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))."""
    return one(_gelu(approximate), {"x": arg(x, "x")}, "y", out)


def gelu_backward(dy: Any, x: Any, *, approximate: str = "none", out: Any = None) -> Array:
    """dx of gelu's dy and x."""
    given = {"dy": arg(dy, "dy"), "x": arg(x, "x")}
    return one(f"{_gelu(approximate)}_backward", given, "dx", out)


def _gelu(approximate: str) -> str:
    kinds = {"none": "gelu", "tanh": "gelu_approx_tanh"}
    return kinds[one_of(approximate, "approximate", kinds)]


def leaky_relu(x: Any, negative_slope: float = 0.01, *, out: Any = None) -> Array:
    """x where x > 0, else negative_slope · x."""
    return relu(x, negative_slope=negative_slope, out=out)


def leaky_relu_backward(dy: Any, x: Any, negative_slope: float = 0.01, *, out: Any = None) -> Array:
    """dx of leaky_relu's dy and x."""
    return relu_backward(dy, x, negative_slope=negative_slope, out=out)


def hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0, *, out: Any = None) -> Array:
    """x between min_val and max_val."""
    return relu(x, lower_clip=min_val, upper_clip=max_val, out=out)


def hardtanh_backward(
    dy: Any, x: Any, min_val: float = -1.0, max_val: float = 1.0, *, out: Any = None
) -> Array:
    """dx of hardtanh's dy and x: dy strictly between min_val and max_val, else 0."""
    return relu_backward(dy, x, lower_clip=min_val, upper_clip=max_val, out=out)


def relu6(x: Any, *, out: Any = None) -> Array:
    """min(max(x, 0), 6)."""
    return relu(x, upper_clip=6.0, out=out)


def relu6_backward(dy: Any, x: Any, *, out: Any = None) -> Array:
    """dx of relu6's dy and x."""
    return relu_backward(dy, x, upper_clip=6.0, out=out)


def prelu(x: Any, weight: Any, *, axis: int = 1, out: Any = None) -> Array:
    """x where x > 0, else weight · x; weight has one element, or one for each index along `axis`."""
    given = {"x": arg(x, "x"), "w": arg(weight, "weight", 1)}
    return one("prelu", given, "y", out, axis=integer(axis, "axis"))


def prelu_backward(dy: Any, x: Any, weight: Any, *, axis: int = 1) -> tuple[Array, Array]:
    """(dx, dweight) of prelu's dy, x and weight."""
    given = {"dy": arg(dy, "dy"), "x": arg(x, "x"), "w": arg(weight, "weight", 1)}
    dx = one("prelu_backward", given, "dx", None, axis=integer(axis, "axis"))
    low = one("relu", {"x": given["x"]}, "y", None)
    each = one("mul", {"a": given["dy"], "b": arg(sub(given["x"], low), "x")}, "y", None)  # dy · min(x, 0)
    rank = len(given["x"].shape)
    rest: tuple[int, ...] = tuple(range(rank))
    if given["w"].shape[0] != 1:
        rest = tuple(i for i in rest if i != integer(axis, "axis") % rank)
    dw = one("reduction", {"x": arg(each, "dy")}, "y", None, axes=rest) if rest else each
    return dx, np.asarray(dw).reshape(given["w"].shape)
