"""Winograd's fast 3×3 convolution as one program: transforms, products, and the direct form as refuge.

Y = Aᵀ [ (G g Gᵀ) ⊙ (Bᵀ d B) ] A for each tile of m × m outputs (A. Lavin, S. Gray, "Fast Algorithms for
Convolutional Neural Networks", 2015). The matrices are those of Cook and Toom for given points, reckoned here
with fractions: row i of G evaluates a filter at point i, row i of Bᵀ holds the coefficients of
∏_{j≠i} (x - p_j), and Aᵀ interpolates. Points 0, ±2/3, ±3/2, ∞ make F(4×4) four times as accurate as
the usual 0, ±1, ±2, ∞ for as many operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod

from vlug.codegen.ir import Int, Kernel, Lanes, Val, Var, View, fma, maximum, select, transpose
from vlug.codegen.tile import product
from vlug.engines.cpu.panels import Band, Channels, pack

__all__ = ["POINTS", "matrices", "winograd"]

Matrix = list[list[Fraction]]

#: Finite interpolation points by tile size: 0, then pairs ±p; infinity comes last.
POINTS: dict[int, tuple[Fraction, ...]] = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(2, 3), Fraction(-2, 3), Fraction(3, 2), Fraction(-3, 2)),
}
TAPS = 3
#: Vectors of output channels in a product's tile.
NR = 2
#: Bits of 2^48: up to there no sum of any transform can overflow, whatever the number of channels.
LIMIT = (127 + 48) << 23


# --- the transforms ---
def matrices(m: int) -> tuple[Matrix, Matrix, Matrix]:
    """Aᵀ (m × n), G (n × 3) and Bᵀ (n × n) of F(m, 3), n = m + 2."""
    p = POINTS[m]
    others = [[q for q in p if q != at] for at in p]
    at = [[q**i for q in p] + [Fraction(int(i == m - 1))] for i in range(m)]
    scale = [prod((q - o for o in out), start=Fraction(1)) for q, out in zip(p, others)]
    g = [[q**j / s for j in range(TAPS)] for q, s in zip(p, scale)]
    bt = [[*polynomial(out), Fraction(0)] for out in others]
    infinity = [Fraction(int(j == TAPS - 1)) for j in range(TAPS)]
    return at, [*g, infinity], [*bt, polynomial(p)]


def polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of ∏ (x - root), the constant first."""
    zero, c = Fraction(0), [Fraction(1)]
    for r in roots:
        c = [a - r * b for a, b in zip([zero, *c], [*c, zero])]
    return c


def total(terms: Sequence[tuple[Fraction, Val]]) -> Val:
    """Σ coefficient · value, those with coefficient 1 first."""
    ordered = sorted(((c, v) for c, v in terms if c), key=lambda t: t[0] != 1)
    c, out = ordered[0]
    out = out if c == 1 else out * float(c)
    for c, v in ordered[1:]:
        out = out + v if c == 1 else fma(v, float(c), out)
    return out


def by_rows(matrix: Matrix, d: Sequence[Val]) -> list[Val]:
    """matrix · d, where rows 1 and 2, 3 and 4, … differ only in the sign of odd columns (points ±p)."""
    out = [total(list(zip(matrix[0], d)))]
    for row in matrix[1:-1:2]:
        even = total([(c, v) for c, v in zip(row[::2], d[::2])])
        last = next(c for c in reversed(row[1::2]) if c)
        odd = total([(c / last, v) for c, v in zip(row[1::2], d[1::2])])
        if last == 1:
            out += [even + odd, even - odd]
        else:
            out += [fma(odd, float(last), even), fma(odd, -float(last), even)]
    return [*out, total(list(zip(matrix[-1], d)))]


def by_columns(matrix: Matrix, d: Sequence[Val]) -> list[Val]:
    """matrix · d, where columns 1 and 2, 3 and 4, … differ only in the sign of odd rows."""
    both = [(a + b, a - b) for a, b in zip(d[1:-1:2], d[2:-1:2])]
    return [
        total([(row[0], d[0]), (row[-1], d[-1])] + [(c, pair[i % 2]) for c, pair in zip(row[1:-1:2], both)])
        for i, row in enumerate(matrix)
    ]


def two_d(transform: object, matrix: Matrix, d: Sequence[Sequence[Val]]) -> list[list[Val]]:
    """matrix · d · matrixᵀ for a square of values."""
    columns = [transform(matrix, column) for column in zip(*d)]  # type: ignore[operator]
    return [transform(matrix, row) for row in zip(*columns)]  # type: ignore[operator]


# --- the program ---
class Program:
    """What the pieces of the program share: sizes, tensors, and the shapes of what lies in scratch.

    A group is `images` images × `tile_rows` rows of tiles: `tiles` of them, in blocks of MR. In scratch lie
    x  [pixel][lane]                                  one vector of channels of a group, with its padding
    V  [tile block][position][channels][tile][lane]   transformed x
    U  [K/B][position][channel][B]                    transformed w, B = 2 vectors
    M  [K/B][tile block][position][tile][B]           their products
    """

    def __init__(self, k: Kernel, m: int, rows: int, src: str, dst: str, weights: str, flip: bool, bias: bool,
                 relu: bool):  # fmt: skip
        size = k.size
        self.k, self.m, self.MR, self.flip, self.relu = k, m, rows, flip, relu
        self.at, self.g, self.bt = matrices(m)
        self.src, self.dst, self.weights = src, dst, weights
        self.n = m + TAPS - 1
        self.positions, self.B = self.n**2, NR * k.V
        self.N, self.C, self.K, self.H, self.W, self.P, self.Q = (size(n) for n in "NCKHWPQ")
        self.images, self.tile_rows, self.across = size("images"), size("tile_rows"), size("across")
        self.tiles = size("tiles", multiple=rows)
        self.pad_h, self.pad_w = size("pad_h"), size("pad_w")
        sx = [size("src_n"), size("src_c"), size("src_y"), 1] if src == "w" else \
            [size("src_n"), 1, size("src_y"), size("src_x")]  # fmt: skip
        self.x = k.view(self.N, self.C, self.H, self.W, strides=sx)
        sw: list[Int] = {
            "taps": [size("w_o"), size("w_c"), TAPS, 1],
            "red": [size("w_o"), 1, size("w_r"), size("w_s")],
            "out": [1, size("w_c"), size("w_r"), size("w_s")],
        }[weights]  # fmt: skip
        self.w = k.view(self.K, self.C, TAPS, TAPS, strides=sw)
        sy = [size("dst_n"), size("dst_c"), self.Q, 1] if dst == "w" else \
            [size("dst_n"), 1, size("dst_y"), size("dst_x")]  # fmt: skip
        self.y = k.view(self.N, self.K, self.P, self.Q, strides=sy)
        self.b = k.view(self.K) if bias else None
        self.vectors = k.ceil_div(self.C, k.V)  # of channels
        self.blocks = self.tiles // rows
        self.columns = self.across * m + 2
        self.image = (self.tile_rows * m + 2) * self.columns  # pixels of one image in scratch
        self.row_groups = size("row_groups")
        self.groups = k.ceil_div(self.N, self.images) * self.row_groups
        self.v_step = self.vectors * (rows * k.V) + k.V  # one vector apart: else stores share cache sets
        self.v_size = self.blocks * self.v_step * self.positions
        self.m_step = rows * self.B + k.V
        self.m_size = self.blocks * (self.m_step * self.positions)

    def of_v(self, memory: View, at: Int) -> View:
        """V of a group, dims (tile block, position, vector of channels, tile, lane)."""
        k, step = self.k, self.v_step
        dims = (1, self.positions, self.vectors, self.MR, k.V)
        return View(k, memory.addr(at), dims, (step * self.positions, step, self.MR * k.V, k.V, 1))

    def of_u(self, memory: View, at: Int, step: Int) -> View:
        """U of a block of output channels, dims (position, channel, lane)."""
        return View(self.k, memory.addr(at), (self.positions, 1, self.B), (step, self.B, 1))

    def of_m(self, memory: View) -> View:
        """M of one block of output channels, dims (tile block, position, tile, lane)."""
        k, step = self.k, self.m_step
        return View(k, memory.addr(0), (1, self.positions, self.MR, self.B),
                    (step * self.positions, step, self.B, 1))  # fmt: skip

    def group(self, g: Int) -> tuple[Int, Int, Int]:
        """First image, images and first row of tiles of a group."""
        n0 = g // self.row_groups * self.images
        return n0, self.k.min(self.images, self.N - n0), g % self.row_groups * self.tile_rows

    def each_tile(self, count: Int):  # type: ignore[no-untyped-def]
        """(image, row, column, block, place in it) of each tile of `count` images."""
        k = self.k
        for i in k.range(count):
            for ty in k.range(self.tile_rows):
                for tx in k.range(self.across):
                    t = (i * self.tile_rows + ty) * self.across + tx
                    yield i, ty, tx, t // self.MR, t % self.MR

    # --- x to V ---
    def take_x(self, g: Int, c: Int, xs: View, v: View, worst: Var) -> None:
        """Vector c of the channels of group g to V; `worst` sees the bits of every |x|."""
        k, m = self.k, self.m
        n0, count, first = self.group(g)
        band = Band(n0, count, first * m - self.pad_h, self.tile_rows * m + 2, 1, 1, self.pad_w, 1,
                    self.columns, self.image, self.H, self.W)  # fmt: skip
        pack(k, self.src, self.x, xs, band, Channels(c * k.V, self.C, 1, 1))
        every = k.vector()
        for q in k.range(count * self.image):
            worst.imax(magnitude(xs[0, q, every]))
        for i, ty, tx, block, place in self.each_tile(count):
            at = View(k, xs.addr(0, i * self.image + ty * m * self.columns + tx * m, 0),
                      (1, 1, k.V), (self.columns * k.V, k.V, 1))  # fmt: skip
            d = [[at.at(r)[s, every] for s in range(self.n)] for r in range(self.n)]
            out = two_d(by_rows, self.bt, d)
            step_through(k, v.addr(block, 0, c, place, 0), self.v_step, [x for row in out for x in row])
        for t in k.range(count * self.tile_rows * self.across, self.tiles):  # no tiles: no denormals either
            for p in k.range(self.positions):
                v[t // self.MR, p, c, t % self.MR, every] = 0.0

    # --- w to U ---
    def take_w(self, o: Int, c0: Int, c1: Int, u: View, worst: Var, square: View | None) -> None:
        """Output channels [o, o + B), vectors of channels [c0, c1), to U from its channel 0 on."""
        k, V = self.k, self.k.V
        for j in k.range(NR):
            first = o + j * V
            if self.weights == "red":
                assert square is not None
                for cv in k.range(c0, c1):
                    lanes = k.first(cv * V, self.C - cv * V)
                    for r in k.range(TAPS):
                        for s in k.range(TAPS):
                            lines = [View(k, self.w.addr(self.clamp(first + i), 0, r, s), (1,))[lanes]
                                     for i in range(V)]  # fmt: skip
                            for i, line in enumerate(transpose(lines)):
                                square[r * TAPS + s, i, k.vector()] = line
                    for l in k.range(V):
                        g = [[square[r * TAPS + s, l, k.vector()] for s in range(TAPS)] for r in range(TAPS)]
                        self.put_u(u, (cv - c0) * V + l, j, g, worst)
                continue
            last = k.min(c1 * V, self.C)
            for c in k.range(c0 * V, last):
                self.put_u(u, c - c0 * V, j, self.taps(first, c), worst)
            for c in k.range(last, c1 * V):
                for p in k.range(self.positions):
                    u[p, c - c0 * V, k.vector(j * V)] = 0.0

    def clamp(self, o: Int) -> Int:
        """Output channels behind the last repeat it; nobody sees what comes of them."""
        return self.k.min(o, self.K - 1)

    def taps(self, first: Int, c: Int) -> list[list[Val]]:
        """The 3 × 3 vectors w[first + lane, c, r, s]."""
        k, V, count = self.k, self.k.V, TAPS * TAPS
        if self.weights == "out":
            lanes = k.first(first, self.K - first)
            view = View(k, self.w.addr(0, c, 0, 0), (1, 1, 1), (self.w.strides[2], self.w.strides[3], 1))
            return [[view[r, s, lanes] for s in range(TAPS)] for r in range(TAPS)]
        rows = [View(k, self.w.addr(self.clamp(first + i), c, 0, 0), (1,)) for i in range(V)]
        flat = transpose([r[k.first(0, min(count, V))] for r in rows])[:count]
        for t in range(V, count):  # vectors shorter than 9: the last taps one by one
            v = k.zeros()
            for i, r in enumerate(rows):
                v = select(Val(k, [k.op("and_", k.mask(i + 1), (~Val(k, [k.mask(i)])).v[0])]), r[t], v)
            flat.append(v)
        return [flat[r * TAPS : (r + 1) * TAPS] for r in range(TAPS)]

    def put_u(self, u: View, c: Int, j: Int, g: list[list[Val]], worst: Var) -> None:
        for row in g:
            for v in row:
                worst.imax(magnitude(v))
        if self.flip:
            g = [row[::-1] for row in g[::-1]]
        out = two_d(by_rows, self.g, g)
        step_through(self.k, u.addr(0, c, j * self.k.V), u.strides[0], [v for row in out for v in row])

    # --- products ---
    def multiply(self, v: View, u: View, m: View, c0: Int, c1: Int) -> None:
        """M (+)= V · U over vectors of channels [c0, c1); U begins at channel 0 of them.

        Every block of channels is summed by itself and then added: a shorter chain, a smaller error.
        """
        k, V = self.k, self.k.V
        every = k.vector(0, NR)
        for p in k.range(self.positions):
            for block in k.range(self.blocks):
                acc = k.tile(self.MR, every)
                for c in k.range(c0, c1):
                    a = View(k, v.addr(block, p, c, 0, 0), (self.MR, V))
                    b = View(k, u.addr(p, (c - c0) * V, 0), (V, self.B))
                    product(k, acc, (0, V), a.load, lambda l: b[l, every], unroll=1)  # noqa: B023
                out = m.at(block, p)
                for first in k.either(k.compare("==", c0, 0)):
                    for i, s in enumerate(acc):
                        out[i, every] = s if first else out[i, every] + s

    # --- M to y ---
    def finish(self, v: Val, lanes: Lanes | Int) -> Val:
        v = v if self.b is None else v + self.b[lanes]
        return maximum(v, 0.0) if self.relu else v

    def give_y(self, g: Int, o: Int, products: View, ys: View | None) -> None:
        """Output channels [o, o + B) of a group: products to y."""
        k, m = self.k, self.m
        n0, count, first = self.group(g)
        h0 = first * m
        height = k.min(self.tile_rows * m, self.P - h0)
        for j in k.range(NR):
            o1 = o + j * k.V
            lanes = k.first(o1, self.K - o1)
            if ys is None:
                for i, ty, tx, block, place in self.each_tile(count):
                    h, w = h0 + ty * m, tx * m
                    out = self.tile_out(products, block, place, j, lanes)
                    to = View(k, self.y.addr(n0 + i, 0, h, w), (1, 1, 1), (*self.y.strides[2:], 1))
                    for whole in k.either((h + m <= self.P) & (w + m <= self.Q)):
                        for r in range(m):
                            for s in range(m):
                                inside = lanes if whole else lanes.where((h + r < self.P) & (w + s < self.Q))
                                to[r, s, inside] = out[r][s]
                continue
            for i in k.range(count):
                for ty in k.range(k.ceil_div(height, m)):
                    for back in k.range(self.across):  # from the right: what runs over a row is overwritten
                        tx = self.across - 1 - back
                        t = (i * self.tile_rows + ty) * self.across + tx
                        out = self.tile_out(products, t // self.MR, t % self.MR, j, lanes)
                        for r in range(m):
                            to = View(k, ys.addr((ty * m + r) * self.Q + tx * m, 0), (1, k.V))
                            for s in range(m):
                                to[s, k.vector()] = out[r][s]
                with k.when(o1 < self.K):
                    self.turn_out(n0 + i, o1, h0 * self.Q, height * self.Q, ys)

    def tile_out(self, products: View, block: Int, place: Int, j: Int, lanes: Lanes) -> list[list[Val]]:
        """The m × m outputs of one tile for one vector of output channels."""
        k = self.k
        at = View(k, products.addr(block, 0, place, j * k.V), (self.positions, 1), (products.strides[1], 1))
        d = [[at[r * self.n + s, k.vector()] for s in range(self.n)] for r in range(self.n)]
        return [[self.finish(v, lanes) for v in row] for row in two_d(by_columns, self.at, d)]

    def turn_out(self, n: Int, o: Int, at: Int, count: Int, ys: View) -> None:
        """`count` neighbouring pixels of V planes from [pixel][lane] to the planes.

        Planes behind the last fall on it, before what is meant for it.
        """
        k, V = self.k, self.k.V
        for p in k.range(0, count, V):
            square = transpose([ys[p + i, k.vector()] for i in range(V)])
            lanes = k.first(p, count - p)
            for i, v in reversed(list(enumerate(square))):
                View(k, self.y.addr(n, self.clamp(o + i), 0, 0), (1,))[lanes + at] = v

    # --- the refuge: what is too large for the transforms, or no number ---
    def direct(self, g: Int, o: Int) -> None:
        """Output channels [o, o + B) of a group by the direct sum, one product at a time."""
        k, m = self.k, self.m
        n0, count, first = self.group(g)
        for i in k.range(count):
            for h in k.range(first * m, k.min((first + self.tile_rows) * m, self.P)):
                if self.dst == "w":
                    self.direct_planes(n0 + i, h, o)
                else:
                    self.direct_pixels(n0 + i, h, o)

    def rows_of(self, h: Int):  # type: ignore[no-untyped-def]
        """(source row, its row of taps) for each that lies inside."""
        k = self.k
        for r in k.range(TAPS):
            at = h + r - self.pad_h
            with k.when((at >= 0) & (at < self.H)):
                yield at, (2 - r if self.flip else r)

    def direct_planes(self, n: Int, h: Int, o: Int) -> None:
        """Vectors along a row, 8 output channels at a time."""
        k, some = self.k, 8
        for q in k.range(0, self.Q, k.V):
            for o1 in k.range(o, k.min(o + self.B, self.K), some):
                acc = k.tile(some, k.vector())
                for c in k.range(self.C):
                    for row, r in self.rows_of(h):
                        for s in k.range(TAPS):
                            p = k.vector(q + s - self.pad_w)
                            pos = k.positions(p, "i32")
                            p = p.where((pos >= 0) & (pos < k.to_int(self.W, "i32")))
                            v, tap = self.x[n, c, row, p], 2 - s if self.flip else s
                            for e, a in enumerate(acc):
                                a += self.w[self.clamp(o1 + e), c, r, tap] * v
                for e, a in enumerate(acc):
                    at = self.clamp(o1 + e)
                    self.y[n, at, h, k.first(q, self.Q - q)] = self.finish(a.get(), at)

    def direct_pixels(self, n: Int, h: Int, o: Int) -> None:
        """Vectors along output channels, 4 pixels at a time."""
        k, some, w = self.k, 4, self.w
        turned = View(k, w.ptr, (1, 1, 1, 1), (*w.strides[1:], w.strides[0]))
        for j in k.range(NR):
            lanes = k.first(o + j * k.V, self.K - o - j * k.V)
            for q in k.range(0, self.Q, some):
                acc = k.tile(some, k.vector())
                for c in k.range(self.C):
                    for row, r in self.rows_of(h):
                        for s in k.range(TAPS):
                            v = turned[c, r, 2 - s if self.flip else s, lanes]
                            for e, a in enumerate(acc):
                                at = q + e + s - self.pad_w
                                inside = k.condition((at >= 0) & (at < self.W))
                                one = self.x[n, c, row, k.min(k.max(at, 0), self.W - 1)]
                                a += select(inside, one, 0.0) * v
                for e, a in enumerate(acc):
                    with k.when(k.compare("<", q + e, self.Q)):
                        to = View(k, self.y.addr(n, 0, h, q + e), (1,), (1,))
                        to[lanes] = self.finish(a.get(), lanes)


def magnitude(v: Val) -> Val:
    """|v| as an integer that grows with it; infinity and NaN are above every number."""
    return v.bits("i32") & 0x7FFFFFFF


def step_through(k: Kernel, start: object, step: Int, values: Sequence[Val]) -> None:
    """One vector after another, each `step` elements behind the last."""
    at = View(k, start, (1,), (1,))
    for i, v in enumerate(values):
        at[k.vector()] = v
        if i + 1 < len(values):
            at = View(k, at.addr(step), (1,), (1,))


def winograd(k: Kernel, m: int, rows: int, src: str, dst: str, weights: str, flip: bool, whole: bool,
             bias: bool, relu: bool) -> None:  # fmt: skip
    """3×3, stride 1, fp32: fprop, or dgrad with w flipped and its channels' roles exchanged.

    src, dst: "w" vectors along rows (NCHW), "c" along channels (NHWC). weights: which dimension of w has
    neighbours next to each other: its "taps", the "red"uction's or the "out"put's channels.

    whole=True: w is transformed once; a unit is a group with all output channels, its V in its own scratch.
    whole=False (few tiles, many channels): x is transformed once; a unit is a group and `k_block` output
    channels, whose weights it transforms, block of channels by block, into its own scratch.
    """
    k.quick = True  # a third less to compile
    p = Program(k, m, rows, src, dst, weights, flip, bias, relu)
    V, B, positions = k.V, p.B, p.positions
    k_block, c_block = k.size("k_block", multiple=B), k.size("c_block")  # channels, vectors of channels
    panels = k.ceil_div(p.K, B)

    def square() -> View | None:
        return k.scratch(TAPS * TAPS, V, V) if weights == "red" else None

    if whole:
        u_step = p.vectors * V * B + V
        u_all = k.shared(panels * positions * u_step)
        pieces = k.ceil_div(p.vectors, c_block)
        w_seen = k.shared(panels * pieces, dtype="i32")
        for lo, hi in k.chunk(panels * pieces):
            tile = square()
            for i in k.range(lo, hi):
                panel, c0 = i // pieces, i % pieces * c_block
                worst = k.var(k.zeros(1, "i32"))
                u = p.of_u(u_all, panel * positions * u_step + c0 * (V * B), u_step)
                p.take_w(panel * B, c0, k.min(c0 + c_block, p.vectors), u, worst, tile)
                w_seen[i] = worst.max()
        for lo, hi in k.chunk(p.groups):
            xs = k.scratch(1, p.images * p.image + V, V)
            v, products = p.of_v(k.scratch(p.v_size), 0), p.of_m(k.scratch(p.m_size))
            ys = k.scratch((p.tile_rows * m + 1) * p.Q + V, V) if dst == "w" else None
            for g in k.range(lo, hi):
                seen = k.var(k.zeros(1, "i32"))
                for c in k.range(p.vectors):
                    p.take_x(g, c, xs, v, seen)
                x_worst = seen.max()
                for panel in k.range(panels):
                    worst = k.var(x_worst)
                    for c0, c1 in k.blocks(p.vectors, c_block):
                        worst.imax(w_seen[panel * pieces + c0 // c_block])
                        at = panel * positions * u_step + c0 * (V * B)
                        p.multiply(v, p.of_u(u_all, at, u_step), products, c0, c1)
                    finish(p, g, panel * B, worst, products, ys)
        return

    v_all = k.shared(p.groups * p.v_size)
    x_seen = k.shared(p.groups * p.vectors, dtype="i32")
    for lo, hi in k.chunk(p.groups * p.vectors):
        xs = k.scratch(1, p.images * p.image + V, V)
        for i in k.range(lo, hi):
            g, c = i // p.vectors, i % p.vectors
            worst = k.var(k.zeros(1, "i32"))
            p.take_x(g, c, xs, p.of_v(v_all, g * p.v_size), worst)
            x_seen[i] = worst.max()
    chunks = k.ceil_div(p.K, k_block)
    per = k_block // B
    m_size, u_step = p.m_size, c_block * (V * B) + V
    for lo, hi in k.chunk(chunks * p.groups):
        u_own, m_own = k.scratch(positions * u_step), k.scratch(per * m_size)
        ys = k.scratch((p.tile_rows * m + 1) * p.Q + V, V) if dst == "w" else None
        tile = square()
        for i in k.range(lo, hi):
            g, first = i % p.groups, i // p.groups * k_block
            v = p.of_v(v_all, g * p.v_size)
            count = k.ceil_div(k.min(k_block, p.K - first), B)
            seen = k.var(k.zeros(1, "i32"))
            worst = k.var(Val(k, [k.zeros(1, "i32").lane(0).v[0]]))
            for c in k.range(p.vectors):
                worst.imax(x_seen[g * p.vectors + c])
            for c0, c1 in k.blocks(p.vectors, c_block):
                for j in k.range(count):
                    u = p.of_u(u_own, 0, u_step)
                    p.take_w(first + j * B, c0, c1, u, seen, tile)
                    p.multiply(v, u, p.of_m(View(k, m_own.addr(j * m_size), (1,))), c0, c1)
            worst.imax(seen.max())
            for j in k.range(count):
                finish(p, g, first + j * B, worst, p.of_m(View(k, m_own.addr(j * m_size), (1,))), ys)


def finish(p: Program, g: Int, o: Int, worst: Var, products: View, ys: View | None) -> None:
    """Output channels [o, o + B) of a group, by the direct sum if a value is too large for the transforms."""
    for fits in p.k.either(worst.get() <= LIMIT):
        if fits:
            p.give_y(g, o, products, ys)
        else:
            p.direct(g, o)

