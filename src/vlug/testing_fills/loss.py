"""Fills of losses: classes in range, some of them ignored."""

from __future__ import annotations

import numpy as np

from vlug.testing_fills.base import Fit, Inputs, held

__all__ = ["EDGES", "FITS"]


def _cross_entropy(at: Inputs) -> None:
    weight, x = at.get("weight"), at.get("x")
    if weight is not None:
        at.put("weight", np.abs(weight) + 0.25)
    if at.get("target") is not None:
        dim = at.tensor("target").dim
        classes = at.rng.integers(0, max(at.tensor("x").dim[1], 1), dim)
        at.put("target", np.where(at.rng.random(dim) < 0.15, at.op.ignore_index, classes))
    if at.get("lse") is not None and x is not None:
        at.put("lse", np.log(np.exp(held(x, at.tensor("x").dtype)).sum(axis=1)))


def _nll(at: Inputs) -> None:
    weight = at.get("weight")
    if weight is not None:
        at.put("weight", np.abs(weight) + 0.25)
    size = at.op.size if at.op.name == "nll_loss_backward" else at.tensor("x").dim
    c, dim = size[min(1, len(size) - 1)], at.tensor("target").dim
    ignored = at.rng.random(dim) < (0.15 if c else 2)
    at.put("target", np.where(ignored, at.op.ignore_index, at.rng.integers(0, max(c, 1), dim)))
    if "total" in at.ports and at.get("total") is not None:
        at.put("total", np.abs(at.rng.standard_normal(())) + 1)


FITS: dict[str, Fit] = {
    "cross_entropy": _cross_entropy,
    "cross_entropy_backward": _cross_entropy,
    "nll_loss": _nll,
    "nll_loss_backward": _nll,
}
EDGES: dict[str, tuple[str, ...]] = {
    "cross_entropy": ("x",),
    "cross_entropy_backward": ("x",),
    "nll_loss": ("x",),
    "nll_loss_backward": ("dloss",),
}
