"""Axis engine: resampling, adaptive pooling, pooling in 3-D, and their gradients, by tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vlug.engines.base import Engine, EngineConfig, NativeProgram, Program
from vlug.engines.cpu.nest import Axis, folded, native, no_kernels, parts, product, vectors_at_once
from vlug.graph import Graph
from vlug.ops.axis_map import AxisMap
from vlug.ops.base import need
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["AxisEngine"]

_SCATTERS = ("max_pool_backward", "adaptive_max_pool_backward")
_LARGEST = ("max_pool", "adaptive_max_pool")
_OPS = (
    "resample", "resample_backward", "adaptive_avg_pool", "adaptive_avg_pool_backward", "avg_pool",
    "avg_pool_backward", "pad_backward", *_LARGEST, *_SCATTERS,
)  # fmt: skip
#: Elements that a unit of work makes.
BLOCK = 16384
#: Entries of the tables of one axis: they are built when the plan is.
MOST = 1 << 20


class AxisEngine(Engine):
    """Separable maps over one to three spatial dimensions, the largest of windows, sums by index."""

    name: ClassVar[str] = "cpu.axis"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        if len(graph) != 1 or graph.nodes[0].op.name not in _OPS:
            return f"takes one of {', '.join(_OPS)} alone"
        node = graph.nodes[0]
        for t in graph.tensors.values():
            if t.rank > 5 and node.op.name != "pad_backward":
                return f"{t.rank - 2} spatial dimensions, it has kernels for 1 to 3"
            if math.prod(t.dim[2:]) >= 1 << 31:
                return f"a plane of {t} has 2^31 elements or more"
        if node.op.name in _SCATTERS:
            return None
        op: Any = node.op.bind(graph.ins(node))
        first, last = need(graph.ins(node))[0], need(graph.outs(node)[:1])[0]
        if node.op.name == "pad_backward":
            if len(_spatial(op, first.rank)) > 3:
                return "more than 3 padded dimensions"
            if max(first.dim, default=0) > MOST:
                return f"tables of {max(first.dim)} entries for one axis, at most {MOST} are built"
            return None
        rows = max(_taps(op, n, m, axis) * m for axis, (n, m) in enumerate(zip(first.dim[2:], last.dim[2:])))
        if rows > MOST:
            return f"tables of {rows} entries for one axis, at most {MOST} are built"
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.5

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        node = graph.nodes[0]
        op: Any = node.op.bind(graph.ins(node))
        ins, outs = need(graph.ins(node)), [t for t in graph.outs(node) if t is not None]
        if op.name in _SCATTERS:
            return _scatter([*ins, *outs], device)
        if not outs[0].numel:
            return _compile(op, [AxisMap(np.zeros((0, 0), np.int64))] * 3, ins[0], outs, device)
        maps = _maps(op, ins[0].dim, outs[0].dim)
        if op.name == "adaptive_avg_pool" and math.prod(outs[0].dim[2:]) == 1:
            from vlug.engines.cpu.reduction import reduction_program

            return reduction_program(ins[0], outs[0], set(range(2, ins[0].rank)), "mean", True, device)
        whole = AxisMap(np.zeros((1, 1), np.int64))  # of an axis that is not there
        return _compile(op, [*[whole] * (3 - len(maps)), *maps], ins[0], outs, device)


def _taps(op: Any, n: int, m: int, axis: int) -> int:
    """A bound of the terms of one result (from n elements to m)."""
    if op.name.startswith(("avg", "max")):
        return int(op.window[axis])
    if op.name == "resample":
        return 4
    return -(-n // max(m, 1)) * (4 if op.name == "resample_backward" else 1) + 8


def _maps(op: Any, size: Sequence[int], out: Sequence[int]) -> list[AxisMap]:
    if op.name == "pad_backward":
        found = op.maps(size)
        return [found[a] for a in _spatial(op, len(size))]
    maps = op.transposed if op.name.endswith("_backward") else op.maps
    return maps(size[2:], out[2:])  # type: ignore[no-any-return]


def _strided(t: Tensor, spatial: Sequence[int]) -> tuple[list[int], list[int]]:
    """Dims and strides, the three axes that are mapped last (size 1 where there are fewer)."""
    order = [a for a in range(t.rank) if a not in spatial]
    more = 3 - len(spatial)
    dim = [*(t.dim[a] for a in order), *[1] * more, *(t.dim[a] for a in spatial)]
    return dim, [*(t.stride[a] for a in order), *[0] * more, *(t.stride[a] for a in spatial)]


def _spatial(op: Any, rank: int) -> list[int]:
    """The axes that are mapped, at most three are allowed."""
    if op.name != "pad_backward":
        return list(range(2, rank))
    moved = [a for a in range(rank) if op.pre[a] or op.post[a]]
    if len(moved) < 3 and rank and rank - 1 not in moved:
        moved.append(rank - 1)
    return moved


def _dense(dim: Sequence[int], stride: Sequence[int], axis: int) -> bool:
    return dim[axis] <= 1 or stride[axis] == 1


def _nest(
    tensors: Sequence[Tensor], names: str, spatial: Sequence[int], rows_allowed: bool = True
) -> tuple[Any, dict[str, Any], bool, bool]:
    """Outer axes, the sizes and strides of all, whether channels are the lanes, whether rows are dense."""
    flats = [_strided(t, spatial) for t in tensors]
    dims, rest = flats[0][0], len(flats[0][0]) - 3
    unit = all(_dense(*f, -1) for f in flats)
    dense = [a for a in range(rest) if dims[a] > 1 and all(f[1][a] == 1 for f in flats)]
    rows = rows_allowed and bool(dense) and not (unit and dims[-1] > 1)
    channel = dense[0] if rows else -1
    axes = [Axis(dims[a], tuple(f[1][a] for f in flats)) for a in range(rest) if a != channel]
    outer, values = folded(axes), {}
    for i, a in enumerate(outer):
        values[f"o{i}"] = a.extent
        values |= {f"{n}_s{i}": s for n, s in zip(names, a.strides)}
    k = len(outer)
    for name, (_, stride) in zip(names, flats):
        values |= {f"{name}_s{k + i}": s for i, s in enumerate(stride[-3:])}
        values[f"{name}_last"] = stride[-1]
    return outer, values | {"C": dims[channel] if rows else 1}, rows, unit


def _compile(
    op: Any, maps: Sequence[AxisMap], x: Tensor, outs: Sequence[Tensor], device: CpuDevice
) -> Program:
    from vlug.engines.cpu.kernels import axis as kernels

    is_max = op.name in _LARGEST
    tensors, spatial = [x, *outs], _spatial(op, x.rank)
    outer, values, rows, unit = _nest(tensors, "xyi"[: len(tensors)], spatial)
    size, out = _strided(x, spatial)[0][-3:], _strided(outs[0], spatial)[0][-3:]
    for axis, n, m, table in zip("dhw", size, out, maps):
        values |= {f"{axis}_in": n, f"{axis}_out": m, f"t{axis}": table.taps}
    lines = out[0] * out[1] if outs[0].numel else 0
    across = max(out[2], 1) * (values["C"] if rows else 1)
    RB = max(min(lines, BLOCK // across), 1)
    units = product(outer) * -(-lines // RB)
    values |= {"RB": RB, **parts(units, sum(t.nbytes for t in tensors))}
    if not outs[0].numel:
        values |= {"parts": 0}
    constants: dict[str, Any] = {"kinds": tuple(t.dtype.name for t in tensors), "outer": len(outer)}
    if is_max:
        constants["index"] = len(outs) == 2
    else:
        constants["weighted"] = any(m.weight is not None for m in maps)
        constants["mean"] = any(m.divisor is not None for m in maps)
    if rows:
        constants["by"] = vectors_at_once(values["C"], device)
    else:
        constants["unit"] = unit
        if not is_max:
            constants["ragged"] = bool((maps[-1].index < 0).any())
    build = getattr(kernels, f"{'largest' if is_max else 'map'}_{'rows' if rows else 'planes'}")
    made = native(build, device, [t.name for t in tensors], values, **constants)
    return _with_tables(made, maps, constants)


def _with_tables(made: NativeProgram, maps: Sequence[AxisMap], constants: dict[str, Any]) -> NativeProgram:
    """The program with the tables behind its args."""
    words: list[np.ndarray[Any, Any]] = []
    for m in maps:
        words.append(np.ascontiguousarray(m.index).reshape(-1))
        for wanted, given, shape in (
            (constants.get("weighted"), m.weight, m.index.shape),
            (constants.get("mean"), m.divisor, m.index.shape[1:]),
        ):
            if wanted:
                a = np.ones(shape) if given is None else np.ascontiguousarray(given, np.float64)
                words.append(a.reshape(-1).view(np.int64))
    return replace(made, args=(*made.args, *np.concatenate(words).tolist()))


def _scatter(tensors: Sequence[Tensor], device: CpuDevice) -> Program:
    from vlug.engines.cpu.kernels.axis import scatter

    spatial = range(2, tensors[0].rank)
    outer, values, _, unit = _nest(tensors, "gid", spatial, False)
    for axis, n, m in zip(
        "dhw", _strided(tensors[2], spatial)[0][-3:], _strided(tensors[0], spatial)[0][-3:]
    ):
        values |= {f"{axis}_dx": n, f"{axis}_dy": m}
    values |= parts(product(outer), sum(t.nbytes for t in tensors))
    if not tensors[2].numel:
        values["parts"] = 0
    kinds = tuple(t.dtype.name for t in tensors)
    return native(
        scatter, device, [t.name for t in tensors], values, kinds=kinds, outer=len(outer), unit=unit
    )
