"""PyTorch's own operators: softmax and its logarithm."""

from __future__ import annotations

from typing import Any

import torch

from vlug.bench.peers.base import Made, Maker, aten
from vlug.graph import Graph

__all__ = ["MAKERS"]


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


MAKERS: dict[str, Maker] = {
    "softmax": _softmax,
    "log_softmax": _softmax,
    "softmax_backward": _softmax_backward,
    "log_softmax_backward": _softmax_backward,
}
