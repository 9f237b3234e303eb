"""Calls of PyTorch as graphs: softmax and its logarithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vlug.frontends.torch.keys import Pass
from vlug.frontends.torch.problems.base import (
    Maker,
    Problem,
    alike,
    axis_of,
    check_rows,
    formatted,
)

__all__ = ["PROBLEMS"]


def _softmax_of(name: str) -> Callable[..., None]:
    def make(p: Problem, x: Any, axis: int, half_to_float: bool) -> None:
        alike(x)
        if half_to_float:
            raise Pass("another dtype asked for")
        check_rows(x)
        like = [formatted("y", x.dim, x.dtype, False)]
        p.output(p.graph.call(name, p.input("x", x), axis=axis_of(axis, x.rank), names=["y"], like=like))

    return make


def _softmax_backward_of(name: str) -> Callable[..., None]:
    def make(p: Problem, dy: Any, y: Any, axis: int, dtype: int) -> None:
        alike(dy, y)
        if dtype != dy.number:
            raise Pass("another dtype asked for")
        if dy.dim != y.dim:
            raise Pass("dy and y of different sizes")
        check_rows(dy, y)
        like = [formatted("dx", y.dim, y.dtype, False)]
        tdy, ty = p.input("dy", dy), p.input("y", y)
        p.output(p.graph.call(name, tdy, ty, axis=axis_of(axis, y.rank), names=["dx"], like=like))

    return make


PROBLEMS: dict[str, Maker] = {
    "_softmax": _softmax_of("softmax"),
    "_softmax_backward_data": _softmax_backward_of("softmax_backward"),
    "_log_softmax": _softmax_of("log_softmax"),
    "_log_softmax_backward_data": _softmax_backward_of("log_softmax_backward"),
}
