"""PyTorch's own operators: convolution."""

from __future__ import annotations

from typing import Any

from vlug.bench.peers.base import Made, Maker, aten, empty
from vlug.errors import NotSupported
from vlug.graph import Graph

__all__ = ["MAKERS"]


def _attributes(op: Any) -> tuple[Any, ...]:
    if op.pre_padding != op.post_padding:
        raise NotSupported("PyTorch's convolution pads alike before and after")
    rank = len(op.stride)
    return list(op.stride), list(op.pre_padding), list(op.dilation), False, [0] * rank, op.groups


def _conv_fprop(g: Graph, op: Any, ins: list[Any]) -> Made:
    x, w, bias = [*ins, None][:3]
    a = _attributes(op)
    return lambda: aten.convolution(x, w, bias, *a), (0,), lambda: w.add_(1e-6)


def _conv_dgrad(g: Graph, op: Any, ins: list[Any]) -> Made:
    dy, w = ins
    x, a, mask = empty(g.outputs[0]), _attributes(op), [True, False, False]
    return (
        lambda: aten.convolution_backward(dy, x, w, None, *a, mask),
        (0, None, None),
        lambda: w.add_(1e-6),
    )


def _conv_wgrad(g: Graph, op: Any, ins: list[Any]) -> Made:
    dy, x = ins
    w, a, mask = empty(g.outputs[0]), _attributes(op), [False, True, False]
    return lambda: aten.convolution_backward(dy, x, w, None, *a, mask), (None, 0, None), None


MAKERS: dict[str, Maker] = {
    "conv_fprop": _conv_fprop,
    "conv_dgrad": _conv_dgrad,
    "conv_wgrad": _conv_wgrad,
}
