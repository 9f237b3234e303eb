"""Pointwise chains in one pass: every node's formula over vectors of the inner axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.codegen.ir import Idx, Kernel, Lanes, Val, View
from vlug.engines.cpu.kernels.common import aligned, sizes, unflatten, units
from vlug.engines.cpu.kernels.formulas import Call, formula

__all__ = ["pointwise"]

#: (operation, its operands, its result, whether plain, what its operands are computed in, its result's dtype)
Node = tuple[str, tuple[int, ...], int, bool, str, str]


def pointwise(
    k: Kernel,
    nodes: tuple[Node, ...],
    inputs: int,
    dtypes: tuple[str, ...],
    inner: tuple[int, ...],
    outer: int,
    stream: bool,
    by: int,
) -> None:
    """nodes: a chain's operations, operands numbered: the inputs, the stored outputs, then indices along an
    axis and values that stay in registers. inner: the stride of each tensor, then of each index, along the
    inner axis: 0, 1, or -1 where it is a run-time one. Axes: `outer` of them, rows M, elements N, in blocks
    of MB × NB; `by` vectors at a time."""
    E, M, N, MB, NB = sizes(k, "e", outer), k.size("M"), k.size("N"), k.size("MB"), k.size("NB")
    views, steps = [], []
    for t, step in enumerate(inner):
        last = step if step >= 0 else k.size(f"t{t}_inner")
        strides = [*sizes(k, f"t{t}_s", outer + 1), last]
        if t < len(dtypes):
            views.append(k.view(*E, M, N, strides=strides, dtype=dtypes[t]))
        else:
            steps.append(strides)
    blocks_m, blocks_n = k.ceil_div(M, MB), k.ceil_div(N, NB)
    total = blocks_m * blocks_n
    for e in E:
        total = total * e
    read = {t for _, ins, *_ in nodes for t in ins}

    def place(t: int, index: Sequence[Any], i: Lanes) -> Val:
        """The index along an axis: a sum over loops as an address is."""
        *outside, last = steps[t - len(views)]
        start: Any = 0
        for x, s in zip(index, outside):
            start = s * x + start if isinstance(s, Idx) else x * s + start
        if inner[t] == 0:
            return k.to_int(start, "i64")
        return k.positions(i * last + start)

    def rows(index: Sequence[Any], m: Any, lo: Any, hi: Any, past_caches: bool) -> None:
        line = [v.at(*index, m) for v in views]
        fixed = {t: line[t][0] for t in range(inputs) if inner[t] == 0 and t in read}
        for i in k.vectors(lo, hi, by=by):
            value: dict[int, Val] = dict(fixed)
            for at, (op, ins, out, plain, kind, to) in enumerate(nodes):
                for t in ins:
                    if t not in value:
                        value[t] = place(t, [*index, m], i) if t >= len(views) else line[t][i]
                value[out] = formula(op, Call(k, at, plain, kind, to), [value[t] for t in ins])
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
