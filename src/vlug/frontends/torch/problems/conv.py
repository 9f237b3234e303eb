"""Calls of PyTorch as graphs: convolution."""

from __future__ import annotations

from typing import Any

from vlug.frontends.torch.keys import Pass
from vlug.frontends.torch.problems.base import (
    Maker,
    Problem,
    alike,
    formatted,
    infer,
    need_four,
    two,
    vectors,
)

__all__ = ["PROBLEMS"]


def _conv_attributes(
    stride: Any, padding: Any, dilation: Any, transposed: bool, groups: int
) -> dict[str, Any]:
    if transposed:
        raise Pass("transposed")
    s, p, d = two(stride), two(padding), two(dilation)
    if min(s) < 1 or min(d) < 1 or min(p) < 0 or groups < 1:
        raise Pass("left to stock to judge: its attributes are out of range")
    return {"stride": s, "padding": p, "dilation": d, "groups": groups}


def _convolution(p: Problem, x: Any, w: Any, bias: Any, *rest: Any) -> None:
    stride, padding, dilation, transposed, _, groups = rest[:6]
    need_four(x, w)
    attributes = _conv_attributes(stride, padding, dilation, transposed, groups)
    g = p.graph
    tx, tw = p.input("x", x), p.input("w", w)
    last = x.suggests_channels_last or w.suggests_channels_last
    if bias is not None:
        vectors(w.dim[0], bias)
        alike(x, bias)
        a = g.conv_fprop(tx, tw, **attributes, names=["a"])
        y = formatted("y", a.dim, x.dtype, last)
        p.output(g.bias(a, p.input("b", bias), names=["y"], like=[y]))
        return
    (dim,) = [t.dim for t in infer(g, "conv_fprop", tx, tw, **attributes)]
    p.output(g.conv_fprop(tx, tw, **attributes, names=["y"], like=[formatted("y", dim, x.dtype, last)]))


def _convolution_backward(p: Problem, dy: Any, x: Any, w: Any, *rest: Any) -> None:
    _, stride, padding, dilation, transposed, _, groups, mask = rest
    need_four(dy, x, w)
    attributes = _conv_attributes(stride, padding, dilation, transposed, groups)
    g = p.graph
    last = x.suggests_channels_last or w.suggests_channels_last
    if not any(mask[:2]):
        raise Pass("no gradient but the bias's is asked for")
    tdy = p.input("dy", dy)
    if mask[0]:
        like = formatted("dx", x.dim, x.dtype, last)
        tw = p.input("w", w)
        p.output(g.conv_dgrad(tdy, tw, size=x.dim[2:], **attributes, names=["dx"], like=[like]))
    else:
        p.none()
    if mask[1]:
        like = formatted("dw", w.dim, w.dtype, last)
        tx = p.input("x", x)
        p.output(g.conv_wgrad(tdy, tx, size=w.dim[2:], **attributes, names=["dw"], like=[like]))
    else:
        p.none()
    if mask[2]:
        p.output(g.reduction(tdy, mode="add", axes=(0, 2, 3), names=["db"]))
    else:
        p.none()


PROBLEMS: dict[str, Maker] = {
    "_convolution": _convolution,
    "convolution_backward": _convolution_backward,
}
