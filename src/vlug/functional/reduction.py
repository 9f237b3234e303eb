"""Eager calls: sums and means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.functional.base import (
    Array,
    Ints,
    arg,
    axes_of,
    one,
)

__all__ = ["mean", "mean_backward", "sum", "sum_backward"]


def sum(x: Any, axes: Ints = (), *, keepdims: bool = False, out: Any = None) -> Array:
    """Sum over axes (all if none are given)."""
    return one("reduction", {"x": arg(x, "x")}, "y", out, axes=axes_of(axes), keepdim=bool(keepdims))


def mean(x: Any, axes: Ints = (), *, keepdims: bool = False, out: Any = None) -> Array:
    """Mean over axes (all if none are given); NaN of nothing."""
    at = {"mode": "mean", "axes": axes_of(axes), "keepdim": bool(keepdims)}
    return one("reduction", {"x": arg(x, "x")}, "y", out, **at)


def sum_backward(dy: Any, shape: Sequence[int], axes: Ints = (), *, keepdims: bool = False) -> Array:
    """dx, of `shape`, of sum's dy."""
    at = {"size": tuple(shape), "axes": axes_of(axes), "keepdim": bool(keepdims)}
    return one("reduction_backward", {"dy": arg(dy, "dy")}, "dx", None, **at)


def mean_backward(dy: Any, shape: Sequence[int], axes: Ints = (), *, keepdims: bool = False) -> Array:
    """dx, of `shape`, of mean's dy."""
    at = {"mode": "mean", "size": tuple(shape), "axes": axes_of(axes), "keepdim": bool(keepdims)}
    return one("reduction_backward", {"dy": arg(dy, "dy")}, "dx", None, **at)
