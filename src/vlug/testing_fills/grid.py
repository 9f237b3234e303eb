"""Fills of grids: places in the plane and somewhat around it."""

from __future__ import annotations

from vlug.testing_fills.base import Fit, Inputs

__all__ = ["EDGES", "FITS"]


def _grid(at: Inputs) -> None:
    dim = at.tensor("grid").dim
    exact = at.kind == "exact"  # places and weights of few bits: sums are exact
    at.put("grid", at.rng.integers(-41, 42, dim) / 32 if exact else at.rng.uniform(-1.3, 1.3, dim))


FITS: dict[str, Fit] = {"grid_sample": _grid, "grid_sample_backward": _grid}
EDGES: dict[str, tuple[str, ...]] = {"grid_sample": ("x",), "grid_sample_backward": ("dy",)}
