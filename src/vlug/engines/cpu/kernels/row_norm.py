"""Layer and RMS norm: a row at a time, or pieces of few long rows; their gradients.

Statistics take one pass over x - x[0], in f64: since x[0] is of the row, (x[0] - mean)² is at most n times
the variance, so that no more than a factor n of f64's precision is lost whatever the mean; a constant row
comes out exact, and nothing overflows at 1e30. (RMS norm's sum of squares cannot cancel and takes no shift.)
Of f64 rows the mean comes first, from a compensated sum, and is the shift.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vlug.codegen.ir import Int, Kernel, View, absolute, maximum, select, sqrt
from vlug.engines.cpu.kernels.common import (
    aligned,
    both_ways,
    channel_blocks,
    nested,
    sizes,
    tree,
    unflatten,
    units,
    whole,
)
from vlug.engines.cpu.kernels.compensated import line_mean, sums_of, total

__all__ = [
    "WIDE",
    "backward_pieces",
    "backward_rows",
    "finite",
    "flushed",
    "forward_pieces",
    "forward_rows",
    "groups",
    "moments",
    "product",
]

WIDE = "f64"
Kinds = tuple[str | None, ...]
#: Elements after which fp32 partial sums go to f64.
FLUSH = 4096
#: Rows that a forward pass works on at once: their sums run beside each other.
TOGETHER = 2


def dtype_of(kinds: Kinds) -> str:
    """What values are computed in."""
    return "f64" if kinds[0] == "f64" else "f32"


def groups(k: Kernel, begin: Int, end: Int, together: int) -> Iterator[list[Int]]:
    """Row numbers `together` at a time, then one at a time."""
    middle = begin + (end - begin) // together * together
    for r in k.loop(begin, middle, together):
        yield [r + i for i in range(together)]
    for r in k.loop(middle, end):
        yield [r]


def moments(
    k: Kernel, views: Sequence[View], R: Sequence[Int], lo: Int, hi: Int, shifts: Sequence[Any]
) -> list[tuple[Any, Any]]:
    """Σ(x - shift) and Σ(x - shift)² of each view over [lo, hi) of every line, in f64."""
    by = 2 if len(views) == 1 else 1
    sums = [(k.var(k.zeros(by, WIDE)), k.var(k.zeros(by, WIDE))) for _ in views]
    for r in nested(k, R):
        lines = [x.at(*r) for x in views]
        for n in k.vectors(lo, hi, by=by):
            for line, shift, (s, q) in zip(lines, shifts, sums):
                v = line[n].to(WIDE)
                if shift is not None:
                    v = k.valid(n, v - shift)
                    s += v
                q += v * v
    return [(s.sum(), q.sum()) for s, q in sums]


def product(a: Any, b: Any) -> Any:
    """a · b, rounded: not made one instruction with what follows, so that equal sums cancel exactly."""
    return a.k.zip(lambda x, y: a.k.op("fmul", x, y), a, b)


def finite(v: Any) -> Any:
    """v, or 0 where it is infinite or NaN: what may be subtracted without making NaN of infinity."""
    return select(absolute(v) < float("inf"), v, 0.0)


def first_of(k: Kernel, x: View, N: Int) -> Any:
    """The first element of N as f64; 0 if there is none or it is not finite."""
    at = k.first(0, k.min(N, 1))
    return finite(x[(*[0] * (len(x.dims) - 1), at)].lane(0).to(WIDE))


def flushed(k: Kernel, lo: Int, hi: Int) -> Iterator[tuple[Int, Int]]:
    """Stretches short enough for fp32 sums."""
    yield from k.blocks(hi, FLUSH, lo)


class _Rows:
    """Views of a problem: full tensors (*I, *R, L), what a row shares (*R, L), statistics (*I)."""

    def __init__(self, k: Kernel, kinds: Kinds, outer: int, inner: int, unit: str, wide: bool = False):
        self.k, self.kinds, self.unit = k, kinds, unit
        self.I, self.R, self.L = sizes(k, "i", outer), sizes(k, "r", inner), k.size("L")
        self.dtype, self.wide = WIDE if wide else dtype_of(kinds), wide

    def _steps(self, name: str, stem: str, n: int) -> list[Int]:
        return sizes(self.k, f"{name}_{stem}", n)

    def _last(self, name: str) -> Int:
        step: Int = 1 if name in self.unit else self.k.size(f"{name}_l")
        return step

    def full(self, name: str, at: int) -> Any:
        if self.kinds[at] is None:
            return None
        steps = [*self._steps(name, "i", len(self.I)), *self._steps(name, "r", len(self.R))]
        strides = [*steps, self._last(name)]
        return self.k.view(*self.I, *self.R, self.L, strides=strides, dtype=self.kinds[at], at=at)

    def row(self, name: str, at: int) -> Any:
        if self.kinds[at] is None:
            return None
        strides = [*self._steps(name, "r", len(self.R)), self._last(name)]
        return self.k.view(*self.R, self.L, strides=strides, dtype=self.kinds[at], at=at)

    def stat(self, name: str, at: int) -> Any:
        if self.kinds[at] is None:
            return None
        I = self.I or [1]
        steps = self._steps(name, "i", len(self.I)) or [1]
        return self.k.view(*I, strides=steps, dtype=self.kinds[at], at=at)

    def index(self, u: Int) -> list[Int]:
        return unflatten(u, self.I)

    def stat_index(self, u: Int) -> list[Int]:
        return unflatten(u, self.I) if self.I else [0]


def _part(v: View | None, r: Sequence[Int]) -> Any:
    return None if v is None else v.at(*r)


def _finish(k: Kernel, s: Any, q: Any, shift: Any, exact: bool) -> tuple[Any, Any]:
    """(mean, inv_std) in f64; mean None for RMS norm. exact: the shift is the mean."""
    count, eps = k.scalar("count", WIDE), k.scalar("eps", WIDE)
    if shift is None:
        return None, 1.0 / sqrt(q / count + eps)
    d = s / count
    return shift if exact else d + shift, 1.0 / sqrt(maximum(q / count - d * d, 0.0) + eps)


def _shift(k: Kernel, rows: _Rows, line: View) -> Any:
    """What to take from a row's elements before they are summed."""
    if rows.dtype == WIDE:
        return line_mean(k, line, rows.R, 0, rows.L, k.scalar("count", WIDE))
    return first_of(k, line, k.size("N"))


def _apply(
    k: Kernel,
    rows: _Rows,
    lines: Sequence[tuple[View, View, Any, Any]],
    scale: Any,
    bias: Any,
    fits: Any,
    lo: Int,
    hi: Int,
) -> None:
    """y = (x - mean) · inv · scale + bias over [lo, hi) of every (x, y, mean, inv)."""
    narrow = [(None if m is None else m.to(rows.dtype), v.to(rows.dtype)) for _, _, m, v in lines]
    for r in nested(k, rows.R):
        views = [(x.at(*r), y.at(*r)) for x, y, _, _ in lines]
        factor, shift = _part(scale, r), _part(bias, r)
        for past in both_ways(k, fits):
            for n in k.vectors(lo, hi, by=4 if len(lines) == 1 else 2):
                f, b = None if factor is None else factor[n], None if shift is None else shift[n]
                for (x, y), (mean, inv) in zip(views, narrow):
                    v = x[n]
                    v = (v if mean is None else v - mean) * inv
                    v = v if f is None else v * f
                    y.store(n, v if b is None else v + b, stream=past and whole(n))


def forward_rows(
    k: Kernel, kinds: Kinds, outer: int, inner: int, unit: str, centred: bool, stream: bool
) -> None:
    """Tensors: x scale bias y mean inv_std."""
    k.quick = True
    rows = _Rows(k, kinds, outer, inner, unit)
    x, scale, bias, y = rows.full("x", 0), rows.row("s", 1), rows.row("b", 2), rows.full("y", 3)
    means, invs = rows.stat("m", 4), rows.stat("v", 5)
    fits = aligned(k, y) if stream else None
    RB, M = k.size("RB"), k.size("rows")
    for u in units(k, k.size("blocks")):
        for group in groups(k, u * RB, k.min((u + 1) * RB, M), TOGETHER):
            at = [rows.index(m) for m in group]
            views = [x.at(*i) for i in at]
            shifts = [_shift(k, rows, v) if centred else None for v in views]
            lines = []
            for i, m, view, shift, sums in zip(
                at, group, views, shifts, moments(k, views, rows.R, 0, rows.L, shifts)
            ):
                mean, inv = _finish(k, *sums, shift, rows.dtype == WIDE)
                _put(means, rows.stat_index(m), mean)
                _put(invs, rows.stat_index(m), inv)
                lines.append((view, y.at(*i), mean, inv))
            _apply(k, rows, lines, scale, bias, fits, 0, rows.L)


def _put(v: View | None, at: Sequence[Int], value: Any) -> None:
    if v is not None:
        v[tuple(at)] = value


def _pieces(k: Kernel, u: Int, L: Int) -> tuple[Int, Int, Int]:
    """(row, begin, end) of a piece."""
    per, size = k.size("pieces"), k.size("PB")
    p = u % per
    return u // per, p * size, k.min((p + 1) * size, L)


def forward_pieces(
    k: Kernel, kinds: Kinds, outer: int, inner: int, unit: str, centred: bool, stream: bool
) -> None:
    """The same for few long rows, `pieces` to a row: their sums first."""
    k.quick = True
    rows = _Rows(k, kinds, outer, inner, unit)
    x, scale, bias, y = rows.full("x", 0), rows.row("s", 1), rows.row("b", 2), rows.full("y", 3)
    means, invs = rows.stat("m", 4), rows.stat("v", 5)
    fits = aligned(k, y) if stream else None
    M, per = k.size("rows"), k.size("pieces")
    sums = k.shared(M, per, 2, dtype=WIDE)
    exact = centred and rows.dtype == WIDE
    plain = k.shared(M, per, 2, dtype=WIDE) if exact else None
    if plain is not None:
        for u in units(k, M * per):
            m, lo, hi = _pieces(k, u, rows.L)
            for j, v in enumerate(sums_of(k, x.at(*rows.index(m)), rows.R, lo, hi)):
                plain[m, u % per, j] = v

    def shift_of(m: Int, line: View) -> Any:
        if plain is not None:
            return total(k, plain.at(m), per) / k.scalar("count", WIDE)
        return first_of(k, line, k.size("N")) if centred else None

    for u in units(k, M * per):
        m, lo, hi = _pieces(k, u, rows.L)
        line = x.at(*rows.index(m))
        shift = shift_of(m, line)
        ((s, q),) = moments(k, [line], rows.R, lo, hi, [shift])
        sums[m, u % per, 0] = s
        sums[m, u % per, 1] = q
    for u in units(k, M * per, backwards=True):
        m, lo, hi = _pieces(k, u, rows.L)
        i = rows.index(m)
        line = x.at(*i)
        mean, inv = _finish(k, *_total(k, sums.at(m), per), shift_of(m, line), exact)
        with k.when((u % per).eq(0)):
            _put(means, rows.stat_index(m), mean)
            _put(invs, rows.stat_index(m), inv)
        _apply(k, rows, [(line, y.at(*i), mean, inv)], scale, bias, fits, lo, hi)


def _total(k: Kernel, sums: View, n: Int) -> tuple[Any, Any]:
    """The sums of n pieces, in order."""
    s, t = k.var(0.0, WIDE), k.var(0.0, WIDE)
    for p in k.range(n):
        s += sums[p, 0]
        t += sums[p, 1]
    return s, t


# --- backward ------------------------------------------------------------------------------------
class _Line:
    """One row of a backward pass."""

    def __init__(self, rows: _Rows, u: Int, dy: View, x: View, dx: View | None, means: Any, invs: Any):
        i, at, dtype = rows.index(u), tuple(rows.stat_index(u)), rows.dtype
        self.dy, self.x, self.dx = dy.at(*i), x.at(*i), None if dx is None else dx.at(*i)
        self.mean = None if means is None else means[at].to(dtype)
        self.inv = invs[at].to(dtype)

    def centred(self, x: Any) -> Any:
        return x if self.mean is None else x - self.mean


def _sums(
    k: Kernel,
    rows: _Rows,
    lines: Sequence[_Line],
    scale: Any,
    into: Sequence[Any],
    lo: Int,
    hi: Int,
    dx: bool,
) -> list[tuple[Any, Any]]:
    """(Σ g, Σ g · x̂) of each line over [lo, hi), g = dy · scale; adds dy · x̂ and dy to the rows `into`."""
    totals = [(k.var(0.0, WIDE), k.var(0.0, WIDE)) for _ in lines]
    for r in nested(k, rows.R):
        factor = _part(scale, r)
        to = [_part(v, r) for v in into]
        views = [(l.dy.at(*r), l.x.at(*r)) for l in lines]
        for l0, l1 in flushed(k, lo, hi):
            local = [(k.var(k.zeros(1, rows.dtype)), k.var(k.zeros(1, rows.dtype))) for _ in lines]
            for n in k.vectors(l0, l1):
                gs = [g[n].to(rows.dtype) for g, _ in views]
                normal = [
                    k.valid(n, l.centred(x[n].to(rows.dtype)) * l.inv) for l, (_, x) in zip(lines, views)
                ]
                ps = [g * h for g, h in zip(gs, normal)]
                for v, terms in zip(to, (ps, gs)):
                    if v is not None:
                        v[n] = v[n] + tree(terms)
                if dx:
                    f = None if factor is None else factor[n].to(rows.dtype)
                    for (s, t), g, p, h in zip(local, gs, ps, normal):
                        s += g if f is None else g * f
                        t += p if f is None else product(g, f) * h if rows.wide else p * f
            for (s, t), (a, b) in zip(totals, local):
                s += a.to(WIDE).sum()
                t += b.to(WIDE).sum()
    return totals


def _gradient(
    k: Kernel,
    rows: _Rows,
    lines: Sequence[_Line],
    scale: Any,
    totals: Sequence[Any],
    fits: Any,
    lo: Int,
    hi: Int,
) -> None:
    """dx = (g - Σ g / n - x̂ · Σ g x̂ / n) · inv over [lo, hi)."""
    count = k.scalar("count", WIDE)
    means = [((s / count).to(rows.dtype), (t / count).to(rows.dtype)) for s, t in totals]
    for r in nested(k, rows.R):
        factor = _part(scale, r)
        views = [(l.dy.at(*r), l.x.at(*r), _part(l.dx, r)) for l in lines]
        for past in both_ways(k, fits):
            for n in k.vectors(lo, hi, by=2):
                f = None if factor is None else factor[n].to(rows.dtype)
                for l, (g, x, out), (first, second) in zip(lines, views, means):
                    v = g[n].to(rows.dtype)
                    v = v if f is None else product(v, f)
                    v = v if l.mean is None else v - first
                    normal = l.centred(x[n].to(rows.dtype)) * l.inv
                    away = product(normal, second) if rows.wide else normal * second
                    out.store(n, (v - away) * l.inv, stream=past and whole(n))


def _backward_views(rows: _Rows) -> tuple[Any, ...]:
    """Tensors: dy x scale mean inv_std dx dscale dbias (mean absent for RMS norm)."""
    return (
        rows.full("g", 0), rows.full("x", 1), rows.row("s", 2), rows.stat("m", 3), rows.stat("v", 4),
        rows.full("d", 5), rows.row("p", 6), rows.row("q", 7),
    )  # fmt: skip


def backward_rows(
    k: Kernel, kinds: Kinds, outer: int, inner: int, unit: str, wide: bool, stream: bool
) -> None:
    """Blocks of RB rows, whose sums of dy · x̂ and dy wait in the workspace.

    wide: in f64 whatever the types and rounded step by step as in the definition, for rows of one element,
    whose dx is a difference of nearly equal numbers.
    """
    k.quick = True
    rows = _Rows(k, kinds, outer, inner, unit, wide)
    dy, x, scale, means, invs, dx, dscale, dbias = _backward_views(rows)
    fits = aligned(k, dx) if stream else None
    blocks, RB, M = k.size("blocks"), k.size("RB"), k.size("rows")
    wanted = [v for v in (dscale, dbias) if v is not None]
    sums = k.shared(blocks, 2, *rows.R, rows.L, dtype=rows.dtype) if wanted else None
    together = 4 if k.isa.registers == 32 else 2
    for u in units(k, blocks):
        into: list[Any] = [None, None]
        if sums is not None:
            into = [sums.at(u, j) if v is not None else None for j, v in enumerate((dscale, dbias))]
            for v in into:
                for r in nested(k, rows.R):
                    for n in k.vectors(rows.L) if v is not None else ():
                        v.at(*r)[n] = k.zeros(1, rows.dtype)
        for group in groups(k, u * RB, k.min((u + 1) * RB, M), together):
            lines = [_Line(rows, m, dy, x, dx, means, invs) for m in group]
            totals = _sums(k, rows, lines, scale, into, 0, rows.L, dx is not None)
            if dx is not None:
                _gradient(k, rows, lines, scale, totals, fits, 0, rows.L)
    if sums is None:
        return
    for c0, c1 in channel_blocks(k, rows.L):
        for j, out in enumerate((dscale, dbias)):
            for r in nested(k, rows.R if out is not None else [0]):
                to = _part(out, r)
                for n in k.vectors(c0, c1) if out is not None else ():
                    s = k.var(k.zeros(1, WIDE))
                    for b in k.range(blocks):
                        s += sums[(b, j, *r, n)].to(WIDE)
                    to[n] = s


def backward_pieces(k: Kernel, kinds: Kinds, outer: int, inner: int, unit: str, stream: bool) -> None:
    """Few long rows: sums of their pieces, then all rows of a piece at a time (no inner axes here)."""
    k.quick = True
    rows = _Rows(k, kinds, outer, inner, unit)
    dy, x, scale, means, invs, dx, dscale, dbias = _backward_views(rows)
    fits = aligned(k, dx) if stream else None
    M, per, size = k.size("rows"), k.size("pieces"), k.size("PB")
    sums = k.shared(M, per, 2, dtype=WIDE)
    if dx is not None:
        for u in units(k, M * per):
            m, lo, hi = _pieces(k, u, rows.L)
            line = _Line(rows, m, dy, x, dx, means, invs)
            ((s, t),) = _sums(k, rows, [line], scale, (None, None), lo, hi, True)
            sums[m, u % per, 0] = s
            sums[m, u % per, 1] = t
    for p in k.parallel(per):
        lo, hi = p * size, k.min((p + 1) * size, rows.L)
        room: list[Any] = [
            k.scratch(size, dtype=rows.dtype) if v is not None else None for v in (dscale, dbias)
        ]
        for v in room:
            for n in k.vectors(hi - lo) if v is not None else ():
                v[n] = k.zeros(1, rows.dtype)
        for m in k.range(M):
            line = _Line(rows, m, dy, x, dx, means, invs)
            g, h = line.dy, line.x
            for n in k.vectors(lo, hi) if dscale is not None or dbias is not None else ():
                dyn = g[n]
                if room[0] is not None:
                    room[0][n - lo] = room[0][n - lo] + dyn * k.valid(n, line.centred(h[n]) * line.inv)
                if room[1] is not None:
                    room[1][n - lo] = room[1][n - lo] + dyn
            if dx is not None:
                _gradient(k, rows, [line], scale, [_total(k, sums.at(m), per)], fits, lo, hi)
        for v, out in zip(room, (dscale, dbias)):
            for n in k.vectors(lo, hi) if v is not None else ():
                out[n] = v[n - lo]
