"""PyTorch's own operators: normalisation."""

from __future__ import annotations

from typing import Any

import torch

from vlug.bench.peers.base import Made, Maker, aten
from vlug.graph import Graph

__all__ = ["MAKERS"]


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


MAKERS: dict[str, Maker] = {
    "batchnorm": _batchnorm,
    "batchnorm_backward": _batchnorm_backward,
}
