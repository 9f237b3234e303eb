"""Pooling engine: max and average pooling and their gradients, in place in any layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import Axis, folded, native, no_kernels, parts, product, vectors_at_once
from vlug.engines.cpu.pointwise import PointwiseEngine
from vlug.engines.cpu.reduction import reduction_program
from vlug.graph import Graph
from vlug.ops.base import need
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["PoolEngine"]

_OPS = ("max_pool", "max_pool_backward", "avg_pool", "avg_pool_backward")
#: Elements that a unit of work reads.
BLOCK = 16384
#: Taps along a row that a kernel unrolls; wider windows loop.
TAPS = 7


class PoolEngine(Engine):
    """max_pool, avg_pool and their backward over one or two spatial dimensions."""

    name: ClassVar[str] = "cpu.pool"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        if len(graph) != 1 or graph.nodes[0].op.name not in _OPS:
            return "takes one pooling operation alone"
        for t in graph.tensors.values():
            if t.rank > 4:
                return f"{t.rank - 2} spatial dimensions, it has kernels for 1 and 2"
            if math.prod(t.dim[2:]) >= 1 << 31:
                return f"a plane of {t} has 2^31 elements or more"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.8

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        node = graph.nodes[0]
        op: Any = node.op.bind(graph.ins(node))
        ins, outs = need(graph.ins(node)), graph.outs(node)
        big = ins[0] if not op.name.endswith("backward") else need(outs)[0]
        if op.name.startswith("avg") and _is_global(op, big, ins[0] if big is not ins[0] else need(outs)[0]):
            return _global_mean(ins[0], need(outs)[0], device)
        return _compile(op, [*ins, *outs], device)


def _is_global(op: Any, big: Tensor, small: Tensor) -> bool:
    """Whether the one window is the whole plane, divided by its size."""
    size = big.dim[2:]
    return (
        tuple(op.window) == size
        and not any(op.pre_padding)
        and math.prod(small.dim[2:]) == 1
        and op.divisor in (0, math.prod(size))
    )


def _global_mean(a: Tensor, b: Tensor, device: CpuDevice) -> Program:
    """Mean over planes (b has 1×1 ones), or its gradient."""
    axes = tuple(range(2, a.rank))
    if math.prod(b.dim[2:]) == 1:
        return reduction_program(a, b, set(axes), "mean", True, device)
    g = Graph()
    dy = g.like(a.name, a)
    how = {"mode": "mean", "axes": axes, "keepdim": True, "size": b.dim}
    g.call("reduction_backward", dy, **how, names=[b.name], like=[b])
    engine = PointwiseEngine()
    return engine.compile(g, engine.default(g, device), device)


@dataclass
class _Flat:
    """A tensor as N C H W, whatever its spatial dimensions."""

    dim: tuple[int, int, int, int]
    stride: tuple[int, int, int, int]

    @classmethod
    def of(cls, t: Tensor) -> _Flat:
        (n, c, *dim), (sn, sc, *stride) = t.dim, t.stride
        if len(dim) == 1:
            dim, stride = [1, *dim], [0, *stride]
        return cls((n, c, dim[0], dim[1]), (sn, sc, stride[0], stride[1]))

    def dense(self, axis: int) -> bool:
        return self.dim[axis] <= 1 or self.stride[axis] == 1


def _pair(values: Sequence[int], first: int) -> tuple[int, int]:
    return (first, values[0]) if len(values) == 1 else (values[0], values[1])


def _compile(op: Any, tensors: Sequence[Tensor | None], device: CpuDevice) -> Program:
    from vlug.engines.cpu.kernels import pool as kernels

    backward, is_max = op.name.endswith("backward"), op.name.startswith("max")
    present = [t for t in tensors if t is not None]
    flats = [_Flat.of(t) for t in present]
    big, small = (flats[-1], flats[0]) if backward else (flats[0], flats[1])
    (H, W), (P, Q), C = big.dim[2:], small.dim[2:], big.dim[1]
    (R, S), (sh, sw) = _pair(op.window, 1), _pair(op.stride, 1)
    (ph, pw), (bh, bw) = _pair(op.pre_padding, 0), _pair(op.post_padding, 0)
    dh, dw = _pair(op.dilations, 1)
    rows = C > 1 and all(f.dense(1) for f in flats) and not (W > 1 and all(f.dense(3) for f in flats))
    unit = all(f.dense(3) for f in flats)

    lines = (H if backward else P) if present[-1].numel else 0  # rows of results; nothing to do: none
    values: dict[str, Any] = {"H": H, "W": W, "P": P, "Q": Q, "R": R, "S": S, "C": C}
    values |= {"sh": sh, "sw": sw, "ph": ph, "pw": pw, "dh": dh, "dw": dw}
    values["H" if backward else "P"] = lines
    if not is_max:
        pad = op.count_include_pad
        values |= {"h_lo": -ph if pad else 0, "h_hi": H + bh if pad else H}
        values |= {"w_lo": -pw if pad else 0, "w_hi": W + bw if pad else W}
        values["divisor"] = float(op.divisor)
    names = "gid" if backward and is_max else "gd" if backward else "xyi"
    outer_axes = (0,) if rows else (0, 1)
    axes = [Axis(big.dim[a], tuple(f.stride[a] for f in flats)) for a in outer_axes]
    outer = folded(axes)
    for i, a in enumerate(outer):
        values[f"o{i}"] = a.extent
        values |= {f"{n}_s{i}": s for n, s in zip(names, a.strides)}
    n = len(outer)
    for name, f in zip(names, flats):
        values |= {f"{name}_s{n}": f.stride[2], f"{name}_s{n + 1}": f.stride[3], f"{name}_last": f.stride[3]}
    across = W * (C if rows else 1) * (1 if backward else sh)  # what a row of results reads
    RB = max(min(lines, BLOCK // max(across, 1)), 1)
    units = product(outer) * -(-lines // RB)
    values |= {"RB": RB, **parts(units, sum(t.nbytes for t in present))}

    constants: dict[str, Any] = {"kinds": tuple(t.dtype.name for t in present), "outer": n}
    if is_max:
        constants["dilation"] = 1 if dh == dw == 1 else 0
    else:
        constants["divisor"] = bool(op.divisor)
    if is_max and not backward:
        constants["index"] = len(present) == 3
    if rows:
        constants["by"] = vectors_at_once(C, device)
        if backward:
            constants |= {"sh": sh if sh <= 2 else 0, "sw": sw if sw <= 2 else 0}
    else:
        few = S if S <= TAPS else 0
        constants |= {"S": few, "sw": sw if unit and sw <= 2 and few else 0, "unit": unit}
    stem = op.name.replace("_pool", "")
    build = getattr(kernels, f"{stem}_{'rows' if rows else 'planes'}")
    return native(build, device, [t.name for t in present], values, **constants)
