"""Reductions over axes, along rows or down columns: blocks of the reduced axes apart, then together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vlug.codegen.ir import Kernel, Val, Var, absolute, maximum, minimum, reduce, select, sqrt
from vlug.engines.cpu.kernels.common import sizes, unflatten, units

__all__ = ["WIDE", "Fold", "column_folds", "fold_of", "row_folds", "short_row_folds"]

#: Modes whose running value is kept in f64 for every type: it neither overflows nor underflows on the way.
WIDE = ("mul", "mul_no_zeros", "norm2")
_INF = float("inf")
#: Magnitudes of f64 whose squares leave its range, and the power of two that brings them back.
_BIG, _SMALL, _SHIFT = 2.0**500, 2.0**-500, 2.0**600


@dataclass(frozen=True)
class Fold:
    """How elements become one: each gives a term, terms are joined, the joined ones finished.

    A state has one value, or three: squares of f64 are summed apart for huge, middling and tiny elements
    (Blue's algorithm). start: the value of no terms; blank: an element that changes nothing.
    """

    dtype: str
    start: float
    blank: float
    terms: Callable[[Val], list[Val]]
    join: Callable[[Any, Any], Val]
    finish: Callable[[Sequence[Val]], Val]

    def state(self, k: Kernel, n: int) -> list[Var]:
        """Variables of n vectors, for each value of a state."""
        return [k.var(k.full(self.start, n, self.dtype)) for _ in range(self.values)]

    @property
    def values(self) -> int:
        return 3 if self.terms is _squares_apart else 1

    def add(self, state: Sequence[Var], terms: Sequence[Val]) -> None:
        """Join terms of fewer registers (a tail) or as many to a state."""
        for s, t in zip(state, terms):
            s.set(self.join(s.part(0, len(t.v)), t))

    def whole(self, state: Sequence[Val]) -> list[Val]:
        """The state of all lanes, as scalars."""
        return [reduce(s, self.join) for s in state]


def fold_of(mode: str, kind: str) -> Fold:
    """The fold of a mode over elements of a type."""
    dtype = "f64" if kind == "f64" or mode in WIDE else "f32"

    def only(f: Callable[[Val], Val]) -> Callable[[Val], list[Val]]:
        return lambda x: [f(x.to(dtype))]

    def first(s: Sequence[Val]) -> Val:
        return s[0]

    def plus(a: Any, b: Any) -> Val:
        return a + b  # type: ignore[no-any-return]

    def times(a: Any, b: Any) -> Val:
        return a * b  # type: ignore[no-any-return]

    match mode:
        case "add" | "mean":
            return Fold(dtype, 0.0, 0.0, only(lambda x: x), plus, first)
        case "norm1":
            return Fold(dtype, 0.0, 0.0, only(absolute), plus, first)
        case "norm2" if kind == "f64":
            return Fold(dtype, 0.0, 0.0, _squares_apart, plus, _root_of_three)
        case "norm2":
            return Fold(dtype, 0.0, 0.0, only(lambda x: x * x), plus, lambda s: sqrt(s[0]))
        case "mul":
            return Fold(dtype, 1.0, 1.0, only(lambda x: x), times, first)
        case "mul_no_zeros":
            return Fold(dtype, 1.0, 1.0, only(lambda x: select(x.eq(0.0), 1.0, x)), times, first)
        case "min":
            return Fold(dtype, _INF, _INF, only(lambda x: x), minimum, first)
        case "max":
            return Fold(dtype, -_INF, -_INF, only(lambda x: x), maximum, first)
        case "amax":
            return Fold(dtype, 0.0, 0.0, only(absolute), maximum, first)
    raise ValueError(f"no fold for {mode}")


def _squares_apart(x: Val) -> list[Val]:
    a = absolute(x)
    big, small = a > _BIG, a < _SMALL
    parts = (
        select(big, x * (1 / _SHIFT), 0.0),
        select(big | small, 0.0, x),
        select(small, x * _SHIFT, 0.0),
    )
    return [p * p for p in parts]


def _root_of_three(s: Sequence[Val]) -> Val:
    big, middle, small = s
    back = _SHIFT**-1
    upper = sqrt(big + middle * back * back) * _SHIFT
    lower = select(middle.eq(0.0), sqrt(small) * back, sqrt(middle + small * back * back))
    return select(big.eq(0.0), lower, upper)


def row_folds(k: Kernel, dtypes: tuple[str, str], mode: str, kept: int, reduced: int, unit: bool) -> None:
    """y[i…] = x[i…, j…, n] over j… and n, divided by `count` for a mean; n runs along the rows.

    The reduced elements go in blocks of JB rows × NB elements, the same for any number of threads.
    """
    x_type, y_type = dtypes
    fold = fold_of(mode, x_type)
    I, J, N = sizes(k, "i", kept), sizes(k, "j", reduced), k.size("N")
    JB, NB = k.size("JB"), k.size("NB")
    step = 1 if unit else k.size("x_inner")
    x = k.view(*I, *J, N, strides=[*sizes(k, "x_i", kept), *sizes(k, "x_j", reduced), step], dtype=x_type)
    y = k.view(*I, 1, strides=[*sizes(k, "y_i", kept), 0], dtype=y_type)
    rows, total = k.size("rows"), k.size("kept")  # products of J and of I
    blocks_j, blocks_n = k.ceil_div(rows, JB), k.ceil_div(N, NB)
    blocks = blocks_j * blocks_n
    partial = k.shared(fold.values, total, blocks, dtype=fold.dtype, size=k.size("partials") * fold.values)
    for u in units(k, total * blocks):
        i, jb, nb = unflatten(u, [total, blocks_j, blocks_n])
        here = x.at(*unflatten(i, I))
        lo, hi = nb * NB, k.min((nb + 1) * NB, N)
        state = fold.state(k, 4)
        for j in k.range(jb * JB, k.min((jb + 1) * JB, rows)):
            line = here.at(*unflatten(j, J))
            for n in k.vectors(lo, hi, by=4):
                fold.add(state, fold.terms(line.load(n, other=fold.blank)))
        for v, s in enumerate(fold.whole(state)):
            partial[v, i, u - i * blocks] = s
    group = k.size("group")  # results finished by one unit
    for u in k.parallel(k.size("groups")):
        for i in k.range(u * group, k.min((u + 1) * group, total)):
            state = fold.state(k, 4)
            for b in k.vectors(blocks, by=4):
                found = [partial.load(v, i, b, other=fold.start) for v in range(fold.values)]
                fold.add(state, found)
            y[(*unflatten(i, I), 0)] = _finished(k, fold, mode, fold.whole(state))


def _finished(k: Kernel, fold: Fold, mode: str, state: Sequence[Val]) -> Val:
    y = fold.finish(state)
    return y / k.scalar("count", fold.dtype) if mode == "mean" else y


def short_row_folds(k: Kernel, dtypes: tuple[str, str], mode: str, kept: int, unit: bool) -> None:
    """The same for rows that are one block."""
    x_type, y_type = dtypes
    fold = fold_of(mode, x_type)
    I, N = sizes(k, "i", kept), k.size("N")
    step = 1 if unit else k.size("x_inner")
    x = k.view(*I, N, strides=[*sizes(k, "x_i", kept), step], dtype=x_type)
    y = k.view(*I, 1, strides=[*sizes(k, "y_i", kept), 0], dtype=y_type)
    total, group = k.size("kept"), k.size("group")
    for u in units(k, k.ceil_div(total, group)):
        for i in k.range(u * group, k.min((u + 1) * group, total)):
            at = unflatten(i, I)
            line, state = x.at(*at), fold.state(k, 4)
            for n in k.vectors(N, by=4, tail="switch"):
                fold.add(state, fold.terms(line.load(n, other=fold.blank)))
            y[(*at, 0)] = _finished(k, fold, mode, fold.whole(state))


def _halves(rows: Sequence[Val], join: Callable[[Any, Any], Val]) -> Val:
    """All rows joined, by halves."""
    rows = list(rows)
    while len(rows) > 1:
        rows = [join(a, b) for a, b in zip(rows[::2], rows[1::2])] + (rows[-1:] if len(rows) % 2 else [])
    return rows[0]


def column_folds(k: Kernel, dtypes: tuple[str, str], mode: str, kept: int, reduced: int, unit: bool) -> None:
    """y[i…, n] = x[i…, j…, n] over j…, divided by `count` for a mean; vectors lie along n.

    Rows go in blocks of JB, columns in blocks of NB. unit: whether y is dense along n.
    """
    x_type, y_type = dtypes
    fold = fold_of(mode, x_type)
    I, J, N = sizes(k, "i", kept), sizes(k, "j", reduced), k.size("N")
    JB, NB = k.size("JB"), k.size("NB")
    x = k.view(*I, *J, N, strides=[*sizes(k, "x_i", kept), *sizes(k, "x_j", reduced), 1], dtype=x_type)
    step = 1 if unit else k.size("y_inner")
    y = k.view(*I, N, strides=[*sizes(k, "y_i", kept), step], dtype=y_type)
    rows, total = k.size("rows"), k.size("kept")
    blocks_j, blocks_n = k.ceil_div(rows, JB), k.ceil_div(N, NB)
    room = k.size("partials") * fold.values
    partial = k.shared(fold.values, total, blocks_j, N, dtype=fold.dtype, size=room)
    together = 8
    for u in units(k, total * blocks_j * blocks_n):
        i, jb, nb = unflatten(u, [total, blocks_j, blocks_n])
        lo, hi = nb * NB, k.min((nb + 1) * NB, N)
        outs = [partial.at(v, i, jb) for v in range(fold.values)]
        here = x.at(*unflatten(i, I))
        begin, end = jb * JB, k.min((jb + 1) * JB, rows)
        for n in k.vectors(lo, hi, by=4):
            for out in outs:
                out[n] = fold.start
        middle = begin + (end - begin) // together * together
        for j in k.range(begin, middle, together):
            lines = [here.at(*unflatten(j + r, J)) for r in range(together)]
            for n in k.vectors(lo, hi, by=1):
                terms = [fold.terms(line[n]) for line in lines]
                for v, out in enumerate(outs):
                    out[n] = fold.join(out[n], _halves([t[v] for t in terms], fold.join))
        for j in k.range(middle, end):
            line = here.at(*unflatten(j, J))
            for n in k.vectors(lo, hi, by=1):
                for out, term in zip(outs, fold.terms(line[n])):
                    out[n] = fold.join(out[n], term)
    for u in k.parallel(k.size("groups")):
        i, nb = unflatten(u, [total, blocks_n])
        line = y.at(*unflatten(i, I))
        for n in k.vectors(nb * NB, k.min((nb + 1) * NB, N)):
            state = fold.state(k, 1)
            for b in k.range(blocks_j):
                fold.add(state, [partial[v, i, b, n] for v in range(fold.values)])
            line[n] = _finished(k, fold, mode, state)
