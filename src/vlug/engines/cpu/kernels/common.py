"""What kernels of loop nests share: units of work, flat indices, row sums, alignment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vlug.codegen.ir import Int, Kernel, Lanes, Val, View
from vlug.codegen.types import I64

__all__ = ["aligned", "both_ways", "channel_blocks", "nested", "sizes", "tree", "unflatten", "units", "whole"]


def sizes(k: Kernel, stem: str, n: int) -> list[Int]:
    """n run-time sizes stem0, stem1, …"""
    return [k.size(f"{stem}{i}") for i in range(n)]


def units(k: Kernel, total: Int, backwards: bool = False) -> Iterator[Int]:
    """A parallel loop over units of work, `per` of them to a part (see nest.parts).

    backwards: each part takes its units last to first, so that it meets first what it left in its caches.
    """
    per = k.size("per")
    for begin, end in k.chunk(k.size("parts")):
        lo, hi = begin * per, k.min(end * per, total)
        for u in k.loop(lo, hi):
            yield (lo + hi - 1) - u if backwards else u


def channel_blocks(k: Kernel, C: Int) -> Iterator[tuple[Int, Int]]:
    """A parallel loop over [first, last) of C channels, CB of them to a unit (see nest.channel_parts)."""
    CB = k.size("CB")
    for u in k.parallel(k.size("c_parts")):
        yield u * CB, k.min((u + 1) * CB, C)


def unflatten(u: Int, extents: Sequence[Int]) -> list[Int]:
    """The indices of a flat index, the last running fastest."""
    out: list[Int] = []
    for e in reversed(extents[1:]):
        out.insert(0, u % e)
        u = u // e
    return [u, *out] if extents else []


def nested(k: Kernel, extents: Sequence[Int]) -> Iterator[list[Int]]:
    """Loops over all indices, one in the other."""
    if not extents:
        yield []
        return
    for i in k.range(extents[0]):
        for rest in nested(k, extents[1:]):
            yield [i, *rest]


def tree(rows: Sequence[Any]) -> Any:
    """The sum, by halves."""
    rows = list(rows)
    while len(rows) > 1:
        rows = [a + b for a, b in zip(rows[::2], rows[1::2])] + (rows[-1:] if len(rows) % 2 else [])
    return rows[0]


def both_ways(k: Kernel, past_caches: Val | None) -> Iterator[bool]:
    """What follows, twice: storing past the caches where the condition holds, plainly elsewhere."""
    if past_caches is None:
        yield False
    else:
        yield from k.either(past_caches)


def whole(n: Lanes) -> bool:
    """Whether no lane is left out."""
    return all(m is None for m in n.masks)


def aligned(k: Kernel, view: View) -> Val:
    """Whether every whole vector of a view, counted from each row's start, lies on a multiple of its size."""
    size = k.V * view.elem.bytes
    bits = k.op("ptrtoint", view.ptr, I64)
    for d, s in zip(view.dims[:-1], view.strides[:-1]):
        step = k.op("mul", k.raw(s), I64(view.elem.bytes))
        one = k.op("icmp_signed", "==", k.raw(d), I64(1))  # a stride that is never taken does not count
        bits = k.op("or_", bits, k.op("select", one, I64(0), step))
    return Val(k, [k.op("icmp_signed", "==", k.op("and_", bits, I64(size - 1)), I64(0))])
