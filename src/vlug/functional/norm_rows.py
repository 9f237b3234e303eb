"""Eager calls: layer norm, RMS norm and their backward."""

from __future__ import annotations

from typing import Any

from vlug.errors import ShapeError
from vlug.functional.base import Array, Ints, Step, args, axes_of, chain, floats, ports_of

__all__ = ["layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward"]


def layer_norm(
    x: Any,
    normalized_shape: Ints,
    scale: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    out: Any = None,
    statistics: bool = False,
) -> Any:
    """scale · (x - mean) · inv_std + bias over the trailing dimensions `normalized_shape`.

    statistics: also mean and inv_std = 1/sqrt(biased variance + eps), of x's rank: (y, mean, inv_std).
    """
    return _forward("layernorm", x, normalized_shape, scale, bias, eps, out, statistics)


def layer_norm_backward(
    dy: Any, x: Any, normalized_shape: Ints, mean: Any, inv_std: Any, scale: Any = None
) -> tuple[Array, Array, Array]:
    """Gradients of x, scale and bias, of dy and what layer_norm(…, statistics=True) gave."""
    arrays = args(dy=dy, x=x, scale=scale, mean=mean, inv_std=inv_std)
    return _backward("layernorm_backward", arrays, normalized_shape)


def rms_norm(
    x: Any,
    normalized_shape: Ints,
    scale: Any = None,
    eps: float | None = None,
    *,
    bias: Any = None,
    out: Any = None,
    statistics: bool = False,
) -> Any:
    """scale · x · inv_std (+ bias), inv_std = 1/sqrt(mean of squares over `normalized_shape` + eps).

    eps: that of the type the arithmetic is done in (2^-23; 2^-52 for f64) unless given, as in PyTorch.
    statistics: also inv_std: (y, inv_std).
    """
    if eps is None:
        eps = 2.0**-52 if args(x=x)["x"].dtype.name == "f64" else 2.0**-23
    return _forward("rmsnorm", x, normalized_shape, scale, bias, eps, out, statistics)


def rms_norm_backward(
    dy: Any, x: Any, normalized_shape: Ints, inv_std: Any, scale: Any = None
) -> tuple[Array, Array, Array]:
    """Gradients of x, scale and bias, of dy and the inv_std of rms_norm(…, statistics=True)."""
    arrays = args(dy=dy, x=x, scale=scale, inv_std=inv_std)
    return _backward("rmsnorm_backward", arrays, normalized_shape)


def _axis(normalized_shape: Ints, dim: tuple[int, ...]) -> int:
    shape = axes_of(normalized_shape)
    if not shape or tuple(dim[-len(shape) :]) != shape:
        raise ShapeError(f"normalized_shape: {shape} must be the last dimensions of x {tuple(dim)}")
    return len(dim) - len(shape)


def _forward(
    name: str, x: Any, shape: Ints, scale: Any, bias: Any, eps: float, out: Any, statistics: bool
) -> Any:
    arrays = args(x=x, scale=scale, bias=bias)
    at = {**floats(eps=eps), "axis": _axis(shape, arrays["x"].shape)}
    names = ["y"]
    if statistics:
        names = ["y", "mean", "inv_std"] if name == "layernorm" else ["y", "inv_std"]
    results = chain([(name, ports_of(name), at)], arrays, {"y": out}, names)
    return tuple(results) if statistics else results[0]


def _backward(name: str, arrays: dict[str, Any], shape: Ints) -> tuple[Array, Array, Array]:
    step: Step = (name, ports_of(name), {"axis": _axis(shape, arrays["x"].shape)})
    dx, dscale, dbias = chain([step], arrays, {}, ("dx", "dscale", "dbias"))
    return dx, dscale, dbias
