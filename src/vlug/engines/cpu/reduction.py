"""Reduction engine: sums and means over any axes, read in place in any layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import Axis, folded, native, no_kernels, parts, product
from vlug.graph import Graph
from vlug.ops.base import need
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["ReductionEngine", "reduction_program"]

#: Elements that are summed into one partial sum; the partial sums are then summed.
BLOCK = 16384
#: Columns of a block of column sums: as many partial sums stay in L1.
COLUMNS = 4096


class ReductionEngine(Engine):
    """Sum or mean over any axes."""

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
        return reduction_program(x, y, axes, op.mode == "mean", op.keepdim, device)


def reduction_program(
    x: Tensor, y: Tensor, axes: set[int], mean: bool, keepdim: bool, device: CpuDevice
) -> Program:
    """The program of y = sum or mean of x over `axes`."""
    from vlug.engines.cpu.kernels.reduction import column_sums, row_sums, short_row_sums

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
    values["count"] = float(count) if mean else 1.0
    for i, a in enumerate(outer[0]):
        values |= {f"i{i}": a.extent, f"x_i{i}": a.strides[0], f"y_i{i}": a.strides[1]}
    for i, a in enumerate(outer[1]):
        values |= {f"j{i}": a.extent, f"x_j{i}": a.strides[0]}
    values |= {"x_inner": inner.strides[0], "y_inner": inner.strides[1]}
    values |= parts(total * blocks_j * blocks_n, nbytes)
    constants: dict[str, Any] = {"dtypes": (x.dtype.name, y.dtype.name), "kept": len(outer[0])}
    if columns:
        values |= {"partials": total * blocks_j * N, "groups": total * blocks_n}
        build, unit = column_sums, inner.strides[1] == 1
    elif not outer[1] and blocks_n == 1:  # a row is one sum: no partial ones
        group = max(BLOCK // N, 1)
        values |= {"group": group, **parts(-(-total // group), nbytes)}
        constants["unit"] = inner.strides[0] == 1
        return native(short_row_sums, device, [x.name, y.name], values, **constants)
    else:
        group = max(BLOCK // max(blocks_j * blocks_n, 1), 1)
        values |= {"partials": total * blocks_j * blocks_n, "group": group, "groups": -(-total // group)}
        build, unit = row_sums, inner.strides[0] == 1
    return native(
        build,
        device,
        [x.name, y.name],
        values,
        **constants,
        reduced=len(outer[1]),
        unit=unit,
    )
