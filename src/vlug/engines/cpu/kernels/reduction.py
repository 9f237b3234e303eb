"""Sums over axes, along rows or down columns: blocks of the reduced axes apart, then together."""

from __future__ import annotations

from vlug.codegen.ir import Kernel, Val, Var
from vlug.engines.cpu.kernels.common import sizes, unflatten, units

__all__ = ["column_sums", "row_sums", "short_row_sums"]


def row_sums(k: Kernel, dtypes: tuple[str, str], kept: int, reduced: int, unit: bool) -> None:
    """y[i…] = sum over j… and n of x[i…, j…, n], divided by `count`; n runs along the rows.

    The reduced elements go in blocks of JB rows × NB elements, the same for any number of threads.
    """
    x_type, y_type = dtypes
    dtype = "f64" if x_type == "f64" else "f32"
    I, J, N = sizes(k, "i", kept), sizes(k, "j", reduced), k.size("N")
    JB, NB = k.size("JB"), k.size("NB")
    step = 1 if unit else k.size("x_inner")
    x = k.view(*I, *J, N, strides=[*sizes(k, "x_i", kept), *sizes(k, "x_j", reduced), step], dtype=x_type)
    y = k.view(*I, 1, strides=[*sizes(k, "y_i", kept), 0], dtype=y_type)
    rows, total = k.size("rows"), k.size("kept")  # products of J and of I
    blocks_j, blocks_n = k.ceil_div(rows, JB), k.ceil_div(N, NB)
    blocks = blocks_j * blocks_n
    partial = k.shared(total, blocks, dtype=dtype, size=k.size("partials"))
    for u in units(k, total * blocks):
        i, jb, nb = unflatten(u, [total, blocks_j, blocks_n])
        here = x.at(*unflatten(i, I))
        lo, hi = nb * NB, k.min((nb + 1) * NB, N)
        acc = k.var(k.zeros(4, dtype))
        for j in k.range(jb * JB, k.min((jb + 1) * JB, rows)):
            line = here.at(*unflatten(j, J))
            for n in k.vectors(lo, hi, by=4):
                acc += line[n]
        partial[i, u - i * blocks] = acc.sum()
    count = k.scalar("count", dtype)
    group = k.size("group")  # sums finished by one unit
    for u in k.parallel(k.size("groups")):
        for i in k.range(u * group, k.min((u + 1) * group, total)):
            s = k.var(k.zeros(4, dtype))
            for b in k.vectors(blocks, by=4):
                s += partial[i, b]
            y[(*unflatten(i, I), 0)] = s.sum() / count


def short_row_sums(k: Kernel, dtypes: tuple[str, str], kept: int, unit: bool) -> None:
    """y[i…] = sum over n of x[i…, n], divided by `count`, for rows that are one block."""
    x_type, y_type = dtypes
    dtype = "f64" if x_type == "f64" else "f32"
    I, N = sizes(k, "i", kept), k.size("N")
    step = 1 if unit else k.size("x_inner")
    x = k.view(*I, N, strides=[*sizes(k, "x_i", kept), step], dtype=x_type)
    y = k.view(*I, 1, strides=[*sizes(k, "y_i", kept), 0], dtype=y_type)
    total, group, count = k.size("kept"), k.size("group"), k.scalar("count", dtype)
    for u in units(k, k.ceil_div(total, group)):
        for i in k.range(u * group, k.min((u + 1) * group, total)):
            at = unflatten(i, I)
            line = x.at(*at)
            acc = k.var(k.zeros(4, dtype))
            for n in k.vectors(N, by=4, tail="switch"):
                acc += line[n]
            y[(*at, 0)] = acc.sum() / count


def add_rows(k: Kernel, acc: Var, rows: list[Val]) -> None:
    """acc += the rows, summed by halves."""
    while len(rows) > 1:
        rows = [a + b for a, b in zip(rows[::2], rows[1::2])] + (rows[-1:] if len(rows) % 2 else [])
    acc += rows[0]


def column_sums(k: Kernel, dtypes: tuple[str, str], kept: int, reduced: int, unit: bool) -> None:
    """y[i…, n] = sum over j… of x[i…, j…, n], divided by `count`; vectors lie along n.

    Rows go in blocks of JB, columns in blocks of NB. unit: whether y is dense along n.
    """
    x_type, y_type = dtypes
    dtype = "f64" if x_type == "f64" else "f32"
    I, J, N = sizes(k, "i", kept), sizes(k, "j", reduced), k.size("N")
    JB, NB = k.size("JB"), k.size("NB")
    x = k.view(*I, *J, N, strides=[*sizes(k, "x_i", kept), *sizes(k, "x_j", reduced), 1], dtype=x_type)
    step = 1 if unit else k.size("y_inner")
    y = k.view(*I, N, strides=[*sizes(k, "y_i", kept), step], dtype=y_type)
    rows, total = k.size("rows"), k.size("kept")
    blocks_j, blocks_n = k.ceil_div(rows, JB), k.ceil_div(N, NB)
    partial = k.shared(total, blocks_j, N, dtype=dtype, size=k.size("partials"))
    together = 8
    for u in units(k, total * blocks_j * blocks_n):
        i, jb, nb = unflatten(u, [total, blocks_j, blocks_n])
        lo, hi = nb * NB, k.min((nb + 1) * NB, N)
        out = partial.at(i, jb)
        here = x.at(*unflatten(i, I))
        begin, end = jb * JB, k.min((jb + 1) * JB, rows)
        for n in k.vectors(lo, hi, by=4):
            out[n] = 0.0
        middle = begin + (end - begin) // together * together
        for j in k.range(begin, middle, together):
            lines = [here.at(*unflatten(j + r, J)) for r in range(together)]
            for n in k.vectors(lo, hi, by=1):
                acc = k.var(out[n])
                add_rows(k, acc, [line[n] for line in lines])
                out[n] = acc
        for j in k.range(middle, end):
            line = here.at(*unflatten(j, J))
            for n in k.vectors(lo, hi, by=1):
                out[n] = out[n] + line[n]
    count = k.scalar("count", dtype)
    for u in k.parallel(k.size("groups")):
        i, nb = unflatten(u, [total, blocks_n])
        line = y.at(*unflatten(i, I))
        for n in k.vectors(nb * NB, k.min((nb + 1) * NB, N)):
            s = k.var(k.zeros(1, dtype))
            for b in k.range(blocks_j):
                s += partial[i, b, n]
            line[n] = s / count
