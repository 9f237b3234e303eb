"""Gradients of reductions that need x: of products, extremes and norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from vlug.codegen.ir import Int, Kernel, Val, Var, View, absolute, copysign, reduce, select
from vlug.engines.cpu.kernels.common import sizes, unflatten, units

__all__ = ["columns", "rows", "split_rows"]

Kinds = tuple[str | None, ...]


class Slope:
    """What dx is of g = dy, x and y, given what is known of the whole slice (its counts)."""

    def __init__(self, k: Kernel, mode: str, kinds: Kinds) -> None:
        self.k, self.mode = k, mode
        self.dtype = "f64" if kinds[1] == "f64" or mode.startswith("mul") else "f32"
        #: What the counts start from: hits, or the product and the number of zeros.
        self.starts = {"mul": (1.0, 0.0), "mul_no_zeros": (1.0,), "norm1": (), "norm2": ()}.get(mode, (0.0,))

    def state(self, n: int) -> list[Var]:
        return [self.k.var(self.k.full(s, n, self.dtype)) for s in self.starts]

    def see(self, state: Sequence[Var], x: Val, y: Any, valid: Callable[[Val, float], Val]) -> None:
        """Count elements; valid(v, other): v, other in the lanes that are left out."""
        if self.mode.startswith("mul"):
            zero = x.eq(0.0)
            state[0].set(state[0].part(0, len(x.v)) * valid(select(zero, 1.0, x), 1.0))
            if self.mode == "mul":
                state[1].set(state[1].part(0, len(x.v)) + valid(select(zero, _one(x), 0.0), 0.0))
        else:
            hit = select(self._size(x).eq(y), _one(x), 0.0)
            state[0].set(state[0].part(0, len(x.v)) + valid(hit, 0.0))

    def _size(self, x: Val) -> Val:
        return absolute(x) if self.mode == "amax" else x

    def known(self, g: Val, state: Sequence[Val]) -> list[Val]:
        """What a slice's elements share."""
        if self.mode in ("min", "max", "amax"):
            return [g / state[0]]
        return [g, *state]

    def dx(self, x: Val, y: Any, known: Sequence[Val]) -> Val:
        g, *more = known
        match self.mode:
            case "norm1":
                return g * _sign(x)
            case "norm2":
                return g * select(y.eq(0.0), 0.0, x / y)
            case "min" | "max":
                return g * select(x.eq(y), _one(x), 0.0)
            case "amax":
                return g * select(absolute(x).eq(y), _one(x), 0.0) * _sign(x)
            case "mul_no_zeros":
                return g * select(x.eq(0.0), 0.0, more[0] / x)
        product, zeros = more
        alone = select(x.eq(0.0), product, 0.0)
        return g * select(zeros.eq(0.0), product / x, select(zeros.eq(1.0), alone, 0.0))


def _one(x: Val) -> Val:
    return x.k.zip(lambda a: x.k.val(1.0, x).v[0], x)


def _sign(x: Val) -> Val:
    """-1, 0, 1; of NaN itself."""
    return select(absolute(x) > 0.0, copysign(_one(x), x), x)


def _views(
    k: Kernel, kinds: Kinds, kept: int, reduced: int, inner: Int, steps: Sequence[Any]
) -> tuple[list[Int], list[Int], list[Any]]:
    I, J = sizes(k, "i", kept), sizes(k, "j", reduced)
    views: list[Any] = []
    for at, (name, kind, step) in enumerate(zip("gxyd", kinds, steps)):
        if kind is None:
            views.append(None)
            continue
        last = k.size(f"{name}_inner") if step is None else step
        strides = [*sizes(k, f"{name}_i", kept), *sizes(k, f"{name}_j", reduced), last]
        views.append(k.view(*I, *J, inner, strides=strides, dtype=kind, at=at))
    return I, J, views


def _units(k: Kernel, I: Sequence[Int], N: Int) -> Iterator[tuple[Any, ...]]:
    """(number of the slice, of its block, indices of what is kept, rows from, to, elements from, to)"""
    rows, total, JB, NB, group = (k.size(n) for n in ("rows", "kept", "JB", "NB", "group"))
    blocks_j, blocks_n = k.ceil_div(rows, JB), k.ceil_div(N, NB)
    count = total * blocks_j * blocks_n
    for u in units(k, k.ceil_div(count, group)):
        for at in k.range(u * group, k.min((u + 1) * group, count)):
            i, jb, nb = unflatten(at, [total, blocks_j, blocks_n])
            block = jb * JB, k.min((jb + 1) * JB, rows), nb * NB, k.min((nb + 1) * NB, N)
            yield i, at - i * (blocks_j * blocks_n), unflatten(i, I), *block


def rows(k: Kernel, kinds: Kinds, mode: str, kept: int, reduced: int, unit: bool) -> None:
    """Reduced elements along the rows. Tensors: dy x y dx."""
    slope, N = Slope(k, mode, kinds), k.size("N")
    step = 1 if unit else None
    I, J, (dy, x, y, dx) = _views(k, kinds, kept, reduced, N, [0, step, 0, step])
    none = [0] * reduced

    for _, _, i, *block in _units(k, I, N):
        g = dy[(*i, *none, 0)].to(slope.dtype)
        top = None if y is None else y[(*i, *none, 0)].to(slope.dtype)
        known = slope.known(g, _counted(slope, x.at(*i), J, block, top))
        _write(slope, x.at(*i), dx.at(*i), J, block, top, known)


def split_rows(k: Kernel, kinds: Kinds, mode: str, kept: int, reduced: int, unit: bool) -> None:
    """The same for slices of many blocks: counts of each block, then of each slice, then dx."""
    slope, N = Slope(k, mode, kinds), k.size("N")
    step = 1 if unit else None
    I, J, (dy, x, y, dx) = _views(k, kinds, kept, reduced, N, [0, step, 0, step])
    none = [0] * reduced
    total = k.size("kept")
    blocks = k.ceil_div(k.size("rows"), k.size("JB")) * k.ceil_div(N, k.size("NB"))
    counts = k.shared(len(slope.starts), total, blocks, dtype=slope.dtype)
    sums = k.shared(len(slope.starts), total, dtype=slope.dtype)
    for number, b, i, *block in _units(k, I, N):
        top = None if y is None else y[(*i, *none, 0)].to(slope.dtype)
        for v, s in enumerate(_counted(slope, x.at(*i), J, block, top)):
            counts[v, number, b] = s
    for number in k.range(total):
        for v, start in enumerate(slope.starts):
            s = k.var(k.val(start, dtype=slope.dtype))
            for b in k.range(blocks):
                s.set(_joined(start)(s, counts[v, number, b]))
            sums[v, number] = s
    for number, _, i, *block in _units(k, I, N):
        g = dy[(*i, *none, 0)].to(slope.dtype)
        top = None if y is None else y[(*i, *none, 0)].to(slope.dtype)
        known = slope.known(g, [sums[v, number] for v in range(len(slope.starts))])
        _write(slope, x.at(*i), dx.at(*i), J, block, top, known)


def _counted(slope: Slope, x: View, J: Sequence[Int], block: Sequence[Int], top: Any) -> list[Val]:
    """What the elements of a block come to."""
    k, (first, last, lo, hi) = slope.k, block
    state = slope.state(4)
    if state:
        for j in k.range(first, last):
            line = x.at(*unflatten(j, J))
            for n in k.vectors(lo, hi, by=4):
                slope.see(state, line[n].to(slope.dtype), top, partial(k.valid, n))
    return [reduce(s, _joined(start)) for s, start in zip(state, slope.starts)]


def _write(
    slope: Slope, x: View, dx: View, J: Sequence[Int], block: Sequence[Int], top: Any, known: Sequence[Val]
) -> None:
    k, (first, last, lo, hi) = slope.k, block
    for j in k.range(first, last):
        line, out = x.at(*unflatten(j, J)), dx.at(*unflatten(j, J))
        for n in k.vectors(lo, hi, by=4):
            out[n] = slope.dx(line[n].to(slope.dtype), top, known)


def _joined(start: float) -> Callable[[Any, Any], Val]:
    """How counts that start from 0, products that start from 1, are joined."""
    return (lambda a, b: a * b) if start else (lambda a, b: a + b)


def columns(k: Kernel, kinds: Kinds, mode: str, kept: int, reduced: int, unit: bool) -> None:
    """The same with vectors along N dense elements that are kept."""
    slope, N = Slope(k, mode, kinds), k.size("N")
    I, J, (dy, x, y, dx) = _views(k, kinds, kept, reduced, N, [None, 1, None, 1])
    none = [0] * reduced
    for _, _, i, first, last, lo, hi in _units(k, I, N):
        grads, from_, to = dy.at(*i, *none), x.at(*i), dx.at(*i)
        tops = None if y is None else y.at(*i, *none)
        for n in k.vectors(lo, hi, by=2):
            g, state = grads[n].to(slope.dtype), slope.state(len(n.masks))
            top = None if tops is None else tops[n].to(slope.dtype)
            if state:
                for j in k.range(first, last):
                    slope.see(state, from_[(*unflatten(j, J), n)].to(slope.dtype), top, _kept)
            known = slope.known(g, state)
            for j in k.range(first, last):
                at: tuple[Any, ...] = (*unflatten(j, J), n)
                to[at] = slope.dx(from_[at].to(slope.dtype), top, known)


def _kept(v: Val, other: float) -> Val:
    return v
