"""Random problem lines: CTC."""

from __future__ import annotations

import random
from functools import partial

from vlug.testing_lines.base import Line, dims

__all__ = ["LINES"]


def _ctc(name: str, r: random.Random) -> str:
    t, n, c, s = r.randint(0, 14), r.randint(0, 4), r.choice([1, 2, 3, 9, 40]), r.choice([0, 1, 2, 3, 5, 9])
    padded = r.random() < 0.6
    target = dims(n, s) if padded else dims(n * min(s, 3))
    words = [f"x={dims(t, n, c)} target={target}:i64 input_lengths={n}:i64 target_lengths={n}:i64"]
    if name == "ctc_loss_backward":
        words.insert(0, f"dloss={n}")
        width = 2 * (s if padded else n * min(s, 3)) + 1
        words += [f"alpha={dims(n, t, width)}", f"loss={n}"][: r.randint(0, 2)]
        words += [f"of_softmax={r.randint(0, 1)}"]
    words += [f"blank={r.randrange(c)}", f"zero_infinity={r.randint(0, 1)}"]
    return f"{name} {' '.join(words)}"


LINES: dict[str, Line] = {n: partial(_ctc, n) for n in ("ctc_loss", "ctc_loss_backward")}
