"""Softmax engine: softmax, log-softmax and their gradients along any axis of any layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vlug.codegen.isa import ALL
from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import Axis, folded, native, no_kernels, parts, product
from vlug.graph import Graph
from vlug.ops.base import need

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["SoftmaxEngine"]

_OPS = ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward")
#: Elements of a unit of work.
BLOCK = 16384
#: Columns that are worked on at once: few enough that their rows stay in L2 between the passes.
COLUMNS = 256


class SoftmaxEngine(Engine):
    """softmax, log_softmax and their backward."""

    name: ClassVar[str] = "cpu.softmax"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        if len(graph) != 1 or graph.nodes[0].op.name not in _OPS:
            return "takes one softmax or log-softmax alone"
        kinds = {t.dtype.name for t in graph.tensors.values()}
        if not kinds <= {"f64"} and "f64" in kinds:
            return f"the dtypes {', '.join(sorted(kinds))} are not computed together"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.8

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        from vlug.engines.cpu.kernels import softmax as kernels

        node = graph.nodes[0]
        op: Any = node.op
        tensors = [*need(graph.ins(node)), *need(graph.outs(node))]
        first, backward = tensors[0], op.name.endswith("backward")
        axis, names = op.axis % first.rank, "gyd" if backward else "xy"
        strides = list(zip(*(t.stride for t in tensors)))
        outer = folded([Axis(d, s) for i, (d, s) in enumerate(zip(first.dim, strides)) if i != axis])
        L, along = first.dim[axis], strides[axis]
        unit = L <= 1 or all(s == 1 for s in along)
        dense = [a for a in outer if all(s == 1 for s in a.strides)]
        columns = bool(dense) and (not unit or L <= 1)
        values: dict[str, Any] = {"L": L}
        constants: dict[str, Any] = {"kinds": tuple(t.dtype.name for t in tensors), "logs": "log" in op.name}
        nbytes = sum(t.nbytes for t in tensors)
        if columns:
            N = dense[0].extent
            outer = [a for a in outer if a is not dense[0]]
            NB = min(max(N, 1), COLUMNS)
            values |= {"N": N, "NB": NB, **parts(product(outer) * -(-N // NB), nbytes)}
        else:
            constants["unit"] = unit
            group = max(BLOCK // max(L, 1), 1)
            values |= {"group": group, **parts(-(-product(outer) // group), nbytes)}
        values["count"] = product(outer) if L else 0
        constants["outer"] = len(outer)
        for i, a in enumerate(outer):
            values[f"i{i}"] = a.extent
            values |= {f"{n}_i{i}": s for n, s in zip(names, a.strides)}
        values |= {f"{n}_d0": s for n, s in zip(names, along)}
        shape = "columns" if columns else "rows"
        if not (columns or backward) and 4 * ALL[device.isa].lanes >= L:
            shape = "short_rows"
        build = getattr(kernels, f"softmax{'_backward' if backward else ''}_{shape}")
        return native(build, device, [t.name for t in tensors], values, **constants)
