"""Engine cpu.conv_wgrad: weight gradients as products over pixels, from NCHW, NHWC or any strides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vlug.engines.base import Engine, EngineConfig, NativeProgram
from vlug.engines.cpu.panels import packing
from vlug.graph import Graph

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["ConvWgrad"]

_DTYPES = ("f32", "bf16", "f16", "f64")
_LANES = {"avx2": 8, "avx512": 16, "neon": 4}
_ROWS = {4: 4, 8: 4, 16: 8}  # MR by lanes, at most those: sums, vectors and a broadcast stay in registers
_BUDGET = 4 << 20  # bytes of partial sums
_ROW = 1024  # pixels of a row of dy; longer ones are cut
_DY_PANEL = 256 << 10  # bytes of a panel of dy


class ConvWgrad(Engine):
    """dw of a convolution in 1 to 3 dimensions with any stride, dilation, padding and groups."""

    name = "cpu.conv_wgrad"
    version = 2

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if len(graph) != 1 or graph.nodes[0].op.name != "conv_wgrad":
            return "the graph is not one conv_wgrad"
        if device.isa not in _LANES:
            return f"it has kernels for {' and '.join(_LANES)}, and the device runs {device.isa}"
        dy, _, dw = _tensors(graph)
        if dy.dtype.name not in _DTYPES:
            return f"it takes {', '.join(_DTYPES)}, and dy is {dy.dtype}"
        if dw.dtype != dy.dtype:
            return f"dw is {dw.dtype} and dy is {dy.dtype}: it writes what it reads"
        if dy.rank > 5:
            return f"it has kernels for one to three spatial dimensions, and there are {dy.rank - 2}"
        if dw.overlaps:
            return "elements of dw share memory"
        return None

    def knobs(self, graph: Graph, device: CpuDevice) -> dict[str, tuple[int, ...]]:
        p = Problem.of(graph)
        tiles = _tiles(p, _LANES[device.isa])
        # A block of a panel of x takes two thirds of the first-level cache.
        pixels = min(max(device.l1 * 2 // 3 // (8 * _LANES[device.isa]) // 64 * 64, 64), 512)
        return {
            "tile": tuple(tiles),
            "pixels": (pixels, 2 * pixels, 4 * pixels),
            "panel": (512, 256, 1024),
        }

    def share(self, graph: Graph, device: CpuDevice) -> float:
        p = Problem.of(graph)
        if not (p.C and p.K):
            return 0.7  # nothing to compute
        width = _LANES[device.isa] * 2
        lanes = p.C / (-(-p.C // width) * width) * p.K / (-(-p.K // 8) * 8)
        return 0.7 * lanes if "e" not in _packings(p, _LANES[device.isa]) else 0.1 * lanes

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> NativeProgram:
        from vlug.codegen.isa import ALL
        from vlug.codegen.jit import bits, compiled
        from vlug.engines.cpu.wgrad_kernels import wgrad

        p = Problem.of(graph)
        knobs = (config[n] for n in ("tile", "pixels", "panel"))
        constants, values = _geometry(p, _LANES[device.isa], *knobs)
        c = compiled(wgrad, ALL[device.isa], **constants)
        dy, x, dw = _tensors(graph)
        args = tuple(bits(values[n]) for n in c.arg_names)
        return NativeProgram(c.address, (dy.name, x.name, dw.name), args, c.shared_bytes(values),
                             c.part_bytes(values), (c.name,), c)


def _tensors(graph: Graph) -> Any:
    node = graph.nodes[0]
    return tuple(graph.tensors[n or ""] for n in (*node.inputs, *node.outputs))


@dataclass(frozen=True)
class Problem:
    """Sizes of a weight gradient; C and K are of a group, strides in elements (N, C or K, rows, columns).

    T, D, depth, step_d, dil_d, pd: of the first of three dimensions: its taps, its sizes in x and in dy,
    stride, dilation, padding; xd, yd, wt: strides there. With fewer dimensions, those of one of size 1.
    """

    G: int
    N: int
    C: int
    K: int
    H: int
    W: int
    P: int
    Q: int
    R: int
    S: int
    sh: int
    sw: int
    dil_h: int
    dil_w: int
    ph: int
    pw: int
    x: tuple[int, ...]
    y: tuple[int, ...]
    w: tuple[int, ...]
    itemsize: int
    dtype: str
    T: int
    D: int
    depth: int
    step_d: int
    dil_d: int
    pd: int
    xd: int
    yd: int
    wt: int

    @classmethod
    def of(cls, graph: Graph) -> Problem:
        dy, x, dw = (t.normalised for t in _tensors(graph))
        op: Any = graph.nodes[0].op
        op = op.bind((dy, x))
        one = (1,) * (5 - dy.rank)  # dimensions in front of those that there are

        def dims(t: Any) -> tuple[int, ...]:
            return (*t.dim[:2], *one, *t.dim[2:])

        def three(v: tuple[int, ...], missing: int) -> tuple[int, ...]:
            return (*(missing for _ in one), *v)

        def strides(t: Any) -> tuple[int, ...]:
            return (*t.stride[:2], *t.stride[2:][-2:]) if dy.rank > 3 else (*t.stride[:2], 0, t.stride[2])

        (N, Ct, D, H, W), (_, Kt, depth, P, Q), (_, _, T, R, S) = dims(x), dims(dy), dims(dw)
        (sd, sh, sw), (dd, dh, dl) = three(op.stride, 1), three(op.dilation, 1)
        pd, ph, pw = three(op.pre_padding, 0)
        of_depth = [t.stride[2] if dy.rank == 5 else 0 for t in (x, dy, dw)]
        return cls(op.groups, N, Ct // op.groups, Kt // op.groups, H, W, P, Q, R, S, sh, sw, dh, dl, ph, pw,
                   strides(x), strides(dy), strides(dw), dy.dtype.itemsize, dy.dtype.name, T, D, depth,
                   sd, dd, pd, *of_depth)

    @property
    def deep(self) -> bool:
        return (self.T, self.D, self.depth) != (1, 1, 1)


def _packings(p: Problem, lanes: int, window: bool = False) -> tuple[str, str, str]:
    """How x, dy and dw are read and written: `panels.packing`; dy "q" in place; dw "c", "t" or "e"."""
    xc, xw = (p.x[1] if p.C > 1 else 1), (p.x[3] if p.W > 1 else 1)
    yk, yq = (p.y[1] if p.K > 1 else 1), (p.y[3] if p.Q > 1 else 1)
    xw = 1 if xw == 0 and p.W == 1 else xw
    x = packing(xc, xw, p.itemsize, lanes, 1 if window else p.sw)
    if yk == 1 and p.K > 1 and p.itemsize * lanes > 16:
        y = "c"
    elif yq == 1 and p.dtype in ("f32", "f64") and _ROWS[lanes] <= p.K:
        y = "q"
    else:
        y = packing(yk, yq, p.itemsize, lanes)
    wc = p.w[1]
    if p.itemsize * lanes == 16:
        w = "e"
    elif wc == 1 or p.C == 1:
        w = "c" if p.C > 1 or p.R * p.S == 1 else "t" if _dense_taps(p) else "e"
    else:
        w = "t" if _dense_taps(p) else "e"
    return x, y, w


def _dense_taps(p: Problem) -> bool:
    """Whether the R·S taps of a filter lie side by side."""
    _, _, wr, ws = p.w
    return (ws == 1 or p.S == 1) and (wr == p.S or p.R == 1)


def _tiles(p: Problem, lanes: int) -> list[int]:
    """Register tiles as vectors · 10 + taps, the default first; taps 0: lanes over a filter's elements."""
    if p.dtype == "f64":  # a vector takes two registers
        return [11]
    tiles = [11, 21] if lanes >= p.C else [21, 11]
    if p.S == 3 and p.sw * p.dil_w == 1:
        tiles.insert(0, 10 + p.S)
    if p.dil_w == 1 and p.R * p.S > 1 and p.C in range(1, lanes + 1):
        tiles.insert(0 if lanes >= 2 * p.C else len(tiles), 20)
    return tiles


def _up(a: int, b: int) -> int:
    return -(-a // b)


def _geometry(
    p: Problem, lanes: int, tile: int, pixels: int, panel_kib: int
) -> tuple[dict[str, Any], dict[str, int]]:
    """The kernel's constants and its arguments."""
    Q, G, N = p.Q, p.G * p.T, p.N * p.depth
    vectors, taps = divmod(tile, 10)
    window, taps = taps == 0, max(taps, 1)
    mr, width = _ROWS[lanes], vectors * lanes
    x_by, dy_by, dw_by = _packings(p, lanes, window)
    lanes_over = p.R * p.S * p.C if window else p.C
    products = 1 if window else p.R * p.S
    # Panels of x: a row for each row of dy if a filter has one row, else all rows that the filters span.
    one_row = p.R == 1
    phases = p.sw if p.S > 1 else 1
    if p.Q > _ROW:  # a band is a piece of a row
        p = replace(p, Q=_up(p.Q, _up(p.Q, _ROW // 2)))
    tiles = _up(Q, p.Q) if Q else 1
    columns = p.Q if p.S == 1 else _up((p.Q - 1) * p.sw + (p.S - 1) * p.dil_w + 1, phases)
    row_step, row_span = (1, 1) if one_row else (p.sh, (p.R - 1) * p.dil_h + 1)
    if taps > 1:
        pixels *= 4  # a vector serves several taps: the second-level cache feeds it, and D is read less often
    elif window:
        pixels = pixels * width // (p.sw * p.R * p.C)
    hb = min(max(pixels // max(p.Q, 1), 1), max(p.P, 1)) if tiles == 1 else 1
    row_bands = _up(p.P, hb)
    hb = _up(p.P, row_bands) if row_bands else 1
    ni = min(max(pixels // max(p.P * p.Q, 1), 1), max(N, 1)) if row_bands == tiles == 1 else 1
    images = _up(N, ni)
    ni = _up(N, images) if images else 1
    bands = images * row_bands * tiles if p.Q else 0
    image = ((hb - 1) * row_step + row_span) * phases * columns
    block = ni * image + lanes  # slack: rows are written in whole vectors
    blocks = _up(lanes_over, width)
    run = max(1, min(blocks, (panel_kib << 10) // (block * width * 4)))
    x_size = run * block * width
    if window:
        columns, run = (p.Q - 1) * p.sw + p.S, blocks
        block = ni * hb * columns + lanes
        x_size = block * p.R * p.C + width
    kp = _up(p.K, mr) * mr
    sums = G * kp * products * blocks * width
    chunks = min(bands, max(1, _BUDGET // max(4 * sums, 1)), _up(32, max(G * blocks, 1)))
    divides = kp == p.K and blocks * width == p.C
    direct = bands > 0 and chunks == 1 and p.dtype in ("f32", "f64") and divides and (p.w[1] == 1 or p.C == 1)
    direct = direct and not window and p.T == 1
    y_pixels = ni * hb * p.Q + lanes
    y_run = max(1, min(_up(p.K, lanes), _DY_PANEL // (y_pixels * lanes * 4)))
    flat = 0
    if p.R * p.S == 1:
        flat = 2 if dy_by != "q" else int((p.y[2] == p.Q and tiles == 1) or hb == 1)
    constants: dict[str, Any] = {
        "x_by": x_by, "dy_by": dy_by, "dw_by": "e" if window else dw_by,
        "step": p.sw if x_by == "w" and not window else 0, "rows": mr,
        "vectors": vectors, "taps": taps, "unroll": 2 if taps == 1 else 7 if lanes == 16 else 2,
        "window": window, "dtype": p.dtype, "deep": p.deep, "tiled": tiles > 1,
    }  # fmt: skip
    values = {
        "G": G, "N": N, "C": p.C, "K": p.K, "H": p.H, "W": p.W, "P": p.P, "Q": Q, "R": p.R, "S": p.S,
        "sh": p.sh, "sw": p.sw, "dil_w": p.dil_w, "ph": p.ph, "pw": p.pw, "ni": ni, "hb": hb, "bands": bands,
        "chunks": chunks, "row_bands": row_bands, "CB": blocks, "run": run, "KB": kp // mr, "KP": kp,
        "k_whole": p.K // mr * mr if dy_by == "q" else p.K, "direct": int(direct),
        "d_size": 0 if direct else sums * chunks, "pixels": block, "image": image, "phases": phases,
        "columns": columns, "row_step": row_step, "row_span": row_span, "row_tap": p.dil_h,
        "row_stride": p.sh if one_row else 1, "flat": flat, "x_size": x_size,
        "y_pixels": y_pixels, "y_run": y_run, "y_size": y_run * y_pixels * lanes,
        "tile": p.Q, "tiles": tiles,
        "groups": p.G, "depth": p.depth, "source": p.D, "depth_step": p.step_d, "depth_tap": p.dil_d,
        "depth_pad": p.pd, "xd": p.xd, "yd": p.yd, "wt": p.wt,
    }  # fmt: skip
    # Bytes of the next band to fetch in each step of the innermost loop, in 1/1024.
    steps = kp // mr * run * products // taps * (ni * hb * p.Q // constants["unroll"])
    y_bytes, x_bytes = (4 * ni * hb * n for n in (p.Q * p.y[3], p.sh * p.W * p.x[3]))
    values |= {"dy_ahead": (y_bytes << 10) // max(steps, 1), "x_ahead": (x_bytes << 10) // max(steps, 1)}
    for port, strides in (("x", p.x), ("y", p.y), ("w", p.w)):
        names = {"x": "nchw", "y": "nkpq", "w": "kcrs"}[port]
        values |= {port + n: s for n, s in zip(names, strides)}
    return constants, values
