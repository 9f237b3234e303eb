"""Convolution on planes (NCHW and any other strides): vectors along pixels, weights broadcast."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from vlug.codegen import isa as isas
from vlug.codegen.ir import Int, Kernel, Val, View, maximum, shuffle
from vlug.codegen.jit import compiled
from vlug.engines.base import Engine, EngineConfig, NativeProgram
from vlug.engines.cpu.conv_base import Conv, Planes, divide, parse, program, round_up, share_out, step_class
from vlug.engines.cpu.nest import no_kernels
from vlug.engines.cpu.pack import Lists, pack_weights, table_sum, tables
from vlug.graph import Graph

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["ConvNCHW", "conv_planes"]


def conv_planes(k: Kernel, dtype: str, rows: int, vectors: int, in_step: int, out_step: int, bias: bool,
                relu: bool) -> None:  # fmt: skip
    """Any 2-D convolution: dst[n, o, ·] = Σ_c Σ_tap src[n, c, · + tap] · w[o, c, tap] (see conv_base).

    A unit is a band of output rows of a few images and a chunk of output channels. Its source goes to scratch
    by blocks of channels, as zero-padded flat planes in which a tap is a constant offset; a table holds the
    offset of every (channel, tap), so one loop over it is the whole reduction, whatever the kernel's shape.

    in_step, out_step: elements between columns in the tensors, 1 or 2, or 0 for any (read from args).
    """
    MR, NR, V, size = rows, vectors, k.V, k.size
    N, G, C, K = (size(n) for n in "NGCK")
    src_h, src_w, dst_h, dst_w = (size(n) for n in ("src_h", "src_w", "dst_h", "dst_w"))
    row_step, col_step, row_out, col_out = (size(n) for n in ("row_step", "col_step", "row_out", "col_out"))
    x = k.view(N, G * C, src_h, src_w, dtype=dtype, strides=[
        size("src_n"), size("src_c"), size("src_y"), 1 if in_step else size("src_x")])  # fmt: skip
    w = k.view(1, 1, 1, dtype=dtype, strides=[size("w_g"), size("w_o"), 1])
    y = k.view(N, G * K, dst_h, dst_w, dtype=dtype, strides=[
        size("dst_n"), size("dst_c"), size("dst_y"), 1 if out_step else size("dst_x")])  # fmt: skip
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
    x_table, w_table = tables(k, lists, phases, taps, CB, channel, 1, size("w_c"))
    wp = pack_weights(k, w, lists, w_table, None, (G, C, K, CB, phases, taps, size("w_c"), parts), MR)

    def read(xs: View, zeros: View, n0: Int, i0: Int, channel0: Int, count: Int) -> None:
        """Channels of the unit's images to scratch; rows outside the image become zeros."""
        for c in k.range(count):
            for pr in k.range(row_planes):
                for r in k.range(band_rows):
                    h = (i0 + r + low) * row_step + lists.row(pr)
                    for image in k.range(NI):
                        inside = (h >= 0) & (h < src_h) & (n0 + image < N)
                        for pc in k.range(col_planes):
                            residue = lists.col(pc)
                            to = c * channel + (pr * col_planes + pc) * plane
                            to = to + lead + r * pitch + image * width
                            whole = k.ceil_div(k.max(src_w - residue, 0), col_step)
                            here = k.min(valid, k.max(whole - first, 0))
                            for reads in k.either(inside):
                                for p in k.vectors(here):
                                    if reads:
                                        at = (p + first) * (in_step or col_step) + residue
                                        xs[p + to] = x[n0 + image, channel0 + c, h, at]
                                    else:
                                        xs[p + to] = zeros[k.vector()]

    def finish(v: Val, o: Int) -> Val:
        v = v if b is None else v + b[o]
        return maximum(v, 0.0) if relu else v

    def write(out: View, n0: Int, i0: Int, o0: Int, channel0: Int, count: Int) -> None:
        """Rows of scratch, by phase, to the tensor."""
        for o in k.range(count):
            for i in k.range(HB):
                for a in k.range(row_phases):
                    h = (i0 + i) * row_out + a
                    for image in k.range(NI):
                        with k.when((h < dst_h) & (n0 + image < N)):
                            at, ch, n = i * pitch + image * width, channel0 + o0 + o, n0 + image
                            if out_step == 1:
                                for p in k.vectors(dst_w):
                                    y[n, ch, h, p] = finish(out[a, o, p + at], ch)
                            elif out_step == 2:
                                for p in k.vectors((dst_w + 1) // 2):
                                    even = finish(out[a * 2, o, p + at], ch)
                                    odd = finish(out[a * 2 + 1, o, p + at], ch)
                                    for half, both in enumerate(interleave(even, odd)):
                                        to = p.base * 2 + half * V
                                        y[n, ch, h, k.first(to, dst_w - to)] = both
                            else:
                                for f in k.range(col_phases):
                                    for p in k.vectors((dst_w - f + col_out - 1) // col_out):
                                        v = finish(out[a * col_phases + f, o, p + at], ch)
                                        y[n, ch, h, p * col_out + f] = v

    def reduce(xs: View, zeros: View, out: View, phase: tuple[Int, Int], table: View,
               outputs: tuple[Int, Int, Int], block: tuple[Int, Int, Int]) -> None:  # fmt: skip
        """Adds a block of channels to the sums of a phase, tile by tile."""
        (at, length), (g, o0, count), (c0, c1, t0) = phase, outputs, block
        for q in k.vectors(flat, by=NR):
            here, lanes = View(k, xs.addr(q.base), (1,)), q.local()
            for kb in k.range(k.ceil_div(count, MR)):
                start = wp.addr(g * panels + o0 // MR + kb, c0 * taps + (c1 - c0) * t0, 0)
                panel = View(k, start, (1, MR), (MR, 1))
                acc = [k.var(zeros[k.vector(0, len(q.masks))]) for _ in range(MR)]
                with k.unless(k.compare("==", c0, 0)):
                    for i, s in enumerate(acc):
                        s.set(out[at, kb * MR + i, q])
                table_sum(k, acc, panel, here, lanes, table, length)
                for i, s in enumerate(acc):
                    out[at, kb * MR + i, q] = s

    groups, bands, chunks = k.ceil_div(N, NI), size("bands"), k.ceil_div(K, KC)
    units = G * groups * bands * chunks
    n = k.max(k.min(parts, units), 1)  # no unit at all where the result is empty
    per = k.ceil_div(units, n)
    for lo, hi in k.chunk(n):
        xs = k.scratch(CB * channel)
        out = k.scratch(phases, KC, out_row)
        # Zeros come from memory: as a constant they would occupy a register that the tile needs.
        zeros = k.scratch(NR * V)
        zeros[k.vector(0, NR)] = k.zeros(NR)
        for p in k.vectors(CB * channel, by=4):
            xs[p] = 0.0
        for u in k.range(lo * per, k.min(hi * per, units)):
            o0, rest = u % chunks * KC, u // chunks
            i0, rest = rest % bands * HB, rest // bands
            n0, g = rest % groups * NI, rest // groups
            count = k.min(KC, K - o0)
            for c0, c1 in k.blocks(C, CB):
                read(xs, zeros, n0, i0, g * C + c0, c1 - c0)
                for phase in k.range(phases):
                    t0, t1 = lists.before(phase), lists.before(phase + 1)
                    length, table = (c1 - c0) * (t1 - t0), View(k, x_table.addr(CB * t0), (1,), dtype="i64")
                    due = (length > 0) | k.compare("==", c0, 0)  # a phase without taps is zeros once
                    with k.when(due):
                        reduce(xs, zeros, out, (phase, length), table, (g, o0, count), (c0, c1, t0))
            write(out, n0, i0, o0, g * K, count)


def interleave(a: Val, b: Val) -> tuple[Val, Val]:
    """a0 b0 a1 b1 …: the two vectors that follow each other."""
    V = a.k.V
    order = [j // 2 + V * (j % 2) for j in range(2 * V)]
    return shuffle(a, b, order[:V]), shuffle(a, b, order[V:])


class ConvNCHW(Engine):
    """2-D convolution, fprop (with bias and ReLU) and dgrad, on planes: NCHW, and any other strides."""

    name = "cpu.conv_nchw"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        found = no_kernels(device) or parse(graph)
        return found if isinstance(found, str) else None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        g = parse(graph)
        if isinstance(g, str):
            return 0.0
        c, (MR, _) = Conv.of(g), tile_of(isas.ALL[device.isa])
        used = c.K / round_up(max(c.K, 1), MR)
        dense = step_class(c.cols.in_step, c.src[3]) and out_class(c)
        return (0.65 if dense else 0.3) * used

    def knobs(self, graph: Graph, device: CpuDevice) -> dict[str, tuple[int, ...]]:
        """c_block: channels packed at once; band, images, k_chunk: rows, images, channels of a unit."""
        g = parse(graph)
        if isinstance(g, str):
            return {}
        d = choose(Conv.of(g), device)
        return {name: (value, *(v for v in more if v != value)) for name, value, more in (
            ("c_block", d["c_block"], (16, 32, 64)),
            ("band", d["band"], (4, 7, 8, 14, 28)),
            ("images", d["images"], (1, 2, 4)),
            ("k_chunk", d["k_chunk"], (64, 128, 256)),
        )}  # fmt: skip

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> NativeProgram:
        g = parse(graph)
        if isinstance(g, str):
            raise ValueError(f"{self.name}: {g}")
        c, isa = Conv.of(g), isas.ALL[device.isa]
        MR, NR = tile_of(isa)
        knobs = dict(config.knobs)
        band = max(1, min(knobs["band"], c.rows.count))
        images = max(1, min(knobs["images"], c.N))
        chunk = round_up(max(1, min(knobs["k_chunk"], c.K)), MR)
        block = max(1, min(knobs["c_block"], max(1, c.C)))
        planes = Planes.of(c, band, images, isa.lanes)
        flat = round_up(band * planes.pitch, isa.lanes)
        kernel = compiled(
            conv_planes, isa, dtype=c.dtype, rows=MR, vectors=NR, bias=g.bias is not None, relu=g.relu,
            in_step=step_class(c.cols.in_step, c.src[3]), out_step=out_class(c))  # fmt: skip
        return program(kernel, g, c, planes, False, {
            "c_block": block, "k_chunk": chunk, "flat": flat, "out_row": flat + (16 if flat % 64 == 0 else 0),
            "bands": -(-c.rows.count // band), "parts": 1 if c.flops < 200_000 else 1 << 30,
        })  # fmt: skip


def tile_of(isa: isas.ISA) -> tuple[int, int]:
    """Output channels and vectors of pixels of a tile; with 16 registers 4×3 spills, 6×2 does not."""
    vectors = 3 if isa.registers >= 32 else 2
    return isa.tile_rows(vectors), vectors


def out_class(c: Conv) -> int:
    """1: whole rows; 2: two column phases woven together; 0: any steps, element by element."""
    if c.dst[3] == 1 and c.cols.out_step == len(c.cols.phases) <= 2:
        return c.cols.out_step
    return 0


def choose(c: Conv, device: CpuDevice) -> dict[str, int]:
    """Block sizes: the sums of a unit in half of L2, its packed source in an eighth."""
    images = 1
    while images < c.N and images * c.cols.count < 48 and c.N // (2 * images) >= 2:
        images *= 2
    pitch = max(1, images * (c.cols.count + c.cols.high - c.cols.low))
    phases = len(c.rows.phases) * len(c.cols.phases)
    chunk = max(1, min(c.K, 512, max(64, device.l2 // 2 // (4 * pitch * phases))))
    band = max(1, min(c.rows.count, device.l2 // 2 // (4 * chunk * pitch * phases)))
    band = divide(c.rows.count, min(band, max(1, 1024 // pitch)))
    c_block = max(4, min(64, 288 // max(1, c.taps)))
    sizes = {"c_block": min(max(c.C, 1), c_block), "band": band, "images": images, "k_chunk": chunk}
    return share_out(sizes, {"images": 1, "k_chunk": 64, "band": 4}, partial(units, c), device.cores)


def units(c: Conv, d: dict[str, int]) -> int:
    """Pieces that a convolution is cut into."""
    return c.G * -(-c.N // d["images"]) * -(-c.rows.count // d["band"]) * -(-c.K // d["k_chunk"])
