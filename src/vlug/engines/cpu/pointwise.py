"""Pointwise engine: chains of pointwise operations, forward and backward, in one pass over memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import Axis, folded, native, no_kernels, parts, product
from vlug.graph import Graph, Node
from vlug.ops import OPERATIONS
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["BLOCK", "PointwiseEngine", "past_caches"]

_MODULES = ("pointwise", "arithmetic", "logic", "identity", "activation")
#: Every operation of the pointwise families, and the broadcast of a sum's gradient.
_OPS = frozenset(n for n, op in OPERATIONS.items() if op.__module__.rpartition(".")[2] in _MODULES) | {
    "reduction_backward"
}
#: Operations whose last operand is a vector along an axis.
_BY_AXIS = ("bias", "scale", "prelu", "prelu_backward")
#: Operations of one dims inside a chain, because an attribute counts axes.
_OF_AXES = (*_BY_AXIS, "gen_index", "reduction_backward")
#: Elementary functions: one or two vectors at a time of them fill the processor.
_HEAVY = frozenset(n for n in _OPS if getattr(OPERATIONS[n], "flops", 1) >= 20)
#: As many in one object, at most: what it may cost to compile.
_MOST_HEAVY = 8
#: What values of a dtype are computed in, where it is not the dtype.
_COMPUTED = {"bf16": "f32", "f16": "f32", "u8": "i32"}
#: Results of more bytes go past the caches (ReLU of 25.7 MB: 1.0 ms against 1.5; below 13 MB it loses).
STREAM = 13 << 20
#: Memory for results from here on comes fresh from the system each time (glibc's mmap threshold at its most):
#: its pages are in the caches, since they have just been zeroed, and storing past them costs a quarter more.
FRESH = 32 << 20
#: Elements of a block: what one unit of work does.
BLOCK = 16384


def past_caches(t: Tensor | None) -> bool:
    """Whether a result is stored past the caches."""
    return t is not None and STREAM < t.nbytes < FRESH


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
            if node.op.name in _OF_AXES and out.dim != dim:
                return f"{node.op.name} has dims {out.dim} inside a chain of {dim}"
        for t in graph.outputs:
            if t.dim != dim:
                return f"result {t} is smaller than the chain's dims {dim}"
        if len(graph.inputs) + len(graph.outputs) > 12:
            return "a chain reads and writes at most 12 tensors"
        if sum(n.op.name in _HEAVY for n in graph) > _MOST_HEAVY:
            return f"a chain has at most {_MOST_HEAVY} elementary functions"
        return _two_ways(graph, dim)

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.9

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        from vlug.engines.cpu.kernels.pointwise import pointwise

        chain = _Chain.of(graph)
        nest = _Nest.of(chain)
        nbytes = chain.work
        values: dict[str, Any] = {**nest.values(nbytes), **chain.scalars}
        stream = nest.dense and any(past_caches(t) for t in graph.outputs)
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
            by=_at_once([n.op.name for n in graph if n.op.name in _HEAVY]),
        )


def _at_once(heavy: list[str]) -> int:
    """Vectors at a time: two of one activation (GELU in the cache a tenth faster than with one), one of what
    is longer to compile."""
    if not heavy:
        return 4
    return 2 if len(heavy) == 1 and OPERATIONS[heavy[0]].__module__.endswith(".activation") else 1


def _two_ways(graph: Graph, dim: tuple[int, ...]) -> str | None:
    """Why not, if one input is broadcast differently by two operations."""
    ways: dict[str, tuple[int, ...]] = {}
    for node in graph:
        for i, n in enumerate(node.inputs):
            if n is None or n in graph.produced or node.op.name == "gen_index":
                continue
            way = _spread(node, i, graph.tensors[n], dim)
            if ways.setdefault(n, way) != way:
                return f"{n} is broadcast in two ways"
    return None


def _dims(graph: Graph) -> tuple[int, ...]:
    """Dims of the chain: those of its last result."""
    return graph.outputs[-1].dim


@dataclass
class _Chain:
    """A graph as the kernel takes it: numbered operands, the strides of each over the chain's dims; after
    those of the tensors those of indices along an axis, which are no memory. work: bytes, as of a copy."""

    dim: tuple[int, ...]
    tensors: list[Tensor]
    strides: list[tuple[int, ...]]
    nodes: list[tuple[str, tuple[int, ...], int, bool, str, str]]
    scalars: dict[str, float]
    work: int

    @classmethod
    def of(cls, graph: Graph) -> _Chain:
        dim = _dims(graph)
        tensors = [*graph.inputs, *graph.outputs]
        number = {t.name: i for i, t in enumerate(tensors)}
        indices = [node for node in graph if node.op.name == "gen_index"]
        free = len(tensors) + len(indices)
        for node in graph:
            for n in node.outputs:
                if n is not None and n not in number:
                    number[n], free = free, free + 1
        strides: list[tuple[int, ...]] = [t.stride for t in graph.inputs]
        nodes: list[tuple[str, tuple[int, ...], int, bool, str, str]] = []
        scalars: dict[str, float] = {}
        read = {t.name for t in graph.inputs}
        axes: list[tuple[int, ...]] = []
        for at, node in enumerate(graph):
            (out,) = graph.outs(node)
            assert out is not None
            result = number[out.name], out.dtype.name
            if node.op.name == "gen_index":
                op: Any = node.op
                nodes.append(("gen_index", (len(tensors) + len(axes),), result[0], True, "i64", result[1]))
                axes.append(tuple(int(i == op.axis % len(dim)) for i in range(len(dim))))
                continue
            for i, n in enumerate(node.inputs):
                if n in read:
                    strides[number[n]] = _spread(node, i, graph.tensors[n], dim)
            name, found = _formula(node, dim)
            scalars |= {f"{n}{at}": float(v) for n, v in found.items()}
            ins = tuple(number[n] for n in node.inputs if n is not None)
            kind = next(t.dtype.name for t in graph.ins(node) if t is not None)
            nodes.append((name, ins, result[0], not found, _COMPUTED.get(kind, kind), result[1]))
        unread = {n for node in indices for n in node.inputs} - {
            n for node in graph if node.op.name != "gen_index" for n in node.inputs
        }
        for t in graph.inputs:  # what nobody reads shapes no loop
            if t.name in unread:
                strides[number[t.name]] = (0,) * len(dim)
        strides += [t.stride for t in graph.outputs] + axes
        heavy = sum(n.op.name in _HEAVY for n in graph)
        work = sum(t.nbytes for t in tensors) + heavy * math.prod(dim) * 16
        return cls(dim, tensors, strides, nodes, scalars, work)


def _formula(node: Node, dim: tuple[int, ...]) -> tuple[str, dict[str, float]]:
    """(formula's name, its numbers: none where they have their defaults)."""
    op: Any = node.op
    name = op.name
    if name in ("relu", "relu_backward"):
        plain = op.negative_slope == 0 and op.lower_clip == 0 and op.upper_clip == math.inf
        found = {"slope": op.negative_slope, "low": op.lower_clip, "high": op.upper_clip}
        return name, {} if plain else found
    if name == "reduction_backward":
        if op.mode == "add":
            return "factor", {}
        axes = [a % len(dim) for a in op.axes] or range(len(dim))
        return "factor", {"factor": 1.0 / max(math.prod(dim[a] for a in axes), 1)}
    if name == "affine":
        return name, {"alpha": op.alpha, "beta": op.beta}
    if name in ("swish", "swish_backward"):
        return name, {} if op.beta == 1 else {"beta": op.beta}
    if name in ("softplus", "softplus_backward"):
        found = {"beta": op.beta, "threshold": op.threshold}
        return name, {} if (op.beta, op.threshold) == (1, 20) else found
    if name in ("elu", "elu_backward"):
        if (op.alpha, op.scale, op.input_scale) == (1, 1, 1):
            return name, {}
        below = op.scale * op.alpha
        found = {"scale": op.scale, "input": op.input_scale, "below": below, "slope": below * op.input_scale}
        return name, found
    return name, {}


def _spread(node: Node, port: int, t: Tensor, dim: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of an operand over the chain's dims, 0 where it is broadcast."""
    op: Any = node.op
    rank = len(dim)
    if op.name in _BY_AXIS and port == len(op.inputs) - 1:
        if t.dim == (1,):
            return (0,) * rank
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
        n = len(chain.strides)
        made = {out for _, _, out, *_ in chain.nodes}
        # the results lead: their order in memory is the order of the loops
        order = sorted(range(n), key=lambda t: t not in made)
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
