"""Packing for products over pixels: channels become the lanes of panels [block][pixel][lane]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vlug.codegen.ir import Int, Kernel, Lanes, Val, View, shuffle, transpose

__all__ = ["Band", "Channels", "pack", "pack_windows", "packing"]


def packing(stride_c: int, stride_w: int, itemsize: int, lanes: int, step: int = 1) -> str:
    """How `pack` reads a tensor: "w" vectors along w, "c" vectors along c, "e" element by element.

    AVX2 has no masked loads of 16-bit elements, so those are read one by one there.
    """
    if itemsize == 2 and lanes < 16:
        return "e"
    if stride_w == 1 and step <= 2:
        return "w"
    return "c" if stride_c == 1 else "e"


@dataclass(frozen=True)
class Band:
    """Which pixels a panel holds: ni images from n0, `rows` rows from h0 (h0 + row · hstep), columns.

    Column j of phase f is w = j · step + f - pad. A row of the panel holds `phases` runs of `columns` pixels,
    an image `image` pixels. Pixels outside the H × W plane are zeros. Rows are written in order and in whole
    vectors of pixels, what runs over is overwritten: a panel needs V pixels of slack at its end.

    place: of an image, where it begins in the tensor (in elements) and whether it is there or all zeros;
    None: image n lies n strides from the start.
    """

    n0: Int
    ni: Int
    h0: Int
    rows: Int
    hstep: Int
    step: Int
    pad: Int
    phases: Int
    columns: Int
    image: Int
    H: Int
    W: Int
    place: Callable[[Int], tuple[Int, Val]] | None = None

    def row(self, k: Kernel, src: View, i: Int, c: Int, h: Int) -> tuple[Any, Val | None]:
        """Address of the first column of row h of channel c, and the condition of being there, if any."""
        if self.place is None:
            return src.addr(self.n0 + i, c, h, 0), None
        start, there = self.place(self.n0 + i)
        return k.gep(src.addr(0, c, h, 0), start, src.elem.storage), there


@dataclass(frozen=True)
class Channels:
    """Which channels: `blocks` blocks of `vectors` vectors from c0 on; those from `end` on are not read.

    width: channels of a block, at most its lanes. Where less, pixels lie `width` lanes apart in dst, each
    overwrites what the one before it wrote too much, and a block needs a vector of slack.
    """

    c0: Int
    end: Int
    blocks: Int
    vectors: int
    width: int = 0

    def step(self, V: int) -> int:
        return self.width or self.vectors * V


def pack(k: Kernel, how: str, src: View, dst: View, band: Band, channels: Channels) -> None:
    """dst[block, pixel, lane] = src[n, c0 + block · width + lane, h, w].

    src: dims N C H W. With how="w" band.step is a constant, 1 or 2, and lanes past the end repeat the last
    channel; otherwise they are zeros.
    """
    if how == "w":
        step = channels.step(k.V)
        for v in k.range(channels.blocks * channels.vectors):
            b, lane = v // channels.vectors, v % channels.vectors * k.V
            _turn(k, src, dst.at(b), band, (channels.c0 + b * step + lane, channels.end), lane)
        return
    whole_row = k.vector(0, channels.vectors)
    for i in k.range(band.ni):
        for row in k.range(band.rows):
            h = band.h0 + row * band.hstep
            inside = k.condition(h >= 0) & k.condition(h < band.H)
            start, there = band.row(k, src, i, channels.c0, h)
            inside = inside if there is None else inside & there
            for f in k.range(band.phases):
                at = i * band.image + (row * band.phases + f) * band.columns
                first = band.pad - f  # column j is inside where 0 <= j · step - first < W
                lo = k.min(k.ceil_div(k.max(first, 0), band.step), band.columns)
                hi = k.min(k.ceil_div(k.max(first + band.W, 0), band.step), band.columns)
                lo = k.choose(inside, lo, band.columns)
                hi = k.max(lo, k.choose(inside, hi, band.columns))
                for begin, end in ((0, lo), (hi, band.columns)):
                    for j in k.range(begin, end):
                        for b in k.range(channels.blocks):
                            dst[b, at + j, whole_row] = k.zeros(channels.vectors, dst.elem.name)
                line = View(k, start, (1, 1),
                            (src.strides[3], src.strides[1]), src.elem.name)
                for j in k.range(lo, hi):
                    w = j * band.step - first
                    if how == "c":
                        _copy_vectors(k, line, dst, (w, at + j), channels)
                    else:
                        _copy_elements(k, line, dst, (w, at + j), channels)


def _copy_vectors(k: Kernel, line: View, dst: View, pixel: tuple[Int, Int], channels: Channels) -> None:
    """All channels of a pixel, in the order in which they lie in memory."""
    (w, at), width = pixel, channels.step(k.V)
    count = channels.end - channels.c0
    whole = k.min(k.max(count - channels.vectors * k.V + width, 0) // width, channels.blocks)
    line = View(k, line.ptr, (1, 1), (line.strides[0], 1), line.elem.name)
    for b in k.range(whole):
        lanes = k.vector(b * width, channels.vectors)
        dst[b, at, k.vector(0, channels.vectors)] = line[w, lanes]
    for b in k.range(whole, channels.blocks):
        left = count - b * width
        lanes = Lanes(k, b * width, [k.mask(left - j * k.V) for j in range(channels.vectors)])
        dst[b, at, k.vector(0, channels.vectors)] = line[w, lanes]


def _copy_elements(k: Kernel, line: View, dst: View, pixel: tuple[Int, Int], channels: Channels) -> None:
    (w, at), width = pixel, channels.step(k.V)
    for b in k.range(channels.blocks):
        count = k.min(channels.end - channels.c0 - b * width, width)
        for c in k.range(count):
            dst[b, at, c] = line[w, b * width + c]
        for c in k.range(count, width):
            dst[b, at, c] = 0.0


def _turn(k: Kernel, src: View, dst: View, band: Band, channel: tuple[Int, Int], lane: Int) -> None:
    """One vector of channels: V rows of V pixels are loaded, transposed and stored by pixel."""
    (c0, end), V, step = channel, k.V, band.step
    if not isinstance(step, int):
        raise ValueError("packing by transposes needs a constant step")
    offsets = [k.min(c0 + i, end - 1) * src.strides[1] for i in range(V)]
    for i in k.range(band.ni):
        for row in k.range(band.rows):
            h = band.h0 + row * band.hstep
            inside = k.condition(h >= 0) & k.condition(h < band.H)
            start, there = band.row(k, src, i, 0, h)
            inside = inside if there is None else inside & there
            line = View(k, start, (1,), (1,), src.elem.name)
            for f in k.range(band.phases):
                at = i * band.image + (row * band.phases + f) * band.columns
                for j in k.range(0, band.columns, step=V):
                    w = Lanes(k, j * step + f - band.pad, [None] * step)
                    pos = k.positions(w, "i32")
                    w = w.where((pos >= 0) & (pos < k.to_int(band.W, "i32")) & inside)
                    rows: list[Val] = []
                    for c in offsets:
                        v = line[w + c]
                        rows.append(v if step == 1 else shuffle(v.part(0), v.part(1), range(0, 2 * V, 2)))
                    for m, column in enumerate(transpose(rows)):
                        dst[at + j + m, k.vector(lane)] = column


def pack_windows(k: Kernel, how: str, src: View, dst: View, band: Band, c0: Int,
                 window: tuple[Int, Int, Int]) -> None:
    """dst[line · columns + j, r · C + c] = src[n0 + i, c0 + c, h0 + row · hstep + r · dil, j - pad].

    line = i · rows + row.

    window: R, dil, C. Columns j lie R · C elements apart, so that the window of S columns which one output
    element sees is contiguous: one operand for few channels. dst (dims column, element) needs V columns and V
    elements of slack. how="c" takes at most V channels.
    """
    R, dil, C = window
    for i in k.range(band.ni):
        for row in k.range(band.rows):
            at = (i * band.rows + row) * band.columns
            h0 = band.h0 + row * band.hstep
            place = View(k, dst.addr(at, 0), (1, 1), dst.strides, dst.elem.name)
            start, there = band.row(k, src, i, c0, 0)
            if how == "w":
                plane = View(k, start, (1, 1), (1, 1), src.elem.name)
                _turn_windows(k, plane, src.strides, place, band, h0, window, there)
                continue
            for r in k.range(R):
                h = h0 + r * dil
                inside = k.condition(h >= 0) & k.condition(h < band.H)
                inside = inside if there is None else inside & there
                line = View(k, band.row(k, src, i, c0, h)[0], (1, 1), (src.strides[3], src.strides[1]),
                            src.elem.name)
                lo = k.choose(inside, k.min(k.max(band.pad, 0), band.columns), band.columns)
                hi = k.max(lo, k.choose(inside, k.min(band.pad + band.W, band.columns), band.columns))
                for begin, end in ((0, lo), (hi, band.columns)):
                    for j in k.range(begin, end):
                        for c in k.range(C):
                            place[j, r * C + c] = 0.0
                for j in k.range(lo, hi):
                    if how == "c":
                        lanes = k.first(0, C)
                        place[j, lanes + r * C] = View(k, line.ptr, (1, 1), (line.strides[0], 1),
                                                       src.elem.name)[j - band.pad, lanes]
                    else:
                        for c in k.range(C):
                            place[j, r * C + c] = line[j - band.pad, c]


def _turn_windows(k: Kernel, src: View, strides: Sequence[Int], dst: View, band: Band, h0: Int,
                  window: tuple[Int, Int, Int], there: Val | None) -> None:
    """One row of windows by transposes: V pairs (r, c) at a time are the rows that are loaded."""
    (R, dil, C), V = window, k.V
    for first in k.range(0, R * C, step=V):
        rows = []
        for m in range(V):
            pair = k.min(first + m, R * C - 1)
            h = h0 + pair // C * dil
            inside = k.condition(h >= 0) & k.condition(h < band.H)
            inside = inside if there is None else inside & there
            rows.append((pair % C * strides[1] + h * strides[2], inside))
        for j in k.range(0, band.columns, step=V):
            w = k.vector(j - band.pad)
            pos = k.positions(w, "i32")
            w = w.where((pos >= 0) & (pos < k.to_int(band.W, "i32")))
            columns = transpose([src[0, w.where(inside) + offset] for offset, inside in rows])
            for m, column in enumerate(columns):
                dst[j + m, k.first(first, R * C - first)] = column
