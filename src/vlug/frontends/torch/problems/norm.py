"""Calls of PyTorch as graphs: normalisation."""

from __future__ import annotations

from typing import Any

from vlug.dtypes import F32
from vlug.frontends.torch.control import IS_WRITTEN, Output
from vlug.frontends.torch.keys import Arg, Pass, torch_dtype
from vlug.frontends.torch.problems.base import (
    Maker,
    Problem,
    alike,
    count,
    formatted,
    same_memory,
    vectors,
)
from vlug.frontends.torch.problems.sample_norm import statistic_dtype
from vlug.tensor import Tensor

__all__ = ["PROBLEMS"]


def _normed(x: Arg, *parameters: Arg | None) -> bool:
    """Checks x and its parameters; whether the result is channels last."""
    if x.rank < 2:
        raise Pass(f"{x.rank} dimensions, not 2 or more")
    alike(x)
    vectors(x.dim[1], *parameters)
    if x.is_contiguous:
        return False
    if not x.is_channels_last:
        raise Pass("strides that are neither contiguous nor channels last")
    return True


def _batch_norm(p: Problem, x: Any, scale: Any, bias: Any, rm: Any, rv: Any, *rest: Any) -> None:
    training, momentum, eps = rest
    last, kind = _normed(x, scale, bias, rm, rv), statistic_dtype(x, scale, bias, rm, rv)
    g = p.graph
    tx = p.input("x", x)
    y = formatted("y", x.dim, x.dtype, last) if x.rank == 4 else same_memory("y", x)

    def parameter(name: str, arg: Arg | None, written: bool = False) -> Tensor | None:
        return None if arg is None else p.input(name, arg, written)

    if not training:
        if rm is None or rv is None:
            raise Pass("evaluation without running statistics")
        mean, var = p.input("mean", rm), p.input("var", rv)
        p.output(
            g.batchnorm_inference(
                tx, mean, var, parameter("scale", scale), parameter("bias", bias), eps=eps, names=["y"],
                like=[y],
            )
        )  # fmt: skip
        for _ in range(2):
            p.results.append(Output((0,), (1,), torch_dtype(kind)))
        return
    if x.dim[0] * count(x.dim[2:]) < 2:
        raise Pass("one value a channel")
    if (rm is None) != (rv is None):
        raise Pass("one of the running statistics alone")
    inputs = [parameter("scale", scale), parameter("bias", bias)]
    names = ["y", "mean", "inv_std"]
    if rm is not None:
        inputs += [p.input("running_mean", rm, True), p.input("running_var", rv, True)]
        names += ["next_running_mean", "next_running_var"]
    c = x.dim[1:2]
    like = [y, *(formatted(n, c, kind, False) for n in names[1:3])]
    made = g.batchnorm(tx, *inputs, eps=eps, momentum=momentum, names=names, like=like)
    for t in made[:3]:
        p.output(t)
    if rm is not None:
        p.order["next_running_mean"] = rm.place | IS_WRITTEN
        p.order["next_running_var"] = rv.place | IS_WRITTEN


def _batch_norm_backward(p: Problem, dy: Any, x: Any, scale: Any, rm: Any, rv: Any, *rest: Any) -> None:
    mean, inv_std, training, eps, mask = rest
    if not training:  # of the running statistics; nothing was saved
        mean, inv_std = rm, rv
    if mean is None or inv_std is None:
        raise Pass("no saved statistics" if training else "evaluation without running statistics")
    last = _normed(x, scale, mean, inv_std)
    if statistic_dtype(x, scale, mean, inv_std) is not F32 and scale is None and any(mask[1:]):
        raise Pass("the gradient of a parameter whose type is not known")
    alike(dy, x)
    if dy.dim != x.dim:
        raise Pass("dy and x of different sizes")
    if not (dy.is_contiguous if not last else dy.is_channels_last):
        raise Pass("dy and x in different layouts")
    if not any(mask):
        raise Pass("no gradient is asked for")
    tdy, tx = p.input("dy", dy), p.input("x", x)
    tscale = None if scale is None else p.input("scale", scale)
    stats = (p.input("mean", mean), p.input("inv_std" if training else "var", inv_std))
    names = [n if wanted else "_" for n, wanted in zip(("dx", "dscale", "dbias"), mask)]
    dx = formatted("dx", x.dim, x.dtype, last) if x.rank == 4 else same_memory("dx", x)
    if training:
        made = p.graph.batchnorm_backward(tdy, tx, tscale, *stats, names=names, like=[dx])
    else:
        made = p.graph.batchnorm_inference_backward(tdy, tx, tscale, *stats, eps=eps, names=names, like=[dx])
    outs = iter(made if isinstance(made, tuple) else (made,))
    for wanted in mask:
        if wanted:
            p.output(next(outs))
        else:
            p.none()


def _batch_norm_no_stats(p: Problem, x: Any, scale: Any, bias: Any, *rest: Any) -> None:
    _batch_norm(p, x, scale, bias, None, None, *rest)


PROBLEMS: dict[str, Maker] = {
    "_native_batch_norm_legit.no_stats": _batch_norm_no_stats,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
}
