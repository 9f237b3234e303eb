"""Fills of normalisations: statistics that are those of x."""

from __future__ import annotations

import numpy as np

from vlug.testing_fills.base import Fit, Inputs

__all__ = ["EDGES", "FITS"]


def positive(at: Inputs, *ports: str) -> None:
    """Variances, and what else must be above 0."""
    for port in ports:
        given = at.get(port)
        if given is not None:
            at.put(port, np.abs(given) + 0.5)


def _batchnorm_backward(at: Inputs) -> None:
    x = at.get("x")
    if x is None or not x.size:
        positive(at, "inv_std")
        return
    axes = tuple(i for i in range(x.ndim) if i != 1)
    at.put("mean", x.mean(axis=axes))
    at.put("inv_std", 1 / np.sqrt(x.var(axis=axes) + 1e-5))


def _row_norm_backward(at: Inputs) -> None:
    x = at.get("x")
    if x is None or not x.size:
        positive(at, "inv_std")
        return
    axes = tuple(range(at.op.axis, x.ndim))
    mean = x.mean(axis=axes) if "mean" in at.ports else 0.0
    square = (x * x).mean(axis=axes) if "mean" not in at.ports else x.var(axis=axes)
    at.put("mean", mean)
    at.put("inv_std", 1 / np.sqrt(square + 1e-5))


def _group_norm_backward(at: Inputs) -> None:
    x, stat = at.get("x"), at.tensor("mean").dim
    if x is None or not x.size:
        positive(at, "inv_std")
        return
    rows = x.reshape(x.shape[0], stat[1], -1)
    at.put("mean", rows.mean(axis=2))
    at.put("inv_std", 1 / np.sqrt(rows.var(axis=2) + 1e-5))


FITS: dict[str, Fit] = {
    "groupnorm_backward": _group_norm_backward,
    "instancenorm_backward": _group_norm_backward,
    "layernorm_backward": _row_norm_backward,
    "rmsnorm_backward": _row_norm_backward,
    "batchnorm": lambda at: positive(at, "running_var"),
    "batchnorm_inference": lambda at: positive(at, "var"),
    "batchnorm_backward": _batchnorm_backward,
    "batchnorm_inference_backward": lambda at: positive(at, "var"),
}
EDGES: dict[str, tuple[str, ...]] = {
    "batchnorm": ("x",),
    "batchnorm_inference": ("x",),
    "batchnorm_backward": ("dy",),
    "batchnorm_inference_backward": ("dy",),
    "groupnorm": ("x",),
    "groupnorm_backward": ("dy",),
    "instancenorm": ("x",),
    "instancenorm_backward": ("dy",),
    "layernorm": ("x",),
    "layernorm_backward": ("dy",),
    "rmsnorm": ("x",),
    "rmsnorm_backward": ("dy",),
}
