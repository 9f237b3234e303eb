"""The engine protocol: what an implementation of graphs must say and give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from vlug.errors import ParseError
from vlug.graph import Graph

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["Engine", "EngineConfig", "HostProgram", "NativeProgram", "Program"]


@dataclass(frozen=True)
class EngineConfig:
    """An engine and the values of its knobs; prints and parses as `cpu.conv_direct/mr=14,nr=32`."""

    engine: str
    knobs: tuple[tuple[str, int], ...] = ()

    def __getitem__(self, knob: str) -> int:
        return dict(self.knobs)[knob]

    def __str__(self) -> str:
        tail = ",".join(f"{k}={v}" for k, v in self.knobs)
        return f"{self.engine}/{tail}" if tail else self.engine

    @classmethod
    def parse(cls, text: str) -> EngineConfig:
        engine, _, tail = text.partition("/")
        try:
            knobs = tuple((k, int(v)) for k, v in (p.split("=") for p in tail.split(",") if p))
        except ValueError:
            raise ParseError(f"engine configuration: {text!r} is not engine/knob=int,knob=int") from None
        return cls(engine, knobs)


@dataclass(frozen=True)
class NativeProgram:
    """A compiled kernel bound to a graph's sizes: one native function, its args and its needs.

    address:      `int32 f(void **tensors, const int64 *args, void *workspace, const Env *env)`.
    operands:     names of the graph's tensors (inputs and outputs) in the order of `tensors`;
                  None for an optional tensor that is absent (the pointer is null).
    args:         sizes, strides, block sizes, scalars (a float64's bits) as the kernel reads them.
    shared_bytes: workspace all parts share; part_bytes: workspace of each part, times env.threads.
    keep:         whatever must live as long as the program.
    kernels:      object names, for `explain`.
    """

    address: int
    operands: tuple[str | None, ...]
    args: tuple[int, ...]
    shared_bytes: int = 0
    part_bytes: int = 0
    kernels: tuple[str, ...] = ()
    keep: Any = field(default=None, compare=False, repr=False)

    def workspace_size(self, threads: int) -> int:
        """Bytes of workspace a call with `threads` threads uses; execution asks this very function."""
        return self.shared_bytes + threads * self.part_bytes


class HostProgram(Protocol):
    """A program in Python: NumPy arrays by tensor name in, written in place. Never inside a framework."""

    def run(self, arrays: Mapping[str, NDArray[np.generic]]) -> None: ...


Program = NativeProgram | HostProgram


class Engine:
    """An implementation of some graphs on some devices. Stateless; listed in engines/__init__."""

    name: ClassVar[str] = ""
    version: ClassVar[int] = 1
    notes: ClassVar[frozenset[str]] = frozenset({"deterministic"})

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        """None if this engine takes the graph on the device, else the reason. The only support query."""
        raise NotImplementedError

    def knobs(self, graph: Graph, device: CpuDevice) -> dict[str, tuple[int, ...]]:
        """Values each knob may take; the first is its default: constant-time to find and always valid."""
        return {}

    def share(self, graph: Graph, device: CpuDevice) -> float:
        """Expected speed as a share of the device's roofline, by which heuristics rank engines.

        0..1; above 1 (at most 4) where the engine does fewer operations than the definition (Winograd).
        """
        return 0.5

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        """The program of a supported graph. Metadata only: no data is read, nothing is allocated."""
        raise NotImplementedError

    def default(self, graph: Graph, device: CpuDevice) -> EngineConfig:
        return EngineConfig(self.name, tuple((k, v[0]) for k, v in self.knobs(graph, device).items()))
