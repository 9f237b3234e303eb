"""Eager calls: resampling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vlug.errors import BadInput, ShapeError
from vlug.functional.base import Array, Ints, arg, one, one_of, spatial
from vlug.runtime import handle

__all__ = ["interpolate", "interpolate_backward"]

#: PyTorch's names of modes: (ours, spatial dimensions it is for; 0: any).
_MODES = {
    "nearest": ("nearest", 0),
    "nearest-exact": ("nearest_exact", 0),
    "nearest_exact": ("nearest_exact", 0),
    "linear": ("linear", 0),
    "bilinear": ("linear", 2),
    "trilinear": ("linear", 3),
    "cubic": ("cubic", 0),
    "bicubic": ("cubic", 2),
}


def _attributes(rank: int, mode: str, align_corners: bool, scales: Sequence[float]) -> dict[str, Any]:
    name, wanted = _MODES[one_of(mode, "mode", _MODES)]
    if wanted and wanted != rank:
        raise BadInput(f"mode: {mode!r} is for {wanted} spatial dimensions, x has {rank}")
    return {
        "mode": name,
        "align_corners": bool(align_corners),
        **dict(zip(("scale_d", "scale_h", "scale_w")[3 - rank :], scales)),
    }


def _ranked(a: handle.Array, argument: str) -> int:
    if not 3 <= len(a.shape) <= 5:
        raise ShapeError(f"{argument}: {a.shape} has {len(a.shape)} dimensions, 3 to 5 are allowed")
    return len(a.shape) - 2


def _scales(scale: Any, rank: int) -> tuple[float, ...]:
    given = tuple(scale) if isinstance(scale, Iterable) else (scale,) * rank
    numbers = all(isinstance(s, (int, float, np.number)) for s in given)
    if len(given) != rank or not numbers or not all(0 < s < float("inf") for s in given):
        raise BadInput(f"scale_factor: {scale!r} must be one positive number or {rank}")
    return tuple(float(s) for s in given)


def interpolate(
    x: Any,
    size: Ints | None = None,
    *,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
    out: Any = None,
) -> Array:
    """x (N, C, spatial…) resampled to the spatial dims `size`, or floor(size of x · scale_factor).

    mode: nearest, nearest-exact, linear (bilinear, trilinear), cubic (bicubic). A scale_factor is also what
    places are computed with, as in torch.nn.functional.interpolate.
    """
    a = arg(x, "x")
    rank = _ranked(a, "x")
    if (size is None) == (scale_factor is None):
        raise BadInput("size: give either size or scale_factor")
    scales: tuple[float, ...] = (0.0,) * rank
    if size is not None:
        full = spatial(size, "size", rank)
    else:
        scales = _scales(scale_factor, rank)
        full = tuple(int(n * s) for n, s in zip(a.shape[2:], scales))
    return one("resample", {"x": a}, "y", out, size=full, **_attributes(rank, mode, align_corners, scales))


def interpolate_backward(
    dy: Any,
    size: Ints,
    *,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
    out: Any = None,
) -> Array:
    """dx of interpolate's dy; size: spatial dims of dx. scale_factor: as given to interpolate."""
    a = arg(dy, "dy")
    rank = _ranked(a, "dy")
    scales = (0.0,) * rank if scale_factor is None else _scales(scale_factor, rank)
    at = _attributes(rank, mode, align_corners, scales)
    return one("resample_backward", {"dy": a}, "dx", out, size=spatial(size, "size", rank), **at)
