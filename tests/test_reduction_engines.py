"""Reduction engine: every sample, types, layouts, accuracy of long sums, empty sums."""

from __future__ import annotations

import numpy as np
import pytest

from native_check import check, evaluate
from vlug.engines.cpu.reduction import ReductionEngine
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS
from vlug.runtime.device import host

ENGINE = ReductionEngine()


@pytest.mark.parametrize("line", list(OPERATIONS["reduction"].samples()))
def test_samples(line: str) -> None:
    check(ENGINE, line)


@pytest.mark.parametrize(
    "line",
    [
        "reduction x=8x64x28x28 axes=0x2x3",
        "reduction x=8x64x28x28:f32:nhwc axes=0x2x3",
        "reduction x=8x64x28x28:f32:nhwc axes=2x3 mode=mean keepdim=1",
        "reduction x=8x64x28x28:bf16 axes=0x2x3",
        "reduction x=8x64x28x28:f16:nhwc axes=0x2x3 mode=mean",
        "reduction x=9x64x5:f64 axes=0x2",
        "reduction x=20x30:f32:s1x50 axes=1",
        "reduction x=20x30:f32:s3x100 axes=1",
        "reduction x=20x30:f32:s3x100 axes=0",
        "reduction x=20x30:f32:s0x1 axes=0",
        "reduction x=20x30:f32:s0x0",
        "reduction x=2x3x4x5x6x7 axes=1x3x5",
        "reduction x=2x3x4x5x6x7 axes=0x2x4",
        "reduction x=300x5000 axes=0 -> y=5000:f32:s3",
        "reduction x=5000x3 axes=0",
        "reduction x=2x100:f32:s3000000000x1 axes=0",
        "reduction x=100000",
    ],
)
def test_layouts(line: str) -> None:
    g = Graph.parse(line)
    check(ENGINE, line, tolerance=8, magnitude=lambda x: evaluate(g, {n: np.abs(a) for n, a in x.items()}))


def test_long_sums_are_no_worse_than_twice_a_plain_one() -> None:
    for line, axis in (("reduction x=2x400000 axes=1", 1), ("reduction x=100000x8 axes=0", 0)):
        g = Graph.parse(line)
        x = np.random.default_rng(1).random(g.inputs[0].dim, np.float32)
        exact = x.astype(np.float64).sum(axis)
        plain = np.abs(np.cumsum(x, axis=axis, dtype=np.float32).take(-1, axis) - exact).max()
        got = check(ENGINE, line, {"x": x}, tolerance=1e9)["y"]
        assert np.abs(got - exact).max() <= 2 * plain + 2 * np.spacing(np.float32(exact.max()))


def test_sums_of_small_integers_are_exact() -> None:
    x = np.random.default_rng(2).integers(-3, 4, (50, 7, 130)).astype(np.float32)
    for axes in ("0x2", "1", "0x1x2", "2"):
        check(ENGINE, f"reduction x=50x7x130 axes={axes}", {"x": x}, tolerance=0)


def test_special_values() -> None:
    x = np.ones((4, 40), np.float32)
    x[0, 3], x[1, 5], x[2, 0], x[2, 39] = np.nan, np.inf, np.inf, -np.inf
    check(ENGINE, "reduction x=4x40 axes=1", {"x": x})
    check(ENGINE, "reduction x=4x40 axes=0", {"x": x})


def test_refusals_say_why() -> None:
    assert "alone" in (ENGINE.why_not(Graph.parse("relu x=3"), host()) or "")
