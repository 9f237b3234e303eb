"""Winograd's fast convolution: 3×3, stride 1, fp32, fprop with bias and ReLU, and dgrad; NCHW and NHWC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlug.codegen import isa as isas
from vlug.codegen.jit import compiled
from vlug.engines.base import Engine, EngineConfig, NativeProgram
from vlug.engines.cpu.conv_base import ConvGraph, divide, parse, round_up
from vlug.engines.cpu.nest import no_kernels
from vlug.engines.cpu.winograd_kernels import NR, TAPS, winograd
from vlug.graph import Graph

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["Winograd"]

#: Least channels for which F(4×4) keeps within twice the error of a sequential fp32 sum (measured, the most
#: of several runs: 1.4 at 64 channels, 2.0 at 32, 2.7 at 8; F(2×2) has 0.7 at 8).
ACCURATE = 64
#: Fewer channels in or out, or fewer multiplications, and the transforms cost more than they save.
LEAST_CHANNELS, LEAST_FLOPS = 16, 30e6


@dataclass(frozen=True)
class Case:
    """A convolution as the kernel sees it; w: strides of output, reduction channel, tap row, column."""

    g: ConvGraph
    N: int
    C: int
    K: int
    H: int
    W: int
    P: int
    Q: int
    pad: tuple[int, int]
    src: tuple[int, ...]
    dst: tuple[int, ...]
    w: tuple[int, int, int, int]
    flip: bool
    src_kind: str
    dst_kind: str
    weights: str

    @classmethod
    def of(cls, g: ConvGraph) -> Case | str:
        """The case of a graph, or why the engine does not take it."""
        op, src, w, dst = g.op, g.src.normalised, g.w.normalised, g.dst.normalised
        if src.dtype.name != "f32":
            return f"{src.dtype}: the transforms lose more than 16-bit numbers hold; only f32"
        if w.dim[2:] != (TAPS, TAPS):
            return f"a window of {w.dim[2]}x{w.dim[3]}, not 3x3"
        for what, values in (("stride", op.stride), ("dilation", op.dilation), ("groups", (op.groups,))):
            if set(values) != {1}:
                return f"{what} {'x'.join(map(str, values))}, not 1"
        if 0 in (*src.dim, *dst.dim):
            return "a dimension is empty"
        flip = g.direction == "dgrad"
        pads = tuple(2 - p if flip else p for p in op.pre_padding)
        sk, sc, sr, ss = w.stride
        strides = (sc, sk, sr, ss) if flip else (sk, sc, sr, ss)
        kinds = [layout(t.stride) for t in (src, dst)]
        for t, kind in ((g.src, kinds[0]), (g.dst, kinds[1])):
            if not kind:
                return f"neither rows nor channels of {t.name} lie next to each other in memory"
        if kinds[1] == "w" and dst.stride[2] != dst.dim[3] and dst.dim[2] > 1:
            return f"the rows of {g.dst.name} do not follow each other without a gap"
        packed = [n for n, yes in (("taps", strides[2:] == (TAPS, 1)), ("out", strides[0] == 1),
                                 ("red", strides[1] == 1)) if yes]  # fmt: skip
        if not packed:
            return f"neither taps nor channels of {g.w.name} lie next to each other in memory"
        if g.bias is not None and g.bias.normalised.stride[0] != 1:
            return "the bias is not contiguous"
        (N, C, H, W), (_, K, P, Q) = src.dim, dst.dim
        return cls(g, N, C, K, H, W, P, Q, (pads[0], pads[1]), src.stride, dst.stride, strides, flip,
                   kinds[0], kinds[1], packed[0])  # fmt: skip

    @property
    def flops(self) -> int:
        """Of the direct form."""
        return 2 * self.N * self.C * self.K * self.P * self.Q * TAPS**2

    @property
    def m(self) -> int:
        return 4 if self.C >= ACCURATE else 2

    def tiles(self, m: int) -> tuple[int, int]:
        """Rows and columns of tiles in an image."""
        return -(-self.P // m), -(-self.Q // m)


def layout(stride: tuple[int, ...]) -> str:
    """Which dimension has neighbours next to each other: rows ("w"), channels ("c") or none."""
    return "w" if stride[3] == 1 else "c" if stride[1] == 1 else ""


class Winograd(Engine):
    """F(4×4, 3×3), and F(2×2, 3×3) where channels are few; never less accurate than twice a sequential sum.

    Tensors with values beyond 2^48, infinities or NaN: the output channels and images concerned are computed
    by the direct form.
    """

    name = "cpu.winograd"
    notes = frozenset({"deterministic", "winograd"})

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        why = no_kernels(device)
        if why is not None:
            return why
        g = parse(graph)
        c = g if isinstance(g, str) else Case.of(g)
        if isinstance(c, str):
            return c
        for what, n in (("input", c.C), ("output", c.K)):
            if n < LEAST_CHANNELS:
                return f"{n} {what} channels: below {LEAST_CHANNELS} the direct form is faster"
        if c.flops < LEAST_FLOPS:
            return f"{c.flops / 1e6:.3g} MFLOP: below {LEAST_FLOPS / 1e6:.3g} the direct form is faster"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        c = self._case(graph)
        th, tw = c.tiles(c.m)
        used = c.P * c.Q / (th * tw * c.m**2)
        return (1.6 if c.m == 4 else 1.1) * used

    def knobs(self, graph: Graph, device: CpuDevice) -> dict[str, tuple[int, ...]]:
        """rows: tiles in a product's tile; whole: 1, w transformed once, 0, x; images, tile_rows: of a group;
        c_block, k_block: channels of a block."""
        c = self._case(graph)
        d = choose(c, device)
        more = {"rows": (4, 6, 8, 12, 14), "whole": (0, 1), "images": (1, 2, 4, 8), "tile_rows": (1, 2, 4, 7),
                "c_block": (32, 64), "k_block": (32, 64, 128, 256)}  # fmt: skip
        most = isas.ALL[device.isa].tile_rows(NR)
        more["rows"] = tuple(v for v in more["rows"] if v <= most)
        if c.C < 128:
            more["c_block"] = (32,)  # longer sums: the error bound does not hold
        return {n: (d[n], *(v for v in values if v != d[n])) for n, values in more.items()}

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> NativeProgram:
        c, isa, knobs = self._case(graph), isas.ALL[device.isa], dict(config.knobs)
        m, V, rows = c.m, isa.lanes, knobs["rows"]
        th, tw = c.tiles(m)
        images, tile_rows = min(knobs["images"], c.N), min(knobs["tile_rows"], th)
        g = c.g
        kernel = compiled(
            winograd, isa, m=m, rows=rows, src=c.src_kind, dst=c.dst_kind, weights=c.weights, flip=c.flip,
            whole=bool(knobs["whole"]), bias=g.bias is not None, relu=g.relu)  # fmt: skip
        values: dict[str, int | float] = {
            **{n: getattr(c, n) for n in "NCKHWPQ"},
            "images": images, "tile_rows": tile_rows, "across": tw, "row_groups": -(-th // tile_rows),
            "tiles": round_up(images * tile_rows * tw, rows), "pad_h": c.pad[0], "pad_w": c.pad[1],
            **{f"src_{n}": s for n, s in zip("ncyx", c.src)},
            **{f"dst_{n}": s for n, s in zip("ncyx", c.dst)},
            **{f"w_{n}": s for n, s in zip("ocrs", c.w)},
            "c_block": max(1, knobs["c_block"] // V), "k_block": round_up(min(knobs["k_block"], c.K), NR * V),
        }  # fmt: skip
        return NativeProgram(kernel.address, g.operands, tuple(kernel.args(values))[: len(kernel.arg_names)],
                             kernel.shared_bytes(values), kernel.part_bytes(values), (kernel.name,), kernel)

    def _case(self, graph: Graph) -> Case:
        g = parse(graph)
        c = g if isinstance(g, str) else Case.of(g)
        if isinstance(c, str):
            raise ValueError(f"{self.name}: {c}")
        return c


def choose(c: Case, device: CpuDevice) -> dict[str, int]:
    """Block sizes by cache: see the comments."""
    m, most = c.m, isas.ALL[device.isa].tile_rows(NR)
    th, tw = c.tiles(m)
    n2 = (m + TAPS - 1) ** 2
    # w once where its transform stays near; else x once. By channels only: what depends on the image's size
    # would compile anew for other images
    whole = 4 * n2 * c.C * c.K <= 2 * device.l2
    room = device.l2 // 2 // (4 * n2 * (c.C if whole else 64))  # tiles whose V is half of L2
    if tw * th >= room or whole:
        images, tile_rows = 1, divide(th, max(1, room // tw))
        if tile_rows == th:
            images = divide(c.N, max(1, room // (tw * th)))
    else:
        images, tile_rows = divide(c.N, max(1, room // (tw * th))), th
    # tiles in a product's tile: many channels mean small planes, whose few tiles leave less over by eights
    rows = min(8 if c.C >= 512 else 12, most)
    return {"rows": rows, "whole": int(whole), "images": images, "tile_rows": tile_rows,
            "c_block": 32 if c.C < 128 else 64, "k_block": 64}  # fmt: skip
