"""PyTorch's own operators: pooling."""

from __future__ import annotations

from typing import Any

from vlug.bench.peers.base import Made, Maker, aten, empty, make
from vlug.errors import NotSupported
from vlug.graph import Graph

__all__ = ["MAKERS"]


def _window(op: Any) -> list[list[int]]:
    if op.pre_padding != op.post_padding:
        raise NotSupported("PyTorch's pooling pads alike before and after")
    return [list(op.window), list(op.stride), list(op.pre_padding)]


def _of(g: Graph, name: str) -> Any:
    """The operator for as many spatial dimensions as the graph's tensors have."""
    rank = g.inputs[0].rank - 2
    if rank not in (2, 3):
        raise NotSupported(f"PyTorch pools {rank} dimensions by its 2-D operator")
    return getattr(aten, name.format(rank))


def _max_pool(g: Graph, op: Any, ins: list[Any]) -> Made:
    (x,) = ins
    a = [*_window(op), list(op.dilation), op.ceil]
    f = _of(g, "max_pool{}d_with_indices")
    return lambda: f(x, *a), (0, 1), None


def _max_pool_backward(g: Graph, op: Any, ins: list[Any]) -> Made:
    dy, index = ins
    a = [*_window(op), list(op.dilation)]
    x = make(g.outputs[0], 7)
    found = _of(g, "max_pool{}d_with_indices")(x, *a)[1]
    ceil = found.shape != index.shape
    index.copy_(_of(g, "max_pool{}d_with_indices")(x, *a, ceil)[1])
    f = _of(g, "max_pool{}d_with_indices_backward")
    return lambda: f(dy, x, *a, ceil, index), (0,), None


def _avg_pool(g: Graph, op: Any, ins: list[Any]) -> Made:
    (x,) = ins
    a = [*_window(op), op.ceil, op.count_include_pad, op.divisor or None]
    f = _of(g, "avg_pool{}d")
    return lambda: f(x, *a), (0,), None


def _avg_pool_backward(g: Graph, op: Any, ins: list[Any]) -> Made:
    (dy,) = ins
    x = empty(g.outputs[0])
    a = [*_window(op), op.ceil, op.count_include_pad, op.divisor or None]
    f = _of(g, "avg_pool{}d_backward")
    return lambda: f(dy, x, *a), (0,), None


MAKERS: dict[str, Maker] = {
    "max_pool": _max_pool,
    "max_pool_backward": _max_pool_backward,
    "avg_pool": _avg_pool,
    "avg_pool_backward": _avg_pool_backward,
}
