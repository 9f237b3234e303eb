"""Maps along one axis, each result a sum of a few elements: resampling, means of windows, transposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vlug.ops.base import Array

__all__ = ["AxisMap", "adaptive_windows", "resampling", "windows"]

Ints64 = NDArray[np.int64]


@dataclass(frozen=True)
class AxisMap:
    """y[o] = (Σ_t weight[t, o] · x[index[t, o]]) / divisor[o].

    index: (taps, results) int64, -1 where there is no term. weight, divisor: float64; None: 1.
    """

    index: Ints64
    weight: Array | None = None
    divisor: Array | None = None

    @property
    def taps(self) -> int:
        return int(self.index.shape[0])

    @property
    def out(self) -> int:
        return int(self.index.shape[1])

    def transposed(self, size: int) -> AxisMap:
        """The map of gradients to `size` elements: each asks the results that it is a term of, in order."""
        t, o = np.nonzero(self.index.T >= 0)[::-1]  # results in order, then taps
        at = self.index[t, o]
        order = np.argsort(at, kind="stable")
        at, o = at[order], o[order]
        weight = np.ones(at.shape) if self.weight is None else self.weight[t[order], o]
        if self.divisor is not None:
            weight = weight / self.divisor[o]
        counts = np.bincount(at, minlength=size) if size else np.zeros(0, np.int64)
        taps = int(counts.max()) if counts.size and at.size else 0
        index = np.full((taps, size), -1, np.int64)
        weights = np.zeros((taps, size))
        tap = np.arange(at.size) - np.repeat(np.cumsum(counts) - counts, counts)
        index[tap, at], weights[tap, at] = o, weight
        return AxisMap(index, None if np.all((weights == 1) | (index < 0)) else weights)

    def apply(self, x: Array, axis: int) -> Array:
        """The map along an axis of x, term by term."""
        shape = [1] * x.ndim
        shape[axis] = self.out
        y = np.zeros((*x.shape[:axis], self.out, *x.shape[axis + 1 :]), x.dtype)
        if not x.size:
            return y
        with np.errstate(invalid="ignore"):
            for t in range(self.taps):
                index = self.index[t]
                term = np.take(x, np.maximum(index, 0), axis=axis)
                if self.weight is not None:
                    term = term * self.weight[t].astype(x.dtype).reshape(shape)
                y += np.where((index >= 0).reshape(shape), term, x.dtype.type(0))
        if self.divisor is not None:
            y = y / self.divisor.astype(x.dtype).reshape(shape)
        return y


def windows(start: Ints64, end: Ints64, step: int = 1) -> Ints64:
    """index of an AxisMap whose result o takes the elements [start, end) by step."""
    taps = int(np.max(-(-(end - start) // step), initial=0))
    at = start + step * np.arange(max(taps, 0))[:, None]
    return np.where(at < end, at, -1).astype(np.int64)


def adaptive_windows(size: int, out: int) -> tuple[Ints64, Ints64]:
    """[start, end) of each of `out` windows over `size` elements: floor(o·size/out), ceil((o+1)·size/out)."""
    o = np.arange(out, dtype=np.int64)
    return o * size // max(out, 1), -(-(o + 1) * size // max(out, 1))


def _positions(size: int, out: int, align_corners: bool, scale: float) -> Array:
    """Where result o lies among the elements, a float."""
    o = np.arange(out, dtype=np.float64)
    if align_corners:
        return o * (size - 1) / (out - 1) if out > 1 else o * 0.0
    return ((o + 0.5) / scale if scale > 0 else (2 * o + 1) * size / (2 * max(out, 1))) - 0.5


def resampling(size: int, out: int, mode: str, align_corners: bool, scale: float) -> AxisMap:
    """The map of `resample` along one axis; scale 0: out / size."""
    if mode.startswith("nearest"):
        step = np.float32(1.0 / scale) if scale > 0 else np.float32(size) / np.float32(max(out, 1))
        o = np.arange(out, dtype=np.float32) + np.float32(0.5 if mode == "nearest_exact" else 0)
        at = np.floor(o * step).astype(np.int64)
        return AxisMap(np.clip(at, 0, size - 1)[None])
    if mode == "linear":
        if size == out:
            same = np.arange(size)
            return AxisMap(np.stack([same, same]), np.stack([np.ones(size), np.zeros(size)]))
        place = np.maximum(_positions(size, out, align_corners, scale), 0)
        first = np.minimum(np.floor(place).astype(np.int64), size - 1)
        part = np.clip(place - first, 0, 1)
        return AxisMap(np.stack([first, np.minimum(first + 1, size - 1)]), np.stack([1 - part, part]))
    place = _positions(size, out, align_corners, scale)
    first = np.floor(place).astype(np.int64)
    part = place - first
    index = np.clip(first + np.arange(-1, 3)[:, None], 0, size - 1)
    return AxisMap(index, np.stack(_cubic(part)))


def _cubic(t: Array, a: float = -0.75) -> Sequence[Array]:
    """Weights of the elements at -1, 0, 1, 2 for a place t between 0 and 1 (Keys's kernel, a = -0.75)."""

    def near(x: Array) -> Array:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Array) -> Array:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return far(t + 1), near(t), near(1 - t), far(2 - t)
