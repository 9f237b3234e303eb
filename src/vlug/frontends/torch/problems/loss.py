"""Calls of PyTorch as graphs: losses. A class out of range ends a plan with a code: stock then says it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vlug.frontends.torch.keys import Arg, Pass, VaryingList
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


def _batch(p: Problem, x: Arg, target: Arg, *lengths: Arg | VaryingList) -> list[Any]:
    """The tensors that CTC and its gradient read; PyTorch computes it in two dtypes."""
    alike(x)
    if x.dtype.name not in ("f32", "f64") or target.dtype.name != "i64":
        raise Pass(f"dtypes {x.dtype.long_name}, {target.dtype.long_name}")
    if x.rank != 3 or target.rank != 2 or target.dim[0] != x.dim[1] or 0 in target.dim:
        raise Pass("targets that are not (sequences, labels)")
    out: list[Any] = [p.input("x", x), p.input("target", target)]
    for name, each in zip(("input_lengths", "target_lengths"), lengths):
        if isinstance(each, VaryingList):
            out.append(p.numbers(name, each))
        elif each.dtype.name == "i64" and each.rank == 1:
            out.append(p.input(name, each))
        else:
            raise Pass("lengths that are not one int64 a sequence")
    return out


def _ctc(p: Problem, x: Any, target: Any, steps: Any, labels: Any, blank: int, zero: bool) -> None:
    """A target as long as the widest must be among them: alpha is as wide as the longest. Infinite losses
    stay, PyTorch's caller sees to them."""
    tensors = _batch(p, x, target, steps, labels)
    t, n, _ = x.dim
    like = [
        formatted("loss", (n,), x.dtype, False),
        formatted("alpha", (n, t, 2 * target.dim[1] + 1), x.dtype, False),
    ]
    for made in p.graph.ctc_loss(*tensors, blank=blank, longest=True, names=["loss", "alpha"], like=like):
        p.output(made)


def _ctc_backward(
    p: Problem, dloss: Any, x: Any, target: Any, steps: Any, labels: Any, loss: Any, alpha: Any, blank: int,
    zero: bool,
) -> None:  # fmt: skip
    alike(dloss, x, loss, alpha)
    tensors = _batch(p, x, target, steps, labels)
    at: dict[str, Any] = {"blank": blank, "zero_infinity": zero}
    at |= {"alpha": p.input("alpha", alpha), "loss": p.input("loss", loss)}
    like = [formatted("dx", x.dim, x.dtype, False)]
    given = p.input("dloss", dloss)
    p.output(p.graph.ctc_loss_backward(given, *tensors, **at, names=["dx"], like=like))


PROBLEMS: dict[str, Maker] = {
    "nll_loss_forward": _nll(2),
    "nll_loss_backward": _nll_backward(2),
    "nll_loss2d_forward": _nll(4),
    "nll_loss2d_backward": _nll_backward(4),
    "_ctc_loss": _ctc,
    "_ctc_loss.Tensor": _ctc,
    "_ctc_loss_backward": _ctc_backward,
    "_ctc_loss_backward.Tensor": _ctc_backward,
    "mse_loss": _pointwise("mse_loss"),
    "mse_loss_backward": _mse_backward,
    "smooth_l1_loss": _pointwise("smooth_l1_loss", "beta"),
    "huber_loss": _pointwise("huber_loss", "delta"),
}
