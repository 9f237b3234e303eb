"""Random problem lines: losses element by element."""

from __future__ import annotations

import random
from functools import partial

from vlug.testing_lines.base import Line, dims, shape

__all__ = ["LINES"]

_WORDS: dict[str, tuple[str, ...]] = {
    "mse_loss": ("",),
    "l1_loss": ("",),
    "smooth_l1_loss": ("", " beta=0.0", " beta=0.3"),
    "huber_loss": ("", " delta=0.3"),
    "kl_div": ("", " log_target=1"),
    "bce_with_logits": ("",),
}


def _loss(name: str, backward: bool, r: random.Random) -> str:
    dim = shape(r)
    mode = r.choice(["mean", "sum", "none"])
    words = [f"x={dims(*dim)} target={dims(*dim)}"]
    if name == "bce_with_logits":
        for port in ("weight", "pos_weight"):
            if r.random() < 0.5:
                kept = [d if r.random() < 0.6 else 1 for d in dim][r.randint(0, len(dim)) :]
                words.append(f"{port}={dims(*kept)}")
    words.append(f"reduction={mode}{r.choice(_WORDS[name])}")
    if not backward:
        return f"{name} {' '.join(words)}"
    words.insert(0, f"dloss={dims(*dim) if mode == 'none' else 'scalar'}")
    return f"{name}_backward {' '.join(words)}{r.choice(['', '', ' -> dx', ' -> _, dtarget'])}"


LINES: dict[str, Line] = {
    **{n: partial(_loss, n, False) for n in _WORDS},
    **{f"{n}_backward": partial(_loss, n, True) for n in _WORDS},
}
