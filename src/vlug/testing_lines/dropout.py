"""Random problem lines: numbers of a generator, dropout."""

from __future__ import annotations

import random
from functools import partial

from vlug.testing_lines.base import Line, dims, shape

__all__ = ["LINES"]

STREAM = "seed=scalar:i64 offset=scalar:i64"


def _rng(r: random.Random) -> str:
    size = dims(*shape(r, 1))
    coin = f"distribution=bernoulli probability={r.choice([0.0, 0.25, 0.9, 1.0])}"
    tail = r.choice(["", "low=-2.0 high=2.0", coin])
    return f"rng {STREAM} size={size} {tail} dtype={r.choice(['f32', 'bf16', 'f16', 'f64'])}"


def _dropout(name: str, r: random.Random) -> str:
    x = f"{'dy' if name.endswith('_backward') else 'x'}={dims(*shape(r))}"
    return f"{name} {x} {STREAM} p={r.choice([0.0, 0.1, 0.5, 0.9, 1.0])}"


LINES: dict[str, Line] = {"rng": _rng, **{n: partial(_dropout, n) for n in ("dropout", "dropout_backward")}}
