"""One table per instruction set: what a kernel may ask about the machine it is generated for."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass

from vlug.errors import NotSupported
from vlug.runtime.device import ISA_NEEDS, KERNEL_ISAS, CpuDevice, cpu_features, host

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
    spare: int = 0  # registers that a product's inner loop needs beyond its operands (broadcasts in flight)

    @property
    def bytes(self) -> int:
        """Bytes of one vector register."""
        return 4 * self.lanes

    @property
    def mask_registers(self) -> bool:
        """Whether masks have registers of their own (AVX-512)."""
        return self.bytes == 64

    def has(self, extra: str) -> bool:
        """Whether the ISA has an ability beyond plain vectors: "bf16", "amx"."""
        return extra in self.extras

    def tile_rows(self, vectors: int, choices: Iterable[int] = (1, 2, 4, 6, 8, 12, 14)) -> int:
        """MR, the rows of a register tile `vectors` wide: MR*NR sums, NR operands and 1 broadcast must fit.

        One register more spills in the inner loop, which costs 2.6 × (measured).
        """
        fitting = [m for m in choices if m * vectors + vectors + 1 + self.spare <= self.registers]
        if not fitting:
            raise ValueError(
                f"no tile of {vectors} vectors fits the {self.registers} registers of {self.name}"
            )
        return max(fitting)

    def __str__(self) -> str:
        return self.name


# What a CPU name implies and kernels do not need is left out, so that no machine is refused for it.
_NOT = "-rtm,-invpcid,-fsgsbase,-pku,-xsaves,-adx,-rdseed,-clwb,-clflushopt"

#: Any machine of the family: for code that only moves pointers (the plan runner).
BASE = ISA("base", 4, 16, X86, "x86-64", "", ())
BASE_ARM = ISA("base", 4, 32, ARM, "generic", "", ())
AVX2 = ISA("avx2", 8, 16, X86, "haswell", "-rtm,-invpcid,-fsgsbase", ISA_NEEDS["avx2"])
AVX512 = ISA("avx512", 16, 32, X86, "skylake-avx512", f"-prefer-256-bit,{_NOT}", ISA_NEEDS["avx512"])
AVX512_BF16 = ISA(
    "avx512_bf16", 16, 32, X86, AVX512.cpu, f"{AVX512.features},+avx512bf16",
    ISA_NEEDS["avx512_bf16"], ("bf16",),
)
AMX = ISA(
    "amx", 16, 32, X86, AVX512.cpu,
    f"{AVX512.features},+avx512bf16,+avx512vnni,+avx512vbmi,+avx512vbmi2,+avx512ifma,+amx-tile,+amx-bf16",
    ISA_NEEDS["amx"], ("bf16", "amx"),
)
NEON = ISA("neon", 4, 32, ARM, "neoverse-n1", "", ISA_NEEDS["neon"], spare=3)

#: Every table by name, from the least to the most an x86 machine can have; NEON is emitted, not run, on x86.
ALL: dict[str, ISA] = {i.name: i for i in (AVX2, AVX512, AVX512_BF16, AMX, NEON)}

def isa_of(device: CpuDevice) -> ISA:
    """The table of a device's instruction set."""
    if device.isa not in ALL:
        raise NotSupported(f"{device.name} has no instruction set that kernels are generated for")
    return ALL[device.isa]


def isa_for_host() -> ISA | None:
    """The best ISA this machine runs, no better than VLUG_ISA; None where it has none of ours."""
    return ALL.get(host().isa)


def runnable() -> tuple[ISA, ...]:
    """Every ISA that kernels are generated for and this machine runs, whatever VLUG_ISA says; best last."""
    have = cpu_features()
    return tuple(ALL[i] for i in KERNEL_ISAS if have.issuperset(ISA_NEEDS[i]))


def base_isa() -> ISA:
    """The table of plain code for this machine."""
    return BASE_ARM if platform.machine() in ("aarch64", "arm64") else BASE
