"""Elements 2^31 and more apart: every engine reaches them, in sparse memory, with offsets of 64 bits."""

from __future__ import annotations

import mmap
from dataclasses import replace

import numpy as np
import pytest

from vlug.engines import engines
from vlug.engines.base import Engine, NativeProgram
from vlug.graph import Graph
from vlug.ops import OPERATIONS
from vlug.runtime.device import host
from vlug.tensor import Tensor, contiguous_strides
from vlug.testing import Case, compare, derive, run_program

pytestmark = pytest.mark.isa
NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's number: not every Python has the name


def far(t: Tensor, axis: int) -> Tensor:
    """The tensor with its first (0) or last (-1) dimension of several elements stretched over 2^31."""
    long = [i for i, d in enumerate(t.dim) if d > 1]
    if not long or t.numel == 0:
        return t
    i = long[axis]
    stride = list(contiguous_strides([1 if j == i else d for j, d in enumerate(t.dim)]))
    stride[i] = (1 << 31) // (t.dim[i] - 1) + 64
    return replace(t, stride=tuple(stride))


def sparse(t: Tensor) -> np.ndarray:
    """Memory that only exists where it is touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
    flat = np.frombuffer(mmap.mmap(-1, t.span * t.dtype.itemsize or 1, flags), t.dtype.numpy, t.span)
    return np.lib.stride_tricks.as_strided(flat, t.dim, [s * t.dtype.itemsize for s in t.stride])


def stretched(line: str, axis: int) -> Graph:
    return derive(Graph.parse(line), lambda t: far(t, axis), lambda t: far(t, axis))


@pytest.mark.parametrize("engine", [e for e in engines() if e.name != "reference"], ids=lambda e: e.name)
def test_far_elements(engine: Engine) -> None:
    """A sample of each of an engine's operations, the stretched dimension in turn."""
    ran = 0
    for n, (_, cls) in enumerate(sorted(OPERATIONS.items())):
        if engine.name == "cpu.pointwise" and n % 4:  # one kernel for all of them
            continue
        graphs = [Graph.parse(s) for s in cls.samples()]
        line = next((g.line for g in graphs if all(t.numel for t in g.tensors.values())), None)
        if line is None or engine.why_not(Graph.parse(line), host()) is not None:
            continue
        for axis in (n % 2 - 1, -(n % 2)):
            g = stretched(line, axis)
            if engine.why_not(g, host()) is None:
                run(engine, g)
                ran += 1
                break
    if not ran:
        pytest.skip("takes no such strides")


def run(engine: Engine, g: Graph) -> None:
    case = Case.of(g, "real", 1)
    program = engine.compile(g, engine.default(g, host()), host())
    assert isinstance(program, NativeProgram)
    arrays = {t.name: sparse(t) for t in (*g.inputs, *g.outputs)}
    for t in g.inputs:
        arrays[t.name][...] = case.inputs[t.name]
    run_program(program, arrays)
    compare(g, {t.name: arrays[t.name] for t in g.outputs}, case.expected, case.allowed, g.line)
