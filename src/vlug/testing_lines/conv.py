"""Random problem lines: convolution."""

from __future__ import annotations

import random
from functools import partial

from vlug.ops import OPERATIONS
from vlug.tensor import Tensor
from vlug.testing_lines.base import Line, dims, random_window

__all__ = ["LINES"]


def _transposed(r: random.Random) -> str:
    """A gradient as a network asks for it: of any sizes, with an output padding."""
    w = random_window(r, r.choice([1, 2, 3]), False)
    groups, n, c = r.choice([1, 1, 2, 4]), r.choice([1, 2]), r.choice([1, 3, 8, 17])
    k, size = r.choice([1, 2, 5, 16]), []
    for i, h in enumerate(w.size):
        extent = (w.window[i] - 1) * w.dilation[i] + 1
        least = (h - 1) * w.stride[i] + extent - w.pre[i] - w.post[i]
        if least < 1:
            w.pre[i] = w.post[i] = 0
            least = (h - 1) * w.stride[i] + extent
        size.append(least + r.randint(0, w.stride[i] - 1))
    dy, weight = dims(n, c * groups, *w.size), dims(c * groups, k, *w.window)
    return f"conv_dgrad dy={dy} w={weight} {w.words()} groups={groups} size={dims(*size)}"


def _conv(direction: str, r: random.Random) -> str:
    if direction == "dgrad" and r.random() < 0.3:
        return _transposed(r)
    w = random_window(r, r.choice([1, 2, 2, 2, 2, 3]), False)
    groups = r.choice([1, 1, 1, 2, 3, 5])
    n, c, k = r.choice([0, 1, 2, 3]), r.choice([0, 1, 1, 3, 5, 8, 17]), r.choice([0, 1, 2, 3, 7])
    if groups > 3:
        c = 1
    x, weight = dims(n, c * groups, *w.size), dims(k * groups, c, *w.window)
    tail = f"{w.words()} groups={groups}"
    if direction == "fprop":
        return f"conv_fprop x={x} w={weight} {tail}"
    ins = (Tensor.parse(x), Tensor.parse(weight))
    op = OPERATIONS["conv_fprop"].from_attributes(dict(t.split("=") for t in tail.split()), ins)
    y = dims(*op.infer(*ins)[0].dim)
    if direction == "dgrad":
        return f"conv_dgrad dy={y} w={weight} {tail} size={dims(*w.size)}"
    return f"conv_wgrad dy={y} x={x} {tail} size={dims(*w.window)}"


LINES: dict[str, Line] = {f"conv_{d}": partial(_conv, d) for d in ("fprop", "dgrad", "wgrad")}
