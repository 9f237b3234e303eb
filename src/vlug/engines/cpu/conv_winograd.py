"""3×3 convolution of unit stride by Winograd's F(2×2, 3×3): 16 products for 4 outputs instead of 36.

y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A with the points 0, 1, -1, ∞ (A. Lavin and S. Gray, "Fast Algorithms for
Convolutional Neural Networks", 2015). The transforms only add and halve, so integers stay exact and the
error is that of a plain sum; larger tiles save more but lose digits. Where the source or the weights hold
infinities, NaN or numbers near the largest, differences of them would spread: such a unit is summed directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vlug.codegen import isa as isas
from vlug.codegen.ir import Int, Kernel, Lanes, Val, Var, View, maximum, transpose
from vlug.codegen.jit import compiled
from vlug.engines.base import Engine, EngineConfig, NativeProgram
from vlug.engines.cpu.conv_base import Conv, Planes, parse, program, round_up
from vlug.engines.cpu.pack import Lists, pack_rows, tables
from vlug.graph import Graph

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["ConvWinograd", "conv_winograd"]

#: Vectors of output channels in a tile of the product.
NR = 2
#: Channels that lie next to each other in the transformed source.
CB = 64
#: Magnitudes (bits of an fp32) from which the transforms could overflow: 2^120, infinities, NaN.
LARGE = 247 << 23


def input_rows(d: Sequence[Val]) -> list[Val]:
    """Bᵀ d."""
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def weight_rows(g: Sequence[Val]) -> list[Val]:
    """G g."""
    outer, inner = (g[0] + g[2]) * 0.5, g[1] * 0.5
    return [g[0], outer + inner, outer - inner, g[2]]


def output_rows(m: Sequence[Val]) -> list[Val]:
    """Aᵀ m."""
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


def both_ways(rows: Callable[[Sequence[Val]], list[Val]], d: Sequence[Sequence[Val]]) -> list[list[Val]]:
    """rows applied along columns, then along rows."""
    columns = [rows(column) for column in zip(*d)]
    return [rows([column[i] for column in columns]) for i in range(len(columns[0]))]


def conv_winograd(k: Kernel, dtype: str, run: int, last: bool, bias: bool, relu: bool) -> None:
    """dst[n, o, i, j] = Σ_c Σ_{r, s < 3} src[n, c, i + r - pad, j + s - pad] · w[o, c, r, s].

    A unit is a band of tile rows of a few images, all channels: its source as pixels with channels innermost,
    4×4 tiles of it transformed to [16][channel block][tile][CB]; 16 products with the transformed weights
    give [16][panel][tile][32]; 2×2 outputs of each tile. last: channels last in memory, else both ends
    transpose.
    """
    V, B, size = k.V, NR * k.V, k.size
    N, C, K = (size(n) for n in "NCK")
    src_h, src_w, dst_h, dst_w = (size(n) for n in ("src_h", "src_w", "dst_h", "dst_w"))
    x_n, x_c, x_y, x_x = size("src_n"), size("src_c"), size("src_y"), size("src_x")
    y_n, y_c, y_h, y_w = size("dst_n"), size("dst_c"), size("dst_y"), size("dst_x")
    x = k.view(N, src_h, src_w, C, dtype=dtype, strides=[x_n, x_y, x_x, 1]) if last else k.view(
        N, C, src_h, src_w, dtype=dtype, strides=[x_n, x_c, x_y, 1])  # fmt: skip
    w = k.view(1, 1, dtype=dtype, strides=[size("w_o"), 1])
    y = k.view(N, dst_h, dst_w, K, dtype=dtype, strides=[y_n, y_h, y_w, 1]) if last else k.view(
        N, K, dst_h, dst_w, dtype=dtype, strides=[y_n, y_c, y_h, 1])  # fmt: skip
    b = k.view(K, dtype=dtype) if bias else None
    y_by_channel = k.view(N, dst_h, dst_w, K, dtype=dtype, strides=[y_n, y_h, y_w, 1 if last else y_c], at=2)
    w_by_output = k.view(1, K, dtype=dtype, strides=[1, size("w_o")], at=1)
    NI, TR, TW, pad_h, pad_w = (size(n) for n in ("images", "tile_rows", "tile_cols", "pad_h", "pad_w"))
    tiles, parts, w_c = size("tiles"), size("parts"), size("w_c")  # tiles: rounded up to whole blocks
    blocks, panels = k.ceil_div(C, CB), k.ceil_div(K, B)
    cols, height = TW * 2 + 2, TR * 2 + 2
    depth = k.ceil_div(C, V) * V

    # --- weights: [16][panel][c][32] ---
    lists = Lists(k, 1, 9, 1)
    _, w_table = tables(k, lists, 1, 9, CB, 1, 1, w_c)
    u_step = panels * depth * B + V
    u = k.shared(16, panels, depth, B, strides=[u_step, depth * B, B, 1], size=u_step * 16)
    w_run, w_first, w_next = size("w_run"), size("w_first"), size("w_next")
    large_weight = k.shared(1, dtype="i64")
    large_weight[0] = k.to_int(0)
    for panel in k.parallel(panels):
        square, raw = k.scratch(V, V), k.scratch(CB * 9, B)
        largest = k.var(k.zeros(1, "i32"))
        for c0, c1 in k.blocks(C, CB):
            length = (c1 - c0) * 9
            for j in k.range(0, B, V):
                source = View(k, w.addr(panel * B + j, c0 * w_c), (1,), dtype=dtype)
                to = View(k, raw.addr(0, 0), (1, 1, B), (B, B, 1))
                pack_rows(k, source, (to, j), B, K - panel * B - j, w.strides[0], length, w_table,
                          k.choose(k.compare("<", w_run, 0), length, w_run), square)  # fmt: skip
            for c in k.range(c1 - c0):
                for j in k.range(0, B, V):
                    lanes = k.vector(j)
                    taps = [raw[c * 9 + w_first + w_next * t, lanes] for t in range(9)]
                    for tap in taps:
                        largest.imax(magnitude(tap))
                    g = [taps[0:3], taps[3:6], taps[6:9]]
                    for i, row in enumerate(both_ways(weight_rows, g)):
                        for l, value in enumerate(row):
                            u[i * 4 + l, panel, c0 + c, lanes] = value
        with k.when(is_large(largest)):
            large_weight[0] = k.to_int(1)
        for c in k.range(depth - C):  # channels that fill a vector count for nothing
            for piece in k.range(16):
                u[piece, panel, C + c, k.vector(0, NR)] = k.zeros(NR)

    def read(xs: View, square: View, largest: Var, n0: Int, h0: Int) -> None:
        """The unit's source as [image][row][column][channel] with zeros around it."""
        first = k.max(pad_w, 0)
        past = k.max(k.min(src_w + pad_w, cols), first)
        for image in k.range(NI):
            for r in k.range(height):
                h, row = h0 + r - pad_h, image * height + r
                inside = (h >= 0) & (h < src_h) & (n0 + image < N)
                for reads in k.either(inside):
                    if not reads:
                        for p in k.vectors(cols * depth, by=4):
                            xs[row, 0, p] = 0.0
                    elif last:
                        for at in k.range(first, past):
                            for c in k.vectors(C, by=4):
                                v = x[n0 + image, h, at - pad_w, c]
                                for i in range(len(c.masks)):
                                    largest.imax(magnitude(v.part(i)))
                                xs[row, at, k.vector(c.base, len(c.masks))] = v
                    else:
                        for c0 in k.range(0, C, V):
                            for j in k.vectors(first, past):
                                there = [(j - pad_w).where(k.compare("<", c0 + i, C)) for i in range(V)]
                                lines = [x[n0 + image, c0 + i, h, p] for i, p in enumerate(there)]
                                for line in lines:
                                    largest.imax(magnitude(line))
                                for i, v in enumerate(transpose(lines)):
                                    square[i, k.vector()] = v
                                for q in k.range(k.min(past - j.base, V)):
                                    xs[row, j.base + q, k.vector(c0)] = square[q, k.vector()]

    def spectra(xs: View, v: View, image: Int) -> None:
        """The transformed 4×4 tiles of an image of the unit."""
        for ty in k.range(TR):
            for tx in k.range(TW):
                for c in k.range(0, depth, V):
                    row, tile = image * height + ty * 2, (image * TR + ty) * TW + tx
                    d = [[xs[row + i, tx * 2 + l, k.vector(c)] for l in range(4)] for i in range(4)]
                    for i, line in enumerate(both_ways(input_rows, d)):
                        for l, value in enumerate(line):
                            v[i * 4 + l, c // CB, tile, k.vector(c % CB)] = value

    def finish(v: Val, o: Int | Lanes) -> Val:
        v = v if b is None else v + b[o]
        return maximum(v, 0.0) if relu else v

    def outputs(m: View, ys: View, panel: Int, j: Int, n0: Int, image: Int, h0: Int) -> None:
        """2×2 outputs of each tile of an image, V channels: to the tensor if they are last, else to ys."""
        o = panel * B + j
        some = k.first(o, K - o)
        for ty in k.range(TR):
            for tx in k.range(TW):
                tile = (image * TR + ty) * TW + tx
                parts = [[m[i * 4 + l, panel, tile, k.vector(j)] for l in range(4)] for i in range(4)]
                for i, row in enumerate(both_ways(output_rows, parts)):
                    for l, value in enumerate(row):
                        h, at = h0 + ty * 2 + i, tx * 2 + l
                        if last:
                            with k.when((h < dst_h) & (at < dst_w)):
                                y[n0 + image, h, at, some] = finish(value, some)
                        else:
                            ys[ty * 2 + i, at, k.vector(j)] = value

    def write(m: View, ys: View, square: View, n0: Int, h0: Int) -> None:
        for panel in k.range(panels):
            for image in k.range(NI):
                for j in k.range(0, B, V):
                    with k.when((n0 + image < N) & (panel * B + j < K)):
                        outputs(m, ys, panel, j, n0, image, h0)
                        if not last:
                            spread(ys, square, n0 + image, h0, panel * B + j, j)

    def spread(ys: View, square: View, n: Int, h0: Int, o: Int, j: Int) -> None:
        """Pixels of V output channels back to planes."""
        for r in k.range(k.min(TR * 2, dst_h - h0)):
            for p in k.vectors(dst_w):
                for i, v in enumerate(transpose([ys[r, p.base + i, k.vector(j)] for i in range(V)])):
                    square[i, k.vector()] = v
                for q in k.range(k.min(K - o, V)):
                    y[n, o + q, h0 + r, p] = finish(square[q, k.vector()], o + q)

    def directly(xs: View, n0: Int, h0: Int) -> None:
        """The unit's outputs by their definition, V channels of a pixel at a time."""
        for image in k.range(k.min(NI, N - n0)):
            for r in k.range(k.min(TR * 2, dst_h - h0)):
                for at in k.range(dst_w):
                    for o in k.vectors(K):
                        total = k.var(k.zeros())
                        for c in k.range(C):
                            for t in k.range(9):
                                offset = c * w_c + lists.weight(w_first + w_next * t)
                                pixel = xs[image * height + r + t // 3, at + t % 3, c]
                                total += pixel * w_by_output[offset, o]
                        y_by_channel[n0 + image, h0 + r, at, o] = finish(total, o)

    groups, bands = k.ceil_div(N, NI), size("bands")
    units = groups * bands
    n = k.max(k.min(parts, units), 1)
    per = k.ceil_div(units, n)
    for lo, hi in k.chunk(n):
        xs = k.scratch(NI * height, cols, depth)
        # A vector more between the 16 pieces, which else would fall into the same cache sets.
        v_step, m_step = blocks * tiles * CB + V, panels * tiles * B + V
        v = k.scratch(16, blocks, tiles, CB, strides=[v_step, tiles * CB, CB, 1], size=v_step * 16)
        m = k.scratch(16, panels, tiles, B, strides=[m_step, tiles * B, B, 1], size=m_step * 16)
        ys = k.scratch(TR * 2, TW * 2 + V, B)
        square, zeros = k.scratch(V, V), k.scratch(B)
        zeros[k.vector(0, NR)] = k.zeros(NR)
        for lanes in k.vectors(NI * height * cols * depth, by=4):
            xs[0, 0, lanes] = 0.0
        for lanes in k.vectors(v_step * 16, by=4):
            v[0, 0, 0, lanes] = 0.0
        for lanes in k.vectors(TR * 2 * (TW * 2 + V) * B, by=4):
            ys[0, 0, lanes] = 0.0
        for unit in k.range(lo * per, k.min(hi * per, units)):
            n0, h0 = unit // bands * NI, unit % bands * (TR * 2)
            largest = k.var(k.zeros(1, "i32"))
            read(xs, square, largest, n0, h0)
            for image in k.range(NI):
                spectra(xs, v, image)
            for p in k.range(16):
                for panel in k.range(panels):
                    for t in k.range(0, tiles, run):
                        products(k, v, u, m, zeros, p, panel, t, blocks, depth, run)
            write(m, ys, square, n0, h0)
            with k.when(is_large(largest) | large_weight[0].idx().ne(0)):
                directly(xs, n0, h0)


def products(k: Kernel, v: View, u: View, m: View, zeros: View, p: Int, panel: Int, tile: Int, blocks: Int,
             depth: Int, run: int) -> None:  # fmt: skip
    """m[p, panel, tile + i] = Σ_c v[p, c, tile + i] · u[p, panel, c] for i < run."""
    every = k.vector(0, NR)
    acc = [k.var(zeros[every]) for _ in range(run)]
    for block in k.range(blocks):
        rows = View(k, v.addr(p, block, tile, 0), (1,))
        here = View(k, u.addr(p, panel, block * CB, 0), (1, NR * k.V), (NR * k.V, 1))
        for c in k.range(k.min(depth - block * CB, CB)):
            weights = here[c, every]
            for i, s in enumerate(acc):
                s += rows[c + i * CB] * weights
    for i, s in enumerate(acc):
        m[p, panel, tile + i, every] = s


def magnitude(v: Val) -> Val:
    """Bits of |v|, which order as the numbers do; infinity and NaN are above all."""
    return v.bits("i32") & 0x7FFFFFFF


def is_large(largest: Val) -> Val:
    """Whether any magnitude is such that the transforms could overflow."""
    return largest.max() > LARGE - 1


class ConvWinograd(Engine):
    """3×3 convolution of unit stride, fprop (with bias and ReLU) and dgrad, with many channels."""

    name = "cpu.conv_winograd"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if device.isa not in isas.ALL:
            return f"no kernels for the instruction set {device.isa}"
        g = parse(graph)
        if isinstance(g, str):
            return g
        if g.w.dim[2:] != (3, 3):
            return f"the kernel is {g.w.dim[2]}×{g.w.dim[3]}, not 3×3"
        if max(*g.op.stride, *g.op.dilation) > 1:
            return "stride or dilation is more than 1"
        if g.op.groups > 1:
            return f"there are {g.op.groups} groups"
        c = Conv.of(g)
        if c.empty or 0 in g.w.dim or 0 in g.src.dim:
            return "a dimension is 0"
        if min(c.C, c.K) < 16 or c.rows.count * c.cols.count * c.N < 64:
            return "too few channels or pixels for the transforms to pay"
        if layout_of(c) is None:
            return "neither columns nor channels of source and result are next to each other in memory"
        if g.bias is not None and g.bias.normalised.stride[0] != 1:
            return "the bias is not contiguous"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        g = parse(graph)
        if isinstance(g, str):
            return 0.0
        c = Conv.of(g)  # products in 16/36 of the time, and transforms that each channel pays for
        return 0.9 / (0.625 + 6.5 * (1 / max(c.C, 1) + 1 / max(c.K, 1)))

    def knobs(self, graph: Graph, device: CpuDevice) -> dict[str, tuple[int, ...]]:
        """tile_rows, images: rows of 2×2 tiles and images of a unit."""
        g = parse(graph)
        if isinstance(g, str):
            return {}
        d = choose(Conv.of(g), device)
        return {name: (d[name], *(v for v in more if v != d[name])) for name, more in (
            ("tile_rows", (2, 4, 7)), ("images", (1, 2, 4)),
        )}  # fmt: skip

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> NativeProgram:
        g = parse(graph)
        if isinstance(g, str):
            raise ValueError(f"{self.name}: {g}")
        c, isa = Conv.of(g), isas.ALL[device.isa]
        run, knobs = isa.tile_rows(NR), dict(config.knobs)
        rows = -(-c.rows.count // 2)
        tile_rows = max(1, min(knobs["tile_rows"], rows))
        images, tile_cols = max(1, min(knobs["images"], c.N)), -(-c.cols.count // 2)
        kernel = compiled(
            conv_winograd, isa, dtype=c.dtype, run=run, last=layout_of(c) == "nhwc",
            bias=g.bias is not None, relu=g.relu)  # fmt: skip
        backward = g.direction == "dgrad"
        return program(kernel, g, c, Planes.of(c, 1, 1, 0), False, {
            "images": images, "tile_rows": tile_rows, "tile_cols": tile_cols,
            "tiles": round_up(images * tile_rows * tile_cols, run), "bands": -(-rows // tile_rows),
            "pad_h": -c.rows.low, "pad_w": -c.cols.low,
            "w_first": 8 if backward else 0, "w_next": -1 if backward else 1,
            "parts": 1 if c.flops < 200_000 else 1 << 30,
        })  # fmt: skip


def layout_of(c: Conv) -> str | None:
    """Which dimension both tensors have innermost."""
    def dense(axis: int, dims: tuple[int, int]) -> bool:
        return all(s[axis] == 1 or d == 1 for s, d in zip((c.src, c.dst), dims))

    if dense(3, (c.cols.source, c.cols.size)):
        return "nchw"
    return "nhwc" if dense(1, (c.C, c.K)) else None


def choose(c: Conv, device: CpuDevice) -> dict[str, int]:
    """Tiles of a unit: the transformed source and result in a quarter of L2, but enough of them to be worth
    reading the transformed weights, which come from further away where they do not fit L2 (measured)."""
    rows, cols, images = -(-c.rows.count // 2), -(-c.cols.count // 2), 1
    enough = 28 if device.l2 // 2 >= 64 * c.C * c.K else 56
    tiles = max(enough, min(112, device.l2 // 4 // (64 * (c.C + c.K))))
    while images < c.N and images * rows * cols < tiles and c.N // (2 * images) >= 2:
        images *= 2
    return {"tile_rows": max(1, min(rows, tiles // (cols * images))), "images": images}
