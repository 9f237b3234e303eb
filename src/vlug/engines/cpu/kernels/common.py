"""What kernels of loop nests share: units of work, flat indices, row sums, alignment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vlug.codegen.ir import Int, Kernel, Val, View
from vlug.codegen.types import I64

__all__ = ["aligned", "sizes", "unflatten", "units"]


def sizes(k: Kernel, stem: str, n: int) -> list[Int]:
    """n run-time sizes stem0, stem1, …"""
    return [k.size(f"{stem}{i}") for i in range(n)]


def units(k: Kernel, total: Int) -> Iterator[Int]:
    """A parallel loop over units of work, `per` of them to a part (see nest.parts)."""
    per = k.size("per")
    for begin, end in k.chunk(k.size("parts")):
        yield from k.loop(begin * per, k.min(end * per, total))


def unflatten(u: Int, extents: Sequence[Int]) -> list[Int]:
    """The indices of a flat index, the last running fastest."""
    out: list[Int] = []
    for e in reversed(extents[1:]):
        out.insert(0, u % e)
        u = u // e
    return [u, *out] if extents else []


def aligned(k: Kernel, view: View) -> Val:
    """Whether every whole vector of a view, counted from each row's start, lies on a multiple of its size."""
    size = k.V * view.elem.bytes
    bits = k.op("ptrtoint", view.ptr, I64)
    for d, s in zip(view.dims[:-1], view.strides[:-1]):
        step = k.op("mul", k.raw(s), I64(view.elem.bytes))
        one = k.op("icmp_signed", "==", k.raw(d), I64(1))  # a stride that is never taken does not count
        bits = k.op("or_", bits, k.op("select", one, I64(0), step))
    return Val(k, [k.op("icmp_signed", "==", k.op("and_", bits, I64(size - 1)), I64(0))])
