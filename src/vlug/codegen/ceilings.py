"""What this machine reaches: fp32 multiply-adds and copies, measured once by generated code and kept."""

from __future__ import annotations

import numpy as np

from vlug.codegen import jit, native
from vlug.codegen.ir import Kernel, fma
from vlug.codegen.isa import ISA, isa_of
from vlug.runtime import threads
from vlug.runtime.device import Ceilings, CpuDevice, save_ceilings
from vlug.runtime.timing import interleaved

__all__ = ["copy", "measure", "measured", "multiply_adds"]


def multiply_adds(k: Kernel) -> None:
    """y[u] = many multiply-adds that depend on nothing but their own sum, in two thirds of the registers."""
    units, rounds = k.size("units"), k.size("rounds")
    y = k.view(units)
    sums = 2 * k.isa.registers // 3
    for u in k.parallel(units):
        acc = [k.var(k.zeros()) for _ in range(sums)]
        a, b = k.full(0.999), k.full(0.001)
        for _ in k.range(rounds):
            for s in acc:
                s.set(fma(s, a, b))
        for s in acc[1:]:
            acc[0] += s
        y[u] = acc[0].sum()


def copy(k: Kernel, by: int = 4) -> None:
    """y = x, `times` over, in blocks that each part keeps for itself."""
    n, times = k.size("n", multiple=k.V * by), k.size("times")
    units = k.size("units")
    x, y = k.view(units, n), k.view(units, n)
    for u in k.parallel(units):
        for _ in k.range(times):
            for i in k.vectors(n, by=by):
                y[u, i] = x[u, i]


def _flops(isa: ISA, cores: int) -> float:
    rounds = 200_000
    y = np.zeros(cores, np.float32)
    program = jit.compiled(multiply_adds, isa)
    values = {"units": cores, "rounds": rounds}
    run = interleaved({"": lambda: native.call(program, [y.ctypes.data], values)}, budget=0.1)[""]
    return cores * rounds * (2 * isa.registers // 3) * isa.lanes * 2 / run.best


def _copies(isa: ISA, cores: int, nbytes: int, times: int) -> float:
    group = isa.lanes * 4
    n = max(group, nbytes // 4 // group * group)
    x, y = np.ones((cores, n), np.float32), np.ones((cores, n), np.float32)
    program = jit.compiled(copy, isa)
    values = {"n": n, "times": times, "units": cores}
    pointers = [x.ctypes.data, y.ctypes.data]
    run = interleaved({"": lambda: native.call(program, pointers, values)}, budget=0.1)[""]
    return 2 * 4 * n * cores * times / run.best


def measure(device: CpuDevice) -> Ceilings:
    """Measure this machine now (about half a second, all cores busy, 256 MB) and keep the figures."""
    isa, cores = isa_of(device), threads.thread_count()
    small = device.l2 // 4  # source and destination take half of a core's own cache
    times = max(1, (4 << 20) // small)
    found = Ceilings(
        flops=_flops(isa, cores),
        memory=_copies(isa, cores, (128 << 20) // cores, 1),
        cache=_copies(isa, cores, small, times),
    )
    save_ceilings(device.fingerprint, found)
    return found


def measured(device: CpuDevice) -> Ceilings:
    """The kept figures of this machine, measured now if there are none."""
    return device.ceilings() or measure(device)
