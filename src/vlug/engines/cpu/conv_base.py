"""What the convolution engines share: the graphs they take, and a convolution as taps on shifted planes.

Every direction is one sum over reduction channels and taps,
    dst[n, o, i · out_step + a] = Σ_c Σ_tap src[n, c, i · in_step + offset(tap, a)] · w[o, c, tap],
for each output phase a (one in fprop; stride many in dgrad, each with its own taps and in_step 1).
The reduction runs over c, then taps in order, whatever the blocking: so blocking never changes a bit.

A convolution in one dimension is one of height 1. In three, the depths of the result are images and the taps
along the depth are channels, each read from a depth of its own (`Depth`): a sum over (c, t) and a plane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from vlug.engines.base import NativeProgram
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.codegen.jit import Compiled
    from vlug.graph import Graph

__all__ = ["DOUBLE", "Axis", "Conv", "ConvGraph", "Depth", "Planes", "divide", "parse", "program", "round_up",
           "share_out", "step_class"]

#: Element types that the CPU convolutions compute in fp32.
DTYPES = ("f32", "bf16", "f16")
#: Those, and what is computed in fp64.
DOUBLE = (*DTYPES, "f64")


@dataclass(frozen=True)
class ConvGraph:
    """The graph that a convolution engine takes: one convolution and what follows it in place.

    src, w, dst: tensors of four dimensions (one spatial dimension is lifted to two) or five.
    op: the convolution with attributes for as many. bias: the one added by channel, or None.
    relu: whether the result is clipped at 0.
    """

    op: Any
    direction: str
    src: Tensor
    w: Tensor
    dst: Tensor
    bias: Tensor | None
    relu: bool

    @property
    def operands(self) -> tuple[str | None, ...]:
        return (self.src.name, self.w.name, self.dst.name, self.bias.name if self.bias is not None else None)


def parse(
    graph: Graph, directions: Sequence[str] = ("fprop", "dgrad"), dtypes: Sequence[str] = DTYPES,
    deep: bool = False, tails: Sequence[str] = ("fprop",),
) -> ConvGraph | str:  # fmt: skip
    """The graph as a convolution with bias and ReLU behind it, or why it is none (a sentence).

    One spatial dimension becomes two, of which the first has size 1; so do three where the planes are joined
    by nothing but their order. deep: take three as well. tails: directions that a bias and a ReLU may follow.
    """
    first, *rest = graph.nodes
    direction = first.op.name.removeprefix("conv_")
    if direction not in directions or not first.op.name.startswith("conv_"):
        wanted = " or ".join(f"conv_{d}" for d in directions)
        return f"the graph begins with {first.op.name}, not with {wanted}"
    ins = [graph.tensors[n] for n in first.inputs if n is not None]
    dst, bias, relu = graph.tensors[first.outputs[0] or ""], None, False
    for node in rest:
        if direction not in tails:
            return f"{node.op.name} follows conv_{direction}, which is taken only alone"
        if relu or node.op.name not in ("bias", "relu") or (node.op.name == "bias" and bias is not None):
            return f"{node.op.name} follows where only a bias and then a ReLU may"
        if node.inputs[0] != dst.name or any(t.name == dst.name for t in graph.outputs):
            return f"the input of {node.op.name} is not just the result before it"
        if node.op.name == "bias":
            if getattr(node.op, "axis", 1) != 1:
                return "the bias is not along the channels"
            bias = graph.tensors[node.inputs[1] or ""]
        else:
            if node.op != type(node.op)():
                return "the ReLU has a slope or a clip of its own"
            relu = True
        dst = graph.tensors[node.outputs[0] or ""]
    src, w = ins[:2]
    rank = src.rank - 2
    if rank > 3:
        return f"{rank} spatial dimensions where this engine has 1 to 3"
    for t in (src, w, dst, bias):
        if t is not None and (t.dtype.name not in dtypes or t.dtype != src.dtype):
            return f"{t.name} is {t.dtype}: this engine takes {', '.join(dtypes)}, the same for all tensors"
    if dst.overlaps:
        return f"elements of {dst.name} share memory"
    found = ConvGraph(first.op, direction, src, w, dst, bias, relu)
    if rank == 1:
        return _lifted(found)
    if rank == 3:
        flat = _joined(found)
        if flat is None and not deep:
            return "3 spatial dimensions where this engine has 2"
        return flat or found
    return found


def _lifted(g: ConvGraph) -> ConvGraph:
    """One spatial dimension as two, the first of size 1."""

    def lift(t: Tensor) -> Tensor:
        return Tensor((*t.dim[:2], 1, *t.dim[2:]), (*t.stride[:2], 0, *t.stride[2:]), t.dtype, t.name)

    return replace(g, op=_with(g.op, lambda v, one: (one, *v)), src=lift(g.src), w=lift(g.w), dst=lift(g.dst))


def _joined(g: ConvGraph) -> ConvGraph | None:
    """Three spatial dimensions as two: the depth joined to the rows or to the batch, if neither has more than
    one tap, none is padded or left out, and both tensors lie evenly there."""
    op = g.op
    simple = [
        g.w.dim[2 + i] == op.stride[i] == 1 and op.pre_padding[i] == op.post_padding[i] == 0 for i in (0, 1)
    ]
    if not simple[0]:
        return None
    ends = [t.normalised for t in (g.src, g.dst)]

    def even(t: Tensor, outer: int, inner: int) -> bool:
        return t.dim[outer] == 1 or t.dim[inner] == 1 or t.stride[outer] == t.dim[inner] * t.stride[inner]

    def join(t: Tensor, outer: int, inner: int) -> Tensor:
        dim, stride = list(t.dim), list(t.stride)
        stride[inner] = stride[outer] if t.dim[inner] == 1 else stride[inner]
        if outer == 0:  # N and D: the depth goes
            stride[0], dim[0] = stride[2], dim[0] * dim[2]
            del dim[2], stride[2]
        else:
            dim[3] *= dim[2]
            del dim[2], stride[2]
        return Tensor(tuple(dim), tuple(stride), t.dtype, t.name)

    w = Tensor((*g.w.dim[:2], *g.w.dim[3:]), (*g.w.stride[:2], *g.w.stride[3:]), g.w.dtype, g.w.name)
    if 0 in g.src.dim or 0 in g.dst.dim:
        return None
    for outer, inner, may in ((2, 3, simple[1]), (0, 2, True)):
        if may and all(even(t, outer, inner) for t in ends):
            src, dst = (join(t, outer, inner) for t in ends)
            return replace(g, op=_with(op, lambda v, one: v[1:]), src=src, w=w, dst=dst)
    return None


def _with(op: Any, change: Callable[[tuple[int, ...], int], tuple[int, ...]]) -> Any:
    """The operation with its attributes of spatial dimensions changed; the second argument is what a
    dimension of size 1 has."""
    names = {"pre_padding": 0, "post_padding": 0, "stride": 1, "dilation": 1}
    more = {"size": change(op.size, 1)} if hasattr(op, "size") else {}
    return replace(op, **{n: change(getattr(op, n), one) for n, one in names.items()}, **more)


@dataclass(frozen=True)
class Depth:
    """The first of three spatial dimensions: position d of the result reads (d · step + t · tap + at) / by of
    the source through tap t, where that is a whole number inside. Strides in elements."""

    source: int = 1
    size: int = 1
    taps: int = 1
    step: int = 0
    tap: int = 0
    at: int = 0
    by: int = 1
    src: int = 0
    dst: int = 0
    w: int = 0

    @classmethod
    def of(cls, g: ConvGraph) -> Depth:
        src, w, dst = (t.normalised for t in (g.src, g.w, g.dst))
        if src.rank == 4:
            return cls()
        pad, stride, dilation = g.op.pre_padding[0], g.op.stride[0], g.op.dilation[0]
        forward = g.direction == "fprop"
        step, tap, at, by = (stride, dilation, -pad, 1) if forward else (1, -dilation, pad, stride)
        return cls(src.dim[2], dst.dim[2], w.dim[2], step, tap, at, by,
                   src.stride[2], dst.stride[2], w.stride[2])  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """One spatial dimension: which source positions each output position reads.

    phases[a] = ((tap, offset), …): output i · out_step + a reads source i · in_step + offset by that tap.
    count = positions i, the most over phases.
    """

    source: int
    size: int
    in_step: int
    out_step: int
    phases: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(
        cls, direction: str, source: int, size: int, taps: int, pad: int, stride: int, dilation: int
    ) -> Axis:
        if direction == "fprop":
            return cls(source, size, stride, 1, (tuple((r, r * dilation - pad) for r in range(taps)),))
        phases = []
        for a in range(min(stride, max(size, 1))):
            # dx[h] takes dy[p] through tap r where h + pad - r · dilation = p · stride
            reach = [(r, a + pad - r * dilation) for r in range(taps)]
            phases.append(tuple((r, d // stride) for r, d in reach if d % stride == 0))
        return cls(source, size, 1, stride, tuple(phases))

    @property
    def count(self) -> int:
        return -(-self.size // self.out_step)

    @property
    def offsets(self) -> list[int]:
        return [o for phase in self.phases for _, o in phase] or [0]

    @property
    def planes(self) -> list[int]:
        """Residues of source positions that are read, modulo in_step: each becomes a packed plane."""
        return sorted({o % self.in_step for o in self.offsets})

    @property
    def low(self) -> int:
        """Least offset in units of in_step."""
        return min(o // self.in_step for o in self.offsets)

    @property
    def high(self) -> int:
        return max(o // self.in_step for o in self.offsets)


@dataclass(frozen=True)
class Conv:
    """A convolution's sizes in the terms of the kernels (see the file's first lines); strides in elements.

    N: images times depths of the result. C, K: reduction channels (times taps along the depth) and output
    channels of a group. w strides: of output channel, reduction channel, tap row, tap column, group.
    """

    N: int
    G: int
    C: int
    K: int
    rows: Axis
    cols: Axis
    src: tuple[int, int, int, int]
    dst: tuple[int, int, int, int]
    w: tuple[int, int, int, int, int]
    bias: int
    dtype: str
    depth: Depth = Depth()

    @classmethod
    def of(cls, g: ConvGraph) -> Conv:
        op, (src, w, dst) = g.op, (t.normalised for t in (g.src, g.w, g.dst))
        axes = [
            Axis.of(g.direction, src.dim[i], dst.dim[i], w.dim[i], op.pre_padding[i], op.stride[i],
                    op.dilation[i])
            for i in (-2, -1)
        ]  # fmt: skip
        G, depth = op.groups, Depth.of(g)
        sk, sc, sr, ss = _four(w.stride)
        out, red = (w.dim[0] // G, w.dim[1]) if g.direction == "fprop" else (w.dim[1], w.dim[0] // G)
        so, sd = (sk, sc) if g.direction == "fprop" else (sc, sk)
        if red == 0:  # an empty sum: one channel that is never inside, without taps
            red, axes = 1, [replace(a, source=0, phases=((),) * len(a.phases)) for a in axes]
            depth = replace(depth, taps=1)
        bias = 0 if g.bias is None else g.bias.normalised.stride[0]
        return cls(src.dim[0] * depth.size, G, red * depth.taps, out, axes[0], axes[1], _four(src.stride),
                   _four(dst.stride), (so, sd, sr, ss, sk * (w.dim[0] // G)), bias, src.dtype.name,
                   depth)  # fmt: skip

    @property
    def taps(self) -> int:
        """Taps over all output phases."""
        return sum(map(len, self.rows.phases)) * sum(map(len, self.cols.phases))

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return 0 in (self.N, self.G, self.K, self.rows.size, self.cols.size)

    @property
    def flops(self) -> int:
        return 2 * self.N * self.G * self.K * self.C * self.taps * self.rows.count * self.cols.count


def _four(s: Sequence[int]) -> tuple[int, int, int, int]:
    """What stands for N, C and the last two dimensions."""
    return s[0], s[1], s[-2], s[-1]


@dataclass(frozen=True)
class Planes:
    """How a band of source rows lies in scratch: flat zero-padded planes in which a tap is a constant offset.

    A plane holds `rows` rows of `images` images side by side, `pitch` elements a row, `width` an image:
    its columns [first, first + valid) and at least as many zeros as any tap reaches beyond, shared between
    neighbours. Output (i, image, j) is flat position i · pitch + image · width + j.

    Rows longer than `tile` outputs are cut in tiles of that many, a unit each; their planes hold all columns
    that a tile reads, padding too.
    """

    images: int
    band: int
    rows: int
    width: int
    first: int
    valid: int
    lead: int
    plane: int
    channel: int
    tile: int

    @classmethod
    def of(cls, c: Conv, band: int, images: int, slack: int, tile: int = 0) -> Planes:
        cols, rows = c.cols, c.rows
        count = min(tile, cols.count) if tile else cols.count
        end = count + cols.high
        if count < cols.count:
            first, last, left, right = cols.low, end, 0, 0
        else:
            first = min(max(0, cols.low), end)
            last = min(max(-(-cols.source // cols.in_step), first), max(end, first))
            left, right = max(0, first - cols.low), max(0, end - last)
        width = max(last - first + max(left, right), count)
        n = band + rows.high - rows.low
        plane = left + n * width * images + right + slack
        channel = plane * len(rows.planes) * len(cols.planes)
        channel = -(-channel // 16) * 16
        if channel % 256 == 0 or channel % 1024 < 48:
            channel += 48  # whole multiples of a page would fall into the same cache sets
        return cls(images, band, n, width, first, last - first, left, plane, channel, max(count, 1))

    @property
    def pitch(self) -> int:
        return self.images * self.width

    def taps(self, c: Conv) -> list[list[tuple[int, int]]]:
        """For each output phase its taps: (offset in the packed planes, offset in the weights)."""
        out = []
        for row_taps in c.rows.phases:
            for col_taps in c.cols.phases:
                phase = []
                for r, dr in row_taps:
                    for s, ds in col_taps:
                        plane = c.rows.planes.index(dr % c.rows.in_step) * len(c.cols.planes)
                        plane += c.cols.planes.index(ds % c.cols.in_step)
                        at = self.lead + (dr // c.rows.in_step - c.rows.low) * self.pitch
                        at += ds // c.cols.in_step - self.first
                        phase.append((plane * self.plane + at, r * c.w[2] + s * c.w[3]))
                out.append(phase)
        return out


def step_class(step: int, stride: int) -> int:
    """Elements between columns that are read one after another: 1 or 2 as a constant, else 0 (from args)."""
    return step if stride == 1 and step <= 2 else 0


def weight_run(c: Conv, phases: list[list[tuple[int, int]]], taps_first: bool) -> int:
    """How many elements of the reduction follow each other in the weights; -1: all packed together."""
    if taps_first:
        return -1 if c.w[1] == 1 else 1
    offsets = [w for _, w in phases[0]]
    if len(phases) > 1 or offsets != list(range(len(offsets))):
        return 1
    if c.depth.taps > 1 and c.depth.w != len(offsets):
        return len(offsets)
    return -1 if c.w[1] == len(offsets) * c.depth.taps else len(offsets)


def program(
    kernel: Compiled, g: ConvGraph, c: Conv, planes: Planes, taps_first: bool, more: dict[str, int]
) -> NativeProgram:
    """A compiled kernel of this family bound to a convolution: named arguments, then the lists of taps."""
    taps = planes.taps(c)
    before = [0]
    for phase in taps:
        before.append(before[-1] + len(phase))
    every = [t for phase in taps for t in phase]
    lists = [*before, *(x for x, _ in every), *(w for _, w in every), *c.rows.planes, *c.cols.planes]
    names = ("n", "c", "y", "x")
    values: dict[str, int | float] = {
        "N": c.N, "G": c.G, "C": c.C, "K": c.K,
        "src_h": c.rows.source, "src_w": c.cols.source, "dst_h": c.rows.size, "dst_w": c.cols.size,
        "row_step": c.rows.in_step, "col_step": c.cols.in_step,
        "row_out": c.rows.out_step, "col_out": c.cols.out_step,
        "row_phases": len(c.rows.phases), "col_phases": len(c.cols.phases), "taps": len(every),
        "row_planes": len(c.rows.planes), "col_planes": len(c.cols.planes), "low": c.rows.low,
        **{f"src_{n}": s for n, s in zip(names, c.src)}, **{f"dst_{n}": s for n, s in zip(names, c.dst)},
        "w_o": c.w[0], "w_c": c.w[1], "w_g": c.w[4], "bias": c.bias,
        "w_run": weight_run(c, taps, taps_first),
        "images": planes.images, "band": planes.band, "band_rows": planes.rows, "width": planes.width,
        "first": planes.first, "valid": planes.valid, "lead": planes.lead, "plane": planes.plane,
        "channel": planes.channel, "lists": len(kernel.arg_names), "tile": planes.tile,
        **{f"depth_{f.name}": getattr(c.depth, f.name) for f in fields(c.depth)}, **more,
    }  # fmt: skip
    return NativeProgram(
        kernel.address, g.operands, (*kernel.args(values), *lists), kernel.shared_bytes(values),
        kernel.part_bytes(values), (kernel.name,), kernel)  # fmt: skip


def round_up(n: int, to: int) -> int:
    return -(-n // to) * to


def share_out(
    sizes: dict[str, int], least: dict[str, int], units: Callable[[dict[str, int]], int], cores: int
) -> dict[str, int]:
    """Halves the block sizes named in `least`, in that order and no further, until every core has a unit.

    Blocking changes no result, so the core count may decide it.
    """
    sizes = dict(sizes)
    for name, low in least.items():
        while units(sizes) < cores and sizes[name] > low:
            sizes[name] = max(low, -(-sizes[name] // 2))
    return sizes


def divide(n: int, limit: int) -> int:
    """Size of equal-ish pieces of n that are at most `limit` long."""
    limit = max(1, limit)
    return math.ceil(n / math.ceil(n / limit)) if n else 1
