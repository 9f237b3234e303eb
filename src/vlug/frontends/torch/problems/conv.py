"""Calls of PyTorch as graphs: convolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlug.dtypes import F32, F64
from vlug.frontends.torch.keys import Arg, Pass
from vlug.frontends.torch.problems.base import Maker, Problem, alike, formatted, infer, vectors

__all__ = ["PROBLEMS"]


def _spatial(values: Any, rank: int) -> tuple[int, ...]:
    v = tuple(values)
    if len(v) == 1:
        v *= rank
    if len(v) != rank:
        raise Pass(f"left to stock to judge: {len(v)} values for {rank} spatial dimensions")
    return v


@dataclass(frozen=True)
class _Call:
    """What both operators are told: attributes of the convolution (of which a transposed one is the
    gradient), output padding, and whether stock's results are channels last."""

    attributes: dict[str, Any]
    transposed: bool
    more: tuple[int, ...]
    last: bool

    @classmethod
    def of(cls, x: Arg, w: Arg, stride: Any, padding: Any, dilation: Any, transposed: bool, more: Any,
           groups: int) -> _Call:  # fmt: skip
        rank = x.rank - 2
        if rank not in (1, 2, 3) or w.rank != x.rank:
            raise Pass(f"{x.rank} and {w.rank} dimensions, not 3, 4 or 5")
        alike(x, w)
        s, p, d = (_spatial(v, rank) for v in (stride, padding, dilation))
        o = _spatial(more, rank) if transposed else (0,) * rank
        if min(s) < 1 or min(d) < 1 or min(p) < 0 or min(o) < 0 or groups < 1:
            raise Pass("left to stock to judge: its attributes are out of range")
        if any(a >= b for a, b in zip(o, s)):
            raise Pass("left to stock to judge: output padding not less than the stride")
        attributes = {"stride": s, "padding": p, "dilation": d, "groups": groups}
        # Stock's own kernels give no channels-last results where oneDNN does. Which of the two serves is told
        # by the batch and the groups, and in three dimensions by more.
        last = _suggests(x) or _suggests(w)
        plain = rank > 1 and x.dtype is F32 and (x.dim[0] > 1 or groups > 1) and max(w.dim[-2:]) > 1
        if last and not plain and (rank != 2 or transposed or x.dtype is F64):
            raise Pass("channels last where stock may answer otherwise")
        return cls(attributes, transposed, o, last)


def _suggests(a: Arg) -> bool:
    """`Arg.suggests_channels_last` in one to three dimensions: one dimension is two with height 1."""
    dim, stride = a.dim, a.stride
    if a.rank == 3:
        dim, stride = (*dim[:2], 1, dim[2]), (*stride[:2], stride[2] * dim[2], stride[2])
    if stride[1] == 0:
        return False
    least = 0
    for d in (1, *range(len(dim) - 1, 1, -1), 0):
        if dim[d] == 0 or stride[d] < least:
            return False
        if d == 0 and least == stride[1]:
            return False
        least = stride[d] * max(dim[d], 1)
    return True


def _convolution(p: Problem, x: Any, w: Any, bias: Any, *rest: Any) -> None:
    call = _Call.of(x, w, *rest[:6])
    g = p.graph
    tx, tw = p.input("x", x), p.input("w", w)
    name, at = "conv_fprop", dict(call.attributes)
    channels = w.dim[0]
    if call.transposed:
        if x.dim[1] != w.dim[0]:
            raise Pass("left to stock to judge: channels that do not fit")
        sizes = zip(x.dim[2:], w.dim[2:], at["stride"], at["padding"], at["dilation"], call.more)
        size = tuple((h - 1) * s - 2 * pad + d * (r - 1) + o + 1 for h, r, s, pad, d, o in sizes)
        if min(size) < 1:
            raise Pass("left to stock to judge: no room for a result")
        name, at["size"] = "conv_dgrad", size
        channels = w.dim[1] * at["groups"]
    (dim,) = [t.dim for t in infer(g, name, tx, tw, **at)]
    if 0 in dim:
        raise Pass("a dimension of size 0")
    y = formatted("y", dim, x.dtype, call.last)
    if bias is None:
        p.output(g.call(name, tx, tw, **at, names=["y"], like=[y]))
        return
    vectors(channels, bias)
    alike(x, bias)
    a = g.call(name, tx, tw, **at, names=["a"])
    p.output(g.bias(a, p.input("b", bias), names=["y"], like=[y]))


def _convolution_backward(p: Problem, dy: Any, x: Any, w: Any, *rest: Any) -> None:
    _, stride, padding, dilation, transposed, more, groups, mask = rest
    call = _Call.of(x, w, stride, padding, dilation, transposed, more, groups)
    alike(dy, x, w)
    if dy.rank != x.rank:
        raise Pass("left to stock to judge: dimensions that do not fit")
    g, at = p.graph, call.attributes
    if not any(mask[:2]):
        raise Pass("no gradient but the bias's is asked for")
    tdy = p.input("dy", dy)
    if mask[0]:
        like, tw = formatted("dx", x.dim, x.dtype, call.last), p.input("w", w)
        if call.transposed:
            p.output(g.conv_fprop(tdy, tw, **at, names=["dx"], like=[like]))
        else:
            p.output(g.conv_dgrad(tdy, tw, size=x.dim[2:], **at, names=["dx"], like=[like]))
    else:
        p.none()
    if mask[1]:
        like, tx = formatted("dw", w.dim, w.dtype, call.last), p.input("x", x)
        ends = (tx, tdy) if call.transposed else (tdy, tx)
        p.output(g.conv_wgrad(*ends, size=w.dim[2:], **at, names=["dw"], like=[like]))
    else:
        p.none()
    if mask[2]:
        p.output(g.reduction(tdy, mode="add", axes=(0, *range(2, x.rank)), names=["db"]))
    else:
        p.none()


PROBLEMS: dict[str, Maker] = {
    "_convolution": _convolution,
    "convolution_backward": _convolution_backward,
}
