"""Calls of PyTorch as graphs: layer norm and group norm, whose statistics are a sample's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.dtypes import F32, DType
from vlug.frontends.torch.keys import Arg, Pass
from vlug.frontends.torch.problems.base import Maker, Problem, alike, count, formatted
from vlug.tensor import Tensor, contiguous_strides

__all__ = ["PROBLEMS", "statistic_dtype"]


def statistic_dtype(x: Arg, *parameters: Arg | None) -> DType:
    """What stock keeps statistics in: fp32 beside 16-bit values where the parameters are, else x's type."""
    kinds = {p.dtype for p in parameters if p is not None}
    if kinds <= {x.dtype}:
        return x.dtype
    if kinds == {F32} and x.dtype.itemsize == 2:
        return F32
    raise Pass(f"parameters of {', '.join(sorted(k.name for k in kinds))} beside {x.dtype}")


def _dense(name: str, dim: Sequence[int], *args: Arg | None) -> None:
    """Parameters are contiguous, of dims `dim`."""
    for a in args:
        if a is not None and (a.dim != tuple(dim) or not a.is_contiguous):
            raise Pass(f"{name} that are not {tuple(dim)} and contiguous")


def _rows(axis: int, *full: Arg) -> None:
    """The elements of a row lie side by side."""
    for a in full:
        steps = zip(a.dim[axis:], a.stride[axis:], contiguous_strides(a.dim[axis:]))
        if any(d > 1 and s != want for d, s, want in steps):
            raise Pass("rows whose elements are apart")


def _split(x: Arg, shape: Sequence[int]) -> int:
    """The first dimension of a row."""
    if not shape or tuple(x.dim[-len(shape) :]) != tuple(shape):
        raise Pass("left to stock to judge: normalized_shape does not fit")
    return x.rank - len(shape)


def _given(p: Problem, name: str, arg: Arg | None) -> Tensor | None:
    return None if arg is None else p.input(name, arg)


def _layer_norm(p: Problem, x: Any, shape: Any, scale: Any, bias: Any, eps: float) -> None:
    alike(x)
    axis = _split(x, shape)
    _rows(axis, x)
    _dense("parameters", shape, scale, bias)
    kind = statistic_dtype(x, scale, bias)
    stat = (*x.dim[:axis], *[1] * len(shape))
    like = [formatted("y", x.dim, x.dtype, False)]
    like += [formatted(n, stat, kind, False) for n in ("mean", "inv_std")]
    ins = (p.input("x", x), _given(p, "scale", scale), _given(p, "bias", bias))
    made = p.graph.layernorm(*ins, axis=axis, eps=eps, names=["y", "mean", "inv_std"], like=like)
    for t in made:
        p.output(t)


def _layer_norm_backward(
    p: Problem, dy: Any, x: Any, shape: Any, mean: Any, inv: Any, scale: Any, bias: Any, mask: Any
) -> None:
    alike(dy, x)
    if dy.dim != x.dim:
        raise Pass("dy and x of different sizes")
    axis = _split(x, shape)
    _rows(axis, dy, x)
    _dense("parameters", shape, scale, bias)
    _dense("statistics", (*x.dim[:axis], *[1] * len(shape)), mean, inv)
    statistic_dtype(x, scale, bias, mean, inv)
    wanted = _wanted(mask, scale, bias)
    like = {"dx": formatted("dx", x.dim, x.dtype, False)}
    for n, arg in (("dscale", scale), ("dbias", bias)):
        if arg is not None:
            like[n] = formatted(n, shape, arg.dtype, False)
    ins = (p.input("dy", dy), p.input("x", x), _given(p, "scale", scale))
    made = p.graph.layernorm_backward(
        *ins, p.input("mean", mean), p.input("inv_std", inv), axis=axis, names=wanted,
        like=[like.get(n) for n in wanted],
    )  # fmt: skip
    _gradients(p, made, mask)


def _wanted(mask: Sequence[bool], scale: Arg | None, bias: Arg | None) -> list[str]:
    """Names of gradients, "_" for those not asked for."""
    if not any(mask):
        raise Pass("no gradient is asked for")
    if (mask[1] and scale is None) or (mask[2] and bias is None):
        raise Pass("the gradient of a parameter that is not there")
    return [n if m else "_" for n, m in zip(("dx", "dscale", "dbias"), mask)]


def _gradients(p: Problem, made: Any, mask: Sequence[bool]) -> None:
    outs = iter(made if isinstance(made, tuple) else (made,))
    for asked in mask:
        if asked:
            p.output(next(outs))
        else:
            p.none()


def _group_layout(x: Arg, n: int, c: int, area: int, groups: int) -> bool:
    """Checks sizes and layout; whether x is channels last."""
    alike(x)
    if x.rank < 2 or x.dim[:2] != (n, c) or count(x.dim[2:]) != area or groups < 1 or c % groups:
        raise Pass("left to stock to judge: sizes that do not fit")
    last = x.suggests_channels_last
    if x.rank == 5 and (c == 1 or area == 1):
        raise Pass("a layout of several names")
    if not (x.is_channels_last if last else x.is_contiguous):
        raise Pass("strides that are neither contiguous nor channels last")
    return last


def _group_norm(
    p: Problem, x: Any, scale: Any, bias: Any, n: int, c: int, area: int, groups: int, eps: float
) -> None:
    last = _group_layout(x, n, c, area, groups)
    _dense("parameters", (c,), scale, bias)
    kind = statistic_dtype(x, scale, bias)
    like = [formatted("y", x.dim, x.dtype, last)]
    like += [formatted(s, (n, groups), kind, False) for s in ("mean", "inv_std")]
    ins = (p.input("x", x), _given(p, "scale", scale), _given(p, "bias", bias))
    made = p.graph.groupnorm(*ins, groups=groups, eps=eps, names=["y", "mean", "inv_std"], like=like)
    for t in made:
        p.output(t)


def _group_norm_backward(
    p: Problem, dy: Any, x: Any, mean: Any, inv: Any, scale: Any, n: int, c: int, area: int, groups: int,
    mask: Any,
) -> None:  # fmt: skip
    alike(dy, x)
    last = _group_layout(x, n, c, area, groups)
    if dy.dim != x.dim or not (dy.is_channels_last if last else dy.is_contiguous):
        raise Pass("dy and x of different sizes or layouts")
    _dense("parameters", (c,), scale)
    _dense("statistics", (n, groups), mean, inv)
    kind = statistic_dtype(x, scale, mean, inv)
    if mask[2] and scale is None:
        raise Pass("the gradient of a parameter whose type is not known")
    wanted = _wanted(mask, scale, scale)
    like = {"dx": formatted("dx", x.dim, x.dtype, last)}
    like |= {s: formatted(s, (c,), kind, False) for s in ("dscale", "dbias")}
    ins = (p.input("dy", dy), p.input("x", x), _given(p, "scale", scale))
    made = p.graph.groupnorm_backward(
        *ins, p.input("mean", mean), p.input("inv_std", inv), groups=groups, names=wanted,
        like=[like.get(s) for s in wanted],
    )  # fmt: skip
    _gradients(p, made, mask)


PROBLEMS: dict[str, Maker] = {
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
}
