"""Random problem lines: pooling."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

from vlug.ops import OPERATIONS
from vlug.tensor import Tensor
from vlug.testing_lines.base import Line, dims, random_window

__all__ = ["LINES"]


def _pool(name: str, r: random.Random) -> str:
    w = random_window(r, r.choice([1, 2, 2, 2, 3]), True)
    is_max = name.startswith("max")
    if not is_max:
        pre, post = ([min(p, d // 2) for p, d in zip(pads, w.window)] for pads in (w.pre, w.post))
        w = replace(w, pre=pre, post=post, dilation=[1] * len(w.size))
        w.size[:] = [max(s, d) for s, d in zip(w.size, w.window)]
    n, c = r.choice([0, 1, 2]), r.choice([0, 1, 3, 5, 17])
    x, ceil = dims(n, c, *w.size), r.random() < 0.3
    words = f"window={dims(*w.window)} {w.words(dilation=is_max)}"
    more = "" if is_max else r.choice(["", " count_include_pad=0", " divisor=3"])
    full = f"{words} ceil={int(ceil)}{more}"
    forward = name.removesuffix("_backward")
    if forward == name:
        return f"{name} x={x} {full}"
    t = Tensor.parse(x)
    op = OPERATIONS[forward].from_attributes(dict(p.split("=") for p in full.split()), (t,))
    y, size = dims(*op.infer(t)[0].dim), dims(*w.size)
    if is_max:
        return f"{name} dy={y} index={y}:i64 {words} size={size}"
    return f"{name} dy={y} {full} size={size}"


LINES: dict[str, Line] = {
    n: partial(_pool, n) for n in ("max_pool", "max_pool_backward", "avg_pool", "avg_pool_backward")
}
