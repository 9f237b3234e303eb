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


def _max_pool(g: Graph, op: Any, ins: list[Any]) -> Made:
    (x,) = ins
    a = [*_window(op), list(op.dilation), op.ceil]
    return lambda: aten.max_pool2d_with_indices(x, *a), (0, 1), None


def _max_pool_backward(g: Graph, op: Any, ins: list[Any]) -> Made:
    dy, index = ins
    a = [*_window(op), list(op.dilation)]
    x = make(g.outputs[0], 7)
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
    x = empty(g.outputs[0])
    a = [*_window(op), op.ceil, op.count_include_pad, op.divisor or None]
    return lambda: aten.avg_pool2d_backward(dy, x, *a), (0,), None


MAKERS: dict[str, Maker] = {
    "max_pool": _max_pool,
    "max_pool_backward": _max_pool_backward,
    "avg_pool": _avg_pool,
    "avg_pool_backward": _avg_pool_backward,
}
