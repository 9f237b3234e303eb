"""The weight gradient's engine: every sample, layout, ISA and tile against float64, on guarded memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import programs
from vlug.engines.base import EngineConfig
from vlug.engines.cpu.conv_wgrad import ConvWgrad
from vlug.graph import Graph
from vlug.ops.conv import ConvWgrad as Op
from vlug.runtime.device import FAKE

ENGINE = ConvWgrad()
devices = pytest.mark.parametrize("device", programs.DEVICES, ids=lambda d: d.isa)


def takes(line: str) -> bool:
    return ENGINE.why_not(Graph.parse(line), FAKE["avx512"]) is None


SAMPLES = [s for s in Op.samples() if takes(s)]


def with_layout(line: str, kind: str, dtype: str = "f32") -> str:
    """The line with dy and x (and dw) in another layout."""
    graph = Graph.parse(line)
    words = []
    for word in line.split():
        port, _, value = word.partition("=")
        if port in ("dy", "x"):
            value += f":{dtype}" + _layout(graph.tensors[port].dim, kind)
        words.append(f"{port}={value}" if value else word)
    dw = graph.outputs[0]
    tail = "" if kind == "nhwc" else f" -> dw={'x'.join(map(str, dw.dim))}:{dtype}{_layout(dw.dim, kind)}"
    return " ".join(words) + tail


def _layout(dim, kind: str) -> str:
    if kind in ("nchw", "nhwc"):
        return ":" + kind
    order = {"padded": range(len(dim)), "mixed": [1, *range(2, len(dim)), 0]}[kind]
    strides, reach = [0] * len(dim), 1
    for axis in reversed(list(order)):
        strides[axis] = reach
        reach = reach * max(dim[axis], 1) + 3
    return ":s" + "x".join(map(str, strides))


@devices
@pytest.mark.parametrize("kind", ["nchw", "nhwc", "padded", "mixed"])
@pytest.mark.parametrize("line", SAMPLES)
def test_samples(line, kind, device):
    programs.check(ENGINE, with_layout(line, kind), device)


@devices
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("kind", ["nchw", "nhwc"])
@pytest.mark.parametrize("line", SAMPLES[:9])
def test_half(line, kind, dtype, device):
    programs.check(ENGINE, with_layout(line, kind, dtype), device, threads=(2,))


@devices
@pytest.mark.parametrize("kind", ["nchw", "nhwc", "padded"])
@pytest.mark.parametrize(
    "line",
    [
        "conv_wgrad dy=3x40x15x17 x=3x50x15x17 pad=1 size=3x3",
        "conv_wgrad dy=3x20x17x15 x=3x7x33x30 pad=2 size=5x5 stride=2",
    ],
)
def test_every_tile(line, kind, device):
    line = with_layout(line, kind)
    graph = Graph.parse(line)
    knobs = ENGINE.knobs(graph, device)
    for tile in knobs["tile"]:
        for pixels in (16, 100, 512):
            chosen = {k: v[0] for k, v in knobs.items()} | {"tile": tile, "pixels": pixels, "panel": 32}
            config = EngineConfig(ENGINE.name, tuple(chosen.items()))
            programs.check(ENGINE, line, device, (1, 2), config=config)


@devices
@pytest.mark.parametrize(
    "line",
    [
        "conv_wgrad dy=2x9x6x6:f32:s0x36x6x1 x=2x5x6x6:f32:s180x0x6x1 pad=1 size=3x3",
        "conv_wgrad dy=2x16x6x6:f32:s0x0x0x0 x=2x32x6x6:f32:s0x0x0x0 pad=1 size=3x3",
        "conv_wgrad dy=2x16x6x6:f32:s576x1x0x16 x=2x32x6x6:f32:s1152x1x192x32 pad=1 size=3x3",
    ],
)
def test_stride_zero(line, device):
    programs.check(ENGINE, line, device)


@devices
@pytest.mark.parametrize("kind", ["nchw", "nhwc"])
def test_error_is_that_of_a_sum(kind, device):
    """At most twice the error of a sequential fp32 sum over 3000 pixels."""
    graph = Graph.parse(with_layout("conv_wgrad dy=3x16x31x32 x=3x32x31x32 size=1x1", kind))
    given = programs.inputs(graph, "real")
    got = programs.execute(ENGINE, graph, device, given, 2)["dw"].astype(np.float64)
    want = programs.reference(graph, given)["dw"]
    dy = np.moveaxis(given["dy"], 1, -1).reshape(-1, 16)
    x = np.moveaxis(given["x"], 1, -1).reshape(-1, 32)
    plain = np.zeros((16, 32), np.float32)
    for a, b in zip(dy, x):
        plain += a[:, None] * b
    error = np.abs(got - want[:, :, :, :]).max()
    assert error <= 2 * np.abs(plain[:, :, None, None] - want).max()


def test_refusals():
    device = FAKE["avx2"]
    for line, reason in {
        "conv_wgrad dy=1x3x2x2x2x2 x=1x2x2x2x2x2 size=1": "one to three spatial dimensions",
        "relu x=4": "not one conv_wgrad",
    }.items():
        assert reason in ENGINE.why_not(Graph.parse(line), device)
    assert "none" in ENGINE.why_not(Graph.parse(SAMPLES[0]), replace(FAKE["neon"], isa="none"))


def test_one_object_for_all_sizes():
    """Another size compiles nothing."""
    from vlug.codegen import jit

    def compile_at(n: int) -> int:
        line = f"conv_wgrad dy=2x32x{n}x{n} x=2x32x{n}x{n} pad=1 size=3x3"
        graph = Graph.parse(line)
        ENGINE.compile(graph, ENGINE.default(graph, programs.DEVICES[0]), programs.DEVICES[0])
        return len(jit._loaded)

    first = compile_at(9)
    assert [compile_at(n) for n in (10, 17, 31)] == [first] * 3
