"""Arithmetic of sliding windows that convolution and pooling share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlug.errors import ShapeError

__all__ = ["full", "out_size", "pad_spatial", "taps"]

#: Largest padding, stride, dilation or window: products of a few of them stay within the int64 of `args`.
MOST = 2**31 - 1


def full(value: Sequence[int], rank: int, default: Sequence[int], what: str, least: int) -> tuple[int, ...]:
    """`value` spelled out for `rank` spatial dimensions: () takes `default`, one number serves for all."""
    if not value:
        value = default
    if len(value) == 1:
        value = tuple(value) * rank
    if len(value) != rank:
        raise ShapeError(f"{what}: {tuple(value)} has {len(value)} numbers for {rank} spatial dimensions")
    if any(v < least for v in value):
        raise ShapeError(f"{what}: {tuple(value)} must be {least} or more")
    if any(v > MOST for v in value):
        raise ShapeError(f"{what}: {tuple(value)} must be at most {MOST}")
    return tuple(int(v) for v in value)


def out_size(
    size: int, window: int, pre: int, post: int, stride: int, dilation: int, what: str, ceil: bool = False
) -> int:
    """How many windows fit along one dimension.

    `ceil` rounds the division up, but a last window that would start past input + left padding is dropped
    (as PyTorch; otherwise it would lie wholly outside). An empty dimension gives an empty result; a window
    larger than a padded dimension that is not empty raises ShapeError.
    """
    extent = dilation * (window - 1) + 1
    room = size + pre + post - extent
    if room < 0:
        if size == 0:
            return 0
        raise ShapeError(
            f"{what}: a window of {window} with dilation {dilation} covers {extent}, "
            f"more than the padded size {size} + {pre} + {post}"
        )
    n = (room + (stride - 1 if ceil else 0)) // stride + 1
    if ceil and (n - 1) * stride >= size + pre:
        n -= 1
    return n


def taps(
    window: Sequence[int], stride: Sequence[int], dilation: Sequence[int], out: Sequence[int]
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Each tap of a window: its index and the slices of the padded input that all outputs read for it."""
    for at in itertools.product(*(range(r) for r in window)):
        starts = [i * d for i, d in zip(at, dilation)]
        yield (
            at,
            tuple(slice(b, b + (n - 1) * s + 1 if n else b, s) for b, n, s in zip(starts, out, stride)),
        )


def pad_spatial(
    x: NDArray[np.float64], pre: Sequence[int], post: Sequence[int], value: float = 0.0
) -> NDArray[np.float64]:
    """x (N, C, spatial…) with `pre` and `post` elements of `value` around its spatial dimensions."""
    return np.pad(x, ((0, 0), (0, 0), *zip(pre, post)), constant_values=value)
