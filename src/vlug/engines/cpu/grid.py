"""Grid engine: sampling at the places of a grid, and its gradients; any strides."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import native, no_kernels
from vlug.graph import Graph
from vlug.ops.base import need

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["GridEngine"]

_OPS = ("grid_sample", "grid_sample_backward")
#: Elements of dx that a unit sums in scratch.
BLOCK = 16384


class GridEngine(Engine):
    """grid_sample and its backward; dx is summed plane by plane, in order."""

    name: ClassVar[str] = "cpu.grid"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        if len(graph) != 1 or graph.nodes[0].op.name not in _OPS:
            return f"takes one of {', '.join(_OPS)} alone"
        if any(math.prod(t.dim[2:]) >= 1 << 31 for t in graph.tensors.values()):
            return "a plane has 2^31 elements or more"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.3

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        from vlug.engines.cpu.kernels import grid as kernels

        node = graph.nodes[0]
        op: Any = node.op
        ins, outs = need(graph.ins(node)), graph.outs(node)
        x, grid = ins[-2:]
        (N, C, H, W), (P, Q) = x.dim, grid.dim[1:3]
        values: dict[str, Any] = {"N": N, "C": C, "H": H, "W": W, "P": P, "Q": Q}
        constants: dict[str, Any] = {"kind": x.dtype.name, "mode": op.mode, "padding": op.padding}
        constants["align"] = op.align_corners
        forward = op.name == "grid_sample"
        named = dict(zip("xgy" if forward else "dxgyt", (*ins, *outs)))
        for letter, t in named.items():
            if t is not None:
                values |= {f"{letter}{i}": s for i, s in enumerate(t.stride)}
        CB = max(min(C, BLOCK // max(H * W, 1)), 1)
        values |= {"units": N * P, "CB": CB, "planes": N * -(-C // CB)}
        names = [t.name for t in (*ins, *outs) if t is not None]
        if forward:
            return native(kernels.grid_sample, device, names, values, **constants)
        constants |= {"dx": outs[0] is not None, "dgrid": outs[1] is not None}
        return native(kernels.grid_backward, device, names, values, **constants)
