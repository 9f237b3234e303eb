"""Engine cpu.matmul: matrix products and linear layers, batched, any strides, with bias and ReLU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlug.engines.base import Engine, EngineConfig, NativeProgram
from vlug.engines.cpu.panels import packing
from vlug.graph import Graph
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["Matmul"]

_DTYPES = ("f32", "bf16", "f16", "f64")
_LANES = {"avx2": 8, "avx512": 16, "neon": 4}
# MR of a tile two vectors wide by lanes, at most those: a panel's row is one vector; the second for few rows
_ROWS = {4: (4, 2), 8: (6, 4), 16: (14, 8)}
_ROWS_F64 = {4: (4, 2), 8: (4, 2), 16: (8, 4)}  # a vector takes two registers, the tile is one wide
_LEADING = 3
_UNITS = 16  # parts that a large product is cut in at the least


class Matmul(Engine):
    """c = a · b, alone or with a bias along m or n and a ReLU behind it."""

    name = "cpu.matmul"
    version = 2

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if device.isa not in _LANES:
            return f"it has kernels for {' and '.join(_LANES)}, and the device runs {device.isa}"
        found = _parse(graph)
        if isinstance(found, str):
            return found
        if found.a.dtype.name not in _DTYPES:
            return f"it takes {', '.join(_DTYPES)}, and a is {found.a.dtype}"
        if any(t.dtype != found.a.dtype for t in (found.b, found.c, found.bias) if t is not None):
            return "its tensors must have one element type"
        if found.c.overlaps:
            return f"elements of {found.c.name} share memory"
        if len(Problem.of(found).lead) > _LEADING:
            return f"more than {_LEADING} leading dimensions that do not lie evenly"
        return None

    def knobs(self, graph: Graph, device: CpuDevice) -> dict[str, tuple[int, ...]]:
        p, lanes = _problem(graph), _LANES[device.isa]
        rows = (_ROWS_F64 if p.dtype == "f64" else _ROWS)[lanes]
        waste = [-p.M % r for r in rows]  # rows of the last tile that nothing comes of
        if waste[0] > waste[1] + p.M // 8:
            rows = rows[::-1]
        width = _vectors(p) * lanes
        depth = min(max(device.l1 * 2 // 3 // (4 * width) // 64 * 64, 64), 512)
        wide = max(device.l2 // 4 // (4 * depth) // width * width, width)
        high = max(device.l2 // 8 // (4 * depth), 16)
        return {
            "rows": rows,
            "depth": (depth, 2 * depth),
            "wide": (wide, wide // 2),
            "high": (high, high // 2),
        }

    def share(self, graph: Graph, device: CpuDevice) -> float:
        p, lanes = _problem(graph), _LANES[device.isa]
        if 0 in (p.M, p.N, p.K):
            return 0.5
        rows = self.knobs(graph, device)["rows"][0]
        width = _vectors(p) * lanes
        used = p.M / (-(-p.M // rows) * rows) * p.N / (-(-p.N // width) * width)
        # Packing takes about ten rows' or columns' worth of arithmetic of the other operand.
        return 0.8 * used / (1 + 10 / p.M + 10 / p.N)

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> NativeProgram:
        from vlug.codegen.isa import ALL
        from vlug.codegen.jit import bits, compiled
        from vlug.engines.cpu.matmul_kernels import matmul

        p, lanes = _problem(graph), _LANES[device.isa]
        constants, values = _geometry(p, lanes, *(config[n] for n in ("rows", "depth", "wide", "high")))
        c = compiled(matmul, ALL[device.isa], **constants)
        args = tuple(bits(values[n]) for n in c.arg_names)
        return NativeProgram(c.address, p.operands, args, c.shared_bytes(values), c.part_bytes(values),
                             (c.name,), c)


@dataclass(frozen=True)
class _Found:
    """A graph that the engine takes: operands, the last result, bias with its axis, ReLU."""

    op: Any
    a: Tensor
    b: Tensor
    c: Tensor
    bias: Tensor | None
    axis: int
    relu: bool


def _parse(graph: Graph) -> _Found | str:
    """The graph as a product with what may follow it, or why it is none."""
    first, *rest = graph.nodes
    if first.op.name != "matmul":
        return "the graph does not begin with matmul"
    a, b = (graph.tensors[n or ""] for n in first.inputs)
    c, bias, axis, relu = graph.tensors[first.outputs[0] or ""], None, 0, False
    for node in rest:
        after = graph.tensors[node.inputs[0] or ""]
        if after.name != c.name or any(t.name == c.name for t in graph.outputs):
            return f"{node.op.name} does not follow the product alone"
        if node.op.name == "bias" and bias is None and not relu:
            op: Any = node.op.bind((after,))
            bias, axis = graph.tensors[node.inputs[1] or ""], op.axis
            if axis < c.rank - 2:
                return "the bias lies along a leading dimension"
        elif node.op.name == "relu" and node.op == type(node.op)() and not relu:
            relu = True
        else:
            return f"{node.op.name} follows, where only a bias and then a plain ReLU may"
        c = graph.tensors[node.outputs[0] or ""]
    return _Found(first.op, a, b, c, bias, axis, relu)


@dataclass(frozen=True)
class Problem:
    """Sizes and strides in elements: a (m, k), b (k, n), c (m, n); lead: (size, stride of a, b, c) each."""

    M: int
    N: int
    K: int
    lead: tuple[tuple[int, int, int, int], ...]
    a: tuple[int, int]
    b: tuple[int, int]
    c: tuple[int, int]
    bias: str
    bias_step: int
    relu: bool
    itemsize: int
    dtype: str
    operands: tuple[str | None, ...]

    @classmethod
    def of(cls, f: _Found) -> Problem:
        a, b, c = f.a.normalised, f.b.normalised, f.c.normalised
        M, N, K = f.op.sizes(a, b)
        am, ak = a.stride[-2:][::-1] if f.op.transpose_a else a.stride[-2:]
        bk, bn = b.stride[-2:][::-1] if f.op.transpose_b else b.stride[-2:]
        cm, cn = c.stride[-2:]
        dims = c.dim[:-2]
        lead = _joined(dims, _spread(a, dims), _spread(b, dims), c.stride[:-2])
        bias, step = "", 0
        if f.bias is not None:
            bias, step = "mn"[f.axis - (c.rank - 2)], f.bias.normalised.stride[0]
        last = None if f.bias is None else f.bias.name
        names: tuple[str | None, ...] = (f.a.name, f.b.name, f.c.name, last)
        if cn != 1 and N > 1 and (cm == 1 or M == 1):  # cᵀ = bᵀ aᵀ
            M, N, am, ak, bk, bn, cm, cn = N, M, bn, bk, ak, am, cn, cm
            lead = tuple((n, y, x, z) for n, x, y, z in lead)
            bias = {"m": "n", "n": "m", "": ""}[bias]
            names = (names[1], names[0], *names[2:])
        return cls(M, N, K, lead, (am, ak), (bk, bn), (cm, cn), bias, step, f.relu, a.dtype.itemsize,
                   a.dtype.name, names)


def _vectors(p: Problem) -> int:
    """Vectors in a row of the tile."""
    return 1 if p.dtype == "f64" else 2


def _problem(graph: Graph) -> Problem:
    found = _parse(graph)
    if isinstance(found, str):
        raise ValueError(found)
    return Problem.of(found)


def _spread(t: Tensor, dims: Sequence[int]) -> list[int]:
    """Strides of the leading dimensions, 0 where the tensor is repeated."""
    own = list(zip(t.dim[:-2], t.stride[:-2]))
    own = [(1, 0)] * (len(dims) - len(own)) + own
    return [0 if d == 1 else s for d, s in own]


def _joined(dims: Sequence[int], *strides: Sequence[int]) -> tuple[Any, ...]:
    """Leading dimensions, neighbours that lie evenly in all three tensors joined to one."""
    out: list[tuple[int, ...]] = []
    for d, *s in zip(dims, *strides):
        if d == 1:
            continue
        if out and all(big == small * d for big, small in zip(out[-1][1:], s)):
            out[-1] = (out[-1][0] * d, *s)
        else:
            out.append((d, *s))
    return tuple(out)


def _up(a: int, b: int) -> int:
    return -(-a // b)


def _geometry(
    p: Problem, lanes: int, rows: int, depth: int, wide: int, high: int
) -> tuple[dict[str, Any], dict[str, int]]:
    """The kernel's constants and its arguments."""
    width = _vectors(p) * lanes
    depth = max(1, _up(p.K, max(_up(p.K, depth), 1)))
    lead = math.prod(d for d, *_ in p.lead)

    def block(size: int, most: int, unit: int) -> tuple[int, int]:
        """Size and number of blocks, even among themselves, of whole units."""
        count = max(1, _up(size, most))
        each = max(unit, _up(_up(size, count), unit) * unit)
        return each, _up(size, each)

    nb, n_blocks = block(p.N, wide, width)
    mb, m_blocks = block(p.M, high, rows)
    # Enough units for many threads, where a unit is still worth its while.
    while lead * n_blocks * m_blocks < _UNITS and max(nb * mb, 1) * depth > 1 << 20:
        if nb >= mb and nb > 4 * width:
            nb, n_blocks = block(p.N, nb // 2, width)
        elif mb > 4 * rows:
            mb, m_blocks = block(p.M, mb // 2, rows)
        else:
            break
    itemsize = p.itemsize
    (am, ak), (bk, bn), (cm, cn) = p.a, p.b, p.c
    a_by = packing(am if p.M > 1 else 1, ak if p.K > 1 else 1, itemsize, lanes)
    b_by = packing(bn if p.N > 1 else 1, bk if p.K > 1 else 1, itemsize, lanes)
    if bn == 1 and p.N > 1 and b_by != "e":
        b_by = "c"
    if am == 1 and p.M > 1 and a_by != "e":
        a_by = "c"
    constants = {
        "a_by": a_by, "b_by": b_by, "c_by": "c" if cn == 1 or p.N == 1 else "e", "rows": rows,
        "vectors": _vectors(p), "unroll": 2, "bias": p.bias, "relu": p.relu, "dtype": p.dtype,
    }  # fmt: skip
    values = {
        "M": p.M, "N": p.N, "K": p.K, "mb": mb, "nb": nb, "kb": depth, "m_blocks": m_blocks,
        "n_blocks": n_blocks, "am": am, "ak": ak, "bk": bk, "bn": bn, "cm": cm, "cn": cn,
        "bias_step": p.bias_step, "b_size": nb * (depth + lanes),
        "a_size": mb // rows * ((depth + lanes) * rows + lanes) + lanes, "sum_size": mb * nb,
    }  # fmt: skip
    lead_dims = [(1, 0, 0, 0)] * (_LEADING - len(p.lead)) + list(p.lead)
    for i, (size, *strides) in enumerate(lead_dims):
        values[f"l{i}"] = size
        values |= {f"{t}{i}": s for t, s in zip("abc", strides)}
    return constants, values
