"""Random problem lines: softmax and its logarithm."""

from __future__ import annotations

import random
from functools import partial

from vlug.ops import OPERATIONS
from vlug.testing_lines.base import Line, dims, shape

__all__ = ["LINES"]


def _softmax(name: str, r: random.Random) -> str:
    dim = shape(r, 1)
    x = dims(*dim)
    ports = " ".join(f"{p}={x}" for p in OPERATIONS[name].inputs)
    return f"{name} {ports} axis={r.randrange(-len(dim), len(dim))}"


LINES: dict[str, Line] = {
    n: partial(_softmax, n) for n in ("softmax", "softmax_backward", "log_softmax", "log_softmax_backward")
}
