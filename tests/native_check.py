"""Runs an engine's program for a problem line against the float64 reference, between guard pages."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from vlug.engines.base import Engine, NativeProgram
from vlug.graph import Graph
from vlug.runtime.device import ISA_NEEDS, KERNEL_ISAS, CpuDevice, cpu_features, host
from vlug.tensor import Tensor

PAGE = 4096
NORESERVE = 0x4000  # of mmap: promise no memory before it is touched
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, BODY, ctypes.c_void_p, ctypes.c_int64)


class Env(ctypes.Structure):
    """The ABI's Env over a serial parallel_for that runs the last part first."""

    _fields_ = (
        ("parallel_for", PARALLEL),
        ("threads", ctypes.c_int64),
        ("rest", ctypes.c_int64 * 6),
    )


def env(threads: int) -> Env:
    def parallel(_: int, body: Any, ctx: int, n: int) -> None:
        count = min(threads, n)
        for i in reversed(range(count)):
            body(ctx, i, i * n // count, (i + 1) * n // count)

    return Env(PARALLEL(parallel), threads)


class Memory:
    """Bytes that end at a page which must not be touched, all 0xFF (NaN in every float type) at first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pages = -(-max(size, 1) // PAGE) * PAGE
        self.map = mmap.mmap(-1, self.pages + 2 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
        self.view = np.frombuffer(self.map, np.uint8)
        start = self.view.ctypes.data
        if size < 1 << 28:  # larger: strides that reach far, and pages that stay untouched
            self.view[PAGE : PAGE + self.pages] = 0xFF
        for guard in (start, start + PAGE + self.pages):
            assert _libc.mprotect(guard, PAGE, 0) == 0
        self.offset = PAGE + self.pages - size
        self.address = start + self.offset

    def elements(self, t: Tensor) -> Any:
        """The tensor's array in this memory."""
        raw = self.view[self.offset : self.offset + self.size].view(t.dtype.numpy)
        strides = [s * t.dtype.itemsize for s in t.stride]
        return np.lib.stride_tricks.as_strided(raw, t.dim, strides)


def devices() -> list[CpuDevice]:
    """This machine under each instruction set that it can run."""
    return [replace(host(), isa=i) for i in KERNEL_ISAS if cpu_features().issuperset(ISA_NEEDS[i])]


def filled(t: Tensor, values: np.ndarray) -> tuple[Memory, np.ndarray]:
    m = Memory(t.span * t.dtype.itemsize)
    a = m.elements(t)
    if t.numel:
        a[...] = values
    return m, a


def evaluate(g: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every tensor of a graph by the operations' references, in float64."""
    known = dict(inputs)
    for node in g.nodes:
        op = node.op.bind(g.ins(node)) if hasattr(node.op, "bind") else node.op
        outs = op.reference(*(None if n is None else known[n] for n in node.inputs))
        known.update((n, a) for n, a in zip(node.outputs, outs) if n is not None)
    return known


def execute(
    engine: Engine,
    g: Graph,
    inputs: Mapping[str, np.ndarray],
    threads: int = 2,
    device: CpuDevice | None = None,
    alias: Mapping[str, str] | None = None,
    code: int = 0,
) -> dict[str, np.ndarray]:
    """The outputs of the engine's program; `alias` names outputs that share an input's memory."""
    device = device or host()
    reason = engine.why_not(g, device)
    assert reason is None, reason
    program = engine.compile(g, engine.default(g, device), device)
    assert isinstance(program, NativeProgram)
    memory = {t.name: filled(t, inputs[t.name]) for t in g.inputs}
    for t in g.outputs:
        other = (alias or {}).get(t.name)
        memory[t.name] = memory[other] if other else (m := Memory(t.span * t.dtype.itemsize), m.elements(t))
    size = program.workspace_size(threads)
    work = Memory(-(-size // 64) * 64)
    pointers = [memory[n][0].address if n is not None else None for n in program.operands]
    tensors = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
    args = (ctypes.c_int64 * max(1, len(program.args)))(*program.args)
    f = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)(program.address)
    lent = env(threads)
    got = f(ctypes.addressof(tensors), ctypes.addressof(args), work.address, ctypes.addressof(lent))
    assert got == code, f"{g.line}: the program returned {got}"
    return {t.name: np.array(memory[t.name][1]) for t in g.outputs}


def normal(g: Graph, seed: int = 0, shift: float = 0.0) -> dict[str, np.ndarray]:
    """Random inputs, rounded to each tensor's dtype."""
    rng = np.random.default_rng(seed)
    return {t.name: (rng.standard_normal(t.dim) + shift).astype(t.dtype.numpy) for t in g.inputs}


def check(
    engine: Engine,
    line: str,
    inputs: Mapping[str, np.ndarray] | None = None,
    tolerance: float = 4.0,
    alias: Mapping[str, str] | None = None,
    magnitude: Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]] | None = None,
) -> dict[str, np.ndarray]:
    """Under every instruction set, one and three threads give the same bits, within `tolerance` eps of the
    largest value of the reference; returns the outputs.

    magnitude: what the error is relative to instead, from the inputs: for sums whose terms cancel.
    """
    g = Graph.parse(line)
    inputs = dict(normal(g) if inputs is None else inputs)
    # as they lie in memory: an element that several indices share has one value
    rounded = {t.name: np.array(filled(t, inputs[t.name].astype(t.dtype.numpy))[1]) for t in g.inputs}
    wide = {n: a.astype(np.float64) if a.dtype.kind not in "iu" else a for n, a in rounded.items()}
    with np.errstate(all="ignore"):
        want = evaluate(g, wide)
    near_to = magnitude(wide) if magnitude else {}
    for device in devices():
        one = execute(engine, g, rounded, 1, device, alias)
        three = execute(engine, g, rounded, 3, device, alias)
        for t in g.outputs:
            what = f"{line} on {device.isa}: {t.name}"
            got, ref = one[t.name], want[t.name]
            assert got.tobytes() == three[t.name].tobytes(), f"{what} depends on the number of threads"
            if t.dtype.kind != "f":
                np.testing.assert_array_equal(got, ref, err_msg=what)
                continue
            finite = np.abs(ref[np.isfinite(ref)])
            top = float(finite.max()) if finite.size else 0.0
            bound = tolerance * t.dtype.eps * np.maximum(near_to.get(t.name, top), 1e-30)
            with np.errstate(invalid="ignore"):
                close = np.abs(got.astype(np.float64) - ref) <= bound
            wrong = ~(close | (got == ref) | (np.isnan(got) & np.isnan(ref)))
            assert not wrong.any(), (
                f"{what} at {np.argwhere(wrong)[0]}: {got[wrong][0]} should be {ref[wrong][0]}"
            )
    return one
