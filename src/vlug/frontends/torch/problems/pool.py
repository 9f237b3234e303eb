"""Calls of PyTorch as graphs: pooling."""

from __future__ import annotations

from typing import Any

from vlug.dtypes import I64
from vlug.frontends.torch.keys import Pass
from vlug.frontends.torch.problems.base import (
    Maker,
    Problem,
    formatted,
    infer,
    need_four,
    two,
)

__all__ = ["PROBLEMS"]


def _window(k: Any, s: Any, pad: Any) -> dict[str, Any]:
    window = two(k)
    stride, padding = two(s, window), two(pad)
    if min(window) < 1 or min(stride) < 1 or min(padding) < 0:
        raise Pass("left to stock to judge: its window is out of range")
    return {"window": window, "stride": stride, "padding": padding}


def _max_pool(p: Problem, x: Any, k: Any, s: Any, pad: Any, dilation: Any, ceil: bool) -> None:
    need_four(x)
    attributes = {**_window(k, s, pad), "dilation": two(dilation), "ceil": ceil}
    tx = p.input("x", x)
    dim = infer(p.graph, "max_pool", tx, **attributes)[0].dim
    last = x.suggests_channels_last
    like = [formatted("y", dim, x.dtype, last), formatted("index", dim, I64, last)]
    for t in p.graph.max_pool(tx, **attributes, names=["y", "index"], like=like):
        p.output(t)


def _max_pool_backward(p: Problem, dy: Any, x: Any, k: Any, s: Any, pad: Any, *rest: Any) -> None:
    dilation, _, index = rest
    need_four(dy, x)
    if index is None or index.dtype is not I64 or index.dim != dy.dim:
        raise Pass("indices that do not fit dy")
    attributes = {**_window(k, s, pad), "dilation": two(dilation)}
    tdy, ti = p.input("dy", dy), p.input("index", index)
    like = [formatted("dx", x.dim, x.dtype, x.suggests_channels_last)]
    p.output(p.graph.max_pool_backward(tdy, ti, size=x.dim[2:], **attributes, names=["dx"], like=like))


def _averages(k: Any, s: Any, pad: Any, ceil: bool, counted: bool, divisor: Any) -> dict[str, Any]:
    if divisor == 0:
        raise Pass("left to stock to judge: divisor 0")
    return {**_window(k, s, pad), "ceil": ceil, "count_include_pad": counted, "divisor": divisor or 0}


def _avg_pool(p: Problem, x: Any, *rest: Any) -> None:
    need_four(x)
    attributes = _averages(*rest)
    tx = p.input("x", x)
    dim = infer(p.graph, "avg_pool", tx, **attributes)[0].dim
    like = [formatted("y", dim, x.dtype, x.suggests_channels_last)]
    p.output(p.graph.avg_pool(tx, **attributes, names=["y"], like=like))


def _avg_pool_backward(p: Problem, dy: Any, x: Any, *rest: Any) -> None:
    need_four(dy, x)
    attributes = _averages(*rest)
    like = [formatted("dx", x.dim, x.dtype, x.suggests_channels_last)]
    p.output(
        p.graph.avg_pool_backward(p.input("dy", dy), size=x.dim[2:], **attributes, names=["dx"], like=like)
    )


PROBLEMS: dict[str, Maker] = {
    "max_pool2d_with_indices": _max_pool,
    "max_pool2d_with_indices_backward": _max_pool_backward,
    "avg_pool2d": _avg_pool,
    "avg_pool2d_backward": _avg_pool_backward,
}
