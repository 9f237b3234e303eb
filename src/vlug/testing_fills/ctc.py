"""Fills of CTC: log-probabilities, labels that are classes, lengths that fit, now and then no alignment."""

from __future__ import annotations

import numpy as np

from vlug.ops.ctc import CtcLoss
from vlug.testing_fills.base import Fit, Inputs, held

__all__ = ["EDGES", "FITS"]


def _ctc(at: Inputs) -> None:
    x, rng = at.tensor("x"), at.rng
    steps, n, classes = x.dim
    target = at.tensor("target")
    given = at.get("x")
    if given is not None and given.size:
        top = given.max(axis=2, keepdims=True)
        at.put("x", held(given - top - np.log(np.exp(given - top).sum(2, keepdims=True)), x.dtype))
    labels = rng.integers(0, classes, target.dim)
    if classes > 1:
        labels = np.where(labels == at.op.blank, (labels + 1) % classes, labels)
    at.put("target", labels)
    at.put("input_lengths", np.where(rng.random(n) < 0.5, steps, rng.integers(0, steps + 1, n)))
    if target.rank == 2:
        most = target.dim[1]
        at.put("target_lengths", np.where(rng.random(n) < 0.5, most, rng.integers(0, most + 1, n)))
    elif at.tensor("target_lengths").stride == (0,):  # one length for all
        at.put("target_lengths", np.full(n, target.dim[0] // max(n, 1)))
    elif n:
        cuts = np.sort(rng.integers(0, target.dim[0] + 1, n - 1))
        at.put("target_lengths", np.diff(np.concatenate([[0], cuts, [target.dim[0]]])))
    if "alpha" in at.ports and at.get("alpha") is not None:
        ins = [at.get(p) for p in ("x", "target", "input_lengths", "target_lengths")]
        loss, alpha = CtcLoss(at.op.blank).reference(*ins)
        at.put("alpha", alpha)
        if "loss" in at.ports and at.get("loss") is not None:
            at.put("loss", loss)


FITS: dict[str, Fit] = {"ctc_loss": _ctc, "ctc_loss_backward": _ctc}
EDGES: dict[str, tuple[str, ...]] = {"ctc_loss": ("x",), "ctc_loss_backward": ("dloss",)}
