"""Rows by index, and their sums by index. An index out of range ends the program with BAD_INDEX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.codegen.ir import Int, Kernel, View
from vlug.engines.cpu.kernels.common import sizes, unflatten, units
from vlug.engines.cpu.kernels.softmax import computed

__all__ = ["BAD_INDEX", "embedding", "embedding_backward"]

BAD_INDEX = 2


def _index(k: Kernel, indices: View, i: Sequence[Int], rows: Int) -> Any:
    t = indices[tuple(i)].to("i64")
    k.error_if((t < 0) | (t >= k.to_int(rows)), BAD_INDEX)
    return t


def _step(k: Kernel, name: str, unit: bool) -> Int:
    return 1 if unit else k.size(name)


def embedding(k: Kernel, kinds: tuple[str, str, str], outer: int, unit: bool) -> None:
    """Tensors: weight indices y."""
    I, V, D = sizes(k, "i", outer), k.size("V"), k.size("D")
    weight = k.view(V, D, strides=[k.size("w0"), _step(k, "w1", unit)], dtype=kinds[0])
    indices = k.view(*I, strides=sizes(k, "indices_i", outer), dtype=kinds[1])
    y = k.view(*I, D, strides=[*sizes(k, "y_i", outer), _step(k, "y_d", unit)], dtype=kinds[2])
    group, count = k.size("group"), k.size("count")
    for u in units(k, k.ceil_div(count, group)):
        for at in k.range(u * group, k.min((u + 1) * group, count)):
            i = unflatten(at, I)
            row, out = weight.at(_index(k, indices, i, V).idx()), y.at(*i)
            for n in k.vectors(D, by=4):
                out[n] = row[n]


def embedding_backward(k: Kernel, kinds: tuple[str, str, str], outer: int, unit: bool) -> None:
    """Tensors: dy indices dweight.

    The places of each row are chained in their order; a part makes the chains of its rows, then their sums.
    What a row is made of depends on nothing else, so the bits are the same for any parts.
    """
    dtype = computed(kinds[0])
    I, V, D = sizes(k, "i", outer), k.size("V"), k.size("D")
    dy = k.view(*I, D, strides=[*sizes(k, "dy_i", outer), _step(k, "dy_d", unit)], dtype=kinds[0])
    indices = k.view(*I, strides=sizes(k, "indices_i", outer), dtype=kinds[1])
    dw = k.view(V, D, strides=[k.size("w0"), _step(k, "w1", unit)], dtype=kinds[2])
    count, padding = k.size("count"), k.to_int(k.size("padding"))
    first, number = k.shared(V, dtype="i64"), k.shared(V, dtype="i64")
    following = k.shared(count, dtype="i64")
    for begin, end in k.chunk(V):
        for r in k.range(begin, end):
            number[r] = k.val(0, dtype="i64")
        for back in k.range(count):
            at = count - 1 - back
            t = _index(k, indices, unflatten(at, I), V)
            mine = (t >= k.to_int(begin)) & (t < k.to_int(end)) & t.ne(padding)
            with k.when(mine):
                r = t.idx()
                following[at] = first[r]
                first[r] = k.to_int(at)
                number[r] = number[r] + 1
        acc = k.scratch(D, dtype=dtype)
        for r in k.range(begin, end):
            out, n_places = dw.at(r), number[r].idx()
            with k.when(n_places < 2):
                with k.when(n_places < 1):
                    for n in k.vectors(D, by=4):
                        out[n] = 0.0
                with k.when(n_places > 0):
                    row = dy.at(*unflatten(first[r].idx(), I))
                    for n in k.vectors(D, by=4):
                        out[n] = row[n]
            with k.when(n_places > 1):
                at = k.var(first[r])
                row = dy.at(*unflatten(at.idx(), I))
                for n in k.vectors(D, by=4):
                    acc[n] = row[n]
                for _ in k.range(1, n_places):
                    at.set(following[at.idx()])
                    row = dy.at(*unflatten(at.idx(), I))
                    for n in k.vectors(D, by=4):
                        acc[n] = acc[n] + row[n]
                for n in k.vectors(D, by=4):
                    out[n] = acc[n]
