"""Convolutions of one and three dimensions, long rows, fp64: by the tuned engines, whatever the strides."""

from __future__ import annotations

import random

import pytest

import programs
from vlug.dtypes import dtype
from vlug.engines import engine, engines
from vlug.graph import Graph
from vlug.plan import plan
from vlug.runtime.device import FAKE
from vlug.testing import VARIANTS, check, derive, of_dtype
from vlug.testing_lines import LINES

devices = pytest.mark.parametrize("device", programs.DEVICES, ids=lambda d: d.isa)
DIRECTIONS = ("conv_fprop", "conv_dgrad", "conv_wgrad")

F64 = [
    "conv_fprop x=3x37x13x18 w=41x37x3x3 pad=1 -> a; bias a b=41 -> c; relu c -> y",
    "conv_dgrad dy=2x20x5x4 w=20x9x2x1 stride=3 size=14x12",
    "conv_fprop x=2x5x6x5x6 w=12x5x3x3x3 pad=1 stride=2x1x2 dilation=1x2x1",
    "conv_wgrad dy=2x12x6x5x6 x=2x5x6x5x6 size=3x3x3 pad=1",
    "conv_wgrad dy=3x41x13x18 x=3x37x13x18 size=3x3 pad=1",
    "conv_fprop x=2x24x12x10 w=24x1x3x3 pad=1 groups=24",
    "matmul a=3x37x70 b=70x53",
    "matmul a=3x70x37 b=3x70x53 transpose_a=1 -> a1; bias a1 b=53 axis=2 -> y1; relu y1",
    "matmul a=1x100 b=100x1",
    "matmul a=5x0 b=0x4",
]


def takers(graph, device):
    return [e for e in engines() if e.name != "reference" and e.why_not(graph, device) is None]


@pytest.mark.parametrize("line", F64)
def test_fp64_in_every_layout(line):
    for i, (label, variant) in enumerate(VARIANTS.items()):
        device = programs.DEVICES[(i + len(line)) % len(programs.DEVICES)]
        graph = derive(of_dtype(Graph.parse(line), dtype("f64")), variant.inputs, variant.outputs)
        taking = takers(graph, device)
        assert taking, f"nobody takes {graph.line}"
        for e in taking:
            fill = "exact" if label == "plain" else "real"
            assert check(graph, e, fill, (1, 3), device=device, shift=variant.shift) is None


LONG = [
    "conv_fprop x=2x3x2503 w=9x3x7 pad=9 dilation=3",
    "conv_fprop x=1x3x3x7007 w=9x3x3x3 pad=1 stride=1x3",
    "conv_dgrad dy=2x9x2202 w=9x3x3 pad=1 stride=2 size=4403",
    "conv_dgrad dy=2x9x2503 w=9x3x3 pad=1 size=2503",
    "conv_dgrad dy=1x5x2x801 w=5x3x1x3 pad=0x1 stride=1x3 size=2x2403",
    "conv_wgrad dy=2x9x1503 x=2x33x1503 size=7 pad=9 dilation=3",
    "conv_wgrad dy=2x9x1202 x=2x19x2403 size=3 pad=1 stride=2",
    "conv_wgrad dy=2x9x1100:f32:s9900x1x9 x=2x37x1100:f32:s40700x1x37 size=3 pad=1",
]


@devices
@pytest.mark.parametrize("line", LONG)
def test_long_rows_are_cut(line, device):
    graph = Graph.parse(line)
    name = "cpu.conv_wgrad" if "wgrad" in line else "cpu.conv_nchw"
    assert check(graph, engine(name), "real", (1, 3), device=device) is None


def test_no_convolution_is_left_to_the_reference():
    """Whatever the dimensions, dtype and strides."""
    r, device = random.Random(5), FAKE["avx512"]
    for _ in range(300):
        line = LINES[r.choice(DIRECTIONS)](r)
        kind, variant = r.choice(["f32", "bf16", "f16", "f64"]), r.choice(list(VARIANTS.values()))
        graph = derive(of_dtype(Graph.parse(line), dtype(kind)), variant.inputs, variant.outputs)
        assert takers(graph, device), f"nobody takes {graph.line}"


@pytest.mark.parametrize("line", [
    "conv_fprop x=1x64x16x56x56:{0} w=64x64x3x3x3:{0} pad=1",
    "conv_dgrad dy=1x64x16x56x56:{0} w=64x64x3x3x3:{0} pad=1 size=16x56x56",
    "conv_wgrad dy=1x64x16x56x56:{0} x=1x64x16x56x56:{0} pad=1 size=3x3x3",
    "conv_fprop x=1x16x1000000:{0} w=16x16x3:{0} pad=1",
    "conv_wgrad dy=1x16x1000000:{0} x=1x16x1000000:{0} pad=1 size=3",
])  # fmt: skip
def test_e11_workspace_is_bounded(line):
    """Far less than the column matrix (27 times x here), and bf16 takes no more than fp32: only the weight
    gradient packs what fp32 reads in place, a panel of 256 KiB for each thread."""
    took = {k: plan(line.format(k), device=FAKE["avx512"]).workspace_size(2) for k in ("f32", "bf16")}
    assert took["bf16"] <= took["f32"] + (2 * (256 << 10) if "wgrad" in line else 0)
    assert took["f32"] < 24 << 20
