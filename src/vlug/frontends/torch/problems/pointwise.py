"""Calls of PyTorch as graphs: pointwise calls."""

from __future__ import annotations

from typing import Any

from vlug.frontends.torch.control import IS_WRITTEN
from vlug.frontends.torch.keys import Pass
from vlug.frontends.torch.problems.base import (
    Maker,
    Problem,
    alike,
    in_memory_of,
    same_memory,
)

__all__ = ["PROBLEMS"]


def _relu(p: Problem, x: Any) -> None:
    alike(x)
    y = same_memory("y", x)
    p.output(p.graph.relu(p.input("x", x, tensor=in_memory_of(x)), names=["y"], like=[y]))


def _relu_in_place(p: Problem, x: Any) -> None:
    alike(x)
    y = same_memory("y", x)
    t = p.graph.relu(p.input("x", x, True, in_memory_of(x)), names=["y"], like=[y])
    p.order[t.name] = x.place | IS_WRITTEN


def _threshold_backward(p: Problem, dy: Any, x: Any, threshold: Any) -> None:
    alike(dy, x)
    if threshold is None or threshold != 0:
        raise Pass(f"threshold {threshold}")
    if dy.dim != x.dim:
        raise Pass("dy and x of different sizes")
    dx, like = same_memory("dx", x), same_memory("dx", dy)
    if dx.stride != like.stride:
        raise Pass("dy and x in different layouts")
    tdy, tx = p.input("dy", dy, tensor=in_memory_of(dy)), p.input("x", x, tensor=in_memory_of(x))
    p.output(p.graph.relu_backward(tdy, tx, names=["dx"], like=[dx]))


PROBLEMS: dict[str, Maker] = {
    "relu": _relu,
    "relu_": _relu_in_place,
    "threshold_backward": _threshold_backward,
}
