"""Batch norm engine: training, inference and backward; planes (NCHW) and rows (NHWC) read in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import Axis, channel_parts, folded, native, no_kernels, parts, product
from vlug.engines.cpu.pointwise import past_caches
from vlug.graph import Graph
from vlug.ops.base import need
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["BatchnormEngine"]

#: Bytes of a block of rows, and the fewest rows: fewer, and the sums of blocks cost more than their rows.
BLOCK, LEAST = 256 << 10, 64


class BatchnormEngine(Engine):
    """batchnorm, batchnorm_inference (either with a ReLU behind it) and batchnorm_backward."""

    name: ClassVar[str] = "cpu.batchnorm"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        first, *rest = graph.nodes
        if not first.op.name.startswith("batchnorm"):
            return f"{first.op.name} is not a batch norm"
        if rest and (first.op.name.endswith("_backward") or not _is_relu(graph)):
            return "takes nothing behind a batch norm but one plain relu of its y"
        (x,) = need([graph.ins(first)[first.op.name.endswith("_backward")]])
        if x.dtype.name == "f64" and any(t.dtype.name != "f64" for t in graph.tensors.values()):
            return "f64 goes with f64 alone"
        if x.dtype.name != "f64" and any(t.dtype.name == "f64" for t in graph.tensors.values()):
            return f"f64 vectors beside {x.dtype} are not computed together"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.9

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        from vlug.engines.cpu.kernels import norm as kernels

        node = graph.nodes[0]
        op: Any = node.op
        ins, outs = list(graph.ins(node)), list(graph.outs(node))
        relu = len(graph) > 1
        if relu:
            outs[0] = graph.outs(graph.nodes[1])[0]
        if op.name == "batchnorm":
            full = {"x": ins[0], "y": outs[0]}
            scalars = {"eps": op.eps, "momentum": op.momentum}
        elif op.name == "batchnorm_inference":
            full, scalars = {"x": ins[0], "y": outs[0]}, {"eps": op.eps}
        else:
            full, scalars = {"g": ins[0], "x": ins[1], "d": outs[0]}, {"eps": getattr(op, "eps", 0.0)}
        tensors = [*ins, *outs]
        plan = _Plan.of([t for t in full.values() if t is not None], need([full["x"]])[0])
        values = plan.values([n for n, t in full.items() if t is not None])
        n = plan.count
        if op.name == "batchnorm":
            scalars["correction"] = n / max(n - 1, 1) if op.unbiased else 1.0
            scalars["momentum"] = op.momentum if n else 0.0  # no elements: the running statistics stay
        values |= {k: float(v) for k, v in scalars.items()}
        values["count"] = float(max(n, 1))
        channel = [(i, t) for i, t in enumerate(tensors) if t is not None and t not in full.values()]
        dense = all(t.stride[0] == 1 or t.dim[0] <= 1 for _, t in channel)
        values |= {f"v{i}_step": t.stride[0] for i, t in channel}
        constants: dict[str, Any] = {
            "kinds": tuple(None if t is None else t.dtype.name for t in tensors),
            "outer": len(plan.outer),
            "dense": dense,
        }
        if op.name.endswith("_backward"):
            constants["training"] = getattr(op, "training", False)
            constants["variance"] = op.name == "batchnorm_inference_backward"
        else:
            constants["relu"] = relu
        if not plan.rows:
            constants["unit"] = plan.unit
        big = past_caches(outs[0])
        constants["stream"] = big and (plan.rows or plan.unit)
        stem = {"batchnorm": "training", "batchnorm_inference": "inference"}.get(op.name, "backward")
        if stem == "inference" and not plan.rows:
            values |= parts(values["planes"], plan.nbytes)
        build = getattr(kernels, stem + ("_rows" if plan.rows else "_planes"))
        return native(build, device, [None if t is None else t.name for t in tensors], values, **constants)


def _is_relu(graph: Graph) -> bool:
    """Whether the second of two nodes is a plain relu that alone reads the first one's y."""
    first, second = graph.nodes[0], graph.nodes[-1]
    op: Any = second.op
    return (
        len(graph) == 2
        and op.name == "relu"
        and op.negative_slope == 0
        and op.lower_clip == 0
        and op.upper_clip == math.inf
        and second.inputs[0] == first.outputs[0]
        and all(t.name != first.outputs[0] for t in graph.outputs)
    )


@dataclass
class _Plan:
    """Loops of a batch norm: channels, outer axes and, for planes, the elements of a plane's row."""

    channels: Axis
    outer: list[Axis]
    inner: Axis
    rows: bool  # channels innermost
    count: int  # elements a channel
    nbytes: int

    @classmethod
    def of(cls, full: Sequence[Tensor], x: Tensor) -> _Plan:
        axes = [
            Axis(d, strides, "c" if i == 1 else "j")
            for i, (d, strides) in enumerate(zip(x.dim, zip(*(t.stride for t in full))))
        ]
        none = Axis(1, (1,) * len(full), "j")
        loops = folded(axes)
        c = next((a for a in loops if a.kind == "c"), Axis(x.dim[1], (1,) * len(full), "c"))
        outer = [a for a in loops if a.kind == "j"]
        unit = any(all(s == 1 for s in a.strides) for a in outer)
        rows = all(s == 1 for s in c.strides) and not (unit or c.extent == 1)
        inner = none
        if not rows and outer:
            best = max(range(len(outer)), key=lambda i: (sum(s == 1 for s in outer[i].strides), i))
            inner = outer.pop(best)
        count = math.prod(d for i, d in enumerate(x.dim) if i != 1)
        return cls(c, outer, inner, rows, count, sum(t.nbytes for t in full))

    @property
    def unit(self) -> bool:
        return all(s == 1 for s in self.inner.strides)

    def values(self, names: Sequence[str]) -> dict[str, Any]:
        C, lines = self.channels.extent, product(self.outer)
        out: dict[str, Any] = {"C": C, "count_j": lines}
        for i, a in enumerate(self.outer):
            out[f"j{i}"] = a.extent
            out |= {f"{name}_j{i}": s for name, s in zip(names, a.strides)}
        if not self.rows:
            out["N"] = self.inner.extent
            out |= {f"{name}_inner": s for name, s in zip(names, self.inner.strides)}
            out |= {f"{name}_c": s for name, s in zip(names, self.channels.strides)}
            return out | {"planes": C * lines} | parts(C, self.nbytes)
        row_bytes = max(self.nbytes // len(names) // max(lines, 1), 1)
        blocks = -(-lines // max(BLOCK // row_bytes, LEAST))
        blocks = -(-blocks // 4) * 4 if lines >= 4 * LEAST else blocks  # an even share for 2 and 4 threads
        RB = -(-lines // max(blocks, 1)) if lines else 1
        blocks = -(-lines // RB)
        out |= {"rows": lines, "RB": RB, "blocks": blocks}
        return out | parts(blocks, self.nbytes) | channel_parts(C, self.nbytes)
