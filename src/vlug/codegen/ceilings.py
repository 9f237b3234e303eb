"""What this machine reaches: fp32 multiply-adds, reads and copies, measured by generated code and kept a day.

Neighbours and other processes only ever make a sample slower, so the best of many short ones counts, spread
over half a second; and a figure that something went beyond is measured again.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from vlug.codegen import jit, native
from vlug.codegen.ir import Kernel, fma
from vlug.codegen.isa import ISA, isa_of
from vlug.runtime import threads
from vlug.runtime.device import Ceilings, CpuDevice, save_ceilings
from vlug.runtime.timing import interleaved

__all__ = ["BEYOND", "DAY", "beyond", "copy", "measure", "measured", "multiply_adds", "read"]

#: Seconds for which figures count: a virtual machine's neighbours, and its host, change.
DAY = 86400.0
#: A share of the roofline that says that its figures are too low (or that an engine does fewer operations
#: than the definition, as Winograd's algorithm does).
BEYOND = 1.05


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


def read(k: Kernel, by: int = 4) -> None:
    """y[u] = the sum of a row of x: nothing but reads."""
    n, units = k.size("n", multiple=k.V * by), k.size("units")
    x, y = k.view(units, n), k.view(units)
    for u in k.parallel(units):
        acc = k.var(k.zeros(by))
        for i in k.vectors(n, by=by):
            acc += x[u, i]
        y[u] = acc.sum()


def _flops(isa: ISA, cores: int) -> float:
    rounds = 100_000
    y = np.zeros(cores, np.float32)
    program = jit.compiled(multiply_adds, isa)
    values = {"units": cores, "rounds": rounds}
    run = interleaved({"": lambda: native.call(program, [y.ctypes.data], values)}, budget=0.04)[""]
    return cores * rounds * (2 * isa.registers // 3) * isa.lanes * 2 / run.best


def _copies(isa: ISA, cores: int, nbytes: int, times: int) -> float:
    group = isa.lanes * 4
    n = max(group, nbytes // 4 // group * group)
    x, y = np.ones((cores, n), np.float32), np.ones((cores, n), np.float32)
    program, reads = jit.compiled(copy, isa), jit.compiled(read, isa)
    values = {"n": n, "times": times, "units": cores}
    pointers = [x.ctypes.data, y.ctypes.data]
    runs = {"copy": lambda: native.call(program, pointers, values)}
    if times == 1:  # past the caches a copy also reads what it overwrites, so that reads go faster
        runs["read"] = lambda: native.call(reads, pointers, {"n": n, "units": cores})
    found = interleaved(runs, budget=0.04)
    moved = 4 * n * cores * times
    return max(moved * (2 if name == "copy" else 1) / stats.best for name, stats in found.items())


def measure(device: CpuDevice) -> Ceilings:
    """Measure this machine now (about a second, all cores busy, 128 MB) and keep the figures."""
    isa, cores = isa_of(device), threads.thread_count()
    small = device.l2 // 4  # source and destination take half of a core's own cache
    times = max(1, (4 << 20) // small)
    found = Ceilings(0.0, 0.0, 0.0)
    for _ in range(4):
        found = found.highest(Ceilings(
            flops=_flops(isa, cores),
            memory=_copies(isa, cores, (64 << 20) // cores, 1),
            cache=_copies(isa, cores, small, times),
            when=time.time(),
        ))  # fmt: skip
    save_ceilings(device.fingerprint, found)
    return found


def measured(device: CpuDevice) -> Ceilings:
    """The kept figures of this machine, measured now if there are none or they are more than a day old."""
    kept = device.ceilings()
    return kept if kept is not None and 0 <= time.time() - kept.when < DAY else measure(device)


def beyond(device: CpuDevice, share: float) -> bool:
    """A result reached this share of the roofline: if that is too much, measure again and keep the higher
    figures. True if they rose."""
    kept = device.ceilings()
    if kept is None or share <= BEYOND:
        return False
    found = measure(device).highest(kept)
    save_ceilings(device.fingerprint, found)
    return found != replace(kept, when=found.when)
