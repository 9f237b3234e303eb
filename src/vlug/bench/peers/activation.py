"""PyTorch's own operators: activations and their gradients, elementary functions, arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vlug.bench.peers.base import Made, Maker, aten
from vlug.errors import NotSupported
from vlug.graph import Graph

__all__ = ["MAKERS"]

#: The call of an operation and its tensors.
Call = Callable[..., Any]


def _maker(call: Call) -> Maker:
    """A maker of `call(op, *tensors)`."""
    return lambda g, op, ins: (lambda: call(op, *ins), (0,), None)


def _swish(op: Any, *ins: Any) -> Any:
    return aten.silu(*ins) if op.name == "swish" else aten.silu_backward(*ins)


def _swish_maker(g: Graph, op: Any, ins: list[Any]) -> Made:
    if op.beta != 1:
        raise NotSupported("PyTorch has no swish with a beta")
    return lambda: _swish(op, *ins), (0,), None


def _positive(call: Call) -> Maker:
    """As _maker, of positive numbers."""

    def make(g: Graph, op: Any, ins: list[Any]) -> Made:
        ins[0].abs_()
        return lambda: call(*ins), (0,), None

    return make


MAKERS: dict[str, Maker] = {
    "sigmoid": _maker(lambda op, x: aten.sigmoid(x)),
    "sigmoid_backward": _maker(lambda op, dy, y: aten.sigmoid_backward(dy, y)),
    "tanh": _maker(lambda op, x: aten.tanh(x)),
    "tanh_backward": _maker(lambda op, dy, y: aten.tanh_backward(dy, y)),
    "gelu": _maker(lambda op, x: aten.gelu(x)),
    "gelu_backward": _maker(lambda op, dy, x: aten.gelu_backward(dy, x)),
    "gelu_approx_tanh": _maker(lambda op, x: aten.gelu(x, approximate="tanh")),
    "gelu_approx_tanh_backward": _maker(lambda op, dy, x: aten.gelu_backward(dy, x, approximate="tanh")),
    "swish": _swish_maker,
    "swish_backward": _swish_maker,
    "elu": _maker(lambda op, x: aten.elu(x, op.alpha, op.scale, op.input_scale)),
    "elu_backward": _maker(
        lambda op, dy, x: aten.elu_backward(dy, op.alpha, op.scale, op.input_scale, False, x)
    ),
    "softplus": _maker(lambda op, x: aten.softplus(x, op.beta, op.threshold)),
    "softplus_backward": _maker(lambda op, dy, x: aten.softplus_backward(dy, x, op.beta, op.threshold)),
    "hardswish": _maker(lambda op, x: aten.hardswish(x)),
    "hardswish_backward": _maker(lambda op, dy, x: aten.hardswish_backward(dy, x)),
    "hardsigmoid": _maker(lambda op, x: aten.hardsigmoid(x)),
    "hardsigmoid_backward": _maker(lambda op, dy, x: aten.hardsigmoid_backward(dy, x)),
    "mish": _maker(lambda op, x: aten.mish(x)),
    "mish_backward": _maker(lambda op, dy, x: aten.mish_backward(dy, x)),
    **{
        n: _maker(lambda op, x: getattr(aten, op.name)(x))
        for n in (
            "neg",
            "abs",
            "sign",
            "reciprocal",
            "exp",
            "erf",
            "sin",
            "cos",
            "tan",
            "ceil",
            "floor",
        )
    },
    **{n: _positive(getattr(aten, n)) for n in ("sqrt", "rsqrt", "log", "pow")},
    "add": _maker(lambda op, a, b: aten.add(a, b)),
    "sub": _maker(lambda op, a, b: aten.sub(a, b)),
    "mul": _maker(lambda op, a, b: aten.mul(a, b)),
    "div": _maker(lambda op, a, b: aten.div(a, b)),
    "mod": _maker(lambda op, a, b: aten.fmod(a, b)),
    "max": _maker(lambda op, a, b: aten.maximum(a, b)),
    "min": _maker(lambda op, a, b: aten.minimum(a, b)),
}
