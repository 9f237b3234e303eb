"""PyTorch's own operators: pointwise calls."""

from __future__ import annotations

from typing import Any

from vlug.bench.peers.base import Made, Maker, aten
from vlug.graph import Graph

__all__ = ["MAKERS"]


def _relu(g: Graph, op: Any, ins: list[Any]) -> Made:
    (x,) = ins
    return lambda: aten.relu(x), (0,), None


def _relu_backward(g: Graph, op: Any, ins: list[Any]) -> Made:
    dy, x = ins
    return lambda: aten.threshold_backward(dy, x, 0), (0,), None


MAKERS: dict[str, Maker] = {
    "relu": _relu,
    "relu_backward": _relu_backward,
}
