"""Optimiser engine: sgd_step, adam_step; a list of dense parameters at once, or one with any strides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from vlug.codegen.isa import ALL
from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import SMALL, Axis, folded, native, no_kernels, parts, product
from vlug.graph import Graph, Node
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["OptimEngine"]

_OPS = ("sgd_step", "adam_step")
#: Elements of a unit of work: a few hundred kilobytes of parameters and state.
BLOCK = 16384


class OptimEngine(Engine):
    """Steps of one optimiser: any number of parameters that share their scalars but the step."""

    name: ClassVar[str] = "cpu.optim"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        first = graph.nodes[0]
        op: Any = first.op
        if op.name not in _OPS:
            return f"{op.name} is not a step of an optimiser"
        shape = _shape(graph, first)
        made: set[str | None] = set()
        for node in graph:
            if node.op != op or _shape(graph, node) != shape:
                return "parameters of different rules, dtypes or scalars are not stepped together"
            if made & set(node.inputs):
                return "a step that reads another's result"
            made |= set(node.outputs) - {None}
            if len(graph) > 1 and not _dense(_full(graph, node)):
                return "a list with strides that differ or leave gaps"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.9

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        from vlug.engines.cpu.kernels.optim import optimise

        first = graph.nodes[0]
        op: Any = first.op
        full_ports = [p.rstrip("?") for p in op.inputs[: op.full]]
        ports = [(p.rstrip("?"), n) for p, n in zip(op.inputs, first.inputs) if n is not None]
        full = tuple((p, graph.tensors[n].dtype.name) for p, n in ports if p in full_ports)
        scalars = tuple((p, graph.tensors[n].dtype.name) for p, n in ports[len(full) :] if p != "step")
        operands: list[str | None] = [n for p, n in ports[len(full) :] if p != "step"]
        for node in graph:
            inputs = dict(zip((p.rstrip("?") for p in op.inputs), node.inputs))
            operands += [inputs[p] for p, _ in full]
            operands += [inputs["step"]] if "step" in inputs else []
            operands += [n for n in node.outputs if n is not None]
        step = next((graph.tensors[n].dtype.name for p, n in ports if p == "step"), "")
        constants: dict[str, Any] = {
            "rule": op.name,
            "flags": tuple(f for f in op.fields() if getattr(op, f)),
            "scalars": scalars,
            "full": full,
            "step": step,
            "results": tuple(graph.tensors[n].dtype.name for n in first.outputs if n is not None),
            "alone": len(graph) == 1,
            "by": 2 if ALL[device.isa].registers == 32 else 1,
        }
        tensors = [_full(graph, node) for node in graph]
        values: dict[str, Any] = {"T": len(graph)}
        if not all(map(_dense, tensors)):
            nest = _Nest(tensors[0], bool(step), len(full))
            constants |= {"inner": nest.inner, "outer": nest.outer}
            return native(optimise, device, operands, values | nest.values, **constants)
        nbytes = sum(t.nbytes for row in tensors for t in row)
        start, pieces = _units([t[0].numel for t in tensors], nbytes)
        values["U"] = len(start) - 1
        made = native(optimise, device, operands, values, inner=(), outer=0, **constants)
        return replace(made, args=(*made.args, *start, *pieces))


def _full(graph: Graph, node: Node) -> list[Tensor]:
    """Tensors of the parameter's dims: inputs, then results."""
    op: Any = node.op
    ins = [t for t in graph.ins(node)[: op.full] if t is not None]
    return ins + [t for t in graph.outs(node) if t is not None]


def _shape(graph: Graph, node: Node) -> tuple[Any, ...]:
    """What the parameters of a list have in common: dtypes, ports that are there, scalars."""
    op: Any = node.op
    kinds = [None if t is None else t.dtype for t in (*graph.ins(node), *graph.outs(node))]
    scalars = [n for p, n in zip(op.inputs[op.full :], node.inputs[op.full :]) if p != "step"]
    return (*kinds, *scalars)


def _dense(tensors: Sequence[Tensor]) -> bool:
    """Whether all have the same strides, without gaps."""
    first = tensors[0]
    if first.numel <= 1:
        return True
    return (
        first.span == first.numel and not first.overlaps and all(t.has_strides(first.stride) for t in tensors)
    )


def _units(numel: Sequence[int], nbytes: int) -> tuple[list[int], list[int]]:
    """Where each unit of work starts among the pieces (tensor, begin, end): about BLOCK elements each."""
    block = BLOCK if nbytes >= SMALL else max(sum(numel), 1)
    start, pieces, room = [0], [], block
    for t, n in enumerate(numel):
        at = 0
        while at < n:
            size = min(n - at, room)
            if size < n - at:
                size -= size % 64 if size > 64 else 0  # a piece ends on whole vectors
            pieces += [t, at, at + size]
            at, room = at + size, room - size
            if room <= 64:
                start.append(len(pieces) // 3)
                room = block
    if start[-1] * 3 < len(pieces):
        start.append(len(pieces) // 3)
    return start, pieces


class _Nest:
    """Loops over one parameter whose tensors have strides."""

    def __init__(self, tensors: Sequence[Tensor], step: bool, inputs: int) -> None:
        dim = tensors[0].dim
        axes = folded([Axis(d, s) for d, s in zip(dim, zip(*(t.stride for t in tensors)))])
        if axes:  # the axis along which most tensors are dense goes innermost
            best = max(range(len(axes)), key=lambda i: (sum(s == 1 for s in axes[i].strides), i))
            axes.append(axes.pop(best))
        *rest, last = axes or [Axis(1, (1,) * len(tensors))]
        # the kernel counts a parameter's tensors with its step between inputs and results
        places = [i + (step and i >= inputs) for i in range(len(tensors))]
        steps = dict(zip(places, last.strides))
        self.outer = len(rest)
        self.inner = tuple(1 if steps.get(p, 1) == 1 else -1 for p in range(len(tensors) + step))
        NB = min(max(last.extent, 1), BLOCK)
        units = product(rest) * -(-last.extent // NB)
        self.values: dict[str, int] = {"N": last.extent, "NB": NB}
        self.values |= parts(units, math.prod(dim) * 4 * len(tensors))
        self.values |= {f"e{i}": a.extent for i, a in enumerate(rest)}
        for p in range(len(tensors) + step):
            self.values[f"t{p}_inner"] = steps.get(p, 1)
            for i, a in enumerate(rest):
                self.values[f"t{p}_s{i}"] = dict(zip(places, a.strides)).get(p, 0)
