"""Group and instance norm engine: strides, types, large means and constant groups, 1e30, few large groups."""

from __future__ import annotations

import numpy as np
import pytest

from native_check import check, execute
from vlug.engines.cpu.group_norm import GroupNormEngine
from vlug.graph import Graph
from vlug.runtime.device import host
from vlug.testing import fill

ENGINE = GroupNormEngine()
LAYOUTS = ["", ":f32:nhwc"]


def inputs(line: str) -> dict[str, np.ndarray]:
    g = Graph.parse(line)
    return {t.name: fill(g)[t.name].astype(t.dtype.numpy) for t in g.inputs}


@pytest.mark.parametrize(
    "line",
    [
        "groupnorm x=3x6x6x7:f32:s1000x70x10x1 scale=6:f32:s2 bias=6 groups=2 -> y=3x6x6x7, mean, inv_std",
        "groupnorm x=3x20x6x7:f32:s2000x1x300x30 scale=20:f32:s2 groups=5",
        "groupnorm x=3x20x6x7 groups=5 -> y=3x20x6x7:f32:nhwc, mean, inv_std",
        "groupnorm x=3x20x6x7:f32:s0x42x7x1 groups=1",
        "groupnorm x=2x6x5x4x3:f32:s360x1x72x18x6 scale=6 groups=2",
        "groupnorm x=2x4x5x6:f32:s3000000000x30x6x1 groups=2",
        "groupnorm_backward dy=3x20x6x7:f32:nhwc x=3x20x6x7 scale=20 mean=3x5 inv_std=3x5 groups=5",
        "groupnorm_backward dy=3x20x6x7:f32:s0x42x7x1 x=3x20x6x7 mean=3x5 inv_std=3x5 groups=5",
        "groupnorm_backward dy=1x4x200x90 x=1x4x200x90 scale=4 mean=1x2 inv_std=1x2 groups=2 -> _, dscale",
        "instancenorm_backward dy=2x3x40x50:f32:nhwc x=2x3x40x50:f32:nhwc mean=2x3x1x1 inv_std=2x3x1x1",
    ],
)
def test_layouts(line: str) -> None:
    check(ENGINE, line, inputs(line), tolerance=64)


@pytest.mark.parametrize("kinds", [("bf16", "f32"), ("bf16", "bf16"), ("f16", "f32"), ("f64", "f64")])
@pytest.mark.parametrize("layout", ["", ":nhwc"])
def test_types(kinds: tuple[str, str], layout: str) -> None:
    x, p = f"2x12x5x7:{kinds[0]}{layout}", kinds[1]
    for line in (
        f"groupnorm x={x} scale=12:{p} bias=12:{p} groups=3 -> y, mean=2x3:{p}, inv_std=2x3:{p}",
        f"groupnorm_backward dy={x} x={x} scale=12:{p} mean=2x3:{p} inv_std=2x3:{p} groups=3",
    ):
        check(ENGINE, line, inputs(line), tolerance=32)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", ["3x6x10x9", "1x4x200x100"])
def test_values_of_1e30_come_out_finite(shape: str, layout: str) -> None:  # D5
    line = f"groupnorm x={shape}{layout} groups=2"
    x = inputs(line)["x"] * np.float32(1e30)
    got = check(ENGINE, line, {"x": x}, tolerance=8)
    assert abs(got["y"].std() - 1) < 0.1
    stat = f"{shape[0]}x2"
    back = f"groupnorm_backward dy={shape}{layout} x={shape}{layout} mean={stat} inv_std={stat} groups=2"
    check(ENGINE, back, inputs(back) | {"x": x, **got}, tolerance=256)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_large_means_and_constant_groups(layout: str) -> None:
    line = f"groupnorm x=2x6x20x30{layout} bias=6 groups=3"
    values = inputs(line)
    far = (values["x"].astype(np.float64) + 1e5).astype(np.float32)
    got = check(ENGINE, line, values | {"x": far}, tolerance=1e5)
    wide = far.reshape(2, 3, -1).astype(np.float64)
    np.testing.assert_allclose(got["inv_std"], 1 / np.sqrt(wide.var(2) + 1e-5), rtol=1e-6)
    constant = np.full(far.shape, 12345.678, np.float32)
    got = check(ENGINE, line, values | {"x": constant})
    want = np.broadcast_to(values["bias"][:, None, None], far.shape)
    np.testing.assert_array_equal(got["y"], want)


def test_groups_of_millions_of_elements() -> None:  # D7
    x = np.random.default_rng(0).random((1, 8, 800, 600), np.float32)
    got = execute(ENGINE, Graph.parse("groupnorm x=1x8x800x600 groups=1"), {"x": x})
    wide = x.astype(np.float64)
    np.testing.assert_allclose(got["mean"][0, 0], wide.mean(), rtol=1e-7)
    np.testing.assert_allclose(got["inv_std"][0, 0], 1 / np.sqrt(wide.var() + 1e-5), rtol=1e-7)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nan_and_inf_stay_in_their_group(layout: str) -> None:
    line = f"groupnorm x=2x6x6x7{layout} groups=3"
    x = inputs(line)["x"]
    x[0, 1, 2, 3], x[1, 4, 0, 0] = np.nan, np.inf
    y = execute(ENGINE, Graph.parse(line), {"x": x})["y"]
    assert np.isnan(y[0, :2]).all()
    assert np.isnan(y[1, 4:]).all()
    assert np.isfinite(y[0, 2:]).all()
    assert np.isfinite(y[1, :4]).all()


def test_large_results_past_the_caches() -> None:
    line = "groupnorm x=2x64x160x180:f32:nhwc scale=64 bias=64 groups=8 -> y"
    check(ENGINE, line, inputs(line), tolerance=32)
    x = "2x64x160x180"
    line = f"groupnorm_backward dy={x} x={x} scale=64 mean=2x8 inv_std=2x8 groups=8 -> dx"
    check(ENGINE, line, inputs(line), tolerance=32)


def test_refusals_say_why() -> None:
    for line, word in (
        ("relu x=3x4", "not relu"),
        ("groupnorm x=3x4:f64 groups=2 -> y=3x4:f32", "f64 beside f32"),
    ):
        assert word in (ENGINE.why_not(Graph.parse(line), host()) or ""), line
