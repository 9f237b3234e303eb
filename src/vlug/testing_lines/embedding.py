"""Random problem lines: embedding."""

from __future__ import annotations

import random
from functools import partial

from vlug.testing_lines.base import Line, dims, shape

__all__ = ["LINES"]


def _embedding(name: str, r: random.Random) -> str:
    rows, d, places = r.randint(1, 40), r.choice([0, 1, 2, 5, 17, 33, 70]), shape(r)[:3]
    kind = r.choice(["i64", "i64", "i32"])
    padding = r.choice([-1, -1, r.randrange(rows)])
    if name == "embedding":
        return f"embedding weight={rows}x{d} indices={dims(*places)}:{kind} padding_idx={padding}"
    words = f"dy={dims(*places, d)} indices={dims(*places)}:{kind} size={rows}x{d} padding_idx={padding}"
    return f"embedding_backward {words}"


LINES: dict[str, Line] = {n: partial(_embedding, n) for n in ("embedding", "embedding_backward")}
