"""Random problem lines: operations that move elements."""

from __future__ import annotations

import random
from functools import partial

from vlug.ops import OPERATIONS
from vlug.ops.layout import PAD_MODES
from vlug.tensor import Tensor
from vlug.testing_lines.base import Line, dims, shape

__all__ = ["LINES"]


def _reshape(r: random.Random) -> str:
    factors = [r.choice([1, 2, 3, 5]) for _ in range(4)]

    def grouped() -> list[int]:
        cuts = sorted(r.sample(range(1, 4), r.randint(0, 3)))
        out = []
        for a, b in zip([0, *cuts], [*cuts, 4]):
            n = 1
            for f in factors[a:b]:
                n *= f
            out.append(n)
        return out

    x = dims(*grouped())
    r.shuffle(factors)
    return f"reshape x={x} size={dims(*grouped())}"


def _transpose(r: random.Random) -> str:
    x = shape(r, 1)
    order = list(range(len(x)))
    r.shuffle(order)
    return f"transpose x={dims(*x)} permutation={dims(*order)}"


def _slice(name: str, r: random.Random) -> str:
    x = shape(r, 1)
    start = [r.randint(0, n) for n in x]
    stop = [r.randint(a, n) for a, n in zip(start, x)]
    step = [r.choice([1, 1, 2, 3]) for _ in x]
    words = f"start={dims(*start)} stop={dims(*stop)} step={dims(*step)}"
    if name == "slice":
        return f"slice x={dims(*x)} {words}"
    dy = [-(-(b - a) // s) for a, b, s in zip(start, stop, step)]
    return f"{name} dy={dims(*dy)} {words} size={dims(*x)}"


def _concatenate(r: random.Random) -> str:
    x = shape(r, 1)
    axis = r.randrange(-len(x), len(x))
    words = []
    for i in range(r.randint(1, 5)):
        x[axis] = r.choice([0, 1, 2, 5, 17])
        words.append(f"x{i}={dims(*x)}")
    return f"concatenate {' '.join(words)} axis={axis}"


def _broadcast(r: random.Random) -> str:
    size = shape(r, 1)
    x = [r.choice([1, n]) for n in size][r.randint(0, len(size)) :]
    return f"broadcast x={dims(*x)} size={dims(*size)}"


def _pad(name: str, r: random.Random) -> str:
    mode = r.choice(PAD_MODES)
    x = [max(n, 1) if mode != "constant" else n for n in shape(r, 1)]
    most = {"reflect": -1, "circular": 0}.get(mode, 9)
    padded = set(r.sample(range(len(x)), min(len(x), 3)))
    pre, post = (
        [
            r.randint(-(n // 2), min(n + most, 5) if most < 1 else 4) if i in padded else 0
            for i, n in enumerate(x)
        ]
        for _ in range(2)
    )
    words = f"pre={dims(*pre)} post={dims(*post)} mode={mode}"
    if name == "pad":
        return f"pad x={dims(*x)} {words}" + (" value=1.5" if mode == "constant" else "")
    t = Tensor.parse(dims(*x))
    op = OPERATIONS["pad"].from_attributes(dict(w.split("=") for w in words.split()), (t,))
    return f"{name} dy={dims(*op.infer(t)[0].dim)} {words}"


LINES: dict[str, Line] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": partial(_slice, "slice"),
    "slice_backward": partial(_slice, "slice_backward"),
    "concatenate": _concatenate,
    "broadcast": _broadcast,
    "pad": partial(_pad, "pad"),
    "pad_backward": partial(_pad, "pad_backward"),
}
