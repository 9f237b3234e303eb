"""Windows along rows and columns: which taps lie inside, and loads of every stride-th column.

x is H × W, results are P × Q; windows of R × S taps, strides sh sw, padding ph pw in front, dilation dh dw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vlug.codegen.ir import Int, Kernel, Lanes, Val, View, shuffle

__all__ = ["Line", "covering", "inside", "interleave", "loader", "span"]


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


def inside(k: Kernel, p: Lanes, size: Int) -> tuple[Lanes, Val]:
    """The lanes whose positions lie in [0, size), and the positions (i32)."""
    at = k.positions(p, "i32")
    return p.where((at >= 0) & (at < k.to_int(size, "i32"))), at


#: From a row and what stands outside of it: a vector for each tap.
Load = Callable[[View, float], list[Val]]


def loader(k: Kernel, q: Lanes, line: Line, unit: bool) -> tuple[list[Val], list[Val], Load]:
    """For a vector of results q and a known number of taps: each tap's columns (i32), whether they lie
    inside, and a function that loads all taps from a row."""
    shifts = [s * line.dilation for s in range(line.taps)]  # type: ignore[arg-type]
    start = q * line.stride - line.pad
    columns = k.positions(start, "i32")
    size = k.to_int(line.size, "i32")
    at = [columns + k.to_int(d, "i32") for d in shifts]
    ins = [(a >= 0) & (a < size) for a in at]
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
