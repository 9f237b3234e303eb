"""Fills of grids: places in the plane and somewhat around it, never on an element's edge."""

from __future__ import annotations

from vlug.testing_fills.base import Fit, Inputs

__all__ = ["EDGES", "FITS"]


def _grid(at: Inputs) -> None:
    at.put("grid", at.rng.uniform(-1.3, 1.3, at.tensor("grid").dim))


FITS: dict[str, Fit] = {"grid_sample": _grid, "grid_sample_backward": _grid}
EDGES: dict[str, tuple[str, ...]] = {"grid_sample": ("x",), "grid_sample_backward": ("dy",)}
