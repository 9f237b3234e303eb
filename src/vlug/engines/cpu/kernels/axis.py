"""Maps along the spatial axes (resampling, means of windows, their gradients), largest of windows, scatters.

What each result takes stands in tables behind the sizes in args: for an axis of m results and t taps, t·m
element numbers (-1: none), then t·m weights or, for means, m divisors. Planes: a row of results is a sum of
rows of x, taken into scratch, and then gathered along the row. Rows (NHWC): vectors along the channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vlug.codegen.ir import Int, Kernel, Lanes, Val, View, select
from vlug.codegen.types import I64
from vlug.engines.cpu.kernels.common import sizes, unflatten

__all__ = ["largest_planes", "largest_rows", "map_planes", "map_rows", "scatter"]

AXES = "dhw"


@dataclass(frozen=True)
class Table:
    """Elements and weights of one axis: views (taps, results); divisor: (results)."""

    taps: Int
    out: Int
    index: View
    weight: View | None
    divisor: View | None


def tables(k: Kernel, weighted: bool, mean: bool) -> list[Table]:
    """The tables of the three axes. Every size must have been asked for before."""
    dims = [(k.size(f"t{a}"), k.size(f"{a}_out")) for a in AXES]
    at: Int = len(k.arg_names)
    found = []

    def piece(*shape: Int, dtype: str) -> View:
        nonlocal at
        n: Int = 1
        for d in shape:
            n = d * n
        start = k.gep(k.main.args[1], at, I64)
        at = n + at
        return View(k, start, shape, dtype=dtype)

    for t, m in dims:
        index = piece(t, m, dtype="i64")
        weight = piece(t, m, dtype="f64") if weighted else None
        divisor = piece(m, dtype="f64") if mean else None
        found.append(Table(t, m, index, weight, divisor))
    return found


def _units(k: Kernel, O: Sequence[Int], lines: Int, prepare: Any) -> Iterator[tuple[Any, list[Int], Int]]:
    """Parallel over (outer indices, line of results); `prepare()` once a part."""
    RB, per = k.size("RB"), k.size("per")
    blocks = k.ceil_div(lines, RB)
    total = blocks
    for e in O:
        total = total * e
    for begin, end in k.chunk(k.size("parts")):
        ready = prepare()
        for u in k.loop(begin * per, k.min(end * per, total)):
            *o, b = unflatten(u, [*O, blocks])
            for line in k.range(b * RB, k.min((b + 1) * RB, lines)):
                yield ready, o, line


def _views(k: Kernel, names: str, kinds: Sequence[str], outer: int, dims: Sequence[Sequence[Int]],
           last: int) -> tuple[list[Int], list[View]]:  # fmt: skip
    """Views (*outer, d, h, w[, C]) named by letters; last: stride of the last dim, 0 if run-time."""
    O, out = sizes(k, "o", outer), []
    for name, kind, shape in zip(names, kinds, dims):
        strides = sizes(k, f"{name}_s", outer + len(shape) - 1)
        out.append(k.view(*O, *shape, strides=[*strides, last or k.size(f"{name}_last")], dtype=kind))
    return O, out


def _shape(k: Kernel) -> tuple[list[Int], list[Int]]:
    return [k.size(f"{a}_in") for a in AXES], [k.size(f"{a}_out") for a in AXES]


def _across(k: Kernel, w: Table, dtype: str) -> tuple[View, View | None, View | None]:
    """The tables of w as they are used along a row: i32 and the type that is computed in."""
    taps, out = k.max(w.taps, 1), k.max(w.out, 1)
    made: list[Any] = [k.scratch(taps, out, dtype="i32")]
    made.append(None if w.weight is None else k.scratch(taps, out, dtype=dtype))
    made.append(None if w.divisor is None else k.scratch(out, dtype=dtype))
    for t in k.range(w.taps):
        for q in k.range(w.out):
            made[0][t, q] = w.index[t, q].to("i32")
            if w.weight is not None:
                made[1][t, q] = w.weight[t, q].to(dtype)
    if w.divisor is not None:
        for q in k.range(w.out):
            made[2][q] = w.divisor[q].to(dtype)
    return made[0], made[1], made[2]


def _taps(k: Kernel, table: Table, at: Int) -> Iterator[tuple[Int, Any]]:
    """(element, weight as a double) of the terms of result `at`."""
    for t in k.range(table.taps):
        i = table.index[t, at].idx()
        with k.when(i >= 0):
            yield i, None if table.weight is None else table.weight[t, at]


def _times(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a * b


def map_planes(k: Kernel, kinds: tuple[str, ...], outer: int, unit: bool, weighted: bool, mean: bool,
               ragged: bool) -> None:  # fmt: skip
    """Tensors: x y. unit: rows are dense; ragged: results of w have different numbers of terms."""
    size, out = _shape(k)
    dtype = "f64" if kinds[0] == "f64" else "f32"
    O, (x, y) = _views(k, "xy", kinds, outer, [size, out], 1 if unit else 0)
    k.size("RB"), k.size("per"), k.size("parts")
    d, h, w = tables(k, weighted, mean)

    def prepare() -> Any:
        return _across(k, w, dtype), k.scratch(size[2] + 4 * k.V, dtype=dtype)

    for ((index, weight, divisor), row), o, line in _units(k, O, out[0] * out[1], prepare):
        p0, p1 = line // out[1], line % out[1]
        plane = x.at(*o)
        for n in k.vectors(size[2], by=4):
            total = k.var(k.zeros(len(n.masks), dtype))
            for i, a in _taps(k, d, p0):
                for j, b in _taps(k, h, p1):
                    v, factor = plane[i, j, n], _times(a, b)
                    total += v if factor is None else v * factor.to(dtype)
            row[n] = total
        down = None
        if mean:
            down = d.divisor[p0].to(dtype) * h.divisor[p1].to(dtype)  # type: ignore[index]
        target = y.at(*o, p0, p1)
        for q in k.vectors(out[2]):
            total = k.var(k.zeros(1, dtype))
            for t in k.range(w.taps):
                at = index.load(t, q)
                some = _whole(k, q)
                if ragged:
                    some = k.zip(lambda a, b: k.op("and_", a, b), at >= 0, some)
                v = row.gather(at, some)
                total += v if weight is None else v * weight[t, q]
            if down is not None:
                total.set(total / (k.valid(q, divisor[q], 1.0) * down))
            target[q] = total


def _whole(k: Kernel, q: Lanes) -> Val:
    """The lanes that count, as a mask."""
    return Val(k, [k.mask(k.V) if q.masks[0] is None else k.use(q.masks[0])])


def map_rows(k: Kernel, kinds: tuple[str, ...], outer: int, weighted: bool, mean: bool, by: int) -> None:
    """Tensors: x y, channels dense."""
    size, out = _shape(k)
    C, dtype = k.size("C"), "f64" if kinds[0] == "f64" else "f32"
    O, (x, y) = _views(k, "xy", kinds, outer, [[*size, C], [*out, C]], 1)
    k.size("RB"), k.size("per"), k.size("parts")
    d, h, w = tables(k, weighted, mean)
    for _, o, line in _units(k, O, out[0] * out[1], lambda: None):
        p0, p1 = line // out[1], line % out[1]
        plane = x.at(*o)
        for q in k.range(out[2]):
            target = y.at(*o, p0, p1, q)
            down = None
            if mean:
                down = d.divisor[p0].to(dtype) * h.divisor[p1].to(dtype)  # type: ignore[index]
                down = down * w.divisor[q].to(dtype)  # type: ignore[index]
            for c in k.vectors(C, by=by):
                total = k.var(k.zeros(len(c.masks), dtype))
                for i, a in _taps(k, d, p0):
                    for j, b in _taps(k, h, p1):
                        for m, f in _taps(k, w, q):
                            factor = _times(_times(a, b), f)
                            v = plane[i, j, m, c]
                            total += v if factor is None else v * factor.to(dtype)
                target[c] = total if down is None else total / down


# --- the largest of windows ----------------------------------------------------------------------
def _take(v: Val, here: Any, best: Any, place: Any, some: Any = None) -> None:
    """The first of equals, the last NaN; the first element counts whatever it is."""
    take = (v > best) | v.isnan() | (place < 0)
    if some is not None:
        take = take & some
    best.set(select(take, v, best))
    place.set(select(take, here, place))


def largest_planes(k: Kernel, kinds: tuple[str, ...], outer: int, unit: bool, index: bool) -> None:
    """Tensors: x y index."""
    size, out = _shape(k)
    dtype = "f64" if kinds[0] == "f64" else "f32"
    O, views = _views(k, "xyi", kinds, outer, [size, out, out], 1 if unit else 0)
    k.size("RB"), k.size("per"), k.size("parts")
    d, h, w = tables(k, False, False)
    x, y = views[:2]

    def prepare() -> Any:
        Q = k.max(out[2], 1)
        return (
            _across(k, w, dtype)[0], k.scratch(size[2] + k.V, dtype=dtype),
            k.scratch(Q + k.V, dtype=dtype), k.scratch(Q + k.V, dtype="i32"),
        )  # fmt: skip

    for (across, row, best_row, place_row), o, line in _units(k, O, out[0] * out[1], prepare):
        p0, p1 = line // out[1], line % out[1]
        for q in k.vectors(out[2]):
            best_row[q], place_row[q] = k.full(float("-inf"), 1, dtype), k.full(-1, 1, "i32")
        for i, _ in _taps(k, d, p0):
            for j, _ in _taps(k, h, p1):
                for n in k.vectors(size[2]):
                    row[n] = x.at(*o)[i, j, n]
                base = k.to_int((i * size[1] + j) * size[2], "i32")
                for q in k.vectors(out[2]):
                    best, place = k.var(best_row[q]), k.var(place_row[q])
                    for t in k.range(w.taps):
                        at = across.load(t, q)
                        some = (at >= 0) & _whole(k, q)
                        _take(row.gather(at, some), at + base, best, place, some)
                    best_row[q], place_row[q] = best, place
        for q in k.vectors(out[2]):
            y[(*o, p0, p1, q)] = best_row[q]
            if index:
                views[2][(*o, p0, p1, q)] = place_row[q].to("i64")


def largest_rows(k: Kernel, kinds: tuple[str, ...], outer: int, index: bool, by: int) -> None:
    """Tensors: x y index, channels dense."""
    size, out = _shape(k)
    C, dtype = k.size("C"), "f64" if kinds[0] == "f64" else "f32"
    O, views = _views(k, "xyi", kinds, outer, [[*size, C], [*out, C], [*out, C]], 1)
    k.size("RB"), k.size("per"), k.size("parts")
    d, h, w = tables(k, False, False)
    x, y = views[:2]
    for _, o, line in _units(k, O, out[0] * out[1], lambda: None):
        p0, p1 = line // out[1], line % out[1]
        plane = x.at(*o)
        for q in k.range(out[2]):
            for c in k.vectors(C, by=by):
                n = len(c.masks)
                best, place = k.var(k.full(float("-inf"), n, dtype)), k.var(k.full(-1, n, "i32"))
                for i, _ in _taps(k, d, p0):
                    for j, _ in _taps(k, h, p1):
                        for m, _ in _taps(k, w, q):
                            here = k.to_int((i * size[1] + j) * size[2] + m, "i32")
                            _take(plane[i, j, m, c], here, best, place)
                y[(*o, p0, p1, q, c)] = best
                if index:
                    views[2][(*o, p0, p1, q, c)] = place.to("i64")


def scatter(k: Kernel, kinds: tuple[str, ...], outer: int, unit: bool) -> None:
    """Tensors: dy index dx. Each plane of dx: the sum of dy where its index says, in order, in scratch."""
    size, out = [k.size(f"{a}_dx") for a in AXES], [k.size(f"{a}_dy") for a in AXES]
    dtype = "f64" if kinds[0] == "f64" else "f32"
    O, (dy, index, dx) = _views(k, "gid", kinds, outer, [out, out, size], 1 if unit else 0)
    whole = size[0] * size[1] * size[2]
    per, total = k.size("per"), O[0] if O else 1
    for e in O[1:]:
        total = total * e
    for begin, end in k.chunk(k.size("parts")):
        flat = k.scratch(whole + k.V, dtype=dtype)
        for u in k.loop(begin * per, k.min(end * per, total)):
            o = unflatten(u, O)
            for n in k.vectors(whole):
                flat[n] = k.zeros(1, dtype)
            for a in k.range(out[0]):
                for b in k.range(out[1]):
                    places, grads = index.at(*o, a, b), dy.at(*o, a, b)
                    for c in k.range(out[2]):
                        at = places[c].idx()
                        with k.when(k.condition(at >= 0) & k.condition(at < whole)):
                            flat[at] = flat[at] + grads[c]
            for a in k.range(size[0]):
                for b in k.range(size[1]):
                    row = View(k, flat.addr((a * size[1] + b) * size[2]), (1,), (1,), dtype)
                    for n in k.vectors(size[2]):
                        dx[(*o, a, b, n)] = row[n]
