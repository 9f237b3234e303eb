"""NEON: every engine's programs run on AArch64, under qemu's user emulation where this machine is another."""

from __future__ import annotations

import itertools

import pytest

import qemu
from vlug.dtypes import dtype
from vlug.engines import engines
from vlug.graph import Graph
from vlug.ops import OPERATIONS
from vlug.runtime.device import FAKE
from vlug.testing import FILLS, derive, of_dtype, variants

pytestmark = [
    pytest.mark.isa,
    pytest.mark.skipif(not qemu.available(), reason="no qemu-aarch64 to run NEON code with: scripts/qemu"),
]
NEON = FAKE["neon"]
FAST = [e for e in engines() if e.name != "reference"]


def _cases() -> list[tuple[str, str, Graph, str]]:
    """For each engine and operation a few of the samples, walking layouts, dtypes, fills and processors."""
    found = []
    turn = itertools.count()
    for _, cls in sorted(OPERATIONS.items()):
        for engine in FAST:
            lines = [line for line in cls.samples() if engine.why_not(Graph.parse(line), NEON) is None]
            for line in lines[:: max(len(lines) // 3, 1)][:3]:
                n = next(turn)
                kinds = [d.name for d in cls.dtypes if d.kind == "f"] or ["f32"]
                kind = kinds[n % len(kinds)] if n % 2 else kinds[0]
                choices = list(variants(line, (kind,)))
                label, graph = choices[n % len(choices)]
                if engine.why_not(graph, NEON) is not None:
                    label, graph = "plain", derive(of_dtype(Graph.parse(line), dtype(kind)), lambda t: t)
                if engine.why_not(graph, NEON) is None:
                    found.append((engine.name, label, graph, FILLS[n % 3]))
    return found


CASES = _cases()


@pytest.mark.parametrize(
    ("engine", "graph", "fill", "n"),
    [
        pytest.param(e, g, f, i, id=f"{e}-{g.nodes[0].op.name}-{label}-{f}-{i}")
        for i, (e, label, g, f) in enumerate(CASES)
    ],
)
def test_engines(engine: str, graph: Graph, fill: str, n: int) -> None:
    (found,) = [e for e in FAST if e.name == engine]
    at = ("end", "start")[n % 2]
    assert qemu.check(graph, found, fill, 1 + n % 3, at, qemu.CPUS[n // 2 % 2]) is None


def test_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness compares what the emulated program wrote."""
    (found,) = [e for e in FAST if e.name == "cpu.pointwise"]
    graph = Graph.parse("relu x=3x17")
    run = qemu.execute

    def spoilt(*args: object) -> dict[str, bytes]:
        out = run(*args)  # type: ignore[arg-type]
        return {**out, "y": bytes(len(out["y"]))}

    assert qemu.check(graph, found, "exact", 1, "end", "max") is None
    monkeypatch.setattr(qemu, "execute", spoilt)
    with pytest.raises(qemu.Mismatch, match="elements are wrong"):
        qemu.check(graph, found, "exact", 1, "end", "max")


def test_a_stray_access_ends_the_program() -> None:
    from dataclasses import replace

    (found,) = [e for e in FAST if e.name == "cpu.pointwise"]
    graph = Graph.parse("relu x=40000")
    with qemu.jit.emitting():
        program = found.compile(graph, found.default(graph, NEON), NEON)
    short = {"x": (0, bytes(4 * 100)), "y": (0, bytes(4 * 40000))}
    with pytest.raises(qemu.ExecutionError, match="died"):
        qemu.execute(replace(program), short, 1, True, "max")
