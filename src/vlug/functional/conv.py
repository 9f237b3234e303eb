"""Eager calls: convolution in one, two and three dimensions."""

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

__all__ = ["conv1d", "conv1d_backward", "conv2d", "conv2d_backward", "conv3d", "conv3d_backward"]


def conv1d(
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
    """y (N, K, Q) of x (N, C, W) and w (K, C/groups, S), plus bias (K) if given.

    padding: one int, ((left, right),), "valid" (none) or "same" (as many outputs as inputs over the stride,
    the odd element after).
    """
    return _forward(1, x, w, bias, out, (stride, padding, dilation), groups)


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
    return _forward(2, x, w, bias, out, (stride, padding, dilation), groups)


def conv3d(
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
    """y (N, K, O, P, Q) of x (N, C, D, H, W) and w (K, C/groups, T, R, S), plus bias (K) if given.

    padding: one int, one a dimension, ((front, back), (top, bottom), (left, right)), "valid" (none) or "same"
    (as many outputs as inputs over the stride, the odd element after).
    """
    return _forward(3, x, w, bias, out, (stride, padding, dilation), groups)


def conv1d_backward(
    dy: Any,
    x: Any,
    w: Any,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> tuple[Array, Array, Array]:
    """dx, dw and dbias of conv1d's dy."""
    return _backward(1, dy, x, w, (stride, padding, dilation), groups)


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
    return _backward(2, dy, x, w, (stride, padding, dilation), groups)


def conv3d_backward(
    dy: Any,
    x: Any,
    w: Any,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> tuple[Array, Array, Array]:
    """dx, dw and dbias of conv3d's dy."""
    return _backward(3, dy, x, w, (stride, padding, dilation), groups)


Window = tuple[Ints, Padding, Ints]  # stride, padding, dilation


def _forward(rank: int, x: Any, w: Any, bias: Any, out: Any, window: Window, groups: int) -> Array:
    a, weight = arg(x, "x", rank + 2), arg(w, "w", rank + 2)
    attributes = window_of(a.shape, weight.shape[2:], *window) | integers(groups=groups)
    steps: list[Step] = [("conv_fprop", ("x", "w"), attributes)]
    arrays = {"x": a, "w": weight}
    if bias is not None:
        arrays["bias"] = arg(bias, "bias", 1)
        steps.append(("bias", ("", "bias"), {}))
    return chain(steps, arrays, {"y": out})[0]


def _backward(
    rank: int, dy: Any, x: Any, w: Any, window: Window, groups: int
) -> tuple[Array, Array, Array]:
    g, a, weight = arg(dy, "dy", rank + 2), arg(x, "x", rank + 2), arg(w, "w", rank + 2)
    at = window_of(a.shape, weight.shape[2:], *window) | integers(groups=groups)
    dx = one("conv_dgrad", {"dy": g, "w": weight}, "dx", None, size=a.shape[2:], **at)
    dw = one("conv_wgrad", {"dy": g, "x": a}, "dw", None, size=weight.shape[2:], **at)
    return dx, dw, one("reduction", {"x": g}, "y", None, axes=(0, *range(2, rank + 2)))
