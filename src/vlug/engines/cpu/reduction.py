"""Reduction engine: sums, products, extremes and norms over any axes, read in place in any layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import Axis, folded, native, no_kernels, parts, product
from vlug.graph import Graph
from vlug.ops.base import need
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["ReductionBackwardEngine", "ReductionEngine", "reduction_program"]

#: Elements that are summed into one partial sum; the partial sums are then summed.
BLOCK = 16384
#: Columns of a block of column sums: as many partial sums stay in L1.
COLUMNS = 4096


class ReductionEngine(Engine):
    """One reduction over any axes."""

    name: ClassVar[str] = "cpu.reduction"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        if len(graph) != 1 or graph.nodes[0].op.name != "reduction":
            return "takes one reduction alone"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.9

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        node = graph.nodes[0]
        op: Any = node.op
        (x,), (y,) = need(graph.ins(node)), need(graph.outs(node))
        axes = {a % x.rank for a in op.axes} if op.axes else set(range(x.rank))
        return reduction_program(x, y, axes, op.mode, op.keepdim, device)


def reduction_program(
    x: Tensor, y: Tensor, axes: set[int], mode: str, keepdim: bool, device: CpuDevice
) -> Program:
    """The program of y = x reduced over `axes`."""
    from vlug.engines.cpu.kernels.reduction import column_folds, row_folds, short_row_folds

    own = iter(y.stride)
    nest = []
    for i, (d, s) in enumerate(zip(x.dim, x.stride)):
        if i in axes:
            if keepdim:
                next(own)
            nest.append(Axis(d, (s, 0), "j"))
        else:
            nest.append(Axis(d, (s, next(own)), "i"))
    loops = folded(nest)
    kept = [a for a in loops if a.kind == "i"]
    reduced = [a for a in loops if a.kind == "j"]
    count = product(reduced)
    nbytes = x.nbytes + y.nbytes
    columns = bool(kept) and kept[-1].strides[0] == 1 and not (reduced and reduced[-1].strides[0] == 1)
    if columns:
        inner, outer = kept[-1], (kept[:-1], reduced)
    else:
        inner = reduced[-1] if reduced else Axis(1, (1, 0), "j")
        outer = (kept, reduced[:-1])
    rows, total, N = product(outer[1]), product(outer[0]), inner.extent
    NB = min(max(N, 1), COLUMNS if columns else BLOCK)
    JB = max(min(max(rows, 1), BLOCK * (4 if columns else 1) // NB), 1)
    if columns:  # not so many blocks that their sums cost more than the rows
        JB = max(JB, min(64, rows), -(-rows // 256))
    blocks_j, blocks_n = -(-rows // JB), -(-N // NB)
    values: dict[str, Any] = {"N": N, "NB": NB, "JB": JB, "rows": rows, "kept": total}
    if mode == "mean":
        values["count"] = float(count)
    for i, a in enumerate(outer[0]):
        values |= {f"i{i}": a.extent, f"x_i{i}": a.strides[0], f"y_i{i}": a.strides[1]}
    for i, a in enumerate(outer[1]):
        values |= {f"j{i}": a.extent, f"x_j{i}": a.strides[0]}
    values |= {"x_inner": inner.strides[0], "y_inner": inner.strides[1]}
    values |= parts(total * blocks_j * blocks_n, nbytes)
    constants: dict[str, Any] = {"dtypes": (x.dtype.name, y.dtype.name), "mode": mode, "kept": len(outer[0])}
    if columns:
        values |= {"partials": total * blocks_j * N, "groups": total * blocks_n}
        build, unit = column_folds, inner.strides[1] == 1
    elif not outer[1] and blocks_n == 1:  # a row is one sum: no partial ones
        group = max(BLOCK // N, 1)
        values |= {"group": group, **parts(-(-total // group), nbytes)}
        constants["unit"] = inner.strides[0] == 1
        return native(short_row_folds, device, [x.name, y.name], values, **constants)
    else:
        group = max(BLOCK // max(blocks_j * blocks_n, 1), 1)
        values |= {"partials": total * blocks_j * blocks_n, "group": group, "groups": -(-total // group)}
        build, unit = row_folds, inner.strides[0] == 1
    return native(
        build,
        device,
        [x.name, y.name],
        values,
        **constants,
        reduced=len(outer[1]),
        unit=unit,
    )


class ReductionBackwardEngine(Engine):
    """The gradient of the modes that need x: a slice is read twice (to count, or to multiply), then written.

    A slice belongs to one unit of work, but for norms, which need no count, and a few long slices, whose
    blocks are counted apart.
    """

    name: ClassVar[str] = "cpu.reduction_backward"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        node = graph.nodes[0]
        if len(graph) != 1 or node.op.name != "reduction_backward" or node.inputs[1] is None:
            return "takes one reduction_backward that reads x alone"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.5

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        from vlug.engines.cpu.kernels import reduction_backward as kernels

        node = graph.nodes[0]
        op: Any = node.op
        tensors = [*graph.ins(node), *graph.outs(node)]
        dx = need(tensors[3:])[0]
        axes = {a % dx.rank for a in op.axes} if op.axes else set(range(dx.rank))
        kinds = tuple(None if t is None else t.dtype.name for t in tensors)
        strides = list(zip(*(_spread(t, dx, axes, op.keepdim) for t in (tensors[3], *tensors[:3]))))
        loops = folded(
            [Axis(d, s, "j" if i in axes else "i") for i, (d, s) in enumerate(zip(dx.dim, strides))]
        )
        kept = [a for a in loops if a.kind == "i"]
        reduced = [a for a in loops if a.kind == "j"]

        def dense(a: Axis) -> bool:
            return a.strides[0] == a.strides[2] == 1  # of dx and x

        columns = bool(kept) and dense(kept[-1]) and not (reduced and dense(reduced[-1]))
        one = Axis(1, (1, 0, 1, 0), "j")
        inner = kept.pop() if columns else reduced.pop() if reduced else one
        counts = not op.mode.startswith("norm")
        rows, total, N = product(reduced), product(kept), inner.extent
        split = counts and not columns and rows * N >= 2 * BLOCK and total <= 64
        whole = counts and not split
        NB = N if whole and not columns else min(N, COLUMNS // 8 if columns else BLOCK)
        NB = max(NB, 1)
        JB = max(rows if whole else min(rows, BLOCK // NB), 1)
        units = total * -(-rows // JB) * -(-N // NB)
        group = max(BLOCK // max(JB * NB, 1), 1)
        values: dict[str, Any] = {"N": N, "NB": NB, "JB": JB, "rows": rows, "kept": total, "group": group}
        values |= parts(-(-units // group), sum(t.nbytes for t in tensors if t is not None))
        names = [("d", 0), ("g", 1), ("x", 2), ("y", 3)]
        for stem, axes_of in (("i", kept), ("j", reduced)):
            for i, a in enumerate(axes_of):
                values[f"{stem}{i}"] = a.extent
                values |= {f"{n}_{stem}{i}": a.strides[t] for n, t in names}
        values |= {f"{n}_inner": inner.strides[t] for n, t in names}
        return native(
            kernels.columns if columns else kernels.split_rows if split else kernels.rows,
            device,
            [None if t is None else t.name for t in tensors],
            values,
            kinds=kinds,
            mode=op.mode,
            kept=len(kept),
            reduced=len(reduced),
            unit=dense(inner),
        )


def _spread(t: Tensor | None, dx: Tensor, axes: set[int], keepdim: bool) -> tuple[int, ...]:
    """Strides over the dims of dx, 0 along what was reduced and for a tensor that is not there."""
    if t is None:
        return (0,) * dx.rank
    if t.dim == dx.dim:
        return t.stride
    own = iter(t.stride)
    out = []
    for i in range(dx.rank):
        if i in axes:
            if keepdim:
                next(own)
            out.append(0)
        else:
            out.append(next(own))
    return tuple(out)
