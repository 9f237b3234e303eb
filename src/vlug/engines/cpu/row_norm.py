"""Layer norm and RMS norm engine: rows of any strides, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import Axis, channel_parts, folded, native, no_kernels, parts, product
from vlug.engines.cpu.pointwise import past_caches
from vlug.graph import Graph
from vlug.ops.base import need
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["RowNormEngine", "mixed_f64"]

#: Tensors by letter, in the order of their kernels; those of a row, those of all rows.
_FORWARD, _BACKWARD = "xsbymv", "gxsmvdpq"
_FULL, _ROW, _STAT = "xygd", "sbpq", "mv"
#: Fewer rows than FEW, longer than LONG elements, are worked on in PIECES or fewer.
FEW, LONG, PIECES = 16, 16384, 64
#: Blocks of rows whose sums of gradients are kept apart, and the fewest rows of one.
BLOCKS, LEAST = 64, 8


def mixed_f64(graph: Graph) -> str | None:
    """Why a graph's types are not computed together, if so."""
    kinds = {t.dtype.name for t in graph.tensors.values()}
    return f"f64 beside {', '.join(sorted(kinds - {'f64'}))}" if "f64" in kinds and len(kinds) > 1 else None


class RowNormEngine(Engine):
    """layernorm, rmsnorm, layernorm_backward, rmsnorm_backward."""

    name: ClassVar[str] = "cpu.row_norm"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        op = graph.nodes[0].op.name
        if len(graph) != 1 or op.removesuffix("_backward") not in ("layernorm", "rmsnorm"):
            return f"takes one layer norm or RMS norm, not {'; '.join(n.op.name for n in graph)}"
        return mixed_f64(graph)

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.9

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        from vlug.engines.cpu.kernels import row_norm as kernels

        node = graph.nodes[0]
        op: Any = node.op
        ins, outs = list(graph.ins(node)), list(graph.outs(node))
        backward, centred = op.name.endswith("_backward"), op.name.startswith("layernorm")
        if not centred:
            if backward:
                ins.insert(3, None)
            else:
                outs.insert(1, None)
        tensors = dict(zip(_BACKWARD if backward else _FORWARD, (*ins, *outs)))
        (x,) = need([tensors["x"]])
        at = op.axis % x.rank
        outer = _axes(x.dim[:at], tensors, lambda t: t.stride[:at], _FULL + _STAT)
        row = _axes(
            x.dim[at:], tensors, lambda t: t.stride[at:] if t.rank == x.rank else t.stride, _FULL + _ROW
        )
        last = row.pop() if row else Axis(1, (1,) * sum(1 for n in _FULL + _ROW if tensors.get(n)))
        M, L = product(outer), last.extent
        N = product(row) * L
        values: dict[str, Any] = {"rows": M, "N": N, "L": L, "count": float(max(N, 1))}
        for stem, axes, names in (("i", outer, _FULL + _STAT), ("r", row, _FULL + _ROW)):
            present = [n for n in names if tensors.get(n) is not None]
            for j, a in enumerate(axes):
                values[f"{stem}{j}"] = a.extent
                values |= {f"{n}_{stem}{j}": s for n, s in zip(present, a.strides)}
        present = [n for n in _FULL + _ROW if tensors.get(n) is not None]
        values |= {f"{n}_l": s for n, s in zip(present, last.strides)}
        unit = "".join(n for n, s in zip(present, last.strides) if s == 1)
        nbytes = sum(t.nbytes for t in tensors.values() if t is not None)
        first = outs[0]
        constants: dict[str, Any] = {
            "kinds": tuple(None if t is None else t.dtype.name for t in tensors.values()),
            "outer": len(outer),
            "inner": len(row),
            "unit": unit,
            "stream": past_caches(first) and ("d" if backward else "y") in unit,
        }
        pieces = M < FEW and L > LONG and not row
        if pieces:
            PB = max(-(-L // PIECES), LONG // 4)
            PB = -(-PB // 64) * 64  # whole vectors
            values |= {"PB": PB, "pieces": -(-L // PB)}
        RB = max(-(-M // BLOCKS), LEAST)
        values |= {"RB": RB, "blocks": -(-M // RB)}
        count = M * values["pieces"] if pieces else values["blocks"]
        build: Any
        if backward:
            build = kernels.backward_pieces if pieces else kernels.backward_rows
            values |= channel_parts(L, nbytes)
            if not pieces:
                constants["wide"] = N == 1
        else:
            build = kernels.forward_pieces if pieces else kernels.forward_rows
            constants["centred"] = centred
            values["eps"] = float(op.eps)
        values |= parts(count, nbytes)
        operands = [None if t is None else t.name for t in tensors.values()]
        return native(build, device, operands, values, **constants)


def _axes(dim: Sequence[int], tensors: dict[str, Tensor | None], strides: Any, names: str) -> list[Axis]:
    """Loops over `dim`, with the strides of the tensors named that are present."""
    given = [strides(t) for n in names if (t := tensors.get(n)) is not None]
    return folded([Axis(d, tuple(s[j] for s in given)) for j, d in enumerate(dim)])
