"""Copies between strides, and gathers along the axes (padding): bytes move, nothing is computed."""

from __future__ import annotations

from typing import Any

from vlug.codegen.ir import Int, Kernel, Val, View, transpose
from vlug.codegen.types import I64, PTR, elem
from vlug.engines.cpu.kernels.common import sizes, unflatten

__all__ = ["copies", "taken"]

#: First words of a piece: first unit, one past the last, source, where it starts, where in the result.
HEAD = 5


def _behind(k: Kernel, n: Int, at: Int = 0) -> View:
    """Words of args behind the named ones, from number `at`; every size must have been asked for before."""
    start = k.main_entry.gep(k.main.args[1], [I64(len(k.arg_names))], source_etype=I64)
    return View(k, k.gep(start, at, I64), (n,), [1], "i64")


def _pointer(k: Kernel, i: Int) -> Any:
    table = View(k, k.main.args[0], (1,), [1], "i64")
    return k.op("inttoptr", k.op("load", k.gep(table.ptr, i, I64), typ=I64), PTR)


def copies(k: Kernel, item: str, outer: int, how: str, pieces: int) -> None:
    """Tensors: the sources (one a piece), y.

    A piece is a loop nest: `outer` axes, then M, N (words: extents, MB, NB, strides of the source, of y).
    how: "dense" (both have stride 1 along N), "turn" (the source along M, y along N), "strided".
    """
    words = HEAD + 3 * (outer + 2) + 2
    P = k.size("P")
    per, total = k.size("per"), k.size("total")
    k.size("parts")
    k.tensors = pieces + 1
    table = View(k, _behind(k, 1).ptr, (P, words), dtype="i64")
    for begin, end in k.chunk(k.size("parts")):
        first, last = begin * per, k.min(end * per, total)
        for p in k.range(P):
            row = [table[p, i].idx() for i in range(words)]
            lo, hi, source, begins, offset = row[:HEAD]
            extents, (MB, NB) = row[HEAD : HEAD + outer + 2], row[HEAD + outer + 2 : HEAD + outer + 4]
            strides = row[HEAD + outer + 4 :]
            s, d = strides[: outer + 2], strides[outer + 2 :]
            storage = elem(item).storage
            x, y = k.gep(_pointer(k, source), begins, storage), k.gep(_pointer(k, P), offset, storage)
            *E, M, N = extents
            blocks = [k.ceil_div(M, MB), k.ceil_div(N, NB)]
            for u in k.range(k.max(first, lo), k.min(last, hi)):
                *o, mb, nb = unflatten(u - lo, [*E, *blocks])
                src = View(k, x, (*E, M, N), [*s[:-1], 1 if how == "dense" else s[-1]], item).at(*o)
                dst = View(k, y, (*E, M, N), [*d[:-1], 1 if how != "strided" else d[-1]], item).at(*o)
                rows, columns = (mb * MB, k.min((mb + 1) * MB, M)), (nb * NB, k.min((nb + 1) * NB, N))
                if how == "turn":
                    src = View(k, src.ptr, (N, M), [src.strides[1], 1], item)
                    _turned(k, src, dst, rows, columns)
                    continue
                for m in k.range(*rows):
                    if how == "dense":
                        for n in k.vectors(*columns, by=4):
                            dst[m, n] = src[m, n]
                    else:
                        for i in k.range(*columns):
                            dst[m, i] = src[m, i]


def _turned(k: Kernel, src: View, dst: View, rows: tuple[Int, Int], columns: tuple[Int, Int]) -> None:
    """dst[m, n] = src[n, m], both dense along their last index: tiles through registers."""
    V = k.V
    (m0, m1), (n0, n1) = rows, columns

    def tile(m: Int, whole: bool) -> None:
        for n in k.loop(n0, n1, V):
            at = k.vector(m) if whole else k.first(m, m1 - m)
            lines = [src[k.min(n + i, n1 - 1), at] for i in range(V)]
            for j, column in enumerate(transpose(lines)):
                if whole:
                    dst[m + j, k.first(n, n1 - n)] = column
                else:
                    with k.when(m + j < m1):
                        dst[m + j, k.first(n, n1 - n)] = column

    middle = m0 + (m1 - m0) // V * V
    for m in k.loop(m0, middle, V):
        tile(m, True)
    with k.when(k.compare("<", middle, m1)):
        tile(middle, False)


def taken(k: Kernel, item: str, outer: int, unit: bool) -> None:
    """Tensors: x, y. y[o…, q] = x[sum of offsets], or `fill` where an offset is below 0.

    Behind the sizes: for each outer axis an offset for each index, then one for each q. Between lo and hi the
    elements of x are `step` apart: q lies at (q + shift) · step. y is dense along q.
    """
    E, N = sizes(k, "e", outer), k.size("N")
    strides = sizes(k, "s", outer)
    lo, hi, shift, step = (k.size(n) for n in ("lo", "hi", "shift", "step"))
    RB, per, fill = k.size("RB"), k.size("per"), k.size("fill")
    k.size("parts")
    x = k.view(1, strides=[1], dtype=item)
    y = k.view(*E, N, strides=[*strides, 1], dtype=item)
    value = k.to_int(fill).to({"b8": "i8", "b16": "i16"}.get(item, item))
    tables, at, total = [], 0, 1
    for e in (*E, N):
        tables.append(_behind(k, e, at))
        at = e + at
    for e in E:
        total = e * total
    for begin, end in k.chunk(k.size("parts")):
        for r in k.range(begin * per * RB, k.min(end * per * RB, total)):
            index = unflatten(r, E)
            offset: Int = 0
            for t, i in zip(tables, index):
                offset = t[i].idx() + offset
            out = y.at(*index)
            for inside in k.either(k.condition(offset >= 0)):
                if not inside:
                    for n in k.vectors(N, by=4):
                        out[n] = value
                    continue
                row = View(k, x.addr(offset), (N,), [1], item)
                for a, b in ((0, lo), (hi, N)):
                    _by_table(k, row, out, tables[-1], (a, b), value)
                line = View(k, row.ptr, (N,), [1 if unit else step], item)
                if unit:
                    for n in k.vectors(lo, hi, by=4):
                        out[n] = line[n + shift]
                else:
                    for q in k.range(lo, hi):
                        out[q] = line[q + shift]


def _by_table(k: Kernel, row: View, out: View, table: View, span: tuple[Int, Int], value: Val) -> None:
    for q in k.range(*span):
        at = table[q].idx()
        for inside in k.either(k.condition(at >= 0)):
            out[q] = row[at] if inside else value
