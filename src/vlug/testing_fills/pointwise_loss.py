"""Fills of losses element by element: targets that are probabilities, weights that are positive."""

from __future__ import annotations

import numpy as np

from vlug.testing_fills.base import Fit, Inputs

__all__ = ["EDGES", "FITS"]


def _kl_div(at: Inputs) -> None:
    t = at.get("target")
    if t is not None and not at.op.log_target:
        at.put("target", np.where(at.rng.random(t.shape) < 0.1, 0, np.abs(t)))


def _bce(at: Inputs) -> None:
    t = at.get("target")
    if t is not None:
        at.put("target", at.rng.choice([0.0, 0.25, 1.0], t.shape))
    for port in ("weight", "pos_weight"):
        w = at.get(port)
        if w is not None:
            at.put(port, np.abs(w) + 0.25)


FITS: dict[str, Fit] = {
    "bce_with_logits": _bce,
    "bce_with_logits_backward": _bce,
    "kl_div": _kl_div,
    "kl_div_backward": _kl_div,
}
EDGES: dict[str, tuple[str, ...]] = dict.fromkeys(FITS, ("dloss", "x"))
