"""Eager calls: group norm, instance norm and their backward."""

from __future__ import annotations

from typing import Any

from vlug.functional.base import Array, Step, args, chain, floats, integer, ports_of

__all__ = ["group_norm", "group_norm_backward", "instance_norm", "instance_norm_backward"]


def group_norm(
    x: Any,
    num_groups: int,
    scale: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    out: Any = None,
    statistics: bool = False,
) -> Any:
    """scale · (x - mean) · inv_std + bias, the channels (dimension 1) making num_groups groups.

    statistics: also mean and inv_std = 1/sqrt(biased variance + eps), (N, num_groups): (y, mean, inv_std).
    """
    at = {"groups": integer(num_groups, "num_groups"), **floats(eps=eps)}
    return _forward("groupnorm", args(x=x, scale=scale, bias=bias), at, out, statistics)


def group_norm_backward(
    dy: Any, x: Any, num_groups: int, mean: Any, inv_std: Any, scale: Any = None
) -> tuple[Array, Array, Array]:
    """Gradients of x, scale and bias, of dy and what group_norm(…, statistics=True) gave."""
    arrays = args(dy=dy, x=x, scale=scale, mean=mean, inv_std=inv_std)
    return _backward("groupnorm_backward", arrays, {"groups": integer(num_groups, "num_groups")})


def instance_norm(
    x: Any,
    scale: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    out: Any = None,
    statistics: bool = False,
) -> Any:
    """scale · (x - mean) · inv_std + bias, each plane of each image with its own mean and variance.

    statistics: also mean and inv_std, (N, C, 1, …): (y, mean, inv_std).
    """
    arrays = args(x=x, scale=scale, bias=bias)
    return _forward("instancenorm", arrays, floats(eps=eps), out, statistics)


def instance_norm_backward(
    dy: Any, x: Any, mean: Any, inv_std: Any, scale: Any = None
) -> tuple[Array, Array, Array]:
    """Gradients of x, scale and bias, of dy and what instance_norm(…, statistics=True) gave."""
    arrays = args(dy=dy, x=x, scale=scale, mean=mean, inv_std=inv_std)
    return _backward("instancenorm_backward", arrays, {})


def _forward(name: str, arrays: dict[str, Any], at: dict[str, Any], out: Any, statistics: bool) -> Any:
    names = ["y", "mean", "inv_std"] if statistics else ["y"]
    results = chain([(name, ports_of(name), at)], arrays, {"y": out}, names)
    return tuple(results) if statistics else results[0]


def _backward(name: str, arrays: dict[str, Any], at: dict[str, Any]) -> tuple[Array, Array, Array]:
    step: Step = (name, ports_of(name), at)
    dx, dscale, dbias = chain([step], arrays, {}, ("dx", "dscale", "dbias"))
    return dx, dscale, dbias
