"""Where parallel_for comes from: the process's OpenMP runtime, the system's, intel-openmp, or one thread."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlug import config
from vlug.runtime.device import usable_cores

__all__ = [
    "SERIAL",
    "Env",
    "Pool",
    "current_pool",
    "describe",
    "find_pool",
    "forked",
    "register",
    "thread_count",
]

#: Env.flags bit: run all parts one after another on the calling thread (set in forked children).
SERIAL = 1


class Env(ctypes.Structure):
    """What a program is lent (64 bytes). `count`, if set, tells the threads before each run of a plan."""

    _fields_ = (
        ("parallel_for", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
        ("flags", ctypes.c_int64),
        ("user", ctypes.c_void_p),
        ("count", ctypes.c_void_p),
        ("rest", ctypes.c_int64 * 3),
    )


@dataclass(frozen=True)
class Pool:
    """An OpenMP runtime's entry points (0 where there is none)."""

    name: str
    path: str
    parallel: int = 0  # GOMP_parallel
    thread_num: int = 0  # omp_get_thread_num
    num_threads: int = 0  # omp_get_num_threads

    def describe(self) -> str:
        """For `vlug info`."""
        return f"{self.name} ({self.path})" if self.path else self.name


_ENTRIES = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
_libraries: list[Any] = []  # kept loaded
_envs: list[Env] = []
_pools: list[Pool] = []
_forked = False


def _from_library(name: str, path: str) -> Pool | None:
    try:
        lib = ctypes.CDLL(path)
        addresses = [ctypes.cast(getattr(lib, s), ctypes.c_void_p).value or 0 for s in _ENTRIES]
    except (OSError, AttributeError):
        return None
    _libraries.append(lib)
    return Pool(name, path, *addresses)


def _loaded_runtimes() -> list[str]:
    """OpenMP runtimes mapped into this process, libgomp first."""
    found: dict[str, None] = {}
    try:
        with open("/proc/self/maps") as f:
            for line in f:
                path = line.rstrip("\n").partition("/")[2]
                base = path.rpartition("/")[2]
                if base.startswith(("libgomp", "libiomp5", "libomp.", "libomp-")) and ".so" in base:
                    found["/" + path] = None
    except OSError:
        pass
    return sorted(found, key=lambda p: "libgomp" not in p)


def find_pool() -> Pool:
    """The runtime to use now: one already in the process keeps one pool of threads for all."""
    for path in _loaded_runtimes():
        pool = _from_library("the process's OpenMP runtime", path)
        if pool:
            return pool
    pool = _from_library("the system's libgomp", "libgomp.so.1")
    if pool:
        return pool
    # intel-openmp puts its library there without a Python module of its own
    for root in (sys.prefix, sys.base_prefix):
        library = Path(root) / "lib" / "libiomp5.so"
        if library.exists():
            pool = _from_library("intel-openmp", str(library))
            if pool:
                return pool
    return Pool("no thread pool: one thread", "")


def current_pool() -> Pool:
    """The pool of vlug's own calls, looked for once."""
    if not _pools:
        _pools.append(find_pool())
    return _pools[0]


def thread_count() -> int:
    """Threads of vlug's own calls: VLUG_THREADS, else OMP_NUM_THREADS, else the usable cores."""
    if _forked:
        return 1
    asked = config.THREADS.get()
    if asked:
        return asked
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    cores = usable_cores()
    return min(int(text), 1024) if text.isdigit() and int(text) > 0 else cores


def describe() -> str:
    """What vlug's own calls run on, for `vlug info`."""
    n = thread_count() if current_pool().parallel else 1
    return f"{n} thread{'s' * (n != 1)}, {current_pool().describe()}"


def register(env: Env) -> Env:
    """An Env whose pool may hang in a forked child: it runs serially there."""
    _envs.append(env)
    if _forked:
        env.flags |= SERIAL
    return env


def forked() -> bool:
    """Whether this process came by a fork from one that had vlug: its calls run on one thread."""
    return _forked


def _after_fork() -> None:
    global _forked
    _forked = True
    for env in _envs:
        env.flags |= SERIAL


os.register_at_fork(after_in_child=_after_fork)
