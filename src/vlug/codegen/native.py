"""Native code that every frontend shares, without Python: running a plan, lending threads, keeping workspace.

A plan is a flat int64 array:

    0 steps   1 bytes of temporaries   2 shared workspace   3 workspace a part   4 most tensors of a step
    5 most threads
    then for each step: function, address of its args, number of tensors, their indices

An index i ≥ 0 is the call's tensor i; NULL_TENSOR is a null pointer; any other i < 0 is the temporary at
byte -1 - i of the plan's own memory. Temporaries come first in that memory (a multiple of 4096 bytes), the
workspace of the step that runs behind them.

    int64 vlug_run(const int64 *plan, void **outer, const Env *env)

gives 0, the code of the first step that failed, or NO_MEMORY. Env.count, where set, is asked for the number
of threads first. Memory comes from 16 slots of buffers, exchanged atomically, else from mmap; at
most `vlug_retain` bytes stay in the slots. Nothing holds a lock, so a fork is safe at any moment.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlug.codegen import jit
from vlug.codegen.isa import base_isa
from vlug.codegen.native_ir import ALONE, GOMP, RUNNER, TORCH
from vlug.errors import ExecutionError
from vlug.runtime import threads
from vlug.runtime.threads import Env

__all__ = [
    "NO_MEMORY",
    "NULL_TENSOR",
    "Step",
    "addresses",
    "call",
    "env",
    "plan_array",
    "run",
    "temporary",
    "torch_env",
    "trim",
]

NO_MEMORY = -12
NULL_TENSOR = -(1 << 63)
PAGE = 4096
MANY = 1 << 30  # threads: as many as there are

def _loaded(text: str, exports: tuple[str, ...], imports: Mapping[str, int] | None = None) -> dict[str, int]:
    return jit.compiled_text(text, base_isa(), exports, imports)


def addresses() -> dict[str, int]:
    """Addresses of vlug_run and vlug_trim, for adapters."""
    return _loaded(RUNNER, ("vlug_run", "vlug_trim"))


def env() -> Env:
    """The Env of vlug's own calls: the process's thread pool, `runtime.threads.thread_count()` threads."""
    pool = threads.current_pool()
    key = (pool.parallel, threads.thread_count())
    found = _envs.get(key)
    if found is None:
        if pool.parallel:
            parallel = _loaded(GOMP, ("vlug_parallel_gomp",), {
                "GOMP_parallel": pool.parallel,
                "omp_get_thread_num": pool.thread_num,
                "omp_get_num_threads": pool.num_threads,
            })["vlug_parallel_gomp"]
        else:
            parallel = _loaded(ALONE, ("vlug_parallel_alone",))["vlug_parallel_alone"]
        n = key[1] if pool.parallel else 1
        found = _envs[key] = threads.register(Env(parallel_for=parallel, threads=n))
    return found


def torch_env(parallel_for: int, get_num_threads: int, cap: int = 0) -> Env:
    """An Env over torch's own pool, from the addresses of torch_parallel_for and torch_get_num_threads.

    The number of threads is torch's at the time of each run, at most `cap` (0: no limit).
    """
    a = _loaded(TORCH, ("vlug_parallel_torch", "vlug_count_torch"),
                {"torch_parallel_for": parallel_for, "torch_get_num_threads": get_num_threads})
    lent = Env(parallel_for=a["vlug_parallel_torch"], threads=1, user=cap, count=a["vlug_count_torch"])
    _kept.append(lent)  # adapters hold its address
    return threads.register(lent)


_envs: dict[tuple[int, int], Env] = {}
_kept: list[Any] = []


def temporary(offset: int) -> int:
    """The index of the temporary at a byte offset."""
    return -1 - offset


@dataclass(frozen=True)
class Step:
    """One program of a plan: address, args, an index for each of its tensors (see the head of this file)."""

    address: int
    args: Any  # ctypes int64 array, which the plan array keeps alive
    tensors: tuple[int, ...]
    shared_bytes: int = 0
    part_bytes: int = 0


def plan_array(steps: Sequence[Step], temp_bytes: int = 0, threads: int = MANY) -> Any:
    """The int64 array of a plan (it keeps the steps' args alive); `threads`: at most so many serve it."""
    temp_bytes = -(-temp_bytes // PAGE) * PAGE
    flat = [
        len(steps),
        temp_bytes,
        max((s.shared_bytes for s in steps), default=0),
        max((s.part_bytes for s in steps), default=0),
        max([1, *(len(s.tensors) for s in steps)]),
        threads,
    ]
    for s in steps:
        flat += [s.address, ctypes.addressof(s.args), len(s.tensors), *s.tensors]
    array = (ctypes.c_int64 * len(flat))(*flat)
    array.keep = [s.args for s in steps]  # type: ignore[attr-defined]  # any attribute will do
    return array


_RUN = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 3)
_TRIM = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
_functions: dict[str, Any] = {}


def _function(name: str, prototype: Any) -> Any:
    if name not in _functions:
        _functions[name] = prototype(addresses()[name])
    return _functions[name]


def run(plan: Any, pointers: Sequence[int], lent: Env | None = None) -> None:
    """Run a plan on the call's tensors (their addresses), without the GIL. Raises ExecutionError."""
    lent = lent or env()
    outer = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
    f = _function("vlug_run", _RUN)
    code = f(ctypes.addressof(plan), ctypes.addressof(outer), ctypes.addressof(lent))
    if code == NO_MEMORY:
        need = plan[1] + plan[2] + plan[3] * max(1, lent.threads)
        raise ExecutionError(f"no memory for a workspace of {need} bytes")
    if code:
        raise ExecutionError(f"a program reported code {code}")


def call(program: jit.Compiled, pointers: Sequence[int], values: Mapping[str, int | float],
         lent: Env | None = None) -> None:
    """Run one compiled program: addresses of its tensors (0 for an absent one), its arguments by name."""
    if len(pointers) != program.tensors:
        raise ExecutionError(f"{program.name} takes {program.tensors} tensors, got {len(pointers)}")
    step = Step(program.address, program.args(values), tuple(range(len(pointers))),
                program.shared_bytes(values), program.part_bytes(values))
    run(plan_array([step]), pointers, lent)


def trim(retain: int | None = None) -> int:
    """Bytes of workspace that are kept for later calls; with `retain`, give all back and set the limit."""
    return int(_function("vlug_trim", _TRIM)(-1 if retain is None else retain))
