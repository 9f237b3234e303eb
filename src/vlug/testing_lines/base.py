"""What random problem lines are made of."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

#: A valid problem line from a source of random numbers (a seeded one, or hypothesis's, which shrinks).
Line = Callable[[random.Random], str]

__all__ = ["Line", "Window", "dims", "random_window", "shape"]


@dataclass(frozen=True)
class Window:
    """Spatial dims, window and the attributes of one random sliding window (a value a dimension)."""

    size: list[int]
    window: list[int]
    pre: list[int]
    post: list[int]
    stride: list[int]
    dilation: list[int]

    def words(self, dilation: bool = True) -> str:
        parts = [("pad", self.pre), ("post", self.post), ("stride", self.stride)]
        if dilation:
            parts.append(("dilation", self.dilation))
        return " ".join(f"{k}={dims(*v)}" for k, v in parts)


def dims(*d: int) -> str:
    return "x".join(map(str, d)) if d else "scalar"


def random_window(r: random.Random, rank: int, pool: bool) -> Window:
    w = Window([], [], [], [], [], [])
    for _ in range(rank):
        window, dilation = r.choice([1, 1, 2, 3, 3, 4, 5]), r.choice([1, 1, 1, 2, 3])
        extent = (window - 1) * dilation + 1
        most = extent // 2 if pool else extent
        pre, post = r.randint(0, most), r.randint(0, most)
        least = max(1, extent - pre - post)
        w.size.append(r.randint(least, least + 9))
        w.window.append(window)
        w.dilation.append(dilation)
        w.pre.append(pre)
        w.post.append(post)
        w.stride.append(r.choice([1, 1, 1, 2, 3]))
    return w


def shape(r: random.Random, least: int = 0) -> list[int]:
    return [r.choice([0, 1, 2, 3, 5, 7, 17]) for _ in range(r.randint(least, 4))]
