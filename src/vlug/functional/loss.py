"""Eager calls: losses of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vlug.errors import BadInput
from vlug.functional.base import (
    Array,
    args,
    chain,
    floats,
    integer,
    integers,
    one,
    ports_of,
)
from vlug.runtime import handle

__all__ = ["cross_entropy", "cross_entropy_backward", "nll_loss", "nll_loss_backward"]


def cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    out: Any = None,
) -> Array:
    """The loss of logits x (N, C, spatial…) against classes target (N, spatial…), int64.

    reduction: mean (over the weights of the targets that count), sum, or none (a loss a position).
    """
    arrays = args(x=x, target=target, weight=weight)
    _check_classes("cross_entropy", arrays, ignore_index)
    at = _loss(reduction, ignore_index, label_smoothing)
    return chain([("cross_entropy", ports_of("cross_entropy"), at)], arrays, {"loss": out}, ("loss",))[0]


def cross_entropy_backward(
    dloss: Any,
    x: Any,
    target: Any,
    weight: Any = None,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    out: Any = None,
) -> Array:
    """dx of cross_entropy's dloss (a scalar, or one a position for reduction none)."""
    arrays = args(dloss=dloss, x=x, target=target, weight=weight)
    _check_classes("cross_entropy_backward", arrays, ignore_index)
    return one("cross_entropy_backward", arrays, "dx", out, **_loss(reduction, ignore_index, label_smoothing))


def _loss(reduction: str, ignore_index: int, label_smoothing: float) -> dict[str, Any]:
    return {
        "reduction": reduction,
        **integers(ignore_index=ignore_index),
        **floats(label_smoothing=label_smoothing),
    }


def nll_loss(
    x: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    out: Any = None,
) -> Array:
    """The negative log-likelihood of log-probabilities x, (C) or (N, C, spatial…), for classes target, int64.

    reduction: mean (over the weights of the targets that count), sum, or none (a loss a position).
    """
    arrays = args(x=x, target=target, weight=weight)
    _check_classes("nll_loss", arrays, ignore_index)
    at = {"reduction": reduction, **integers(ignore_index=ignore_index)}
    return chain([("nll_loss", ports_of("nll_loss"), at)], arrays, {"loss": out}, ("loss",))[0]


def nll_loss_backward(
    dloss: Any,
    x: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    out: Any = None,
) -> Array:
    """dx of nll_loss's dloss (a scalar, or one a position for reduction none). Of x only the dims count."""
    arrays = args(dloss=dloss, x=x, target=target, weight=weight)
    _check_classes("nll_loss_backward", arrays, ignore_index)
    at = {"reduction": reduction, "size": tuple(arrays["x"].shape), **integers(ignore_index=ignore_index)}
    return one("nll_loss_backward", {n: a for n, a in arrays.items() if n != "x"}, "dx", out, **at)


def _check_classes(name: str, arrays: Mapping[str, handle.Array], ignore_index: int) -> None:
    ignore_index = integer(ignore_index, "ignore_index")
    target, x = arrays["target"], arrays["x"]
    least = 1 if name.startswith("nll") else 2
    if target.dtype.name != "i64" or len(x.shape) < least or not target.size:
        return  # inference says what is wrong
    t, c = np.asarray(target.numpy(), np.int64), x.shape[min(1, len(x.shape) - 1)]
    bad = (t != ignore_index) & ((t < 0) | (t >= c))
    if bad.any():
        allowed = f"0 to {c - 1} and {ignore_index} (ignored)"
        raise BadInput(f"{name}: target holds {t[bad][0]}, allowed are {allowed}")
