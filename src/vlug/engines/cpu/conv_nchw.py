"""Convolution on planes (NCHW and any other strides): vectors along pixels, weights broadcast."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from vlug.codegen import isa as isas
from vlug.codegen.ir import Int, Kernel, Val, View, maximum, shuffle
from vlug.codegen.jit import compiled
from vlug.engines.base import Engine, EngineConfig, NativeProgram
from vlug.engines.cpu.conv_base import (
    DOUBLE,
    Conv,
    ConvGraph,
    Depth,
    Planes,
    divide,
    parse,
    program,
    round_up,
    share_out,
    step_class,
)
from vlug.engines.cpu.nest import no_kernels
from vlug.engines.cpu.pack import Lists, pack_weights, table_sum, tables
from vlug.graph import Graph

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["ConvNCHW", "conv_planes"]

#: Outputs of a row that a unit takes at most twice of; longer rows are cut.
_TILE = 1024


def conv_planes(k: Kernel, dtype: str, rows: int, vectors: int, in_step: int, out_step: int, bias: bool,
                relu: bool, deep: bool = False, tiled: bool = False) -> None:  # fmt: skip
    """Any convolution: dst[n, o, ·] = Σ_c Σ_tap src[n, c, · + tap] · w[o, c, tap] (see conv_base).

    A unit is a band of output rows of a few images and a chunk of output channels. Its source goes to scratch
    by blocks of channels, as zero-padded flat planes in which a tap is a constant offset; a table holds the
    offset of every (channel, tap), so one loop over it is the whole reduction, whatever the kernel's shape.

    in_step, out_step: elements between columns in the tensors, 1 or 2, or 0 for any (read from args).
    deep: three dimensions (`conv_base.Depth`).   tiled: rows are cut in tiles of columns.
    """
    MR, NR, V, size, wide = rows, vectors, k.V, k.size, "f64" if dtype == "f64" else "f32"
    N, G, C, K = (size(n) for n in "NGCK")
    src_h, src_w, dst_h, dst_w = (size(n) for n in ("src_h", "src_w", "dst_h", "dst_w"))
    row_step, col_step, row_out, col_out = (size(n) for n in ("row_step", "col_step", "row_out", "col_out"))
    depth = DepthArgs(k) if deep else None
    x_depth, y_depth = (depth.src, depth.dst) if depth else (0, 0)
    x = k.view(N, G * C, 1, src_h, src_w, dtype=dtype, strides=[
        size("src_n"), size("src_c"), x_depth, size("src_y"), 1 if in_step else size("src_x")])  # fmt: skip
    w = k.view(1, 1, 1, dtype=dtype, strides=[size("w_g"), size("w_o"), 1])
    y = k.view(N, G * K, 1, dst_h, dst_w, dtype=dtype, strides=[
        size("dst_n"), size("dst_c"), y_depth, size("dst_y"), 1 if out_step else size("dst_x")])  # fmt: skip
    b = k.view(G * K, dtype=dtype, strides=[size("bias")]) if bias else None
    NI, HB, CB, KC = size("images"), size("band"), size("c_block"), size("k_chunk", multiple=MR)
    width, first, valid, lead, plane, channel, low = (
        size(n) for n in ("width", "first", "valid", "lead", "plane", "channel", "low"))  # fmt: skip
    band_rows, pitch = size("band_rows"), NI * width
    row_planes, col_planes = size("row_planes"), size("col_planes")
    row_phases, col_phases, taps = size("row_phases"), size("col_phases"), size("taps")
    phases, parts = row_phases * col_phases, size("parts")
    flat, out_row = size("flat", multiple=V), size("out_row")
    panels = k.ceil_div(K, MR)

    lists = Lists(k, phases, taps, row_planes)
    w_step = (size("w_c"), depth.taps, depth.w) if depth else (size("w_c"), 1, 0)
    x_table, w_table = tables(k, lists, phases, taps, CB, channel, 1, w_step[0], depth=w_step[1:])
    wp = pack_weights(k, w, lists, w_table, None, (G, C, K, CB, phases, taps, w_step, parts), MR)

    def read(xs: View, zeros: View, n0: Int, i0: Int, j0: Int, c0: Int, g: Int, count: Int) -> None:
        """Channels of the unit's images to scratch; rows outside the image become zeros."""
        start = first + j0
        for c in k.range(count):
            for pr in k.range(row_planes):
                for r in k.range(band_rows):
                    h = (i0 + r + low) * row_step + lists.row(pr)
                    for image in k.range(NI):
                        inside = (h >= 0) & (h < src_h) & (n0 + image < N)
                        n, ch = n0 + image, g * C + c0 + c
                        d: Int = 0
                        if depth:
                            n, d, ch, here = depth.place(n, c0 + c, g * (C // depth.taps))
                            inside = inside & here
                        for pc in k.range(col_planes):
                            residue = lists.col(pc)
                            to = c * channel + (pr * col_planes + pc) * plane
                            to = to + lead + r * pitch + image * width
                            whole = k.ceil_div(k.max(src_w - residue, 0), col_step)
                            begin = k.min(k.max(0 - start, 0), valid) if tiled else 0
                            end = k.min(valid, k.max(whole - start, begin))
                            for reads in k.either(inside):
                                for p in k.vectors(begin, end):
                                    if reads:
                                        at = (p + start) * (in_step or col_step) + residue
                                        xs[p + to] = x[n, ch, d, h, at]
                                    else:
                                        xs[p + to] = zeros[k.vector()]
                            for lo, hi in ((0, begin), (end, valid)) if tiled else ():
                                for p in k.vectors(lo, hi):
                                    xs[p + to] = zeros[k.vector()]

    def finish(v: Val, o: Int) -> Val:
        v = v if b is None else v + b[o]
        return maximum(v, 0.0) if relu else v

    def write(out: View, n0: Int, i0: Int, j0: Int, o0: Int, channel0: Int, count: Int) -> None:
        """Rows of scratch, by phase, to the tensor."""

        def columns(whole: Int) -> Int:
            return k.min(k.max(whole - j0, 0), size("tile")) if tiled else whole

        for o in k.range(count):
            for i in k.range(HB):
                for a in k.range(row_phases):
                    h = (i0 + i) * row_out + a
                    for image in k.range(NI):
                        with k.when((h < dst_h) & (n0 + image < N)):
                            at, ch, n = i * pitch + image * width, channel0 + o0 + o, n0 + image
                            d: Int = 0
                            if depth:
                                n, d = n // depth.size, n % depth.size
                            if out_step == 1:
                                for p in k.vectors(columns(dst_w)):
                                    y[n, ch, d, h, p + j0] = finish(out[a, o, p + at], ch)
                            elif out_step == 2:
                                wide_to = columns((dst_w + 1) // 2)
                                stop = k.min((wide_to + j0) * 2, dst_w)
                                for p in k.vectors(wide_to):
                                    even = finish(out[a * 2, o, p + at], ch)
                                    odd = finish(out[a * 2 + 1, o, p + at], ch)
                                    for half, both in enumerate(interleave(even, odd)):
                                        to = (p.base + j0) * 2 + half * V
                                        y[n, ch, d, h, k.first(to, stop - to)] = both
                            else:
                                for f in k.range(col_phases):
                                    for p in k.vectors(columns((dst_w - f + col_out - 1) // col_out)):
                                        v = finish(out[a * col_phases + f, o, p + at], ch)
                                        y[n, ch, d, h, (p + j0) * col_out + f] = v

    def reduce(xs: View, zeros: View, out: View, phase: tuple[Int, Int], table: View,
               outputs: tuple[Int, Int, Int], block: tuple[Int, Int, Int]) -> None:  # fmt: skip
        """Adds a block of channels to the sums of a phase, tile by tile."""
        (at, length), (g, o0, count), (c0, c1, t0) = phase, outputs, block
        for q in k.vectors(flat, by=NR):
            here, lanes = View(k, xs.addr(q.base), (1,), dtype=wide), q.local()
            for kb in k.range(k.ceil_div(count, MR)):
                start = wp.addr(g * panels + o0 // MR + kb, c0 * taps + (c1 - c0) * t0, 0)
                panel = View(k, start, (1, MR), (MR, 1), wide)
                acc = [k.var(zeros[k.vector(0, len(q.masks))]) for _ in range(MR)]
                with k.unless(k.compare("==", c0, 0)):
                    for i, s in enumerate(acc):
                        s.set(out[at, kb * MR + i, q])
                table_sum(k, acc, panel, here, lanes, table, length)
                for i, s in enumerate(acc):
                    out[at, kb * MR + i, q] = s

    groups, bands, chunks = k.ceil_div(N, NI), size("bands"), k.ceil_div(K, KC)
    tiles = size("tiles") if tiled else 1
    units = G * groups * bands * tiles * chunks
    n = k.max(k.min(parts, units), 1)  # no unit at all where the result is empty
    per = k.ceil_div(units, n)
    for lo, hi in k.chunk(n):
        xs = k.scratch(CB * channel, dtype=wide)
        out = k.scratch(phases, KC, out_row, dtype=wide)
        # Zeros come from memory: as a constant they would occupy a register that the tile needs.
        zeros = k.scratch(NR * V, dtype=wide)
        zeros[k.vector(0, NR)] = k.zeros(NR, wide)
        for p in k.vectors(CB * channel, by=4):
            xs[p] = 0.0
        for u in k.range(lo * per, k.min(hi * per, units)):
            o0, rest = u % chunks * KC, u // chunks
            j0: Int = 0
            if tiled:
                j0, rest = rest % tiles * size("tile"), rest // tiles
            i0, rest = rest % bands * HB, rest // bands
            n0, g = rest % groups * NI, rest // groups
            count = k.min(KC, K - o0)
            for c0, c1 in k.blocks(C, CB):
                read(xs, zeros, n0, i0, j0, c0, g, c1 - c0)
                for phase in k.range(phases):
                    t0, t1 = lists.before(phase), lists.before(phase + 1)
                    length, table = (c1 - c0) * (t1 - t0), View(k, x_table.addr(CB * t0), (1,), dtype="i64")
                    due = (length > 0) | k.compare("==", c0, 0)  # a phase without taps is zeros once
                    with k.when(due):
                        reduce(xs, zeros, out, (phase, length), table, (g, o0, count), (c0, c1, t0))
            write(out, n0, i0, j0, o0, g * K, count)


class DepthArgs:
    """`conv_base.Depth` as a kernel reads it."""

    def __init__(self, k: Kernel):
        self.k = k
        self.source, self.size, self.taps = (k.size(f"depth_{n}") for n in ("source", "size", "taps"))
        self.step, self.tap, self.at, self.by = (k.size(f"depth_{n}") for n in ("step", "tap", "at", "by"))
        self.src, self.dst, self.w = (k.size(f"depth_{n}") for n in ("src", "dst", "w"))

    def place(self, image: Int, c: Int, c0: Int) -> tuple[Int, Int, Int, Val]:
        """Image, depth and channel of the source that channel c of an image of the result means, and whether
        they are there; c0: the group's first channel."""
        k, d = self.k, image % self.size
        top = d * self.step + c % self.taps * self.tap + self.at
        at = k.max(top, 0) // self.by
        inside = (top >= 0) & (at * self.by).eq(top) & (at < self.source)
        return image // self.size, at, c0 + c // self.taps, inside


def interleave(a: Val, b: Val) -> tuple[Val, Val]:
    """a0 b0 a1 b1 …: the two vectors that follow each other."""
    V = a.k.V
    order = [j // 2 + V * (j % 2) for j in range(2 * V)]
    return shuffle(a, b, order[:V]), shuffle(a, b, order[V:])


class ConvNCHW(Engine):
    """Convolution in 1 to 3 dimensions, fprop (with bias and ReLU) and dgrad, on planes: NCHW, any other
    strides; fp64 too. It refuses nothing but results that share memory with themselves."""

    name = "cpu.conv_nchw"
    version = 2

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        found = no_kernels(device) or _parse(graph)
        return found if isinstance(found, str) else None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        g = _parse(graph)
        if isinstance(g, str):
            return 0.0
        c = Conv.of(g)
        MR, _ = tile_of(isas.ALL[device.isa], c.dtype)
        used = c.K / round_up(max(c.K, 1), MR)
        dense = step_class(c.cols.in_step, c.src[3]) and out_class(c)
        return (0.65 if dense else 0.3) * used

    def knobs(self, graph: Graph, device: CpuDevice) -> dict[str, tuple[int, ...]]:
        """c_block: channels packed at once; band, images, k_chunk: rows, images, channels of a unit."""
        g = _parse(graph)
        if isinstance(g, str):
            return {}
        d = choose(Conv.of(g), device)
        return {name: (value, *(v for v in more if v != value)) for name, value, more in (
            ("c_block", d["c_block"], (16, 32, 64)),
            ("band", d["band"], (4, 7, 8, 14, 28)),
            ("images", d["images"], (1, 2, 4)),
            ("k_chunk", d["k_chunk"], (64, 128, 256)),
            ("tile", d["tile"], (512, 1024)),
        )}  # fmt: skip

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> NativeProgram:
        g = _parse(graph)
        if isinstance(g, str):
            raise ValueError(f"{self.name}: {g}")
        c, isa = Conv.of(g), isas.ALL[device.isa]
        MR, NR = tile_of(isa, c.dtype)
        knobs = dict(config.knobs)
        band = max(1, min(knobs["band"], c.rows.count))
        images = max(1, min(knobs["images"], c.N))
        chunk = round_up(max(1, min(knobs["k_chunk"], c.K)), MR)
        block = round_up(max(1, min(knobs["c_block"], max(1, c.C))), c.depth.taps)
        tiles = -(-c.cols.count // knobs["tile"]) if knobs["tile"] else 1
        planes = Planes.of(c, band, images, isa.lanes, knobs["tile"])
        flat = round_up(band * planes.pitch, isa.lanes)
        kernel = compiled(
            conv_planes, isa, dtype=c.dtype, rows=MR, vectors=NR, bias=g.bias is not None, relu=g.relu,
            in_step=step_class(c.cols.in_step, c.src[3]), out_step=out_class(c), deep=c.depth != Depth(),
            tiled=tiles > 1)  # fmt: skip
        return program(kernel, g, c, planes, False, {
            "c_block": block, "k_chunk": chunk, "flat": flat, "out_row": flat + (16 if flat % 64 == 0 else 0),
            "bands": -(-c.rows.count // band), "parts": 1 if c.flops < 200_000 else 1 << 30, "tiles": tiles,
        })  # fmt: skip


def _parse(graph: Graph) -> ConvGraph | str:
    return parse(graph, dtypes=DOUBLE, deep=True, tails=("fprop", "dgrad"))


def tile_of(isa: isas.ISA, dtype: str = "f32") -> tuple[int, int]:
    """Output channels and vectors of pixels of a tile; with 16 registers 4×3 spills, 6×2 does not."""
    if dtype == "f64":  # a vector takes two registers
        return isa.tile_rows(2), 1
    vectors = 3 if isa.registers >= 32 else 2
    return isa.tile_rows(vectors), vectors


def out_class(c: Conv) -> int:
    """1: whole rows; 2: two column phases woven together; 0: any steps, element by element."""
    if c.dst[3] == 1 and c.cols.out_step == len(c.cols.phases) <= 2:
        return c.cols.out_step
    return 0


def choose(c: Conv, device: CpuDevice) -> dict[str, int]:
    """Block sizes: the sums of a unit in half of L2, its packed source in an eighth."""
    count = c.cols.count
    tile = round_up(divide(count, _TILE), 16) if count > 2 * _TILE else 0
    images = 1
    while images < c.N and images * c.cols.count < 48 and c.N // (2 * images) >= 2:
        images *= 2
    pitch = max(1, images * ((tile or count) + c.cols.high - c.cols.low))
    phases = len(c.rows.phases) * len(c.cols.phases)
    chunk = max(1, min(c.K, 512, max(64, device.l2 // 2 // (4 * pitch * phases))))
    band = max(1, min(c.rows.count, device.l2 // 2 // (4 * chunk * pitch * phases)))
    band = divide(c.rows.count, min(band, max(1, 1024 // pitch)))
    c_block = max(4, min(64, 288 // max(1, c.taps)))
    sizes = {"c_block": min(max(c.C, 1), c_block), "band": band, "images": images, "k_chunk": chunk,
             "tile": tile}  # fmt: skip
    return share_out(sizes, {"images": 1, "k_chunk": 64, "band": 4}, partial(units, c), device.cores)


def units(c: Conv, d: dict[str, int]) -> int:
    """Pieces that a convolution is cut into."""
    tiles = -(-c.cols.count // d["tile"]) if d.get("tile") else 1
    return c.G * -(-c.N // d["images"]) * -(-c.rows.count // d["band"]) * -(-c.K // d["k_chunk"]) * tiles
