"""Calls of PyTorch as graphs: losses. A class out of range ends a plan with a code: stock then says it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vlug.frontends.torch.keys import Pass
from vlug.frontends.torch.problems.base import Maker, Problem, alike, formatted, same_memory, vectors

__all__ = ["PROBLEMS"]

#: at::Reduction.
_REDUCTIONS = ("none", "mean", "sum")


def _mode(reduction: int) -> str:
    if reduction not in range(3):
        raise Pass(f"left to stock to judge: reduction {reduction}")
    return _REDUCTIONS[reduction]


def _pointwise(name: str, number: str = "") -> Callable[..., None]:
    """A loss of x and target; number: the name of its number."""

    def make(p: Problem, x: Any, target: Any, reduction: int, value: Any = None) -> None:
        alike(x, target)
        if x.dim != target.dim:
            raise Pass("x and target of different sizes")
        mode, numbers = _mode(reduction), {number: value} if number else {}
        like = formatted("loss", (), x.dtype, False)
        if mode == "none":
            like = same_memory("loss", x)
            if same_memory("loss", target).stride != like.stride:
                raise Pass("x and target in different layouts")
        tensors = p.input("x", x), p.input("target", target)
        p.output(p.graph.call(name, *tensors, reduction=mode, **numbers, names=["loss"], like=[like]))

    return make


def _mse_backward(p: Problem, dloss: Any, x: Any, target: Any, reduction: int) -> None:
    alike(dloss, x, target)
    mode = _mode(reduction)
    if x.dim != target.dim or dloss.dim != (x.dim if mode == "none" else ()):
        raise Pass("tensors of different sizes")
    tensors = p.input("dloss", dloss), p.input("x", x), p.input("target", target)
    like = [formatted("dx", x.dim, x.dtype, False)]
    made = p.graph.mse_loss_backward(*tensors, reduction=mode, names=["dx"], like=like)
    p.output(made[0] if isinstance(made, tuple) else made)


def _classes(target: Any, weight: Any, x: Any) -> None:
    if target.dtype.name != "i64":
        raise Pass(f"classes of dtype {target.dtype.long_name}")
    if weight is not None and weight.number != x.number:
        raise Pass("dtypes differ")
    if weight is not None and x.rank:
        vectors(x.dim[min(1, x.rank - 1)], weight)


def _nll(rank: int) -> Callable[..., None]:
    """nll_loss of x of `rank` dimensions, or of one fewer than two."""

    def make(p: Problem, x: Any, target: Any, weight: Any, reduction: int, ignore: int) -> None:
        alike(x)
        if x.rank != rank and not (rank == 2 and x.rank == 1):
            raise Pass(f"{x.rank} dimensions")
        _classes(target, weight, x)
        mode = _mode(reduction)
        tensors = p.input("x", x), p.input("target", target)
        w = None if weight is None else p.input("weight", weight)
        like = [
            formatted("loss", target.dim if mode == "none" else (), x.dtype, False),
            formatted("total", (), x.dtype, False),
        ]
        at: dict[str, Any] = {"reduction": mode, "ignore_index": ignore}
        for t in p.graph.nll_loss(*tensors, w, **at, names=["loss", "total"], like=like):
            p.output(t)

    return make


def _nll_backward(rank: int) -> Callable[..., None]:
    def make(
        p: Problem, dloss: Any, x: Any, target: Any, weight: Any, reduction: int, ignore: int, total: Any
    ) -> None:
        alike(x, dloss, total)
        if x.rank != rank and not (rank == 2 and x.rank == 1):
            raise Pass(f"{x.rank} dimensions")
        if rank == 4 and not x.is_contiguous:
            raise Pass("left to stock to judge: x is not contiguous")
        _classes(target, weight, x)
        mode = _mode(reduction)
        tensors = p.input("dloss", dloss), p.input("target", target)
        w = None if weight is None else p.input("weight", weight)
        t = p.input("total", total) if mode == "mean" else None
        at: dict[str, Any] = {"reduction": mode, "ignore_index": ignore, "size": x.dim}
        like = [formatted("dx", x.dim, x.dtype, False)]
        p.output(p.graph.nll_loss_backward(*tensors, w, t, **at, names=["dx"], like=like))

    return make


PROBLEMS: dict[str, Maker] = {
    "nll_loss_forward": _nll(2),
    "nll_loss_backward": _nll_backward(2),
    "nll_loss2d_forward": _nll(4),
    "nll_loss2d_backward": _nll_backward(4),
    "mse_loss": _pointwise("mse_loss"),
    "mse_loss_backward": _mse_backward,
    "smooth_l1_loss": _pointwise("smooth_l1_loss", "beta"),
    "huber_loss": _pointwise("huber_loss", "delta"),
}
