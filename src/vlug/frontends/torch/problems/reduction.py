"""Calls of PyTorch as graphs: sums and means."""

from __future__ import annotations

from typing import Any

from vlug.frontends.torch.keys import Pass
from vlug.frontends.torch.problems.base import (
    Maker,
    Problem,
    alike,
    axis_of,
    formatted,
    infer,
)

__all__ = ["PROBLEMS"]


def _mean(p: Problem, x: Any, axes: Any, keepdim: bool, dtype: Any) -> None:
    alike(x)
    if dtype is not None and dtype != x.number:
        raise Pass("another dtype asked for")
    if x.rank == 0:
        raise Pass("no dimensions")
    axes = tuple(sorted(axis_of(a, x.rank) for a in axes)) if axes else tuple(range(x.rank))
    if len(set(axes)) < len(axes):
        raise Pass("left to stock to judge: a dimension given twice")
    tx, attributes = p.input("x", x), {"mode": "mean", "axes": axes, "keepdim": keepdim}
    (dim,) = [t.dim for t in infer(p.graph, "reduction", tx, **attributes)]
    like = [formatted("y", dim, x.dtype, False)]
    p.output(p.graph.reduction(tx, **attributes, names=["y"], like=like))


PROBLEMS: dict[str, Maker] = {
    "mean.dim": _mean,
}
