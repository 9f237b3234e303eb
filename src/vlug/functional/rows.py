"""Eager calls: softmax and its logarithm."""

from __future__ import annotations

from typing import Any

from vlug.functional.base import (
    Array,
    arg,
    integers,
    one,
)

__all__ = ["log_softmax", "log_softmax_backward", "softmax", "softmax_backward"]


def softmax(x: Any, axis: int = -1, *, out: Any = None) -> Array:
    """exp(x) / Σ exp(x) along axis."""
    return one("softmax", {"x": arg(x, "x")}, "y", out, **integers(axis=axis))


def softmax_backward(dy: Any, y: Any, axis: int = -1, *, out: Any = None) -> Array:
    """dx of softmax's dy and y."""
    arrays = {"dy": arg(dy, "dy"), "y": arg(y, "y")}
    return one("softmax_backward", arrays, "dx", out, **integers(axis=axis))


def log_softmax(x: Any, axis: int = -1, *, out: Any = None) -> Array:
    """x - log Σ exp(x) along axis."""
    return one("log_softmax", {"x": arg(x, "x")}, "y", out, **integers(axis=axis))


def log_softmax_backward(dy: Any, y: Any, axis: int = -1, *, out: Any = None) -> Array:
    """dx of log_softmax's dy and y."""
    arrays = {"dy": arg(dy, "dy"), "y": arg(y, "y")}
    return one("log_softmax_backward", arrays, "dx", out, **integers(axis=axis))
