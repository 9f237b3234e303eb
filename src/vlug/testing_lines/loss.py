"""Random problem lines: losses."""

from __future__ import annotations

import random
from functools import partial

from vlug.testing_lines.base import Line, dims, shape

__all__ = ["LINES"]


def _cross_entropy(name: str, r: random.Random) -> str:
    n, c, rest = r.randint(0, 5), r.randint(1, 9), shape(r)[:2]
    mode = r.choice(["mean", "sum", "none"])
    target = dims(n, *rest)
    words = [f"x={dims(n, c, *rest)} target={target}:i64"]
    if r.random() < 0.5:
        words.append(f"weight={c}")
    words.append(
        f"reduction={mode} label_smoothing={r.choice([0.0, 0.1])} ignore_index={r.choice([-100, 0])}"
    )
    if name.endswith("_backward"):
        words.insert(0, f"dloss={target if mode == 'none' else 'scalar'}")
    return f"{name} {' '.join(words)}"


def _nll(name: str, r: random.Random) -> str:
    c, rest = r.randint(0, 9), shape(r)[:3]
    x = [*rest[:1], c, *rest[1:]] if rest else [c]
    mode = r.choice(["mean", "sum", "none"])
    words = [f"target={dims(*rest)}:i64"] + [f"weight={c}"] * r.randint(0, 1)
    tail = f"reduction={mode} ignore_index={r.choice([-100, 0])}"
    if name == "nll_loss":
        return f"nll_loss x={dims(*x)} {' '.join(words)} {tail}"
    words += ["total=scalar"] * r.randint(0, 1)
    dloss = dims(*rest) if mode == "none" else "scalar"
    return f"nll_loss_backward dloss={dloss} {' '.join(words)} {tail} size={dims(*x)}"


LINES: dict[str, Line] = {
    **{n: partial(_cross_entropy, n) for n in ("cross_entropy", "cross_entropy_backward")},
    **{n: partial(_nll, n) for n in ("nll_loss", "nll_loss_backward")},
}
