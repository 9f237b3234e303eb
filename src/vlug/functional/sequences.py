"""Eager calls: losses of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from vlug.errors import BadInput, ShapeError
from vlug.functional.base import Array, arg, chain, integer, one, ports_of
from vlug.runtime import handle

__all__ = ["ctc_loss", "ctc_loss_backward"]

_REDUCTIONS = ("mean", "sum", "none")


def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    *,
    reduction: str = "mean",
    zero_infinity: bool = False,
    out: Any = None,
) -> Array:
    """-log of the probability of the targets, over all alignments.

    log_probs: (T, N, C), or (T, C) of one sequence. targets: labels, (N, S) padded or all of them in a row.
    Lengths: (N,), or one number of one sequence. reduction: mean (each loss over its target's length,
    then over the sequences), sum, or none. A target that no alignment fits: inf, or 0 with zero_infinity.
    """
    arrays, at = _checked("ctc_loss", log_probs, targets, input_lengths, target_lengths, blank)
    at["zero_infinity"] = bool(zero_infinity)
    _reduction(reduction)
    each = out if reduction == "none" and len(np.shape(log_probs)) == 3 else None
    loss = chain([("ctc_loss", ports_of("ctc_loss"), at)], arrays, {"loss": each}, ("loss",))[0]
    if reduction == "none" and each is not None:
        return loss
    with np.errstate(invalid="ignore"):
        if reduction == "mean":
            lengths = np.maximum(arrays["target_lengths"].numpy(), 1)
            loss = (
                np.asarray((loss / lengths).mean(), loss.dtype)
                if loss.size
                else np.asarray(np.nan, loss.dtype)
            )
        elif reduction == "sum":
            loss = np.asarray(loss.sum(), loss.dtype)
        else:
            loss = loss[0] if arrays["x"].numpy().ndim != len(np.shape(log_probs)) else loss
    return _given(np.asarray(loss), out)


def ctc_loss_backward(
    dloss: Any,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    *,
    reduction: str = "mean",
    zero_infinity: bool = False,
    out: Any = None,
) -> Array:
    """The gradient of ctc_loss's dloss by log_probs that a log-softmax has made (PyTorch's form of it).

    dloss: a scalar, or one a sequence for reduction none.
    """
    arrays, at = _checked("ctc_loss_backward", log_probs, targets, input_lengths, target_lengths, blank)
    at["zero_infinity"] = bool(zero_infinity)
    _reduction(reduction)
    x = arrays["x"]
    n = x.shape[1]
    d = np.asarray(arg(dloss, "dloss").numpy())
    want = (n,) if reduction == "none" and len(np.shape(log_probs)) == 3 else ()
    if d.shape != want:
        raise ShapeError(f"dloss: {d.shape} must be {want} for reduction {reduction}")
    if reduction == "mean":
        d = d / np.maximum(arrays["target_lengths"].numpy(), 1) / max(n, 1)
    each = np.ascontiguousarray(np.broadcast_to(d, (n,)), x.dtype.numpy)
    arrays = {"dloss": arg(each, "dloss"), **arrays}
    batched = len(np.shape(log_probs)) == 3
    dx = one("ctc_loss_backward", arrays, "dx", out if batched else None, **at)
    return dx if batched else _given(dx[:, 0], out)


def _given(value: Array, out: Any) -> Array:
    if out is None:
        return value
    to = handle.array(out, "out", True).numpy()
    if to.shape != value.shape or to.dtype != value.dtype:
        raise ShapeError(f"out: {to.dtype} {to.shape} must be {value.dtype} {value.shape}")
    to[...] = value
    return to


def _reduction(reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        raise BadInput(f"reduction: {reduction!r} must be one of {', '.join(_REDUCTIONS)}")


def _lengths(value: Any, name: str) -> Array:
    a = np.atleast_1d(
        np.asarray(value if isinstance(value, (int, tuple, list)) else arg(value, name).numpy())
    )
    if a.dtype.kind not in "iu" and a.size:
        raise BadInput(f"{name}: {a.dtype} must be integers")
    return np.ascontiguousarray(a, np.int64)


def _checked(
    name: str, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int
) -> tuple[dict[str, handle.Array], dict[str, Any]]:
    """The operands with a batch dimension, their values checked."""
    x = arg(log_probs, "log_probs").numpy()
    if x.ndim == 2:
        x = x[:, None]
    if x.ndim != 3:
        raise ShapeError(f"log_probs: {x.shape} must have 3 dimensions, T, N, C, or 2, T, C")
    steps, n, classes = x.shape
    target = np.asarray(arg(targets, "targets").numpy())
    if target.dtype.kind not in "iu" or target.ndim not in (1, 2):
        raise BadInput(f"targets: {target.dtype} {target.shape} must be integers, (N, S) or (labels)")
    target = target.astype(np.int64, copy=False)
    if len(np.shape(log_probs)) == 2 and target.ndim == 1:
        target = target[None]
    t, s = _lengths(input_lengths, "input_lengths"), _lengths(target_lengths, "target_lengths")
    most = target.shape[-1]
    for what, each, top in (("input_lengths", t, steps), ("target_lengths", s, most)):
        if each.shape != (n,):
            raise ShapeError(f"{what}: {each.shape} must be ({n},), one a sequence")
        bad = each[(each < 0) | (each > top)]
        if bad.size:
            raise BadInput(f"{name}: {what} hold {bad[0]}, allowed are 0 to {top}")
    if target.ndim == 1 and s.sum() != most:
        raise BadInput(f"{name}: target_lengths add up to {s.sum()}, targets has {most} labels")
    if target.ndim == 2 and target.shape[0] != n:
        raise ShapeError(f"targets: {target.shape} must be ({n}, labels)")
    counted = target if target.ndim == 1 else target[np.arange(most) < s[:, None]]
    bad = counted[(counted < 0) | (counted >= classes)]
    if bad.size:
        raise BadInput(f"{name}: targets hold {bad[0]}, allowed are 0 to {classes - 1}")
    at = {"blank": integer(blank, "blank")}
    operands = {"x": x, "target": target, "input_lengths": t, "target_lengths": s}
    return {k: arg(v, k) for k, v in operands.items()}, at
