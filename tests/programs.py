"""Runs an engine's native program on guarded memory, with any number of threads, and checks its results."""

from __future__ import annotations

import ctypes

import numpy as np

import guarded
from vlug.codegen import native
from vlug.codegen.isa import runnable
from vlug.graph import Graph
from vlug.runtime.device import FAKE
from vlug.runtime.threads import Env

DEVICES = [FAKE[isa.name] for isa in runnable() if isa.name in FAKE]
UNTOUCHED = 77.0


def spread(t, at: str = "end") -> tuple[np.ndarray, np.ndarray]:
    """Guarded memory of a tensor's span and the view of the tensor in it."""
    memory = guarded.empty(t.span, t.dtype.numpy, at)
    view = np.lib.stride_tricks.as_strided(memory, t.dim, [s * t.dtype.itemsize for s in t.stride])
    return memory, view


def inputs(graph: Graph, fill: str, at: str = "end", seed: int = 0) -> dict[str, np.ndarray]:
    """Guarded inputs: "exact" small integers, "real" normal numbers; NaN between the elements of a view."""
    rng, made = np.random.default_rng(seed), {}
    for t in graph.inputs:
        _, view = spread(t, at)
        data = rng.integers(-3, 4, t.dim) if fill == "exact" else rng.standard_normal(t.dim)
        view[...] = data.astype(t.dtype.numpy)
        made[t.name] = view
    return made


def execute(engine, graph: Graph, device, given, threads=1, config=None, at="end") -> dict[str, np.ndarray]:
    """The outputs of a graph; fails if a byte between an output's elements was written."""
    program = engine.compile(graph, config or engine.default(graph, device), device)
    arrays, memory = dict(given), {}
    for t in graph.outputs:
        memory[t.name], arrays[t.name] = spread(t, at)
        memory[t.name][...] = UNTOUCHED
        arrays[t.name][...] = np.nan
    size = -(-program.workspace_size(threads) // 64) * 64
    workspace = guarded.empty(size, np.uint8)
    workspace.view(np.float32)[...] = np.nan
    lent = native.env()
    env = Env(parallel_for=lent.parallel_for, threads=threads)
    tensors = (ctypes.c_void_p * len(program.operands))(
        *[None if o is None else arrays[o].__array_interface__["data"][0] for o in program.operands]
    )
    args = (ctypes.c_int64 * max(1, len(program.args)))(*program.args)
    f = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)(program.address)
    code = f(ctypes.addressof(tensors), ctypes.addressof(args), workspace.ctypes.data, ctypes.addressof(env))
    assert code == 0, f"the program reported code {code}"
    outputs = {}
    for t in graph.outputs:
        outputs[t.name] = arrays[t.name].copy()
        arrays[t.name][...] = UNTOUCHED
        assert (memory[t.name].astype(np.float64) == UNTOUCHED).all(), f"{t.name}: wrote between its elements"
    return outputs


def reference(graph: Graph, given) -> dict[str, np.ndarray]:
    """Every tensor of the graph by the operations' definitions, in float64."""
    values = {n: np.asarray(a, np.float64) for n, a in given.items()}
    for node in graph:
        outs = node.op.reference(*[None if n is None else values[n] for n in node.inputs])
        values.update({n: o for n, o in zip(node.outputs, outs) if n is not None})
    return values


def check(engine, line: str, device, threads=(1, 2, 3), fills=("exact", "real"), config=None) -> None:
    """The graph's result: exact on integers, close to float64 on reals, the same bits for any threads."""
    graph = Graph.parse(line)
    assert engine.why_not(graph, device) is None
    for fill in fills:
        bits = set()
        for count in threads:
            at = "start" if count == 2 else "end"
            given = inputs(graph, fill, at)
            got = execute(engine, graph, device, given, count, config, at)
            want = reference(graph, given)
            for t in graph.outputs:
                a, b = np.asarray(got[t.name], np.float64), want[t.name]
                if fill == "exact":
                    np.testing.assert_array_equal(a, b.astype(t.dtype.numpy).astype(np.float64), line)
                elif a.size:
                    scale = max(np.abs(b).max(), 1e-30)
                    assert np.abs(a - b).max() <= max(4 * t.dtype.eps, 3e-6) * scale, line
            bits.add(tuple(got[t.name].tobytes() for t in graph.outputs))
        assert len(bits) == 1, f"{line}: bits depend on the number of threads"
