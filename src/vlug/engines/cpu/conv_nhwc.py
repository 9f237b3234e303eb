"""Convolution with channels last (NHWC): vectors along output channels, source pixels broadcast."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from vlug.codegen import isa as isas
from vlug.codegen.ir import Int, Kernel, Lanes, Val, View, maximum
from vlug.codegen.jit import compiled
from vlug.codegen.tile import product
from vlug.engines.base import Engine, EngineConfig, NativeProgram
from vlug.engines.cpu.conv_base import Conv, Planes, divide, parse, program, round_up, share_out
from vlug.engines.cpu.conv_nchw import units
from vlug.engines.cpu.nest import no_kernels
from vlug.engines.cpu.pack import Lists, either_table, pack_weights, tables
from vlug.graph import Graph

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["ConvNHWC", "conv_pixels"]

#: Vectors of output channels in a tile.
NR = 2
#: Channels of the source that are packed at once: few, with taps, one tap.
BLOCKS = (4, 32, 128)
#: Outputs of a row at most.
_ROW = 4096


def conv_pixels(k: Kernel, dtype: str, run: int, c_block: int, bias: bool, relu: bool) -> None:
    """Any 2-D convolution with channels last: dst[n, ·, o] = Σ_tap Σ_c src[n, · + tap, c] · w[o, tap, c].

    A unit is a band of output rows of a few images and a chunk of output channels. Blocks of `c_block` source
    channels go to scratch as zero-padded pixels a constant distance apart, so that all pixels of a tile are
    constant displacements. A tile is two runs of `run` neighbouring pixels, each anywhere, by two vectors of
    output channels; a table holds the offset of every (tap, channel).
    """
    size, B = k.size, NR * k.V
    N, G, C, K = (size(n) for n in "NGCK")
    src_h, src_w, dst_h, dst_w = (size(n) for n in ("src_h", "src_w", "dst_h", "dst_w"))
    row_step, col_step, row_out, col_out = (size(n) for n in ("row_step", "col_step", "row_out", "col_out"))
    x = k.view(N, src_h, src_w, G * C, dtype=dtype, strides=[
        size("src_n"), size("src_y"), size("src_x"), 1])  # fmt: skip
    w = k.view(1, 1, 1, dtype=dtype, strides=[size("w_g"), size("w_o"), 1])
    y_n, y_h, y_w = size("dst_n"), size("dst_y"), size("dst_x")
    y = k.view(N, dst_h, dst_w, G * K, dtype=dtype, strides=[y_n, y_h, y_w, 1])
    b = k.view(G * K, dtype=dtype) if bias else None
    NI, HB, KC = size("images"), size("band"), size("k_chunk", multiple=B)
    width, first, valid, lead, plane, low = (
        size(n) for n in ("width", "first", "valid", "lead", "plane", "low"))  # fmt: skip
    band_rows, pitch = size("band_rows"), NI * width
    row_planes, col_planes = size("row_planes"), size("col_planes")
    row_phases, col_phases, taps = size("row_phases"), size("col_phases"), size("taps")
    phases, parts = row_phases * col_phases, size("parts")
    panels, row_runs = k.ceil_div(K, B), size("row_runs")
    runs = row_runs * HB * NI
    tiles = k.ceil_div(runs, 2)
    step = c_block + 16 if c_block > 64 else c_block  # pixels 512 bytes apart would share cache sets

    lists = Lists(k, phases, taps, row_planes)
    last = size("c_last")  # channels in the last block
    w_c = size("w_c")
    x_table, w_table = tables(k, lists, phases, taps, c_block, 1, step, w_c, taps_first=True)
    x_last, w_last = tables(k, lists, phases, taps, last, 1, step, w_c, taps_first=True)
    wp = pack_weights(k, w, lists, w_table, w_last, (G, C, K, c_block, phases, taps, w_c, parts), B)

    def read(xs: View, zeros: View, n0: Int, i0: Int, c0: Int, count: Int) -> None:
        """A block of channels of the unit's images to scratch; rows outside the image become zeros."""
        for image in k.range(NI):
            for pr in k.range(row_planes):
                for r in k.range(band_rows):
                    h = (i0 + r + low) * row_step + lists.row(pr)
                    inside = (h >= 0) & (h < src_h) & (n0 + image < N)
                    for pc in k.range(col_planes):
                        residue = lists.col(pc)
                        to = (pr * col_planes + pc) * plane + lead + r * pitch + image * width
                        whole = k.ceil_div(k.max(src_w - residue, 0), col_step)
                        for reads in k.either(inside):
                            for j in k.range(k.min(valid, k.max(whole - first, 0))):
                                for c in k.vectors(count, by=min(4, -(-c_block // k.V))):
                                    if reads:
                                        v = x[n0 + image, h, (first + j) * col_step + residue, c + c0]
                                        xs[to + j, c] = v
                                    else:
                                        xs[to + j, c] = zeros[k.vector(0)]

    def finish(v: Val, lanes: Lanes) -> Val:
        v = v if b is None else v + b[lanes]
        return maximum(v, 0.0) if relu else v

    def find_runs(table: View, n0: Int, i0: Int, phase: Int) -> None:
        """Of each run of the unit: where it begins in scratch and in y, how many of its pixels are in y."""
        a, f = phase // col_phases, phase % col_phases
        row = (dst_w - f + col_out - 1) // col_out
        for image in k.range(NI):
            for i in k.range(HB):
                h, n, at = (i0 + i) * row_out + a, n0 + image, (image * HB + i) * row_runs
                inside = (h < dst_h) & (n < N)
                for j in k.range(row_runs):
                    table[at + j, 0] = k.to_int((i * pitch + image * width + j * run) * step)
                    table[at + j, 1] = k.to_int(n * y_n + h * y_h + (j * (run * col_out) + f) * y_w)
                    count = k.max(k.min(row - j * run, run), 0)
                    table[at + j, 2] = k.to_int(k.choose(inside, count, 0))
        for i in range(3):  # a partner for the last, if it has none
            table[runs, i] = k.to_int(0)

    def reduce_tile(xs: View, zeros: View, table: View, panel: View, length: Int, two: list[View],
                    mine: View, fresh: Val, c1: Int, channel0: Int, o: Int) -> None:  # fmt: skip
        """The tile's sum over a block of channels; after the last block, to the tensor."""
        every = k.vector(0, NR)
        acc = [k.var(zeros[every]) for _ in range(2 * run)]
        from_ = [View(k, xs.addr(0, r[0].idx()), (1,)) for r in two]
        with k.unless(fresh):
            for i, s in enumerate(acc):
                s.set(mine[i, every])

        def pixel(i: int, l: Int) -> Val:
            return from_[i // run][table[l].idx() + i % run * step]

        product(k, acc, (0, length), pixel, lambda l: panel[l, every], unroll=1)
        for done in k.either(k.compare("==", c1, C)):
            if not done:
                for i, s in enumerate(acc):
                    mine[i, every] = s
                continue
            counts = [r[2].idx() for r in two]
            to = [View(k, y.addr(0, 0, 0, r[1].idx()), (1, 1), (y_w * col_out, 1), dtype) for r in two]
            full = counts[0].eq(run) & counts[1].eq(run) & (o + B <= K)
            for whole in k.either(full):
                if whole:
                    for i, s in enumerate(acc):
                        to[i // run][i % run, every + (channel0 + o)] = finish(s, every + (channel0 + o))
                    continue
                for i, s in enumerate(acc):
                    mine[i, every] = s
                for r in range(2):
                    for p in k.range(counts[r]):
                        for lanes in k.vectors(k.min(B, K - o)):
                            at = lanes + (channel0 + o)
                            to[r][p, at] = finish(mine[p + r * run, lanes], at)

    # With pixels first, all outputs of a pixel are written one after another, and weights come from L2.
    one_slot, pixels_first = size("sums").eq(1), size("pixels_first").eq(1)
    groups, bands, chunks = k.ceil_div(N, NI), size("bands"), k.ceil_div(K, KC)
    units = G * groups * bands * chunks
    parts_here = k.max(k.min(parts, units), 1)  # no unit at all where the result is empty
    per = k.ceil_div(units, parts_here)
    for lo, hi in k.chunk(parts_here):
        pixels = size("pixels")
        xs = k.scratch(pixels, step)
        sums = k.scratch(size("sums"), 2 * run, B)
        table_of_runs = k.scratch(runs + 1, 3, dtype="i64")
        # Zeros come from memory: as a constant they would occupy a register that the tile needs.
        zeros = k.scratch(B)
        zeros[k.vector(0, NR)] = k.zeros(NR)
        for p in k.vectors(pixels * step, by=4):
            xs[0, p] = 0.0
        for u in k.range(lo * per, k.min(hi * per, units)):
            o0, rest = u % chunks * KC, u // chunks
            i0, rest = rest % bands * HB, rest // bands
            n0, g = rest % groups * NI, rest // groups
            count = k.min(KC, K - o0)
            for c0, c1 in k.blocks(C, c_block):
                read(xs, zeros, n0, i0, g * C + c0, c1 - c0)
                for phase in k.range(phases):
                    t0, t1 = lists.before(phase), lists.before(phase + 1)
                    length = (c1 - c0) * (t1 - t0)
                    table = either_table(k, c1 - c0, c_block, x_table, x_last, t0)
                    find_runs(table_of_runs, n0, i0, phase)
                    # A phase without taps is written once, at the end.
                    none = k.condition(k.compare("==", length, 0))
                    fresh = none | k.compare("==", c0, 0)
                    due = ~none | k.compare("==", c1, C)
                    count_kb = k.choose(due, k.ceil_div(count, B), 0)
                    for a in k.range(k.choose(pixels_first, tiles, count_kb)):
                        for b_ in k.range(k.choose(pixels_first, count_kb, tiles)):
                            kb, tile = k.choose(pixels_first, b_, a), k.choose(pixels_first, a, b_)
                            o = o0 + kb * B
                            start = wp.addr(g * panels + o // B, c0 * taps + (c1 - c0) * t0, 0)
                            panel = View(k, start, (1, B), (B, 1))
                            two = [table_of_runs.at(tile * 2 + r) for r in range(2)]
                            mine = sums.at(k.choose(one_slot, 0, (phase * (KC // B) + kb) * tiles + tile))
                            reduce_tile(xs, zeros, table, panel, length, two, mine, fresh, c1, g * K, o)


class ConvNHWC(Engine):
    """2-D convolution, fprop (with bias and ReLU) and dgrad, channels last in and out."""

    name = "cpu.conv_nhwc"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        g = no_kernels(device) or parse(graph)
        if isinstance(g, str):
            return g
        for t in (g.src, g.dst):
            if t.dim[1] > 1 and t.stride[1] != 1:
                return f"the channels of {t.name} are not next to each other in memory"
        if g.bias is not None and g.bias.normalised.stride[0] != 1:
            return "the bias is not contiguous"
        if g.dst.dim[-1] > _ROW:
            return f"rows of {g.dst.dim[-1]} outputs: its scratch would hold whole ones, more than {_ROW}"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        g = parse(graph)
        if isinstance(g, str):
            return 0.0
        c, B = Conv.of(g), NR * isas.ALL[device.isa].lanes
        return 0.8 * c.K / round_up(max(c.K, 1), B)

    def knobs(self, graph: Graph, device: CpuDevice) -> dict[str, tuple[int, ...]]:
        """c_block: channels packed at once; band, images, k_chunk: of a unit; pixels_first: loop order."""
        g = parse(graph)
        if isinstance(g, str):
            return {}
        d = choose(Conv.of(g), device)
        return {name: (d[name], *(v for v in more if v != d[name])) for name, more in (
            ("c_block", BLOCKS), ("band", (4, 7, 8, 14, 28)), ("images", (1, 2, 4)),
            ("k_chunk", (64, 128, 256)), ("pixels_first", (0, 1)),
        )}  # fmt: skip

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> NativeProgram:
        g = parse(graph)
        if isinstance(g, str):
            raise ValueError(f"{self.name}: {g}")
        c, isa = Conv.of(g), isas.ALL[device.isa]
        B, run = NR * isa.lanes, isa.tile_rows(NR, (2, 6, 14)) // 2
        knobs = dict(config.knobs)
        band = max(1, min(knobs["band"], c.rows.count))
        images = max(1, min(knobs["images"], c.N))
        chunk = round_up(max(1, min(knobs["k_chunk"], c.K)), B)
        block = knobs["c_block"]
        planes = Planes.of(c, band, images, 2 * run)
        row_runs = -(-c.cols.count // run)
        tiles = -(-row_runs * band * images // 2)
        phases = len(c.rows.phases) * len(c.cols.phases)
        kernel = compiled(
            conv_pixels, isa, dtype=c.dtype, run=run, c_block=block, bias=g.bias is not None, relu=g.relu)
        return program(kernel, g, c, planes, True, {
            "k_chunk": chunk, "pixels_first": knobs["pixels_first"], "row_runs": row_runs,
            "c_last": (max(c.C, 1) - 1) % block + 1,
            "pixels": planes.plane * len(c.rows.planes) * len(c.cols.planes),
            "sums": 1 if block >= c.C else phases * (chunk // B) * tiles,
            "bands": -(-c.rows.count // band), "parts": 1 if c.flops < 200_000 else 1 << 30,
        })  # fmt: skip


def choose(c: Conv, device: CpuDevice) -> dict[str, int]:
    """Block sizes: packed source in 1/16 of L2, sums (where channels come in blocks) in 1/8.

    Twice that is 10 to 15 % slower (1×1 64→256 at 56×56, 3×3 128→128 at 28×28).
    """
    few, several, many = BLOCKS
    c_block = few if few >= c.C else several if c.taps > 1 else many
    planes = len(c.rows.planes) * len(c.cols.planes)
    images = 1
    while images < c.N and images * c.cols.count * c.rows.count < 196 and c.N // (2 * images) >= 2:
        images *= 2
    row = max(1, images * (c.cols.count + c.cols.high - c.cols.low))
    phases = len(c.rows.phases) * len(c.cols.phases)
    chunk = max(1, min(c.K, 512, max(64, device.l2 // 4 // (4 * row * phases))))
    band = device.l2 // 16 // (4 * c_block * row * planes)
    if c_block < c.C:
        band = min(band, device.l2 // 8 // (4 * chunk * row * phases))
    sizes = {"c_block": c_block, "band": divide(c.rows.count, band), "images": images, "k_chunk": chunk,
             "pixels_first": 0}  # fmt: skip
    return share_out(sizes, {"images": 1, "k_chunk": 64, "band": 2}, partial(units, c), device.cores)
