"""Engine of the negative log-likelihood of log-probabilities and its gradient, in any layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import Axis, folded, native, no_kernels, parts, product
from vlug.graph import Graph
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["NllEngine"]

#: Elements of a unit of work, and columns that are worked on at once.
BLOCK, COLUMNS = 16384, 1024
#: Positions of a block of losses: an element of x is a cache line read.
POSITIONS = 2048


class NllEngine(Engine):
    """nll_loss and nll_loss_backward. A target out of range makes the program return 2."""

    name: ClassVar[str] = "cpu.nll"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        if len(graph) != 1 or not graph.nodes[0].op.name.startswith("nll_loss"):
            return "takes one nll_loss alone"
        kinds = {t.dtype.name for t in graph.tensors.values() if t.dtype.kind == "f"}
        if not kinds <= {"f64"} and "f64" in kinds:
            return f"the dtypes {', '.join(sorted(kinds))} are not computed together"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.5

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        from vlug.engines.cpu.kernels import loss as kernels

        node = graph.nodes[0]
        op: Any = node.op
        backward = op.name.endswith("backward")
        ports = [p.rstrip("?") for p in (*op.inputs, *op.outputs)]
        tensors = dict(zip(ports, (*graph.ins(node), *graph.outs(node))))
        full = "dx" if backward else "x"
        x = tensors[full]
        assert x is not None
        axis = min(1, x.rank - 1)
        C, along = x.dim[axis], x.stride[axis]
        # strides over the positions N, spatial…; what has one value for all of them has none
        single = ("weight", "total") if op.reduction == "none" else ("weight", "total", "loss", "dloss")
        over = {p: _positions(t, x, axis) for p, t in tensors.items() if t is not None and p not in single}
        outer = folded([Axis(d, s) for d, s in zip(_positions(x, x, axis, x.dim), zip(*over.values()))])
        unit = C <= 1 or along == 1
        dense = [a for a in outer if all(s == 1 for s in a.strides)]
        columns = backward and bool(dense) and not (unit and C > 1)
        values: dict[str, Any] = {"C": C, "ignore": op.ignore_index, f"{full}_d0": along}
        constants: dict[str, Any] = {
            "kinds": tuple(None if t is None else t.dtype.name for t in tensors.values()),
            "mode": op.reduction,
        }
        nbytes = sum(t.nbytes for t in tensors.values() if t is not None)
        N = 1
        if not backward:  # vectors of positions, best along those whose classes lie side by side
            inner = outer.pop() if outer else Axis(1, (0,) * len(over))
            N, at = inner.extent, dict(zip(over, inner.strides))
            NB = min(max(N, 1), POSITIONS)
            group = max(POSITIONS // NB, 1)
            constants["unit"] = all(at[p] == 1 for p in at if p != "x") or N == 1
            values |= {"N": N, "NB": NB, "group": group}
            values |= {f"{p}_step": s for p, s in at.items()}
            touched = product(outer) * N * (8 + x.dtype.itemsize)  # not all of x
            values |= parts(-(-product(outer) // group) * -(-N // NB), touched)
        elif columns:
            N = dense[0].extent
            outer = [a for a in outer if a is not dense[0]]
            NB = min(max(N, 1), COLUMNS)
            values |= {"N": N, "NB": NB, **parts(product(outer) * -(-N // NB), nbytes)}
        else:
            group = max(BLOCK // max(C, 1), 1)
            values |= {"group": group, **parts(-(-product(outer) // group), nbytes)}
            constants["unit"] = unit
        count = product(outer)
        weigh = max(BLOCK // max(N, 1), 1)
        values |= {"count": count, "weigh_group": weigh, "weigh_blocks": -(-count // weigh)}
        outer = outer or [Axis(1, (0,) * len(over))]
        constants["outer"] = len(outer)
        for i, a in enumerate(outer):
            values[f"i{i}"] = a.extent
            values |= {f"{n}_i{i}": s for n, s in zip(over, a.strides)}
        if (weight := tensors["weight"]) is not None:
            values["weight_step"] = weight.stride[0]
        shape = ("_columns" if columns else "_rows") if backward else ""
        return native(
            getattr(kernels, f"{op.name}{shape}"),
            device,
            [None if t is None else t.name for t in tensors.values()],
            values,
            **constants,
        )


def _positions(t: Tensor, x: Tensor, axis: int, of: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Strides (or other numbers, one a dimension) without that of the classes."""
    numbers = t.stride if of is None else of
    return (*numbers[:axis], *numbers[axis + 1 :]) if t.rank == x.rank else numbers
