"""The reference engine: every graph by its operations' definitions, NumPy float64. Slow, always there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vlug.dtypes import I32, U8, DType
from vlug.engines.base import Engine, EngineConfig, HostProgram
from vlug.graph import Graph

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["Reference", "evaluate", "wrapped"]


def evaluate(graph: Graph, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """All tensors of a graph by its operations' definitions.

    Floating inputs keep their type if it is float64 or float32 (a plain run) and are widened to float64
    otherwise; nothing is rounded on the way.
    """
    known: dict[str, NDArray[Any]] = {}
    for t in graph.inputs:
        a = np.asarray(arrays[t.name])
        keep = t.dtype.kind != "f" or a.dtype in (np.float32, np.float64)
        known[t.name] = a if keep else a.astype(np.float64)
    for node in graph:
        found = node.op.reference(*(None if n is None else known[n] for n in node.inputs))
        made = ((n, a) for n, a in zip(node.outputs, found) if n is not None)
        known.update((n, wrapped(a, graph.tensors[n].dtype)) for n, a in made)
    return known


def wrapped(a: NDArray[Any], d: DType) -> NDArray[Any]:
    """Integers as their dtype holds them, modulo a power of 2; other values as they are."""
    return a.astype(d.numpy).astype(np.int64) if d in (I32, U8) and a.dtype.kind in "iu" else a


class _Run:
    """A graph in Python: reads the inputs, writes the outputs in place, rounded once to their dtypes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        wide = {
            t.name: arrays[t.name].astype(np.float64) if t.dtype.kind == "f" else arrays[t.name]
            for t in self.graph.inputs
        }
        known = evaluate(self.graph, wide)
        with np.errstate(over="ignore", invalid="ignore"):
            for t in self.graph.outputs:
                arrays[t.name][...] = known[t.name]


class Reference(Engine):
    """Takes every graph. The planner warns once, with reasons, where it serves for want of another."""

    name = "reference"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        return None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.001

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> HostProgram:
        return _Run(graph)
