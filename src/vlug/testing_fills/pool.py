"""Fills of pooling: indices that lie in their windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vlug.testing_fills.base import Array, Fit, Inputs

__all__ = ["FITS"]


def _max_pool_backward(at: Inputs) -> None:
    if at.get("index") is not None:
        at.put("index", _window_indices(at.op, at.tensor("index").dim, at.rng))


def _window_indices(op: Any, dim: Sequence[int], rng: np.random.Generator) -> Array:
    """For each window, a random one of the elements that it reaches (-1 if none)."""
    index = np.zeros(dim, np.int64)
    scale = 1
    reached = np.ones(dim, bool)
    for axis in reversed(range(len(op.size))):
        h, p = op.size[axis], dim[axis + 2]
        shape = [1] * len(dim)
        shape[axis + 2] = p
        start = (np.arange(p) * op.stride[axis] - op.pre_padding[axis]).reshape(shape)
        at = np.full(dim, -1, np.int64)
        for tap in rng.permutation(op.window[axis]):
            here = np.broadcast_to(start + tap * op.dilation[axis], dim)
            take = (here >= 0) & (here < h) & ((at < 0) | (rng.random(dim) < 0.5))
            at = np.where(take, here, at)
        reached &= at >= 0
        index += at * scale
        scale *= h
    return np.where(reached, index, -1)


def _none(at: Inputs) -> Array:
    return np.full(at.tensor("index").dim, -1)


def _adaptive_max_pool_backward(at: Inputs) -> None:
    if at.get("index") is not None:
        most = math.prod(at.op.size)
        at.put("index", at.rng.integers(-1, max(most, 1), at.tensor("index").dim) if most else _none(at))


FITS: dict[str, Fit] = {
    "adaptive_max_pool_backward": _adaptive_max_pool_backward,
    "max_pool_backward": _max_pool_backward,
}
