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
from vlug.codegen.ir import Idx, Int, Kernel, Lanes, Val, Var, View, maximum, transpose
from vlug.codegen.jit import compiled
from vlug.engines.base import Engine, EngineConfig, NativeProgram
from vlug.engines.cpu.conv_base import Conv, Planes, parse, program, round_up, share_out
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


def conv_winograd(k: Kernel, dtype: str, run: int, last: bool, few: bool, bias: bool,
                  relu: bool) -> None:  # fmt: skip
    """dst[n, o, i, j] = Σ_c Σ_{r, s < 3} src[n, c, i + r - pad, j + s - pad] · w[o, c, r, s].

    A unit is a band of tile rows of a few images, all channels: its source as pixels with channels innermost,
    4×4 tiles of it transformed to [16][channel block][tile][CB]; 16 products with the transformed weights
    give [16][panel][tile][32]; 2×2 outputs of each tile. last: channels last in memory, else both ends
    transpose.

    few: there are few tiles and many weights (a 7×7 image of 512 channels). The transformed weights would
    then go through memory for little; instead all tiles are transformed first, and a unit is a pair of
    panels, whose weights are transformed, used for all tiles and forgotten.
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
    NI, TR, TW, pad_h, pad_w = (size(n) for n in ("images", "tile_rows", "tile_cols", "pad_h", "pad_w"))
    tiles, parts, w_c = size("tiles"), size("parts"), size("w_c")  # tiles: rounded up to whole blocks
    blocks, panels = k.ceil_div(C, CB), k.ceil_div(K, B)
    cols, height = TW * 2 + 2, TR * 2 + 2
    depth = k.ceil_div(C, V) * V

    lists = Lists(k, 1, 9, 1)
    _, w_table = tables(k, lists, 1, 9, CB, 1, 1, w_c)
    w_run, w_first, w_next = size("w_run"), size("w_first"), size("w_next")
    is_direct = k.shared(1, dtype="i64")  # set where numbers are too large for the transforms
    is_direct[0] = k.to_int(0)

    def hidden(n: Int) -> Idx:
        """n by way of memory: what a gather makes of it would else be kept in a register the tile needs."""
        stash = k.scratch(1, dtype="i64")
        stash[0] = k.to_int(n)
        return stash[0].idx()

    def weights(raw: View, square: View, bad: View, panel: Int, c0: Int, c1: Int, u: View) -> None:
        """u[16][c][32] of a panel and a block of channels; bad[0] becomes 1 if a weight is too large."""
        length, largest = (c1 - c0) * 9, k.var(k.zeros(1, "i32"))
        for j in k.range(0, B, V):
            source = View(k, w.addr(panel * B + j, c0 * w_c), (1,), dtype=dtype)
            to = View(k, raw.addr(0, 0), (1, 1, B), (B, B, 1))
            pack_rows(k, source, (to, j), B, K - panel * B - j, hidden(w.strides[0]), length, w_table,
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
                        u[i * 4 + l, c, lanes] = value
        with k.when(is_large(largest)):
            bad[0] = k.to_int(1)

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

    def spectra(xs: View, v: View, image: Int, at: Int) -> None:
        """The transformed 4×4 tiles of an image of the unit, which is image `at` of v."""
        for ty in k.range(TR):
            for tx in k.range(TW):
                for c in k.range(0, depth, V):
                    row, tile = image * height + ty * 2, (at * TR + ty) * TW + tx
                    d = [[xs[row + i, tx * 2 + l, k.vector(c)] for l in range(4)] for i in range(4)]
                    for i, line in enumerate(both_ways(input_rows, d)):
                        for l, value in enumerate(line):
                            v[i * 4 + l, c // CB, tile, k.vector(c % CB)] = value

    def finish(v: Val, o: Int | Lanes) -> Val:
        v = v if b is None else v + b[o]
        return maximum(v, 0.0) if relu else v

    def outputs(m: View, ys: View, j: Int, o: Int, n: Int, at: Int, h0: Int) -> None:
        """2×2 outputs of image `at` of m, V channels: to y if they are last there, else to ys."""
        some = k.first(o, K - o)
        for ty in k.range(TR):
            for tx in k.range(TW):
                tile = (at * TR + ty) * TW + tx
                parts = [[m[i * 4 + l, tile, k.vector(j)] for l in range(4)] for i in range(4)]
                for i, row in enumerate(both_ways(output_rows, parts)):
                    for l, value in enumerate(row):
                        h, column = h0 + ty * 2 + i, tx * 2 + l
                        if last:
                            with k.when((h < dst_h) & (column < dst_w)):
                                y[n, h, column, some] = finish(value, some)
                        else:
                            ys[ty * 2 + i, column, k.vector(j)] = value

    def write(m: View, ys: View, square: View, panel: Int, n: Int, at: Int, h0: Int) -> None:
        """A panel's outputs for image n, which is image `at` of m[16][tile][32]."""
        for j in k.range(0, B, V):
            o = panel * B + j
            with k.when((n < N) & (o < K)):
                outputs(m, ys, j, o, n, at, h0)
                if not last:
                    spread(ys, square, n, h0, o, j)

    def spread(ys: View, square: View, n: Int, h0: Int, o: Int, j: Int) -> None:
        """Pixels of V output channels back to planes."""
        for r in k.range(k.min(TR * 2, dst_h - h0)):
            for p in k.vectors(dst_w):
                for i, v in enumerate(transpose([ys[r, p.base + i, k.vector(j)] for i in range(V)])):
                    square[i, k.vector()] = v
                for q in k.range(k.min(K - o, V)):
                    y[n, o + q, h0 + r, p] = finish(square[q, k.vector()], o + q)

    def directly(n0: Int, images: Int, h0: Int, o0: Int, past: Int) -> None:
        """Outputs of a unit by their definition, V channels of a pixel at a time."""
        strides = [y_n, y_h, y_w, 1 if last else hidden(y_c)]
        y_by_channel = View(k, y.ptr, (N, dst_h, dst_w, K), strides, dtype)
        w_by_output = View(k, w.ptr, (1, K), [1, hidden(w.strides[0])], dtype)
        for n in k.range(n0, k.min(n0 + images, N)):
            for h in k.range(h0, k.min(h0 + TR * 2, dst_h)):
                for at in k.range(dst_w):
                    for o in k.vectors(o0, k.max(k.min(past, K), o0)):
                        total = k.var(k.zeros())
                        for c in k.range(C):
                            for t in k.range(9):
                                i, j = h + t // 3 - pad_h, at + t % 3 - pad_w
                                with k.when((i >= 0) & (i < src_h) & (j >= 0) & (j < src_w)):
                                    offset = c * w_c + lists.weight(w_first + w_next * t)
                                    pixel = x[n, i, j, c] if last else x[n, c, i, j]
                                    total += pixel * w_by_output[offset, o]
                        y_by_channel[n, h, at, o] = finish(total, o)

    def clear(space: View, count: Int) -> None:
        for p in k.vectors(count, by=4):
            space[p] = 0.0

    def flat_of(view: View) -> View:
        return View(k, view.ptr, (1,))

    every = k.vector(0, NR)
    groups, bands = k.ceil_div(N, NI), size("bands")
    units = groups * bands
    n_parts = k.max(k.min(parts, units), 1)
    per = k.ceil_div(units, n_parts)
    # A vector more between the 16 pieces, which else would fall into the same cache sets.
    v_step, m_step = blocks * tiles * CB + V, tiles * B + V

    def tile_sums(v: View, p: Int, t: Int, c0: Int, c1: Int, u: View, acc: list[Var]) -> None:
        """acc[i] += Σ_c v[p, c, t + i] · u[c] over a block of channels."""
        rows = View(k, v.addr(p, c0 // CB, t, 0), (1,))
        for c in k.range(c1 - c0):
            row = u[c, every]
            for i, s in enumerate(acc):
                s += rows[c + i * CB] * row

    if not few:
        u_step = depth * B + V
        u = k.shared(panels, 16, depth, B, strides=[u_step * 16, u_step, B, 1], size=panels * 16 * u_step)
        for panel in k.parallel(panels):
            square, raw = k.scratch(V, V), k.scratch(CB * 9, B)
            for c0, c1 in k.blocks(C, CB):
                to = View(k, u.addr(panel, 0, c0, 0), (16, 1, B), (u_step, B, 1))
                weights(raw, square, is_direct, panel, c0, c1, to)
        for lo, hi in k.chunk(n_parts):
            xs, ys = k.scratch(NI * height, cols, depth), k.scratch(TR * 2, TW * 2 + V, B)
            v = k.scratch(16, blocks, tiles, CB, strides=[v_step, tiles * CB, CB, 1], size=v_step * 16)
            m = k.scratch(panels, 16, tiles, B, strides=[m_step * 16, m_step, B, 1],
                          size=panels * 16 * m_step)  # fmt: skip
            square, zeros = k.scratch(V, V), k.scratch(B)
            zeros[every] = k.zeros(NR)
            clear(flat_of(xs), NI * height * cols * depth)
            clear(flat_of(v), v_step * 16)
            clear(flat_of(ys), TR * 2 * (TW * 2 + V) * B)
            for unit in k.range(lo * per, k.min(hi * per, units)):
                n0, h0 = unit // bands * NI, unit % bands * (TR * 2)
                largest = k.var(k.zeros(1, "i32"))
                read(xs, square, largest, n0, h0)
                for image in k.range(NI):
                    spectra(xs, v, image, image)
                for p in k.range(16):
                    for panel in k.range(panels):
                        for t in k.range(0, tiles, run):
                            acc = [k.var(zeros[every]) for _ in range(run)]
                            for c0, c1 in k.blocks(C, CB):
                                here = View(k, u.addr(panel, p, c0, 0), (1, B), (B, 1))
                                tile_sums(v, p, t, c0, c1, here, acc)
                            for i, s in enumerate(acc):
                                m[panel, p, t + i, every] = s
                for panel in k.range(panels):
                    for image in k.range(NI):
                        mine = View(k, m.addr(panel, 0, 0, 0), (16, 1, B), (m_step, B, 1))
                        write(mine, ys, square, panel, n0 + image, image, h0)
                with k.when(is_large(largest) | is_direct[0].idx().ne(0)):
                    directly(n0, NI, h0, 0, K)
        return
    v = k.shared(16, blocks, tiles, CB, strides=[v_step, tiles * CB, CB, 1], size=v_step * 16)
    for lo, hi in k.chunk(n_parts):
        xs, square = k.scratch(NI * height, cols, depth), k.scratch(V, V)
        clear(flat_of(xs), NI * height * cols * depth)
        largest = k.var(k.zeros(1, "i32"))
        for unit in k.range(lo * per, k.min(hi * per, units)):
            read(xs, square, largest, unit * NI, 0)
            for image in k.range(k.min(NI, N - unit * NI)):
                spectra(xs, v, image, unit * NI + image)
            with k.when(k.compare("==", unit, 0)):  # tiles that fill the last block
                for p in k.range(16):
                    for block in k.range(blocks):
                        for t in k.range(N * TR * TW, tiles):
                            for c in k.range(0, CB, V):
                                v[p, block, t, k.vector(c)] = 0.0
        with k.when(is_large(largest)):
            is_direct[0] = k.to_int(1)
    pair = size("pair")
    for first in k.parallel(k.ceil_div(panels, pair)):
        square, raw, zeros = k.scratch(V, V), k.scratch(CB * 9, B), k.scratch(B)
        u_step = CB * B + V
        u = k.scratch(pair, 16, CB, B, strides=[u_step * 16, u_step, B, 1], size=pair * (16 * u_step))
        m = k.scratch(pair, 16, tiles, B, strides=[m_step * 16, m_step, B, 1], size=pair * (16 * m_step))
        ys = k.scratch(TR * 2, TW * 2 + V, B)
        zeros[every] = k.zeros(NR)
        clear(flat_of(ys), TR * 2 * (TW * 2 + V) * B)
        count, bad = k.min(panels - first * pair, pair), k.scratch(1, dtype="i64")
        bad[0] = k.to_int(0)
        for c0, c1 in k.blocks(C, CB):
            for q in k.range(count):
                to = View(k, u.addr(q, 0, 0, 0), (16, 1, B), (u_step, B, 1))
                weights(raw, square, bad, first * pair + q, c0, c1, to)
            for p in k.range(16):
                for q in k.range(count):
                    for t in k.range(0, tiles, run):
                        acc = [k.var(zeros[every]) for _ in range(run)]
                        with k.unless(k.compare("==", c0, 0)):
                            for i, s in enumerate(acc):
                                s.set(m[q, p, t + i, every])
                        tile_sums(v, p, t, c0, c1, View(k, u.addr(q, p, 0, 0), (1, B), (B, 1)), acc)
                        for i, s in enumerate(acc):
                            m[q, p, t + i, every] = s
        for q in k.range(count):
            for n in k.range(N):
                mine = View(k, m.addr(q, 0, 0, 0), (16, 1, B), (m_step, B, 1))
                write(mine, ys, square, first * pair + q, n, n, 0)
        with k.when(bad[0].idx().ne(0) | is_direct[0].idx().ne(0)):
            for n in k.range(N):
                directly(n, 1, 0, first * pair * B, (first * pair + count) * B)


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
        """tile_rows, images: rows of 2×2 tiles and images of a unit; few: see the kernel."""
        g = parse(graph)
        if isinstance(g, str):
            return {}
        d = choose(Conv.of(g), device)
        return {name: (d[name], *(v for v in more if v != d[name])) for name, more in (
            ("tile_rows", (2, 4, 7)), ("images", (1, 2, 4)), ("few", (0, 1)),
        )}  # fmt: skip

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> NativeProgram:
        g = parse(graph)
        if isinstance(g, str):
            raise ValueError(f"{self.name}: {g}")
        c, isa = Conv.of(g), isas.ALL[device.isa]
        run, knobs = isa.tile_rows(NR), dict(config.knobs)
        rows = -(-c.rows.count // 2)
        few = bool(knobs["few"])
        tile_rows = rows if few else max(1, min(knobs["tile_rows"], rows))
        images, tile_cols = max(1, min(knobs["images"], c.N)), -(-c.cols.count // 2)
        kernel = compiled(
            conv_winograd, isa, dtype=c.dtype, run=run, last=layout_of(c) == "nhwc", few=few,
            bias=g.bias is not None, relu=g.relu)  # fmt: skip
        backward = g.direction == "dgrad"
        return program(kernel, g, c, Planes.of(c, 1, 1, 0), False, {
            "images": images, "tile_rows": tile_rows, "tile_cols": tile_cols,
            "tiles": round_up((c.N if few else images) * tile_rows * tile_cols, run),
            "pair": 2, "bands": -(-rows // tile_rows),
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
    all_tiles = c.N * rows * cols
    few = all_tiles <= 256 and 2 * device.l2 < 64 * c.C * c.K
    sizes = {"tile_rows": max(1, min(rows, tiles // (cols * images))), "images": images, "few": int(few)}

    def units(d: dict[str, int]) -> int:
        return -(-c.N // d["images"]) * -(-rows // d["tile_rows"])

    return share_out(sizes, {"images": 1} if few else {"images": 1, "tile_rows": 1}, units, device.cores)
