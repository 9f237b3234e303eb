"""Lists of taps behind a program's arguments, offsets of the reduction's elements, packed weight panels."""

from __future__ import annotations

from collections.abc import Sequence

from vlug.codegen.ir import Idx, Int, Kernel, Lanes, Var, View
from vlug.codegen.tile import product

__all__ = ["Lists", "either_table", "pack_panel", "pack_weights", "table_sum", "tables"]


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
    taps_first: bool = False,
) -> tuple[View, View]:  # fmt: skip
    """Offsets of (c, tap) in the packed planes and in the weights, phase by phase.

    channel, pixel: elements of scratch between channels and between pixels. Taps run fastest, or, with
    taps_first, channels do (as they lie in channels-last tensors).
    """
    x_table, w_table = k.shared(channels * taps, dtype="i64"), k.shared(channels * taps, dtype="i64")
    for phase in k.range(phases):
        t0, t1 = lists.before(phase), lists.before(phase + 1)
        for t in k.range(t0, t1):
            x_at, w_at = lists.plane(t) * pixel, lists.weight(t)
            for c in k.range(channels):
                at = t * channels + c if taps_first else channels * t0 + c * (t1 - t0) + (t - t0)
                x_table[at] = k.to_int(c * channel + x_at)
                w_table[at] = k.to_int(c * w_c + w_at)
    return x_table, w_table


def pack_weights(
    k: Kernel, w: View, lists: Lists, table: View, last: View | None, sizes: tuple[Int, ...], width: int
) -> View:
    """Weights of dims (group, output, offset) as panels [group, panel][channel block][phase][c, tap][width].

    table, last: offsets in w of the elements of a block of channels, and of the last block if they differ.
    sizes: G, C, K, channel block, phases, taps, stride of a channel in w, parts.
    """
    G, C, K, c_block, phases, taps, w_c, parts = sizes
    panels = k.ceil_div(K, width)
    wp = k.shared(G * panels, C * taps, width)
    n = k.min(parts, G * panels)
    per = k.ceil_div(G * panels, n)
    for lo, hi in k.chunk(n):
        for u in k.range(lo * per, k.min(hi * per, G * panels)):
            g, o = u // panels, u % panels * width
            for c0, c1 in k.blocks(C, c_block):
                for phase in k.range(phases):
                    t0, t1 = lists.before(phase), lists.before(phase + 1)
                    n_l = (c1 - c0) * (t1 - t0)
                    panel = View(k, wp.addr(u, c0 * taps + (c1 - c0) * t0, 0), (n_l, width), (width, 1))
                    source = View(k, w.addr(g, o, c0 * w_c), (1,), dtype=w.elem.name)
                    columns = either_table(k, c1 - c0, c_block, table, last, t0)
                    pack_panel(k, source, panel, width, K - o, w.strides[1], n_l, columns)
    return wp


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


def pack_panel(k: Kernel, w: View, panel: View, width: int, count: Int, stride: Idx, length: Int,
               column: View) -> None:  # fmt: skip
    """panel[l, i] = w[column[l] + i · stride] for i < count, 0 for count <= i < width, over l < length.

    w: a flat view that begins at the panel's first output channel; column: offset of each element of the
    reduction; panel: dims (length, width).
    """
    V = k.V
    for near in k.either(stride.eq(1)):
        rows = View(k, w.ptr, (1, 1), (1, 1 if near else stride), w.elem.name)
        for l in k.range(length):
            at = column[l].idx()
            for j in range(0, width, V):
                part = min(V, width - j)
                panel[l, k.first(j, part)] = rows[at, k.first(j, k.min(k.max(count - j, 0), part))]
