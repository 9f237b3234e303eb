"""Random problem lines: resampling and adaptive pooling."""

from __future__ import annotations

import random
from functools import partial

from vlug.ops.resample import MODES
from vlug.testing_lines.base import Line, dims

__all__ = ["LINES"]


def _sizes(r: random.Random) -> tuple[list[int], list[int], list[int]]:
    """N and C, spatial dims of x and of y."""
    rank = r.choice([1, 2, 2, 2, 3])
    x = [r.choice([1, 2, 3, 5, 8, 13, 17, 33][: 8 - rank]) for _ in range(rank)]
    y = [r.choice([0, 1, 1, 2, 3, 5, 7, 16, 19][: 10 - rank]) for _ in range(rank)]
    return [r.choice([0, 1, 2]), r.choice([0, 1, 3, 5, 17, 35])], x, y


def _resample(name: str, r: random.Random) -> str:
    nc, x, y = _sizes(r)
    mode = r.choice(MODES)
    words = f"mode={mode}"
    if not mode.startswith("nearest"):
        words += f" align_corners={r.randint(0, 1)}"
    if r.random() < 0.3:
        words += f" scale_w={round(max(y[-1], 1) / x[-1], 3)}"
    if name == "resample":
        return f"{name} x={dims(*nc, *x)} size={dims(*y)} {words}"
    return f"{name} dy={dims(*nc, *y)} size={dims(*x)} {words}"


def _adaptive(name: str, r: random.Random) -> str:
    nc, x, y = _sizes(r)
    if not name.endswith("backward"):
        return f"{name} x={dims(*nc, *x)} size={dims(*y)}"
    dy = dims(*nc, *y)
    index = f" index={dy}:i64" if "max" in name else ""
    return f"{name} dy={dy}{index} size={dims(*x)}"


LINES: dict[str, Line] = {
    **{n: partial(_resample, n) for n in ("resample", "resample_backward")},
    **{
        n: partial(_adaptive, n)
        for n in (
            "adaptive_avg_pool",
            "adaptive_avg_pool_backward",
            "adaptive_max_pool",
            "adaptive_max_pool_backward",
        )
    },
}
