"""PyTorch's own operators: products of matrices, and the linear layer."""

from __future__ import annotations

from typing import Any

import torch

from vlug.bench.peers.base import Made, Maker
from vlug.graph import Graph

__all__ = ["MAKERS"]


def _matmul(g: Graph, op: Any, ins: list[Any]) -> Made:
    bias = ins[2] if len(ins) > 2 else None
    a = ins[0].mT if op.transpose_a else ins[0]
    b = ins[1].mT if op.transpose_b else ins[1]
    call = (lambda: torch.matmul(a, b)) if bias is None else (lambda: torch.addmm(bias, a, b))
    return call, (0,), lambda: ins[1].add_(1e-6)


MAKERS: dict[str, Maker] = {
    "matmul": _matmul,
}
