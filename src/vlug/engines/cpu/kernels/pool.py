"""Max and average pooling, forward and backward. Planes (NCHW): vectors along a row of results or of dx.
Rows (NHWC): vectors along the channels. Backward gathers: each dx element asks the windows that cover it, so
that every element is written once, in one order, and no index can write elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vlug.codegen.ir import Int, Kernel, Lanes, Val, View, maximum, select
from vlug.engines.cpu.kernels.common import sizes, unflatten, units
from vlug.engines.cpu.kernels.window import Line, Reach, covering, gather_rows, inside, loader, span, within

__all__ = [
    "avg_backward_planes",
    "avg_backward_rows",
    "avg_planes",
    "avg_rows",
    "max_backward_planes",
    "max_backward_rows",
    "max_planes",
    "max_rows",
]

NEGATIVE = float("-inf")


def _dtype(kind: str) -> str:
    return "f64" if kind == "f64" else "f32"


def _views(k: Kernel, names: str, kinds: Sequence[str], outer: int, dims: Sequence[Sequence[Int]],
           last: Sequence[int]) -> tuple[list[Int], list[View]]:  # fmt: skip
    """Views (*outer, rows, columns[, C]) named by letters; last: stride of the last dim, 0 if run-time."""
    O, out = sizes(k, "o", outer), []
    for name, kind, (d0, *rest), step in zip(names, kinds, dims, last):
        strides = sizes(k, f"{name}_s", outer + len(rest))
        out.append(k.view(*O, d0, *rest, strides=[*strides, step or k.size(f"{name}_last")], dtype=kind))
    return O, out


def _blocks(k: Kernel, O: Sequence[Int], rows: Int) -> Iterator[tuple[list[Int], tuple[Int, Int]]]:
    """Parallel over (outer indices, [first, last) of RB rows of a plane)."""
    RB = k.size("RB")
    blocks = k.ceil_div(rows, RB)
    total = blocks
    for e in O:
        total = total * e
    for u in units(k, total):
        *o, b = unflatten(u, [*O, blocks])
        yield o, (b * RB, k.min((b + 1) * RB, rows))


def _row_units(k: Kernel, O: Sequence[Int], rows: Int) -> Iterator[tuple[list[Int], Int]]:
    """Parallel over (outer indices, row)."""
    for o, block in _blocks(k, O, rows):
        for p in k.range(*block):
            yield o, p


def _lines(k: Kernel, R: int, S: int, sh: int, sw: int, dilation: int) -> tuple[Line, Line]:
    return (
        Line.of(k, "H R sh ph dh P", R, sh, dilation),
        Line.of(k, "W S sw pw dw Q", S, sw, dilation),
    )


# --- max -----------------------------------------------------------------------------------------
def _take(v: Val, best: Any, place: Any, where: Any, inside: Any = None) -> None:
    """best, place = v, where it is, if it is larger or NaN: the first of equals, the last NaN."""
    if place is None:
        best.set(maximum(best, v))
        return
    larger = (v > best) | v.isnan()
    if inside is not None:
        larger = larger & inside
    best.set(select(larger, v, best))
    place.set(select(larger, where, place))


def max_planes(k: Kernel, kinds: tuple[str, ...], outer: int, S: int, sw: int, dilation: int, unit: bool,
               index: bool) -> None:  # fmt: skip
    """Tensors: x y index. S, sw, dilation 0: run-time."""
    h, w = _lines(k, 0, S, 0, sw, dilation)
    last = 1 if unit else 0
    O, views = _views(k, "xyi", kinds, outer, [(h.size, w.size), (h.out, w.out), (h.out, w.out)], [last] * 3)
    x, y = views[:2]
    dtype = _dtype(kinds[0])
    for o, block in _blocks(k, O, h.out):
        plane, out = x.at(*o), y.at(*o)
        where = views[2].at(*o) if index else None
        for q in k.vectors(w.out):
            if S:
                at, ins, load = loader(k, q, w, unit)
            for p in k.range(*block):
                start, r0, r1 = span(k, h, p)
                best = k.var(k.full(NEGATIVE, 1, dtype))
                place: Any = None
                if S:
                    if index:
                        first = k.full(-1, 1, "i32")
                        for a, i in zip(reversed(at), reversed(ins)):
                            first = select(i, a + k.to_int((start + r0 * h.dilation) * w.size, "i32"), first)
                        place = k.var(select(k.condition(r0 < r1), first, k.full(-1, 1, "i32")))
                    for r in k.range(r0, r1):
                        row = start + r * h.dilation
                        base = k.to_int(row * w.size, "i32")
                        for v, a in zip(load(plane.at(row), NEGATIVE), at):
                            _take(v, best, place, a + base)
                else:
                    if index:
                        place = k.var(k.full(-1, 1, "i32"))
                    for r in k.range(r0, r1):
                        row = start + r * h.dilation
                        line, base = plane.at(row), k.to_int(row * w.size, "i32")
                        for s in k.range(w.taps):
                            lanes, a = inside(k, q * w.stride + (s * w.dilation - w.pad), w.size)
                            v, here = line.load(lanes, other=NEGATIVE), a + base
                            if place is not None:  # the first inside counts even if it is -inf
                                place.set(select((place < 0) & within(k, a, w.size), here, place))
                            _take(v, best, place, here)
                out[p, q] = best
                if where is not None:
                    where[p, q] = place.to("i64")


def max_rows(k: Kernel, kinds: tuple[str, ...], outer: int, dilation: int, index: bool, by: int) -> None:
    """Tensors: x y index, channels dense."""
    h, w = _lines(k, 0, 0, 0, 0, dilation)
    C, dtype = k.size("C"), _dtype(kinds[0])
    dims = [(h.size, w.size, C), (h.out, w.out, C), (h.out, w.out, C)]
    O, views = _views(k, "xyi", kinds, outer, dims, [1] * 3)
    x, y = views[:2]
    for o, p in _row_units(k, O, h.out):
        row0, r0, r1 = span(k, h, p)
        plane = x.at(*o)
        for q in k.range(w.out):
            column0, s0, s1 = span(k, w, q)
            out, where = y.at(*o, p, q), views[2].at(*o, p, q) if index else None
            first = (row0 + r0 * h.dilation) * w.size + (column0 + s0 * w.dilation)
            empty = k.condition(r0 >= r1) | k.condition(s0 >= s1)
            start = k.choose(empty, -1, first)
            for c in k.vectors(C, by=by):
                n = len(c.masks)
                best = k.var(k.full(NEGATIVE, n, dtype))
                place: Any = k.var(k.full(k.to_int(start, "i32"), n, "i32")) if index else None
                for r in k.range(r0, r1):
                    line = plane.at(row0 + r * h.dilation)
                    for s in k.range(s0, s1):
                        column = column0 + s * w.dilation
                        here = k.to_int((row0 + r * h.dilation) * w.size + column, "i32")
                        _take(line[column, c], best, place, here)
                out[c] = best
                if where is not None:
                    where[c] = place.to("i64")


def max_backward_planes(k: Kernel, kinds: tuple[str, ...], outer: int, S: int, sw: int, dilation: int,
                        unit: bool) -> None:  # fmt: skip
    """Tensors: dy index dx."""
    h, w = _lines(k, 0, S, 0, sw, dilation)
    last = 1 if unit else 0
    dims = [(h.out, w.out), (h.out, w.out), (h.size, w.size)]
    O, (dy, index, dx) = _views(k, "gid", kinds, outer, dims, [last] * 3)
    for o, block in _blocks(k, O, h.size):
        places, grads = index.at(*o), dy.at(*o)

        def share(row: Int, p: Int, r: Reach) -> list[Val]:
            place, g = places[p, r.q].to("i32"), grads[p, r.q]  # noqa: B023
            base = k.to_int(row * w.size, "i32")
            return [select(place.eq(c + base), g, 0.0) for c in r.columns]

        gather_rows(k, w, block, dx.at(*o), _dtype(kinds[0]), lambda row: covering(k, h, row), share)


def max_backward_rows(
    k: Kernel, kinds: tuple[str, ...], outer: int, sh: int, sw: int, dilation: int, by: int
) -> None:
    """Tensors: dy index dx, channels dense."""
    h, w = _lines(k, 0, 0, sh, sw, dilation)
    C, dtype = k.size("C"), _dtype(kinds[0])
    dims = [(h.out, w.out, C), (h.out, w.out, C), (h.size, w.size, C)]
    O, (dy, index, dx) = _views(k, "gid", kinds, outer, dims, [1] * 3)
    for o, row in _row_units(k, O, h.size):
        p0, p1 = covering(k, h, row)
        places, grads, out = index.at(*o), dy.at(*o), dx.at(*o, row)
        for column in k.range(w.size):
            q0, q1 = covering(k, w, column)
            target = k.to_int(row * w.size + column, "i32")
            for c in k.vectors(C, by=by):
                total = k.var(k.zeros(len(c.masks), dtype))
                for p in k.range(p0, p1):
                    for q in k.range(q0, q1):
                        total += select(places[p, q, c].to("i32").eq(target), grads[p, q, c], 0.0)
                out[column, c] = total


# --- average -------------------------------------------------------------------------------------
def _count(k: Kernel, line: Line, at: Int, name: str) -> Int:
    """Elements of a window that count along one dimension: those in [lo, hi)."""
    start = at * line.stride - line.pad
    return k.min(start + line.taps, k.size(f"{name}_hi")) - k.max(start, k.size(f"{name}_lo"))


def _counts(k: Kernel, line: Line, q: Lanes, name: str) -> Val:
    """The same for lanes of results (i32)."""
    start = k.positions(q * line.stride - line.pad, "i32")
    hi, lo = (k.to_int(k.size(f"{name}_{end}"), "i32") for end in ("hi", "lo"))
    end = start + k.to_int(line.taps, "i32")
    return select(end < hi, end, hi) - select(start > lo, start, lo)


def avg_planes(
    k: Kernel, kinds: tuple[str, ...], outer: int, S: int, sw: int, unit: bool, divisor: bool
) -> None:
    """Tensors: x y. divisor: a given one, else the elements that count."""
    h, w = _lines(k, 0, S, 0, sw, 1)
    last, dtype = 1 if unit else 0, _dtype(kinds[0])
    O, (x, y) = _views(k, "xy", kinds, outer, [(h.size, w.size), (h.out, w.out)], [last] * 2)
    for o, block in _blocks(k, O, h.out):
        plane, out = x.at(*o), y.at(*o)
        for q in k.vectors(w.out):
            if S:
                load = loader(k, q, w, unit)[2]
            across = k.valid(q, _counts(k, w, q, "w").to(dtype), 1.0)
            for p in k.range(*block):
                start, r0, r1 = span(k, h, p)
                total = k.var(k.zeros(1, dtype))
                for r in k.range(r0, r1):
                    line = plane.at(start + r)
                    if S:
                        for v in load(line, 0.0):
                            total += v
                    else:
                        for s in k.range(w.taps):
                            total += line[inside(k, q * w.stride + (s - w.pad), w.size)[0]]
                rows = k.to_float(_count(k, h, p, "h"), dtype)
                out[p, q] = total / (k.scalar("divisor", dtype) if divisor else across * rows)


def avg_rows(k: Kernel, kinds: tuple[str, ...], outer: int, divisor: bool, by: int) -> None:
    """Tensors: x y, channels dense."""
    h, w = _lines(k, 0, 0, 0, 0, 1)
    C, dtype = k.size("C"), _dtype(kinds[0])
    O, (x, y) = _views(k, "xy", kinds, outer, [(h.size, w.size, C), (h.out, w.out, C)], [1] * 2)
    for o, p in _row_units(k, O, h.out):
        row0, r0, r1 = span(k, h, p)
        rows, plane = _count(k, h, p, "h"), x.at(*o)
        for q in k.range(w.out):
            column0, s0, s1 = span(k, w, q)
            whole = k.to_float(rows * _count(k, w, q, "w"), dtype)
            count = k.scalar("divisor", dtype) if divisor else whole
            out = y.at(*o, p, q)
            for c in k.vectors(C, by=by):
                total = k.var(k.zeros(len(c.masks), dtype))
                for r in k.range(r0, r1):
                    line = plane.at(row0 + r)
                    for s in k.range(s0, s1):
                        total += line[column0 + s, c]
                out[c] = total / count


def avg_backward_planes(k: Kernel, kinds: tuple[str, ...], outer: int, S: int, sw: int, unit: bool,
                        divisor: bool) -> None:  # fmt: skip
    """Tensors: dy dx."""
    h, w = _lines(k, 0, S, 0, sw, 1)
    last, dtype = 1 if unit else 0, _dtype(kinds[0])
    O, (dy, dx) = _views(k, "gd", kinds, outer, [(h.out, w.out), (h.size, w.size)], [last] * 2)
    for o, block in _blocks(k, O, h.size):
        grads = dy.at(*o)

        def weight(q: Lanes) -> Val:
            if divisor:
                return k.full(1.0 / k.scalar("divisor", dtype), 1, dtype)
            return 1.0 / k.valid(q, _counts(k, w, q, "w").to(dtype), 1.0)

        def share(row: Int, p: Int, r: Reach) -> list[Val]:
            v = grads[p, r.q] * r.extra  # noqa: B023
            if not divisor:
                v = v * (1.0 / k.to_float(_count(k, h, p, "h"), dtype))
            return [v] * len(r.phases)

        gather_rows(k, w, block, dx.at(*o), dtype, lambda row: covering(k, h, row), share, weight)


def avg_backward_rows(
    k: Kernel, kinds: tuple[str, ...], outer: int, sh: int, sw: int, divisor: bool, by: int
) -> None:
    """Tensors: dy dx, channels dense."""
    h, w = _lines(k, 0, 0, sh, sw, 1)
    C, dtype = k.size("C"), _dtype(kinds[0])
    O, (dy, dx) = _views(k, "gd", kinds, outer, [(h.out, w.out, C), (h.size, w.size, C)], [1] * 2)
    for o, row in _row_units(k, O, h.size):
        p0, p1 = covering(k, h, row)
        grads, out = dy.at(*o), dx.at(*o, row)
        for column in k.range(w.size):
            q0, q1 = covering(k, w, column)
            for c in k.vectors(C, by=by):
                total = k.var(k.zeros(len(c.masks), dtype))
                for p in k.range(p0, p1):
                    rows = _count(k, h, p, "h")
                    for q in k.range(q0, q1):
                        whole = k.to_float(rows * _count(k, w, q, "w"), dtype)
                        count = k.scalar("divisor", dtype) if divisor else whole
                        total += grads[p, q, c] * (1.0 / count)
                out[column, c] = total
