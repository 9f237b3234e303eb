"""Pointwise engine: samples, layouts, types, chains, special values, offsets past 2^31."""

from __future__ import annotations

import numpy as np
import pytest

from native_check import check, devices, execute
from vlug import config
from vlug.engines.cpu.pointwise import PointwiseEngine
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS
from vlug.runtime.device import host
from vlug.testing import check as harness

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


@pytest.mark.parametrize(
    "line",
    [
        "cmp_gt a=3x35x6x5 b=scalar -> m; binary_select a=3x35x6x5 b=1x35x1x1 m -> t; exp t -> y",
        "identity x=700:bf16 dtype=f64 -> a; tanh a -> b; identity b dtype=f16 -> y",
        "cmp_le a=9x4:i64 b=1x4:i64 -> m; logical_not m -> n; identity n dtype=f32 -> f; mul f b:x=9x4",
        "gen_index x=4x6x35 axis=1 -> i; identity i dtype=f32 -> f; affine f alpha=0.5 -> g; sub g b=4x6x35",
        "gen_index x=5x7:f32:s1x5 axis=0 -> i!; gen_index x axis=1 -> j; sub i j -> y",
        "sub a=300:u8 b=300:u8 -> d; cmp_gt d b:c=300:u8 -> y",
        "gelu x=2000 -> g; mul g b=2000 -> p; sigmoid p -> s; swish s beta=1.5 -> y",
        "scale x=8x64x30 b=64 -> s; bias s b:c=64 -> t; swish t -> y",
        "max a=17x33:i32 b=33:i32 -> m; min m b:c=17x1:i32 -> n; neg n -> o; abs o -> y",
        "sin x=333:f64 -> s; cos s -> c; pow a=333:f64 c -> p; log p -> y",
        "neg x=1000 -> a; relu a -> b; neg b -> c; mul c b:dy=1000 -> dw; prelu_backward dy x w=1 -> dx",
    ],
)
def test_chains_of_mixed_types(line: str) -> None:
    g = Graph.parse(line)
    for isa in [d.isa for d in devices()]:
        with config.ISA.using(isa):
            for kind in ("exact", "real", "edge"):
                assert harness(g, ENGINE, kind, (1, 2, 3), device=host()) is None, line


def test_two_ways_of_broadcasting_one_input_are_refused() -> None:
    why = ENGINE.why_not(Graph.parse("bias x=5x5 b=5 axis=0 -> t; add t b -> y"), host())
    assert why == "b is broadcast in two ways"


EXTREME = np.array(
    [
        1e30,
        -1e30,
        3.4e38,
        -3.4e38,
        1e-40,
        -1e-40,
        1e-45,
        0.0,
        -0.0,
        87.5,
        -87.5,
        89,
        -104,
        20,
        -20.1,
        3,
        -3,
        6,
    ],
    np.float32,
)
ACTIVATIONS = [
    n for n, op in OPERATIONS.items() if op.__module__ == "vlug.ops.activation" and op.inputs == ("x",)
]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_extreme_values(name: str) -> None:
    g = Graph.parse(f"{name} x=18 -> y")
    b = Graph.parse(f"{name}_backward dy=18 {OPERATIONS[f'{name}_backward'].inputs[1]}=18 -> dx")
    with np.errstate(all="ignore"):
        want = OPERATIONS[name]().reference(EXTREME.astype(np.float64))[0]
        got = execute(ENGINE, g, {"x": EXTREME})["y"]
        np.testing.assert_allclose(got, want.astype(np.float32), rtol=1e-6, atol=2e-35)
        x = OPERATIONS[name]().reference(EXTREME)[0] if "y" in b.tensors else EXTREME
        x = np.asarray(x, np.float32)
        inputs = {t.name: x if t.name != "dy" else np.ones(18, np.float32) for t in b.inputs}
        slope = OPERATIONS[f"{name}_backward"]().reference(np.ones(18), x.astype(np.float64))[0]
        got = execute(ENGINE, b, inputs)["dx"]
    np.testing.assert_allclose(got, slope, rtol=2e-6, atol=4e-7)
