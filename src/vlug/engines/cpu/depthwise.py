"""Depthwise convolution engine: a group for each input channel; fprop, dgrad, wgrad, NCHW and NHWC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import channel_parts, native, no_kernels, parts, vectors_at_once
from vlug.graph import Graph
from vlug.ops.base import need
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["DepthwiseEngine"]

#: Elements of x that a unit of work reads.
BLOCK = 16384
#: Taps along a row that a kernel unrolls; wider filters loop.
TAPS = 7


class DepthwiseEngine(Engine):
    """conv_fprop, conv_dgrad and conv_wgrad whose groups are as many as the channels of x."""

    name: ClassVar[str] = "cpu.depthwise"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        if len(graph) != 1 or not graph.nodes[0].op.name.startswith("conv_"):
            return "takes one convolution alone"
        x, _, _ = _tensors(graph)
        op: Any = graph.nodes[0].op
        if op.groups != x.dim[1]:
            return f"{op.groups} groups over {x.dim[1]} channels: not depthwise"
        if op.name == "conv_dgrad" and graph.tensors[graph.nodes[0].inputs[0] or ""].dim[1] == 0:
            return "dy has no channels: each element of dx is an empty sum"
        if x.rank > 4:
            return f"{x.rank - 2} spatial dimensions, it has kernels for 1 and 2"
        if x.dim[-1] * max(x.dim[-2], 1) >= 1 << 31:
            return f"a plane of {x} has 2^31 elements or more"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.8

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        from vlug.engines.cpu.kernels import depthwise as kernels

        node = graph.nodes[0]
        op: Any = node.op.bind(graph.ins(node))
        x, w, y = (_Flat(t) for t in _tensors(graph))
        (N, C, H, W), (K, _, R, S), (P, Q) = x.dim, w.dim, y.dim[2:]
        flat = [(1, *v)[-2:] if len(v) == 1 else v for v in (op.stride, op.dilation)]
        pad = (0, *op.pre_padding) if len(op.pre_padding) == 1 else op.pre_padding
        (sh, sw), (dh, dw), (ph, pw) = flat[0], flat[1], pad
        m = K // max(C, 1)
        values: dict[str, Any] = {"N": N, "C": C, "K": K, "m": max(m, 1), "H": H, "W": W, "P": P, "Q": Q}
        values |= {"R": R, "S": S, "sh": sh, "sw": sw, "dh": dh, "dw": dw, "ph": ph, "pw": pw}
        values |= dict(zip(("w_k", "w_r", "w_s"), (w.stride[0], *w.stride[2:])))

        mode = op.name.removeprefix("conv_")
        turned = mode == "dgrad" and sh == sw == 1 and m == 1
        if turned:  # dx is the turned filter over dy
            mode, x, y, (H, W), (P, Q) = "fprop", y, x, (P, Q), (H, W)
            values |= {"H": H, "W": W, "P": P, "Q": Q}
            values |= {"ph": (R - 1) * dh - ph, "pw": (S - 1) * dw - pw}
        for name, t in (("x", x), ("y", y)):
            values |= {f"{name}_{a}": s for a, s in zip("nchw", t.stride)}
        rows = m == 1 and C > 1 and x.dense(1) and y.dense(1) and not (W > 1 and x.dense(3) and y.dense(3))
        unit = x.dense(3) and y.dense(3)
        constants: dict[str, Any] = {"dilation": 1 if dh == dw == 1 else 0}
        nbytes = sum(t.nbytes for t in graph.tensors.values())
        lines = H if mode == "dgrad" else P
        if rows:
            blocks = N * lines
            constants["by"] = vectors_at_once(C, device)
            if mode == "wgrad":
                RB = max(-(-N * P // 32), -(-BLOCK // max(Q * C, 1)))
                blocks = -(-N * P // RB)
                values |= {"RB": RB, "blocks": blocks}
            elif mode == "fprop":
                constants["flip"] = turned
            else:
                constants |= {"sh": sh if sh <= 2 else 0, "sw": sw if sw <= 2 else 0}
        else:
            few = S if S <= TAPS else 0
            constants |= {"S": few, "sw": sw if unit and few and sw <= 2 else 0, "unit": unit}
            if mode == "fprop":
                constants["flip"] = turned
            elif mode == "dgrad":
                constants["one"] = m == 1
            RB = max(min(lines, BLOCK // max(W * (1 if mode == "dgrad" else sh), 1)), 1)
            values["RB"] = RB
            channels = C if mode == "dgrad" else K
            blocks = K * R if mode == "wgrad" else N * channels * -(-lines // RB)
        if next(iter(graph.outputs)).numel == 0:
            values |= {"N": 0, "K": 0, "C": 0}
            blocks = 0
            if rows and mode == "wgrad":
                values["blocks"] = 0
        values |= parts(blocks, nbytes) | channel_parts(values["C"], nbytes)
        build = getattr(kernels, f"{mode}_{'rows' if rows else 'planes'}")
        operands = [*need(graph.ins(node)), *need(graph.outs(node))]
        constants = {"kinds": tuple(t.dtype.name for t in operands), **constants}
        return native(build, device, [t.name for t in operands], values, **constants)


def _tensors(graph: Graph) -> tuple[Tensor, Tensor, Tensor]:
    """x (or dx), w (or dw), y (or dy)."""
    node = graph.nodes[0]
    a, b = need(graph.ins(node))
    (c,) = need(graph.outs(node))
    return {"conv_fprop": (a, b, c), "conv_dgrad": (c, b, a), "conv_wgrad": (b, c, a)}[node.op.name]


class _Flat:
    """A tensor as N C H W, whatever its spatial dimensions."""

    def __init__(self, t: Tensor) -> None:
        one = t.rank == 3
        self.dim = (*t.dim[:2], 1, t.dim[2]) if one else t.dim
        self.stride = (*t.stride[:2], 0, t.stride[2]) if one else t.stride

    def dense(self, axis: int) -> bool:
        return self.dim[axis] <= 1 or self.stride[axis] == 1
