"""Eager calls: rows of a table by index."""

from __future__ import annotations

from typing import Any

import numpy as np

from vlug.errors import BadInput
from vlug.functional.base import Array, args, integer, one
from vlug.runtime import handle

__all__ = ["embedding", "embedding_backward"]


def embedding(indices: Any, weight: Any, padding_idx: int | None = None, *, out: Any = None) -> Array:
    """weight[indices]: rows of weight (rows, elements) for indices of any dims, int64 or int32.

    padding_idx: a row that embedding_backward leaves 0; negative ones count from the end.
    """
    arrays = args(weight=weight, indices=indices)
    shape = arrays["weight"].shape
    _check_indices("embedding", arrays["indices"], shape[0] if shape else 0)
    return one("embedding", arrays, "y", out, padding_idx=_row(padding_idx, shape[0] if shape else 0))


def embedding_backward(
    dy: Any, indices: Any, num_weights: int, padding_idx: int | None = None, *, out: Any = None
) -> Array:
    """dweight, of num_weights rows, of embedding's dy: rows named more than once are added in their order."""
    arrays = args(dy=dy, indices=indices)
    rows = integer(num_weights, "num_weights")
    if rows < 0 or not arrays["dy"].shape:
        raise BadInput(f"num_weights: {rows} must be 0 or more, and dy have a dimension of elements")
    _check_indices("embedding_backward", arrays["indices"], rows)
    size = (rows, arrays["dy"].shape[-1])
    at = {"size": size, "padding_idx": _row(padding_idx, rows)}
    return one("embedding_backward", arrays, "dweight", out, **at)


def _row(padding_idx: int | None, rows: int) -> int:
    if padding_idx is None:
        return -1
    i = integer(padding_idx, "padding_idx")
    if not -rows <= i < rows:
        raise BadInput(f"padding_idx: {i} must be a row, {-rows} to {rows - 1}")
    return i % rows


def _check_indices(name: str, indices: handle.Array, rows: int) -> None:
    if indices.dtype.kind != "i" or not indices.size:
        return  # inference says what is wrong
    i = np.asarray(indices.numpy())
    bad = (i < 0) | (i >= rows)
    if bad.any():
        raise BadInput(f"{name}: indices hold {i[bad][0]}, allowed are 0 to {rows - 1}")
