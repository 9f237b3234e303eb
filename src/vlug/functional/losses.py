"""Eager calls: losses of x against a target, element by element, and their gradients."""

from __future__ import annotations

from typing import Any

from vlug.errors import BadInput
from vlug.functional.base import Array, args, chain, floats, one, ports_of

__all__ = [
    "binary_cross_entropy_with_logits",
    "binary_cross_entropy_with_logits_backward",
    "huber_loss",
    "huber_loss_backward",
    "kl_div",
    "kl_div_backward",
    "l1_loss",
    "l1_loss_backward",
    "mse_loss",
    "mse_loss_backward",
    "smooth_l1_loss",
    "smooth_l1_loss_backward",
]


def mse_loss(x: Any, target: Any, *, reduction: str = "mean", out: Any = None) -> Array:
    """(x - target)².

    x and target have the same dims. reduction: mean (over all elements) or sum, both scalars, or none
    (a loss an element).
    """
    return one("mse_loss", args(x=x, target=target), "loss", out, reduction=reduction)


def mse_loss_backward(dloss: Any, x: Any, target: Any, *, reduction: str = "mean", out: Any = None) -> Array:
    """dx of mse_loss's dloss.

    dloss: a scalar, or one an element for reduction none.
    """
    return _dx("mse_loss", args(dloss=dloss, x=x, target=target), out, reduction=reduction)


def l1_loss(x: Any, target: Any, *, reduction: str = "mean", out: Any = None) -> Array:
    """|x - target|.

    x and target have the same dims. reduction: mean (over all elements) or sum, both scalars, or none
    (a loss an element).
    """
    return one("l1_loss", args(x=x, target=target), "loss", out, reduction=reduction)


def l1_loss_backward(dloss: Any, x: Any, target: Any, *, reduction: str = "mean", out: Any = None) -> Array:
    """dx of l1_loss's dloss; 0 where x equals target.

    dloss: a scalar, or one an element for reduction none.
    """
    return _dx("l1_loss", args(dloss=dloss, x=x, target=target), out, reduction=reduction)


def smooth_l1_loss(
    x: Any, target: Any, *, reduction: str = "mean", beta: float = 1.0, out: Any = None
) -> Array:
    """d² / (2 beta) where d = |x - target| is below beta, else d - beta/2.

    x and target have the same dims. reduction: mean (over all elements) or sum, both scalars, or none
    (a loss an element).
    """
    at = {"reduction": reduction, **floats(beta=beta)}
    return one("smooth_l1_loss", args(x=x, target=target), "loss", out, **at)


def smooth_l1_loss_backward(
    dloss: Any, x: Any, target: Any, *, reduction: str = "mean", beta: float = 1.0, out: Any = None
) -> Array:
    """dx of smooth_l1_loss's dloss.

    dloss: a scalar, or one an element for reduction none.
    """
    at = {"reduction": reduction, **floats(beta=beta)}
    return _dx("smooth_l1_loss", args(dloss=dloss, x=x, target=target), out, **at)


def huber_loss(x: Any, target: Any, *, reduction: str = "mean", delta: float = 1.0, out: Any = None) -> Array:
    """d² / 2 where d = |x - target| is below delta, else delta · (d - delta/2).

    x and target have the same dims. reduction: mean (over all elements) or sum, both scalars, or none
    (a loss an element).
    """
    at = {"reduction": reduction, **floats(delta=delta)}
    return one("huber_loss", args(x=x, target=target), "loss", out, **at)


def huber_loss_backward(
    dloss: Any, x: Any, target: Any, *, reduction: str = "mean", delta: float = 1.0, out: Any = None
) -> Array:
    """dx of huber_loss's dloss.

    dloss: a scalar, or one an element for reduction none.
    """
    at = {"reduction": reduction, **floats(delta=delta)}
    return _dx("huber_loss", args(dloss=dloss, x=x, target=target), out, **at)


def kl_div(
    x: Any, target: Any, *, reduction: str = "mean", log_target: bool = False, out: Any = None
) -> Array:
    """target · (log target - x) of log-probabilities x; log_target: target holds log-probabilities too.

    reduction may also be batchmean: the sum over the first dimension's size.
    x and target have the same dims. reduction: mean (over all elements) or sum, both scalars, or none
    (a loss an element).
    """
    at = {"log_target": bool(log_target), "reduction": "sum" if reduction == "batchmean" else reduction}
    arrays = args(x=x, target=target)
    loss = one("kl_div", arrays, "loss", out, **at)
    if reduction == "batchmean":
        loss[...] = loss / max(_batch(arrays["x"].shape), 1)
    return loss


def kl_div_backward(
    dloss: Any, x: Any, target: Any, *, reduction: str = "mean", log_target: bool = False, out: Any = None
) -> Array:
    """dx of kl_div's dloss.

    dloss: a scalar, or one an element for reduction none.
    """
    at = {"log_target": bool(log_target), "reduction": "sum" if reduction == "batchmean" else reduction}
    arrays = args(dloss=dloss, x=x, target=target)
    if reduction == "batchmean":
        d: Any = arrays["dloss"].numpy()
        arrays |= args(dloss=(d / max(_batch(arrays["x"].shape), 1)).astype(d.dtype))
    return _dx("kl_div", arrays, out, **at)


def _batch(shape: tuple[int, ...]) -> int:
    if not shape:
        raise BadInput("reduction: batchmean needs an x of one dimension or more")
    return shape[0]


def binary_cross_entropy_with_logits(
    x: Any,
    target: Any,
    weight: Any = None,
    *,
    reduction: str = "mean",
    pos_weight: Any = None,
    out: Any = None,
) -> Array:
    """Binary cross-entropy of sigmoid(x) for logits x; weight and pos_weight (of target 1) broadcast to x.

    x and target have the same dims. reduction: mean (over all elements) or sum, both scalars, or none
    (a loss an element).
    """
    arrays = args(x=x, target=target, weight=weight, pos_weight=pos_weight)
    return one("bce_with_logits", arrays, "loss", out, reduction=reduction)


def binary_cross_entropy_with_logits_backward(
    dloss: Any,
    x: Any,
    target: Any,
    weight: Any = None,
    *,
    reduction: str = "mean",
    pos_weight: Any = None,
    out: Any = None,
) -> Array:
    """dx of binary_cross_entropy_with_logits's dloss.

    dloss: a scalar, or one an element for reduction none.
    """
    arrays = args(dloss=dloss, x=x, target=target, weight=weight, pos_weight=pos_weight)
    return _dx("bce_with_logits", arrays, out, reduction=reduction)


def _dx(name: str, arrays: Any, out: Any, **attributes: Any) -> Array:
    step = (f"{name}_backward", ports_of(f"{name}_backward"), attributes)
    return chain([step], arrays, {"dx": out}, ("dx",))[0]
