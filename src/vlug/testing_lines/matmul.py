"""Random problem lines: products of matrices, and the linear layer."""

from __future__ import annotations

import random

from vlug.testing_lines.base import Line, dims

__all__ = ["LINES"]


def _matmul(r: random.Random) -> str:
    m, n, k = (r.choice([0, 1, 2, 5, 16, 17, 33]) for _ in range(3))
    lead = [r.randint(1, 3) for _ in range(r.randint(0, 2))]
    both = [[1 if r.random() < 0.3 else d for d in lead[r.randint(0, len(lead)) :]] for _ in "ab"]
    ta, tb = r.random() < 0.5, r.random() < 0.5
    a = dims(*both[0], *((k, m) if ta else (m, k)))
    b = dims(*both[1], *((n, k) if tb else (k, n)))
    return f"matmul a={a} b={b} transpose_a={int(ta)} transpose_b={int(tb)}"


LINES: dict[str, Line] = {"matmul": _matmul}
