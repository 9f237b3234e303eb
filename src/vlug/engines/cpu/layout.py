"""Layout engine: reshape, transpose, slice, concatenate, broadcast, pad, in any strides and dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import Axis, folded, native, no_kernels, parts, product
from vlug.graph import Graph
from vlug.ops.base import need
from vlug.tensor import Tensor, contiguous_strides

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["LayoutEngine"]

_COPIES = ("reshape", "transpose", "slice", "concatenate", "broadcast")
_OPS = (*_COPIES, "pad", "slice_backward")
#: Elements of a block.
BLOCK = 16384
#: Side of a block that is turned: its lines of both tensors stay in the first cache.
SIDE = 64
#: Entries of the tables of one axis.
MOST = 1 << 20
NOWHERE = -(1 << 58)
ITEMS = {1: "b8", 2: "b16", 4: "i32", 8: "i64"}


class LayoutEngine(Engine):
    """What moves elements and computes nothing; only the item size of a dtype counts."""

    name: ClassVar[str] = "cpu.layout"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        if len(graph) != 1 or graph.nodes[0].op.name not in _OPS:
            return f"takes one of {', '.join(_OPS)} alone"
        node = graph.nodes[0]
        x, y = need(graph.ins(node)[:1])[0], need(graph.outs(node))[0]
        if x.dtype != y.dtype:
            return f"y is {y.dtype}, x {x.dtype}: bytes are moved as they are"
        if node.op.name == "reshape" and _shared(x, y) is None:
            return f"neither x {x.spec} nor y {y.spec} is row-major and their dims have no common division"
        if node.op.name not in _COPIES and max(y.dim, default=0) > MOST:
            return f"tables of {max(y.dim)} entries for one dimension, at most {MOST} are built"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.8

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        node = graph.nodes[0]
        op: Any = node.op.bind(graph.ins(node))
        ins, y = [t for t in graph.ins(node) if t is not None], need(graph.outs(node))[0]
        if op.name in _COPIES:
            return _copies(_pieces(op, ins, y), ins, y, device)
        return _taken(op, ins[0], y, device)


# --- copies --------------------------------------------------------------------------------------
def _pieces(op: Any, ins: Sequence[Tensor], y: Tensor) -> list[tuple[int, int, list[Axis]]]:
    """For each input: where its elements start, where in y, and the loops (strides of y first)."""
    if op.name == "concatenate":
        at, found, axis = 0, [], op.axis % y.rank
        for t in ins:
            axes = [Axis(d, (b, a)) for d, b, a in zip(t.dim, y.stride, t.stride)]
            found.append((0, at * y.stride[axis], axes))
            at += t.dim[axis]
        return found
    (x,) = ins
    if op.name == "reshape":
        return [(0, 0, _shared(x, y) or [])]
    stride: Sequence[int] = x.stride
    first = 0
    if op.name == "transpose":
        stride = [x.stride[a] for a in op.permutation]
    if op.name == "slice":
        stride = [a * s for a, s in zip(x.stride, op.step)]
        first = sum(a * s for a, s in zip(x.stride, op.start)) if y.numel else 0
    if op.name == "broadcast":
        more = y.rank - x.rank
        stride = [0] * more + [0 if d == 1 else s for d, s in zip(x.dim, x.stride)]
    return [(first, 0, [Axis(d, (b, a)) for d, b, a in zip(y.dim, y.stride, stride)])]


def _shared(x: Tensor, y: Tensor) -> list[Axis] | None:
    """Loops over which both tensors, of different dims, have strides; None if there are none."""
    if not x.numel:
        return [Axis(0, (1, 1))]
    if _row_major(x):
        return [Axis(d, (b, a)) for d, b, a in zip(y.dim, y.stride, contiguous_strides(y.dim))]
    if _row_major(y):
        return [Axis(d, (b, a)) for d, b, a in zip(x.dim, contiguous_strides(x.dim), x.stride)]
    axes = []
    left = [[d, s] for d, s in zip(x.dim, x.stride) if d > 1]
    right = [[d, s] for d, s in zip(y.dim, y.stride) if d > 1]
    while left and right:  # from the last dimension on
        (a, sa), (b, sb) = left[-1], right[-1]
        n = math.gcd(a, b)
        if n != min(a, b):
            return None
        axes.append(Axis(n, (sb, sa)))
        for side, d, s in ((left, a, sa), (right, b, sb)):
            side.pop()
            if d > n:
                side.append([d // n, s * n])
    return axes[::-1]


def _row_major(t: Tensor) -> bool:
    return all(s == c for d, s, c in zip(t.dim, t.stride, contiguous_strides(t.dim)) if d > 1)


def _copies(
    pieces: Sequence[tuple[int, int, list[Axis]]], ins: Sequence[Tensor], y: Tensor, device: CpuDevice
) -> Program:
    from vlug.engines.cpu.kernels.layout import copies

    given = [((i, *at), folded(axes)) for i, (*at, axes) in enumerate(pieces) if product(axes)]
    hows = [_how(axes) for _, axes in sorted(given, key=lambda p: -product(p[1]))]
    how = hows[0] if hows else "dense"  # the largest piece's; any goes by rows of one element
    if how == "turn" and len(set(hows)) > 1:
        how = "strided"
    nests = [(start, _inner(axes, how)) for start, axes in given]
    outer = max((len(axes) for _, axes in nests), default=2) - 2
    words: list[int] = []
    units = 0
    for start, axes in nests:
        full = [Axis(1, (0, 0))] * (outer + 2 - len(axes)) + axes
        *rest, m, n = full
        NB = min(n.extent, SIDE if how == "turn" else BLOCK)
        MB = min(m.extent, SIDE if how == "turn" else max(BLOCK // NB, 1))
        last = units + product(rest) * -(-m.extent // MB) * -(-n.extent // NB)
        words += [units, last, *start, *(a.extent for a in full), MB, NB]
        words += [a.strides[1] for a in full] + [a.strides[0] for a in full]
        units = last
    nbytes = 2 * y.nbytes
    values = {"P": len(ins), "total": units, **parts(units, nbytes)}
    if not units:
        values["parts"] = 0
    missing = len(ins) - len(nests)  # rows of empty inputs: no units
    words += [0] * (missing * (5 + 3 * (outer + 2) + 2))
    made = native(
        copies,
        device,
        [*(t.name for t in ins), y.name],
        values,
        item=ITEMS[y.dtype.itemsize],
        outer=outer,
        how=how,
        pieces=len(ins),
    )
    return replace(made, args=(*made.args, *words))


def _how(axes: Sequence[Axis]) -> str:
    """How the loops of one piece (y's strides first) are gone through."""
    if not axes or any(a.strides == (1, 1) for a in axes):
        return "dense"
    turned = any(a.strides[0] == 1 for a in axes) and any(a.strides[1] == 1 for a in axes)
    return "turn" if turned else "strided"


def _inner(axes: Sequence[Axis], how: str) -> list[Axis]:
    """At least two loops, the ones that `how` wants last."""
    axes = list(axes)
    if how == "dense":
        at = next((i for i, a in enumerate(axes) if a.strides == (1, 1)), None)
        axes.append(axes.pop(at) if at is not None else Axis(1, (1, 1)))
    elif how == "turn":
        n = axes.pop(next(i for i, a in enumerate(axes) if a.strides[0] == 1))
        m = axes.pop(next(i for i, a in enumerate(axes) if a.strides[1] == 1))
        axes += [m, n]
    return [Axis(1, (0, 0))] * (2 - len(axes)) + axes


# --- gathers -------------------------------------------------------------------------------------
def _taken(op: Any, x: Tensor, y: Tensor, device: CpuDevice) -> Program:
    from vlug.engines.cpu.kernels.layout import taken

    rank = y.rank
    indices = op.indices(x.dim)
    order = sorted(range(rank), key=lambda a: y.stride[a] if y.dim[a] > 1 else 0, reverse=True)
    dense = [a for a in order if y.stride[a] == 1 and y.dim[a] > 1]
    inner = dense[-1] if dense else None
    rest = [a for a in order if (a != inner and y.dim[a] != 1) or (y.dim[a] == 1 and indices[a][0] != 0)]
    rest = [a for a in rest if a != inner]
    last = indices[inner] if inner is not None else np.zeros(1, np.int64)
    step = x.stride[inner] if inner is not None else 1
    lo, hi, shift = _run(last)
    if hi - lo <= 1:  # no run: one element alone goes by the table, as its place times the step
        lo = hi = shift = 0
    E = [y.dim[a] for a in rest]
    values: dict[str, Any] = {"N": len(last), "lo": lo, "hi": hi, "shift": shift, "step": step}
    values |= {f"e{i}": y.dim[a] for i, a in enumerate(rest)}
    values |= {f"s{i}": y.stride[a] for i, a in enumerate(rest)}
    total = math.prod(E) if y.numel else 0
    RB = max(min(total, BLOCK // max(len(last), 1)), 1)
    values |= {"RB": RB, "fill": _bits(op, y), **parts(-(-total // RB), y.nbytes * 2)}
    if not total:
        values["parts"] = 0
    tables = [np.where(indices[a] < 0, NOWHERE, indices[a] * x.stride[a]) for a in rest]
    tables.append(np.where(last < 0, NOWHERE, last * step))
    made = native(
        taken,
        device,
        [x.name, y.name],
        values,
        item=ITEMS[y.dtype.itemsize],
        outer=len(rest),
        unit=step == 1 or lo == hi,
    )
    return replace(made, args=(*made.args, *np.concatenate(tables).tolist()))


def _run(index: np.ndarray[Any, Any]) -> tuple[int, int, int]:
    """[lo, hi) of the longest run of neighbours, and how far their numbers are from their places."""
    if not index.size:
        return 0, 0, 0
    breaks = np.nonzero((np.diff(index) != 1) | (index[1:] < 0) | (index[:-1] < 0))[0] + 1
    starts, ends = np.concatenate([[0], breaks]), np.concatenate([breaks, [index.size]])
    best = int(np.argmax(np.where(index[starts] >= 0, ends - starts, 0)))
    if index[starts[best]] < 0:
        return 0, 0, 0
    return int(starts[best]), int(ends[best]), int(index[starts[best]] - starts[best])


def _bits(op: Any, y: Tensor) -> int:
    """The constant's bits in y's dtype, as an integer."""
    value = np.asarray(getattr(op, "value", 0.0))
    with np.errstate(over="ignore", invalid="ignore"):
        held = value.astype(y.dtype.numpy).reshape(1)
    return int(held.view({1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}[y.dtype.itemsize])[0])
