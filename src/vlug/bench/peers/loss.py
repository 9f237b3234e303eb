"""PyTorch's own operators: losses, rows by index."""

from __future__ import annotations

from typing import Any

import torch

from vlug.bench.peers.base import Made, Maker, aten
from vlug.errors import NotSupported
from vlug.graph import Graph

__all__ = ["MAKERS"]

_REDUCTIONS = ("none", "mean", "sum")


def _pointwise(g: Graph, op: Any, ins: list[Any]) -> Made:
    x, target = ins
    call, mode = getattr(aten, op.name), _REDUCTIONS.index(op.reduction)
    numbers = [getattr(op, n) for n in ("beta", "delta") if hasattr(op, n)]
    return lambda: call(x, target, mode, *numbers), (0,), None


def _mse_backward(g: Graph, op: Any, ins: list[Any]) -> Made:
    if len(g.nodes[0].outputs) > 1 and g.nodes[0].outputs[1] is not None:
        raise NotSupported("PyTorch's operator gives dx alone")
    dloss, x, target = ins
    mode = _REDUCTIONS.index(op.reduction)
    return lambda: aten.mse_loss_backward(dloss, x, target, mode), (0,), None


def _classes(target: Any, classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    target.copy_(torch.randint(0, max(classes, 1), target.shape, generator=generator))


def _nll(g: Graph, op: Any, ins: list[Any]) -> Made:
    x, target, weight = ins
    _classes(target, x.shape[min(1, x.dim() - 1)])
    call = aten.nll_loss_forward if x.dim() < 3 else aten.nll_loss2d_forward
    mode = _REDUCTIONS.index(op.reduction)
    return lambda: call(x, target, weight, mode, op.ignore_index), (0, 1), None


def _nll_backward(g: Graph, op: Any, ins: list[Any]) -> Made:
    dloss, target, weight, total = ins
    x = torch.empty(op.size, dtype=dloss.dtype)
    _classes(target, op.size[min(1, len(op.size) - 1)])
    total = torch.ones((), dtype=dloss.dtype) if total is None else total.fill_(float(target.numel()))
    call = aten.nll_loss_backward if x.dim() < 3 else aten.nll_loss2d_backward
    mode = _REDUCTIONS.index(op.reduction)
    return lambda: call(dloss, x, target, weight, mode, op.ignore_index, total), (0,), None


def _embedding(g: Graph, op: Any, ins: list[Any]) -> Made:
    weight, indices = ins
    _classes(indices, weight.shape[0])
    if indices.dim() != 1:
        raise NotSupported("PyTorch's own operator takes one dimension of indices")
    return lambda: aten.index_select(weight, 0, indices), (0,), None


def _embedding_backward(g: Graph, op: Any, ins: list[Any]) -> Made:
    dy, indices = ins
    _classes(indices, op.size[0])
    return lambda: aten.embedding_dense_backward(dy, indices, op.size[0], op.padding_idx, False), (0,), None


MAKERS: dict[str, Maker] = {
    "mse_loss": _pointwise,
    "smooth_l1_loss": _pointwise,
    "huber_loss": _pointwise,
    "mse_loss_backward": _mse_backward,
    "nll_loss": _nll,
    "nll_loss_backward": _nll_backward,
    "embedding": _embedding,
    "embedding_backward": _embedding_backward,
}
