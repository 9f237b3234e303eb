"""Pointwise chains in one pass: every node's formula over vectors of the inner axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.codegen.ir import Kernel, Val, View, maximum, select
from vlug.engines.cpu.kernels.common import aligned, sizes, unflatten, units

__all__ = ["pointwise"]


def relu(k: Kernel, x: Val, plain: bool, at: int, dtype: str) -> Any:
    """max(x, 0), or the clipped and leaky form; NaN stays."""
    if plain:
        return maximum(x, 0.0)
    slope, low, high = (k.scalar(f"{n}{at}", dtype) for n in ("slope", "low", "high"))
    below = select(slope.eq(0.0), low, low + slope * (x - low))  # slope 0: low, for -inf too
    return select(x <= low, below, select(x >= high, high, x))


def relu_backward(k: Kernel, dy: Val, x: Val, plain: bool, at: int, dtype: str) -> Any:
    """dy where x lies between the clips, slope · dy below, 0 above; NaN in x lets dy through."""
    if plain:
        return select(x <= 0.0, 0.0, dy)
    slope, low, high = (k.scalar(f"{n}{at}", dtype) for n in ("slope", "low", "high"))
    below = select(slope.eq(0.0), 0.0, slope * dy)
    clipped = (x >= high) & (high < float("inf"))
    return select(x <= low, below, select(clipped, 0.0, dy))


def formula(k: Kernel, op: str, xs: Sequence[Val], plain: bool, at: int, dtype: str) -> Any:
    match op:
        case "add" | "bias":
            return xs[0] + xs[1]
        case "mul":
            return xs[0] * xs[1]
        case "relu":
            return relu(k, xs[0], plain, at, dtype)
        case "relu_backward":
            return relu_backward(k, xs[0], xs[1], plain, at, dtype)
        case "scale":
            return xs[0] if plain else xs[0] * k.scalar(f"factor{at}", dtype)
    raise ValueError(f"no formula for {op}")


def pointwise(
    k: Kernel,
    nodes: tuple[tuple[str, tuple[int, ...], int, bool], ...],
    inputs: int,
    dtypes: tuple[str, ...],
    inner: tuple[int, ...],
    outer: int,
    stream: bool,
) -> None:
    """nodes: (operation, its operands, its result, whether plain), operands numbered: the inputs, the stored
    outputs, then values that stay in registers. inner: each tensor's stride along the inner axis: 0, 1,
    or -1 where it is a run-time one. Axes: `outer` of them, rows M, elements N, in blocks of MB × NB."""
    dtype = "f64" if dtypes[0] == "f64" else "f32"
    E, M, N, MB, NB = sizes(k, "e", outer), k.size("M"), k.size("N"), k.size("MB"), k.size("NB")
    views = []
    for t, (kind, step) in enumerate(zip(dtypes, inner)):
        last = step if step >= 0 else k.size(f"t{t}_inner")
        views.append(k.view(*E, M, N, strides=[*sizes(k, f"t{t}_s", outer + 1), last], dtype=kind))
    blocks_m, blocks_n = k.ceil_div(M, MB), k.ceil_div(N, NB)
    total = blocks_m * blocks_n
    for e in E:
        total = total * e

    def rows(index: Sequence[Any], m: Any, lo: Any, hi: Any, past_caches: bool) -> None:
        line = [v.at(*index, m) for v in views]
        fixed = {t: line[t][0] for t in range(inputs) if inner[t] == 0}
        for i in k.vectors(lo, hi, by=4):
            value: dict[int, Val] = dict(fixed)
            for at, (op, ins, out, plain) in enumerate(nodes):
                for t in ins:
                    if t not in value:
                        value[t] = line[t][i]
                value[out] = formula(k, op, [value[t] for t in ins], plain, at, dtype)
            for t in range(inputs, len(views)):
                whole = all(m is None for m in i.masks)
                line[t].store(i, value[t], stream=past_caches and whole)

    def work(past_caches: bool) -> None:
        for u in units(k, total):
            *index, mb, nb = unflatten(u, [*E, blocks_m, blocks_n])
            for m in k.range(mb * MB, k.min((mb + 1) * MB, M)):
                rows(index, m, nb * NB, k.min((nb + 1) * NB, N), past_caches)

    if not stream:
        work(False)
        return
    outs: list[View] = views[inputs:]
    fits = aligned(k, outs[0])
    for v in outs[1:]:
        fits = fits & aligned(k, v)
    for past_caches in k.either(fits):
        work(past_caches)
