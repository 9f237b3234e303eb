"""Dropout engine: rng, dropout and its backward; the numbers follow the logical index, not the strides."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import native, no_kernels, parts
from vlug.engines.cpu.pointwise import BLOCK, past_caches
from vlug.graph import Graph
from vlug.ops.dropout import threshold
from vlug.tensor import Tensor, contiguous_strides

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["DropoutEngine"]

_OPS = ("rng", "dropout", "dropout_backward")


class DropoutEngine(Engine):
    """rng, dropout, dropout_backward: all layouts and strides; f32, bf16, f16, f64."""

    name: ClassVar[str] = "cpu.dropout"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        op = graph.nodes[0].op
        if len(graph) != 1 or op.name not in _OPS:
            return f"{'; '.join(n.op.name for n in graph)} is not one of {', '.join(_OPS)}"
        kinds = {t.dtype.name for t in (*graph.ins(graph.nodes[0])[:-2], *graph.outputs) if t is not None}
        if not kinds <= {"f64"} and not kinds <= {"f32", "bf16", "f16"}:
            return f"the dtypes {', '.join(sorted(kinds))} are not computed together"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.5

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        from vlug.engines.cpu.kernels.dropout import randomly

        node = graph.nodes[0]
        *x, seed, offset = (t for t in graph.ins(node) if t is not None)
        y = graph.outputs[0]
        rows = _rows([*x, y])
        outer, (N, _, inner) = rows[:-1], rows[-1]
        NB = min(max(N, 1), BLOCK)
        units = math.prod(d for d, _, _ in outer) * -(-N // NB)
        nbytes = sum(t.nbytes for t in (*x, y))
        values: dict[str, Any] = {"N": N, "NB": NB, **parts(units, nbytes), **_scalars(node.op)}
        names = "xy"[-len(inner) :]
        for i, (d, w, strides) in enumerate(outer):
            values |= {f"e{i}": d, f"w{i}": w, **{f"{n}_s{i}": s for n, s in zip(names, strides)}}
        values |= {f"{n}_inner": s for n, s in zip(names, inner)}
        steps = [1 if s == 1 else -1 for s in inner]
        return native(
            randomly,
            device,
            [seed.name, offset.name, *(t.name for t in x), y.name],
            values,
            kind=_kind(node.op),
            dtypes=(x[0].dtype.name if x else None, y.dtype.name),
            inner=(steps[0], steps[-1]),
            outer=len(outer),
            whole=all(w % 4 == 0 for _, w, _ in outer),
            stream=not outer and steps[-1] == 1 and past_caches(y),
        )


def _kind(op: Any) -> str:
    return "uniform" if op.name == "rng" and op.distribution == "uniform" else "bernoulli"


def _scalars(op: Any) -> dict[str, Any]:
    if _kind(op) == "uniform":
        return {"low": float(op.low), "width": (op.high - op.low) * 2.0**-24}
    p = 1 - op.probability if op.name == "rng" else op.p
    m = 1.0 if op.name == "rng" else 0.0 if p == 1 else 1 / (1 - p)
    return {"most": threshold(p) - 1, "m": m}


def _rows(tensors: list[Tensor]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Loops (extent, row-major weight, strides of the tensors), neighbours merged: the last dimension inside,
    the outer ones in the memory order of the result."""
    dim = tensors[-1].dim
    weights = contiguous_strides(dim)
    loops: list[tuple[int, int, tuple[int, ...]]] = []
    for i, d in enumerate(dim):
        if d == 1:
            continue
        strides = tuple(t.stride[i] for t in tensors)
        last = loops[-1] if loops else None
        if last and all(a == b * d for a, b in zip(last[2], strides)):
            loops[-1] = (last[0] * d, weights[i], strides)
        else:
            loops.append((d, weights[i], strides))
    *outer, inner = loops or [(1, 1, (1,) * len(tensors))]
    return [*sorted(outer, key=lambda a: a[2][::-1], reverse=True), inner]
