"""Lists of taps behind a program's arguments, offsets of the reduction's elements, packed weight panels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.codegen.ir import Idx, Int, Kernel, Lanes, Val, Var, View, shuffle, transpose
from vlug.codegen.tile import product

__all__ = ["Lists", "either_table", "pack_weights", "table_sum", "tables"]


class Lists:
    """What stands behind the named arguments of a convolution; written by `conv_base.Planes.lists`.

    before(phase): taps of all phases before this one. plane(t), weight(t): offset of a tap in the packed
    planes and in the weights. row(i), col(i): residue of the i-th plane in either dimension.
    """

    def __init__(self, k: Kernel, phases: Int, taps: Int, row_planes: Int):
        self.view, self.at = View(k, k.main.args[1], (1,), dtype="i64"), k.size("lists")
        self.planes = self.at + phases + 1
        self.weights = self.planes + taps
        self.rows = self.weights + taps
        self.cols = self.rows + row_planes

    def before(self, phase: Int) -> Idx: return self.view[self.at + phase].idx()
    def plane(self, t: Int) -> Idx: return self.view[self.planes + t].idx()
    def weight(self, t: Int) -> Idx: return self.view[self.weights + t].idx()
    def row(self, i: Int) -> Idx: return self.view[self.rows + i].idx()
    def col(self, i: Int) -> Idx: return self.view[self.cols + i].idx()


def tables(
    k: Kernel, lists: Lists, phases: Int, taps: Int, channels: Int, channel: Int, pixel: Int, w_c: Int,
    taps_first: bool = False, depth: tuple[Int, Int] = (1, 0),
) -> tuple[View, View]:  # fmt: skip
    """Offsets of (c, tap) in the packed planes and in the weights, phase by phase.

    channel, pixel: elements of scratch between channels and between pixels. Taps run fastest, or, with
    taps_first, channels do (as they lie in channels-last tensors). depth: (taps along the depth, elements of
    w between them): channels are (c, t) then, t fastest, and a block holds whole channels.
    """
    x_table, w_table = k.shared(channels * taps, dtype="i64"), k.shared(channels * taps, dtype="i64")
    for phase in k.range(phases):
        t0, t1 = lists.before(phase), lists.before(phase + 1)
        for t in k.range(t0, t1):
            x_at, w_at = lists.plane(t) * pixel, lists.weight(t)
            for c in k.range(channels):
                at = t * channels + c if taps_first else channels * t0 + c * (t1 - t0) + (t - t0)
                x_table[at] = k.to_int(c * channel + x_at)
                w_table[at] = k.to_int(_channel(c, w_c, *depth) + w_at)
    return x_table, w_table


def _channel(c: Int, w_c: Int, taps: Int, w_t: Int) -> Int:
    """Offset in w of channel (c, t)."""
    return c * w_c if isinstance(taps, int) else c // taps * w_c + c % taps * w_t


def pack_weights(
    k: Kernel, w: View, lists: Lists, table: View, last: View | None, sizes: tuple[Any, ...], width: int
) -> View:
    """Weights of dims (group, output, offset) as panels [group, panel][channel block][phase][c, tap][width].

    table, last: offsets in w of the elements of a block of channels, and of the last block if they differ.
    sizes: G, C, K, channel block, phases, taps, stride of a channel in w (or that and the depth of `tables`),
    parts. The argument `w_run` tells how many elements of the reduction follow each other in w: all of a
    tap's channels (-1) or that many.
    """
    G, C, K, c_block, phases, taps, w_c, parts = sizes
    channel = w_c if isinstance(w_c, tuple) else (w_c, 1, 0)
    panels, w_run, V = k.ceil_div(K, width), k.size("w_run"), k.V
    wide = "f64" if w.elem.name == "f64" else "f32"
    wp = k.shared(G * panels, C * taps, width, dtype=wide)
    # A unit is enough outputs that reads of neighbours are long, but an eighth of them all at most.
    step = max(width, V // width * width)
    together = k.max(k.min(K // (8 * step), 4), 1) * step
    blocks = k.ceil_div(K, together)
    n = k.max(k.min(parts, G * blocks), 1)
    per = k.ceil_div(G * blocks, n)
    for lo, hi in k.chunk(n):
        square = k.scratch(V, V, dtype=wide)
        for u in k.range(lo * per, k.min(hi * per, G * blocks)):
            g, first = u // blocks, u % blocks * together
            span = k.min(together, panels * width - first)
            for c0, c1 in k.blocks(C, c_block):
                for phase in k.range(phases):
                    t0, t1 = lists.before(phase), lists.before(phase + 1)
                    length = (c1 - c0) * (t1 - t0)
                    columns = either_table(k, c1 - c0, c_block, table, last, t0)
                    run = k.choose(k.compare("<", w_run, 0), length if last is None else c1 - c0, w_run)
                    to = wp.addr(g * panels + first // width, c0 * taps + (c1 - c0) * t0, 0)
                    panel = View(k, to, (1, 1, width), (C * taps * width, width, 1), wide)
                    source = View(k, w.addr(g, first, _channel(c0, *channel)), (1,), dtype=w.elem.name)
                    pack_rows(k, source, panel, (span, K - first), w.strides[1], length, columns, run, square)
    return wp


def pack_rows(
    k: Kernel, w: View, panel: View, outputs: tuple[Int, Int], stride: Int, length: Int, column: View,
    run: Int, square: View,
) -> None:  # fmt: skip
    """panel[o // width, l, o % width] = w[column[l] + o · stride], for o < outputs[0]; 0 from outputs[1] on.

    Outputs next to each other are copied; else, where `run` columns follow each other, squares are transposed
    (half a cycle an element; a gather takes more than one).
    """
    V, width, (span, there) = k.V, panel.dims[2], outputs
    if not isinstance(width, int):
        raise TypeError("the width of a panel is a constant")
    narrow = V // width  # panels that a vector fills
    step = narrow * width if narrow else V

    def put(o: Int, l: Int, v: Val) -> None:
        if width >= V:
            panel[o // width, l, k.vector(o % width)] = v
            return
        for i in range(narrow):
            with k.when(k.compare("<", o + i * width, span)):
                order = [(i * width + j) % V for j in range(V)]
                panel[o // width + i, l, k.first(0, width)] = v if i == 0 else shuffle(v, v, order)

    for near in k.either(k.compare("==", stride, 1)):
        if near:
            for l in k.range(length):
                at = column[l].idx()
                for o in k.range(0, span, step):
                    put(o, l, w[k.first(at + o, there - o)])
            continue
        for o in k.range(0, span, step):
            count, here = there - o, View(k, w.addr(o * stride), (1,), dtype=w.elem.name)
            for runs in k.either(run >= 4):
                if not runs:
                    rows = View(k, here.ptr, (1, 1), (1, stride), w.elem.name)
                    for l in k.range(length):
                        put(o, l, rows[column[l].idx(), k.first(0, count)])
                    continue
                rows = View(k, here.ptr, (1, 1), (stride, 1), w.elem.name)
                for l0 in k.range(0, length, run):
                    at = column[l0].idx()
                    for p in k.vectors(run):
                        lines = [rows[i, (p + at).where(k.compare(">", count, i))] for i in range(V)]
                        for i, v in enumerate(transpose(lines)):
                            square[i, k.vector()] = v
                        for j in k.range(k.min(V, run - p.base)):
                            put(o, l0 + p.base + j, square[j, k.vector()])


def either_table(k: Kernel, count: Int, block: Int, table: View, last: View | None, t0: Int) -> View:
    """The offsets from tap t0 on for a block of `count` channels: those of a whole block or of the last."""
    if last is None:  # channels outermost: the first of a whole block
        return View(k, table.addr(t0 * block), (1,), dtype="i64")
    whole = k.condition(k.compare("==", count, block))
    at = k.op("select", whole.v[0], table.addr(t0 * block), last.addr(t0 * count))
    return View(k, at, (1,), dtype="i64")


def table_sum(
    k: Kernel, acc: Sequence[Var], panel: View, source: View, lanes: Lanes, table: View, length: Int
) -> None:
    """acc[i] += panel[l, i] · source[lanes + table[l]] over l < length: the whole reduction is one loop."""
    product(k, acc, (0, length), lambda i, l: panel[l, i], lambda l: source[lanes + table[l].idx()], unroll=2)
