"""Devices: what the machine's processor can do, its caches and cores, and made-up ones for support tables."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vlug import config
from vlug.errors import BadInput

__all__ = ["FAKE", "ISA_NEEDS", "CpuDevice", "cpu_features", "fake", "host", "usable_cores"]

_AVX2 = ("avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_AVX512_BF16 = (*_AVX512, "avx512_bf16")

#: Names in /proc/cpuinfo that a machine must show to run code of an instruction set; from least to most.
ISA_NEEDS: dict[str, tuple[str, ...]] = {
    "avx2": _AVX2,
    "avx512": _AVX512,
    "avx512_bf16": _AVX512_BF16,
    "amx": (*_AVX512_BF16, "avx512_vnni", "avx512vbmi", "avx512_vbmi2", "avx512ifma", "amx_tile", "amx_bf16"),
    "neon": ("asimd",),
}

#: Instruction sets that CPU kernels are generated for today.
KERNEL_ISAS = ("avx2", "avx512")


@dataclass(frozen=True)
class CpuDevice:
    """A processor. `isa` is what kernels use on it ("none": only the reference engine)."""

    name: str
    isa: str
    features: frozenset[str]
    cores: int
    l1: int  # bytes of data cache a core
    l2: int  # bytes a core
    l3: int  # bytes shared
    fingerprint: str  # what timings are keyed by

    @property
    def abilities(self) -> tuple[str, ...]:
        """Every instruction set of ours that the processor has, whatever kernels use."""
        return tuple(i for i, needs in ISA_NEEDS.items() if self.features.issuperset(needs))

    def __str__(self) -> str:
        return f"{self.name} ({self.isa}, {self.cores} cores)"


def cpu_features() -> frozenset[str]:
    """The processor's features, less those whose state the operating system does not save."""
    return _cpuinfo()[1]


@cache
def _cpuinfo() -> tuple[str, frozenset[str]]:
    name, features = "CPU", frozenset[str]()
    try:
        with open("/proc/cpuinfo") as f:
            for line in f:
                key, _, value = line.partition(":")
                key = key.strip()
                if key == "model name":
                    name = value.strip()
                elif key in ("flags", "Features"):
                    features = frozenset(value.split())
                    break
    except OSError:
        pass
    return name, features


def usable_cores() -> int:
    """Cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def _cache_bytes(level: int, default: int) -> int:
    root = Path("/sys/devices/system/cpu/cpu0/cache")
    try:
        for index in root.glob("index*"):
            if (index / "level").read_text().strip() == str(level) and \
                    (index / "type").read_text().strip() in ("Data", "Unified"):
                size = (index / "size").read_text().strip()
                return int(size[:-1]) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[size[-1]]
    except (OSError, ValueError, KeyError):
        pass
    return default


def best_isa(features: frozenset[str], cap: str = "auto") -> str:
    """The highest of KERNEL_ISAS that a machine with these features runs, no higher than `cap`."""
    order = list(config.ISA_NAMES)
    can = [i for i in KERNEL_ISAS if features.issuperset(ISA_NEEDS[i])]
    if cap != "auto":
        can = [i for i in can if order.index(i) <= order.index(cap)]
    return can[-1] if can else "none"


def host() -> CpuDevice:
    """This machine, its ISA capped by VLUG_ISA."""
    return _host(config.ISA.get())


@cache
def _host(cap: str) -> CpuDevice:
    name, features = _cpuinfo()
    isa, cores = best_isa(features, cap), usable_cores()
    l1, l2, l3 = _cache_bytes(1, 32 << 10), _cache_bytes(2, 1 << 20), _cache_bytes(3, 0)
    text = f"{name}|{isa}|{cores}|{l1}|{l2}|{l3}|{' '.join(sorted(features))}"
    return CpuDevice(name, isa, features, cores, l1, l2, l3, hashlib.sha256(text.encode()).hexdigest()[:16])


def fake(isa: str) -> CpuDevice:
    """A made-up device of an instruction set, the same on every host."""
    if isa not in FAKE:
        raise BadInput(f"device {isa!r} is not one of {', '.join(FAKE)}")
    return FAKE[isa]


def _made_up(ability: str, isa: str) -> CpuDevice:
    return CpuDevice(f"fake {ability}", isa, frozenset(ISA_NEEDS[ability]), 4, 32 << 10, 1 << 20, 32 << 20,
                     f"fake-{ability}")


#: Devices of support tables; an AMX machine runs AVX-512 kernels until there are AMX ones.
FAKE: dict[str, CpuDevice] = {
    "avx2": _made_up("avx2", "avx2"),
    "avx512": _made_up("avx512", "avx512"),
    "amx": _made_up("amx", "avx512"),
    "neon": _made_up("neon", "neon"),
}
