"""Sampling at the places of a grid: vectors along a row of results; places are reckoned in double."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlug.codegen.ir import Int, Kernel, Lanes, Val, View, floor, maximum, round_even, select
from vlug.engines.cpu.kernels.common import sizes

__all__ = ["grid_backward", "grid_sample"]


@dataclass(frozen=True)
class Term:
    """One of the elements that a vector of results takes: where it lies (i64), whether it is in the plane,
    its weight and the weight's derivatives by column and row (doubles): outside 0, or NaN."""

    inside: Val
    row: Val
    column: Val
    weight: Val
    by_column: Val
    by_row: Val


def _product(a: Val, b: Val) -> Val:
    """a · b rounded by itself, never with the addition that follows, as in the reference."""
    return a.k.zip(lambda x, y: a.k.op("fmul", x, y), a, b)


def _place(k: Kernel, g: Val, size: Int, padding: str, align: bool) -> tuple[Val, Val]:
    """As ops.grid's `places`."""
    n = k.to_float(size, "f64")
    span = k.full(n - 1.0 if align else n, 1, "f64")
    slope = span * 0.5
    at = _product(g + 1.0, slope)
    low = 0.0
    if not align:
        at, low = at - 0.5, -0.5
    if padding == "reflection":
        slope = select(at < low, -slope, slope)
        far = at - low
        far = select(far < 0.0, -far, far)
        turns = floor(far / maximum(span, 1.0))
        odd = (floor(turns * 0.5) * 2.0).ne(turns)
        rest = far - _product(turns, span)
        at = select(odd, span - rest, rest) + low
        slope = select(odd, -slope, slope)
    if padding != "zeros":
        top = k.full(n - 1.0, 1, "f64")
        slope = select((at > 0.0) & (at < top), slope, 0.0)
        at = select(at > 0.0, select(at < top, at, top), 0.0)
    return at, slope


def _terms(k: Kernel, grid: View, q: Lanes, size: tuple[Int, Int], mode: str, padding: str,
           align: bool) -> tuple[list[Term], Val, Val]:  # fmt: skip
    """The elements of results q of a row of the grid; derivatives of column and row by the grid."""
    step = grid.strides[0]
    line = View(k, grid.ptr, (1,), [step], grid.elem.name)
    other = View(k, grid.addr(0, 1), (1,), [step], grid.elem.name)
    x, dx = _place(k, line[q].to("f64"), size[1], padding, align)
    y, dy = _place(k, other[q].to("f64"), size[0], padding, align)
    tops = [k.full(k.to_float(n, "f64"), 1, "f64") for n in size]
    whole = Val(k, [k.mask(k.V) if q.masks[0] is None else k.use(q.masks[0])])

    def term(r: Val, c: Val, w: Any, dc: Any, dr: Any) -> Term:
        inside = (r >= 0.0) & (r < tops[0]) & (c >= 0.0) & (c < tops[1]) & whole
        at = [select(inside, v, 0.0).to("i64") for v in (r, c)]
        return Term(inside, *at, *(select(inside, v, v * 0.0) for v in (w, dc, dr)))

    if mode == "nearest":
        one, none = k.full(1.0, 1, "f64"), k.zeros(1, "f64")
        return [term(round_even(y), round_even(x), one, none, none)], dx, dy
    y0, x0 = floor(y), floor(x)
    b, a = y - y0, x - x0
    nb, na = 1.0 - b, 1.0 - a
    return [
        term(y0, x0, nb * na, -nb, -na),
        term(y0, x0 + 1.0, nb * a, nb, -a),
        term(y0 + 1.0, x0, b * na, -b, na),
        term(y0 + 1.0, x0 + 1.0, b * a, b, a),
    ], dx, dy  # fmt: skip


def _flat(k: Kernel, v: View) -> View:
    """The elements of a view from its first on, whatever its strides."""
    return View(k, v.ptr, (1,), [1], v.elem.name)


def grid_sample(k: Kernel, kind: str, mode: str, padding: str, align: bool) -> None:
    """Tensors: x grid y."""
    dtype = "f64" if kind == "f64" else "f32"
    N, C, H, W, P, Q = (k.size(n) for n in "NCHWPQ")
    x = k.view(N, C, H, W, strides=sizes(k, "x", 4), dtype=kind)
    grid = k.view(N, P, Q, 2, strides=sizes(k, "g", 4), dtype=kind)
    y = k.view(N, C, P, Q, strides=sizes(k, "y", 4), dtype=kind)
    sh, sw = k.to_int(x.strides[2]), k.to_int(x.strides[3])
    for u in k.parallel(k.size("units")):
        n, p = u // P, u % P
        for q in k.vectors(Q):
            terms, _, _ = _terms(k, grid.at(n, p), q, (H, W), mode, padding, align)
            offsets = [t.row * sh + t.column * sw for t in terms]
            weights = [t.weight.to(dtype) for t in terms]
            for c in k.range(C):
                plane, total = _flat(k, x.at(n, c)), k.zeros(1, dtype)
                for t, at, w in zip(terms, offsets, weights):
                    total = total + select(t.inside, plane.gather(at, t.inside) * w, w)
                y[n, c, p, q] = total


def grid_backward(k: Kernel, kind: str, mode: str, padding: str, align: bool, dx: bool, dgrid: bool) -> None:
    """Tensors: dy x grid, dx and dgrid as they are wanted. Planes of dx are summed in scratch, in order."""
    dtype = "f64" if kind == "f64" else "f32"
    N, C, H, W, P, Q = (k.size(n) for n in "NCHWPQ")
    dy = k.view(N, C, P, Q, strides=sizes(k, "d", 4), dtype=kind)
    x = k.view(N, C, H, W, strides=sizes(k, "x", 4), dtype=kind)
    grid = k.view(N, P, Q, 2, strides=sizes(k, "g", 4), dtype=kind)
    if dx:
        out = k.view(N, C, H, W, strides=sizes(k, "y", 4), dtype=kind)
        CB = k.size("CB")
        blocks = k.ceil_div(C, CB)
        count = 1 if mode == "nearest" else 4
        for u in k.parallel(k.size("planes")):
            n, c0 = u // blocks, u % blocks * CB
            c1 = k.min(c0 + CB, C)
            planes = k.scratch(CB, H * W + k.V, dtype=dtype)
            where = k.scratch(count, Q + k.V, dtype="i64")
            weights = k.scratch(count, Q + k.V, dtype=dtype)
            for c in k.range(c1 - c0):
                for v in k.vectors(H * W):
                    planes[c, v] = k.zeros(1, dtype)
            for p in k.range(P):
                for q in k.vectors(Q):
                    terms, _, _ = _terms(k, grid.at(n, p), q, (H, W), mode, padding, align)
                    for t, term in enumerate(terms):
                        flat = term.row * k.to_int(W) + term.column
                        where[t, q] = select(term.inside, flat, -1)
                        weights[t, q] = term.weight.to(dtype)
                for c in k.range(c0, c1):
                    plane = planes.at(c - c0)
                    for i in k.range(Q):
                        grad = dy[n, c, p, i]
                        for t in range(count):
                            at = where[t, i].idx()
                            with k.when(at >= 0):
                                plane[at] = plane[at] + grad * weights[t, i]
            for c in k.range(c0, c1):
                for h in k.range(H):
                    row = View(k, planes.addr(c - c0, h * W), (1,), [1], dtype)
                    for lanes in k.vectors(W):
                        out[n, c, h, lanes] = row[lanes]
    if not dgrid:
        return
    target = k.view(N, P, Q, 2, strides=sizes(k, "t", 4), dtype=kind)
    sh, sw = k.to_int(x.strides[2]), k.to_int(x.strides[3])
    for u in k.parallel(k.size("units")):
        n, p = u // P, u % P
        line = target.at(n, p)
        views = [View(k, line.addr(0, i), (1,), [line.strides[0]], kind) for i in (0, 1)]
        for q in k.vectors(Q):
            terms, by_x, by_y = _terms(k, grid.at(n, p), q, (H, W), mode, padding, align)
            dots = [k.var(k.zeros(1, dtype)) for _ in terms]
            offsets = [t.row * sh + t.column * sw for t in terms]
            for c in k.range(C):
                grad, plane = dy[n, c, p, q], _flat(k, x.at(n, c))
                for dot, term, offset in zip(dots, terms, offsets):
                    dot += select(term.inside, plane.gather(offset, term.inside) * grad, 0.0)
            for view, scale, name in ((views[0], by_x, "by_column"), (views[1], by_y, "by_row")):
                total = k.zeros(1, dtype)
                for dot, term in zip(dots, terms):
                    total = total + _product(dot, getattr(term, name).to(dtype))
                view[q] = total * scale.to(dtype)


