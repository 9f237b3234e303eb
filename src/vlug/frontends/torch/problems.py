"""From a call of PyTorch to a graph: one function an operator, in the operators' order.

Each gives the graph, where its tensors lie among the arguments, and the results with exactly the sizes,
strides and dtypes that stock's kernel gives them; or raises Pass with the reason why stock serves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlug.dtypes import F32, I64
from vlug.errors import BadInput
from vlug.frontends.torch.control import IS_OUTPUT, IS_WRITTEN, Output
from vlug.frontends.torch.keys import Arg, Pass, torch_dtype
from vlug.frontends.torch.operators import Operator
from vlug.graph import Graph
from vlug.tensor import Tensor, channels_last_strides, contiguous_strides

__all__ = ["PROBLEMS", "Problem", "problem"]


@dataclass
class Problem:
    """A call as a graph. order: the graph's outer tensors by name and where each lies (an argument's place
    among the tensors, IS_WRITTEN with it; or IS_OUTPUT and the number of a result). results: what is
    allocated, None for an undefined tensor."""

    graph: Graph = field(default_factory=Graph)
    order: dict[str, int] = field(default_factory=dict)
    results: list[Output | None] = field(default_factory=list)

    def input(self, name: str, arg: Arg, written: bool = False, tensor: Tensor | None = None) -> Tensor:
        """An argument as an input of the graph."""
        self.order[name] = arg.place | (IS_WRITTEN if written else 0)
        return self.graph.like(name, tensor or arg.tensor(name))

    def output(self, t: Tensor) -> None:
        """A tensor of the graph as the next result."""
        self.order[t.name] = IS_OUTPUT | len(self.results)
        self.results.append(Output(t.dim, t.stride, torch_dtype(t.dtype)))

    def none(self) -> None:
        """An undefined tensor as the next result."""
        self.results.append(None)


def problem(op: Operator, arguments: Sequence[Any]) -> Problem:
    """The problem of a call. Raises Pass with the reason where stock serves."""
    p = Problem()
    try:
        PROBLEMS[op.name](p, *arguments)
    except BadInput as e:  # stock says what is wrong, in its own words
        raise Pass(f"left to stock to judge: {e}") from None
    return p


# --- what several share ---
def _need(*args: Arg | None) -> None:
    """Four-dimensional, one float dtype, nothing empty."""
    given = [a for a in args if a is not None]
    for a in given:
        if a.rank != 4:
            raise Pass(f"{a.rank} dimensions, not 4")
    _alike(*given)


def _alike(*args: Arg) -> None:
    first = args[0]
    for a in args:
        if a.dtype is I64:
            raise Pass("dtype int64")
        if a.number != first.number:
            raise Pass("dtypes differ")
        if 0 in a.dim:
            raise Pass("a dimension of size 0")


def _vectors(n: int, *args: Arg | None) -> None:
    for a in args:
        if a is not None and (a.dim != (n,) or (a.stride != (1,) and n > 1)):
            raise Pass("a parameter that is not one contiguous value a channel")


def _two(values: Sequence[int] | None, default: Sequence[int] = ()) -> tuple[int, int]:
    v = tuple(values or default)
    if len(v) == 1:
        v *= 2
    if len(v) != 2:
        raise Pass(f"{len(v)} spatial dimensions, not 2")
    return v[0], v[1]


def _formatted(name: str, dim: Sequence[int], dtype: Any, channels_last: bool) -> Tensor:
    """A result in one of PyTorch's two memory formats."""
    dim = tuple(dim)
    return Tensor(dim, channels_last_strides(dim) if channels_last else contiguous_strides(dim), dtype, name)


def _same_memory(name: str, x: Arg) -> Tensor:
    """A pointwise result: the strides of a dense input."""
    if not x.is_dense:
        raise Pass("strides with gaps or overlaps")
    if x.is_contiguous:
        stride = contiguous_strides(x.dim)
    elif x.is_channels_last:
        stride = channels_last_strides(x.dim)
    else:
        stride = x.stride
    return Tensor(x.dim, stride, x.dtype, name)


# --- convolution ---
def _conv_attributes(
    stride: Any, padding: Any, dilation: Any, transposed: bool, groups: int
) -> dict[str, Any]:
    if transposed:
        raise Pass("transposed")
    s, p, d = _two(stride), _two(padding), _two(dilation)
    if min(s) < 1 or min(d) < 1 or min(p) < 0 or groups < 1:
        raise Pass("left to stock to judge: its attributes are out of range")
    return {"stride": s, "padding": p, "dilation": d, "groups": groups}


def _convolution(p: Problem, x: Any, w: Any, bias: Any, *rest: Any) -> None:
    stride, padding, dilation, transposed, _, groups = rest[:6]
    _need(x, w)
    attributes = _conv_attributes(stride, padding, dilation, transposed, groups)
    g = p.graph
    tx, tw = p.input("x", x), p.input("w", w)
    last = x.suggests_channels_last or w.suggests_channels_last
    if bias is not None:
        _vectors(w.dim[0], bias)
        _alike(x, bias)
        a = g.conv_fprop(tx, tw, **attributes, names=["a"])
        y = _formatted("y", a.dim, x.dtype, last)
        p.output(g.bias(a, p.input("b", bias), names=["y"], like=[y]))
        return
    (dim,) = [t.dim for t in _infer(g, "conv_fprop", tx, tw, **attributes)]
    p.output(
        g.conv_fprop(tx, tw, **attributes, names=["y"], like=[_formatted("y", dim, x.dtype, last)])
    )


def _infer(g: Graph, name: str, *inputs: Tensor, **attributes: Any) -> Sequence[Tensor]:
    """Outputs of an operation, without adding it: on a graph of its own."""
    trial = Graph()
    made = trial.call(name, *[trial.like(t.name, t) for t in inputs], **attributes)
    return made if isinstance(made, tuple) else (made,)


def _convolution_backward(p: Problem, dy: Any, x: Any, w: Any, *rest: Any) -> None:
    _, stride, padding, dilation, transposed, _, groups, mask = rest
    _need(dy, x, w)
    attributes = _conv_attributes(stride, padding, dilation, transposed, groups)
    g = p.graph
    last = x.suggests_channels_last or w.suggests_channels_last
    if not any(mask[:2]):
        raise Pass("no gradient but the bias's is asked for")
    tdy = p.input("dy", dy)
    if mask[0]:
        like = _formatted("dx", x.dim, x.dtype, last)
        tw = p.input("w", w)
        p.output(g.conv_dgrad(tdy, tw, size=x.dim[2:], **attributes, names=["dx"], like=[like]))
    else:
        p.none()
    if mask[1]:
        like = _formatted("dw", w.dim, w.dtype, last)
        tx = p.input("x", x)
        p.output(g.conv_wgrad(tdy, tx, size=w.dim[2:], **attributes, names=["dw"], like=[like]))
    else:
        p.none()
    if mask[2]:
        p.output(g.reduction(tdy, mode="add", axes=(0, 2, 3), names=["db"]))
    else:
        p.none()


# --- batch norm ---
def _normed(x: Arg, *parameters: Arg | None) -> bool:
    """Checks x and its parameters; whether the result is channels last."""
    if x.rank < 2:
        raise Pass(f"{x.rank} dimensions, not 2 or more")
    _alike(x)
    _vectors(x.dim[1], *parameters)
    for q in parameters:
        if q is not None and q.dtype is not F32:
            raise Pass(f"parameters of {q.dtype}")
    if x.dtype is not F32:
        raise Pass(f"dtype {x.dtype.long_name}")
    if x.is_contiguous:
        return False
    if not x.is_channels_last:
        raise Pass("strides that are neither contiguous nor channels last")
    return True


def _batch_norm(p: Problem, x: Any, scale: Any, bias: Any, rm: Any, rv: Any, *rest: Any) -> None:
    training, momentum, eps = rest
    last = _normed(x, scale, bias, rm, rv)
    g = p.graph
    tx = p.input("x", x)
    y = _formatted("y", x.dim, x.dtype, last) if x.rank == 4 else _same_memory("y", x)

    def parameter(name: str, arg: Arg | None, written: bool = False) -> Tensor | None:
        return None if arg is None else p.input(name, arg, written)

    if not training:
        if rm is None or rv is None:
            raise Pass("evaluation without running statistics")
        mean, var = p.input("mean", rm), p.input("var", rv)
        p.output(
            g.batchnorm_inference(
                tx, mean, var, parameter("scale", scale), parameter("bias", bias), eps=eps, names=["y"],
                like=[y],
            )
        )  # fmt: skip
        for _ in range(2):
            p.results.append(Output((0,), (1,), torch_dtype(F32)))
        return
    if x.dim[0] * _count(x.dim[2:]) < 2:
        raise Pass("one value a channel")
    if (rm is None) != (rv is None):
        raise Pass("one of the running statistics alone")
    inputs = [parameter("scale", scale), parameter("bias", bias)]
    names = ["y", "mean", "inv_std"]
    if rm is not None:
        inputs += [p.input("running_mean", rm, True), p.input("running_var", rv, True)]
        names += ["next_running_mean", "next_running_var"]
    made = g.batchnorm(tx, *inputs, eps=eps, momentum=momentum, names=names, like=[y])
    for t in made[:3]:
        p.output(t)
    if rm is not None:
        p.order["next_running_mean"] = rm.place | IS_WRITTEN
        p.order["next_running_var"] = rv.place | IS_WRITTEN


def _count(dim: Sequence[int]) -> int:
    n = 1
    for d in dim:
        n *= d
    return n


def _batch_norm_backward(p: Problem, dy: Any, x: Any, scale: Any, rm: Any, rv: Any, *rest: Any) -> None:
    mean, inv_std, training, _, mask = rest
    if not training:
        raise Pass("backward of evaluation mode")
    if mean is None or inv_std is None:
        raise Pass("no saved statistics")
    last = _normed(x, scale, mean, inv_std)
    _alike(dy, x)
    if dy.dim != x.dim:
        raise Pass("dy and x of different sizes")
    if not (dy.is_contiguous if not last else dy.is_channels_last):
        raise Pass("dy and x in different layouts")
    if not any(mask):
        raise Pass("no gradient is asked for")
    tdy, tx = p.input("dy", dy), p.input("x", x)
    tscale = None if scale is None else p.input("scale", scale)
    tmean, tinv = p.input("mean", mean), p.input("inv_std", inv_std)
    names = [n if wanted else "_" for n, wanted in zip(("dx", "dscale", "dbias"), mask)]
    dx = _formatted("dx", x.dim, x.dtype, last) if x.rank == 4 else _same_memory("dx", x)
    made = p.graph.batchnorm_backward(tdy, tx, tscale, tmean, tinv, names=names, like=[dx])
    outs = iter(made if isinstance(made, tuple) else (made,))
    for wanted in mask:
        if wanted:
            p.output(next(outs))
        else:
            p.none()


# --- relu ---
def _relu(p: Problem, x: Any) -> None:
    _alike(x)
    y = _same_memory("y", x)
    p.output(p.graph.relu(p.input("x", x, tensor=_in_memory_of(x)), names=["y"], like=[y]))


def _relu_in_place(p: Problem, x: Any) -> None:
    _alike(x)
    y = _same_memory("y", x)
    t = p.graph.relu(p.input("x", x, True, _in_memory_of(x)), names=["y"], like=[y])
    p.order[t.name] = x.place | IS_WRITTEN


def _in_memory_of(x: Arg) -> Tensor:
    """The strides of size-1 dimensions mean nothing: those of the result, so that engines see one layout."""
    return _same_memory("x", x)


def _threshold_backward(p: Problem, dy: Any, x: Any, threshold: Any) -> None:
    _alike(dy, x)
    if threshold is None or threshold != 0:
        raise Pass(f"threshold {threshold}")
    if dy.dim != x.dim:
        raise Pass("dy and x of different sizes")
    dx, like = _same_memory("dx", x), _same_memory("dx", dy)
    if dx.stride != like.stride:
        raise Pass("dy and x in different layouts")
    tdy, tx = p.input("dy", dy, tensor=_in_memory_of(dy)), p.input("x", x, tensor=_in_memory_of(x))
    p.output(p.graph.relu_backward(tdy, tx, names=["dx"], like=[dx]))


# --- pooling ---
def _window(k: Any, s: Any, pad: Any) -> dict[str, Any]:
    window = _two(k)
    stride, padding = _two(s, window), _two(pad)
    if min(window) < 1 or min(stride) < 1 or min(padding) < 0:
        raise Pass("left to stock to judge: its window is out of range")
    return {"window": window, "stride": stride, "padding": padding}


def _max_pool(p: Problem, x: Any, k: Any, s: Any, pad: Any, dilation: Any, ceil: bool) -> None:
    _need(x)
    attributes = {**_window(k, s, pad), "dilation": _two(dilation), "ceil": ceil}
    tx = p.input("x", x)
    dim = _infer(p.graph, "max_pool", tx, **attributes)[0].dim
    last = x.suggests_channels_last
    like = [_formatted("y", dim, x.dtype, last), _formatted("index", dim, I64, last)]
    for t in p.graph.max_pool(tx, **attributes, names=["y", "index"], like=like):
        p.output(t)


def _max_pool_backward(p: Problem, dy: Any, x: Any, k: Any, s: Any, pad: Any, *rest: Any) -> None:
    dilation, _, index = rest
    _need(dy, x)
    if index is None or index.dtype is not I64 or index.dim != dy.dim:
        raise Pass("indices that do not fit dy")
    attributes = {**_window(k, s, pad), "dilation": _two(dilation)}
    tdy, ti = p.input("dy", dy), p.input("index", index)
    like = [_formatted("dx", x.dim, x.dtype, x.suggests_channels_last)]
    p.output(p.graph.max_pool_backward(tdy, ti, size=x.dim[2:], **attributes, names=["dx"], like=like))


def _averages(k: Any, s: Any, pad: Any, ceil: bool, counted: bool, divisor: Any) -> dict[str, Any]:
    if divisor == 0:
        raise Pass("left to stock to judge: divisor 0")
    return {**_window(k, s, pad), "ceil": ceil, "count_include_pad": counted, "divisor": divisor or 0}


def _avg_pool(p: Problem, x: Any, *rest: Any) -> None:
    _need(x)
    attributes = _averages(*rest)
    tx = p.input("x", x)
    dim = _infer(p.graph, "avg_pool", tx, **attributes)[0].dim
    like = [_formatted("y", dim, x.dtype, x.suggests_channels_last)]
    p.output(p.graph.avg_pool(tx, **attributes, names=["y"], like=like))


def _avg_pool_backward(p: Problem, dy: Any, x: Any, *rest: Any) -> None:
    _need(dy, x)
    attributes = _averages(*rest)
    like = [_formatted("dx", x.dim, x.dtype, x.suggests_channels_last)]
    p.output(
        p.graph.avg_pool_backward(p.input("dy", dy), size=x.dim[2:], **attributes, names=["dx"], like=like)
    )


# --- reductions, products, softmax ---
def _mean(p: Problem, x: Any, axes: Any, keepdim: bool, dtype: Any) -> None:
    _alike(x)
    if dtype is not None and dtype != x.number:
        raise Pass("another dtype asked for")
    if x.rank == 0:
        raise Pass("no dimensions")
    axes = tuple(sorted(_axis(a, x.rank) for a in axes)) if axes else tuple(range(x.rank))
    if len(set(axes)) < len(axes):
        raise Pass("left to stock to judge: a dimension given twice")
    tx, attributes = p.input("x", x), {"mode": "mean", "axes": axes, "keepdim": keepdim}
    (dim,) = [t.dim for t in _infer(p.graph, "reduction", tx, **attributes)]
    like = [_formatted("y", dim, x.dtype, False)]
    p.output(p.graph.reduction(tx, **attributes, names=["y"], like=like))


def _matrix(p: Problem, name: str, a: Arg) -> tuple[Tensor, bool]:
    """A matrix operand, row-major if it or its transpose is, and whether it is transposed."""
    t = a.tensor(name)
    if not t.is_contiguous and a.stride[0] == 1 and a.stride[1] >= a.dim[0]:
        turned = Tensor((a.dim[1], a.dim[0]), (a.stride[1], a.stride[0]), a.dtype, name)
        return p.input(name, a, tensor=turned.normalised.renamed(name)), True
    return p.input(name, a), False


def _product(p: Problem, a: Any, b: Any, name: str) -> Tensor:
    for m in (a, b):
        if m.rank != 2:
            raise Pass(f"{m.rank} dimensions, not 2")
    _alike(a, b)
    if a.dim[1] != b.dim[0]:
        raise Pass("left to stock to judge: inner sizes differ")
    (ta, turn_a), (tb, turn_b) = _matrix(p, "a", a), _matrix(p, "b", b)
    return p.graph.matmul(ta, tb, transpose_a=turn_a, transpose_b=turn_b, names=[name])


def _mm(p: Problem, a: Any, b: Any) -> None:
    p.output(_product(p, a, b, "c"))


def _addmm(p: Problem, bias: Any, a: Any, b: Any, beta: Any, alpha: Any) -> None:
    if beta != 1 or alpha != 1:
        raise Pass(f"beta {beta}, alpha {alpha}")
    c = _product(p, a, b, "c")
    _alike(a, bias)
    if bias.dim == (c.dim[1],) and (bias.stride == (1,) or bias.dim == (1,)):
        y = p.graph.bias(c, p.input("bias", bias), axis=1, names=["y"])
    elif bias.dim == c.dim and bias.is_contiguous:
        y = p.graph.add(c, p.input("bias", bias), names=["y"])
    else:
        raise Pass("a bias that is spread out")
    p.output(y)


def _softmax_of(name: str) -> Callable[..., None]:
    def make(p: Problem, x: Any, axis: int, half_to_float: bool) -> None:
        _alike(x)
        if half_to_float:
            raise Pass("another dtype asked for")
        _check_rows(x)
        like = [_formatted("y", x.dim, x.dtype, False)]
        p.output(p.graph.call(name, p.input("x", x), axis=_axis(axis, x.rank), names=["y"], like=like))

    return make


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise Pass(f"left to stock to judge: dimension {axis} of {rank}")
    return axis % rank


def _check_rows(*args: Arg) -> None:
    for a in args:
        if a.rank == 0:
            raise Pass("no dimensions")
        if not a.is_contiguous:
            raise Pass("strides that are not contiguous")


def _softmax_backward_of(name: str) -> Callable[..., None]:
    def make(p: Problem, dy: Any, y: Any, axis: int, dtype: int) -> None:
        _alike(dy, y)
        if dtype != dy.number:
            raise Pass("another dtype asked for")
        if dy.dim != y.dim:
            raise Pass("dy and y of different sizes")
        _check_rows(dy, y)
        like = [_formatted("dx", y.dim, y.dtype, False)]
        tdy, ty = p.input("dy", dy), p.input("y", y)
        p.output(p.graph.call(name, tdy, ty, axis=_axis(axis, y.rank), names=["dx"], like=like))

    return make


PROBLEMS: dict[str, Callable[..., None]] = {
    "_convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "relu": _relu,
    "relu_": _relu_in_place,
    "threshold_backward": _threshold_backward,
    "max_pool2d_with_indices": _max_pool,
    "max_pool2d_with_indices_backward": _max_pool_backward,
    "avg_pool2d": _avg_pool,
    "avg_pool2d_backward": _avg_pool_backward,
    "mean.dim": _mean,
    "mm": _mm,
    "addmm": _addmm,
    "_softmax": _softmax_of("softmax"),
    "_softmax_backward_data": _softmax_backward_of("softmax_backward"),
    "_log_softmax": _softmax_of("log_softmax"),
    "_log_softmax_backward_data": _softmax_backward_of("log_softmax_backward"),
}
