"""Devices: what the machine's processor can do, its caches and cores, and made-up ones for support tables."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import sys
from dataclasses import asdict, astuple, dataclass
from functools import cache
from pathlib import Path

from vlug import config, log
from vlug.errors import BadInput

__all__ = [
    "FAKE",
    "ISA_NEEDS",
    "KERNEL_ISAS",
    "Ceilings",
    "CpuDevice",
    "cpu_features",
    "fake",
    "host",
    "load_ceilings",
    "save_ceilings",
    "tiles_allowed",
    "usable_cores",
]

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
KERNEL_ISAS = ("avx2", "avx512", "neon")

#: Those that add products of bf16 to the kernels of AVX-512; from least to most.
PRODUCT_ISAS = ("avx512_bf16", "amx")


@dataclass(frozen=True)
class Ceilings:
    """What all usable cores reach together: fp32 flops/s, and bytes/s read and written."""

    flops: float
    memory: float
    cache: float
    when: float = 0.0  # seconds since 1970

    def highest(self, other: Ceilings) -> Ceilings:
        """The higher of each figure."""
        return Ceilings(*(max(a, b) for a, b in zip(astuple(self), astuple(other))))


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
    products: str = ""  # what bf16 products may use beyond `isa`: one of PRODUCT_ISAS, "" if nothing

    @property
    def abilities(self) -> tuple[str, ...]:
        """Every instruction set of ours that the processor has, whatever kernels use."""
        return tuple(i for i, needs in ISA_NEEDS.items() if self.features.issuperset(needs))

    def ceilings(self) -> Ceilings | None:
        """What was measured on this device (by codegen.ceilings), None if nothing was yet."""
        return load_ceilings(self.fingerprint)

    def __str__(self) -> str:
        extra = f" with {self.products}" if self.products else ""
        return f"{self.name} ({self.isa}{extra}, {self.cores} cores)"


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
    if platform.machine() in ("aarch64", "arm64"):
        features = _arm_features()  # an emulator may show the file of the machine that it runs on
    return name, features


#: AT_HWCAP's bits on AArch64 (Linux, asm/hwcap.h), by their names in /proc/cpuinfo.
_HWCAP = {"fp": 0, "asimd": 1, "crc32": 7, "atomics": 8, "fphp": 9, "asimdhp": 10, "asimddp": 20, "sve": 22}


def _arm_features() -> frozenset[str]:
    """What the kernel (or the emulator in its place) tells this very process."""
    try:
        getauxval = ctypes.CDLL(None).getauxval
    except (OSError, AttributeError):
        return frozenset()
    getauxval.restype, getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    bits = getauxval(16)
    return frozenset(name for name, bit in _HWCAP.items() if bits >> bit & 1)


def usable_cores() -> int:
    """Cores that this process may keep busy: its affinity, within the quota of its control group."""
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cores = os.cpu_count() or 1
    return max(1, min(cores, _quota()))


@cache
def _quota() -> int:
    """Cores that a container's CPU quota comes to (cgroup v2 or v1), rounded up; many if there is none."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            root = Path("/sys/fs/cgroup/cpu")
            quota = (root / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return 1 << 20
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return 1 << 20
    return -(-int(quota) // int(period))


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


def best_products(features: frozenset[str], cap: str = "auto") -> str:
    """The highest of PRODUCT_ISAS that a machine with these features has, no higher than `cap`."""
    order = list(config.ISA_NAMES)
    can = [i for i in PRODUCT_ISAS if features.issuperset(ISA_NEEDS[i])]
    if cap != "auto":
        can = [i for i in can if order.index(i) <= order.index(cap)]
    return can[-1] if can else ""


_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18


@cache
def tiles_allowed() -> bool:
    """Asks the system, once per process, for the permission to use AMX's tiles; whether it was given.

    Linux wants this before the first tile instruction (arch_prctl ARCH_REQ_XCOMP_PERM for XTILEDATA). Every
    thread of the process has the permission then, and every child made by fork. It is refused where there
    is no AMX, by a sandbox, or where a signal stack in use is too small for tiles.
    """
    if platform.machine() not in ("x86_64", "AMD64") or not sys.platform.startswith("linux"):
        return False
    try:
        syscall = ctypes.CDLL(None, use_errno=True).syscall
        syscall.restype = ctypes.c_long
        code = syscall(*map(ctypes.c_long, (_ARCH_PRCTL, _REQUEST, _TILE_DATA)))
    except (OSError, AttributeError):
        return False
    if code != 0:
        log.info("no AMX: the system does not allow its tiles", errno=ctypes.get_errno())
    return bool(code == 0)


def host() -> CpuDevice:
    """This machine, its ISA capped by VLUG_ISA."""
    return _host(config.ISA.get())


@cache
def _host(cap: str) -> CpuDevice:
    name, features = _cpuinfo()
    isa, cores = best_isa(features, cap), usable_cores()
    l1, l2, l3 = _cache_bytes(1, 32 << 10), _cache_bytes(2, 1 << 20), _cache_bytes(3, 0)
    products = best_products(features, cap) if isa == "avx512" else ""
    if products == "amx" and not tiles_allowed():
        products = best_products(features, "avx512_bf16")
    text = f"{name}|{isa}{products}|{cores}|{l1}|{l2}|{l3}|{' '.join(sorted(features))}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return CpuDevice(name, isa, features, cores, l1, l2, l3, digest, products)


def _ceilings_file() -> Path:
    return config.cache_dir() / "ceilings.json"


def load_ceilings(fingerprint: str) -> Ceilings | None:
    """Figures kept by `save_ceilings`; what is no sensible file counts as nothing."""
    path = _ceilings_file()
    if not config.STORE.get():
        return _known.get(fingerprint)
    try:
        stamp = (str(path), path.stat().st_mtime_ns)
    except OSError:
        return _known.get(fingerprint)
    if stamp not in _read:
        _read.clear()
        try:
            found = json.loads(path.read_text())
            _read[stamp] = {
                name: Ceilings(**c) for name, c in found.items()
                if {"flops", "memory", "cache"} <= set(c) and c.get("when", 0.0) >= 0.0
                and all(1e6 < v < 1e18 for what, v in c.items() if what != "when")
            }
        except (OSError, ValueError, TypeError, AttributeError):
            log.once("warn", f"{path} is not used: it is no file of measured ceilings")
            _read[stamp] = {}
    return _read[stamp].get(fingerprint) or _known.get(fingerprint)


def save_ceilings(fingerprint: str, ceilings: Ceilings) -> None:
    """Keep figures for this process and, where it can be written, in the cache directory."""
    _known[fingerprint] = ceilings
    if not config.STORE.get():
        return
    path = _ceilings_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            kept = json.loads(path.read_text())
        except (OSError, ValueError):
            kept = {}
        kept = kept if isinstance(kept, dict) else {}
        kept[fingerprint] = asdict(ceilings)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(kept, indent=1))
        temporary.replace(path)
    except OSError as e:
        log.once("warn", f"measured ceilings are not kept in {path}: {e.strerror or e}")


_known: dict[str, Ceilings] = {}
_read: dict[tuple[str, int], dict[str, Ceilings]] = {}


def fake(isa: str) -> CpuDevice:
    """A made-up device of an instruction set, the same on every host."""
    if isa not in FAKE:
        raise BadInput(f"device {isa!r} is not one of {', '.join(FAKE)}")
    return FAKE[isa]


def _made_up(ability: str, isa: str) -> CpuDevice:
    return CpuDevice(f"fake {ability}", isa, frozenset(ISA_NEEDS[ability]), 4, 32 << 10, 1 << 20, 32 << 20,
                     f"fake-{ability}", ability if ability in PRODUCT_ISAS else "")


#: Devices of support tables. An AMX machine's kernels are AVX-512's, but for products of bf16.
FAKE: dict[str, CpuDevice] = {
    "avx2": _made_up("avx2", "avx2"),
    "avx512": _made_up("avx512", "avx512"),
    "avx512_bf16": _made_up("avx512_bf16", "avx512"),
    "amx": _made_up("amx", "avx512"),
    "neon": _made_up("neon", "neon"),
}
