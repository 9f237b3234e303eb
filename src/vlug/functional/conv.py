"""Eager calls: convolution."""

from __future__ import annotations

from typing import Any

from vlug.functional.base import (
    Array,
    Ints,
    Padding,
    Step,
    arg,
    chain,
    integers,
    one,
    window_of,
)

__all__ = ["conv2d", "conv2d_backward"]


def conv2d(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    out: Any = None,
) -> Array:
    """y (N, K, P, Q) of x (N, C, H, W) and w (K, C/groups, R, S), plus bias (K) if given.

    padding: one int, one a dimension, ((top, bottom), (left, right)), "valid" (none) or "same" (as many
    outputs as inputs over the stride, the odd element after).
    """
    a, weight = arg(x, "x", 4), arg(w, "w", 4)
    attributes = window_of(a.shape, weight.shape[2:], stride, padding, dilation) | integers(groups=groups)
    steps: list[Step] = [("conv_fprop", ("x", "w"), attributes)]
    arrays = {"x": a, "w": weight}
    if bias is not None:
        arrays["bias"] = arg(bias, "bias", 1)
        steps.append(("bias", ("", "bias"), {}))
    return chain(steps, arrays, {"y": out})[0]


def conv2d_backward(
    dy: Any,
    x: Any,
    w: Any,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> tuple[Array, Array, Array]:
    """dx, dw and dbias of conv2d's dy."""
    g, a, weight = arg(dy, "dy", 4), arg(x, "x", 4), arg(w, "w", 4)
    at = window_of(a.shape, weight.shape[2:], stride, padding, dilation) | integers(groups=groups)
    dx = one("conv_dgrad", {"dy": g, "w": weight}, "dx", None, size=a.shape[2:], **at)
    dw = one("conv_wgrad", {"dy": g, "x": a}, "dw", None, size=weight.shape[2:], **at)
    return dx, dw, one("reduction", {"x": g}, "y", None, axes=(0, 2, 3))
