"""PyTorch's own operators: reductions."""

from __future__ import annotations

import math
from typing import Any

from vlug.bench.peers.base import Made, Maker, aten
from vlug.errors import NotSupported
from vlug.graph import Graph

__all__ = ["MAKERS"]

_NORMS = {"norm1": 1, "norm2": 2, "amax": math.inf}


def _reduction(g: Graph, op: Any, ins: list[Any]) -> Made:
    (x,) = ins
    axes, keep = list(op.axes), op.keepdim
    match op.mode:
        case "mean":
            return lambda: aten.mean.dim(x, axes, keep), (0,), None
        case "add":
            return lambda: aten.sum.dim_IntList(x, axes, keep), (0,), None
        case "max":
            return lambda: aten.amax(x, axes, keep), (0,), None
        case "min":
            return lambda: aten.amin(x, axes, keep), (0,), None
        case "mul" if len(axes) == 1:
            return lambda: aten.prod.dim_int(x, axes[0], keep), (0,), None
        case "mul" if len(axes) == x.dim() and not keep:
            return lambda: aten.prod(x), (0,), None
    if op.mode in _NORMS:
        return lambda: aten.linalg_vector_norm(x, _NORMS[op.mode], axes, keep), (0,), None
    raise NotSupported(f"PyTorch has no one operator of its own here for: reduction mode={op.mode}")


MAKERS: dict[str, Maker] = {
    "reduction": _reduction,
}
