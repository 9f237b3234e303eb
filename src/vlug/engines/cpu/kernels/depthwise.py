"""Depthwise convolution: output channel k reads input channel k // m alone. Planes (NCHW): vectors along W.
Rows (NHWC, m = 1): vectors along channels, weights packed to [R·S][C] in the workspace.
"""

from __future__ import annotations

from typing import Any

from vlug.codegen.ir import Int, Kernel, View, select
from vlug.engines.cpu.kernels.common import channel_blocks, unflatten, units
from vlug.engines.cpu.kernels.window import Line, Reach, covering, gather_rows, inside, loader, span

__all__ = [
    "dgrad_planes",
    "dgrad_rows",
    "fprop_planes",
    "fprop_rows",
    "wgrad_planes",
    "wgrad_rows",
]


def _lines(k: Kernel, S: int, sw: int, dilation: int) -> tuple[Line, Line]:
    return Line.of(k, "H R sh ph dh P", 0, 0, dilation), Line.of(k, "W S sw pw dw Q", S, sw, dilation)


def _image(k: Kernel, name: str, at: int, h: Int, w: Int, kind: str, unit: bool) -> View:
    """N C H W, dense along W."""
    strides = [k.size(f"{name}_{a}") for a in ("n", "c", "h")]
    return k.view(
        k.size("N"),
        k.size("C"),
        h,
        w,
        strides=[*strides, 1 if unit else k.size(f"{name}_w")],
        dtype=kind,
        at=at,
    )


def _image_rows(k: Kernel, name: str, at: int, h: Int, w: Int, kind: str) -> View:
    """N H W C, dense along C."""
    strides = [k.size(f"{name}_{a}") for a in ("n", "h", "w")]
    return k.view(k.size("N"), h, w, k.size("C"), strides=[*strides, 1], dtype=kind, at=at)


def _weights(k: Kernel, at: int, h: Line, w: Line, kind: str) -> View:
    """K R S in any layout."""
    strides = [k.size(f"w_{a}") for a in ("k", "r", "s")]
    return k.view(k.size("K"), h.taps, w.taps, strides=strides, dtype=kind, at=at)


def _dtype(kind: str) -> str:
    return "f64" if kind == "f64" else "f32"


def _filter(k: Kernel, weights: View, channel: Int, h: Line, w: Line, dtype: str, flip: bool) -> View:
    """One channel's taps (turned by 180° if flip) in this part's scratch, dense and widened."""
    taps = k.scratch(k.size("R"), k.size("S"), dtype=dtype)
    for r in k.range(h.taps):
        for s in k.range(w.taps):
            from_ = (h.taps - 1 - r, w.taps - 1 - s) if flip else (r, s)
            taps[r, s] = weights[(channel, *from_)]
    return taps


def fprop_planes(
    k: Kernel, kinds: tuple[str, ...], S: int, sw: int, dilation: int, unit: bool, flip: bool
) -> None:
    """y[n, k, p, q] = Σ w[k, r, s] x[n, k/m, p·sh - ph + r·dh, q·sw - pw + s·dw]. Tensors: x w y.

    flip: with the filter turned, which makes it dgrad of stride 1 (dy as x, dx as y).
    """
    h, w = _lines(k, S, sw, dilation)
    x = _image(k, "x", 0, h.size, w.size, kinds[0], unit)
    weights = _weights(k, 1, h, w, kinds[1])
    y = _image(k, "y", 2, h.out, w.out, kinds[2], unit)
    K, m, RB, dtype = k.size("K"), k.size("m"), k.size("RB"), _dtype(kinds[0])
    blocks = k.ceil_div(h.out, RB)
    for u in units(k, k.size("N") * K * blocks):
        n, channel, b = unflatten(u, [k.size("N"), K, blocks])
        taps = _filter(k, weights, channel, h, w, dtype, flip)
        plane, out = x.at(n, channel // m), y.at(n, channel)
        for q in k.vectors(w.out, by=2 if S else 1):
            loads = [loader(k, q.part(j), w, unit)[2] for j in range(len(q.masks))] if S else []
            for p in k.range(b * RB, k.min((b + 1) * RB, h.out)):
                row0, r0, r1 = span(k, h, p)
                total = k.var(k.zeros(len(q.masks), dtype))
                for r in k.range(r0, r1):
                    line = plane.at(row0 + r * h.dilation)
                    if S:
                        for number, v in enumerate(zip(*(load(line, 0.0) for load in loads))):
                            total += k.pack(v) * taps[r, number]
                    else:
                        for s in k.range(w.taps):
                            at = inside(k, q * w.stride + (s * w.dilation - w.pad), w.size)[0]
                            total += line[at] * taps[r, s]
                out[p, q] = total


def _tap(k: Kernel, line: Line, distance: Int) -> tuple[Int, Any]:
    """The tap at a distance from its window's first, and whether there is one (True if known)."""
    if isinstance(line.dilation, int) and line.dilation == 1:
        return distance, True
    tap = k.floor_div(distance, line.dilation)
    return tap, k.compare("==", tap * line.dilation, distance)


def dgrad_planes(
    k: Kernel, kinds: tuple[str, ...], S: int, sw: int, dilation: int, unit: bool, one: bool
) -> None:
    """dx[n, c] = Σ over the output channels k of c and the windows that read an element. Tensors: dy w dx."""
    h, w = _lines(k, S, sw, dilation)
    dy = _image(k, "y", 0, h.out, w.out, kinds[0], unit)
    weights = _weights(k, 1, h, w, kinds[1])
    dx = _image(k, "x", 2, h.size, w.size, kinds[2], unit)
    N, C, RB, dtype = k.size("N"), k.size("C"), k.size("RB"), _dtype(kinds[0])
    m = 1 if one else k.size("m")
    blocks = k.ceil_div(h.size, RB)
    for u in units(k, N * C * blocks):
        n, c, b = unflatten(u, [N, C, blocks])
        taps = k.scratch(m, k.size("R"), k.size("S"), dtype=dtype)
        for j in k.range(m):
            for r in k.range(h.taps):
                for s in k.range(w.taps):
                    taps[j, r, s] = weights[c * m + j, r, s]

        def share(row: Int, p: Int, reach: Reach) -> list[Any]:
            r, hit = _tap(k, h, row + h.pad - p * h.stride)
            sums = [k.var(k.zeros(1, dtype)) for _ in reach.phases]
            with k.when(hit):
                for j in k.range(m):
                    g = dy[n, c * m + j, p, reach.q]  # noqa: B023
                    for total, phase in zip(sums, reach.phases):
                        s, there = _tap(k, w, phase + w.stride * reach.back)
                        v = g * taps[j, r, s]  # noqa: B023
                        total += v if there is True else select(there, v, 0.0)
            return list(sums)

        block = (b * RB, k.min((b + 1) * RB, h.size))
        gather_rows(k, w, block, dx.at(n, c), dtype, lambda row: covering(k, h, row), share)


def _rows_of_tap(k: Kernel, line: Line, tap: Int) -> tuple[Int, Int]:
    """[first, last) windows whose tap lies inside."""
    shift = tap * line.dilation - line.pad
    first = k.max(k.floor_div((line.stride - 1) - shift, line.stride), 0)
    return first, k.min(k.floor_div((line.size - 1) - shift, line.stride) + 1, line.out)


def wgrad_planes(k: Kernel, kinds: tuple[str, ...], S: int, sw: int, dilation: int, unit: bool) -> None:
    """dw[k, r, s] = Σ dy[n, k, p, q] x[n, k/m, …]; a channel's row of taps at a time. Tensors: dy x dw."""
    h, w = _lines(k, S, sw, dilation)
    dy = _image(k, "y", 0, h.out, w.out, kinds[0], unit)
    x = _image(k, "x", 1, h.size, w.size, kinds[1], unit)
    dw = _weights(k, 2, h, w, kinds[2])
    K, m, dtype = k.size("K"), k.size("m"), _dtype(kinds[0])
    for u in units(k, K * h.taps):
        channel, r = unflatten(u, [K, h.taps])
        p0, p1 = _rows_of_tap(k, h, r)
        shift = r * h.dilation - h.pad
        if S:
            sums = [k.var(k.zeros(1, "f64")) for _ in range(S)]
            for n in k.range(k.size("N")):
                accs = [k.var(k.zeros(1, dtype)) for _ in range(S)]  # an image in f32, images in f64
                plane, grads = x.at(n, channel // m), dy.at(n, channel)
                for q in k.vectors(w.out):
                    load = loader(k, q, w, unit)[2]
                    for p in k.range(p0, p1):
                        g = grads[p, q]
                        for acc, v in zip(accs, load(plane.at(p * h.stride + shift), 0.0)):
                            acc += g * v
                for total, acc in zip(sums, accs):
                    total += acc.to("f64")
            for number, total in enumerate(sums):
                dw[channel, r, number] = total.sum()
        else:
            for s in k.range(w.taps):
                acc = k.var(k.zeros(1, "f64"))
                for n in k.range(k.size("N")):
                    for p in k.range(p0, p1):
                        line, grads = x.at(n, channel // m, p * h.stride + shift), dy.at(n, channel, p)
                        for q in k.vectors(w.out):
                            at = inside(k, q * w.stride + (s * w.dilation - w.pad), w.size)[0]
                            acc += (grads[q] * line[at]).to("f64")
                dw[channel, r, s] = acc.sum()


# --- rows ----------------------------------------------------------------------------------------
def _packed(k: Kernel, weights: View, h: Line, w: Line, dtype: str, flip: bool = False) -> View:
    """Weights as [R][S][C], turned by 180° if flip."""
    C = k.size("C")
    packed = k.shared(k.size("R"), k.size("S"), C, dtype=dtype)
    for c0, c1 in channel_blocks(k, C):
        for c in k.range(c0, c1):
            for r in k.range(h.taps):
                for s in k.range(w.taps):
                    from_ = (h.taps - 1 - r, w.taps - 1 - s) if flip else (r, s)
                    packed[r, s, c] = weights[(c, *from_)]
    return packed


def fprop_rows(k: Kernel, kinds: tuple[str, ...], dilation: int, by: int, flip: bool) -> None:
    """The same with channels dense and m = 1. Tensors: x w y."""
    h, w = _lines(k, 0, 0, dilation)
    x = _image_rows(k, "x", 0, h.size, w.size, kinds[0])
    y = _image_rows(k, "y", 2, h.out, w.out, kinds[2])
    dtype = _dtype(kinds[0])
    packed = _packed(k, _weights(k, 1, h, w, kinds[1]), h, w, dtype, flip)
    for u in units(k, k.size("N") * h.out):
        n, p = unflatten(u, [k.size("N"), h.out])
        row0, r0, r1 = span(k, h, p)
        plane = x.at(n)
        for q in k.range(w.out):
            column0, s0, s1 = span(k, w, q)
            out = y.at(n, p, q)
            for c in k.vectors(k.size("C"), by=by):
                total = k.var(k.zeros(len(c.masks), dtype))
                for r in k.range(r0, r1):
                    line, taps = plane.at(row0 + r * h.dilation), packed.at(r)
                    for s in k.range(s0, s1):
                        total += line[column0 + s * w.dilation, c] * taps[s, c]
                out[c] = total


def dgrad_rows(k: Kernel, kinds: tuple[str, ...], sh: int, sw: int, dilation: int, by: int) -> None:
    """Tensors: dy w dx, channels dense and m = 1."""
    h = Line.of(k, "H R sh ph dh P", 0, sh, dilation)
    w = Line.of(k, "W S sw pw dw Q", 0, sw, dilation)
    dy = _image_rows(k, "y", 0, h.out, w.out, kinds[0])
    dx = _image_rows(k, "x", 2, h.size, w.size, kinds[2])
    dtype = _dtype(kinds[0])
    packed = _packed(k, _weights(k, 1, h, w, kinds[1]), h, w, dtype)
    for u in units(k, k.size("N") * h.size):
        n, row = unflatten(u, [k.size("N"), h.size])
        p0, p1 = covering(k, h, row)
        grads = dy.at(n)
        for column in k.range(w.size):
            q0, q1 = covering(k, w, column)
            out = dx.at(n, row, column)
            for c in k.vectors(k.size("C"), by=by):
                total = k.var(k.zeros(len(c.masks), dtype))
                for p in k.range(p0, p1):
                    r, row_hit = _tap(k, h, row + h.pad - p * h.stride)
                    with k.when(row_hit):
                        for q in k.range(q0, q1):
                            s, hit = _tap(k, w, column + w.pad - q * w.stride)
                            with k.when(hit):
                                total += grads[p, q, c] * packed[r, s, c]
                out[c] = total


def wgrad_rows(k: Kernel, kinds: tuple[str, ...], dilation: int, by: int) -> None:
    """Tensors: dy x dw, channels dense and m = 1; blocks of RB rows of y, their sums in the workspace."""
    h, w = _lines(k, 0, 0, dilation)
    dy = _image_rows(k, "y", 0, h.out, w.out, kinds[0])
    x = _image_rows(k, "x", 1, h.size, w.size, kinds[1])
    dw = _weights(k, 2, h, w, kinds[2])
    N, C, RB, dtype = k.size("N"), k.size("C"), k.size("RB"), _dtype(kinds[0])
    rows, blocks = N * h.out, k.size("blocks")
    partial = k.shared(blocks, k.size("R"), k.size("S"), C, dtype=dtype)
    for u in units(k, blocks):
        sums = partial.at(u)
        for r in k.range(h.taps):
            for s in k.range(w.taps):
                for c in k.vectors(C, by=by):
                    sums[r, s, c] = k.zeros(1, dtype)
        for line in k.range(u * RB, k.min((u + 1) * RB, rows)):
            n, p = unflatten(line, [N, h.out])
            row0, r0, r1 = span(k, h, p)
            grads = dy.at(n, p)
            for r in k.range(r0, r1):
                seen = x.at(n, row0 + r * h.dilation)
                for s in k.range(w.taps):
                    q0, q1 = _rows_of_tap(k, w, s)
                    shift = s * w.dilation - w.pad
                    for c in k.vectors(C, by=by):
                        acc = k.var(sums[r, s, c])
                        for q in k.range(q0, q1):
                            acc += grads[q, c] * seen[q * w.stride + shift, c]
                        sums[r, s, c] = acc
    for c0, c1 in channel_blocks(k, C):
        for r in k.range(h.taps):
            for s in k.range(w.taps):
                for one in k.range(c0, c1):
                    total = k.var(k.val(0.0, dtype="f64"))
                    for b in k.range(blocks):
                        total += partial[b, r, s, one].to("f64")
                    dw[one, r, s] = total
