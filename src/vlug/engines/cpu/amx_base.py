"""What the bf16 engines on AMX and AVX512-BF16 share: a problem's form, its blocks, and its program."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vlug.engines.base import NativeProgram
from vlug.engines.cpu.conv_base import Axis, Conv, ConvGraph, Planes, divide, program, round_up, share_out

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["CELL", "Problem", "choose", "compiled_program", "no_products", "share"]

#: Pixels and outputs of a cell of the result; channels of a step.
CELL = 32
LEADING = 3
#: Bytes of the sums of a cell.
_SUMS = 4 * CELL * CELL


@dataclass(frozen=True)
class Problem:
    """A convolution or product as the kernel takes it.

    rows, flat: as in `amx_kernels.Shape`; in a flat problem the pixels are the rows of `c`.
    lead: (size, stride of source, weights, result) of dimensions before the images.
    bias: "" or the dimension it lies along: "o" outputs, "p" pixels.
    """

    graph: ConvGraph
    c: Conv
    rows: bool
    flat: bool
    lead: tuple[tuple[int, int, int, int], ...] = ()
    bias: str = ""

    @classmethod
    def of_conv(cls, g: ConvGraph) -> Problem | str:
        """A convolution's problem, or why it is none of ours."""
        c = Conv.of(g)
        if c.G != 1:
            return f"groups={c.G}: only 1"
        flat = _flat(c)
        if flat is not None:
            c = flat
        pixel_in, pixel_out = (c.src[2], c.dst[2]) if flat else (c.src[3], c.dst[3])
        width = c.rows.size if flat else c.cols.size
        can_rows, can_cols = c.dst[1] == 1 or c.K <= 1, pixel_out == 1 or width <= 1
        if not (can_rows or can_cols):
            return f"neither channels nor pixels of {g.dst.name} are next to each other in memory"
        rows = can_rows and (not can_cols or c.src[1] == 1 or pixel_in != 1)
        return cls(g, c, rows, flat is not None, (), "" if g.bias is None else "o")

    @property
    def direct(self) -> bool:
        """Whether the source's own memory serves as rows of tiles."""
        return self.flat and self.rows and self.c.src[1] == 1 and self.c.C % CELL == 0 and self.c.taps > 0

    @property
    def x_by(self) -> str:
        c = self.c
        if self.rows:
            return "v" if c.src[1] == 1 or c.C == 1 else "e"
        if self.flat:
            return "v" if c.src[2] == 1 or c.rows.source == 1 else "e"
        if c.src[3] == 1 and c.cols.in_step <= 2:
            return "v" if c.cols.in_step == 1 else "2"
        return "v" if c.cols.source == 1 and c.cols.in_step == 1 else "e"

    @property
    def w_by(self) -> str:
        c = self.c
        if c.w[1] == 1 or c.C == 1:
            return "c"
        if c.w[0] == 1 or c.K == 1:
            return "o"
        phases = [[w for _, w in phase] for phase in self.planes(1, 1).taps(c)]
        if all(b - a == 1 for phase in phases for a, b in itertools.pairwise(phase)) and c.taps > 1:
            return "t"
        return "e"

    @property
    def leads(self) -> int:
        return math.prod(d for d, *_ in self.lead)

    @property
    def shared_weights(self) -> bool:
        return all(w == 0 for _, _, w, _ in self.lead)

    def planes(self, band: int, images: int) -> Planes:
        return Planes.of(self.c, band, images, CELL)


def _flat(c: Conv) -> Conv | None:
    """A convolution that takes each pixel alone, its pixels as one run of rows (NHWC: of all images)."""
    for axis in (c.rows, c.cols):
        if axis.phases != (((0, 0),),) or axis.in_step != 1 or axis.out_step != 1 or axis.source != axis.size:
            return None
    H, W = c.rows.size, c.cols.size
    steps = []
    for _, _, y, x in (c.src, c.dst):
        if W > 1 and H > 1 and y != W * x:
            return None
        steps.append(x if W > 1 or H <= 1 else y)
    N, P = c.N, H * W
    images = [(c.src[0], steps[0]), (c.dst[0], steps[1])]
    if N > 1 and all(n == P * x for n, x in images):
        N, P = 1, N * P
    one = Axis.of("fprop", 1, 1, 1, 0, 1, 1)
    return replace(c, N=N, rows=Axis.of("fprop", P, P, 1, 0, 1, 1), cols=one,
                   src=(c.src[0], c.src[1], steps[0], 0), dst=(c.dst[0], c.dst[1], steps[1], 0))


def no_products(device: CpuDevice) -> str | None:
    """Why the device has no products of bf16, if so."""
    if device.isa == "avx512" and device.products:
        return None
    return f"{device.name} has no bf16 products beyond {device.isa}"


def share(p: Problem, device: CpuDevice) -> float:
    """Of the fp32 roofline: how much of the tiles is used, less what packing takes."""
    c = p.c
    if c.empty:
        return 0.5
    rows, columns = c.rows.count, c.cols.count
    pixels = rows * columns if p.flat else min(c.N, 4) * rows * columns
    used = 1.0
    for n in (c.C, c.K, pixels):
        used *= n / round_up(max(n, 1), CELL)
    many = c.N * rows * columns
    return (4.0 if device.products == "amx" else 1.5) * used / (1 + 8 / many + 8 / c.K)


def choose(p: Problem, device: CpuDevice) -> dict[str, int]:
    """Block sizes: channels so that a cell's weights stay in L1, the band and its sums in shares of L2."""
    c = p.c
    taps = max(1, max(len(a) for a in c.rows.phases) * max(len(a) for a in c.cols.phases))
    c_block = min(round_up(max(c.C, 1), CELL), round_up(512 // taps, CELL))
    blocked = c_block < c.C
    phases = len(c.rows.phases) * len(c.cols.phases)
    planes = len(c.rows.planes) * len(c.cols.planes)
    images = 1
    if p.flat:
        row = 1
    else:
        while images < c.N and images * c.cols.count * c.rows.count < 196 and c.N // (2 * images) >= 2:
            images *= 2
        row = max(1, images * (c.cols.count + max(c.cols.high - c.cols.low, 0)))
    chunk = min(round_up(max(c.K, 1), CELL), 512 if p.flat else 256)
    if blocked:
        chunk = min(chunk, 256)
    band = max(1, device.l2 // 8 // (2 * c_block * row * planes))
    if blocked:
        most = device.l2 // 4 // (_SUMS * (chunk // CELL) * phases)  # cells
        band = max(1, min(band, most * CELL // row))
    if p.flat:
        band = max(CELL, band // CELL * CELL)
        band = min(band, round_up(max(c.rows.count, 1), CELL))
        band = round_up(divide(c.rows.count, band), CELL) or CELL
    else:
        band = divide(c.rows.count, band)
    sizes = {"c_block": c_block, "band": band, "images": images, "k_chunk": chunk, "pixels_first": 0}
    if c.flops * max(p.leads, 1) < 2_000_000:
        return sizes
    least = {"images": 1, "band": CELL if p.flat else 4, "k_chunk": 64}
    return share_out(sizes, least, lambda d: max(p.leads, 1) * _units(c, d), device.cores)


def _units(c: Conv, d: dict[str, int]) -> int:
    return -(-c.N // d["images"]) * -(-c.rows.count // d["band"]) * -(-c.K // d["k_chunk"])


def compiled_program(p: Problem, knobs: dict[str, int], device: CpuDevice) -> NativeProgram:
    """The kernel bound to a problem."""
    from vlug.codegen.isa import ALL
    from vlug.codegen.jit import compiled
    from vlug.engines.cpu.amx_kernels import pair_product

    c = p.c
    images = 1 if p.flat else max(1, min(knobs["images"], c.N))
    band = max(1, min(knobs["band"], round_up(max(c.rows.count, 1), CELL if p.flat else 1)))
    if p.flat:
        band = round_up(band, CELL)
    chunk = round_up(max(1, min(knobs["k_chunk"], c.K)), CELL)
    block = round_up(max(1, min(knobs["c_block"], c.C)), CELL)
    planes = p.planes(band, images)
    positions = planes.plane * len(c.rows.planes) * len(c.cols.planes)
    cells = -(-band * planes.pitch // CELL)
    if p.rows:
        step = block // 2 + 16  # words of a pixel; a power of two would fall into the same cache sets
        source = (CELL if p.direct else positions) * step
    else:
        step = round_up(positions, 16)
        step += 16 * (1 - step // 16 % 2)  # an odd number of cache lines
        source = block // 2 * step
    fold = round_up(cells * CELL, 32) + 32
    phases = len(c.rows.phases) * len(c.cols.phases)
    kernel = compiled(
        pair_product, ALL[device.products], rows=p.rows, flat=p.flat, direct=p.direct, x_by=p.x_by,
        w_by=p.w_by, out_step=c.cols.out_step > 1, bias=p.bias, relu=p.graph.relu,
    )
    more: dict[str, Any] = {
        "k_chunk": chunk, "c_block": block, "pixels_first": knobs["pixels_first"], "cells": cells,
        "step": step, "source": source, "fold": fold, "w_leads": 1 if p.shared_weights else p.leads,
        "sums": 1 if block >= c.C else phases * (chunk // CELL) * cells,
        "bands": -(-c.rows.count // band),
    }
    lead = [(1, 0, 0, 0)] * (LEADING - len(p.lead)) + list(p.lead)
    for i, (size, *strides) in enumerate(lead):
        more[f"l{i}"] = size
        more |= {f"{t}{i}": s for t, s in zip("xwy", strides)}
    return program(kernel, p.graph, c, planes, True, more)
