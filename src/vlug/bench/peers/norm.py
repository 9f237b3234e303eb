"""PyTorch's own operators: normalisation."""

from __future__ import annotations

import math
from typing import Any

import torch

from vlug.bench.peers.base import Made, Maker, aten
from vlug.errors import NotSupported
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
    rm, rv, mask = torch.zeros(c, dtype=mean.dtype), torch.ones(c, dtype=mean.dtype), _mask(g)

    def call() -> Any:
        return aten.native_batch_norm_backward(dy, x, scale, rm, rv, mean, inv_std, True, 1e-5, mask)

    return call, (0, 1, 2), None


def _mask(g: Graph) -> list[bool]:
    mask = [o is not None for o in g.nodes[0].outputs]
    return mask + [False] * (3 - len(mask))


def _layernorm(g: Graph, op: Any, ins: list[Any]) -> Made:
    x, scale, bias = ins
    shape = x.shape[op.axis :]
    return lambda: aten.native_layer_norm(x, shape, scale, bias, op.eps), (0, 1, 2), None


def _layernorm_backward(g: Graph, op: Any, ins: list[Any]) -> Made:
    dy, x, scale, mean, inv_std = ins
    inv_std.abs_().add_(0.5)
    shape, mask = x.shape[op.axis :], _mask(g)
    bias = None if scale is None else torch.zeros_like(scale)

    def call() -> Any:
        return aten.native_layer_norm_backward(dy, x, shape, mean, inv_std, scale, bias, mask)

    return call, (0, 1, 2), None


def _rmsnorm(g: Graph, op: Any, ins: list[Any]) -> Made:
    x, scale, bias = ins
    if bias is not None:
        raise NotSupported("PyTorch's RMS norm has no bias")
    return lambda: torch.nn.functional.rms_norm(x, x.shape[op.axis :], scale, op.eps), (0,), None


def _groupnorm(g: Graph, op: Any, ins: list[Any]) -> Made:
    x, scale, bias = ins
    sizes = (*x.shape[:2], math.prod(x.shape[2:]))
    return lambda: aten.native_group_norm(x, scale, bias, *sizes, op.groups, op.eps), (0, 1, 2), None


def _groupnorm_backward(g: Graph, op: Any, ins: list[Any]) -> Made:
    dy, x, scale, mean, inv_std = ins
    inv_std.abs_().add_(0.5)
    sizes, mask = (*x.shape[:2], math.prod(x.shape[2:])), _mask(g)

    def call() -> Any:
        return aten.native_group_norm_backward(dy, x, mean, inv_std, scale, *sizes, op.groups, mask)

    return call, (0, 1, 2), None


MAKERS: dict[str, Maker] = {
    "groupnorm": _groupnorm,
    "groupnorm_backward": _groupnorm_backward,
    "layernorm": _layernorm,
    "layernorm_backward": _layernorm_backward,
    "rmsnorm": _rmsnorm,
    "batchnorm": _batchnorm,
    "batchnorm_backward": _batchnorm_backward,
}
