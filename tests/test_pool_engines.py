"""Pooling engine: samples, layouts, types, NaN and ties, indices from anywhere, offsets past 2^31."""

from __future__ import annotations

import math

import numpy as np
import pytest

from native_check import check, execute, normal
from vlug.engines.cpu.pool import PoolEngine
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS
from vlug.runtime.device import host

ENGINE = PoolEngine()
NAMES = ("max_pool", "max_pool_backward", "avg_pool", "avg_pool_backward")
LINES = [line for name in NAMES for line in OPERATIONS[name].samples()]
SAMPLES = [line for line in LINES if Graph.parse(line).inputs[0].rank < 5]


def inputs(line: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Random tensors; an index is what the forward pass over random x gives, or -1 here and there."""
    g = Graph.parse(line)
    values = normal(g, seed)
    node = g.nodes[0]
    if node.op.name == "max_pool_backward":
        op = node.op.bind(g.ins(node))
        dy = g.tensors["dy"]
        x = np.random.default_rng(seed).standard_normal((*dy.dim[:2], *op.size))
        fit = OPERATIONS["max_pool"](
            op.pre_padding, op.post_padding, op.stride, op.dilation, window=op.window, ceil=False
        )
        index = fit.reference(x)[1]
        if index.shape != dy.dim:
            index = OPERATIONS["max_pool"](
                op.pre_padding, op.post_padding, op.stride, op.dilation, window=op.window, ceil=True
            ).reference(x)[1]
        values["index"] = index
    return values


def channels_last(line: str) -> str:
    words = []
    for w in line.split():
        if w.startswith(("x=", "dy=")) and w.count("x", 2) == 3:
            w += ":f32:nhwc"
        if w.startswith("index=") and w.count("x", 6) == 3:
            w += ":nhwc"
        words.append(w)
    return " ".join(words)


@pytest.mark.parametrize("line", SAMPLES)
def test_samples(line: str) -> None:
    check(ENGINE, line, inputs(line))
    check(ENGINE, channels_last(line), inputs(line))


@pytest.mark.parametrize("layout", ["", ":nhwc"])
@pytest.mark.parametrize("kind", ["bf16", "f16", "f64"])
def test_types(kind: str, layout: str) -> None:
    tail = "window=3 pad=1 stride=2 size=9x20"
    for line in (
        f"max_pool x=2x35x9x20:{kind}{layout} window=3 pad=1 stride=2",
        f"max_pool x=2x35x9x20:{kind}{layout} window=2 -> y",
        f"max_pool_backward dy=2x35x5x10:{kind}{layout} index=2x35x5x10:i64{layout} {tail}",
        f"avg_pool x=2x35x9x20:{kind}{layout} window=3 pad=1 stride=2",
        f"avg_pool_backward dy=2x35x5x10:{kind}{layout} window=3 pad=1 stride=2 size=9x20",
        f"avg_pool x=2x35x5x6:{kind}{layout} window=5x6",
        f"avg_pool_backward dy=2x35x1x1:{kind}{layout} window=5x6 size=5x6",
    ):
        check(ENGINE, line, inputs(line), tolerance=2 if kind != "f64" else 8)


@pytest.mark.parametrize(
    "line",
    [
        "max_pool x=3x20x30x40 window=3 pad=1 stride=2",
        "max_pool x=3x20x30x40:f32:nhwc window=3 pad=1 stride=2",
        "max_pool x=3x20x30x40:f32:s100000x3000x80x1 window=3 stride=1",
        "max_pool x=3x20x30x40:f32:s100000x2x2000x50 window=3 stride=2",
        "max_pool x=3x20x30x40 window=3 stride=2 -> y=3x20x14x19:f32:nhwc, index",
        "max_pool x=3x20x30x40:f32:s0x1200x40x1 window=2",
        "max_pool x=1x2x50x70 window=9 stride=1 pad=4",
        "max_pool x=1x2x50x70 window=5 stride=3 pad=2 dilation=2",
        "max_pool x=1x2x50x70 window=3 stride=2 pad=1x0 post=0x1 ceil=1",
        "avg_pool x=3x20x30x40:f32:s100000x3000x80x1 window=3 stride=1",
        "avg_pool x=3x20x30x40:f32:s100000x2x2000x50 window=3 stride=2 pad=1 count_include_pad=0",
        "avg_pool x=1x2x50x70 window=9 stride=4 pad=4",
        "avg_pool x=2x5x7x7 window=7 divisor=3",
        "avg_pool_backward dy=3x20x10x13 window=5 stride=3 pad=1 size=30x40",
        "avg_pool_backward dy=3x20x10x13:f32:nhwc window=5 stride=3 pad=1 size=30x40 -> dx=3x20x30x40",
        "max_pool_backward dy=3x20x10x13 index=3x20x10x13:i64 window=5 stride=3 pad=1 size=30x40",
        "max_pool_backward dy=3x20x15x20:f32:nhwc index=3x20x15x20:i64 window=2 size=30x40",
        "max_pool_backward dy=2x3x48x68 index=2x3x48x68:i64 window=3 stride=1 size=50x70",
        "max_pool_backward dy=2x3x46x66 index=2x3x46x66:i64 window=3 stride=1 dilation=2 size=50x70",
        "max_pool x=2x3x9x9:f32:s3000000000x100x10x1 window=3 stride=2",
    ],
)
def test_layouts(line: str) -> None:
    check(ENGINE, line, inputs(line))


@pytest.mark.parametrize("layout", ["", ":f32:nhwc"])
def test_nan_infinities_and_ties(layout: str) -> None:
    for seed in range(3):
        x = np.random.default_rng(seed).integers(-1, 2, (2, 20, 9, 20)).astype(np.float32)
        x[np.random.default_rng(seed).random(x.shape) < 0.1] = np.nan
        x[np.random.default_rng(seed + 9).random(x.shape) < 0.4] = -np.inf
        for tail in (
            "window=3 pad=1 stride=2",
            "window=2 stride=1",
            "window=3 stride=1 pad=1 dilation=2",
            "window=9",
        ):
            check(ENGINE, f"max_pool x=2x20x9x20{layout} {tail}", {"x": x})
            check(ENGINE, f"max_pool x=2x20x9x20{layout} {tail} -> y", {"x": x})


@pytest.mark.parametrize("layout", ["", ":f32:nhwc"])
def test_an_index_from_elsewhere_writes_nowhere_else(layout: str) -> None:
    index_layout = ":nhwc" if layout else ""
    words = f"dy=1x16x3x3{layout} index=1x16x3x3:i64{index_layout} window=2 size=6x6"
    g = Graph.parse(f"max_pool_backward {words}")
    index = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, (1, 16, 3, 3))
    got = execute(ENGINE, g, {"dy": np.ones((1, 16, 3, 3), np.float32), "index": index})["dx"]
    assert math.isfinite(got.sum())


def test_refusals_say_why() -> None:
    for line, word in (("relu x=3", "alone"), ("max_pool x=1x2x4x5x6 window=2", "spatial dimensions")):
        assert word in (ENGINE.why_not(Graph.parse(line), host()) or ""), line
