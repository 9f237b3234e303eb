"""Fills of embedding: indices in range, many of them twice."""

from __future__ import annotations

from vlug.testing_fills.base import Fit, Inputs

__all__ = ["FITS"]


def _indices(at: Inputs) -> None:
    rows = at.op.size[0] if at.op.name == "embedding_backward" else at.tensor("weight").dim[0]
    at.put("indices", at.rng.integers(0, max(rows, 1), at.tensor("indices").dim))


FITS: dict[str, Fit] = {"embedding": _indices, "embedding_backward": _indices}
