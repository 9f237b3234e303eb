"""Kernel of the weight gradient: a product over pixels, x in vectors of channels, dy broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.codegen.ir import Int, Kernel, Val, View, transpose
from vlug.engines.cpu.panels import Band, Channels, pack, pack_windows

__all__ = ["wgrad"]


def wgrad(k: Kernel, x_by: str, dy_by: str, dw_by: str, step: int, rows: int, vectors: int, taps: int,
          unroll: int, window: bool, dtype: str, deep: bool = False, tiled: bool = False) -> None:
    """dw[k, c, r, s] = Σ over n p q of dy[n, k, p, q] · x[n, c, p·sh + r·dh - ph, q·sw + s·dw - pw].

    x_by, dy_by: how they are packed (`panels.packing`); dy_by="q" reads dy in place, unit stride along q.
    dw_by:   how the sums are put into dw: "c" vectors along c, "t" along the taps, "e" one by one.
    step:    sw where x_by="w", else 0: read from args.
    window:  the lanes run over the elements (s, r, c) of a filter instead of channels, one product for all
             taps; for few channels (`panels.pack_windows`). dw_by is then not read.
    deep:    three spatial dimensions: images are (n, depth of dy), groups (tap along the depth, group).
    tiled:   rows of dy are cut in tiles of columns, a band each.
    rows × vectors × taps: the register tile, output channels × vectors of input channels × taps along w: 1,
             or S, where stride and dilation along w are 1 (each vector of x then serves S taps).

    A unit is (group, chunk of bands, block of c); a part takes a run of them and packs x once for each band.
    A chunk is a run of bands (`ni` images × `hb` rows of dy) summed in order into D[group, chunk][k, r, s, c]
    or, where `direct`, into dw itself; chunks are summed in order at the end. So the bits do not depend on
    the number of threads.
    """
    k.quick = taps > 1  # the largest to compile
    _Wgrad(k, x_by, dy_by, dw_by, step, rows, vectors, taps, unroll, window, dtype, deep, tiled).build()


class _Wgrad:
    def __init__(self, k: Kernel, x_by: str, dy_by: str, dw_by: str, step: int, rows: int, vectors: int,
                 taps: int, unroll: int, window: bool, dtype: str, deep: bool, tiled: bool):
        z = k.size
        self.wide, self.deep, self.tiled = "f64" if dtype == "f64" else "f32", deep, tiled
        self.k, self.x_by, self.dy_by, self.dw_by = k, x_by, dy_by, dw_by
        self.rows, self.vectors, self.taps, self.unroll = rows, vectors, taps, unroll
        self.window, self.width = window, k.V * vectors
        self.G, self.N, self.C, self.K, self.H, self.W, self.P, self.Q, self.R, self.S = map(z, "GNCKHWPQRS")
        xs = (z("xn"), z("xc"), z("xh"), 1 if x_by == "w" else z("xw"))
        ys = (z("yn"), z("yk"), z("yp"), 1 if dy_by in "qw" else z("yq"))
        self.dy = k.view(self.N, self.K, self.P, self.Q, strides=ys, dtype=dtype)
        self.x = k.view(self.N, self.C, self.H, self.W, strides=xs, dtype=dtype)
        self.dw = k.view(self.K, self.C, self.R, self.S, strides=[z("wk"), z("wc"), z("wr"), z("ws")],
                         dtype=dtype)
        if deep:  # G counts (tap, group)
            self.groups, self.depth, self.source = z("groups"), z("depth"), z("source")
            self.steps = (z("depth_step"), z("depth_tap"), z("depth_pad"))
            self.xd, self.yd, self.wt = z("xd"), z("yd"), z("wt")
        self.tile: Int = z("tile") if tiled else self.Q
        self.tiles: Int = z("tiles") if tiled else 1
        self.bands, self.chunks, self.CB, self.KB, self.KP = map(z, ("bands", "chunks", "CB", "KB", "KP"))
        self.ni, self.hb, self.row_bands, self.flat = map(z, ("ni", "hb", "row_bands", "flat"))
        # Of a panel of x: pixels of a block, of an image, runs of columns in a row; its rows for a band of dy
        # are (hb - 1) · row_step + row_span, and tap r of row h of dy is row h · row_step + r · row_tap.
        self.pixels, self.image, self.phases, self.columns = map(z, ("pixels", "image", "phases", "columns"))
        self.row_step, self.row_span, self.row_tap = map(z, ("row_step", "row_span", "row_tap"))
        self.sh, self.sw, self.ph, self.pw = z("sh"), step or z("sw"), z("ph"), z("pw")
        # Sums: D in workspace, or dw itself.
        taps_r, taps_s = (1, 1) if window else (self.R, self.S)
        self.D = k.shared(self.G * self.chunks, self.KP, taps_r, taps_s, self.CB * self.width,
                          size=z("d_size"), dtype=self.wide)
        self.direct = z("direct").ne(0)
        # With one chunk, a tile's sums go from D to dw as soon as its last band is in: they are in cache.
        self.at_once = self.chunks.eq(1) if dw_by == "t" and not window else None
        d, w = self.D.strides, self.dw.strides
        strides = [(self.K * w[0], self.chunks * d[0]), (d[0], d[0]), (w[0], d[1]), *zip(w[2:], d[2:])]
        self.sums = View(k, k.op("select", self.direct.v[0], self.dw.ptr, self.D.ptr), (1,) * 6,
                         [*(k.choose(self.direct, a, b) for a, b in strides), 1], self.wide)

    def build(self) -> None:
        k, CB = self.k, self.CB
        for begin, end in k.chunk(self.G * self.chunks * CB):
            if self.window:
                self.xs = k.scratch(self.pixels, self.R * self.C, size=k.size("x_size"), dtype=self.wide)
            else:
                self.xs = k.scratch(CB, self.pixels, self.width, size=k.size("x_size"), dtype=self.wide)
            self.ys = None
            if self.dy_by != "q":
                self.ys = k.scratch(self.KB, k.size("y_pixels"), k.V, size=k.size("y_size"), dtype=self.wide)
            for gc in k.range(begin // CB, k.ceil_div(end, CB)):
                g, chunk = gc // self.chunks, gc % self.chunks
                lo, hi = k.max(begin - gc * CB, 0), k.min(end - gc * CB, CB)
                first, last = chunk * self.bands // self.chunks, (chunk + 1) * self.bands // self.chunks
                for cb0, cb1 in k.blocks(hi, k.size("run"), lo):
                    for band in k.range(first, last):
                        more = k.condition(k.compare("!=", band, first))
                        part = _Part(self, g, chunk, cb0, cb1, band, more)
                        if self.at_once is not None:
                            part.put = self.at_once & k.condition(k.compare("==", band, last - 1))
                        part.run()
        self.put()

    def channels(self, g: Int) -> tuple[Int, Int, Int]:
        """Where group g's channels begin in x, in dy, and the tap along the depth that it stands for."""
        t: Int = 0
        if self.deep:
            t, g = g // self.groups, g % self.groups
        return g * self.C, g * self.K, t

    def filters(self, t: Int) -> View:
        """dw at tap t along the depth."""
        if not self.deep:
            return self.dw
        start = self.k.gep(self.dw.ptr, t * self.wt, self.dw.elem.storage)
        return View(self.k, start, self.dw.dims, self.dw.strides, self.dw.elem.name)

    def put(self) -> None:
        """dw = the sum over chunks of D, unless dw has it already."""
        k, D, dw, chunks = self.k, self.D, self.dw, self.chunks
        K, C, R, S = dw.dims
        done = self.direct
        if self.at_once is not None:
            done = done | self.at_once
        for u in k.parallel(k.choose(done, 0, self.G * K)):
            g, row = u // K, u % K
            if self.deep:
                dw, u = self.filters(g // self.groups), g % self.groups * K + row
            # Where K does not divide, the last tile stands for the last rows of dy.
            row = row + k.choose(k.compare(">=", row, k.size("k_whole")), self.KP - K, 0)
            if self.window:
                self.put_window(dw, u, g, row)
            elif self.dw_by == "c":
                last = View(k, dw.ptr, (K, R, S, C), (dw.strides[0], *dw.strides[2:], 1), dw.elem.name)
                for r in k.range(R):
                    for s in k.range(S):
                        for c in k.vectors(C):
                            acc = k.var(k.zeros(1, self.wide))
                            for chunk in k.range(chunks):
                                acc += D[g * chunks + chunk, row, r, s, k.vector(c.base)]
                            last[u, r, s, c] = acc
            elif self.dw_by == "t":
                self.put_taps(dw, u, g, row, 0, C, chunks)
            else:
                for channel in k.range(C):
                    for r in k.range(R):
                        for s in k.range(S):
                            one = k.var(0.0, self.wide)
                            for chunk in k.range(chunks):
                                one += D[g * chunks + chunk, row, r, s, channel]
                            dw[u, channel, r, s] = one

    def put_taps(self, dw: View, u: Int, g: Int, row: Int, c0: Int, c1: Int, chunks: Int) -> None:
        """Channels c0 … c1 of output channel u of dw, where the taps lie side by side: by transposes."""
        k, V, D, T = self.k, self.k.V, self.D, self.R * self.S
        flat = View(k, D.ptr, (1, 1, T, 1), (*D.strides[:2], D.strides[3], 1), self.wide)
        for c in k.range(c0, c1, step=V):
            for t in k.range(0, T, step=V):
                sums = [k.var(k.zeros(1, self.wide)) for _ in range(V)]
                for chunk in k.range(chunks):
                    for j, acc in enumerate(sums):
                        acc += flat[g * chunks + chunk, row, k.min(t + j, T - 1), k.vector(c)]
                out = transpose(sums)
                # Backwards, so that lanes past the last channel are overwritten by that channel.
                for j in reversed(range(V)):
                    line = View(k, dw.addr(u, k.min(c + j, c1 - 1), 0, 0), (T,), (1,), dw.elem.name)
                    line[k.first(t, T - t)] = out[j]

    def put_window(self, dw: View, u: Int, g: Int, row: Int) -> None:
        """Output channel u of dw, where D's lanes are the elements (s, r, c) of a filter."""
        k, D, (_, C, R, S) = self.k, self.D, self.dw.dims
        for lanes in k.vectors(self.CB * self.width):
            acc = k.var(k.zeros(1, self.wide))
            for chunk in k.range(self.chunks):
                acc += D[g * self.chunks + chunk, row, 0, 0, lanes]
            D[g * self.chunks, row, 0, 0, lanes] = acc
        for c in k.range(C):
            for r in k.range(R):
                for s in k.range(S):
                    dw[u, c, r, s] = D[g * self.chunks, row, 0, 0, (s * R + r) * C + c]


class _Part:
    """What one band gives to blocks cb0 … cb1 of c; `more`: the sums hold what earlier bands gave."""

    def __init__(self, w: _Wgrad, g: Int, chunk: Int, cb0: Int, cb1: Int, band: Int, more: Val):
        k = w.k
        self.w, self.k, self.g, self.chunk, self.cb0, self.cb1, self.more = w, k, g, chunk, cb0, cb1, more
        self.put: Val | None = None
        self.q0: Int = 0
        if w.tiled:
            self.q0, band = band % w.tiles * w.tile, band // w.tiles
        self.q = k.min(w.tile, w.Q - self.q0) if w.tiled else w.Q
        self.c0, self.k0, self.t = w.channels(g)
        self.n0, self.p0 = band // w.row_bands * w.ni, band % w.row_bands * w.hb
        self.n, self.h = k.min(w.ni, w.N - self.n0), k.min(w.hb, w.P - self.p0)
        # Runs of pixels that follow each other in both operands are one loop: rows, planes, all images.
        planes, rows = w.flat.eq(2), w.flat.ne(0)
        self.loop_n, self.loop_h = k.choose(planes, 1, self.n), k.choose(rows, 1, self.h)
        self.loop_q = k.choose(planes, self.n, 1) * k.choose(rows, self.h, 1) * self.q
        self.ahead = [Stream(k, t, self.after(band + 1, t), name) for t, by, name in
                      ((w.dy, w.dy_by, "dy_ahead"), (w.x, w.x_by, "x_ahead"))
                      if by == "c" and not (w.deep or w.tiled)]

    def after(self, band: Int, t: View) -> Any:
        """Where another band of x or dy begins."""
        w = self.w
        n, p = band // w.row_bands * w.ni, band % w.row_bands * w.hb
        return t.addr(n, self.g * t.dims[1], p if t is w.dy else p * w.sh, 0)

    def image_of_x(self, n: Int) -> tuple[Int, Val]:
        """Where the depth of x that image n of dy meets lies, and whether there is one."""
        w = self.w
        step, tap, pad = w.steps
        d = n % w.depth * step + self.t * tap - pad
        return n // w.depth * w.x.strides[0] + d * w.xd, (d >= 0) & (d < w.source)

    def image_of_dy(self, n: Int) -> tuple[Int, Val]:
        w = self.w
        return n // w.depth * w.dy.strides[0] + n % w.depth * w.yd, self.k.condition(True)

    def run(self) -> None:
        w, k, V = self.w, self.k, self.k.V
        h0, c0, pad = self.p0 * w.sh - w.ph, self.c0, w.pw - self.q0 * w.sw
        of_x, of_dy = (self.image_of_x, self.image_of_dy) if w.deep else (None, None)
        if w.window:
            band = Band(self.n0, self.n, h0, self.h, w.sh, 1, pad, 1, w.columns, w.image, w.H, w.W, of_x)
            pack_windows(k, w.x_by, w.x, w.xs, band, c0, (w.R, w.row_tap, w.C))
        else:
            rows = (self.h - 1) * w.row_step + w.row_span
            band = Band(self.n0, self.n, h0, rows, k.size("row_stride"), w.sw, pad, w.phases, w.columns,
                        w.image, w.H, w.W, of_x)
            pack(k, w.x_by, w.x, w.xs, band,
                 Channels(c0 + self.cb0 * w.width, c0 + w.C, self.cb1 - self.cb0, w.vectors))
        if w.ys is None:
            for kb in k.range(w.KB):
                self.tiles(kb, self.k0 + k.min(kb * w.rows, w.K - w.rows), None)
            return
        band = Band(self.n0, self.n, self.p0, self.h, 1, 1, 0 - self.q0, 1, self.q, self.h * self.q, w.P, w.Q,
                    of_dy)
        each = V // w.rows  # tiles of a block
        for b0, b1 in k.blocks(k.ceil_div(w.K, V), k.size("y_run")):
            channels = Channels(self.k0 + b0 * V, self.k0 + w.K, b1 - b0, 1)
            pack(k, w.dy_by, w.dy, w.ys, band, channels)
            for kb in k.range(b0 * each, k.min(b1 * each, w.KB)):
                self.tiles(kb, kb % each * w.rows, kb // each - b0)

    def tiles(self, kb: Int, row: Int, block: Int | None) -> None:
        """All tiles of `rows` output channels; block: of the panel of dy, or None where it is in place."""
        w, k = self.w, self.k
        for cb in k.range(self.cb1 - self.cb0):
            for r in k.range(1 if w.window else w.R):
                for s in [0] if w.window or w.taps > 1 else k.range(w.S):
                    acc = [k.var(k.zeros(w.vectors * w.taps, w.wide)) for _ in range(w.rows)]
                    for i in k.range(self.loop_n):
                        for h in k.range(self.loop_h):
                            self.line(acc, self.x_line(cb, i, h, r, s), self.dy_line(i, h, row, block))
                    for j, a in enumerate(acc):
                        for t in range(w.taps):
                            at = (self.g, self.chunk, kb * w.rows + j, r, s + t)
                            lanes = k.vector((self.cb0 + cb) * w.width, w.vectors)
                            old = w.sums[(*at, lanes.where(self.more))]
                            w.sums[(*at, lanes)] = old + a.part(t * w.vectors, w.vectors)
            if self.put is not None:
                with k.when(self.put):
                    first = kb * w.rows
                    if w.dy_by == "q":
                        first = k.min(first, w.K - w.rows)
                    c0 = (self.cb0 + cb) * w.width
                    c1 = k.min(c0 + w.width, w.C)
                    for o in k.range(k.min(w.rows, w.K - first)):
                        w.put_taps(w.filters(self.t), self.k0 + first + o, self.g, kb * w.rows + o, c0, c1, 1)

    def x_line(self, cb: Int, i: Int, h: Int, r: Int, s: Int) -> View:
        """What the pixels of row h of dy meet through tap r, s: dims pixel, lane."""
        w = self.w
        if w.window:
            at = w.xs.addr((i * self.h + h) * w.columns, (self.cb0 + cb) * w.width)
            return View(self.k, at, (1, 1), (w.sw * (w.R * w.C), 1), w.wide)
        column: Int = 0
        if w.taps == 1:
            column = s * self.k.size("dil_w")
            column = column % w.phases * w.columns + column // w.phases
        at = i * w.image + (h * w.row_step + r * w.row_tap) * (w.phases * w.columns) + column
        return View(self.k, w.xs.addr(cb, at, 0), (1, 1), (w.width, 1), w.wide)

    def dy_line(self, i: Int, h: Int, row: Int, block: Int | None) -> View:
        """Row h of dy: dims output channel, pixel."""
        w, k = self.w, self.k
        if block is None or w.ys is None:
            if w.deep:
                start, _ = self.image_of_dy(self.n0 + i)
                at = k.gep(w.dy.addr(0, row, self.p0 + h, self.q0), start, w.dy.elem.storage)
            else:
                at = w.dy.addr(self.n0 + i, row, self.p0 + h, self.q0)
            return View(k, at, (1, 1), (w.dy.strides[1], 1), w.dy.elem.name)
        return View(k, w.ys.addr(block, (i * self.h + h) * self.q, row), (1, 1), (1, k.V), w.wide)

    def line(self, acc: Sequence[Val], x: View, dy: View) -> None:
        w, k = self.w, self.k
        lanes = k.vector(0, w.vectors)
        whole = self.loop_q // w.unroll * w.unroll
        for q in k.range(0, whole, step=w.unroll):
            for stream in self.ahead:
                stream.advance()
            for u in range(w.unroll):
                row = k.pack(x[q + u + t, lanes] for t in range(w.taps))
                for j, a in enumerate(acc):
                    a += dy[j, q + u] * row
        for q in k.range(whole, self.loop_q):
            row = k.pack(x[q + t, lanes] for t in range(w.taps))
            for j, a in enumerate(acc):
                a += dy[j, q] * row


class Stream:
    """Memory that will be read next, fetched into the second-level cache bit by bit beside the arithmetic."""

    def __init__(self, k: Kernel, t: View, start: Any, rate: str):
        self.view, self.rate = View(k, start, (1,), (1,), "u8"), k.size(rate)
        self.at = k.var(k.val(0, dtype="i64"))

    def advance(self) -> None:
        """`rate` / 1024 bytes further."""
        self.at += self.rate
        self.view.prefetch((self.at >> 10).idx(), level=2)
