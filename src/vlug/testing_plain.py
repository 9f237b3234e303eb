"""A plain low-precision run of a graph: fp32 arithmetic, every sum term by term, every tensor rounded.

Its error against float64 is the measure for engines (see `vlug.testing.tolerance`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlug.dtypes import F64
from vlug.engines.reference import wrapped
from vlug.graph import Graph
from vlug.ops.conv import ConvDgrad, ConvFprop, ConvWgrad
from vlug.ops.matmul import Matmul
from vlug.ops.window import pad_spatial, taps
from vlug.tensor import Tensor

__all__ = ["is_double", "plain"]

Array = NDArray[Any]


def is_double(graph: Graph) -> bool:
    """Whether a graph computes in f64; an optimiser's scalars alone do not make it."""
    floats = [t for t in graph.tensors.values() if t.dtype.is_float]
    double = [t for t in floats if t.dtype == F64]
    return any(t.numel != 1 for t in double) or (double == floats and bool(floats))


def plain(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every tensor of the graph, as float64 that its dtype holds."""
    known: dict[str, Array] = {}
    wide = np.float64 if is_double(graph) else np.float32
    with np.errstate(all="ignore"):
        for t in graph.inputs:
            a = inputs[t.name]
            known[t.name] = a.astype(wide) if t.dtype.kind == "f" else a
        for node in graph:
            ins = [None if n is None else known[n] for n in node.inputs]
            for name, a in zip(node.outputs, _outputs(node.op, ins)):
                if name is not None:
                    t = graph.tensors[name]
                    known[name] = (
                        a.astype(t.dtype.numpy).astype(wide) if t.dtype.kind == "f" else wrapped(a, t.dtype)
                    )
    return {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in known.items()}


def _outputs(op: Any, ins: Sequence[Array | None]) -> tuple[Array, ...]:
    a, b = ins[0], ins[1] if len(ins) > 1 else None
    if isinstance(op, ConvFprop) and a is not None and b is not None:
        return (_fprop(op, a, b),)
    if isinstance(op, ConvDgrad) and a is not None and b is not None:
        return (_dgrad(op, a, b),)
    if isinstance(op, ConvWgrad) and a is not None and b is not None:
        return (_wgrad(op, a, b),)
    if isinstance(op, Matmul) and a is not None and b is not None:
        return (_matmul(op, a, b),)
    return tuple(np.asarray(y) for y in op.reference(*ins))


def _groups(a: Array, groups: int, axis: int) -> Array:
    return a.reshape(*a.shape[:axis], groups, a.shape[axis] // groups, *a.shape[axis + 1 :])


def _fprop(op: ConvFprop, x: Array, w: Array) -> Array:
    op = op.bind((Tensor.of(x.shape),))
    out = op._spatial(x.shape[2:], w.shape[2:])
    n, k, g = x.shape[0], w.shape[0], op.groups
    xp, wg = _groups(pad_spatial(x, op.pre_padding, op.post_padding), g, 1), _groups(w, g, 0)
    y = np.zeros((n, g, k // g, *out), x.dtype)
    ones = (1,) * len(out)
    for at, window in taps(w.shape[2:], op.stride, op.dilation, out):
        for c in range(w.shape[1]):
            y += (
                wg[(slice(None), slice(None), c, *at)].reshape(1, g, k // g, *ones)
                * xp[:, :, c : c + 1][(..., *window)]
            )
    return y.reshape(n, k, *out)


def _dgrad(op: ConvDgrad, dy: Array, w: Array) -> Array:
    op = op.bind((Tensor.of(dy.shape),))
    out, n, g = dy.shape[2:], dy.shape[0], op.groups
    room = [h + a + b for h, a, b in zip(op.size, op.pre_padding, op.post_padding)]
    dxp = np.zeros((n, g, w.shape[1], *room), dy.dtype)
    wg, dyg, ones = _groups(w, g, 0), _groups(dy, g, 1), (1,) * len(out)
    for at, window in taps(w.shape[2:], op.stride, op.dilation, out):
        for k in range(w.shape[0] // g):
            weight = wg[(slice(None), k, slice(None), *at)].reshape(1, g, w.shape[1], *ones)
            dxp[(..., *window)] += weight * dyg[:, :, k : k + 1]
    inner: tuple[Any, ...] = tuple(slice(a, a + h) for a, h in zip(op.pre_padding, op.size))
    return dxp[(..., *inner)].reshape(n, g * w.shape[1], *op.size)


def _wgrad(op: ConvWgrad, dy: Array, x: Array) -> Array:
    op = op.bind((Tensor.of(dy.shape),))
    out, n, g = dy.shape[2:], dy.shape[0], op.groups
    k, c, p = dy.shape[1] // g, x.shape[1] // g, math.prod(out)
    xp = pad_spatial(x, op.pre_padding, op.post_padding)
    seen = [
        xp[(..., *window)].reshape(n, g, c, p) for _, window in taps(op.size, op.stride, op.dilation, out)
    ]
    terms = np.stack(seen, 3) if seen else np.zeros((n, g, c, 0, p), x.dtype)
    dyg = dy.reshape(n, g, k, p)
    dw = np.zeros((g, k, c, len(seen)), dy.dtype)
    for image in range(n):
        for at in range(p):
            dw += dyg[image, :, :, None, None, at] * terms[image, :, None, :, :, at]
    return dw.reshape(g * k, c, *op.size)


def _matmul(op: Matmul, a: Array, b: Array) -> Array:
    a = np.swapaxes(a, -1, -2) if op.transpose_a else a
    b = np.swapaxes(b, -1, -2) if op.transpose_b else b
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    c = np.zeros((*lead, a.shape[-2], b.shape[-1]), a.dtype)
    for k in range(a.shape[-1]):
        c += a[..., :, k : k + 1] * b[..., k : k + 1, :]
    return c
