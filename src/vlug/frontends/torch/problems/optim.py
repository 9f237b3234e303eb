"""Calls of PyTorch as graphs: fused steps of optimisers, a parameter at a time."""

from __future__ import annotations

from functools import partial
from typing import Any

from vlug.dtypes import BF16, F32, F64
from vlug.frontends.torch.keys import Arg, Pass, Varying
from vlug.frontends.torch.problems.base import Maker, Problem
from vlug.tensor import Tensor

__all__ = ["PROBLEMS"]


def _scalar(p: Problem, name: str, value: Any) -> Tensor:
    """A number of the call: one that comes as a double, or (a learning rate, a step) in a tensor."""
    if isinstance(value, Varying):
        return p.scalar(name, value, F64)
    if value is None or value.dtype is not F32 or value.dim not in ((), (1,)):
        raise Pass(f"{name} is not one float32 number")
    return p.input(name, value)


def _alike(args: dict[str, Arg | None]) -> dict[str, Arg]:
    """A parameter, its gradient and its state: one dtype, one dense layout."""
    first = args["p"]
    given = {n: a for n, a in args.items() if a is not None}
    if first is None or "g" not in given:
        raise Pass("left to stock to judge: lists of different lengths")
    for a in given.values():
        if a.dtype not in (F32, BF16):
            raise Pass(f"dtype {a.dtype.long_name}")
        if a.dtype is not first.dtype:
            raise Pass("dtypes differ")
        if a.dim != first.dim:
            raise Pass("left to stock to judge: sizes differ")
        if not first.is_dense or not a.tensor("a").has_strides(first.tensor("a").stride):
            raise Pass("strides that differ, or leave gaps")
    return given


def _scaled(scale: Arg | None, found: Arg | None) -> None:
    if scale is not None or found is not None:
        raise Pass("a gradient scaler's scale")


def _adam(decoupled: bool, p: Problem, *a: Any) -> None:
    w, g, m, v, vmax, step, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize, scale, found = a
    _scaled(scale, found)
    if amsgrad != (vmax is not None) or m is None or v is None:
        raise Pass("left to stock to judge: amsgrad and its list")
    given = _alike({"p": w, "g": g, "m": m, "v": v, "vmax": vmax})
    tensors = {n: p.input(n, x) for n, x in given.items()}
    names = ("step", "lr", "beta1", "beta2", "eps", "weight_decay")
    scalars = [_scalar(p, n, x) for n, x in zip(names, (step, lr, beta1, beta2, eps, weight_decay))]
    changed = [n for n in tensors if n != "g"]
    full = [tensors.get(n) for n in ("p", "g", "m", "v", "vmax")]
    made = p.graph.call(
        "adam_step",
        *full, *scalars, decoupled=decoupled, maximize=maximize,
        names=[f"next_{n}" for n in changed], like=[tensors[n] for n in changed],
    )  # fmt: skip
    for n, t in zip(changed, made):
        p.changed(t, given[n])


def _sgd(p: Problem, *a: Any) -> None:
    w, g, buf, weight_decay, momentum, lr, dampening, nesterov, maximize, first, scale, found = a
    _scaled(scale, found)
    given = _alike({"p": w, "g": g, "buf": buf})
    if given["p"].dtype is not F32:
        raise Pass("bfloat16, which stock's SGD steps by another formula")
    first = first and buf is not None
    tensors = {n: p.input(n, x) for n, x in given.items() if not (first and n == "buf")}
    numbers = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
    scalars = [_scalar(p, n, x) for n, x in numbers.items()]
    changed = [n for n in given if n != "g"]
    made = p.graph.sgd_step(
        tensors["p"], tensors["g"], tensors.get("buf"), *scalars,
        nesterov=nesterov, maximize=maximize, first=first, names=[f"next_{n}" for n in changed],
        like=[given[n].tensor(n) for n in changed],
    )  # fmt: skip
    for n, t in zip(changed, made if isinstance(made, tuple) else (made,)):
        p.changed(t, given[n])


PROBLEMS: dict[str, Maker] = {
    f"{name}{overload}": maker
    for name, maker in (
        ("_fused_adam_", partial(_adam, False)),
        ("_fused_adamw_", partial(_adam, True)),
        ("_fused_sgd_", _sgd),
    )
    for overload in ("", ".tensor_lr")
}
