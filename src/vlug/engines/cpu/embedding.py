"""Engine of embedding and its gradient: any layout, i32 or i64 indices, checked before they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import Axis, native, no_kernels, parts
from vlug.graph import Graph
from vlug.ops.base import need

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["EmbeddingEngine"]

#: Elements of a unit of work.
BLOCK = 16384


class EmbeddingEngine(Engine):
    """embedding and embedding_backward. An index out of range makes the program return 2."""

    name: ClassVar[str] = "cpu.embedding"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        if len(graph) != 1 or not graph.nodes[0].op.name.startswith("embedding"):
            return "takes one embedding alone"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.8

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        from vlug.engines.cpu.kernels import embedding as kernels

        node = graph.nodes[0]
        op: Any = node.op
        backward = op.name.endswith("backward")
        a, indices = need(graph.ins(node))
        (b,) = need(graph.outs(node))
        table, rows, name = (b, a, "dy") if backward else (a, b, "y")
        # neighbouring dimensions of the indices merged, in their order: sums are in that order
        outer: list[Axis] = []
        for d, *s in zip(indices.dim, rows.stride, indices.stride):
            last = outer[-1] if outer else None
            if d == 1:
                continue
            if last and all(p == q * d for p, q in zip(last.strides, s)):
                outer[-1] = Axis(last.extent * d, tuple(s))
            else:
                outer.append(Axis(d, tuple(s)))
        outer = outer or [Axis(1, (0, 0))]
        (V, D), count = table.dim, indices.numel
        values: dict[str, Any] = {"V": V, "D": D, "count": count, "w0": table.stride[0]}
        values |= {"w1": table.stride[1], f"{name}_d": rows.stride[-1]}
        for i, axis in enumerate(outer):
            values[f"i{i}"] = axis.extent
            values |= {f"{n}_i{i}": s for n, s in zip((name, "indices"), axis.strides)}
        if backward:
            values["padding"] = op.padding_idx
        else:
            group = max(BLOCK // max(D, 1), 1)
            values |= {"group": group, **parts(-(-count // group), a.nbytes + b.nbytes)}
        return native(
            kernels.embedding_backward if backward else kernels.embedding,
            device,
            [a.name, indices.name, b.name],
            values,
            kinds=tuple(t.dtype.name for t in (a, indices, b)),
            outer=len(outer),
            unit=D <= 1 or table.stride[1] == rows.stride[-1] == 1,
        )
