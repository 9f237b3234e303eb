"""The matrix product's engine: every sample, layout, ISA and tile against float64, on guarded memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import programs
from vlug.engines.base import EngineConfig
from vlug.engines.cpu.matmul import Matmul
from vlug.graph import Graph
from vlug.ops.matmul import Matmul as Op
from vlug.runtime.device import FAKE

ENGINE = Matmul()
devices = pytest.mark.parametrize("device", programs.DEVICES, ids=lambda d: d.isa)

LARGER = [
    "matmul a=70x600 b=600x130",
    "matmul a=8x520 b=100x520 transpose_b=1",
    "matmul a=8x300 b=300x200",
    "matmul a=3x400 b=400x70",
    "matmul a=1x700 b=65x700 transpose_b=1",
    "matmul a=260x40 b=40x300",
    "matmul a=300x64 b=300x33 transpose_a=1",
]


@devices
@pytest.mark.parametrize("line", [*Op.samples(), *LARGER])
def test_samples(line, device):
    programs.check(ENGINE, line, device)


@devices
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(
    "line", ["matmul a=17x35:{0} b=35x13:{0}", "matmul a=33x600:{0} b=70x600:{0} transpose_b=1",
             "matmul a=3x10x20:{0} b=3x20x40:{0}"]
)
def test_half(line, dtype, device):
    programs.check(ENGINE, line.format(dtype), device, threads=(2,))


@devices
@pytest.mark.parametrize(
    "line",
    [
        "matmul a=17x35:f32:s80x2 b=35x13:f32:s1x40",
        "matmul a=17x35:f32:s1x19 b=35x13:f32:s20x1 -> c=17x13:f32:s1x17",
        "matmul a=17x35:f32:s0x1 b=35x13:f32:s0x0 -> c=17x13:f32:s30x2",
        "matmul a=2x3x4x9x11:f32:s3000x900x200x20x1 b=4x11x7 -> c=2x3x4x9x7:f32:s1x2x6x24x300",
    ],
)
def test_strides(line, device):
    programs.check(ENGINE, line, device)


@devices
@pytest.mark.parametrize("a", ["9x300", "40x20", "2x9x15"])
@pytest.mark.parametrize("tail", ["bias c b=50 axis={n} -> y", "bias c b={M} axis={m} -> y; relu y -> z",
                                  "bias c b=50:f32:s3 axis={n} -> y; relu y -> z", "relu c -> y"])
def test_epilogues(a, tail, device):
    dims = a.split("x")
    tail = tail.format(n=len(dims) - 1, m=len(dims) - 2, M=dims[-2])
    programs.check(ENGINE, f"matmul a={a} b=50x{dims[-1]} transpose_b=1 -> c; {tail}", device)


@devices
def test_every_tile(device):
    line = "matmul a=100x150 b=150x130 -> c; bias c b=130 -> y"
    graph = Graph.parse(line)
    for rows in ENGINE.knobs(graph, device)["rows"]:
        for depth, wide, high in ((16, 64, 32), (150, 128, 64), (512, 512, 512)):
            knobs = {"rows": rows, "depth": depth, "wide": wide, "high": high}
            config = EngineConfig(ENGINE.name, tuple(knobs.items()))
            programs.check(ENGINE, line, device, (1, 3), config=config)


@devices
def test_error_is_that_of_a_sum(device):
    """At most twice the error of a sequential fp32 sum over 3000 products."""
    graph = Graph.parse("matmul a=30x3000 b=40x3000 transpose_b=1")
    given = programs.inputs(graph, "real")
    got = programs.execute(ENGINE, graph, device, given, 2)["c"].astype(np.float64)
    want = programs.reference(graph, given)["c"]
    plain = np.zeros((30, 40), np.float32)
    for a, b in zip(given["a"].T, given["b"].T):
        plain += a[:, None] * b
    assert np.abs(got - want).max() <= 2 * np.abs(plain - want).max()


def test_refusals():
    device = FAKE["avx2"]
    for line, reason in {
        "matmul a=4x5 b=5x6 -> c; relu c negative_slope=0.1 -> y": "plain ReLU",
        "matmul a=4x5 b=5x6 -> c!; relu c -> y": "does not follow the product alone",
        "relu x=4": "does not begin with matmul",
    }.items():
        assert reason in ENGINE.why_not(Graph.parse(line), device)
    assert "none" in ENGINE.why_not(Graph.parse("matmul a=4x5 b=5x6"), replace(FAKE["neon"], isa="none"))
