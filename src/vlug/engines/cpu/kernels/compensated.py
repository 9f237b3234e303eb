"""Sums in f64 that keep what rounding loses (Knuth's two-sum), for the means of norms in f64.

There an fp64 sum is no wider than the data, and a shift by one of the elements leaves the mean with an error
of an ulp of that element: too much where the mean is near 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.codegen.ir import Int, Kernel, Val, Var, View, absolute, select
from vlug.engines.cpu.kernels.common import nested

__all__ = ["add", "joined", "line_mean", "sums_of", "total", "two_sum"]

WIDE = "f64"


def two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """a + b, and what its rounding lost."""
    t = a + b
    v = t - a
    return t, (a - (t - v)) + (b - v)


def add(s: Var, lost: Var, v: Any) -> None:
    """s + lost += v, which may have fewer registers (the rest of a row): the first of s take them."""
    t, low = two_sum(s.part(0, len(v.v)), v)
    lost += low
    s.set(t)


def joined(s: Any, lost: Any) -> Any:
    """s + lost; s alone where that is infinite or NaN (lost is NaN then)."""
    return s + select(absolute(lost) < float("inf"), lost, 0.0)


def sums_of(k: Kernel, x: View, R: Sequence[Int], lo: Int, hi: Int) -> tuple[Any, Any]:
    """Σ x over [lo, hi) of every line, as a sum of two scalars."""
    s, lost = k.var(k.zeros(2, WIDE)), k.var(k.zeros(2, WIDE))
    for r in nested(k, R):
        line = x.at(*r)
        for n in k.vectors(lo, hi, by=2):
            add(s, lost, k.valid(n, line[n].to(WIDE)))
    lanes = [Val(k, [a]).lane(j) for a in s.v for j in range(a.type.count)]
    top, low = lanes[0], lost.sum()
    for v in lanes[1:]:
        top, more = two_sum(top, v)
        low = low + more
    return top, low


def total(k: Kernel, sums: View, n: Int) -> Any:
    """The sum of n pairs sums[i, :2], in order."""
    s, lost = k.var(0.0, WIDE), k.var(0.0, WIDE)
    for i in k.range(n):
        add(s, lost, sums[i, 0])
        lost += sums[i, 1]
    return joined(s, lost)


def line_mean(k: Kernel, x: View, R: Sequence[Int], lo: Int, hi: Int, count: Any) -> Any:
    """The mean of `count` elements, those of [lo, hi) of every line."""
    return joined(*sums_of(k, x, R, lo, hi)) / count
