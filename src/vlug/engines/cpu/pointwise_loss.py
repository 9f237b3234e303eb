"""Engine of losses that compare x and target element by element, and of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import Axis, folded, native, no_kernels, parts, product
from vlug.graph import Graph
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["PointwiseLossEngine"]

_OPS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "bce_with_logits")
#: Elements that are summed into one partial sum.
BLOCK = 16384


class PointwiseLossEngine(Engine):
    """One such loss or its gradient, in any layout; no loss of an element goes through memory."""

    name: ClassVar[str] = "cpu.pointwise_loss"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        if len(graph) != 1 or graph.nodes[0].op.name.removesuffix("_backward") not in _OPS:
            return f"takes one of {', '.join(_OPS)} alone"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.8

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        from vlug.engines.cpu.kernels.pointwise_loss import loss_gradients, losses

        node = graph.nodes[0]
        op: Any = node.op
        backward = op.name.endswith("_backward")
        ins, outs = list(graph.ins(node)), list(graph.outs(node))
        ins += [None] * (4 + backward - len(ins))
        outs += [None] * (1 + backward - len(outs))
        tensors = [*ins, *outs]
        names = "gxtwpdf" if backward else "xtwpl"
        x = tensors[names.index("x")]
        assert x is not None
        outer, rows, last = _nest(x, tensors, names)
        N, M = last.extent, rows.extent
        NB = min(max(N, 1), BLOCK)
        MB = min(max(M, 1), max(BLOCK // NB, 1))
        units = product(outer) * -(-M // MB) * -(-N // NB)
        values: dict[str, Any] = {"M": M, "N": N, "MB": MB, "NB": NB, "units": units}
        values |= parts(units, sum(t.nbytes for t in tensors if t is not None))
        values |= {f"e{i}": a.extent for i, a in enumerate(outer)}
        for t, name in enumerate(names):
            values[f"{name}_inner"] = last.strides[t]
            values |= {f"{name}_s{i}": a.strides[t] for i, a in enumerate((*outer, rows))}
        values |= {"count": float(x.numel), "sums": 1 if op.reduction == "none" else units}
        values |= {n: float(getattr(op, n)) for n in ("beta", "delta") if hasattr(op, n)}
        form = getattr(op, "log_target", False) or getattr(op, "beta", 1.0) == 0
        return native(
            loss_gradients if backward else losses,
            device,
            [None if t is None else t.name for t in tensors],
            values,
            op=op.name.removesuffix("_backward"),
            form=form,
            kinds=tuple(None if t is None else t.dtype.name for t in tensors),
            steps=tuple(s if s in (0, 1) else -1 for s in last.strides),
            outer=len(outer),
            mode=op.reduction,
        )


def _nest(x: Tensor, tensors: Sequence[Tensor | None], names: str) -> tuple[list[Axis], Axis, Axis]:
    """Outer loops, rows and elements; each tensor's strides over the dims of x, 0 where it repeats."""
    of = [_spread(t, x.rank) for t in tensors]
    order = sorted(range(len(tensors)), key=lambda t: names[t] not in "x")  # the loops in x's memory order
    axes = folded([Axis(d, tuple(of[t][i] for t in order)) for i, d in enumerate(x.dim)])
    axes = [Axis(a.extent, tuple(a.strides[order.index(t)] for t in range(len(tensors)))) for a in axes]
    if axes:  # the axis along which most tensors are dense goes innermost
        dense = [sum(s == 1 for s in a.strides) for a in axes]
        axes.append(axes.pop(max(range(len(axes)), key=lambda i: (dense[i], i))))
    one = Axis(1, (0,) * len(tensors))
    *outer, rows, last = [one] * max(2 - len(axes), 0) + axes
    return outer, rows, last


def _spread(t: Tensor | None, rank: int) -> tuple[int, ...]:
    if t is None:
        return (0,) * rank
    strides = (0,) * (rank - t.rank) + t.stride
    dims = (1,) * (rank - t.rank) + t.dim
    return tuple(0 if d == 1 else s for d, s in zip(dims, strides))
