"""Random problem lines: sampling at the places of a grid."""

from __future__ import annotations

import random
from functools import partial

from vlug.ops.grid import MODES, PADDINGS
from vlug.testing_lines.base import Line, dims

__all__ = ["LINES"]


def _grid(name: str, r: random.Random) -> str:
    n, c = r.choice([0, 1, 2]), r.choice([0, 1, 3, 17])
    h, w = (r.choice([1, 2, 3, 8, 13]) for _ in range(2))
    p, q = r.choice([0, 1, 2, 5]), r.choice([0, 1, 3, 7, 19, 33])
    words = f"mode={r.choice(MODES)} padding={r.choice(PADDINGS)} align_corners={r.randint(0, 1)}"
    tensors = f"x={dims(n, c, h, w)} grid={dims(n, p, q, 2)}"
    dy = f"dy={dims(n, c, p, q)} " if name.endswith("backward") else ""
    return f"{name} {dy}{tensors} {words}"


LINES: dict[str, Line] = {n: partial(_grid, n) for n in ("grid_sample", "grid_sample_backward")}
