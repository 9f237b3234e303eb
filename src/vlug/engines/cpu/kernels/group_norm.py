"""Group and instance norm. Planes (NCHW): a group of an image at a time, or pieces of few large groups.
Rows (NHWC): channels in the vectors, blocks of rows of an image, channels then joined to groups.

Sums are as in row_norm.py: in f64, over x less one of its elements. The channels of rows each have a mean and
a sum of squares around it, from which a group's follow without cancellation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.codegen.ir import Int, Kernel, View, maximum, sqrt
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
from vlug.engines.cpu.kernels.compensated import add, joined, line_mean, sums_of, total, two_sum
from vlug.engines.cpu.kernels.row_norm import (
    WIDE,
    Kinds,
    dtype_of,
    finite,
    first_of,
    flushed,
    groups,
    moments,
    product,
)

__all__ = ["backward_planes", "backward_rows", "forward_planes", "forward_rows"]


class _Problem:
    """Views of a problem: full tensors (N, G, D, *J, L) or (N, *J, C), channels (C), statistics (N, G)."""

    def __init__(self, k: Kernel, kinds: Kinds, inner: int, unit: str, rows: bool):
        self.k, self.kinds, self.unit, self.rows = k, kinds, unit, rows
        self.N, self.G, self.D, self.C = (k.size(n) for n in "NGDC")
        self.J, self.dtype = sizes(k, "j", inner), dtype_of(kinds)
        self.L: Int = 1 if rows else k.size("L")

    def full(self, name: str, at: int) -> Any:
        k, kind = self.k, self.kinds[at]
        if kind is None:
            return None
        first, inside = k.size(f"{name}_n"), sizes(k, f"{name}_j", len(self.J))
        if self.rows:
            return k.view(self.N, *self.J, self.C, strides=[first, *inside, 1], dtype=kind, at=at)
        last, c = 1 if name in self.unit else k.size(f"{name}_l"), k.size(f"{name}_c")
        strides = [first, k.size(f"{name}_g"), c, *inside, last]
        return k.view(self.N, self.G, self.D, *self.J, self.L, strides=strides, dtype=kind, at=at)

    def channel(self, name: str, at: int) -> Any:
        kind = self.kinds[at]
        if kind is None:
            return None
        step = 1 if name in self.unit else self.k.size(f"{name}_c")
        return self.k.view(self.C, strides=[step], dtype=kind, at=at)

    def stat(self, name: str, at: int) -> Any:
        if self.kinds[at] is None:
            return None
        steps = [self.k.size(f"{name}_n"), self.k.size(f"{name}_g")]
        return self.k.view(self.N, self.G, strides=steps, dtype=self.kinds[at], at=at)


def _finish(k: Kernel, mean: Any, squares: Any) -> tuple[Any, Any]:
    """(mean, inv_std) from the mean and Σ(x - mean)²."""
    var = maximum(squares / k.scalar("count", WIDE), 0.0)
    return mean, 1.0 / sqrt(var + k.scalar("eps", WIDE))


def _shifted(k: Kernel, s: Any, q: Any, shift: Any, exact: bool) -> tuple[Any, Any]:
    """(mean, inv_std) from sums of x - shift and of its squares. exact: the shift is the mean."""
    d = s / k.scalar("count", WIDE)
    return _finish(k, shift if exact else d + shift, q - d * s)


def _put(v: View | None, at: Any, value: Any) -> None:
    if v is not None:
        v[at] = value


def _parameter(v: View | None, c: Any, dtype: str, default: Any) -> Any:
    return default if v is None else v[c].to(dtype)


def _apply_plane(
    k: Kernel, p: _Problem, x: View, y: View, c: Int, mean: Any, inv: Any, scale: Any, bias: Any, fits: Any,
    lo: Int, hi: Int,
) -> None:  # fmt: skip
    """y of a channel's lines over [lo, hi); mean and inv in f64."""
    factor = (inv if scale is None else inv * scale[c].to(WIDE)).to(p.dtype)
    mean, shift = mean.to(p.dtype), _parameter(bias, c, p.dtype, None)
    for j in nested(k, p.J):
        line, out = x.at(*j), y.at(*j)
        for past in both_ways(k, fits):
            for n in k.vectors(lo, hi, by=4):
                v = (line[n] - mean) * factor
                out.store(n, v if shift is None else v + shift, stream=past and whole(n))


def _piece(k: Kernel, p: _Problem, u: Int) -> tuple[Int, Int, Int, Int, Int]:
    """(image, group, channel of the group, begin, end) of piece u of a channel."""
    per, size = k.size("pieces"), k.size("PB")
    i = u % per
    n, g, d = unflatten(u // per, [p.N, p.G, p.D])
    return n, g, d, i * size, k.min((i + 1) * size, p.L)


def forward_planes(k: Kernel, kinds: Kinds, inner: int, unit: str, pieces: bool, stream: bool) -> None:
    """Tensors: x scale bias y mean inv_std."""
    k.quick = True
    p = _Problem(k, kinds, inner, unit, False)
    x, scale, bias, y = p.full("x", 0), p.channel("s", 1), p.channel("b", 2), p.full("y", 3)
    means, invs = p.stat("m", 4), p.stat("v", 5)
    fits, size, exact = aligned(k, y) if stream else None, k.size("size"), p.dtype == WIDE
    count = k.scalar("count", WIDE)
    if not pieces:
        for u in units(k, p.N * p.G):
            n, g = unflatten(u, [p.N, p.G])
            group, out = x.at(n, g), y.at(n, g)
            lines = [p.D, *p.J]
            shift = line_mean(k, group, lines, 0, p.L, count) if exact else first_of(k, group, size)
            ((s, q),) = moments(k, [group], lines, 0, p.L, [shift])
            mean, inv = _shifted(k, s, q, shift, exact)
            _put(means, (n, g), mean)
            _put(invs, (n, g), inv)
            for d in k.range(p.D):
                _apply_plane(k, p, group.at(d), out.at(d), g * p.D + d, mean, inv, scale, bias, fits, 0, p.L)
        return
    per = k.size("pieces")
    every = p.N * p.C * per
    sums, stats = k.shared(p.N, p.G, p.D * per, 2, dtype=WIDE), k.shared(p.N, p.G, 2, dtype=WIDE)
    plain = k.shared(p.N, p.G, p.D * per, 2, dtype=WIDE) if exact else None
    if plain is not None:
        for u in units(k, every):
            n, g, d, lo, hi = _piece(k, p, u)
            for i, v in enumerate(sums_of(k, x.at(n, g, d), p.J, lo, hi)):
                plain[n, g, d * per + u % per, i] = v

    def shift_of(n: Int, g: Int) -> Any:
        if plain is not None:
            return total(k, plain.at(n, g), p.D * per) / count
        return first_of(k, x.at(n, g), size)

    for u in units(k, every):
        n, g, d, lo, hi = _piece(k, p, u)
        shift = shift_of(n, g)
        ((s, q),) = moments(k, [x.at(n, g, d)], p.J, lo, hi, [shift])
        at = d * per + u % per
        sums[n, g, at, 0] = s
        sums[n, g, at, 1] = q
    for u in k.parallel(p.N * p.G):
        n, g = unflatten(u, [p.N, p.G])
        mean, inv = _shifted(k, *_total(k, sums.at(n, g), p.D * per), shift_of(n, g), exact)
        for i, (v, to) in enumerate(((mean, means), (inv, invs))):
            stats[n, g, i] = v
            _put(to, (n, g), v)
    for u in units(k, every, backwards=True):
        n, g, d, lo, hi = _piece(k, p, u)
        mean, inv = stats[n, g, 0], stats[n, g, 1]
        _apply_plane(k, p, x.at(n, g, d), y.at(n, g, d), g * p.D + d, mean, inv, scale, bias, fits, lo, hi)


def _total(k: Kernel, sums: View, n: Int) -> tuple[Any, Any]:
    s, t = k.var(0.0, WIDE), k.var(0.0, WIDE)
    for i in k.range(n):
        s += sums[i, 0]
        t += sums[i, 1]
    return s, t


# --- backward of planes --------------------------------------------------------------------------
def _plane_sums(
    k: Kernel, p: _Problem, dy: View, x: View, mean: Any, inv: Any, lo: Int, hi: Int
) -> tuple[Any, Any]:
    """Σ dy and Σ dy · x̂ of a channel's lines over [lo, hi)."""
    s, t = k.var(0.0, WIDE), k.var(0.0, WIDE)
    for j in nested(k, p.J):
        g, line = dy.at(*j), x.at(*j)
        for l0, l1 in flushed(k, lo, hi):
            a, b = k.var(k.zeros(2, p.dtype)), k.var(k.zeros(2, p.dtype))
            for n in k.vectors(l0, l1, by=2):
                v = g[n]
                a += v
                b += v * k.valid(n, (line[n] - mean) * inv)
            s += a.sum().to(WIDE)
            t += b.sum().to(WIDE)
    return s, t


def _plane_gradient(
    k: Kernel, p: _Problem, dy: View, x: View, dx: View, factor: Any, mean: Any, inv: Any, first: Any,
    second: Any, fits: Any, lo: Int, hi: Int,
) -> None:  # fmt: skip
    """dx = (dy · scale - first - x̂ · second) · inv of a channel's lines over [lo, hi)."""
    for j in nested(k, p.J):
        g, line, out = dy.at(*j), x.at(*j), dx.at(*j)
        for past in both_ways(k, fits):
            for n in k.vectors(lo, hi, by=4):
                v = g[n] if factor is None else product(g[n], factor)
                out.store(n, (v - first - (line[n] - mean) * inv * second) * inv, stream=past and whole(n))


def _weighed(k: Kernel, p: _Problem, n: Int, g: Int, scale: Any, kept: View) -> tuple[Any, Any]:
    """Means over a group of scale · dy and of scale · dy · x̂, from its channels' sums."""
    s, t = k.var(0.0, WIDE), k.var(0.0, WIDE)
    for d in k.range(p.D):
        c = g * p.D + d
        a, b = kept[0, n, c], kept[1, n, c]
        f = None if scale is None else scale[c].to(WIDE)
        s += a if f is None else a * f
        t += b if f is None else b * f
    count = k.scalar("count", WIDE)
    return s / count, t / count


def _channel_gradients(k: Kernel, p: _Problem, kept: View, dscale: Any, dbias: Any) -> None:
    """dbias and dscale from the sums of each image's channels, in order."""
    wanted = [(i, v) for i, v in ((1, dscale), (0, dbias)) if v is not None]
    for c0, c1 in channel_blocks(k, p.C) if wanted else ():
        for c in k.vectors(c0, c1):
            for i, v in wanted:
                s = k.var(k.zeros(1, WIDE))
                for n in k.range(p.N):
                    s += kept[i, n, c]
                v[c] = s


def backward_planes(k: Kernel, kinds: Kinds, inner: int, unit: str, pieces: bool, stream: bool) -> None:
    """Tensors: dy x scale mean inv_std dx dscale dbias."""
    k.quick = True
    p = _Problem(k, kinds, inner, unit, False)
    dy, x, scale, means, invs = (
        p.full("g", 0), p.full("x", 1), p.channel("s", 2), p.stat("m", 3), p.stat("v", 4)
    )  # fmt: skip
    dx, dscale, dbias = p.full("d", 5), p.channel("p", 6), p.channel("q", 7)
    fits = aligned(k, dx) if stream else None
    kept = k.shared(2, p.N, p.C, dtype=WIDE)

    def stats(n: Int, g: Int) -> tuple[Any, Any]:
        return means[n, g].to(p.dtype), invs[n, g].to(p.dtype)

    def gradient(n: Int, g: Int, d: Int, first: Any, second: Any, lo: Int, hi: Int) -> None:
        at = (n, g, d)
        factor = _parameter(scale, g * p.D + d, p.dtype, None)
        first, second = first.to(p.dtype), second.to(p.dtype)
        _plane_gradient(
            k, p, dy.at(*at), x.at(*at), dx.at(*at), factor, *stats(n, g), first, second, fits, lo, hi
        )

    if not pieces:
        for u in units(k, p.N * p.G):
            n, g = unflatten(u, [p.N, p.G])
            for d in k.range(p.D):
                s, t = _plane_sums(k, p, dy.at(n, g, d), x.at(n, g, d), *stats(n, g), 0, p.L)
                kept[0, n, g * p.D + d] = s
                kept[1, n, g * p.D + d] = t
            if dx is not None:
                first, second = _weighed(k, p, n, g, scale, kept)
                for d in k.range(p.D):
                    gradient(n, g, d, first, second, 0, p.L)
        _channel_gradients(k, p, kept, dscale, dbias)
        return
    per = k.size("pieces")
    every = p.N * p.C * per
    sums, ready = k.shared(p.N, p.C, per, 2, dtype=WIDE), k.shared(p.N, p.G, 2, dtype=WIDE)
    for u in units(k, every):
        n, g, d, lo, hi = _piece(k, p, u)
        pair = _plane_sums(k, p, dy.at(n, g, d), x.at(n, g, d), *stats(n, g), lo, hi)
        for i, v in enumerate(pair):
            sums[n, g * p.D + d, u % per, i] = v
    for u in k.parallel(p.N * p.G):
        n, g = unflatten(u, [p.N, p.G])
        for d in k.range(p.D):
            c = g * p.D + d
            kept[0, n, c], kept[1, n, c] = _total(k, sums.at(n, c), per)
        for i, v in enumerate(_weighed(k, p, n, g, scale, kept)):
            ready[n, g, i] = v
    for u in units(k, every, backwards=True) if dx is not None else ():
        n, g, d, lo, hi = _piece(k, p, u)
        gradient(n, g, d, ready[n, g, 0], ready[n, g, 1], lo, hi)
    _channel_gradients(k, p, kept, dscale, dbias)


# --- rows ----------------------------------------------------------------------------------------
def _blocks(k: Kernel, p: _Problem, u: Int) -> tuple[Int, Int, Int, Int]:
    """(image, block, first row, last row) of unit u."""
    blocks, RB = k.size("blocks"), k.size("RB")
    b = u % blocks
    return u // blocks, b, b * RB, k.min((b + 1) * RB, k.size("count_j"))


def _spread(k: Kernel, p: _Problem, g: Int, to: Sequence[tuple[View, Any]]) -> None:
    """A group's values to all of its channels."""
    for c in k.vectors(g * p.D, (g + 1) * p.D):
        for view, v in to:
            view[c] = k.full(v, dtype=p.dtype)


def _row_means(k: Kernel, p: _Problem, x: View, sums: View, each: View, together: int) -> None:
    """The means of each image's channels to each[:, 0]; `sums` serves as room for those of blocks."""
    blocks = k.size("blocks")
    for u in units(k, p.N * blocks):
        n, b, r0, r1 = _blocks(k, p, u)
        S, lost = sums.at(n, b, 0), sums.at(n, b, 1)
        for c in k.vectors(p.C):
            S[c] = k.zeros(1, WIDE)
            lost[c] = k.zeros(1, WIDE)
        for group in groups(k, r0, r1, together):
            lines = [x.at(n, *unflatten(r, p.J)) for r in group]
            for c in k.vectors(p.C):
                s, low = S[c], lost[c]
                for line in lines:
                    s, more = two_sum(s, line[c].to(WIDE))
                    low = low + more
                S[c], lost[c] = s, low
    for n in k.parallel(p.N):
        for c in k.vectors(p.C):
            top, rest = k.var(k.zeros(1, WIDE)), k.var(k.zeros(1, WIDE))
            for b in k.range(blocks):
                add(top, rest, sums[n, b, 0, c])
                rest += sums[n, b, 1, c]
            each[n, 0, c] = joined(top, rest) / k.scalar("spatial", WIDE)


def forward_rows(k: Kernel, kinds: Kinds, inner: int, unit: str, stream: bool) -> None:
    """Tensors as in forward_planes."""
    k.quick = True
    p = _Problem(k, kinds, inner, unit, True)
    x, scale, bias, y = p.full("x", 0), p.channel("s", 1), p.channel("b", 2), p.full("y", 3)
    means, invs = p.stat("m", 4), p.stat("v", 5)
    fits, blocks = aligned(k, y) if stream else None, k.size("blocks")
    sums, each = k.shared(p.N, blocks, 2, p.C, dtype=WIDE), k.shared(p.N, 2, p.C, dtype=WIDE)
    ready = k.shared(p.N, 2, p.C, dtype=p.dtype)
    together = 8 if k.isa.registers == 32 else 4
    exact = p.dtype == WIDE
    if exact:
        _row_means(k, p, x, sums, each, together)

    def shift_of(n: Int, c: Any, some: Any = None) -> Any:
        if exact:
            return each[n, 0, c]
        return finite(x[(n, *[0] * inner, c if some is None else c.where(some))].to(WIDE))

    for u in units(k, p.N * blocks):
        n, b, r0, r1 = _blocks(k, p, u)
        image = x.at(n)
        S, Q = sums.at(n, b, 0), sums.at(n, b, 1)
        for c in k.vectors(p.C):
            S[c] = k.zeros(1, WIDE)
            Q[c] = k.zeros(1, WIDE)
        for group in groups(k, r0, r1, together):
            lines = [image.at(*unflatten(r, p.J)) for r in group]
            for c in k.vectors(p.C):
                first = shift_of(n, c)
                v = [line[c].to(WIDE) - first for line in lines]
                S[c] = S[c] + tree(v)
                squares = Q[c]
                for a in v:
                    squares = a * a + squares
                Q[c] = squares
    for n in k.parallel(p.N):
        spatial = k.scalar("spatial", WIDE)
        for c in k.vectors(p.C):
            s, q = k.var(k.zeros(1, WIDE)), k.var(k.zeros(1, WIDE))
            for b in k.range(blocks):
                s += sums[n, b, 0, c]
                q += sums[n, b, 1, c]
            d = s / spatial
            if not exact:
                each[n, 0, c] = d + shift_of(n, c, blocks > 0)
            each[n, 1, c] = q - d * s
        for g in k.range(p.G):
            m, lost, around = k.var(0.0, WIDE), k.var(0.0, WIDE), k.var(0.0, WIDE)
            origin = None if exact else finite(each[n, 0, g * p.D])
            for i in k.range(p.D):
                if origin is None:
                    add(m, lost, each[n, 0, g * p.D + i])
                else:
                    m += each[n, 0, g * p.D + i] - origin
            channels = k.scalar("channels", WIDE)
            mean = joined(m, lost) / channels if origin is None else m / channels + origin
            for i in k.range(p.D):
                off = each[n, 0, g * p.D + i] - mean
                around += each[n, 1, g * p.D + i] + off * off * spatial
            mean, inv = _finish(k, mean, around)
            _put(means, (n, g), mean)
            _put(invs, (n, g), inv)
            for c in k.vectors(g * p.D, (g + 1) * p.D):
                ready[n, 0, c] = k.full(mean, dtype=WIDE)
                ready[n, 1, c] = k.full(inv, dtype=WIDE) * _parameter(scale, c, WIDE, 1.0)
    for u in units(k, p.N * blocks, backwards=True):
        n, _, r0, r1 = _blocks(k, p, u)
        for group in groups(k, r0, r1, 4):
            lines = [(x.at(n, *r), y.at(n, *r)) for r in (unflatten(r, p.J) for r in group)]
            for past in both_ways(k, fits):
                for c in k.vectors(p.C):
                    mean, factor, shift = ready[n, 0, c], ready[n, 1, c], _parameter(bias, c, p.dtype, None)
                    for line, out in lines:
                        v = (line[c] - mean) * factor
                        out.store(c, v if shift is None else v + shift, stream=past and whole(c))


def backward_rows(k: Kernel, kinds: Kinds, inner: int, unit: str, stream: bool) -> None:
    """Tensors as in backward_planes."""
    k.quick = True
    p = _Problem(k, kinds, inner, unit, True)
    dy, x, scale, means, invs = (
        p.full("g", 0), p.full("x", 1), p.channel("s", 2), p.stat("m", 3), p.stat("v", 4)
    )  # fmt: skip
    dx, dscale, dbias = p.full("d", 5), p.channel("p", 6), p.channel("q", 7)
    fits, blocks = aligned(k, dx) if stream else None, k.size("blocks")
    kept, sums = k.shared(2, p.N, p.C, dtype=WIDE), k.shared(p.N, blocks, 2, p.C, dtype=p.dtype)
    ready = k.shared(p.N, 4, p.C, dtype=p.dtype)  # mean, inv, first, second
    together = 4 if k.isa.registers == 32 else 2
    for n in k.parallel(p.N):
        for g in k.range(p.G):
            pair = (means[n, g].to(p.dtype), invs[n, g].to(p.dtype))
            _spread(k, p, g, [(ready.at(n, i), v) for i, v in enumerate(pair)])
    for u in units(k, p.N * blocks):
        n, b, r0, r1 = _blocks(k, p, u)
        S, T = sums.at(n, b, 0), sums.at(n, b, 1)
        for c in k.vectors(p.C):
            S[c] = k.zeros(1, p.dtype)
            T[c] = k.zeros(1, p.dtype)
        for group in groups(k, r0, r1, together):
            lines = [(dy.at(n, *r), x.at(n, *r)) for r in (unflatten(r, p.J) for r in group)]
            for c in k.vectors(p.C):
                mean, inv = ready[n, 0, c], ready[n, 1, c]
                gs = [g[c] for g, _ in lines]
                S[c] = S[c] + tree(gs)
                T[c] = T[c] + tree([g * ((line[c] - mean) * inv) for g, (_, line) in zip(gs, lines)])
    for n in k.parallel(p.N):
        for c in k.vectors(p.C):
            s, t = k.var(k.zeros(1, WIDE)), k.var(k.zeros(1, WIDE))
            for b in k.range(blocks):
                s += sums[n, b, 0, c].to(WIDE)
                t += sums[n, b, 1, c].to(WIDE)
            kept[0, n, c], kept[1, n, c] = s, t
        for g in k.range(p.G if dx is not None else 0):
            pair = _weighed(k, p, n, g, scale, kept)
            _spread(k, p, g, [(ready.at(n, 2 + i), v.to(p.dtype)) for i, v in enumerate(pair)])
    for u in units(k, p.N * blocks, backwards=True) if dx is not None else ():
        n, _, r0, r1 = _blocks(k, p, u)
        for group in groups(k, r0, r1, together):
            rows = [unflatten(r, p.J) for r in group]
            views = [(dy.at(n, *r), x.at(n, *r), dx.at(n, *r)) for r in rows]
            for past in both_ways(k, fits):
                for c in k.vectors(p.C):
                    mean, inv, first, second = (ready[n, i, c] for i in range(4))
                    factor = _parameter(scale, c, p.dtype, None)
                    for g, line, out in views:
                        v = g[c] if factor is None else product(g[c], factor)
                        v = (v - first - (line[c] - mean) * inv * second) * inv
                        out.store(c, v, stream=past and whole(c))
    _channel_gradients(k, p, kept, dscale, dbias)
