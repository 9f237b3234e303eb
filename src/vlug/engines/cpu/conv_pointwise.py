"""1×1 convolution on planes (NCHW), any stride, fprop and dgrad: a product over packed panels of pixels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from vlug.codegen import isa as isas
from vlug.codegen.ir import Int, Kernel, Lanes, Val, View, maximum
from vlug.codegen.jit import compiled
from vlug.codegen.tile import product
from vlug.engines.base import Engine, EngineConfig, NativeProgram
from vlug.engines.cpu.conv_base import (
    Axis,
    Conv,
    Planes,
    divide,
    parse,
    program,
    round_up,
    share_out,
    step_class,
)
from vlug.engines.cpu.conv_nchw import interleave
from vlug.engines.cpu.nest import no_kernels
from vlug.engines.cpu.pack import Lists, pack_weights, tables
from vlug.graph import Graph

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["ConvPointwise", "conv_points"]

#: Vectors of pixels in a tile.
NR = 3


def conv_points(k: Kernel, dtype: str, rows: int, in_step: int, out_step: int, bias: bool,
                relu: bool) -> None:  # fmt: skip
    """dst[n, o, p · out] = Σ_c src[n, c, p · in] · w[o, c]; positions between are zero.

    An image is rows of `row_len` pixels (a flat plane is cut into rows at will, the last may be shorter). A
    unit is a band of rows of a few images: blocks of its channels go to scratch as panels [panel][c][NR · V],
    and while one panel of weights stays in L1 all panels of pixels pass by. A unit of one row is read and
    written directly; others through a line and rows of sums.

    in_step, out_step: elements between columns in the tensors, 1 or 2, or 0 for any (read from args).
    """
    MR, V, size, B = rows, k.V, k.size, NR * k.V
    N, G, C, K = (size(n) for n in "NGCK")
    x_n, x_c, x_y = size("src_n"), size("src_c"), size("row_src")
    y_n, y_c, y_h = size("dst_n"), size("dst_c"), size("row_dst")
    dst_h, dst_w, row_out, col_out = (size(n) for n in ("dst_h", "dst_w", "row_out", "col_out"))
    x = k.view(N, G * C, 1, 1, dtype=dtype, strides=[x_n, x_c, x_y, in_step or size("col_src")])
    w = k.view(1, 1, 1, dtype=dtype, strides=[size("w_g"), size("w_o"), 1])
    y = k.view(N, G * K, 1, 1, dtype=dtype, strides=[y_n, y_c, y_h, 1 if out_step else size("dst_x")])
    b = k.view(G * K, dtype=dtype, strides=[size("bias")]) if bias else None
    NI, HB, CB, KC = size("images"), size("band"), size("c_block"), size("k_chunk", multiple=MR)
    row_len, row_count, points = size("row_len"), size("row_count"), size("points")
    pixels, parts, out_row = size("pixels", multiple=V), size("parts"), size("out_row")
    w_c, panels, direct = size("w_c"), k.ceil_div(K, MR), size("direct").eq(1)

    lists = Lists(k, 1, 1, 1)
    _, w_table = tables(k, lists, 1, 1, CB, 1, 1, w_c)
    wp = pack_weights(k, w, lists, w_table, None, (G, C, K, CB, 1, 1, w_c, parts), MR)

    def finish(v: Val, o: Int) -> Val:
        v = v if b is None else v + b[o]
        return maximum(v, 0.0) if relu else v

    def whole(n: Int) -> Iterator[Lanes]:
        """Vectors over [0, n), the last one moved back rather than masked: shuffles read every second element
        of a whole vector, a masked one is gathered."""
        for long in k.either(n >= V):
            if long:
                for i in k.range(0, n - V, V):
                    yield k.vector(i)
                yield k.vector(n - V)
            else:
                yield k.first(0, n)

    def read(xs: View, line: View, n0: Int, r0: Int, channel0: Int, count: Int) -> None:
        """Channels of the unit's pixels to panels; pixels that are not there become zeros."""
        length = k.min(row_len, points - r0 * row_len)
        for c in k.range(count):
            for straight in k.either(direct):
                if straight:
                    for p in k.vectors(length, by=NR):
                        xs[p.base // B, c, k.vector(p.base % B, len(p.masks))] = x[n0, channel0 + c, r0, p]
                    continue
                for image in k.range(NI):
                    for r in k.range(HB):
                        inside = (n0 + image < N) & (r0 + r < row_count)
                        at = (image * HB + r) * row_len
                        for reads in k.either(inside):
                            for p in k.vectors(row_len) if in_step != 2 or not reads else whole(row_len):
                                line[p + at] = x[n0 + image, channel0 + c, r0 + r, p] if reads else 0.0
                for p in k.vectors(pixels, by=NR):
                    xs[p.base // B, c, k.vector(p.base % B, len(p.masks))] = line[p]

    def write(sums: View, n0: Int, r0: Int, o0: Int, channel0: Int, count: Int) -> None:
        """Rows of sums to the tensor, with zeros between where the output is spread."""
        for o in k.range(count):
            for image in k.range(NI):
                for r in k.range(HB):
                    at, ch = (image * HB + r) * row_len, channel0 + o0 + o
                    n, h = n0 + image, (r0 + r) * row_out
                    with k.when((n < N) & (r0 + r < row_count)):
                        if out_step == 1:
                            for p in k.vectors(k.min(row_len, points - (r0 + r) * row_len)):
                                y[n, ch, h, p] = finish(sums[o, p + at], ch)
                        elif out_step == 2:
                            zero = finish(k.zeros(), ch)
                            for p in k.vectors(row_len):
                                for half, both in enumerate(interleave(finish(sums[o, p + at], ch), zero)):
                                    to = p.base * 2 + half * V
                                    y[n, ch, h, k.first(to, dst_w - to)] = both
                        else:
                            with k.when(col_out > 1):
                                for p in k.vectors(dst_w):
                                    y[n, ch, h, p] = finish(k.zeros(), ch)
                            for p in k.vectors(row_len):
                                y[n, ch, h, p * col_out] = finish(sums[o, p + at], ch)
                        for a in k.range(1, k.min(row_out, dst_h - h)):
                            for p in k.vectors(dst_w):
                                y[n, ch, h + a, p] = finish(k.zeros(), ch)

    def cell(xs: View, sums: View, q: Lanes, panel: View, c0: Int, c1: Int, at: tuple[Int, ...]) -> None:
        """A tile of MR outputs by the pixels q over a block of channels."""
        n0, r0, row, channel, keep = at
        acc, whole = k.tile(MR, q), k.vector(q.base, len(q.masks))
        here, lanes = View(k, xs.addr(q.base // B, 0, q.base % B), (1, B), (B, 1)), k.vector(0, len(q.masks))
        with k.unless(k.compare("==", c0, 0)):
            for i, s in enumerate(acc):
                s.set(sums[row + i, whole])
        product(k, acc, (0, c1 - c0), lambda i, c: panel[c, i], lambda c: here[c, lanes], unroll=2)
        for done in k.either(direct & (c1 >= C)):
            if not done:
                for i, s in enumerate(acc):
                    sums[row + i, whole] = s
                continue
            for there in k.either(row + MR <= keep):
                for i, s in enumerate(acc):
                    if there:
                        y[n0, channel + i, r0, q] = finish(s, channel + i)
                    else:
                        with k.when(row + i < keep):
                            y[n0, channel + i, r0, q] = finish(s, channel + i)

    KU = size("k_unit", multiple=MR)  # outputs of a unit: several chunks where channels come in one block
    groups, bands, chunks = k.ceil_div(N, NI), size("bands"), k.ceil_div(K, KU)
    units = G * groups * bands * chunks
    n = k.max(k.min(parts, units), 1)
    per = k.ceil_div(units, n)
    for lo, hi in k.chunk(n):
        xs = k.scratch(k.ceil_div(pixels, B), CB, B)
        line = k.scratch(pixels + V)
        sums = k.scratch(size("sum_rows"), out_row)
        for p in k.vectors(pixels + V):
            line[p] = 0.0
        for u in k.range(lo * per, k.min(hi * per, units)):
            o0, rest = u % chunks * KU, u // chunks
            r0, rest = rest % bands * HB, rest // bands
            n0, g, past = rest % groups * NI, rest // groups, k.min(o0 + KU, K)
            length = k.choose(direct, k.min(row_len, points - r0 * row_len), pixels)
            for c0, c1 in k.blocks(C, CB):
                read(xs, line, n0, r0, g * C + c0, c1 - c0)
                for o1, o2 in k.blocks(past, KC, o0):
                    for kb in k.range(k.ceil_div(o2 - o1, MR)):
                        start = wp.addr(g * panels + o1 // MR + kb, c0, 0)
                        panel = View(k, start, (1, MR), (MR, 1))
                        at = (n0, r0, kb * MR, g * K + o1 + kb * MR, o2 - o1)
                        for q in k.vectors(length, by=NR):
                            cell(xs, sums, q, panel, c0, c1, at)
                    with k.when(~direct & (c1 >= C)):
                        write(sums, n0, r0, o1, g * K, o2 - o1)


class ConvPointwise(Engine):
    """1×1 convolution without padding, fprop (with bias and ReLU) and dgrad, on planes of dense rows."""

    name = "cpu.conv_pointwise"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        g = no_kernels(device) or parse(graph)
        if isinstance(g, str):
            return g
        if g.w.dim[2:] != (1, 1):
            return f"the kernel is {g.w.dim[2]}×{g.w.dim[3]}, not 1×1"
        c = Conv.of(g)
        if 0 in g.w.dim[:2]:
            return "there are no channels to sum over"
        for axis, pad in zip((c.rows, c.cols), g.op.pre_padding):
            if pad or axis.count > -(-axis.source // axis.in_step):
                return "the image is padded"
        for t in (g.src, g.dst):
            if t.dim[3] > 1 and t.stride[3] != 1:
                return f"the columns of {t.name} are not next to each other in memory"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.75

    def knobs(self, graph: Graph, device: CpuDevice) -> dict[str, tuple[int, ...]]:
        """c_block: channels packed at once; pixels, images: those of a unit; k_chunk: output channels."""
        g = parse(graph)
        if isinstance(g, str):
            return {}
        d = choose(Conv.of(g), device)
        return {name: (d[name], *(v for v in more if v != d[name])) for name, more in (
            ("c_block", (64, 128, 256, 512)), ("pixels", (192, 480, 960)), ("images", (1, 2, 4)),
            ("k_chunk", (128, 256, 512)),
        )}  # fmt: skip

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> NativeProgram:
        g = parse(graph)
        if isinstance(g, str):
            raise ValueError(f"{self.name}: {g}")
        c, isa = Conv.of(g), isas.ALL[device.isa]
        MR, B = isa.tile_rows(NR), NR * isa.lanes
        knobs = dict(config.knobs)
        images = max(1, min(knobs["images"], c.N))
        points = c.rows.count * c.cols.count
        if is_flat(c):
            row_len = min(points, round_up(max(1, knobs["pixels"]), B)) if images == 1 else points
            band, row_src, row_dst = 1, row_len, row_len
        else:
            row_len = c.cols.count
            band = max(1, min(knobs["pixels"] // max(1, row_len * images), c.rows.count))
            row_src, row_dst = c.rows.in_step * c.src[2], c.dst[2]
        pixels = round_up(images * band * row_len, isa.lanes)
        chunk = round_up(max(1, min(knobs["k_chunk"], c.K)), MR)
        block = max(1, min(knobs["c_block"], c.C))
        row_count = -(-points // max(1, row_len))
        bands = -(-row_count // band)
        pieces = max(1, c.G * -(-c.N // images) * bands)
        shares = -(-device.cores // pieces) if block >= c.C else -(-c.K // chunk)
        direct = images * band == c.rows.out_step == c.cols.out_step == 1
        kernel = compiled(
            conv_points, isa, dtype=c.dtype, rows=MR, bias=g.bias is not None, relu=g.relu,
            in_step=step_class(c.cols.in_step, c.src[3]), out_step=1 if is_flat(c) else spread_class(c))
        c = replace(c, rows=only_tap(c.rows), cols=only_tap(c.cols))
        planes = Planes.of(c, 1, 1, 0)
        return program(kernel, g, c, planes, False, {
            "c_block": block, "k_chunk": chunk, "pixels": pixels, "images": images, "band": band,
            "row_len": row_len, "row_count": row_count, "points": points, "row_src": row_src,
            "row_dst": row_dst, "col_src": c.cols.in_step * c.src[3], "bands": bands,
            "k_unit": max(MR, round_up(-(-c.K // max(1, shares)), MR)) if block >= c.C else chunk,
            "direct": int(direct), "sum_rows": 1 if direct and block >= c.C else chunk,
            "out_row": pixels + (16 if pixels % 64 == 0 else 0),
            "parts": 1 if c.flops < 200_000 else 1 << 30,
        })  # fmt: skip


def only_tap(axis: Axis) -> Axis:
    """Of the output phases the one that the only tap reaches."""
    return replace(axis, phases=axis.phases[:1])


def is_flat(c: Conv) -> bool:
    """Whether rows follow each other in source and destination alike: an image is one row."""
    return (
        c.rows.in_step == c.cols.in_step == c.rows.out_step == c.cols.out_step == 1
        and c.src[3] == c.dst[3] == 1
        and c.src[2] == c.dst[2] == c.cols.size == c.cols.source
    )


def spread_class(c: Conv) -> int:
    """out_step of the kernel: a single column needs no neighbour, so any step of 2 is woven."""
    return c.cols.out_step if c.dst[3] == 1 and c.cols.out_step <= 2 else 0


def choose(c: Conv, device: CpuDevice) -> dict[str, int]:
    """Block sizes: packed pixels in a quarter of L2, a panel of weights in L1."""
    points, images = max(1, c.rows.count * c.cols.count), 1
    c_block = min(max(1, c.C), 512)
    room = device.l2 // 4 // (4 * c_block)
    if points < 240:
        while images < c.N and 2 * images * points <= max(room, 200) and c.N // (2 * images) >= 2:
            images *= 2
    pixels = points if images > 1 else divide(points, max(48, room // 48 * 48))
    chunk = max(64, device.l2 // 4 // (4 * max(1, images * pixels)) // 8 * 8)
    sizes = {"c_block": c_block, "pixels": pixels * images, "images": images, "k_chunk": min(c.K, chunk)}

    def units(d: dict[str, int]) -> int:
        blocks = -(-points // d["pixels"]) if d["images"] == 1 else 1
        return c.G * -(-c.N // d["images"]) * blocks * -(-c.K // d["k_chunk"])

    return share_out(sizes, {"k_chunk": 64}, units, device.cores) if c_block < c.C else sizes
