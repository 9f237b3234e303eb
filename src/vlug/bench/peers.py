"""PyTorch's own operators for problems: what is timed as stock and, hooked, as ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from vlug.errors import NotSupported
from vlug.graph import Graph
from vlug.tensor import Tensor

__all__ = ["DTYPES", "Peer", "peer"]

aten = torch.ops.aten
DTYPES = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f64": torch.float64,
    "i64": torch.int64,
}
Tensors = dict[str, torch.Tensor]
Call = Callable[[], Any]


@dataclass(frozen=True)
class Peer:
    """A call of PyTorch.

    tensors: its tensors by their names in the graph.   before:  called before each timed call.
    results: names in the graph of what it returns, "" for what the graph does not have.
    """

    call: Call
    tensors: Tensors
    results: tuple[str, ...]
    before: Call = lambda: None


def peer(graph: Graph) -> Peer:
    """PyTorch's operator for a graph of one operation, or of a convolution or product with its bias, its
    tensors filled; NotSupported if there is none."""
    names = [n.op.name for n in graph]
    node, after = graph.nodes[0] if names else None, graph.nodes[1:]
    biased = names[1:] == ["bias"] and names[0] in ("conv_fprop", "matmul") and _follows(graph)
    if node is None or (after and not biased) or names[0] not in _MAKERS:
        raise NotSupported(f"PyTorch has no one operator of its own here for: {'; '.join(names)}")
    inputs = [*node.inputs, *(n.inputs[1] for n in after)]
    ports = [None if n is None else _make(graph.tensors[n], i) for i, n in enumerate(inputs)]
    tensors = {n: t for n, t in zip(inputs, ports) if n is not None and t is not None}
    call, results, before = _MAKERS[node.op.name](graph, node.op, ports)
    made = [*graph.nodes[-1].outputs, *[None] * len(results)]
    wanted = tuple("" if i is None else made[i] or "" for i in results)
    return Peer(call, tensors, wanted, before or (lambda: None))


def _make(t: Tensor, seed: int) -> torch.Tensor:
    """Random values with the tensor's dims, strides and dtype."""
    out = _empty(t)
    if t.dtype.is_float:
        dim = [d if s else min(d, 1) for d, s in zip(t.dim, t.stride)]  # repeated ones (stride 0) once
        out.as_strided(dim, t.stride).copy_(torch.randn(dim, generator=torch.Generator().manual_seed(seed)))
    else:
        out.zero_()
    return out


def _empty(t: Tensor) -> torch.Tensor:
    return torch.empty_strided(t.dim, t.stride, dtype=DTYPES[t.dtype.name])


# Each gives the call, for each of its results the number of the graph's output (None: it has none), and what
# happens before each timed call. A training step changes weights, so they change here too.
Made = tuple[Call, tuple[int | None, ...], Call | None]


def _attributes(op: Any) -> tuple[Any, ...]:
    if op.pre_padding != op.post_padding:
        raise NotSupported("PyTorch's convolution pads alike before and after")
    rank = len(op.stride)
    return list(op.stride), list(op.pre_padding), list(op.dilation), False, [0] * rank, op.groups


def _follows(g: Graph) -> bool:
    """Whether the second operation is a bias as PyTorch's own operator adds it to the first's result."""
    first, second = g.nodes
    y = g.tensors[first.outputs[0] or ""]
    axis = second.op.bind((y, None)).axis  # type: ignore[attr-defined]
    own = axis == 1 if first.op.name == "conv_fprop" else y.rank == 2 and axis == 1
    return own and second.inputs[0] == first.outputs[0] and [t.name for t in g.outputs] == [second.outputs[0]]


def _conv_fprop(g: Graph, op: Any, ins: list[Any]) -> Made:
    x, w, bias = [*ins, None][:3]
    a = _attributes(op)
    return lambda: aten.convolution(x, w, bias, *a), (0,), lambda: w.add_(1e-6)


def _conv_dgrad(g: Graph, op: Any, ins: list[Any]) -> Made:
    dy, w = ins
    x, a, mask = _empty(g.outputs[0]), _attributes(op), [True, False, False]
    return (
        lambda: aten.convolution_backward(dy, x, w, None, *a, mask),
        (0, None, None),
        lambda: w.add_(1e-6),
    )


def _conv_wgrad(g: Graph, op: Any, ins: list[Any]) -> Made:
    dy, x = ins
    w, a, mask = _empty(g.outputs[0]), _attributes(op), [False, True, False]
    return lambda: aten.convolution_backward(dy, x, w, None, *a, mask), (None, 0, None), None


def _batchnorm(g: Graph, op: Any, ins: list[Any]) -> Made:
    if ins[4] is not None:
        ins[4].abs_().add_(0.5)
    return lambda: aten.native_batch_norm(*ins, True, op.momentum, op.eps), (0, 1, 2), None


def _batchnorm_backward(g: Graph, op: Any, ins: list[Any]) -> Made:
    dy, x, scale, mean, inv_std = ins
    inv_std.abs_().add_(0.5)
    c = mean.shape[0]
    rm, rv, mask = torch.zeros(c), torch.ones(c), [o is not None for o in g.nodes[0].outputs]
    mask += [False] * (3 - len(mask))

    def call() -> Any:
        return aten.native_batch_norm_backward(dy, x, scale, rm, rv, mean, inv_std, True, 1e-5, mask)

    return call, (0, 1, 2), None


def _relu(g: Graph, op: Any, ins: list[Any]) -> Made:
    (x,) = ins
    return lambda: aten.relu(x), (0,), None


def _relu_backward(g: Graph, op: Any, ins: list[Any]) -> Made:
    dy, x = ins
    return lambda: aten.threshold_backward(dy, x, 0), (0,), None


def _window(op: Any) -> list[list[int]]:
    if op.pre_padding != op.post_padding:
        raise NotSupported("PyTorch's pooling pads alike before and after")
    return [list(op.window), list(op.stride), list(op.pre_padding)]


def _max_pool(g: Graph, op: Any, ins: list[Any]) -> Made:
    (x,) = ins
    a = [*_window(op), list(op.dilation), op.ceil]
    return lambda: aten.max_pool2d_with_indices(x, *a), (0, 1), None


def _max_pool_backward(g: Graph, op: Any, ins: list[Any]) -> Made:
    dy, index = ins
    a = [*_window(op), list(op.dilation)]
    x = _make(g.outputs[0], 7)
    found = aten.max_pool2d_with_indices(x, *a)[1]
    ceil = found.shape != index.shape
    index.copy_(aten.max_pool2d_with_indices(x, *a, ceil)[1])
    return lambda: aten.max_pool2d_with_indices_backward(dy, x, *a, ceil, index), (0,), None


def _avg_pool(g: Graph, op: Any, ins: list[Any]) -> Made:
    (x,) = ins
    a = [*_window(op), op.ceil, op.count_include_pad, op.divisor or None]
    return lambda: aten.avg_pool2d(x, *a), (0,), None


def _avg_pool_backward(g: Graph, op: Any, ins: list[Any]) -> Made:
    (dy,) = ins
    x = _empty(g.outputs[0])
    a = [*_window(op), op.ceil, op.count_include_pad, op.divisor or None]
    return lambda: aten.avg_pool2d_backward(dy, x, *a), (0,), None


def _softmax(g: Graph, op: Any, ins: list[Any]) -> Made:
    (x,) = ins
    f = aten._log_softmax if op.name == "log_softmax" else aten._softmax
    return lambda: f(x, op.axis, False), (0,), None


def _softmax_backward(g: Graph, op: Any, ins: list[Any]) -> Made:
    dy, y = ins
    log = op.name == "log_softmax_backward"
    y.copy_((torch.log_softmax if log else torch.softmax)(y, op.axis))
    f = aten._log_softmax_backward_data if log else aten._softmax_backward_data
    return lambda: f(dy, y, op.axis, dy.dtype), (0,), None


def _matmul(g: Graph, op: Any, ins: list[Any]) -> Made:
    bias = ins[2] if len(ins) > 2 else None
    a = ins[0].mT if op.transpose_a else ins[0]
    b = ins[1].mT if op.transpose_b else ins[1]
    call = (lambda: torch.matmul(a, b)) if bias is None else (lambda: torch.addmm(bias, a, b))
    return call, (0,), lambda: ins[1].add_(1e-6)


def _reduction(g: Graph, op: Any, ins: list[Any]) -> Made:
    (x,) = ins
    axes = list(op.axes)
    if op.mode == "mean":
        return lambda: aten.mean.dim(x, axes, op.keepdim), (0,), None
    return lambda: aten.sum.dim_IntList(x, axes, op.keepdim), (0,), None


_MAKERS: dict[str, Callable[[Graph, Any, list[Any]], Made]] = {
    "conv_fprop": _conv_fprop,
    "conv_dgrad": _conv_dgrad,
    "conv_wgrad": _conv_wgrad,
    "batchnorm": _batchnorm,
    "batchnorm_backward": _batchnorm_backward,
    "relu": _relu,
    "relu_backward": _relu_backward,
    "max_pool": _max_pool,
    "max_pool_backward": _max_pool_backward,
    "avg_pool": _avg_pool,
    "avg_pool_backward": _avg_pool_backward,
    "softmax": _softmax,
    "log_softmax": _softmax,
    "softmax_backward": _softmax_backward,
    "log_softmax_backward": _softmax_backward,
    "matmul": _matmul,
    "reduction": _reduction,
}
