"""Eager calls: pointwise calls."""

from __future__ import annotations

import math
from typing import Any

from vlug.functional.base import (
    Array,
    arg,
    floats,
    one,
    operands,
)

__all__ = ["add", "mul", "relu", "relu_backward"]


def add(a: Any, b: Any, *, out: Any = None) -> Array:
    """a + b with NumPy broadcasting; one may be a Python number, which takes the other's dtype."""
    return one("add", operands(a=a, b=b), "y", out)


def mul(a: Any, b: Any, *, out: Any = None) -> Array:
    """a · b with NumPy broadcasting; one may be a Python number, which takes the other's dtype."""
    return one("mul", operands(a=a, b=b), "y", out)


def relu(
    x: Any,
    *,
    negative_slope: float = 0.0,
    lower_clip: float = 0.0,
    upper_clip: float = math.inf,
    out: Any = None,
) -> Array:
    """x between the clips, lower_clip + negative_slope·(x - lower_clip) below, upper_clip above."""
    at = floats(negative_slope=negative_slope, lower_clip=lower_clip, upper_clip=upper_clip)
    return one("relu", {"x": arg(x, "x")}, "y", out, **at)


def relu_backward(
    dy: Any,
    x: Any,
    *,
    negative_slope: float = 0.0,
    lower_clip: float = 0.0,
    upper_clip: float = math.inf,
    out: Any = None,
) -> Array:
    """dx of relu's dy and its x (or y)."""
    at = floats(negative_slope=negative_slope, lower_clip=lower_clip, upper_clip=upper_clip)
    return one("relu_backward", {"dy": arg(dy, "dy"), "x": arg(x, "x")}, "dx", out, **at)
