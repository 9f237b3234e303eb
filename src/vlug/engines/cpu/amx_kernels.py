"""Kernel of bf16 convolutions and matrix products: sums of pairs on AMX's tiles or AVX512-BF16's vectors.

    dst[lead, n, o, p] = Σ_c Σ_tap src[lead, n, c, p + tap] · w[lead, o, c, tap],  then + bias and ReLU

Words hold two neighbours of the reduction, c and c + 1. A cell of the result is 32 pixels × 32 outputs, whose
sums stay in registers over a block of channels and all taps: blocks of 32 channels outermost, then taps.

    form    the tile's rows    its lanes    source in scratch       weights, of each half of 16 outputs
    rows    pixels             outputs      [pixel][word of c]      [word of c][output]
    cols    outputs            pixels       [word of c][pixel]      [output][word of c]

so that results lie as they are wanted: channels (rows) or pixels (cols) next to each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlug.codegen.ir import Int, Kernel, Val, View, maximum, select, transpose
from vlug.codegen.tiles import ROWS, Tiles, dot, store_bf16
from vlug.codegen.types import I8, I16
from vlug.engines.cpu.pack import Lists

__all__ = ["CELL", "LEADING", "Shape", "pair_product"]

#: Pixels and outputs of a cell; channels of a step.
CELL = 2 * ROWS
LEADING = 3
_WORD = 4  # bytes
_TILE = ROWS * ROWS  # words


@dataclass(frozen=True)
class Shape:
    """What is compiled in.

    rows:  the form. flat: pixels are one run, without taps beside 0. direct: tiles come from the source.
    x_by:  how the source is packed: "v" along its unit stride (rows: channels, cols: pixels), "2" every
           second of it, "e" any.
    w_by:  which dimension of the weights has unit stride: "c" channels, "o" outputs, "t" taps, "e" none.
    bias:  "", "o" along outputs, "p" along pixels (flat only).
    """

    rows: bool
    flat: bool
    direct: bool
    x_by: str
    w_by: str
    out_step: bool
    bias: str
    relu: bool


def pair_product(k: Kernel, rows: bool, flat: bool, direct: bool, x_by: str, w_by: str, out_step: bool,
                 bias: str, relu: bool) -> None:
    """See the head of this file and `Shape`."""
    k.quick = True
    _PairProduct(k, Shape(rows, flat, direct, x_by, w_by, out_step, bias, relu)).build()


class _PairProduct:
    def __init__(self, k: Kernel, s: Shape):
        z = k.size
        self.k, self.s = k, s
        self.N, self.C, self.K = z("N"), z("C"), z("K")
        self.src_h, self.src_w, self.dst_h, self.dst_w = z("src_h"), z("src_w"), z("dst_h"), z("dst_w")
        self.steps = [z(n) for n in ("row_step", "col_step", "row_out", "col_out")]
        self.lead = [z(f"l{i}") for i in range(LEADING)]
        one = (1,) * LEADING
        strides = {t: [z(f"{t}{i}") for i in range(LEADING)] for t in "xwy"}
        along = s.x_by == "v"
        x_c = 1 if s.rows and along else z("src_c")
        x_y = 1 if s.flat and along and not s.rows else z("src_y")
        x_x = 1 if not s.flat and along and not s.rows else z("src_x")
        self.x = k.view(*one, self.N, self.C, self.src_h, self.src_w, dtype="i16",
                        strides=[*strides["x"], z("src_n"), x_c, x_y, x_x])
        self.w = k.view(*one, self.K, self.C, 1, dtype="u16", strides=[
            *strides["w"], 1 if s.w_by == "o" else z("w_o"), 1 if s.w_by == "c" else z("w_c"), 1])
        y_c = 1 if s.rows else z("dst_c")
        y_y = 1 if s.flat and not s.rows else z("dst_y")
        y_x = 1 if not s.flat and not s.rows else z("dst_x")
        self.y = k.view(*one, self.N, self.K, self.dst_h, self.dst_w, dtype="bf16",
                        strides=[*strides["y"], z("dst_n"), y_c, y_y, y_x])
        self.b = k.view(1, strides=[z("bias")], dtype="bf16")
        self.NI, self.HB, self.KC = z("images"), z("band"), z("k_chunk", multiple=CELL)
        self.CB = z("c_block", multiple=CELL)
        self.width, self.first, self.valid = z("width"), z("first"), z("valid")
        self.at, self.plane, self.low = z("lead"), z("plane"), z("low")
        self.band_rows = z("band_rows")
        self.row_planes, self.col_planes = z("row_planes"), z("col_planes")
        self.row_phases, self.col_phases = z("row_phases"), z("col_phases")
        self.taps = z("taps")
        self.phases = self.row_phases * self.col_phases
        self.pitch = self.NI * self.width  # pixels of a row of a band
        self.cells: Int = z("cells")  # of a band
        self.steps_all = k.ceil_div(self.C, CELL)
        self.panels = k.ceil_div(self.K, CELL)
        # Words between two pixels, and between two words of channels, of the packed source.
        step: Int = z("step")
        self.px: Int = step if s.rows else 1
        self.cx: Int = 1 if s.rows else step
        self.lists = Lists(k, self.phases, self.taps, self.row_planes)
        self.w_leads = z("w_leads")  # 1 where all leading indices share the weights

    # --- weights ---
    def pack_weights(self) -> View:
        """All weights: words [panel of outputs][block of channels][phase][32 channels][tap][half][16][16]."""
        k, lists = self.k, self.lists
        wp = k.shared(self.w_leads * self.panels, self.steps_all * self.taps, 2, ROWS, ROWS, dtype="i32")
        units = self.w_leads * self.panels * self.steps_all
        for lo, hi in k.chunk(k.choose(k.compare("==", self.taps, 0), 0, units)):
            square = k.scratch(ROWS, ROWS, dtype="i32")
            for u in k.range(lo, hi):
                q, rest = u % self.steps_all, u // self.steps_all
                panel, lead = rest % self.panels, rest // self.panels
                w = self.w.at(*self.index(lead))
                per = self.CB // CELL
                first = q // per * per
                here = k.min(per, self.steps_all - first)
                for phase in k.range(self.phases):
                    t0, t1 = lists.before(phase), lists.before(phase + 1)
                    start = first * self.taps + here * t0 + (q - first) * (t1 - t0)
                    to = View(k, wp.addr(rest, start, 0, 0, 0), (1, 2, ROWS, ROWS), dtype="i32")
                    self.pack_tiles(w, to, square, panel * CELL, q * CELL, t0, t1)
        return wp

    def pack_tiles(self, w: View, to: View, square: View, o: Int, c: Int, t0: Int, t1: Int) -> None:
        """The tiles of 32 outputs from o and 32 channels from c: to[tap - t0, half, row, lane]."""
        by = {"c": self.along_channels, "o": self.along_outputs, "t": self.along_taps, "e": self.each}
        by[self.s.w_by](w, to, square, o, c, t0, t1)

    def along_channels(self, w: View, to: View, square: View, o: Int, c: Int, t0: Int, t1: Int) -> None:
        k = self.k
        w16 = View(k, w.ptr, w.dims, w.strides, "i16")
        for t in k.range(t0, t1):
            at = self.lists.weight(t)
            for half in k.range(2):
                rows = square if self.s.rows else to.at(t - t0, half)
                rows16 = View(k, rows.ptr, (ROWS, 2 * ROWS), (2 * ROWS, 1), "i16")
                for i in k.range(ROWS):
                    there = k.compare("<", o + half * ROWS + i, self.K)
                    for h in (0, ROWS):
                        lanes = k.first(c + h, self.C - c - h).where(there)
                        source = View(k, w16.addr(o + half * ROWS + i, 0, at), (1,), dtype="i16")
                        rows16[i, k.vector(h)] = source[lanes]
                if self.s.rows:
                    for j, v in enumerate(transpose([square[i, k.vector()] for i in range(ROWS)])):
                        to[t - t0, half, j, k.vector()] = v

    def along_outputs(self, w: View, to: View, square: View, o: Int, c: Int, t0: Int, t1: Int) -> None:
        k = self.k

        def word(t: Int, half: Int, j: Int) -> Val:
            halves, first = [], o + half * ROWS
            for channel in (c + 2 * j, c + 2 * j + 1):
                source = View(k, w.addr(0, channel, self.lists.weight(t)), (1,), dtype="u16")
                there = k.compare("<", channel, self.C)
                halves.append(source[k.first(first, self.K - first).where(there)])
            return self.paired(halves)

        for t in k.range(t0, t1):
            for half in k.range(2):
                if self.s.rows:
                    for j in k.range(ROWS):
                        to[t - t0, half, j, k.vector()] = word(t, half, j)
                    continue
                for j in k.range(ROWS):
                    square[j, k.vector()] = word(t, half, j)
                for i, v in enumerate(transpose([square[j, k.vector()] for j in range(ROWS)])):
                    to[t - t0, half, i, k.vector()] = v

    def along_taps(self, w: View, to: View, square: View, o: Int, c: Int, t0: Int, t1: Int) -> None:
        """Taps lie next to each other: squares of 16 taps by 16 outputs or words are transposed."""
        k, rows = self.k, self.s.rows
        fits = k.condition(o + CELL <= self.K) & (c + CELL <= self.C)
        for t in k.range(t0, t1, ROWS):
            count = k.min(t1 - t, ROWS)
            lanes = k.first(0, count)
            source = View(k, w.addr(0, 0, self.lists.weight(t)), (1, 1, 1), w.strides, "u16")
            for half in k.range(2):
                for line in k.range(ROWS):  # rows: a word of channels; cols: an output
                    for whole in k.either(fits):
                        for i in k.range(ROWS):
                            out = o + half * ROWS + (i if rows else line)
                            words = []
                            for e in (0, 1):
                                channel, some = c + 2 * (line if rows else i) + e, lanes
                                if not whole:
                                    some = lanes.where(k.condition(out < self.K) & (channel < self.C))
                                words.append(source[out, channel, some])
                            square[i, k.vector()] = self.paired(words)
                    for tap, v in enumerate(transpose([square[i, k.vector()] for i in range(ROWS)])):
                        square[tap, k.vector()] = v
                    for j in k.range(count):
                        to[t - t0 + j, half, line, k.vector()] = square[j, k.vector()]

    def each(self, w: View, to: View, square: View, o: Int, c: Int, t0: Int, t1: Int) -> None:
        k = self.k
        for t in k.range(t0, t1):
            for half in k.range(2):
                tile = View(k, to.addr(t - t0, half, 0, 0), (ROWS, ROWS, 2), dtype="u16")
                for i in k.range(ROWS):
                    for j in k.range(CELL):
                        out, channel = o + half * ROWS + i, c + j
                        there = k.condition(k.compare("<", out, self.K)) & k.compare("<", channel, self.C)
                        at = (j // 2, i, j % 2) if self.s.rows else (i, j // 2, j % 2)
                        for inside in k.either(there):
                            tile[at] = w[out, channel, self.lists.weight(t)] if inside else 0

    @staticmethod
    def paired(halves: list[Val]) -> Val:
        """Words of two 16-bit values, the first in the lower half."""
        return halves[0] | halves[1] << 16

    def index(self, lead: Int) -> tuple[Int, ...]:
        _, b, c = self.lead
        return lead // (b * c), lead // c % b, lead % c

    # --- the source ---
    def words(self, base: Any, *strides: Int, dtype: str = "i32") -> View:
        return View(self.k, base, (1,) * len(strides), strides, dtype)

    def read(self, x: View, xs: View, n0: Int, i0: Int, c0: Int, count: Int) -> None:
        """A block of channels of the unit's images to scratch; rows outside the image become zeros."""
        k, s = self.k, self.s
        if s.flat:
            there = k.max(k.min(self.HB, self.src_h - i0), 0)
            if s.rows:
                for p in k.range(there):
                    self.read_pixel(self.moved(x, n0, c0, i0 + p, 0), xs, p, count, True)
            else:
                self.read_run(x, xs, n0, i0, 0, c0, count, 0, there, True)
            return
        if s.rows:
            for to, h, w, n, inside, columns in self.source_rows(n0, i0):
                for reads in k.either(inside):
                    for j in k.range(columns):
                        pixel = self.moved(x, n, c0, h, w + j * self.steps[1])
                        self.read_pixel(pixel, xs, to + j, count, reads)
            return
        for to, h, w, n, inside, columns in self.source_rows(n0, i0):
            for reads in k.either(inside):
                self.read_run(x, xs, n, h, w, c0, count, to, columns, reads)

    def source_rows(self, n0: Int, i0: Int) -> Any:
        """(place in scratch, row, first column, image, inside?, columns) of each row of each plane."""
        k, lists = self.k, self.lists
        row_step, col_step = self.steps[:2]
        for image in k.range(self.NI):
            for pr in k.range(self.row_planes):
                for r in k.range(self.band_rows):
                    h = (i0 + r + self.low) * row_step + lists.row(pr)
                    inside = (h >= 0) & (h < self.src_h) & (n0 + image < self.N)
                    for pc in k.range(self.col_planes):
                        residue = lists.col(pc)
                        to = (pr * self.col_planes + pc) * self.plane + self.at + r * self.pitch
                        whole = k.ceil_div(k.max(self.src_w - residue, 0), col_step)
                        columns = k.min(self.valid, k.max(whole - self.first, 0))
                        yield (to + image * self.width, h, self.first * col_step + residue, n0 + image,
                               inside, columns)

    def moved(self, x: View, n: Int, c: Int, h: Int, w: Int) -> View:
        """The source seen from an element: dims (channel, row, column)."""
        return View(self.k, x.addr(n, c, h, w), (1, 1, 1), x.strides[1:], "i16")

    def read_pixel(self, x: View, xs: View, to: Int, count: Int, reads: bool) -> None:
        """All channels of one pixel."""
        k = self.k
        out = self.words(xs.addr(to * self.px), 1, dtype="i16")
        length = k.ceil_div(count, CELL) * CELL
        if not reads:
            for p in k.vectors(length, by=2):
                out[p] = k.zeros(2, "i16")
        elif self.s.x_by == "v":
            for whole in k.either(k.compare("==", length, count)):
                for c in k.range(0, length, CELL):
                    for h in (0, ROWS):
                        lanes = k.vector(c + h) if whole else k.first(c + h, count - c - h)
                        out[k.vector(c + h)] = self.words(x.ptr, 1, dtype="i16")[lanes]
        else:
            for c in k.range(length):
                for inside in k.either(k.compare("<", c, count)):
                    out[c] = x[c, 0, 0] if inside else k.val(0, dtype="i16")

    def read_run(self, x: View, xs: View, n: Int, h: Int, w: Int, c0: Int, count: Int, to: Int, columns: Int,
                 reads: bool) -> None:
        """All channels, by words, of pixels next to each other."""
        k = self.k
        step = x.strides[2] if self.s.flat else self.steps[1] * x.strides[3]
        for j in k.range(k.ceil_div(count, CELL) * ROWS):
            out = self.words(xs.addr(j * self.cx + to), 1)
            if not reads:
                for p in k.vectors(columns):
                    out[p] = k.zeros(1, "i32")
                continue
            both = [k.condition(k.compare("<", 2 * j + e, count)) for e in (0, 1)]
            lines = [self.words(x.addr(n, c0 + 2 * j + e, h, w), step, dtype="u16") for e in (0, 1)]
            if self.s.x_by == "v":
                lines = [View(k, v.ptr, (1,), (1,), "u16") for v in lines]
                for whole in k.either(both[1]):
                    for p in k.vectors(columns):
                        out[p] = self.paired([v[p if whole else p.where(c)] for v, c in zip(lines, both)])
                continue
            halves = self.words(out.ptr, 2, 1, dtype="u16")
            if self.s.x_by == "2":  # words hold an element wanted and the next, which the last may not have
                with k.when(columns > 0):
                    pairs = [View(k, v.ptr, (1,), (1,), "i32") for v in lines]
                    for p in k.vectors(columns - 1):
                        v = [z.load(p.where(c), align=2) for z, c in zip(pairs, both)]
                        out[p] = self.paired([v[0] & 0xFFFF, v[1]])
                    for e in (0, 1):
                        for inside in k.either(both[e]):
                            halves[columns - 1, e] = lines[e][columns - 1] if inside else 0
                continue
            for e in (0, 1):
                for inside in k.either(both[e]):
                    for i in k.range(columns):
                        halves[i, e] = lines[e][i] if inside else 0

    # --- the result ---
    def finish(self, v: Val, along_o: Any, along_p: Any) -> Val:
        """Bias and ReLU; where the outputs and the pixels are: an index or lanes."""
        if self.s.bias == "o":
            v = v + self.b[along_o]
        elif self.s.bias == "p":
            v = v + self.b[along_p]
        return maximum(v, 0.0) if self.s.relu else v

    def put(self, view: View, v: Val, *at: Any) -> None:
        store_bf16(view, v, bool(self.s.bias), *at)

    def find_places(self, places: View, n0: Int, i0: Int, phase: Int) -> None:
        """Offset in y of each position of the band, -1 where it is none of y's."""
        k = self.k
        _, _, row_out, col_out = self.steps
        a, f = phase // self.col_phases, phase % self.col_phases
        y_n, _, y_y, y_x = self.y.strides[LEADING:]
        row = (self.dst_w - f + col_out - 1) // col_out
        for image in k.range(self.NI):
            for i in k.range(self.HB):
                h, n = (i0 + i) * row_out + a, n0 + image
                there = k.choose((h < self.dst_h) & (n < self.N), row, 0)
                at, start = i * self.pitch + image * self.width, n * y_n + h * y_y + f * y_x
                for p in k.vectors(self.width):
                    own = k.positions(p)
                    outside = own >= k.to_int(there)
                    own = own * k.to_int(col_out * y_x) + k.to_int(start)
                    places[p + at] = select(outside, k.full(-1, 1, "i64"), own)

    def put_rows(self, y: View, sums: View, places: View | None, n0: Int, i0: Int, o: Int, cell: Int) -> None:
        """A cell of pixels as rows."""
        k = self.k
        for whole in k.either(k.compare("<=", o + CELL, self.K)):

            def row(to: View, r: Int, pixel: Int, whole: bool = whole) -> None:
                if whole:
                    at = k.vector(0, 2)
                    self.put(to, self.finish(sums[r, at], at + o, pixel), at)
                    return
                for p in k.vectors(self.K - o):
                    self.put(to, self.finish(sums[r, p], p + o, pixel), p)

            if places is None:
                for r in k.range(k.min(CELL, k.min(self.HB, self.dst_h - i0) - cell * CELL)):
                    p = i0 + cell * CELL + r
                    row(self.words(y.addr(n0, o, p, 0), 1, dtype="bf16"), r, p)
                continue
            for r in k.range(CELL):
                at = places[cell * CELL + r].idx()
                with k.when(at >= 0):
                    row(self.words(k.gep(y.addr(0, o, 0, 0), at, I16), 1, dtype="bf16"), r, 0)

    def put_cols(self, y: View, sums: View, band: View | None, n0: Int, i0: Int, o: Int, cell: Int,
                 k0: Int) -> None:
        """A cell of outputs as rows: to y, or to the band [output][position] that `unfold` takes apart."""
        k = self.k
        left = k.min(self.HB, self.dst_h - i0) - cell * CELL
        for r in k.range(k.min(CELL, self.K - o)):
            if band is not None:
                at = k.vector(0, 2)
                to = self.words(band.addr(o - k0 + r, cell * CELL), 1, dtype="bf16")
                self.put(to, self.finish(sums[r, at], o + r, None), at)
                continue
            to = self.words(y.addr(n0, o + r, i0 + cell * CELL, 0), 1, dtype="bf16")
            for whole in k.either(left >= CELL):
                for at in [k.vector(0, 2)] if whole else k.vectors(k.min(left, CELL)):
                    self.put(to, self.finish(sums[r, at], o + r, at + (i0 + cell * CELL)), at)

    def unfold(self, y: View, band: View, n0: Int, i0: Int, k0: Int, count: Int, phase: Int) -> None:
        """The band's rows to y."""
        k = self.k
        _, _, row_out, col_out = self.steps
        a, f = phase // self.col_phases, phase % self.col_phases
        columns = (self.dst_w - f + col_out - 1) // col_out
        rows = k.min(self.HB, (self.dst_h - a + row_out - 1) // row_out - i0)
        for o in k.range(count):
            for image in k.range(k.min(self.NI, self.N - n0)):
                for i in k.range(rows):
                    source = self.words(band.addr(o, i * self.pitch + image * self.width), 1, dtype="i16")
                    to = y.addr(n0 + image, k0 + o, (i0 + i) * row_out + a, f)
                    if self.s.out_step:
                        out = self.words(to, col_out, dtype="i16")
                        for j in k.range(columns):
                            out[j] = source[j]
                        continue
                    for p in k.vectors(columns, by=2):
                        self.words(to, 1, dtype="i16")[p] = source[p]

    # --- all of it ---
    def build(self) -> None:
        k, s, lists = self.k, self.s, self.lists
        wp = self.pack_weights()
        groups, bands = k.ceil_div(self.N, self.NI), k.size("bands")
        chunks = k.ceil_div(self.K, self.KC)
        leads = self.lead[0] * self.lead[1] * self.lead[2]
        one_slot, pixels_first = k.size("sums").eq(1), k.size("pixels_first").eq(1)
        for begin, end in k.chunk(leads * groups * bands * chunks):
            tiles = Tiles(k) if k.isa.has("amx") else None
            xs = k.scratch(1, size=k.size("source"), dtype="i32")
            sums = k.scratch(k.size("sums"), CELL, CELL)
            places = None if s.flat or not s.rows else k.scratch(self.cells * CELL, dtype="i64")
            band = None if s.flat or s.rows else k.scratch(self.KC, k.size("fold"), dtype="bf16")
            if not s.flat:
                for p in k.vectors(k.size("source"), by=4):
                    xs[p] = k.zeros(4, "i32")
            if places is not None:
                for p in k.vectors(self.cells * CELL):
                    places[p] = k.full(-1, 1, "i64")
            for u in k.range(begin, end):
                k0, rest = u % chunks * self.KC, u // chunks
                i0, rest = rest % bands * self.HB, rest // bands
                n0, lead = rest % groups * self.NI, rest // groups
                count = k.min(self.KC, self.K - k0)
                x, y = (v.at(*self.index(lead)) for v in (self.x, self.y))
                w_row = k.choose(self.w_leads.eq(1), 0, lead) * self.panels
                for c0, c1 in k.blocks(self.C, self.CB):
                    if s.direct:
                        self.read_end(x, xs, n0, i0, c0, c1 - c0)
                    else:
                        with k.when(self.taps > 0):
                            self.read(x, xs, n0, i0, c0, c1 - c0)
                    nb = k.ceil_div(c1 - c0, CELL)
                    for phase in k.range(self.phases):
                        t0, t1 = lists.before(phase), lists.before(phase + 1)
                        none = k.condition(k.compare("==", t1, t0))
                        fresh, done = none | k.compare("==", c0, 0), k.condition(k.compare("==", c1, self.C))
                        if places is not None:
                            with k.when(done):
                                self.find_places(places, n0, i0, phase)
                        kbs, cells = k.choose(~none | done, k.ceil_div(count, CELL), 0), self.cells_of(i0)
                        for a in k.range(k.choose(pixels_first, cells, kbs)):
                            for b in k.range(k.choose(pixels_first, kbs, cells)):
                                kb, cell = k.choose(pixels_first, b, a), k.choose(pixels_first, a, b)
                                slot = (phase * (self.KC // CELL) + kb) * self.cells + cell
                                mine = sums.at(k.choose(one_slot, 0, slot))
                                at = c0 // CELL * self.taps + nb * t0
                                w = wp.addr(w_row + k0 // CELL + kb, at, 0, 0, 0)
                                self.reduce(tiles, self.source_cell(x, xs, n0, i0, c0, cell), w, mine, fresh,
                                            nb, t0, t1)
                                with k.when(done):
                                    if s.rows:
                                        self.put_rows(y, mine, places, n0, i0, k0 + kb * CELL, cell)
                                    else:
                                        self.put_cols(y, mine, band, n0, i0, k0 + kb * CELL, cell, k0)
                        if band is not None:
                            with k.when(done):
                                self.unfold(y, band, n0, i0, k0, count, phase)

    def cells_of(self, i0: Int) -> Int:
        """Cells of the band that begins at i0."""
        if not self.s.flat:
            return self.cells
        cells: Int = self.k.ceil_div(self.k.min(self.HB, self.dst_h - i0), CELL)
        return cells

    def read_end(self, x: View, xs: View, n0: Int, i0: Int, c0: Int, count: Int) -> None:
        """Of a source that is read in place: the last cell's pixels, if fewer than its rows, to scratch."""
        k = self.k
        here = k.min(self.HB, self.src_h - i0)
        begin = here // CELL * CELL
        for p in k.range(here - begin):
            self.read_pixel(self.moved(x, n0, c0, i0 + begin + p, 0), xs, p, count, True)

    def source_cell(self, x: View, xs: View, n0: Int, i0: Int, c0: Int, cell: Int) -> tuple[Any, Int, Int]:
        """(address, bytes between the source's tile rows, bytes between steps of 32 channels) of a cell."""
        k = self.k
        if not self.s.direct:
            row = self.px if self.s.rows else self.cx
            return xs.addr(cell * CELL * self.px), row * _WORD, self.cx * (ROWS * _WORD)
        whole = (cell + 1) * CELL <= k.min(self.HB, self.src_h - i0)
        there = k.condition(whole)
        here = x.addr(n0, c0, i0 + cell * CELL, 0)
        address = k.op("select", there.v[0], here, xs.addr(0))
        return address, k.choose(whole, x.strides[2] * 2, self.px * _WORD), ROWS * _WORD

    def reduce(self, tiles: Tiles | None, source: tuple[Any, Int, Int], w: Any, sums: View, fresh: Val,
               nb: Int, t0: Int, t1: Int) -> None:
        """sums += Σ over nb steps of 32 channels and taps t0 … t1."""
        k, s = self.k, self.s
        base, pitch, step = source
        # bytes between the two tiles of pixels
        half = pitch * ROWS if s.rows else ROWS * _WORD
        px_bytes = self.px * _WORD

        def steps() -> Any:
            for q in k.range(nb):
                for t in k.range(t0, t1):
                    # a source read in place, or without taps, lies at 0
                    tap = 0 if s.flat else self.lists.plane(t) * px_bytes
                    px = k.gep(k.gep(base, q * step, I8), tap, I8)
                    wt = k.gep(w, (q * (t1 - t0) + (t - t0)) * (2 * _TILE * _WORD), I8)
                    yield px, wt

        if tiles is None:
            self.reduce_vectors(steps, pitch, half, sums, fresh)
            return
        corners = [(i, j) for i in (0, 1) for j in (0, 1)]
        for new in k.either(fresh):
            for i, j in corners:
                if new:
                    tiles.zero(2 * i + j)
                else:
                    tiles.load(2 * i + j, sums.addr(ROWS * i, ROWS * j), CELL * _WORD)
        for px, wt in steps():
            def load(tile: int, pixels: bool, i: int, px: Any = px, wt: Any = wt) -> None:
                if pixels:
                    tiles.load(tile, k.gep(px, half * i, I8), pitch)
                else:
                    tiles.load(tile, k.gep(wt, i * _TILE * _WORD, I8), ROWS * _WORD)

            load(6, not s.rows, 0)
            load(4, s.rows, 0)
            tiles.dot(0, 4, 6)
            load(7, not s.rows, 1)
            tiles.dot(1, 4, 7)
            load(5, s.rows, 1)
            tiles.dot(2, 5, 6)
            tiles.dot(3, 5, 7)
        for i, j in corners:
            tiles.store(2 * i + j, sums.addr(ROWS * i, ROWS * j), CELL * _WORD)

    def reduce_vectors(self, steps: Any, pitch: Int, half: Int, sums: View, fresh: Val) -> None:
        """The same by AVX512-BF16: eight rows and both halves of the lanes at a time."""
        k, s, rows = self.k, self.s, 8
        every = k.vector(0, 2)
        for r0 in k.range(0, CELL, rows):
            acc = [k.var(k.zeros(2)) for _ in range(rows)]
            with k.unless(fresh):
                for i, a in enumerate(acc):
                    a.set(sums[r0 + i, every])
            for px, wt in steps():
                # bytes: (from row to row, from half to half) of the operand of rows and of that of lanes
                (a_at, a_row, a_half) = (px, pitch, half)
                (b_at, b_row, b_half) = (wt, ROWS * _WORD, _TILE * _WORD)
                if not s.rows:
                    a_at, a_row, a_half, b_at, b_row, b_half = b_at, b_row, b_half, a_at, a_row, a_half
                row0 = k.gep(k.gep(a_at, r0 // ROWS * a_half, I8), r0 % ROWS * a_row, I8)
                lines = [self.words(k.gep(row0, a_row * i, I8), 1) for i in range(rows)]
                for j in k.range(ROWS):
                    line = k.gep(b_at, j * b_row, I8)
                    b = k.pack(self.words(k.gep(line, b_half * h, I8), 1)[k.vector()] for h in (0, 1))
                    for a, words in zip(acc, lines):
                        a.set(dot(a.get(), words[j], b))
            for i, a in enumerate(acc):
                sums[r0 + i, every] = a
