"""Pointwise engine: samples, layouts, types, chains, special values, offsets past 2^31."""

from __future__ import annotations

import numpy as np
import pytest

from native_check import check, execute
from vlug.engines.cpu.pointwise import PointwiseEngine
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS
from vlug.runtime.device import host

ENGINE = PointwiseEngine()
NAMES = ("add", "mul", "bias", "relu", "relu_backward", "reduction_backward")
SAMPLES = [line for name in NAMES for line in OPERATIONS[name].samples()]
SAMPLES = [line for line in SAMPLES if "mode=" not in line or "mode=mean" in line]


@pytest.mark.parametrize("line", SAMPLES)
def test_samples(line: str) -> None:
    check(ENGINE, line)


@pytest.mark.parametrize("kind", ["bf16", "f16", "f64"])
def test_types(kind: str) -> None:
    check(ENGINE, f"add a=3x35x6x5:{kind}:nhwc b=1x35x1x1:{kind} -> t; relu t -> y", tolerance=1)
    check(ENGINE, f"relu_backward dy=1000:{kind} x=1000:{kind} negative_slope=0.25", tolerance=1)


@pytest.mark.parametrize(
    "line",
    [
        "relu x=3x35x6x5:f32:nhwc",
        "bias x=3x35x6x5:f32:nhwc b=35",
        "bias x=3x35x6x5:f32:nhwc b=35:f32:s2 -> y=3x35x6x5",
        "relu x=3x35x6x5:f32:s2000x50x6x1 -> y=3x35x6x5:f32:s2000x50x6x1",
        "relu x=3x35x6x5:f32:s1x3x2000x400",
        "add a=3x35x6x5:f32:s0x6x1x0 b=3x35x6x5:f32:s0x0x0x0",
        "mul a=3x35x6x5 b=3x35x6x5:f32:nhwc -> y=3x35x6x5:f32:s5000x7x1x800",
        "relu x=2x70:f32:s3000000000x1",
        "relu x=2x70:f32:s1x40000000 -> y=2x70",
        "bias x=8x64x30x30 b=64 -> c; add c b:r=8x64x30x30 -> s; relu s -> y",
        "bias x=8x64x30x30:f32:nhwc b=64 -> c; mul c b:r=1x64x1x1 -> s; relu s -> y",
        "add a=2x1x5 b=2x40x1 -> t; mul t b:c=2x40x5 -> y",
        "relu x=300x200 -> a!; add a b=300x200 -> y",
        "add a=70 a -> y",
    ],
)
def test_layouts_and_chains(line: str) -> None:
    check(ENGINE, line)


def test_results_past_the_caches() -> None:
    check(ENGINE, "relu x=3500009")
    check(ENGINE, "add a=3500032 b=3500032 -> t; relu t -> y")


def test_in_place() -> None:
    check(ENGINE, "add a=5000 b=5000", alias={"y": "a"})


def test_special_values() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -1e-40, 3.0, -3.0, 7.0] * 9, np.float32)
    for tail in ("", "upper_clip=6.0", "lower_clip=-1.0", "negative_slope=0.5"):
        check(ENGINE, f"relu x=72 {tail}", {"x": x})
    dy = np.full(72, np.inf, np.float32)
    got = check(ENGINE, "relu_backward dy=72 x=72", {"dy": dy, "x": x})["dx"]
    assert got[0] == np.inf
    assert got[2] == 0


def test_refusals_say_why() -> None:
    for line, word in (
        ("relu x=3 -> a!; add a b=4x3 -> y", "smaller"),
        ("reduction x=3x4 axes=1", "not pointwise"),
    ):
        why = ENGINE.why_not(Graph.parse(line), host())
        assert why, line
        assert word in why


def test_neighbours_stay_untouched() -> None:
    g = Graph.parse("relu x=3x5 -> y=3x5:f32:s16x1")
    x = np.ones((3, 5), np.float32)
    assert execute(ENGINE, g, {"x": x})["y"].sum() == 15
