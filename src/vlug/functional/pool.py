"""Eager calls: pooling over one to three spatial dimensions."""

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
    spatial,
    window_of,
)
from vlug.runtime import handle

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool1d_backward",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool2d_backward",
    "adaptive_avg_pool3d",
    "adaptive_avg_pool3d_backward",
    "adaptive_max_pool1d",
    "adaptive_max_pool1d_backward",
    "adaptive_max_pool2d",
    "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d",
    "adaptive_max_pool3d_backward",
    "avg_pool1d",
    "avg_pool1d_backward",
    "avg_pool2d",
    "avg_pool2d_backward",
    "avg_pool3d",
    "avg_pool3d_backward",
    "max_pool1d",
    "max_pool1d_backward",
    "max_pool2d",
    "max_pool2d_backward",
    "max_pool3d",
    "max_pool3d_backward",
]


def _window(
    size: Sequence[int], window: Ints, stride: Ints | None, padding: Padding, dilation: Ints = 1
) -> dict[str, Any]:
    """Attributes of windows over the spatial dims `size`."""
    w = spatial(window, "window", len(size))
    return {"window": w, **window_of((0, 0, *size), w, w if stride is None else stride, padding, dilation)}


def _in_range(index: handle.Array, size: Sequence[int], name: str) -> None:
    """An index that no plane of `size` has is an error."""
    values = index.numpy()
    if index.size and index.dtype.name == "i64":
        low, high = int(values.min()), int(values.max())
        if low < -1 or high >= math.prod(size):
            bad = low if low < -1 else high
            raise BadInput(f"{name}: index holds {bad}, allowed are -1 to {math.prod(size) - 1}")


def _max_pool(x: Any, rank: int, window: Ints, stride: Ints | None, padding: Padding, dilation: Ints,
              ceil: bool, return_index: bool, out: Any) -> Any:  # fmt: skip
    a = arg(x, "x", rank + 2)
    at = _window(a.shape[2:], window, stride, padding, dilation)
    names = ("y", "index") if return_index else ("y",)
    step: Step = ("max_pool", ("x",), at | {"ceil": bool(ceil)})
    made = chain([step], {"x": a}, {"y": out}, names)
    return tuple(made) if return_index else made[0]


def _max_pool_backward(dy: Any, index: Any, size: Ints, rank: int, window: Ints, stride: Ints | None,
                       padding: Padding, dilation: Ints, out: Any) -> Array:  # fmt: skip
    arrays = {"dy": arg(dy, "dy", rank + 2), "index": arg(index, "index", rank + 2)}
    full = spatial(size, "size", rank)
    _in_range(arrays["index"], full, f"max_pool{rank}d_backward")
    at = _window(full, window, stride, padding, dilation)
    return one("max_pool_backward", arrays, "dx", out, size=full, **at)


def _avg(size: Sequence[int], window: Ints, stride: Ints | None, padding: Padding, ceil: bool,
         count_include_pad: bool, divisor: int) -> dict[str, Any]:  # fmt: skip
    at = _window(size, window, stride, padding)
    del at["dilation"]
    return at | {
        "ceil": bool(ceil),
        "count_include_pad": bool(count_include_pad),
        **integers(divisor=divisor),
    }


def _avg_pool(x: Any, rank: int, out: Any, *attributes: Any) -> Array:
    a = arg(x, "x", rank + 2)
    return one("avg_pool", {"x": a}, "y", out, **_avg(a.shape[2:], *attributes))


def _avg_pool_backward(dy: Any, size: Ints, rank: int, out: Any, *attributes: Any) -> Array:
    full = spatial(size, "size", rank)
    at = _avg(full, *attributes)
    return one("avg_pool_backward", {"dy": arg(dy, "dy", rank + 2)}, "dx", out, size=full, **at)


def _adaptive_avg(x: Any, size: Ints, rank: int, out: Any) -> Array:
    a = arg(x, "x", rank + 2)
    return one("adaptive_avg_pool", {"x": a}, "y", out, size=spatial(size, "size", rank))


def _adaptive_avg_backward(dy: Any, size: Ints, rank: int, out: Any) -> Array:
    full = spatial(size, "size", rank)
    return one("adaptive_avg_pool_backward", {"dy": arg(dy, "dy", rank + 2)}, "dx", out, size=full)


def _adaptive_max(x: Any, size: Ints, rank: int, return_index: bool, out: Any) -> Any:
    names = ("y", "index") if return_index else ("y",)
    step: Step = ("adaptive_max_pool", ("x",), {"size": spatial(size, "size", rank)})
    made = chain([step], {"x": arg(x, "x", rank + 2)}, {"y": out}, names)
    return tuple(made) if return_index else made[0]


def _adaptive_max_backward(dy: Any, index: Any, size: Ints, rank: int, out: Any) -> Array:
    arrays = {"dy": arg(dy, "dy", rank + 2), "index": arg(index, "index", rank + 2)}
    full = spatial(size, "size", rank)
    _in_range(arrays["index"], full, f"adaptive_max_pool{rank}d_backward")
    return one("adaptive_max_pool_backward", arrays, "dx", out, size=full)


def max_pool1d(
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
    """The largest of each window of x (N, C, W); with return_index also where (int64, flat in W).

    stride: the window's by default.
    """
    return _max_pool(x, 1, window, stride, padding, dilation, ceil, return_index, out)


def max_pool1d_backward(
    dy: Any,
    index: Any,
    size: Ints,
    window: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    out: Any = None,
) -> Array:
    """dx of max_pool1d's dy and index; size: W of dx."""
    return _max_pool_backward(dy, index, size, 1, window, stride, padding, dilation, out)


def avg_pool1d(
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
    """The mean of each window of x (N, C, W): the sum over `divisor` if not 0, else its elements."""
    return _avg_pool(x, 1, out, window, stride, padding, ceil, count_include_pad, divisor)


def avg_pool1d_backward(
    dy: Any,
    size: Ints,
    window: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil: bool = False,
    count_include_pad: bool = True,
    divisor: int = 0,
    out: Any = None,
) -> Array:
    """dx of avg_pool1d's dy; size: W of dx."""
    return _avg_pool_backward(
        dy, size, 1, out, window, stride, padding, ceil, count_include_pad, divisor
    )


def adaptive_avg_pool1d(x: Any, size: Ints, *, out: Any = None) -> Array:
    """Means over windows [floor(o·in/out), ceil((o+1)·in/out)), of x (N, C, W); size: of y."""
    return _adaptive_avg(x, size, 1, out)


def adaptive_avg_pool1d_backward(dy: Any, size: Ints, *, out: Any = None) -> Array:
    """dx of adaptive_avg_pool1d's dy; size: W of dx."""
    return _adaptive_avg_backward(dy, size, 1, out)


def adaptive_max_pool1d(x: Any, size: Ints, *, return_index: bool = False, out: Any = None) -> Any:
    """The largest of each of adaptive_avg_pool1d's windows; with return_index also where (flat in W)."""
    return _adaptive_max(x, size, 1, return_index, out)


def adaptive_max_pool1d_backward(dy: Any, index: Any, size: Ints, *, out: Any = None) -> Array:
    """dx of adaptive_max_pool1d's dy and index; size: W of dx."""
    return _adaptive_max_backward(dy, index, size, 1, out)


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
    """The largest of each window of x (N, C, H, W); with return_index also where (int64, flat in H·W).

    stride: the window's by default.
    """
    return _max_pool(x, 2, window, stride, padding, dilation, ceil, return_index, out)


def max_pool2d_backward(
    dy: Any,
    index: Any,
    size: Ints,
    window: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    out: Any = None,
) -> Array:
    """dx of max_pool2d's dy and index; size: H, W of dx."""
    return _max_pool_backward(dy, index, size, 2, window, stride, padding, dilation, out)


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
    """The mean of each window of x (N, C, H, W): the sum over `divisor` if not 0, else its elements."""
    return _avg_pool(x, 2, out, window, stride, padding, ceil, count_include_pad, divisor)


def avg_pool2d_backward(
    dy: Any,
    size: Ints,
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
    return _avg_pool_backward(
        dy, size, 2, out, window, stride, padding, ceil, count_include_pad, divisor
    )


def adaptive_avg_pool2d(x: Any, size: Ints, *, out: Any = None) -> Array:
    """Means over windows [floor(o·in/out), ceil((o+1)·in/out)), of x (N, C, H, W); size: of y."""
    return _adaptive_avg(x, size, 2, out)


def adaptive_avg_pool2d_backward(dy: Any, size: Ints, *, out: Any = None) -> Array:
    """dx of adaptive_avg_pool2d's dy; size: H, W of dx."""
    return _adaptive_avg_backward(dy, size, 2, out)


def adaptive_max_pool2d(x: Any, size: Ints, *, return_index: bool = False, out: Any = None) -> Any:
    """The largest of each of adaptive_avg_pool2d's windows; with return_index also where (flat in H·W)."""
    return _adaptive_max(x, size, 2, return_index, out)


def adaptive_max_pool2d_backward(dy: Any, index: Any, size: Ints, *, out: Any = None) -> Array:
    """dx of adaptive_max_pool2d's dy and index; size: H, W of dx."""
    return _adaptive_max_backward(dy, index, size, 2, out)


def max_pool3d(
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
    """The largest of each window of x (N, C, D, H, W); with return_index also where (int64, flat in D·H·W).

    stride: the window's by default.
    """
    return _max_pool(x, 3, window, stride, padding, dilation, ceil, return_index, out)


def max_pool3d_backward(
    dy: Any,
    index: Any,
    size: Ints,
    window: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    out: Any = None,
) -> Array:
    """dx of max_pool3d's dy and index; size: D, H, W of dx."""
    return _max_pool_backward(dy, index, size, 3, window, stride, padding, dilation, out)


def avg_pool3d(
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
    """The mean of each window of x (N, C, D, H, W): the sum over `divisor` if not 0, else its elements."""
    return _avg_pool(x, 3, out, window, stride, padding, ceil, count_include_pad, divisor)


def avg_pool3d_backward(
    dy: Any,
    size: Ints,
    window: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil: bool = False,
    count_include_pad: bool = True,
    divisor: int = 0,
    out: Any = None,
) -> Array:
    """dx of avg_pool3d's dy; size: D, H, W of dx."""
    return _avg_pool_backward(
        dy, size, 3, out, window, stride, padding, ceil, count_include_pad, divisor
    )


def adaptive_avg_pool3d(x: Any, size: Ints, *, out: Any = None) -> Array:
    """Means over windows [floor(o·in/out), ceil((o+1)·in/out)), of x (N, C, D, H, W); size: of y."""
    return _adaptive_avg(x, size, 3, out)


def adaptive_avg_pool3d_backward(dy: Any, size: Ints, *, out: Any = None) -> Array:
    """dx of adaptive_avg_pool3d's dy; size: D, H, W of dx."""
    return _adaptive_avg_backward(dy, size, 3, out)


def adaptive_max_pool3d(x: Any, size: Ints, *, return_index: bool = False, out: Any = None) -> Any:
    """The largest of each of adaptive_avg_pool3d's windows; with return_index also where (flat in D·H·W)."""
    return _adaptive_max(x, size, 3, return_index, out)


def adaptive_max_pool3d_backward(dy: Any, index: Any, size: Ints, *, out: Any = None) -> Array:
    """dx of adaptive_max_pool3d's dy and index; size: D, H, W of dx."""
    return _adaptive_max_backward(dy, index, size, 3, out)
