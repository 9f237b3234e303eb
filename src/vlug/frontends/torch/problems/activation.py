"""Calls of PyTorch as graphs: activations, their gradients, their forms in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vlug.dtypes import F64
from vlug.frontends.torch.keys import Arg, Pass
from vlug.frontends.torch.problems.base import (
    Maker,
    Problem,
    alike,
    in_memory_of,
    same_memory,
)
from vlug.tensor import Tensor

__all__ = ["PROBLEMS"]

#: An operation's name and attributes, of the call's arguments that are no tensors.
Choice = Callable[..., tuple[str, dict[str, Any]]]


def _number(value: Any) -> float:
    if value is None:
        raise Pass("left to stock to judge: a number that is none")
    return float(value)


def _plain(name: str) -> Choice:
    return lambda: (name, {})


def _gelu(suffix: str = "") -> Choice:
    names = {"none": f"gelu{suffix}", "tanh": f"gelu_approx_tanh{suffix}"}

    def choose(approximate: str) -> tuple[str, dict[str, Any]]:
        if approximate not in names:
            raise Pass(f"left to stock to judge: approximate {approximate!r}")
        return names[approximate], {}

    return choose


def _numbers(name: str, *attributes: str) -> Choice:
    """An operation whose attributes are the call's numbers, in order."""
    return lambda *values: (name, {a: _number(v) for a, v in zip(attributes, values, strict=True)})


def _swish(suffix: str = "") -> Choice:
    return lambda: (f"swish{suffix}", {"beta": 1.0})


def _elu_backward(alpha: Any, scale: Any, input_scale: Any, is_result: bool) -> tuple[str, dict[str, Any]]:
    if is_result:
        raise Pass("the gradient from the result")
    return _numbers("elu_backward", "alpha", "scale", "input_scale")(alpha, scale, input_scale)


def _leaky(suffix: str = "") -> Choice:
    def choose(slope: Any, is_result: bool = False) -> tuple[str, dict[str, Any]]:
        slope = _number(slope)
        if slope <= 0:  # at 0 stock makes NaN of -inf; below, ours cannot start from the result
            raise Pass(f"slope {slope}")
        return f"relu{suffix}", {"negative_slope": slope}

    return choose


def _hardsigmoid_backward(p: Problem, dy: Arg, x: Arg) -> None:
    if x.dtype is F64:
        raise Pass("stock's sixth has float32's precision")
    _slope(p, "hardsigmoid_backward", {}, dy, x)


def _softplus(suffix: str = "") -> Choice:
    return _numbers(f"softplus{suffix}", "beta", "threshold")


def _clipped(p: Problem, x: Arg, low: Any, high: Any) -> dict[str, Any]:
    """The clips of hardtanh, rounded to x's dtype as stock does before it compares."""
    low, high = (float(np.asarray(_number(v)).astype(x.dtype.numpy)) for v in (low, high))
    if not low < high:
        raise Pass(f"left to stock to judge: clips {low} and {high}")
    return {"lower_clip": low, "upper_clip": high}


def _forward(choose: Choice, in_place: bool = False) -> Maker:
    def make(p: Problem, x: Arg, *rest: Any) -> None:
        alike(x)
        name, attributes = choose(*rest)
        _apply(p, name, attributes, x, in_place)

    return make


def _apply(p: Problem, name: str, attributes: dict[str, Any], x: Arg, in_place: bool) -> None:
    y = same_memory("y", x)
    tx = p.input("x", x, in_place, in_memory_of(x))
    made = p.graph.call(name, tx, **attributes, names=["y"], like=[y])
    if in_place:
        p.changed(made, x)
    else:
        p.output(made)


def _hardtanh(in_place: bool) -> Maker:
    def make(p: Problem, x: Arg, low: Any, high: Any) -> None:
        alike(x)
        _apply(p, "relu", _clipped(p, x, low, high), x, in_place)

    return make


def _backward(choose: Choice, first: int = 1) -> Maker:
    """A gradient of dy and x (or y), which is argument `first`."""

    def make(p: Problem, dy: Arg, *rest: Any) -> None:
        x = rest[first - 1]
        name, attributes = choose(*rest[: first - 1], *rest[first:])
        _slope(p, name, attributes, dy, x)

    return make


def _hardtanh_backward(p: Problem, dy: Arg, x: Arg, low: Any, high: Any) -> None:
    alike(dy, x)
    _slope(p, "relu_backward", _clipped(p, x, low, high), dy, x)


def _pair(p: Problem, dy: Arg, x: Arg) -> tuple[Tensor, Tensor, Tensor]:
    """dy, x and the result, in one layout."""
    alike(dy, x)
    if dy.dim != x.dim:
        raise Pass("dy and x of different sizes")
    dx = same_memory("dx", x)
    if dx.stride != same_memory("dx", dy).stride:
        raise Pass("dy and x in different layouts")
    return p.input("dy", dy, tensor=in_memory_of(dy)), p.input("x", x, tensor=in_memory_of(x)), dx


def _slope(p: Problem, name: str, attributes: dict[str, Any], dy: Arg, x: Arg) -> None:
    tdy, tx, dx = _pair(p, dy, x)
    p.output(p.graph.call(name, tdy, tx, **attributes, names=["dx"], like=[dx]))


# --- prelu: PyTorch shapes the weight as x, of size 1 but along the channels ---
def _weight(p: Problem, x: Arg, w: Arg) -> tuple[Tensor, int]:
    """The weight as a vector, and the axis of x that it goes along."""
    alike(x, w)
    if w.rank != x.rank or not x.rank:
        raise Pass("a weight of other rank")
    wide = [i for i, d in enumerate(w.dim) if d > 1]
    if len(wide) > 1:
        raise Pass("a weight that varies along several dimensions")
    axis = wide[0] if wide else 0
    if wide and (w.dim[axis] != x.dim[axis] or w.stride[axis] != 1):
        raise Pass("a weight that is not one contiguous value a channel")
    n = w.dim[axis] if wide else 1
    return p.input("w", w, tensor=Tensor((n,), (1,), w.dtype, "w")), axis


def _prelu(p: Problem, x: Arg, w: Arg) -> None:
    y = same_memory("y", x)
    tw, axis = _weight(p, x, w)
    tx = p.input("x", x, tensor=in_memory_of(x))
    p.output(p.graph.call("prelu", tx, tw, axis=axis, names=["y"], like=[y]))


def _prelu_backward(p: Problem, dy: Arg, x: Arg, w: Arg) -> None:
    """dx, and w's gradient before it is summed: dy · min(x, 0)."""
    tdy, tx, dx = _pair(p, dy, x)
    tw, axis = _weight(p, x, w)
    g = p.graph
    p.output(g.call("prelu_backward", tdy, tx, tw, axis=axis, names=["dx"], like=[dx]))
    below = g.call("neg", g.call("relu", g.call("neg", tx)))
    p.output(g.call("mul", tdy, below, names=["dw"], like=[dx.renamed("dw")]))


#: Activations of x alone: PyTorch's name, how its operation is chosen, and that of the gradient (of x or y).
_PAIRS: Sequence[tuple[str, Choice, Choice | None]] = (
    ("sigmoid", _plain("sigmoid"), _plain("sigmoid_backward")),
    ("tanh", _plain("tanh"), _plain("tanh_backward")),
    ("gelu", _gelu(), _gelu("_backward")),
    ("silu", _swish(), _swish("_backward")),
    ("hardswish", _plain("hardswish"), _plain("hardswish_backward")),
    ("hardsigmoid", _plain("hardsigmoid"), None),
    ("mish", _plain("mish"), _plain("mish_backward")),
    ("leaky_relu", _leaky(), _leaky("_backward")),
    ("elu", _numbers("elu", "alpha", "scale", "input_scale"), None),
)

PROBLEMS: dict[str, Maker] = {
    **{name: _forward(choose) for name, choose, _ in _PAIRS},
    **{f"{name}_": _forward(choose, True) for name, choose, _ in _PAIRS},
    **{f"{name}_backward": _backward(back) for name, _, back in _PAIRS if back is not None},
    "elu_backward": _backward(_elu_backward, 5),
    "hardsigmoid_backward": _hardsigmoid_backward,
    "softplus": _forward(_softplus()),
    "softplus_backward": _backward(_softplus("_backward")),
    "hardtanh": _hardtanh(False),
    "hardtanh_": _hardtanh(True),
    "hardtanh_backward": _hardtanh_backward,
    "_prelu_kernel": _prelu,
    "_prelu_kernel_backward": _prelu_backward,
}
