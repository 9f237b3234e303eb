"""Windows along rows and columns: which taps lie inside, and loads of every stride-th column.

x is H × W, results are P × Q; windows of R × S taps, strides sh sw, padding ph pw in front, dilation dh dw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vlug.codegen.ir import Int, Kernel, Lanes, Val, View, shuffle

__all__ = ["Line", "Reach", "covering", "gather_rows", "inside", "interleave", "loader", "span", "within"]


@dataclass(frozen=True)
class Line:
    """Windows along one dimension: a size, taps, stride, padding in front, dilation, results."""

    size: Int
    taps: Int
    stride: Int
    pad: Int
    dilation: Int
    out: Int

    @classmethod
    def of(cls, k: Kernel, letters: str, taps: int = 0, stride: int = 0, dilation: int = 0) -> Line:
        """From the sizes named by six letters or names ("H R sh ph dh P"); numbers above 0 are constants."""
        size, r, s, p, d, out = letters.split()
        return cls(
            k.size(size),
            taps or k.size(r),
            stride or k.size(s),
            k.size(p),
            dilation or k.size(d),
            k.size(out),
        )


def span(k: Kernel, line: Line, at: Int) -> tuple[Int, Int, Int]:
    """(where the window of result `at` starts, its first tap inside, one past its last tap inside)."""
    start = at * line.stride - line.pad
    first = k.max(k.floor_div((line.dilation - 1) - start, line.dilation), 0)
    last = k.min(k.floor_div((line.size + (line.dilation - 1)) - start, line.dilation), line.taps)
    return start, first, last


def covering(k: Kernel, line: Line, at: Int) -> tuple[Int, Int]:
    """[first, last) results whose windows span element `at` (with dilation some of them skip it)."""
    place = at + line.pad
    reach = (line.taps - 1) * line.dilation  # a window's last tap from its first
    first = k.max(k.floor_div(place - reach + (line.stride - 1), line.stride), 0)
    return first, k.min(k.floor_div(place, line.stride) + 1, line.out)


def within(k: Kernel, at: Val, size: Int) -> Val:
    """Whether positions (i32) lie in [0, size): one unsigned comparison."""
    top = k.to_int(size, "i32")
    return k.zip(lambda a, b: k.op("icmp_unsigned", "<", a, b), at, top)


def inside(k: Kernel, p: Lanes, size: Int) -> tuple[Lanes, Val]:
    """The lanes whose positions lie in [0, size), and the positions (i32)."""
    at = k.positions(p, "i32")
    return p.where(within(k, at, size)), at


#: From a row and what stands outside of it: a vector for each tap.
Load = Callable[[View, float], list[Val]]


def loader(k: Kernel, q: Lanes, line: Line, unit: bool) -> tuple[list[Val], list[Val], Load]:
    """For a vector of results q and a known number of taps: each tap's columns (i32), whether they lie
    inside, and a function that loads all taps from a row."""
    shifts = [s * line.dilation for s in range(line.taps)]  # type: ignore[arg-type]
    start = q * line.stride - line.pad
    columns = k.positions(start, "i32")
    at = [columns + k.to_int(d, "i32") for d in shifts]
    ins = [within(k, a, line.size) for a in at]
    if line.stride == 2 and unit and isinstance(line.dilation, int):
        pairs: dict[int, list[Lanes]] = {}
        for d in shifts:
            even = d // 2 * 2
            if even not in pairs:
                halves = [k.vector(q.base * 2 - line.pad + even + half * k.V) for half in (0, 1)]
                pairs[even] = [inside(k, h, line.size)[0] for h in halves]

        def load(row: View, other: float) -> list[Val]:
            loaded = {e: [row.load(h, other=other) for h in halves] for e, halves in pairs.items()}
            out = []
            for d in shifts:
                a, b = loaded[d // 2 * 2]
                out.append(shuffle(a, b, [2 * i + d % 2 for i in range(k.V)]))
            return out

        return at, ins, load
    lanes = [(start + d).where(i) for d, i in zip(shifts, ins)]
    return at, ins, lambda row, other: [row.load(p, other=other) for p in lanes]


def interleave(k: Kernel, a: Val, b: Val) -> tuple[Val, Val]:
    """a0 b0 a1 b1 …, in two registers."""
    V = k.V
    low = [i // 2 + (V if i % 2 else 0) for i in range(V)]
    return shuffle(a, b, low), shuffle(a, b, [i + V // 2 for i in low])


@dataclass(frozen=True)
class Reach:
    """Windows that a vector of columns asks: those `back` windows before the last one that spans them.

    q: the windows (lanes); phases: the columns' remainders by the stride, one for each vector of `columns`
    (i32); extra: what `prepare` made of q, outside the loop over rows.
    """

    q: Lanes
    back: Int
    phases: list[Int]
    columns: list[Val]
    extra: Any


def gather_rows(
    k: Kernel,
    w: Line,
    rows: tuple[Int, Int],
    dx: View,
    dtype: str,
    results: Callable[[Int], tuple[Int, Int]],
    share: Callable[[Int, Int, Reach], list[Val]],
    prepare: Callable[[Lanes], Any] = lambda q: None,
) -> None:
    """Rows of dx: column = stride · t + phase - pad asks the windows t - back.

    results(row): the result rows p whose windows span it. share(row, p, reach): what the windows of p give to
    the reach's columns. Columns go outermost: what depends on them alone (masks above all) is made once for
    all rows. Taps, stride and dilation of w that are all constant make straight code, else loops.
    """
    stride = w.stride
    reach = (w.taps - 1) * w.dilation
    first, last = w.pad // stride, (w.size - 1 + w.pad) // stride + 1
    if isinstance(stride, int) and isinstance(reach, int) and stride <= 2:
        windows = [(reach - b) // stride + 1 if b <= reach else 0 for b in range(stride)]
        for t in k.vectors(first, last):
            columns = [k.positions(t * stride + (b - w.pad), "i32") for b in range(stride)]
            asked = []
            for j in range(max(windows)):
                q = inside(k, t - j, w.out)[0]
                phases = [b for b, n in enumerate(windows) if j < n]
                asked.append(Reach(q, j, [*phases], [columns[b] for b in phases], prepare(q)))
            halves = [inside(k, k.vector(t.base * 2 - w.pad + h * k.V), w.size)[0] for h in range(stride)]
            for row in k.range(*rows):
                sums = [k.var(k.zeros(1, dtype)) for _ in windows]
                for p in k.range(*results(row)):
                    for r in asked:
                        for b, v in zip(r.phases, share(row, p, r)):
                            sums[b] += v  # type: ignore[index]
                if stride == 1:
                    dx[row, t - w.pad] = sums[0]
                else:
                    for half, v in zip(halves, interleave(k, sums[0], sums[1])):
                        dx[row, half] = v
        return
    for phase in k.range(stride):
        count = k.floor_div(reach - phase, stride) + 1
        for t in k.vectors(first, last):
            column, at = inside(k, t * stride + (phase - w.pad), w.size)
            for row in k.range(*rows):
                total = k.var(k.zeros(1, dtype))
                for p in k.range(*results(row)):
                    for back in k.range(count):
                        q = inside(k, t - back, w.out)[0]
                        (v,) = share(row, p, Reach(q, back, [phase], [at], prepare(q)))
                        total += v
                dx[row, column] = total
