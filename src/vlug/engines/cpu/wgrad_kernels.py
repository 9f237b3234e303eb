"""Kernel of the weight gradient: a product over pixels of panels of x (vectors) with elements of dy (broadcast)."""

from __future__ import annotations

from vlug.codegen.ir import Int, Kernel, View, transpose
from vlug.codegen.tile import product
from vlug.engines.cpu.panels import Band, pack

__all__ = ["wgrad"]


def wgrad(k: Kernel, x_by: str, dy_by: str, dw_by: str, step: int, rows: int, vectors: int, taps: int, unroll: int,
          dtype: str) -> None:
    """dw[k, c, r, s] = sum over n p q of dy[n, k, p, q] · x[n, c, p·sh + r·dh - ph, q·sw + s·dw - pw].

    x_by, dy_by: how they are packed (`panels.packing`); dy_by="q" reads dy in place, unit stride along q.
    dw_by:   how the sums are put into dw: "c" vectors along c, "t" along the taps, "e" one by one.
    step:    sw where x_by="w", else 0: read from args.
    rows × vectors × taps: the register tile, output channels × vectors of input channels × taps along w: 1, or
             S, where stride and dilation along w are 1 (each vector of x then serves S taps).

    A unit is (group, chunk of bands, block of c); a part takes a run of them and packs x once for each band. A chunk
    is a run of bands (`ni` images × `hb` rows of dy) summed in order into D[group, chunk][k, r, s, c], or into dw
    itself where `direct`; the chunks are summed in order at the end. So any number of threads gives the same bits.
    """
    z = k.size
    G, N, C, K, H, W, P, Q, R, S = (z(n) for n in "GNCKHWPQRS")
    V, BW, MR = k.V, k.V * vectors, rows
    x = k.view(N, C, H, W, strides=(z("xn"), z("xc"), z("xh"), 1 if x_by == "w" else z("xw")), dtype=dtype, at=1)
    dy = k.view(N, K, P, Q, strides=(z("yn"), z("yk"), z("yp"), 1 if dy_by in "qw" else z("yq")), dtype=dtype, at=0)
    dw = k.view(K, C, R, S, strides=(z("wk"), z("wc"), z("wr"), z("ws")), dtype=dtype, at=2)
    bands, chunks, CB, KP, direct = z("bands"), z("chunks"), z("CB"), z("KP"), z("direct")
    D = k.shared(G * chunks, KP, R, S, CB * BW, size=z("d_size"))
    into = direct.ne(0)
    where = View(k, k.op("select", into.v[0], dw.ptr, D.ptr), (G, chunks, K, R, S, C), (
        k.choose(into, K * dw.strides[0], chunks * D.strides[0]), D.strides[0],
        *(k.choose(into, dw.strides[i], D.strides[j]) for i, j in ((0, 1), (2, 2), (3, 3))), 1))

    sw = step or z("sw")
    pixels, image, phases, columns = z("pixels"), z("image"), z("phases"), z("columns")  # of a panel of x
    rstep, rspan, rdil, ph, pw, sh, dil_w = (z(n) for n in ("rstep", "rspan", "rdil", "ph", "pw", "sh", "dil_w"))
    NI, HB, row_bands, flat, KB = z("ni"), z("hb"), z("row_bands"), z("flat"), z("KB")
    for begin, end in k.chunk(G * chunks * CB):
        xs = k.scratch(CB, pixels, BW, size=z("x_size"))
        ys = k.scratch(KB, z("y_pixels"), V, size=z("y_size")) if dy_by != "q" else None
        for gc in k.range(begin // CB, k.ceil_div(end, CB)):
            g, chunk = gc // chunks, gc % chunks
            lo, hi = k.max(begin - gc * CB, 0), k.min(end - gc * CB, CB)
            for cb0, cb1 in k.blocks(hi, z("run"), lo):
                start = chunk * bands // chunks
                for band in k.range(start, (chunk + 1) * bands // chunks):
                    n0, p0 = band // row_bands * NI, band % row_bands * HB
                    ni, hb = k.min(NI, N - n0), k.min(HB, P - p0)
                    for cb in k.range(cb1 - cb0):
                        pack(k, x_by, x, xs.at(cb),
                             Band(n0, ni, p0 * sh - ph, (hb - 1) * rstep + rspan, z("hstep"), sw, pw, phases, columns,
                                  image, H, W), g * C + (cb0 + cb) * BW, g * C + C, vectors)

                    # Runs of pixels that follow each other in both panels are one loop: rows, planes, all images.
                    i_n, h_n = k.choose(flat.eq(2), 1, ni), k.choose(flat.ne(0), 1, hb)
                    q_n = k.choose(flat.ne(0), k.choose(flat.eq(2), ni, 1) * hb, 1) * Q

                    def tiles(kb: Int, row0: Int, block: Int) -> None:
                        for cb in k.range(cb1 - cb0):
                            for r in k.range(R):
                                for s in k.range(0, S, step=taps) if taps == 1 else [0]:
                                    column = s * dil_w
                                    column = column % phases * columns + column // phases if taps == 1 else 0
                                    acc = [k.var(k.zeros(vectors * taps)) for _ in range(MR)]
                                    for i in k.range(i_n):
                                        for h in k.range(h_n):
                                            line = (h * rstep + r * rdil) * (phases * columns)
                                            px = View(k, xs.addr(cb, i * image + line + column, 0), (1, 1), (BW, 1))
                                            if ys is None:
                                                py = View(k, dy.addr(n0 + i, row0, p0 + h, 0), (1, 1),
                                                          (dy.strides[1], 1), dtype)
                                            else:
                                                py = View(k, ys.addr(block, (i * hb + h) * Q, row0 % V), (1, 1), (1, V))
                                            product(k, acc, (0, q_n), lambda j, q: py[j, q], lambda q: k.pack(
                                                px[q + t, k.vector(0, vectors)] for t in range(taps)), unroll)
                                    for j, a in enumerate(acc):
                                        for t in range(taps):
                                            at = (g, chunk, kb * MR + j, r, s + t,
                                                  k.vector((cb0 + cb) * BW, vectors))
                                            old = where.load(*at[:-1], at[-1].where(band.ne(start)))
                                            where[at] = old + a.part(t * vectors, vectors)

                    if ys is None:
                        for kb in k.range(KB):
                            tiles(kb, g * K + k.min(kb * MR, K - MR), 0)
                    else:
                        for b0, b1 in k.blocks(k.ceil_div(K, V), z("y_run")):
                            for b in k.range(b1 - b0):
                                pack(k, dy_by, dy, ys.at(b), Band(n0, ni, p0, hb, 1, 1, 0, 1, Q, hb * Q, P, Q),
                                     g * K + (b0 + b) * V, g * K + K, 1)
                            for kb in k.range(b0 * (V // MR), k.min(b1 * (V // MR), KB)):
                                tiles(kb, kb * MR, kb * MR // V - b0)

    _put(k, D, dw, dw_by, k.choose(into, 0, G * K), chunks)


def _put(k: Kernel, D: View, dw: View, by: str, n: Int, chunks: Int) -> None:
    """dw = sum over chunks of D, for n output channels; by: see `wgrad`."""
    V, (K, C, R, S) = k.V, dw.dims
    for u in k.parallel(n):
        g, row = u // K, u % K
        # Where K does not divide, the last tile stands for the last rows of dy.
        row = row + k.choose(row >= k.size("k_whole"), k.size("KP") - K, 0)

        if by == "c":
            last = View(k, dw.ptr, (K, R, S, C), (dw.strides[0], *dw.strides[2:], 1), dw.elem.name)
            for r in k.range(R):
                for s in k.range(S):
                    for c in k.vectors(C):
                        acc = k.var(k.zeros(1))
                        for chunk in k.range(chunks):
                            acc += D[g * chunks + chunk, row, r, s, k.vector(c.base)]
                        last[u, r, s, c] = acc
        elif by == "t":
            T = R * S
            flat = View(k, D.ptr, (1, 1, T, 1), (*D.strides[:2], D.strides[3], 1))
            for c in k.range(0, C, step=V):
                for t in k.range(0, T, step=V):
                    sums = [k.var(k.zeros(1)) for _ in range(V)]
                    for chunk in k.range(chunks):
                        for j, acc in enumerate(sums):
                            acc += flat[g * chunks + chunk, row, k.min(t + j, T - 1), k.vector(c)]
                    out = transpose(sums)
                    # Backwards, so that lanes past the last channel are overwritten by that channel.
                    for j in reversed(range(V)):
                        line = View(k, dw.addr(u, k.min(c + j, C - 1), 0, 0), (T,), (1,), dw.elem.name)
                        line[k.first(t, T - t)] = out[j]
        else:
            for c in k.range(C):
                for r in k.range(R):
                    for s in k.range(S):
                        acc = k.var(0.0)
                        for chunk in k.range(chunks):
                            acc += D[g * chunks + chunk, row, r, s, c]
                        dw[u, c, r, s] = acc
