"""Philox 4×32-10 over vectors of counters, and what is done with its words: dropout, uniform, bernoulli."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vlug.codegen.ir import Int, Kernel, Lanes, Val, select, shuffle
from vlug.engines.cpu.kernels.common import aligned, sizes, unflatten, units
from vlug.ops.dropout import BITS, INCREMENTS, MULTIPLIERS, ROUNDS

__all__ = ["randomly"]

LOW = 0xFFFFFFFF


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def _product(a: Val, m: int) -> tuple[Val, Val]:
    """High and low word of a · m, unsigned."""
    wide = (a.to("i64") & LOW) * m
    return (wide >> 32).to("i32"), wide.to("i32")


def philox(c: Sequence[Val], key: Sequence[Val]) -> list[Val]:
    """Four words (vectors of i32) of vectors of counters."""
    c, key = list(c), list(key)
    for _ in range(ROUNDS):
        (high0, low0), (high1, low1) = _product(c[0], MULTIPLIERS[0]), _product(c[2], MULTIPLIERS[1])
        c = [high1 ^ c[1] ^ key[0], low1, high0 ^ c[3] ^ key[1], low0]
        key = [k + _signed(i) for k, i in zip(key, INCREMENTS)]
    return c


def _in_order(k: Kernel, c: Sequence[Val]) -> Val:
    """Word j of lane b → element 4 b + j of four vectors."""
    V = k.V
    low = [i // 2 + V * (i % 2) for i in range(V)]
    high = [V // 2 + i for i in low]
    even = [shuffle(c[0], c[2], p) for p in (low, high)]
    odd = [shuffle(c[1], c[3], p) for p in (low, high)]
    return k.pack(shuffle(a, b, p) for a, b in zip(even, odd) for p in (low, high))


def _words(k: Kernel, seed: Val, first: Val) -> Val:
    """Four vectors of words, of the blocks from `first` (a scalar i64) on."""
    blocks = k.splat(first) + k.positions(k.vector(0))
    zero = k.zeros(1, "i32")
    key = [k.splat(seed.to("i32")), k.splat((seed >> 32).to("i32"))]
    return _in_order(k, philox([blocks.to("i32"), (blocks >> 32).to("i32"), zero, zero], key))


def _formula(k: Kernel, kind: str, dtype: str) -> Callable[[Val, Any], Val]:
    """(words, x) → y."""
    if kind == "uniform":
        low, width = k.scalar("low", dtype), k.scalar("width", dtype)
        # exact: 24 bits, the scale in `width`
        return lambda w, x: (w >> 8).to(dtype) * width + low
    most = k.size("most")  # dropped: the upper bits are at most this
    m = k.scalar("m", dtype)

    def dropped(w: Val, x: Any) -> Val:
        factor = select((w >> (32 - BITS)) <= k.to_int(most, "i32"), 0.0 * m, m)
        return factor if x is None else x * factor

    return dropped


def _groups(k: Kernel, lo: Int, hi: Int) -> Iterator[Lanes]:
    """Four vectors at a time over [lo, hi), the last ones masked."""
    V = k.V
    middle = lo + (hi - lo) // (4 * V) * (4 * V)
    for at in k.loop(lo, middle, 4 * V):
        yield k.vector(at, 4)
    with k.when(k.compare("<", middle, hi)):
        yield Lanes(k, middle, [k.mask(hi - middle - u * V) for u in range(4)])


def randomly(
    k: Kernel,
    kind: str,
    dtypes: tuple[str | None, str],
    inner: tuple[int, int],
    outer: int,
    whole: bool,
    stream: bool,
) -> None:
    """Tensors: seed, offset, x (if it has a dtype), y; axes: `outer` of them, rows of N elements.

    The first element of a row has the flat index Σ index · weight; whole: a multiple of 4 in all rows. inner:
    strides along a row, -1 for one known at run time.
    """
    compute = "f64" if "f64" in dtypes else "f32"
    E, N, NB = sizes(k, "e", outer), k.size("N"), k.size("NB")
    weights = sizes(k, "w", outer)
    seed, offset = k.view(1, dtype="i64")[0], k.view(1, dtype="i64")[0]
    views: list[Any] = []
    for name, of, step in zip("xy", dtypes, inner):
        if of is None:
            views.append(None)
            continue
        strides = [*sizes(k, f"{name}_s", outer), 1 if step == 1 else k.size(f"{name}_inner")]
        views.append(k.view(*E, N, strides=strides, dtype=of))
    x, y = views
    apply = _formula(k, kind, compute)
    blocks = k.ceil_div(N, NB)
    total = blocks
    for e in E:
        total = total * e

    def work(past_caches: bool) -> None:
        for u in units(k, total):
            *index, nb = unflatten(u, [*E, blocks])
            row: Int = 0
            for i, w in zip(index, weights):
                row = i * w + row
            source, out = None if x is None else x.at(*index), y.at(*index)
            skip = 0 if whole else row % 4  # elements of the row's first block that are not the row's
            lo, hi = nb * NB, k.min((nb + 1) * NB, N)
            first = offset + k.to_int(row // 4)
            if not whole:
                hi = k.choose(k.compare("==", hi, N), N + skip, hi)
            for n in _groups(k, lo, hi):
                words = _words(k, seed, first + k.to_int(n.base // 4))
                at = n
                if not whole:
                    at = (n - skip).where(k.positions(n) >= k.to_int(skip))
                value = apply(words, None if source is None else source[at])
                out.store(at, value, stream=past_caches and whole and all(m is None for m in n.masks))

    if not stream:
        work(False)
        return
    for past_caches in k.either(aligned(k, y)):
        work(past_caches)
