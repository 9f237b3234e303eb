"""Eager calls: reductions over axes and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vlug.errors import BadInput
from vlug.functional.base import (
    Array,
    Ints,
    arg,
    args,
    axes_of,
    one,
    sizes_of,
)

__all__ = [
    "amax",
    "amax_backward",
    "amin",
    "amin_backward",
    "mean",
    "mean_backward",
    "prod",
    "prod_backward",
    "reduce",
    "reduce_backward",
    "sum",
    "sum_backward",
    "vector_norm",
    "vector_norm_backward",
]

_NORMS = {1: "norm1", 2: "norm2", math.inf: "amax"}


def sum(x: Any, axes: Ints = (), *, keepdims: bool = False, out: Any = None) -> Array:
    """Sum over axes (all if none are given)."""
    return one("reduction", {"x": arg(x, "x")}, "y", out, axes=axes_of(axes), keepdim=bool(keepdims))


def mean(x: Any, axes: Ints = (), *, keepdims: bool = False, out: Any = None) -> Array:
    """Mean over axes (all if none are given); NaN of nothing."""
    at = {"mode": "mean", "axes": axes_of(axes), "keepdim": bool(keepdims)}
    return one("reduction", {"x": arg(x, "x")}, "y", out, **at)


def sum_backward(
    dy: Any, size: Sequence[int], axes: Ints = (), *, keepdims: bool = False, out: Any = None
) -> Array:
    """dx of sum's dy; size: the dims of sum's x."""
    at = {"size": sizes_of(size, "size"), "axes": axes_of(axes), "keepdim": bool(keepdims)}
    return one("reduction_backward", {"dy": arg(dy, "dy")}, "dx", out, **at)


def mean_backward(
    dy: Any, size: Sequence[int], axes: Ints = (), *, keepdims: bool = False, out: Any = None
) -> Array:
    """dx of mean's dy; size: the dims of mean's x."""
    at = {"mode": "mean", "size": sizes_of(size, "size"), "axes": axes_of(axes), "keepdim": bool(keepdims)}
    return one("reduction_backward", {"dy": arg(dy, "dy")}, "dx", out, **at)


def reduce(x: Any, mode: str, axes: Ints = (), *, keepdims: bool = False, out: Any = None) -> Array:
    """x reduced over axes (all if none are given).

    mode: add, mean, mul, mul_no_zeros (the product of what is not 0), min, max, amax (largest magnitude),
    norm1, norm2.
    """
    at = {"mode": mode, "axes": axes_of(axes), "keepdim": bool(keepdims)}
    return one("reduction", {"x": arg(x, "x")}, "y", out, **at)


def reduce_backward(
    dy: Any, x: Any, y: Any, mode: str, axes: Ints = (), *, keepdims: bool = False, out: Any = None
) -> Array:
    """dx of reduce's dy, from its x and its result y. Of min, max and amax ties share dy evenly."""
    from vlug.ops.reduction import OF_X, OF_Y

    given = args(dy=dy, x=arg(x, "x"), y=y)
    used = {n: a for n, a in given.items() if n == "dy" or mode in (OF_X if n == "x" else OF_Y)}
    at = {"mode": mode, "size": tuple(given["x"].shape), "axes": axes_of(axes), "keepdim": bool(keepdims)}
    return one("reduction_backward", used, "dx", out, **at)


def prod(x: Any, axes: Ints = (), *, keepdims: bool = False, out: Any = None) -> Array:
    """Product over axes (all if none are given)."""
    return reduce(x, "mul", axes, keepdims=keepdims, out=out)


def prod_backward(dy: Any, x: Any, axes: Ints = (), *, keepdims: bool = False, out: Any = None) -> Array:
    """dx of prod's dy: dy times the product of the other elements."""
    return reduce_backward(dy, x, None, "mul", axes, keepdims=keepdims, out=out)


def amax(x: Any, axes: Ints = (), *, keepdims: bool = False, out: Any = None) -> Array:
    """Largest element over axes (all if none are given); NaN if there is one."""
    return reduce(x, "max", axes, keepdims=keepdims, out=out)


def amax_backward(
    dy: Any, x: Any, y: Any, axes: Ints = (), *, keepdims: bool = False, out: Any = None
) -> Array:
    """dx of amax's dy, shared evenly by the elements of x that equal its result y."""
    return reduce_backward(dy, x, y, "max", axes, keepdims=keepdims, out=out)


def amin(x: Any, axes: Ints = (), *, keepdims: bool = False, out: Any = None) -> Array:
    """Smallest element over axes (all if none are given); NaN if there is one."""
    return reduce(x, "min", axes, keepdims=keepdims, out=out)


def amin_backward(
    dy: Any, x: Any, y: Any, axes: Ints = (), *, keepdims: bool = False, out: Any = None
) -> Array:
    """dx of amin's dy, shared evenly by the elements of x that equal its result y."""
    return reduce_backward(dy, x, y, "min", axes, keepdims=keepdims, out=out)


def vector_norm(x: Any, ord: float = 2, axes: Ints = (), *, keepdims: bool = False, out: Any = None) -> Array:
    """Norm over axes: ord 1 (sum of magnitudes), 2 (Euclid's) or inf (largest magnitude)."""
    return reduce(x, _norm(ord), axes, keepdims=keepdims, out=out)


def vector_norm_backward(
    dy: Any, x: Any, y: Any, ord: float = 2, axes: Ints = (), *, keepdims: bool = False, out: Any = None
) -> Array:
    """dx of vector_norm's dy, from its x and its result y."""
    return reduce_backward(dy, x, y, _norm(ord), axes, keepdims=keepdims, out=out)


def _norm(ord: float) -> str:
    if not isinstance(ord, (int, float)) or ord not in _NORMS:
        raise BadInput(f"ord: {ord!r} must be 1, 2 or inf")
    return _NORMS[ord]
