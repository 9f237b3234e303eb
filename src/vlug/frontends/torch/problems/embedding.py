"""Calls of PyTorch as graphs: rows by index. An index out of range ends a plan; stock then says it."""

from __future__ import annotations

from typing import Any

from vlug.frontends.torch.keys import Pass
from vlug.frontends.torch.problems.base import Maker, Problem, alike, axis_of, formatted

__all__ = ["PROBLEMS"]


def _rows(p: Problem, weight: Any, axis: int, indices: Any) -> None:
    """index_select, which embedding ends in."""
    alike(weight)
    if weight.rank != 2 or axis_of(axis, 2) != 0 or indices.rank != 1:
        raise Pass("not rows of a matrix")
    _indices(indices)
    like = [formatted("y", (indices.dim[0], weight.dim[1]), weight.dtype, False)]
    p.output(
        p.graph.embedding(p.input("weight", weight), p.input("indices", indices), names=["y"], like=like)
    )


def _backward(p: Problem, dy: Any, indices: Any, rows: int, padding: int, by_frequency: bool) -> None:
    alike(dy)
    _indices(indices)
    if by_frequency:
        raise Pass("gradients scaled by frequency")
    if padding < -1 or padding >= rows or dy.dim[:-1] != indices.dim:
        raise Pass("left to stock to judge: sizes that do not fit")
    size = (rows, dy.dim[-1])
    like = [formatted("dweight", size, dy.dtype, False)]
    tensors = p.input("dy", dy), p.input("indices", indices)
    at: dict[str, Any] = {"size": size, "padding_idx": padding}
    p.output(p.graph.embedding_backward(*tensors, **at, names=["dweight"], like=like))


def _indices(indices: Any) -> None:
    if indices.dtype.name not in ("i64", "i32"):
        raise Pass(f"indices of dtype {indices.dtype.long_name}")
    if 0 in indices.dim:
        raise Pass("a dimension of size 0")


PROBLEMS: dict[str, Maker] = {
    "index_select": _rows,
    "embedding_dense_backward": _backward,
}
