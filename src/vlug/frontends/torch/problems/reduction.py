"""Calls of PyTorch as graphs: sums, means, products, extremes and norms."""

from __future__ import annotations

import math
from collections.abc import Callable
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

_NORMS = {1: "norm1", 2: "norm2", math.inf: "amax"}


def _reduce(p: Problem, mode: str, x: Any, axes: Any, keepdim: bool, dtype: Any = None) -> None:
    alike(x)
    if dtype is not None and dtype != x.number:
        raise Pass("another dtype asked for")
    if x.rank == 0:
        raise Pass("no dimensions")
    axes = tuple(sorted(axis_of(a, x.rank) for a in axes)) if axes else tuple(range(x.rank))
    if len(set(axes)) < len(axes):
        raise Pass("left to stock to judge: a dimension given twice")
    tx, attributes = p.input("x", x), {"mode": mode, "axes": axes, "keepdim": keepdim}
    (dim,) = [t.dim for t in infer(p.graph, "reduction", tx, **attributes)]
    like = [formatted("y", dim, x.dtype, False)]
    p.output(p.graph.reduction(tx, **attributes, names=["y"], like=like))


def _reduced(mode: str) -> Callable[..., None]:
    return lambda p, x, axes, keepdim, dtype=None: _reduce(p, mode, x, axes, keepdim, dtype)


def _prod(p: Problem, x: Any, dtype: Any) -> None:
    _reduce(p, "mul", x, (), False, dtype)


def _prod_along(p: Problem, x: Any, axis: int, keepdim: bool, dtype: Any) -> None:
    _reduce(p, "mul", x, (axis,), keepdim, dtype)


def _norm(p: Problem, x: Any, ord: Any, axes: Any, keepdim: bool, dtype: Any) -> None:
    if ord not in _NORMS:
        raise Pass(f"norm of order {ord}")
    _reduce(p, _NORMS[ord], x, axes, keepdim, dtype)


PROBLEMS: dict[str, Maker] = {
    "mean.dim": _reduced("mean"),
    "sum.dim_IntList": _reduced("add"),
    "amax": _reduced("max"),
    "amin": _reduced("min"),
    "prod": _prod,
    "prod.dim_int": _prod_along,
    "linalg_vector_norm": _norm,
}
