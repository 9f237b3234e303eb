"""One table per instruction set: what a kernel may ask about the machine it is generated for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"


@dataclass(frozen=True)
class ISA:
    """An instruction set: vector shape, registers, and how LLVM is told of it.

    `needs` holds the names in /proc/cpuinfo that a machine must show before an object made for this
    ISA may run on it; `extras` are abilities that a kernel may ask for by name (`isa.has("amx")`).
    """

    name: str
    lanes: int  # fp32 values in a vector
    registers: int  # vector registers
    triple: str
    cpu: str
    features: str
    needs: tuple[str, ...]
    extras: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of one vector register."""
        return 4 * self.lanes

    def has(self, extra: str) -> bool:
        """Whether the ISA has an ability beyond plain vectors: "bf16", "amx"."""
        return extra in self.extras

    def tile_rows(self, vectors: int, choices: Iterable[int] = (1, 2, 4, 6, 8, 12, 14)) -> int:
        """MR, the rows of a register tile `vectors` wide: MR*NR sums, NR operands and 1 broadcast must fit.

        One register more spills in the inner loop, which costs 2.6 × (measured).
        """
        fitting = [m for m in choices if m * vectors + vectors + 1 <= self.registers]
        if not fitting:
            raise ValueError(
                f"no tile of {vectors} vectors fits the {self.registers} registers of {self.name}"
            )
        return max(fitting)

    def __str__(self) -> str:
        return self.name


_AVX2 = ("avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm")
_AVX512 = (
    *_AVX2,
    "avx512f",
    "avx512bw",
    "avx512cd",
    "avx512dq",
    "avx512vl",
    "adx",
    "rdseed",
    "clflushopt",
    "clwb",
    "xsavec",
    "pku",
)

AVX2 = ISA("avx2", 8, 16, X86, "haswell", "-rtm,-invpcid,-fsgsbase", _AVX2)
AVX512 = ISA(
    "avx512",
    16,
    32,
    X86,
    "skylake-avx512",
    "-prefer-256-bit,-rtm,-invpcid,-fsgsbase,-pku,-xsaves,-adx,-rdseed,-clwb,-clflushopt",
    tuple(f for f in _AVX512 if f not in ("adx", "rdseed", "clflushopt", "clwb", "xsavec", "pku")),
)
AVX512_BF16 = ISA(
    "avx512_bf16",
    16,
    32,
    X86,
    AVX512.cpu,
    AVX512.features + ",+avx512bf16",
    (*AVX512.needs, "avx512_bf16"),
    ("bf16",),
)
AMX = ISA(
    "amx",
    16,
    32,
    X86,
    "sapphirerapids",
    "-prefer-256-bit,-rtm,-invpcid,-fsgsbase,-pku,-xsaves,-uintr,-shstk,-waitpkg,-enqcmd,-serialize,"
    "-ptwrite,-sgx,-tsxldtrk,-cldemote,-movdiri,-movdir64b,-amx-int8,-avx512fp16",
    (
        *AVX512.needs,
        "avx512_bf16",
        "avx512_vnni",
        "avx512vbmi",
        "avx512_vbmi2",
        "avx512ifma",
        "amx_tile",
        "amx_bf16",
    ),
    ("bf16", "amx"),
)
NEON = ISA("neon", 4, 32, ARM, "neoverse-n1", "", ("asimd",))

#: Every table by name, from the least to the most an x86 machine can have; NEON is emitted, not run, on x86.
ALL: dict[str, ISA] = {i.name: i for i in (AVX2, AVX512, AVX512_BF16, AMX, NEON)}

#: The ISAs that kernels are generated for today, best last; the others are data for later engines.
KERNEL_ISAS = (AVX2, AVX512)


def host_features() -> frozenset[str]:
    """The CPU's features, less those whose state the operating system does not save."""
    try:
        with open("/proc/cpuinfo") as f:
            for line in f:
                if line.startswith(("flags", "Features")):
                    return frozenset(line.split(":", 1)[1].split())
    except OSError:
        pass
    return frozenset()


def runnable(features: Iterable[str] | None = None) -> tuple[ISA, ...]:
    """The kernel ISAs that a machine with these features runs (default: this one), best last."""
    have = host_features() if features is None else frozenset(features)
    return tuple(i for i in KERNEL_ISAS if have.issuperset(i.needs))


def isa_for_host() -> ISA | None:
    """The best ISA this machine runs, no better than VLUG_ISA; None where it has none of ours."""
    cap = os.environ.get("VLUG_ISA", "")
    can = runnable()
    if cap in [i.name for i in KERNEL_ISAS]:
        names = [i.name for i in KERNEL_ISAS]
        can = tuple(i for i in can if names.index(i.name) <= names.index(cap))
    return can[-1] if can else None
