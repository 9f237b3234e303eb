"""Eager calls on arrays: conv2d, matmul, max_pool2d, batch_norm, softmax, cross_entropy … and their backward.

Arguments are NumPy arrays, CPU tensors with DLPack (PyTorch's too) or buffers; nothing is copied, unless a
stride is negative. Results are new NumPy arrays (bfloat16 through ml_dtypes) or what `out` names. Every
argument is checked before native code runs: wrong ranks, dims, dtypes, devices, classes out of range, a
read-only `out` or one that overlaps an input raise BadInput (ShapeError, DTypeError), which names it.

Layouts are the arrays' own: NHWC data is an N, C, H, W array with those strides. A result is channels last if
an input is.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vlug.errors import BadInput, DTypeError, ShapeError
from vlug.runtime import handle
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.graph import Graph

# Graphs, operations and plans are imported by the first call: `import vlug` stays light.

__all__ = [
    "add",
    "avg_pool2d",
    "avg_pool2d_backward",
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_training",
    "conv2d",
    "conv2d_backward",
    "cross_entropy",
    "cross_entropy_backward",
    "linear",
    "linear_backward",
    "log_softmax",
    "log_softmax_backward",
    "matmul",
    "max_pool2d",
    "max_pool2d_backward",
    "mean",
    "mean_backward",
    "mul",
    "relu",
    "relu_backward",
    "softmax",
    "softmax_backward",
    "sum",
    "sum_backward",
]

Array = NDArray[Any]
Ints = int | Sequence[int]
Padding = Ints | Sequence[Sequence[int]] | str


# --- convolution ---
def conv2d(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    out: Any = None,
) -> Array:
    """y (N, K, P, Q) of x (N, C, H, W) and w (K, C/groups, R, S), plus bias (K) if given.

    padding: one int, one a dimension, ((top, bottom), (left, right)), "valid" (none) or "same" (as many
    outputs as inputs over the stride, the odd element after).
    """
    a, weight = _in(x, "x", 4), _in(w, "w", 4)
    attributes = _window(a.shape, weight.shape[2:], stride, padding, dilation) | _integers(groups=groups)
    steps: list[_Step] = [("conv_fprop", ("x", "w"), attributes)]
    arrays = {"x": a, "w": weight}
    if bias is not None:
        arrays["bias"] = _in(bias, "bias", 1)
        steps.append(("bias", ("", "bias"), {}))
    return _chain(steps, arrays, {"y": out})[0]


def conv2d_backward(
    dy: Any,
    x: Any,
    w: Any,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> tuple[Array, Array, Array]:
    """dx, dw and dbias of conv2d's dy."""
    g, a, weight = _in(dy, "dy", 4), _in(x, "x", 4), _in(w, "w", 4)
    at = _window(a.shape, weight.shape[2:], stride, padding, dilation) | _integers(groups=groups)
    dx = _one("conv_dgrad", {"dy": g, "w": weight}, "dx", None, size=a.shape[2:], **at)
    dw = _one("conv_wgrad", {"dy": g, "x": a}, "dw", None, size=weight.shape[2:], **at)
    return dx, dw, _one("reduction", {"x": g}, "y", None, axes=(0, 2, 3))


# --- products ---
def matmul(a: Any, b: Any, *, transpose_a: bool = False, transpose_b: bool = False, out: Any = None) -> Array:
    """c (…, M, N) of a (…, M, K) and b (…, K, N); leading dimensions broadcast."""
    arrays = {"a": _in(a, "a"), "b": _in(b, "b")}
    return _one("matmul", arrays, "c", out, transpose_a=transpose_a, transpose_b=transpose_b)


def linear(x: Any, w: Any, bias: Any = None, *, out: Any = None) -> Array:
    """y (…, K) of x (…, C) and w (K, C), plus bias (K) if given."""
    a, weight = _in(x, "x"), _in(w, "w", 2)
    if len(a.shape) < 2:
        raise ShapeError(f"linear: x {a.shape} must have 2 dimensions or more")
    steps: list[_Step] = [("matmul", ("x", "w"), {"transpose_b": True})]
    arrays = {"x": a, "w": weight}
    if bias is not None:
        arrays["bias"] = _in(bias, "bias", 1)
        steps.append(("bias", ("", "bias"), {"axis": len(a.shape) - 1}))
    return _chain(steps, arrays, {"y": out})[0]


def linear_backward(dy: Any, x: Any, w: Any) -> tuple[Array, Array, Array]:
    """dx, dw and dbias of linear's dy."""
    g, a, weight = _in(dy, "dy"), _in(x, "x"), _in(w, "w", 2)
    if g.shape[:-1] != a.shape[:-1] or len(g.shape) < 2:
        raise ShapeError(
            f"linear_backward: dy {g.shape} and x {a.shape} may differ in the last dimension only"
        )
    dx = _one("matmul", {"a": g, "b": weight}, "c", None)
    rows = math.prod(g.shape[:-1])
    flat = [handle.array(t.numpy().reshape(rows, t.shape[-1]), n) for n, t in (("dy", g), ("x", a))]
    dw = _one("matmul", {"a": flat[0], "b": flat[1]}, "c", None, transpose_a=True)
    return dx, dw, _one("reduction", {"x": flat[0]}, "y", None, axes=(0,))


# --- pointwise ---
def add(a: Any, b: Any, *, out: Any = None) -> Array:
    """a + b with NumPy broadcasting."""
    return _one("add", {"a": _in(a, "a"), "b": _in(b, "b")}, "y", out)


def mul(a: Any, b: Any, *, out: Any = None) -> Array:
    """a · b with NumPy broadcasting."""
    return _one("mul", {"a": _in(a, "a"), "b": _in(b, "b")}, "y", out)


def relu(
    x: Any,
    *,
    negative_slope: float = 0.0,
    lower_clip: float = 0.0,
    upper_clip: float = math.inf,
    out: Any = None,
) -> Array:
    """x between the clips, lower_clip + negative_slope·(x - lower_clip) below, upper_clip above."""
    at = _floats(negative_slope=negative_slope, lower_clip=lower_clip, upper_clip=upper_clip)
    return _one("relu", {"x": _in(x, "x")}, "y", out, **at)


def relu_backward(
    dy: Any,
    x: Any,
    *,
    negative_slope: float = 0.0,
    lower_clip: float = 0.0,
    upper_clip: float = math.inf,
    out: Any = None,
) -> Array:
    """dx of relu's dy and its x (or y)."""
    at = _floats(negative_slope=negative_slope, lower_clip=lower_clip, upper_clip=upper_clip)
    return _one("relu_backward", {"dy": _in(dy, "dy"), "x": _in(x, "x")}, "dx", out, **at)


# --- pooling ---
def max_pool2d(
    x: Any,
    window: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil: bool = False,
    return_index: bool = False,
    out: Any = None,
) -> Any:
    """The largest of each window; with return_index also where it is (int64, flat in the plane H·W).

    stride: the window's by default.
    """
    a = _in(x, "x", 4)
    at = _window(a.shape, _pair(window, "window"), window if stride is None else stride, padding, dilation)
    names = ("y", "index") if return_index else ("y",)
    step: _Step = ("max_pool", ("x",), at | {"window": _pair(window, "window"), "ceil": bool(ceil)})
    made = _chain([step], {"x": a}, {"y": out}, names)
    return tuple(made) if return_index else made[0]


def max_pool2d_backward(
    dy: Any,
    index: Any,
    size: Sequence[int],
    window: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    out: Any = None,
) -> Array:
    """dx of max_pool2d's dy and index; size: H, W of dx."""
    g, where, size = _in(dy, "dy", 4), _in(index, "index", 4), _pair(size, "size")
    step = window if stride is None else stride
    at = _window((0, 0, *size), _pair(window, "window"), step, padding, dilation)
    values = where.numpy()
    if where.size and where.dtype.name == "i64":
        low, high = int(values.min()), int(values.max())
        if low < -1 or high >= math.prod(size):
            bad = low if low < -1 else high
            allowed = f"-1 to {math.prod(size) - 1}"
            raise BadInput(f"max_pool2d_backward: index holds {bad}, allowed are {allowed}")
    arrays = {"dy": g, "index": where}
    return _one("max_pool_backward", arrays, "dx", out, size=size, window=_pair(window, "window"), **at)


def avg_pool2d(
    x: Any,
    window: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil: bool = False,
    count_include_pad: bool = True,
    divisor: int = 0,
    out: Any = None,
) -> Array:
    """The mean of each window: its sum over `divisor` if that is not 0, else over its elements."""
    a = _in(x, "x", 4)
    at = _window(a.shape, _pair(window, "window"), window if stride is None else stride, padding, 1)
    at |= {"ceil": bool(ceil), "count_include_pad": bool(count_include_pad), **_integers(divisor=divisor)}
    del at["dilation"]
    return _one("avg_pool", {"x": a}, "y", out, window=_pair(window, "window"), **at)


def avg_pool2d_backward(
    dy: Any,
    size: Sequence[int],
    window: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil: bool = False,
    count_include_pad: bool = True,
    divisor: int = 0,
    out: Any = None,
) -> Array:
    """dx of avg_pool2d's dy; size: H, W of dx."""
    size = _pair(size, "size")
    at = _window((0, 0, *size), _pair(window, "window"), window if stride is None else stride, padding, 1)
    at |= {"ceil": bool(ceil), "count_include_pad": bool(count_include_pad), **_integers(divisor=divisor)}
    del at["dilation"]
    arrays = {"dy": _in(dy, "dy", 4)}
    return _one("avg_pool_backward", arrays, "dx", out, size=size, window=_pair(window, "window"), **at)


# --- batch norm ---
def batch_norm(
    x: Any, mean: Any, var: Any, scale: Any = None, bias: Any = None, *, eps: float = 1e-5, out: Any = None
) -> Array:
    """Inference: scale · (x - mean) / sqrt(var + eps) + bias, each channel (dimension 1) with its own."""
    arrays = _some(x=x, mean=mean, var=var, scale=scale, bias=bias)
    return _one("batchnorm_inference", arrays, "y", out, **_floats(eps=eps))


def batch_norm_training(
    x: Any,
    scale: Any = None,
    bias: Any = None,
    running_mean: Any = None,
    running_var: Any = None,
    *,
    eps: float = 1e-5,
    momentum: float = 0.1,
    unbiased: bool = True,
    out: Any = None,
) -> tuple[Array, Array, Array]:
    """y, mean and inv_std = 1/sqrt(biased variance + eps) of the batch. Running statistics, where given, are
    updated in place: (1 - momentum) · old + momentum · new, the new variance by n/(n-1) if `unbiased`.
    """
    arrays = _some(x=x, scale=scale, bias=bias, running_mean=running_mean, running_var=running_var)
    at = {**_floats(eps=eps, momentum=momentum), "unbiased": bool(unbiased)}
    outs = {"y": out, "next_running_mean": running_mean, "next_running_var": running_var}
    names = ["y", "mean", "inv_std"]
    if running_mean is not None and running_var is not None:
        names += ["next_running_mean", "next_running_var"]
    y, mean, inv_std, *_ = _chain([("batchnorm", _ports("batchnorm"), at)], arrays, outs, names)
    return y, mean, inv_std


def batch_norm_backward(
    dy: Any, x: Any, scale: Any, mean: Any, inv_std: Any, *, training: bool = True
) -> tuple[Array, Array, Array]:
    """dx, dscale, dbias of dy and what batch_norm_training gave (training=False: they are constants)."""
    arrays = _some(dy=dy, x=x, scale=scale, mean=mean, inv_std=inv_std)
    step: _Step = ("batchnorm_backward", _ports("batchnorm_backward"), {"training": bool(training)})
    dx, dscale, dbias = _chain([step], arrays, {}, ("dx", "dscale", "dbias"))
    return dx, dscale, dbias


# --- softmax and loss ---
def softmax(x: Any, axis: int = -1, *, out: Any = None) -> Array:
    """exp(x) / Σ exp(x) along axis."""
    return _one("softmax", {"x": _in(x, "x")}, "y", out, **_integers(axis=axis))


def softmax_backward(dy: Any, y: Any, axis: int = -1, *, out: Any = None) -> Array:
    """dx of softmax's dy and y."""
    arrays = {"dy": _in(dy, "dy"), "y": _in(y, "y")}
    return _one("softmax_backward", arrays, "dx", out, **_integers(axis=axis))


def log_softmax(x: Any, axis: int = -1, *, out: Any = None) -> Array:
    """x - log Σ exp(x) along axis."""
    return _one("log_softmax", {"x": _in(x, "x")}, "y", out, **_integers(axis=axis))


def log_softmax_backward(dy: Any, y: Any, axis: int = -1, *, out: Any = None) -> Array:
    """dx of log_softmax's dy and y."""
    arrays = {"dy": _in(dy, "dy"), "y": _in(y, "y")}
    return _one("log_softmax_backward", arrays, "dx", out, **_integers(axis=axis))


def cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    out: Any = None,
) -> Array:
    """The loss of logits x (N, C, spatial…) against classes target (N, spatial…), int64.

    reduction: mean (over the weights of the targets that count), sum, or none (a loss a position).
    """
    arrays = _some(x=x, target=target, weight=weight)
    _check_classes("cross_entropy", arrays, ignore_index)
    at = _loss(reduction, ignore_index, label_smoothing)
    return _chain([("cross_entropy", _ports("cross_entropy"), at)], arrays, {"loss": out}, ("loss",))[0]


def cross_entropy_backward(
    dloss: Any,
    x: Any,
    target: Any,
    weight: Any = None,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    out: Any = None,
) -> Array:
    """dx of cross_entropy's dloss (a scalar, or one a position for reduction none)."""
    arrays = _some(dloss=dloss, x=x, target=target, weight=weight)
    _check_classes("cross_entropy_backward", arrays, ignore_index)
    return _one(
        "cross_entropy_backward", arrays, "dx", out, **_loss(reduction, ignore_index, label_smoothing)
    )


# --- reductions ---
def sum(x: Any, axes: Ints = (), *, keepdims: bool = False, out: Any = None) -> Array:
    """Sum over axes (all if none are given)."""
    return _one("reduction", {"x": _in(x, "x")}, "y", out, axes=_axes(axes), keepdim=bool(keepdims))


def mean(x: Any, axes: Ints = (), *, keepdims: bool = False, out: Any = None) -> Array:
    """Mean over axes (all if none are given); NaN of nothing."""
    at = {"mode": "mean", "axes": _axes(axes), "keepdim": bool(keepdims)}
    return _one("reduction", {"x": _in(x, "x")}, "y", out, **at)


def sum_backward(dy: Any, shape: Sequence[int], axes: Ints = (), *, keepdims: bool = False) -> Array:
    """dx, of `shape`, of sum's dy."""
    at = {"size": tuple(shape), "axes": _axes(axes), "keepdim": bool(keepdims)}
    return _one("reduction_backward", {"dy": _in(dy, "dy")}, "dx", None, **at)


def mean_backward(dy: Any, shape: Sequence[int], axes: Ints = (), *, keepdims: bool = False) -> Array:
    """dx, of `shape`, of mean's dy."""
    at = {"mode": "mean", "size": tuple(shape), "axes": _axes(axes), "keepdim": bool(keepdims)}
    return _one("reduction_backward", {"dy": _in(dy, "dy")}, "dx", None, **at)


# --- arguments ---
def _in(x: Any, argument: str, rank: int | None = None) -> handle.Array:
    """The argument's memory; a copy if a stride is negative."""
    a = handle.array(x, argument)
    if rank is not None and len(a.shape) != rank:
        raise ShapeError(f"{argument}: {a.shape} has {len(a.shape)} dimensions, {rank} are allowed")
    if builtins.any(s < 0 for s in a.strides):
        a = handle.array(a.numpy().copy(), argument)
    return a


def _some(**arguments: Any) -> dict[str, handle.Array]:
    return {n: _in(a, n) for n, a in arguments.items() if a is not None}


def _integer(value: Any, argument: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise BadInput(f"{argument}: {value!r} must be an integer") from None


def _integers(**values: Any) -> dict[str, int]:
    return {n: _integer(v, n) for n, v in values.items()}


def _pair(value: Any, argument: str) -> tuple[int, int]:
    if isinstance(value, (int, np.integer)):
        value = (value, value)
    given = tuple(value) if isinstance(value, Iterable) else ()
    if len(given) != 2 or not builtins.all(isinstance(v, (int, np.integer)) for v in given):
        raise BadInput(f"{argument}: {value!r} must be one integer or two")
    return int(given[0]), int(given[1])


def _axes(axes: Ints) -> tuple[int, ...]:
    given = axes if isinstance(axes, Iterable) else (axes,)
    return tuple(_integer(a, "axes") for a in given)


def _floats(**values: float) -> dict[str, float]:
    out = {}
    for argument, value in values.items():
        try:
            out[argument] = float(value)
        except (TypeError, ValueError):
            raise BadInput(f"{argument}: {value!r} must be a number") from None
    return out


def _loss(reduction: str, ignore_index: int, label_smoothing: float) -> dict[str, Any]:
    return {
        "reduction": reduction,
        **_integers(ignore_index=ignore_index),
        **_floats(label_smoothing=label_smoothing),
    }


def _window(
    shape: Sequence[int], window: Sequence[int], stride: Ints, padding: Padding, dilation: Ints
) -> dict[str, Any]:
    """stride, dilation and both paddings as pairs."""
    s, d = _pair(stride, "stride"), _pair(dilation, "dilation")
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise BadInput(f"padding: {padding!r} must be integers, pairs, 'same' or 'valid'")
        total = [0, 0]
        if padding == "same":
            sizes = zip(shape[2:], window, s, d)
            total = [max((-(-h // st) - 1) * st + (r - 1) * dl + 1 - h, 0) for h, r, st, dl in sizes]
        pre, post = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    elif isinstance(padding, Iterable) and builtins.any(isinstance(p, Sequence) for p in padding):
        try:
            (top, bottom), (left, right) = padding  # type: ignore[misc]
        except (TypeError, ValueError):
            raise BadInput(f"padding: {padding!r} must be ((top, bottom), (left, right))") from None
        pre, post = _pair((top, left), "padding"), _pair((bottom, right), "padding")
    else:
        pre = post = _pair(padding, "padding")
    return {"stride": s, "dilation": d, "pre_padding": pre, "post_padding": post}


def _check_classes(name: str, arrays: Mapping[str, handle.Array], ignore_index: int) -> None:
    target, x = arrays["target"], arrays["x"]
    if target.dtype.name != "i64" or len(x.shape) < 2 or not target.size:
        return  # inference says what is wrong
    t, c = np.asarray(target.numpy(), np.int64), x.shape[1]
    bad = (t != ignore_index) & ((t < 0) | (t >= c))
    if bad.any():
        allowed = f"0 to {c - 1} and {ignore_index} (ignored)"
        raise BadInput(f"{name}: target holds {t[bad][0]}, allowed are {allowed}")


# --- calls ---
_Step = tuple[str, tuple[str, ...], dict[str, Any]]


def _ports(name: str) -> tuple[str, ...]:
    from vlug.ops import OPERATIONS

    return tuple(p.rstrip("?") for p in OPERATIONS[name].inputs)


def _one(name: str, arrays: Mapping[str, handle.Array], result: str, out: Any, **attributes: Any) -> Array:
    """One operation with one result."""
    return _chain([(name, _ports(name), attributes)], arrays, {result: out}, (result,))[0]


def _chain(
    steps: Sequence[_Step],
    arrays: Mapping[str, handle.Array],
    outs: Mapping[str, Any],
    names: Sequence[str] | None = None,
) -> list[Array]:
    """Run operations one after the other; in `ports` "" stands for the result before.

    outs: given arrays by result name. names: results of the last operation that are wanted.
    """
    from vlug.plan import plan

    wanted = tuple(names) if names is not None else ("y",)
    given = {
        n: handle.array(a, "out" if n == wanted[0] else n.removeprefix("next_"), True)
        for n, a in outs.items()
        if a is not None
    }
    key = tuple((n, ports, tuple(sorted(at.items()))) for n, ports, at in steps)
    graph = _graph(
        key,
        tuple((n, _tensor(a, n)) for n, a in arrays.items()),
        tuple((n, _tensor(a, "out")) for n, a in given.items()),
        wanted,
    )
    held: dict[str, Any] = dict(arrays)
    results = []
    for name in wanted:
        t = graph.tensors[name]
        held[name] = given[name] if name in given else handle.empty(t.dim, t.dtype, t.stride)
        results.append(held[name].numpy() if name in given else held[name])
    plan(graph).execute(held)
    return results


def _tensor(a: handle.Array, argument: str) -> Tensor:
    if builtins.any(s < 0 for s in a.strides):
        raise BadInput(f"{argument}: negative strides {a.strides} are not allowed")
    return Tensor(a.shape, a.strides, a.dtype).normalised


@lru_cache(maxsize=1024)
def _graph(
    steps: tuple[tuple[str, tuple[str, ...], tuple[tuple[str, Any], ...]], ...],
    inputs: tuple[tuple[str, Tensor], ...],
    outs: tuple[tuple[str, Tensor], ...],
    wanted: tuple[str, ...],
) -> Graph:
    from vlug.graph import Graph
    from vlug.ops import OPERATIONS

    g = Graph()
    known = {n: g.like(n, t) for n, t in inputs}
    likes = dict(outs)
    last: Tensor | None = None
    for i, (name, ports, attributes) in enumerate(steps):
        ins = [last if p == "" else known.get(p) for p in ports]
        if i == len(steps) - 1:
            labels: Sequence[str] = _labels(name, wanted)
            like = [likes.get(n) for n in labels]
        else:
            labels, like = (g.fresh("t"),), []
        op = OPERATIONS[name](**dict(attributes))
        for t, n in zip(op.infer(*ins), labels):
            _check_out(likes.get(n), t, n, wanted)
        last = g.append(op, ins, labels, like)[0]
    return g


def _check_out(given: Tensor | None, t: Tensor, name: str, wanted: Sequence[str]) -> None:
    argument = "out" if name == wanted[0] else name.removeprefix("next_")
    if given is not None and given.dim != t.dim:
        raise ShapeError(f"{argument}: dims are {given.dim}, the result has {t.dim}")
    if given is not None and given.dtype != t.dtype:
        raise DTypeError(f"{argument}: dtype is {given.dtype}, the result has {t.dtype}")
    if given is not None and given.overlaps:
        raise ShapeError(f"{argument}: strides {given.stride} make elements share memory")


def _labels(name: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """Names for the outputs of an operation: those wanted, "_" for the others; alone, it keeps its name."""
    from vlug.ops import OPERATIONS

    ports = [o.rstrip("?") for o in OPERATIONS[name].outputs]
    if len(ports) == 1:
        return (wanted[0],)
    return tuple(p if p in wanted else "_" for p in ports)
