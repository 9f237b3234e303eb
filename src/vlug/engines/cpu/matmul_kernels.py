"""Kernel of the matrix product: register tiles over packed panels of both operands."""

from __future__ import annotations

from vlug.codegen.ir import Int, Kernel, Lanes, Val, View, maximum, select
from vlug.codegen.tile import product
from vlug.engines.cpu.panels import Band, Channels, pack

__all__ = ["LEADING", "matmul"]

#: Leading dimensions that the kernel takes (after those that lie evenly are joined).
LEADING = 3


def matmul(k: Kernel, a_by: str, b_by: str, c_by: str, rows: int, vectors: int, unroll: int, bias: str,
           relu: bool, dtype: str) -> None:
    """c[…, m, n] = Σ over k of a[…, m, k] · b[…, k, n], then + bias and ReLU.

    a_by, b_by: how they are packed (`panels.packing`): "w" unit stride along k, "c" along m or n, "e" any.
    c_by:  "c" where n has unit stride, else "e".
    bias:  "" or the dimension it lies along, "m" or "n".
    rows × vectors: the register tile.

    A unit is (leading index, block of n, block of m). A part takes a run of them; for each block of k it
    packs b's panel once for the blocks of m that it has, then each block of a, as Goto and van de Geijn lay
    out ("Anatomy of high-performance matrix multiplication", 2008). Sums over blocks of k are added in order,
    in c or (bf16, f16) in scratch.
    """
    k.quick = True
    _Matmul(k, a_by, b_by, c_by, rows, vectors, unroll, bias, relu, dtype).build()


class _Matmul:
    def __init__(self, k: Kernel, a_by: str, b_by: str, c_by: str, rows: int, vectors: int, unroll: int,
                 bias: str, relu: bool, dtype: str):
        z = k.size
        self.k, self.a_by, self.b_by, self.bias, self.relu = k, a_by, b_by, bias, relu
        self.rows, self.vectors, self.unroll, self.width = rows, vectors, unroll, k.V * vectors
        self.M, self.N, self.K = z("M"), z("N"), z("K")
        self.mb, self.nb, self.kb = z("mb"), z("nb"), z("kb")  # sizes of blocks
        self.m_blocks, self.n_blocks = z("m_blocks"), z("n_blocks")
        self.lead = [z(f"l{i}") for i in range(LEADING)]
        lead = {t: [z(f"{t}{i}") for i in range(LEADING)] for t in "abc"}
        one = (1,) * LEADING
        # a and b as images of one row whose columns are k: what `pack` reads
        self.a = k.view(*one, 1, self.M, 1, self.K, dtype=dtype,
                        strides=[*lead["a"], 0, z("am"), 0, 1 if a_by == "w" else z("ak")])
        self.b = k.view(*one, 1, self.N, 1, self.K, dtype=dtype,
                        strides=[*lead["b"], 0, z("bn"), 0, 1 if b_by == "w" else z("bk")])
        self.c = k.view(*one, self.M, self.N, dtype=dtype,
                        strides=[*lead["c"], z("cm"), 1 if c_by == "c" else z("cn")])
        self.bias_view = k.view(self.M if bias == "m" else self.N, strides=[z("bias_step")], dtype=dtype)
        self.half, self.wide = dtype in ("bf16", "f16"), "f64" if dtype == "f64" else "f32"

    def build(self) -> None:
        k, width, rows = self.k, self.width, self.rows
        pitch = self.kb + k.V  # columns of k in a panel, and the slack that `pack` asks for
        blocks_of = self.n_blocks * self.m_blocks
        for begin, end in k.chunk(self.lead[0] * self.lead[1] * self.lead[2] * blocks_of):
            self.bp = k.scratch(1, pitch, width, size=k.size("b_size"), dtype=self.wide)
            self.ap = k.scratch(1, pitch, rows, size=k.size("a_size"),
                                strides=[pitch * rows + k.V, rows, 1], dtype=self.wide)
            self.tile = k.scratch(rows, width, dtype=self.wide)
            self.sums = k.scratch(self.mb, self.nb, size=k.size("sum_size")) if self.half else None
            for outer in k.range(begin // self.m_blocks, k.ceil_div(end, self.m_blocks)):
                m0 = k.max(begin - outer * self.m_blocks, 0)
                m1 = k.min(end - outer * self.m_blocks, self.m_blocks)
                lead, nb = outer // self.n_blocks, outer % self.n_blocks
                index = (lead // (self.lead[1] * self.lead[2]), lead // self.lead[2] % self.lead[1],
                         lead % self.lead[2])
                if self.half:  # the sums are those of one block of m
                    for mb in k.range(m0, m1):
                        self.block(index, nb, mb, mb + 1)
                else:
                    self.block(index, nb, m0, m1)

    def block(self, index: tuple[Int, ...], nb: Int, m0: Int, m1: Int) -> None:
        """Blocks m0 … m1 of rows, one block of columns."""
        k = self.k
        a, b, c = self.a.at(*index), self.b.at(*index), self.c.at(*index)
        n_lo, n_hi = nb * self.nb, k.min((nb + 1) * self.nb, self.N)
        for k_lo in k.range(0, k.max(self.K, 1), step=self.kb):
            depth = k.max(k.min(self.kb, self.K - k_lo), 0)
            first = k.condition(k.compare("==", k_lo, 0))
            last = k.condition(k.compare(">=", k_lo + self.kb, self.K))
            band = Band(0, 1, 0, 1, 1, 1, 0 - k_lo, 1, depth, 0, 1, self.K)
            pack(k, self.b_by, b, self.bp, band,
                 Channels(n_lo, n_hi, k.ceil_div(n_hi - n_lo, self.width), self.vectors))
            for mb in k.range(m0, m1):
                m_lo, m_hi = mb * self.mb, k.min((mb + 1) * self.mb, self.M)
                blocks = k.ceil_div(m_hi - m_lo, self.rows)
                pack(k, self.a_by, a, self.ap, band, Channels(m_lo, m_hi, blocks, 1, self.rows))
                for j in k.range(k.ceil_div(n_hi - n_lo, self.width)):
                    for i in k.range(blocks):
                        m, n = m_lo + i * self.rows, n_lo + j * self.width
                        if self.sums is None:
                            sums = View(k, c.addr(m, n), (1, 1), c.strides, self.wide)
                        else:
                            sums = View(k, self.sums.addr(m - m_lo, n - n_lo), (1, 1), self.sums.strides)
                        for r in range(self.rows):  # the arithmetic gives them time to come
                            for v in range(self.vectors):
                                sums.prefetch(r, v * k.V, write=1)
                        acc = [k.var(k.zeros(self.vectors, self.wide)) for _ in range(self.rows)]
                        lanes = k.vector(0, self.vectors)
                        product(k, acc, (0, depth), lambda r, q: self.ap[i, q, r],  # noqa: B023
                                lambda q: self.bp[j, q, lanes], self.unroll)  # noqa: B023
                        rest = (m_hi - m, n_hi - n)
                        whole = k.condition(rest[0] >= self.rows) & k.condition(rest[1] >= self.width)
                        out = _Out(self, c, sums, m, n, first, last)
                        with k.when(whole):
                            for r, row in enumerate(acc):
                                out.put(row, r, lanes)
                        with k.unless(whole):
                            for r, row in enumerate(acc):
                                self.tile[r, lanes] = row
                            for at in k.range(k.min(self.rows, rest[0])):
                                for part in k.vectors(k.min(self.width, rest[1])):
                                    out.put(self.tile[at, k.vector(part.base)], at, part)


class _Out:
    """A tile of c at m, n: sums of earlier blocks of k are added unless this is the `first`, and behind the
    `last` come bias and ReLU."""

    def __init__(self, w: _Matmul, c: View, sums: View, m: Int, n: Int, first: Val, last: Val):
        self.w, self.c, self.sums, self.m, self.n, self.first, self.last = w, c, sums, m, n, first, last

    def put(self, v: Val, r: Int, lanes: Lanes) -> None:
        w, k, last = self.w, self.w.k, self.last
        v = v + self.sums[r, lanes.where(~self.first)]
        if w.bias == "n":
            v = v + w.bias_view[(lanes + self.n).where(last)]
        elif w.bias:
            with_bias = k.var(k.zeros(1, w.wide))
            with k.when(last):
                with_bias.set(w.bias_view[self.m + r])
            v = v + with_bias.get()
        if w.relu:
            v = select(last, maximum(v, 0.0), v)
        if w.sums is None:
            self.sums[r, lanes] = v
        else:
            self.sums[r, k.vector(lanes.base, len(lanes.masks))] = v
            with k.when(last):
                self.c[self.m + r, lanes + self.n] = v
