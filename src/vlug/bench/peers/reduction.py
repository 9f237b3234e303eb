"""PyTorch's own operators: sums and means."""

from __future__ import annotations

from typing import Any

from vlug.bench.peers.base import Made, Maker, aten
from vlug.graph import Graph

__all__ = ["MAKERS"]


def _reduction(g: Graph, op: Any, ins: list[Any]) -> Made:
    (x,) = ins
    axes = list(op.axes)
    if op.mode == "mean":
        return lambda: aten.mean.dim(x, axes, op.keepdim), (0,), None
    return lambda: aten.sum.dim_IntList(x, axes, op.keepdim), (0,), None


MAKERS: dict[str, Maker] = {
    "reduction": _reduction,
}
