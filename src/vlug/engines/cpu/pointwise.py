"""Pointwise engine: chains of add, mul, bias, relu and their backward in one pass over memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import Axis, folded, native, no_kernels, parts, product
from vlug.graph import Graph, Node
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["PointwiseEngine"]

_OPS = ("add", "mul", "bias", "relu", "relu_backward", "reduction_backward")

#: Results of more bytes go past the caches (ReLU of 25.7 MB: 1.0 ms against 1.5; below 13 MB it loses).
STREAM = 13 << 20
#: Elements of a block: what one unit of work does.
BLOCK = 16384


class PointwiseEngine(Engine):
    """Any graph of pointwise operations whose results have the same dims; all layouts and strides."""

    name: ClassVar[str] = "cpu.pointwise"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        for node in graph:
            if node.op.name not in _OPS:
                return f"{node.op.name} is not pointwise"
            if len([n for n in node.inputs if n is not None]) > 1 and node.op.name == "reduction_backward":
                return "reduction_backward needs more than dy"
        dim = _dims(graph)
        for node in graph:
            out = graph.outs(node)[0]
            assert out is not None
            if node.op.name in ("bias", "reduction_backward") and out.dim != dim:
                return f"{node.op.name} has dims {out.dim} inside a chain of {dim}"
        for t in graph.outputs:
            if t.dim != dim:
                return f"result {t} is smaller than the chain's dims {dim}"
        kinds = {t.dtype.name for t in graph.tensors.values()}
        if not kinds <= {"f64"} and not kinds <= {"f32", "bf16", "f16"}:
            return f"the dtypes {', '.join(sorted(kinds))} are not computed together"
        if len(graph.inputs) + len(graph.outputs) > 12:
            return "a chain reads and writes at most 12 tensors"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.9

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        from vlug.engines.cpu.kernels.pointwise import pointwise

        chain = _Chain.of(graph)
        nest = _Nest.of(chain)
        nbytes = sum(t.nbytes for t in (*graph.inputs, *graph.outputs))
        values: dict[str, Any] = {**nest.values(nbytes), **chain.scalars}
        stream = nest.dense and any(t.nbytes > STREAM for t in graph.outputs)
        return native(
            pointwise,
            device,
            [t.name for t in chain.tensors],
            values,
            nodes=tuple(chain.nodes),
            inputs=len(graph.inputs),
            dtypes=tuple(t.dtype.name for t in chain.tensors),
            inner=nest.inner,
            outer=len(nest.outer),
            stream=stream,
        )


def _dims(graph: Graph) -> tuple[int, ...]:
    """Dims of the chain: those of its last result."""
    return graph.outputs[-1].dim


@dataclass
class _Chain:
    """A graph as the kernel takes it: numbered operands, the strides of each over the chain's dims."""

    dim: tuple[int, ...]
    tensors: list[Tensor]
    strides: list[tuple[int, ...]]
    nodes: list[tuple[str, tuple[int, ...], int, bool]]
    scalars: dict[str, float]

    @classmethod
    def of(cls, graph: Graph) -> _Chain:
        dim = _dims(graph)
        tensors = [*graph.inputs, *graph.outputs]
        number = {t.name: i for i, t in enumerate(tensors)}
        for node in graph:
            for n in node.outputs:
                if n is not None:
                    number.setdefault(n, len(number))
        strides: list[tuple[int, ...]] = [t.stride for t in graph.inputs]
        nodes: list[tuple[str, tuple[int, ...], int, bool]] = []
        scalars: dict[str, float] = {}
        read = {t.name for t in graph.inputs}
        for at, node in enumerate(graph):
            for i, n in enumerate(node.inputs):
                if n in read:
                    strides[number[n]] = _spread(node, i, graph.tensors[n], dim)
            name, plain, found = _formula(node, at, dim)
            scalars |= found
            ins = tuple(number[n] for n in node.inputs if n is not None)
            nodes.append((name, ins, number[node.outputs[0] or ""], plain))
        strides += [t.stride for t in graph.outputs]
        return cls(dim, tensors, strides, nodes, scalars)


def _formula(node: Node, at: int, dim: tuple[int, ...]) -> tuple[str, bool, dict[str, float]]:
    """(formula's name, whether it needs no scalars, its scalars)."""
    op: Any = node.op
    if op.name in ("relu", "relu_backward"):
        plain = op.negative_slope == 0 and op.lower_clip == 0 and op.upper_clip == math.inf
        found = {f"slope{at}": op.negative_slope, f"low{at}": op.lower_clip, f"high{at}": op.upper_clip}
        return op.name, plain, {} if plain else {n: float(v) for n, v in found.items()}
    if op.name == "reduction_backward":
        if op.mode == "add":
            return "scale", True, {}
        axes = [a % len(dim) for a in op.axes] or range(len(dim))
        return "scale", False, {f"factor{at}": 1.0 / max(math.prod(dim[a] for a in axes), 1)}
    return op.name, True, {}


def _spread(node: Node, port: int, t: Tensor, dim: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of an operand over the chain's dims, 0 where it is broadcast."""
    op: Any = node.op
    rank = len(dim)
    if op.name == "bias" and port == 1:
        axis = op.axis % rank
        return tuple(t.stride[0] if i == axis else 0 for i in range(rank))
    if op.name == "reduction_backward":
        axes = {a % rank for a in op.axes} or set(range(rank))
        own = iter(zip(t.dim, t.stride))
        out = []
        for i in range(rank):
            if i in axes:
                if op.keepdim:
                    next(own)
                out.append(0)
            else:
                out.append(next(own)[1])
        return tuple(out)
    strides = (0,) * (rank - t.rank) + t.stride
    dims = (1,) * (rank - t.rank) + t.dim
    return tuple(0 if d == 1 else s for d, s in zip(dims, strides))


@dataclass
class _Nest:
    """Loops of a chain: outer axes, rows M, elements N."""

    outer: list[Axis]
    rows: Axis
    inner_axis: Axis
    inner: tuple[int, ...]

    @classmethod
    def of(cls, chain: _Chain) -> _Nest:
        n = len(chain.tensors)
        # the results lead: their order in memory is the order of the loops
        order = sorted(range(n), key=lambda t: chain.tensors[t].name not in _names(chain))
        per_axis = zip(chain.dim, zip(*chain.strides)) if chain.dim else []
        axes = folded([Axis(d, tuple(s[t] for t in order)) for d, s in per_axis])
        axes = [Axis(a.extent, tuple(a.strides[order.index(t)] for t in range(n))) for a in axes]
        unit = [sum(s == 1 for s in a.strides) for a in axes]
        if axes:  # the axis along which most tensors are dense goes innermost
            best = max(range(len(axes)), key=lambda i: (unit[i], i))
            axes.append(axes.pop(best))
        one = Axis(1, (0,) * n)
        *outer, rows, last = [one] * max(2 - len(axes), 0) + axes
        if not axes:
            last = Axis(1, (1,) * n)
        inner = tuple(s if s in (0, 1) else -1 for s in last.strides)
        return cls(outer, rows, last, inner)

    @property
    def dense(self) -> bool:
        return not self.outer and self.rows.extent == 1

    def values(self, nbytes: int) -> dict[str, int]:
        N, M = self.inner_axis.extent, self.rows.extent
        NB = min(max(N, 1), BLOCK)
        MB = min(max(M, 1), max(BLOCK // NB, 1))
        units = product(self.outer) * -(-M // MB) * -(-N // NB)
        out = {"M": M, "N": N, "MB": MB, "NB": NB, **parts(units, nbytes)}
        out |= {f"e{i}": a.extent for i, a in enumerate(self.outer)}
        for t, s in enumerate(self.inner_axis.strides):
            out[f"t{t}_inner"] = s
            for i, a in enumerate((*self.outer, self.rows)):
                out[f"t{t}_s{i}"] = a.strides[t]
        return out


def _names(chain: _Chain) -> set[str]:
    made = {out for _, _, out, _ in chain.nodes}
    return {t.name for i, t in enumerate(chain.tensors) if i in made}
