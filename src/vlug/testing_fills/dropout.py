"""Fills of random numbers: seeds of 64 bits, offsets around the counter's halves and its end."""

from __future__ import annotations

import numpy as np

from vlug.testing_fills.base import Fit, Inputs

__all__ = ["EDGES", "FITS"]


def _stream(at: Inputs) -> None:
    at.put("seed", at.rng.integers(-(1 << 63), 1 << 63, dtype=np.int64))
    at.put("offset", at.rng.choice([0, 3, (1 << 32) - 5, -7]))


NAMES = ("rng", "dropout", "dropout_backward")
FITS: dict[str, Fit] = dict.fromkeys(NAMES, _stream)
EDGES: dict[str, tuple[str, ...]] = {"dropout": ("x",), "dropout_backward": ("dy",), "rng": ()}
