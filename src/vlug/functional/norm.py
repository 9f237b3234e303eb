"""Eager calls: normalisation."""

from __future__ import annotations

from typing import Any

from vlug.functional.base import (
    Array,
    Step,
    args,
    chain,
    floats,
    one,
    ports_of,
)

__all__ = ["batch_norm", "batch_norm_backward", "batch_norm_training"]


def batch_norm(
    x: Any, mean: Any, var: Any, scale: Any = None, bias: Any = None, *, eps: float = 1e-5, out: Any = None
) -> Array:
    """Inference: scale · (x - mean) / sqrt(var + eps) + bias, each channel (dimension 1) with its own."""
    arrays = args(x=x, mean=mean, var=var, scale=scale, bias=bias)
    return one("batchnorm_inference", arrays, "y", out, **floats(eps=eps))


def batch_norm_training(
    x: Any,
    scale: Any = None,
    bias: Any = None,
    running_mean: Any = None,
    running_var: Any = None,
    *,
    eps: float = 1e-5,
    momentum: float = 0.1,
    unbiased: bool = True,
    out: Any = None,
) -> tuple[Array, Array, Array]:
    """y, mean and inv_std = 1/sqrt(biased variance + eps) of the batch. Running statistics, where given, are
    updated in place: (1 - momentum) · old + momentum · new, the new variance by n/(n-1) if `unbiased`.
    """
    arrays = args(x=x, scale=scale, bias=bias, running_mean=running_mean, running_var=running_var)
    at = {**floats(eps=eps, momentum=momentum), "unbiased": bool(unbiased)}
    outs = {"y": out, "next_running_mean": running_mean, "next_running_var": running_var}
    names = ["y", "mean", "inv_std"]
    if running_mean is not None and running_var is not None:
        names += ["next_running_mean", "next_running_var"]
    y, mean, inv_std, *_ = chain([("batchnorm", ports_of("batchnorm"), at)], arrays, outs, names)
    return y, mean, inv_std


def batch_norm_backward(
    dy: Any, x: Any, scale: Any, mean: Any, inv_std: Any, *, training: bool = True
) -> tuple[Array, Array, Array]:
    """dx, dscale, dbias of dy and what batch_norm_training gave (training=False: they are constants)."""
    arrays = args(dy=dy, x=x, scale=scale, mean=mean, inv_std=inv_std)
    step: Step = ("batchnorm_backward", ports_of("batchnorm_backward"), {"training": bool(training)})
    dx, dscale, dbias = chain([step], arrays, {}, ("dx", "dscale", "dbias"))
    return dx, dscale, dbias
