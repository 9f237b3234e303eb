"""Random problem lines: reductions."""

from __future__ import annotations

import random
from functools import partial

from vlug.ops.reduction import MODES, OF_X, OF_Y
from vlug.testing_lines.base import Line, dims, shape

__all__ = ["LINES"]


def _reduction(name: str, r: random.Random) -> str:
    dim = shape(r, 1)
    axes = sorted(r.sample(range(len(dim)), r.randint(1, len(dim))))
    keep, mode = r.randint(0, 1), r.choice(MODES)
    tail = f"axes={dims(*axes)} keepdim={keep} mode={mode}"
    if name == "reduction":
        return f"reduction x={dims(*dim)} {tail}"
    y = [1 if i in axes else d for i, d in enumerate(dim) if keep or i not in axes]
    words = [f"reduction_backward dy={dims(*y)}"]
    words += [f"x={dims(*dim)}"] * (mode in OF_X) + [f"y={dims(*y)}"] * (mode in OF_Y)
    return f"{' '.join(words)} {tail} size={dims(*dim)}"


LINES: dict[str, Line] = {n: partial(_reduction, n) for n in ("reduction", "reduction_backward")}
