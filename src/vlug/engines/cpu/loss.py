"""Cross-entropy engine: the loss and its gradient straight from logits, in any layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vlug.codegen.isa import ALL
from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import Axis, folded, native, no_kernels, parts, product
from vlug.graph import Graph
from vlug.ops.base import need
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["CrossEntropyEngine"]

#: Elements of a unit of work, and columns that are worked on at once.
BLOCK, COLUMNS = 16384, 256


class CrossEntropyEngine(Engine):
    """cross_entropy and cross_entropy_backward. A target out of range makes the program return 2."""

    name: ClassVar[str] = "cpu.cross_entropy"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        if len(graph) != 1 or not graph.nodes[0].op.name.startswith("cross_entropy"):
            return "takes one cross-entropy alone"
        x = _x(graph)
        kinds = {t.dtype.name for t in graph.tensors.values() if t.dtype.kind == "f"}
        if not kinds <= {"f64"} and "f64" in kinds:
            return f"the dtypes {', '.join(sorted(kinds))} are not computed together"
        if not 0 < x.dim[1] < 1 << 31:
            return f"{x.dim[1]} classes, it takes 1 to 2^31"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.8

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        from vlug.engines.cpu.kernels import loss as kernels

        node = graph.nodes[0]
        op: Any = node.op
        backward = op.name.endswith("backward")
        ports = [p.rstrip("?") for p in (*op.inputs, *op.outputs)]
        tensors = dict(zip(ports, (*graph.ins(node), *graph.outs(node))))
        x = _x(graph)
        C = x.dim[1]
        # every tensor's strides over the positions N, spatial…; what has one value for all of them has none
        over = {p: t for p, t in tensors.items() if t is not None and p != "weight" and t.rank}
        if op.reduction != "none":
            over = {p: t for p, t in over.items() if p not in ("loss", "dloss")}
        names = list(over)
        rest = (x.dim[0], *x.dim[2:])
        strides = [_positions(t, x.rank) for t in over.values()]
        outer = folded([Axis(d, s) for d, s in zip(rest, zip(*strides))])
        full = ("x", "dx") if backward else ("x",)
        along = {p: need([tensors[p]])[0].stride[1] for p in full}
        unit = C == 1 or all(s == 1 for s in along.values())
        dense = [a for a in outer if all(s == 1 for s in a.strides)]
        columns = bool(dense) and not (unit and C > 1)
        values: dict[str, Any] = {"C": C, "ignore": op.ignore_index, "smoothing": float(op.label_smoothing)}
        constants: dict[str, Any] = {
            "kinds": tuple(None if t is None else t.dtype.name for t in tensors.values()),
            "mode": op.reduction,
            "smooth": op.label_smoothing > 0,
        }
        nbytes = sum(t.nbytes for t in tensors.values() if t is not None)
        if columns:
            N = dense[0].extent
            outer = [a for a in outer if a is not dense[0]]
            NB = min(max(N, 1), COLUMNS)
            blocks = product(outer) * -(-N // NB)
            values |= {"N": N, "NB": NB, "sums": 2 * blocks, **parts(blocks, nbytes)}
        else:
            N = 1
            constants |= {"unit": unit, "short": 4 * ALL[device.isa].lanes >= C}
            group = max(BLOCK // C, 1)
            values |= {"group": group, **parts(-(-product(outer) // group), nbytes)}
        count = product(outer)
        weigh = max(BLOCK // max(N, 1), 1)
        values |= {"count": count, "weigh_group": weigh, "weigh_blocks": -(-count // weigh)}
        outer = outer or [Axis(1, (0,) * len(names))]
        constants["outer"] = len(outer)
        for i, a in enumerate(outer):
            values[f"i{i}"] = a.extent
            values |= {f"{n}_i{i}": s for n, s in zip(names, a.strides)}
        values |= {f"{p}_d0": s for p, s in along.items()}
        if (weight := tensors["weight"]) is not None:
            values["weight_step"] = weight.stride[0]
        build = getattr(kernels, f"{op.name}_{'columns' if columns else 'rows'}")
        return native(
            build, device, [None if t is None else t.name for t in tensors.values()], values, **constants
        )


def _x(graph: Graph) -> Tensor:
    node = graph.nodes[0]
    return need([graph.ins(node)[node.op.inputs.index("x")]])[0]


def _positions(t: Tensor, rank: int) -> tuple[int, ...]:
    """Strides over N, spatial…: those of x and dx less that of the classes."""
    return (t.stride[0], *t.stride[2:]) if t.rank == rank else t.stride
