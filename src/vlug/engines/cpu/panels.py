"""Packing for products over pixels: channels of a tensor become the lanes of [pixel][channel block] panels."""

from __future__ import annotations

from dataclasses import dataclass

from vlug.codegen.ir import Int, Kernel, Lanes, Val, View, shuffle, transpose

__all__ = ["Band", "pack", "packing"]


def packing(stride_c: int, stride_w: int, itemsize: int, lanes: int, step: int = 1) -> str:
    """How `pack` reads a tensor: "w" vectors along w turned by register transposes, "c" vectors along c, "e" elements.

    AVX2 has no masked loads of 16-bit elements, so those are read one by one there.
    """
    if itemsize == 2 and lanes < 16:
        return "e"
    if stride_w == 1 and step <= 2:
        return "w"
    return "c" if stride_c == 1 else "e"


@dataclass(frozen=True)
class Band:
    """Which pixels a panel holds: ni images from n0, `rows` rows from h0 (h0 + row · hstep), columns by phase.

    Column j of phase f is w = j · step + f - pad. A row of the panel holds `phases` runs of `columns` pixels, an
    image `image` pixels. Pixels outside the H × W plane are zeros. Writing may run one vector of pixels past a row
    (rows come in order, so the next one mends it): a panel needs V pixels of slack at its end.
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


def pack(k: Kernel, how: str, src: View, dst: View, band: Band, c0: Int, c_end: Int, vectors: int) -> None:
    """dst[pixel, lane] = src[n, c0 + lane, h, w] for a block of `vectors` vectors of channels, those from c_end on not read.

    src: a view of dims N C H W. dst: a view of dims pixel, lane. With how="w", band.step is a constant, 1 or 2, and
    lanes past c_end repeat the last channel; otherwise they are zeros.
    """
    if how == "w":
        for j in range(vectors):
            _turn(k, src, dst, band, c0 + j * k.V, c_end, j * k.V)
        return
    for i in k.range(band.ni):
        for row in k.range(band.rows):
            h = band.h0 + row * band.hstep
            inside = k.condition(h >= 0) & k.condition(h < band.H)
            for f in k.range(band.phases):
                at = i * band.image + (row * band.phases + f) * band.columns
                first = band.pad - f  # columns from first / step on lie inside, up to (W + first) / step
                lo = k.min(k.max(k.ceil_div(k.max(first, 0), band.step), 0), band.columns)
                hi = k.min(k.ceil_div(k.max(first + band.W, 0), band.step), band.columns)
                lo = k.choose(inside, lo, band.columns)
                hi = k.max(lo, k.choose(inside, hi, band.columns))
                for begin, end in ((0, lo), (hi, band.columns)):
                    for j in k.range(begin, end):
                        dst[at + j, k.vector(0, vectors)] = k.zeros(vectors)
                copy = _copy_vectors if how == "c" else _copy_elements
                copy(k, src, dst, (band.n0 + i, h, first), (at, lo, hi, band.step), (c0, c_end), vectors)


def _copy_vectors(k: Kernel, src: View, dst: View, where: tuple[Int, Int, Int], cols: tuple[Int, Int, Int, Int],
                  channels: tuple[Int, Int], vectors: int) -> None:
    (n, h, first), (at, lo, hi, step), (c0, c_end) = where, cols, channels
    sn, _, sh, sw = src.strides
    lanes = Lanes(k, 0, [k.mask(c_end - c0 - j * k.V) for j in range(vectors)])
    line = View(k, src.addr(n, c0, h, 0), (1, 1), (sw, 1), src.elem.name)
    for j in k.range(lo, hi):
        dst[at + j, k.vector(0, vectors)] = line[j * step - first, lanes]


def _copy_elements(k: Kernel, src: View, dst: View, where: tuple[Int, Int, Int], cols: tuple[Int, Int, Int, Int],
                   channels: tuple[Int, Int], vectors: int) -> None:
    (n, h, first), (at, lo, hi, step), (c0, c_end) = where, cols, channels
    width = vectors * k.V
    count = k.min(c_end - c0, width)
    for j in k.range(lo, hi):
        for c in k.range(count):
            dst[at + j, c] = src[n, c0 + c, h, j * step - first]
        for c in k.range(count, width):
            dst[at + j, c] = 0.0


def _turn(k: Kernel, src: View, dst: View, band: Band, c0: Int, c_end: Int, lane: int) -> None:
    """One vector of channels: V rows of V pixels each are loaded, transposed in registers and stored by pixel."""
    V, step = k.V, band.step
    if not isinstance(step, int):
        raise ValueError("packing by transposes needs a constant step")
    channel = [k.min(c0 + i, c_end - 1) * src.strides[1] for i in range(V)]
    for i in k.range(band.ni):
        for row in k.range(band.rows):
            h = band.h0 + row * band.hstep
            inside = k.condition(h >= 0) & k.condition(h < band.H)
            line = View(k, src.addr(band.n0 + i, 0, h, 0), (1,), (1,), src.elem.name)
            for f in k.range(band.phases):
                at = i * band.image + (row * band.phases + f) * band.columns
                for j in k.range(0, band.columns, step=V):
                    w = Lanes(k, j * step + f - band.pad, [None] * step)
                    pos = k.positions(w, "i32")
                    w = w.where((pos >= 0) & (pos < k.to_int(band.W, "i32")) & inside)
                    rows: list[Val] = []
                    for c in channel:
                        v = line[w + c]
                        rows.append(v if step == 1 else shuffle(v.part(0), v.part(1), range(0, 2 * V, 2)))
                    for m, column in enumerate(transpose(rows)):
                        dst[at + j + m, k.vector(lane)] = column
