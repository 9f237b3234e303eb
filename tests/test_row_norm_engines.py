"""Layer and RMS norm engine: strides, types, large and constant rows, 1e30, few long rows, rows far apart."""

from __future__ import annotations

import numpy as np
import pytest

from native_check import check, execute
from vlug.engines.cpu.row_norm import RowNormEngine
from vlug.graph import Graph
from vlug.runtime.device import host
from vlug.testing import fill

ENGINE = RowNormEngine()


def inputs(line: str) -> dict[str, np.ndarray]:
    g = Graph.parse(line)
    return {t.name: fill(g)[t.name].astype(t.dtype.numpy) for t in g.inputs}


@pytest.mark.parametrize(
    "line",
    [
        "layernorm x=6x50:f32:s100x2 scale=50:f32:s3 bias=50",
        "layernorm x=6x50:f32:s0x1 scale=50",
        "layernorm x=5x6x7 scale=6x7 axis=1 -> y=5x6x7:f32:s1x5x30, mean, inv_std",
        "layernorm x=2x3x4x5:f32:nhwc scale=3x4x5 bias=3x4x5 axis=1",
        "layernorm x=2x3x4x5:f32:nhwc scale=5 bias=5",
        "rmsnorm x=9x70000:f32:s70001x1 scale=70000:f32:s2",
        "layernorm_backward dy=6x50:f32:s0x0 x=6x50 scale=50 mean=6x1 inv_std=6x1",
        "layernorm_backward dy=2x3x4x5:f32:nhwc x=2x3x4x5 scale=3x4x5 mean=2x1x1x1 inv_std=2x1x1x1 axis=1",
        "rmsnorm_backward dy=700x40 x=700x40:f32:s50x1 scale=40 inv_std=700x1",
        "layernorm_backward dy=3x40000:f32:s1x3 x=3x40000 scale=40000 mean=3x1 inv_std=3x1",
        "layernorm x=2x100:f32:s3000000000x1 scale=100",
        "rmsnorm x=2x100:f32:s3000000000x1 scale=100",  # D9
        "rmsnorm_backward dy=2x100 x=2x100:f32:s3000000000x1 scale=100 inv_std=2x1",
    ],
)
def test_layouts(line: str) -> None:
    check(ENGINE, line, inputs(line), tolerance=32)


@pytest.mark.parametrize("kinds", [("bf16", "f32"), ("bf16", "bf16"), ("f16", "f32"), ("f64", "f64")])
def test_types(kinds: tuple[str, str]) -> None:
    x, p = kinds
    for line in (
        f"layernorm x=9x77:{x} scale=77:{p} bias=77:{p} -> y, mean=9x1:{p}, inv_std=9x1:{p}",
        f"rmsnorm x=9x77:{x} scale=77:{p}",
        f"layernorm_backward dy=9x77:{x} x=9x77:{x} scale=77:{p} mean=9x1:{p} inv_std=9x1:{p}",
        f"rmsnorm_backward dy=9x77:{x} x=9x77:{x} scale=77:{p} inv_std=9x1:{p}",
    ):
        check(ENGINE, line, inputs(line), tolerance=32)


@pytest.mark.parametrize("op", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("shape", ["8x100", "2x70000"])
def test_values_of_1e30_come_out_finite(op: str, shape: str) -> None:  # D5
    line = f"{op} x={shape}"
    x = inputs(line)["x"] * np.float32(1e30)
    got = check(ENGINE, line, {"x": x}, tolerance=8)
    assert abs(got["y"].std() - 1) < 0.1
    stat = f"{shape.split('x')[0]}x1"
    mean = f"mean={stat}" if op == "layernorm" else ""
    back = f"{op}_backward dy={shape} x={shape} {mean} inv_std={stat}"
    check(ENGINE, back, inputs(back) | {"x": x, **got}, tolerance=16)


@pytest.mark.parametrize("shape", ["3x1000", "2x70000"])
def test_large_means_and_constant_rows(shape: str) -> None:
    line = f"layernorm x={shape} bias={shape.split('x')[1]} eps=0.0"
    values = inputs(line)
    far = values["x"].astype(np.float64) + 1e5
    got = check(ENGINE, line, values | {"x": far.astype(np.float32)}, tolerance=1e5)
    want = 1 / far.astype(np.float32).astype(np.float64).std(1)
    np.testing.assert_allclose(got["inv_std"][:, 0], want, rtol=1e-6)
    line = line.replace("eps=0.0", "eps=1e-5")
    constant = np.full(values["x"].shape, 12345.678, np.float32)
    got = check(ENGINE, line, values | {"x": constant})
    np.testing.assert_array_equal(got["y"], np.broadcast_to(values["bias"], got["y"].shape))
    np.testing.assert_array_equal(got["mean"], np.float32(12345.678))


def test_sums_of_long_rows_are_exact_enough() -> None:  # D7
    x = np.random.default_rng(0).random((1, 4_000_000), np.float32)
    got = execute(ENGINE, Graph.parse("layernorm x=1x4000000"), {"x": x})
    wide = x.astype(np.float64)
    np.testing.assert_allclose(got["mean"][0, 0], wide.mean(), rtol=1e-7)
    np.testing.assert_allclose(got["inv_std"][0, 0], 1 / np.sqrt(wide.var() + 1e-5), rtol=1e-7)


def test_nan_and_inf_stay_in_their_row() -> None:
    x = inputs("layernorm x=5x40")["x"]
    x[1, 3], x[3, 0] = np.nan, np.inf
    y = execute(ENGINE, Graph.parse("layernorm x=5x40"), {"x": x})["y"]
    assert np.isnan(y[[1, 3]]).all()
    assert np.isfinite(y[[0, 2, 4]]).all()


def test_y_in_place_and_past_the_caches() -> None:
    check(ENGINE, "layernorm x=9x77", inputs("layernorm x=9x77"), tolerance=8, alias={"y": "x"})
    for line in (
        "layernorm x=5000x768 scale=768 bias=768",
        "layernorm_backward dy=5000x768 x=5000x768 scale=768 mean=5000x1 inv_std=5000x1",
    ):
        check(ENGINE, line, inputs(line), tolerance=64)


def test_refusals_say_why() -> None:
    for line, word in (
        ("relu x=3x4", "not relu"),
        ("layernorm x=3x4:f64 -> y=3x4:f32", "f64 beside f32"),
    ):
        assert word in (ENGINE.why_not(Graph.parse(line), host()) or ""), line
