"""CTC engine: the loss and its gradient, a sequence to a unit of work; labels and lengths checked first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import native, no_kernels
from vlug.graph import Graph

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["CtcEngine"]


class CtcEngine(Engine):
    """ctc_loss and ctc_loss_backward; a label out of range makes the program return 2, a length 3."""

    name: ClassVar[str] = "cpu.ctc"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        if len(graph) != 1 or not graph.nodes[0].op.name.startswith("ctc_loss"):
            return "takes one ctc_loss alone"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.3

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        from vlug.engines.cpu.kernels import ctc as kernels

        node = graph.nodes[0]
        op: Any = node.op
        backward = op.name.endswith("backward")
        ports = [p.rstrip("?") for p in (*op.inputs, *op.outputs)]
        tensors = dict(zip(ports, (*graph.ins(node), *graph.outs(node))))
        x, target = tensors["x"], tensors["target"]
        assert x is not None
        assert target is not None
        T, N, C = x.dim
        values: dict[str, Any] = {"T": T, "N": N, "C": C, "S": target.dim[-1], "blank": op.blank}
        for stem, port in (("x", "x"), ("a", "alpha"), ("d", "dx")):
            if (t := tensors.get(port)) is not None:
                values |= {f"{stem}{i}": s for i, s in enumerate(t.stride)}
        values |= {"t1": target.stride[-1], "t0": target.stride[0]}
        for stem, port in (
            ("il", "input_lengths"),
            ("tl", "target_lengths"),
            ("loss", "loss"),
            ("loss", "dloss"),
        ):
            if (t := tensors.get(port)) is not None:
                stem = "known" if backward and port == "loss" else stem
                values[f"{stem}_step"] = t.stride[0]
        values["least"] = target.dim[-1] if getattr(op, "longest", False) else 0
        return native(
            getattr(kernels, op.name),
            device,
            [None if t is None else t.name for t in tensors.values()],
            values,
            kinds=tuple(None if t is None else t.dtype.name for t in tensors.values()),
            padded=target.rank == 2,
            zero_infinity=op.zero_infinity,
            **({"of_softmax": op.of_softmax} if backward else {}),
        )
