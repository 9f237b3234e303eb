"""Loop nests over tensors of the same dims: size-1 dimensions dropped, neighbours merged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlug.codegen import jit
from vlug.codegen.isa import ALL
from vlug.engines.base import NativeProgram
from vlug.runtime.device import KERNEL_ISAS

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = [
    "SMALL",
    "Axis",
    "channel_parts",
    "folded",
    "native",
    "no_kernels",
    "parts",
    "product",
    "vectors_at_once",
]

#: Problems of fewer bytes run as one part: a fork-join costs more than the second core brings.
SMALL = 32 << 10


@dataclass(frozen=True)
class Axis:
    """One loop: how far it goes and how many elements each tensor advances by (0: broadcast)."""

    extent: int
    strides: tuple[int, ...]
    kind: str = ""


def folded(axes: Sequence[Axis]) -> list[Axis]:
    """The same elements in fewer loops: outermost first, in the memory order of the first tensor."""
    axes = [a for a in axes if a.extent != 1]
    axes.sort(key=lambda a: a.strides, reverse=True)
    out: list[Axis] = []
    for a in axes:
        last = out[-1] if out else None
        if last and last.kind == a.kind and all(p == s * a.extent for p, s in zip(last.strides, a.strides)):
            out[-1] = Axis(last.extent * a.extent, a.strides, a.kind)
        else:
            out.append(a)
    return out


def product(axes: Sequence[Axis]) -> int:
    return math.prod(a.extent for a in axes)


def parts(units: int, nbytes: int) -> dict[str, int]:
    """Arguments of `common.units`: all units in one part where the bytes are few, else one each."""
    small = nbytes < SMALL
    return {"parts": 1 if small else max(units, 1), "per": max(units, 1) if small else 1}


def vectors_at_once(n: int, device: CpuDevice) -> int:
    """How many vectors along n elements to work on at once: 4, 2 or 1, whichever takes the fewest steps."""
    V = ALL[device.isa].lanes
    return min((4, 2, 1), key=lambda by: n // (by * V) + -(-(n % (by * V)) // V))


def channel_parts(C: int, nbytes: int) -> dict[str, int]:
    """Arguments of `common.channel_blocks`: 64 channels a unit, all of them where the bytes are few."""
    CB = max(C, 1) if nbytes < SMALL else 64
    return {"CB": CB, "c_parts": -(-C // CB)}


def no_kernels(device: CpuDevice) -> str | None:
    """Why nothing can be compiled for the device, if so."""
    if device.isa in KERNEL_ISAS:
        return None
    return f"no kernels are generated for {device.isa} yet"


def native(
    build: Any,
    device: CpuDevice,
    operands: Sequence[str | None],
    values: Mapping[str, int | float],
    **constants: Any,
) -> NativeProgram:
    """The program of a build function with its constants, for these run-time values."""
    c = jit.compiled(build, ALL[device.isa], **constants)
    text = ",".join(f"{n}={v}" for n, v in constants.items())
    return NativeProgram(
        c.address,
        tuple(operands),
        tuple(c.args(values))[: len(c.arg_names)],
        c.shared_bytes(values),
        c.part_bytes(values),
        (f"{c.name}[{text}]",),
        c,
    )
