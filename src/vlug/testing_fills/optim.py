"""Fills of optimiser steps: squares that are not negative, rates and counts that mean something."""

from __future__ import annotations

import numpy as np

from vlug.testing_fills.base import Fit, Inputs

__all__ = ["EDGES", "FITS"]

#: What the scalars may be (the first: no weight decay, no momentum).
SCALARS = {
    "step": (1.0, 7.0, 1234.0),
    "lr": (0.001, 0.1),
    "beta1": (0.9, 0.5, 0.0),
    "beta2": (0.999, 0.95),
    "eps": (1e-8, 1e-3),
    "weight_decay": (0.0, 0.01, 0.3),
    "momentum": (0.9, 0.5),
    "dampening": (0.0, 0.1),
}


def _step(at: Inputs) -> None:
    for port, choices in SCALARS.items():
        if port in at.ports:
            at.put(port, at.rng.choice(choices))
    if at.op.name == "sgd_step" and at.ports.get("buf") is None and not at.op.first:
        at.put("momentum", 0.0)
    for port in ("v", "vmax"):
        squares = at.get(port)
        if squares is not None:
            at.put(port, np.abs(squares))


FITS: dict[str, Fit] = {"sgd_step": _step, "adam_step": _step}
EDGES: dict[str, tuple[str, ...]] = {"sgd_step": ("p", "g"), "adam_step": ("p", "g")}
