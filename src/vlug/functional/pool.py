"""Eager calls: pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vlug.errors import BadInput
from vlug.functional.base import (
    Array,
    Ints,
    Padding,
    Step,
    arg,
    chain,
    integers,
    one,
    pair,
    window_of,
)

__all__ = ["avg_pool2d", "avg_pool2d_backward", "max_pool2d", "max_pool2d_backward"]


def max_pool2d(
    x: Any,
    window: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil: bool = False,
    return_index: bool = False,
    out: Any = None,
) -> Any:
    """The largest of each window; with return_index also where it is (int64, flat in the plane H·W).

    stride: the window's by default.
    """
    a = arg(x, "x", 4)
    at = window_of(a.shape, pair(window, "window"), window if stride is None else stride, padding, dilation)
    names = ("y", "index") if return_index else ("y",)
    step: Step = ("max_pool", ("x",), at | {"window": pair(window, "window"), "ceil": bool(ceil)})
    made = chain([step], {"x": a}, {"y": out}, names)
    return tuple(made) if return_index else made[0]


def max_pool2d_backward(
    dy: Any,
    index: Any,
    size: Sequence[int],
    window: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    out: Any = None,
) -> Array:
    """dx of max_pool2d's dy and index; size: H, W of dx."""
    g, where, size = arg(dy, "dy", 4), arg(index, "index", 4), pair(size, "size")
    step = window if stride is None else stride
    at = window_of((0, 0, *size), pair(window, "window"), step, padding, dilation)
    values = where.numpy()
    if where.size and where.dtype.name == "i64":
        low, high = int(values.min()), int(values.max())
        if low < -1 or high >= math.prod(size):
            bad = low if low < -1 else high
            allowed = f"-1 to {math.prod(size) - 1}"
            raise BadInput(f"max_pool2d_backward: index holds {bad}, allowed are {allowed}")
    arrays = {"dy": g, "index": where}
    return one("max_pool_backward", arrays, "dx", out, size=size, window=pair(window, "window"), **at)


def avg_pool2d(
    x: Any,
    window: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil: bool = False,
    count_include_pad: bool = True,
    divisor: int = 0,
    out: Any = None,
) -> Array:
    """The mean of each window: its sum over `divisor` if that is not 0, else over its elements."""
    a = arg(x, "x", 4)
    at = window_of(a.shape, pair(window, "window"), window if stride is None else stride, padding, 1)
    at |= {"ceil": bool(ceil), "count_include_pad": bool(count_include_pad), **integers(divisor=divisor)}
    del at["dilation"]
    return one("avg_pool", {"x": a}, "y", out, window=pair(window, "window"), **at)


def avg_pool2d_backward(
    dy: Any,
    size: Sequence[int],
    window: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil: bool = False,
    count_include_pad: bool = True,
    divisor: int = 0,
    out: Any = None,
) -> Array:
    """dx of avg_pool2d's dy; size: H, W of dx."""
    size = pair(size, "size")
    at = window_of((0, 0, *size), pair(window, "window"), window if stride is None else stride, padding, 1)
    at |= {"ceil": bool(ceil), "count_include_pad": bool(count_include_pad), **integers(divisor=divisor)}
    del at["dilation"]
    arrays = {"dy": arg(dy, "dy", 4)}
    return one("avg_pool_backward", arrays, "dx", out, size=size, window=pair(window, "window"), **at)
