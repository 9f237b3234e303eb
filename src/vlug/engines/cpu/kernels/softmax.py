"""Softmax and log-softmax with their gradients: a row at a time, or vectors of neighbouring columns.

The largest element is found without regard to NaN: a NaN makes the sum, and so the whole row, NaN anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vlug.codegen.ir import Int, Kernel, Lanes, View, larger, reduce
from vlug.codegen.vecmath import exp, log
from vlug.engines.cpu.kernels.common import sizes, unflatten, units

__all__ = [
    "LOW",
    "computed",
    "softmax_backward_columns",
    "softmax_backward_rows",
    "softmax_columns",
    "softmax_rows",
    "softmax_short_rows",
    "top_of",
]

LOW = float("-inf")


def views(
    k: Kernel, names: str, kinds: Sequence[str], outer: int, dims: Sequence[Int], steps: Sequence[Any]
) -> Any:
    """(outer extents, views (*outer, *dims)); steps: the strides of the dims where they are constant."""
    I, out = sizes(k, "i", outer), []
    for name, kind in zip(names, kinds):
        own = [s or k.size(f"{name}_d{i}") for i, s in enumerate(steps)]
        out.append(k.view(*I, *dims, strides=[*sizes(k, f"{name}_i", outer), *own], dtype=kind))
    return I, out


def lines(k: Kernel, I: Sequence[Int]) -> Iterator[list[Int]]:
    """Parallel over outer indices, `group` to a unit; `count` is their product."""
    group, count = k.size("group"), k.size("count")
    for u in units(k, k.ceil_div(count, group)):
        for i in k.range(u * group, k.min((u + 1) * group, count)):
            yield unflatten(i, I)


def computed(kind: str | None) -> str:
    """What is computed in."""
    return "f64" if kind == "f64" else "f32"


def top_of(k: Kernel, line: View, n0: Int, n1: Int) -> Any:
    """The largest element of a row."""
    top = k.var(k.full(LOW, 4, computed(line.elem.name)))
    for n in k.vectors(n0, n1, by=4):
        v = line.load(n, other=LOW)
        top.set(larger(v, top.part(0, len(v.v))))
    best = top.part(0)
    for i in range(1, 4):
        best = larger(best, top.part(i))
    return best.max()


def softmax_rows(k: Kernel, kinds: tuple[str, ...], outer: int, unit: bool, logs: bool) -> None:
    """y = exp(x - top) / Σ, or x - top - log Σ. Tensors: x y."""
    L = k.size("L")
    I, (x, y) = views(k, "xy", kinds, outer, [L], [int(unit)])
    dtype = computed(kinds[0])
    keep = kinds[1] == dtype and unit and not logs  # exponentials wait in y, else in scratch of their own
    group, count = k.size("group"), k.size("count")
    per = k.size("per")
    for begin, end in k.chunk(k.size("parts")):
        scratch = None if keep or logs else k.scratch(L, dtype=dtype)
        for i in k.range(begin * per * group, k.min(end * per * group, count)):
            line, out = x.at(*unflatten(i, I)), y.at(*unflatten(i, I))
            row = out if scratch is None else scratch
            high, total = top_of(k, line, 0, L), k.var(k.zeros(4, dtype))
            for n in k.vectors(L, by=4):
                e = k.valid(n, exp(line.load(n, other=LOW) - high))
                total += e
                if not logs:
                    row[n] = e
            if logs:
                shift = log(total.sum())
                for n in k.vectors(L, by=4):
                    out[n] = line[n] - high - shift
            else:
                scale = 1.0 / total.sum()
                for n in k.vectors(L, by=4):
                    out[n] = row[n] * scale


def softmax_short_rows(k: Kernel, kinds: tuple[str, ...], outer: int, unit: bool, logs: bool) -> None:
    """The same for rows of at most four vectors, which stay in registers from load to store."""
    L = k.size("L")
    I, (x, y) = views(k, "xy", kinds, outer, [L], [int(unit)])
    for i in lines(k, I):
        line, out = x.at(*i), y.at(*i)
        for n in k.vectors(L, by=4, tail="switch"):  # one of its bodies runs
            d = line.load(n, other=LOW)
            d = d - reduce(d, larger)
            e = k.valid(n, exp(d))
            out[n] = d - log(e.sum()) if logs else e * (1.0 / e.sum())


def column_blocks(k: Kernel, I: Sequence[Int], N: Int) -> Iterator[tuple[list[Int], Lanes]]:
    """Parallel over outer indices and blocks of NB columns; vectors of columns, by=2."""
    NB = k.size("NB")
    blocks = k.ceil_div(N, NB)
    for u in units(k, k.size("count") * blocks):
        i, b = u // blocks, u % blocks
        for n in k.vectors(b * NB, k.min((b + 1) * NB, N), by=2):
            yield unflatten(i, I), n


def softmax_columns(k: Kernel, kinds: tuple[str, ...], outer: int, logs: bool) -> None:
    """The same along an axis L that is not the dense one; vectors lie along N. Tensors: x y."""
    L, N = k.size("L"), k.size("N")
    I, (x, y) = views(k, "xy", kinds, outer, [L, N], [0, 1])
    dtype = computed(kinds[0])
    keep = kinds[1] == dtype and not logs
    for i, n in column_blocks(k, I, N):
        from_, to = x.at(*i), y.at(*i)
        by = len(n.masks)
        top, total = k.var(k.full(LOW, by, dtype)), k.var(k.zeros(by, dtype))
        for l in k.range(L):
            top.set(larger(from_[l, n], top))
        for l in k.range(L):
            e = exp(from_[l, n] - top)
            total += e
            if keep:
                to[l, n] = e
        shift = log(total) if logs else 1.0 / total
        for l in k.range(L):
            if logs:
                to[l, n] = from_[l, n] - top - shift
            else:
                to[l, n] = (to[l, n] if keep else exp(from_[l, n] - top)) * shift


def _gradient(g: Any, y: Any, s: Any, logs: bool) -> Any:
    return g - exp(y) * s if logs else y * (g - s)


def softmax_backward_rows(k: Kernel, kinds: tuple[str, ...], outer: int, unit: bool, logs: bool) -> None:
    """dx = y · (dy - Σ dy · y), or dy - exp(y) · Σ dy. Tensors: dy y dx."""
    L = k.size("L")
    I, (dy, y, dx) = views(k, "gyd", kinds, outer, [L], [int(unit)])
    for i in lines(k, I):
        g, p, out = dy.at(*i), y.at(*i), dx.at(*i)
        total = k.var(k.zeros(4, computed(kinds[0])))
        for n in k.vectors(L, by=4):
            total += g[n] if logs else g[n] * p[n]
        s = total.sum()
        for n in k.vectors(L, by=4):
            out[n] = _gradient(g[n], p[n], s, logs)


def softmax_backward_columns(k: Kernel, kinds: tuple[str, ...], outer: int, logs: bool) -> None:
    """The same along an axis that is not the dense one. Tensors: dy y dx."""
    L, N = k.size("L"), k.size("N")
    I, (dy, y, dx) = views(k, "gyd", kinds, outer, [L, N], [0, 1])
    for i, n in column_blocks(k, I, N):
        g, p, out = dy.at(*i), y.at(*i), dx.at(*i)
        total = k.var(k.zeros(len(n.masks), computed(kinds[0])))
        for l in k.range(L):
            total += g[l, n] if logs else g[l, n] * p[l, n]
        for l in k.range(L):
            out[l, n] = _gradient(g[l, n], p[l, n], total, logs)
