"""Batch norm. Planes (NCHW): a channel of all images at a time, so that the second pass hits L2.
Rows (NHWC): channels in the vectors, blocks of rows, their sums in the workspace.

Statistics take one pass in f64 over x less one of its values, as in row_norm.py: as good as two passes over
x - mean, a constant channel comes out exact, and nothing overflows at 1e30.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from vlug.engines.cpu.kernels.compensated import add, joined, line_mean, two_sum
from vlug.engines.cpu.kernels.row_norm import finite

__all__ = [
    "backward_planes",
    "backward_rows",
    "inference_planes",
    "inference_rows",
    "training_planes",
    "training_rows",
]

WIDE = "f64"
Kinds = tuple[str | None, ...]
Three = tuple[Any, Any, Any]


def _planes(k: Kernel, C: Int, J: Sequence[Int], N: Int, unit: bool, names: str, ats: Sequence[int],
            kinds: Kinds) -> list[Any]:  # fmt: skip
    """Views (C, *J, N) of full-sized tensors with one-letter names; None for those that are absent."""

    def view(name: str, at: int) -> View | None:
        if kinds[at] is None:
            return None
        last = 1 if unit else k.size(f"{name}_inner")
        strides = [k.size(f"{name}_c"), *sizes(k, f"{name}_j", len(J)), last]
        return k.view(C, *J, N, strides=strides, dtype=kinds[at], at=at)

    return [view(name, at) for name, at in zip(names, ats)]


def _rows(k: Kernel, C: Int, J: Sequence[Int], names: str, ats: Sequence[int], kinds: Kinds) -> list[Any]:
    """Views (*J, C) of full-sized tensors, dense along C."""

    def view(name: str, at: int) -> View | None:
        if kinds[at] is None:
            return None
        strides = [*sizes(k, f"{name}_j", len(J)), 1]
        return k.view(*J, C, strides=strides, dtype=kinds[at], at=at)

    return [view(name, at) for name, at in zip(names, ats)]


def _vectors(k: Kernel, C: Int, dense: bool, ats: Sequence[int], kinds: Kinds) -> list[Any]:
    """Views (C) of what has one value a channel."""

    def view(at: int) -> View | None:
        if kinds[at] is None:
            return None
        return k.view(C, strides=[1 if dense else k.size(f"v{at}_step")], dtype=kinds[at], at=at)

    return [view(at) for at in ats]


def _dtype(kinds: Kinds) -> str:
    return "f64" if kinds[0] == "f64" else "f32"


def _at(v: View | None, c: Any, default: float) -> Any:
    """Values of some channels in WIDE, the default where the vector is absent."""
    return default if v is None else v[c].to(WIDE)


def _put(v: View | None, c: Any, value: Any) -> None:
    if v is not None:
        v[c] = value


# --- forward -------------------------------------------------------------------------------------
def _statistics(k: Kernel, c: Any, s: Any, q: Any, shift: Any, vectors: Sequence[Any], exact: bool) -> Three:
    """(mean, scale · inv_std, bias) of channels c from Σ(x - shift) and its squares; stores the rest.

    exact: the shift is the mean.
    """
    scale, bias, run_mean, run_var, mean_out, inv_out, next_mean, next_var = vectors
    count, m = k.scalar("count", WIDE), k.scalar("momentum", WIDE)
    d = s / count
    var = maximum(q / count - d * d, 0.0)
    mean = shift if exact else d + shift
    inv = 1.0 / sqrt(var + k.scalar("eps", WIDE))
    _put(mean_out, c, mean)
    _put(inv_out, c, inv)
    if run_mean is not None:
        old, old_var = run_mean[c].to(WIDE), run_var[c].to(WIDE)
        _put(next_mean, c, old * (1.0 - m) + mean * m)
        _put(next_var, c, old_var * (1.0 - m) + var * k.scalar("correction", WIDE) * m)
    return mean, (inv if scale is None else inv * scale[c].to(WIDE)), _at(bias, c, 0.0)


def _normal(mean: Any, factor: Any, bias: Any, dtype: str, relu: bool) -> Callable[[Any], Any]:
    """x → (x - mean) · factor + bias, then ReLU if it is fused."""
    mean, factor = mean.to(dtype), factor.to(dtype)
    bias = bias if isinstance(bias, float) else bias.to(dtype)

    def of(x: Any) -> Any:
        y = (x - mean) * factor + bias
        return maximum(y, 0.0) if relu else y

    return of


def training_planes(
    k: Kernel, kinds: Kinds, outer: int, unit: bool, dense: bool, relu: bool, stream: bool
) -> None:
    """Tensors: x scale bias running_mean running_var y mean inv_std next_mean next_var; planes (*J, N)."""
    C, J, N, dtype = k.size("C"), sizes(k, "j", outer), k.size("N"), _dtype(kinds)
    x, y = _planes(k, C, J, N, unit, "xy", (0, 5), kinds)
    fits = aligned(k, y) if stream else None
    vectors = _vectors(k, C, dense, (1, 2, 3, 4, 6, 7, 8, 9), kinds)
    for c in units(k, C):
        s, q = k.var(k.zeros(2, WIDE)), k.var(k.zeros(2, WIDE))
        if dtype == WIDE:
            shift = line_mean(k, x.at(c), J, 0, N, k.scalar("count", WIDE))
        else:
            first = k.first(0, k.min(N, 1)).where(k.size("count_j") > 0)
            shift = finite(x[(c, *[0] * outer, first)].lane(0).to(WIDE))
        for j in nested(k, J):
            line = x.at(c, *j)
            for n in k.vectors(N, by=2):
                v = k.valid(n, line[n].to(WIDE) - shift)
                s += v
                q += v * v
        of = _normal(*_statistics(k, c, s.sum(), q.sum(), shift, vectors, dtype == WIDE), dtype, relu)
        for j in nested(k, J):
            line, out = x.at(c, *j), y.at(c, *j)
            for past in both_ways(k, fits):
                for n in k.vectors(N, by=4):
                    out.store(n, of(line[n]), stream=past and whole(n))


def _groups(k: Kernel, begin: Int, end: Int, together: int) -> Any:
    """Row numbers `together` at a time, then one at a time."""
    middle = begin + (end - begin) // together * together
    for r in k.loop(begin, middle, together):
        yield [r + i for i in range(together)]
    for r in k.loop(middle, end):
        yield [r]


def _block(k: Kernel, u: Int) -> tuple[Int, Int]:
    RB = k.size("RB")
    return u * RB, k.min((u + 1) * RB, k.size("rows"))


def training_rows(k: Kernel, kinds: Kinds, outer: int, dense: bool, relu: bool, stream: bool) -> None:
    """Tensors as in training_planes; rows (*J) of C channels."""
    C, J, dtype, blocks = k.size("C"), sizes(k, "j", outer), _dtype(kinds), k.size("blocks")
    x, y = _rows(k, C, J, "xy", (0, 5), kinds)
    vectors = _vectors(k, C, dense, (1, 2, 3, 4, 6, 7, 8, 9), kinds)
    sums = k.shared(blocks, 2, C, dtype=WIDE)
    ready = k.shared(3, C, dtype=dtype)
    together = 8 if k.isa.registers == 32 else 4
    origin = x.at(*[0] * outer)
    means = _row_means(k, x, J, C, sums, together) if dtype == WIDE else None

    def shift_of(c: Any, some: Any = None) -> Any:
        if means is not None:
            return means[c]
        return finite(origin[c if some is None else c.where(some)].to(WIDE))

    for u in units(k, blocks):
        S, Q = sums.at(u, 0), sums.at(u, 1)
        for c in k.vectors(C):
            S[c] = k.zeros(1, WIDE)
            Q[c] = k.zeros(1, WIDE)
        for group in _groups(k, *_block(k, u), together):
            lines = [x.at(*unflatten(r, J)) for r in group]
            for c in k.vectors(C):
                first = shift_of(c)
                v = [line[c].to(WIDE) - first for line in lines]
                S[c] = S[c] + tree(v)
                squares = Q[c]
                for a in v:
                    squares = a * a + squares
                Q[c] = squares
    for c0, c1 in channel_blocks(k, C):
        for c in k.vectors(c0, c1):
            s, q = k.var(k.zeros(1, WIDE)), k.var(k.zeros(1, WIDE))
            for b in k.range(blocks):
                s += sums[b, 0, c]
                q += sums[b, 1, c]
            three = _statistics(k, c, s, q, shift_of(c, blocks > 0), vectors, means is not None)
            for i, v in enumerate(three):
                ready[i, c] = v
    _apply_rows(k, J, C, ready, x, y, dtype, relu, stream)


def _row_means(k: Kernel, x: View, J: Sequence[Int], C: Int, sums: View, together: int) -> View:
    """The mean of every channel, from compensated sums; `sums` serves as room for those of blocks."""
    means, blocks = k.shared(C, dtype=WIDE), k.size("blocks")
    for u in units(k, blocks):
        S, lost = sums.at(u, 0), sums.at(u, 1)
        for c in k.vectors(C):
            S[c] = k.zeros(1, WIDE)
            lost[c] = k.zeros(1, WIDE)
        for group in _groups(k, *_block(k, u), together):
            lines = [x.at(*unflatten(r, J)) for r in group]
            for c in k.vectors(C):
                s, low = S[c], lost[c]
                for line in lines:
                    s, more = two_sum(s, line[c].to(WIDE))
                    low = low + more
                S[c], lost[c] = s, low
    for c0, c1 in channel_blocks(k, C):
        for c in k.vectors(c0, c1):
            top, rest = k.var(k.zeros(1, WIDE)), k.var(k.zeros(1, WIDE))
            for b in k.range(blocks):
                add(top, rest, sums[b, 0, c])
                rest += sums[b, 1, c]
            means[c] = joined(top, rest) / k.scalar("count", WIDE)
    return means


def _apply_rows(
    k: Kernel, J: Sequence[Int], C: Int, ready: View, x: View, y: View, dtype: str, relu: bool, stream: bool
) -> None:
    fits = aligned(k, y) if stream else None
    for u in units(k, k.size("blocks"), backwards=True):
        for group in _groups(k, *_block(k, u), 4):
            lines = [(x.at(*r), y.at(*r)) for r in (unflatten(r, J) for r in group)]
            for past in both_ways(k, fits):
                for c in k.vectors(C):
                    of = _normal(ready[0, c], ready[1, c], ready[2, c], dtype, relu)
                    for line, out in lines:
                        out.store(c, of(line[c]), stream=past and whole(c))


def _given(k: Kernel, c: Any, vectors: Sequence[Any]) -> Three:
    """(mean, scale · inv_std, bias) of given statistics."""
    mean, var, scale, bias = vectors
    inv = 1.0 / sqrt(var[c].to(WIDE) + k.scalar("eps", WIDE))
    return mean[c].to(WIDE), (inv if scale is None else inv * scale[c].to(WIDE)), _at(bias, c, 0.0)


def inference_planes(
    k: Kernel, kinds: Kinds, outer: int, unit: bool, dense: bool, relu: bool, stream: bool
) -> None:
    """Tensors: x mean var scale bias y; a plane's row at a time."""
    C, J, N, dtype = k.size("C"), sizes(k, "j", outer), k.size("N"), _dtype(kinds)
    x, y = _planes(k, C, J, N, unit, "xy", (0, 5), kinds)
    fits = aligned(k, y) if stream else None
    vectors = _vectors(k, C, dense, (1, 2, 3, 4), kinds)
    total = C
    for e in J:
        total = total * e
    for u in units(k, total):
        *j, c = unflatten(u, [*J, C])
        of = _normal(*_given(k, c, vectors), dtype, relu)
        line, out = x.at(c, *j), y.at(c, *j)
        for past in both_ways(k, fits):
            for n in k.vectors(N, by=4):
                out.store(n, of(line[n]), stream=past and whole(n))


def inference_rows(k: Kernel, kinds: Kinds, outer: int, dense: bool, relu: bool, stream: bool) -> None:
    """Tensors as in inference_planes; rows (*J) of C channels."""
    C, J, dtype = k.size("C"), sizes(k, "j", outer), _dtype(kinds)
    x, y = _rows(k, C, J, "xy", (0, 5), kinds)
    vectors = _vectors(k, C, dense, (1, 2, 3, 4), kinds)
    ready = k.shared(3, C, dtype=dtype)
    for c0, c1 in channel_blocks(k, C):
        for c in k.vectors(c0, c1):
            for i, v in enumerate(_given(k, c, vectors)):
                ready[i, c] = v
    _apply_rows(k, J, C, ready, x, y, dtype, relu, stream)


# --- backward ------------------------------------------------------------------------------------
def _gradients(k: Kernel, c: Any, s: Any, t: Any, vectors: Sequence[Any], variance: bool) -> Three:
    """(scale · inv_std, Σdy / n, inv_std² Σdy(x - mean) / n) of channels c; stores dscale, dbias.

    dx = the first · (dy - the second - (x - mean) · the third).
    """
    scale, inv_std, dscale, dbias = vectors
    inv = inv_std[c].to(WIDE)
    inv = 1.0 / sqrt(inv + k.scalar("eps", WIDE)) if variance else inv
    factor = inv if scale is None else inv * scale[c].to(WIDE)
    if s is None:
        return factor, 0.0, 0.0
    _put(dscale, c, t * inv)
    _put(dbias, c, s)
    count = k.scalar("count", WIDE)
    return factor, s / count, t * inv / count * inv


def _dx(dy: Any, x: Any, mean: Any, three: Sequence[Any], training: bool) -> Any:
    factor, first, second = three
    return (dy - first - (x - mean) * second) * factor if training else dy * factor


def backward_planes(
    k: Kernel, kinds: Kinds, outer: int, unit: bool, dense: bool, training: bool, variance: bool,
    stream: bool,
) -> None:  # fmt: skip
    """Tensors: dy x scale mean inv_std (or, if `variance`, the variance) dx dscale dbias."""
    C, J, N, dtype = k.size("C"), sizes(k, "j", outer), k.size("N"), _dtype(kinds)
    dy, x, dx = _planes(k, C, J, N, unit, "gxd", (0, 1, 5), kinds)
    fits = aligned(k, dx) if stream else None
    scale, mean, inv_std, dscale, dbias = _vectors(k, C, dense, (2, 3, 4, 6, 7), kinds)
    sums = dscale is not None or dbias is not None or training
    for c in units(k, C):
        mu = mean[c].to(dtype)
        total: list[Any] = [None, None]
        if sums:
            s, t = k.var(k.zeros(1, WIDE)), k.var(k.zeros(1, WIDE))
            for j in nested(k, J):
                g, line = dy.at(c, *j), x.at(c, *j)
                a, b = k.var(k.zeros(4, dtype)), k.var(k.zeros(4, dtype))
                for n in k.vectors(N, by=4):
                    v = g[n]
                    a += v
                    b += v * k.valid(n, line[n] - mu)
                s += tree([a.part(i) for i in range(4)]).to(WIDE)
                t += tree([b.part(i) for i in range(4)]).to(WIDE)
            total = [s.sum(), t.sum()]
        three = _gradients(k, c, total[0], total[1], (scale, inv_std, dscale, dbias), variance)
        if dx is None:
            continue
        narrow = [v if isinstance(v, float) else v.to(dtype) for v in three]
        for j in nested(k, J):
            g, line, out = dy.at(c, *j), x.at(c, *j), dx.at(c, *j)
            for past in both_ways(k, fits):
                for n in k.vectors(N, by=4):
                    v = _dx(g[n], line[n] if training else None, mu, narrow, training)
                    out.store(n, v, stream=past and whole(n))


def backward_rows(k: Kernel, kinds: Kinds, outer: int, dense: bool, training: bool, variance: bool,
                  stream: bool) -> None:  # fmt: skip
    """Tensors as in backward_planes; rows (*J) of C channels."""
    C, J, dtype, blocks = k.size("C"), sizes(k, "j", outer), _dtype(kinds), k.size("blocks")
    dy, x, dx = _rows(k, C, J, "gxd", (0, 1, 5), kinds)
    scale, mean, inv_std, dscale, dbias = _vectors(k, C, dense, (2, 3, 4, 6, 7), kinds)
    wanted = dscale is not None or dbias is not None or training
    sums, ready = k.shared(blocks, 2, C, dtype=dtype), k.shared(4, C, dtype=dtype)
    for c0, c1 in channel_blocks(k, C):  # means once, dense, in the type of the arithmetic
        for c in k.vectors(c0, c1):
            ready[3, c] = mean[c]
    together = 8 if k.isa.registers == 32 else 4
    if wanted:
        for u in units(k, blocks):
            S, T = sums.at(u, 0), sums.at(u, 1)
            for c in k.vectors(C):
                S[c] = k.zeros(1, dtype)
                T[c] = k.zeros(1, dtype)
            for group in _groups(k, *_block(k, u), together):
                pairs = [(dy.at(*r), x.at(*r)) for r in (unflatten(r, J) for r in group)]
                for c in k.vectors(C):
                    mu = ready[3, c]
                    g = [a[c] for a, _ in pairs]
                    S[c] = S[c] + tree(g)
                    T[c] = T[c] + tree([v * (b[c] - mu) for v, (_, b) in zip(g, pairs)])
    for c0, c1 in channel_blocks(k, C):
        for c in k.vectors(c0, c1):
            total: list[Any] = [None, None]
            if wanted:
                total = s, t = [k.var(k.zeros(1, WIDE)), k.var(k.zeros(1, WIDE))]
                for b in k.range(blocks):
                    s += sums[b, 0, c].to(WIDE)
                    t += sums[b, 1, c].to(WIDE)
            vectors = (scale, inv_std, dscale, dbias)
            for i, v in enumerate(_gradients(k, c, total[0], total[1], vectors, variance)):
                ready[i, c] = v
    if dx is None:
        return
    fits = aligned(k, dx) if stream else None
    for u in units(k, blocks, backwards=True):
        for group in _groups(k, *_block(k, u), 4):
            rows = [unflatten(r, J) for r in group]
            lines = [(dy.at(*r), x.at(*r), dx.at(*r)) for r in rows]
            for past in both_ways(k, fits):
                for c in k.vectors(C):
                    three, mu = [ready[i, c] for i in range(3)], ready[3, c]
                    for g, line, out in lines:
                        v = _dx(g[c], line[c] if training else None, mu, three, training)
                        out.store(c, v, stream=past and whole(c))
