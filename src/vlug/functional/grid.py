"""Eager calls: sampling at the places of a grid."""

from __future__ import annotations

from typing import Any

from vlug.functional.base import Array, Step, arg, chain, one, one_of

__all__ = ["grid_sample", "grid_sample_backward"]

_MODES = {"bilinear": "linear", "linear": "linear", "nearest": "nearest"}


def _attributes(mode: str, padding_mode: str, align_corners: bool) -> dict[str, Any]:
    mode = _MODES[one_of(mode, "mode", _MODES)]
    padding = one_of(padding_mode, "padding_mode", ("zeros", "border", "reflection"))
    return {"mode": mode, "padding": padding, "align_corners": bool(align_corners)}


def grid_sample(
    x: Any,
    grid: Any,
    *,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
    out: Any = None,
) -> Array:
    """y[n,c,p,q] = x (N, C, H, W) at grid[n,p,q] = (column, row) of grid (N, P, Q, 2), -1 … 1 the plane.

    mode: bilinear (linear) or nearest; padding_mode: zeros, border, reflection; align_corners: whether -1 and
    1 are the middles of the outer elements, not their edges. As torch.nn.functional.grid_sample has it for
    planes; its bicubic mode and volumes are not here.
    """
    arrays = {"x": arg(x, "x", 4), "grid": arg(grid, "grid", 4)}
    return one("grid_sample", arrays, "y", out, **_attributes(mode, padding_mode, align_corners))


def grid_sample_backward(
    dy: Any,
    x: Any,
    grid: Any,
    *,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> tuple[Array, Array]:
    """dx and dgrid of grid_sample's dy."""
    arrays = {"dy": arg(dy, "dy", 4), "x": arg(x, "x", 4), "grid": arg(grid, "grid", 4)}
    at = _attributes(mode, padding_mode, align_corners)
    step: Step = ("grid_sample_backward", ("dy", "x", "grid"), at)
    dx, dgrid = chain([step], arrays, {}, ("dx", "dgrid"))
    return dx, dgrid
