"""Batch norm engine: samples, layouts, types, fused relu, large means, 1e30, empty batches."""

from __future__ import annotations

import numpy as np
import pytest

from native_check import check, execute, normal
from vlug.engines.cpu.norm import BatchnormEngine
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS
from vlug.runtime.device import host

ENGINE = BatchnormEngine()
NAMES = ("batchnorm", "batchnorm_inference", "batchnorm_backward")
SAMPLES = [line for name in NAMES for line in OPERATIONS[name].samples()]


def inputs(line: str, shift: float = 0.0) -> dict[str, np.ndarray]:
    """Random tensors; variances and inverse deviations above 0."""
    values = normal(Graph.parse(line), shift=shift)
    for name in ("var", "running_var", "inv_std"):
        if name in values:
            values[name] = (np.abs(values[name]) + 0.5).astype(values[name].dtype)
    return values


def channels_last(line: str) -> str:
    """The line with x and dy channels last."""
    words = [w + ":f32:nhwc" if w.startswith(("x=", "dy=")) else w for w in line.split()]
    return " ".join(words)


@pytest.mark.parametrize("line", SAMPLES)
def test_samples(line: str) -> None:
    check(ENGINE, line, inputs(line), tolerance=16)
    last = channels_last(line)
    check(ENGINE, last, inputs(last), tolerance=16)


@pytest.mark.parametrize("layout", ["", ":nhwc"])
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_half_precision_with_f32_parameters(kind: str, layout: str) -> None:
    x = f"3x35x6x5:{kind}{layout}"
    for line in (
        f"batchnorm x={x} scale=35 bias=35 running_mean=35 running_var=35",
        f"batchnorm x={x} scale=35:{kind} bias=35:{kind}",
        f"batchnorm_inference x={x} mean=35 var=35 scale=35 bias=35",
        f"batchnorm_backward dy={x} x={x} scale=35 mean=35 inv_std=35",
    ):
        check(ENGINE, line, inputs(line), tolerance=16)


@pytest.mark.parametrize("layout", ["", ":nhwc"])
def test_double(layout: str) -> None:
    x, v = f"3x35x6x5:f64{layout}", "35:f64"
    for line in (
        f"batchnorm x={x} scale={v} bias={v} running_mean={v} running_var={v}",
        f"batchnorm_inference x={x} mean={v} var={v} scale={v} bias={v}",
        f"batchnorm_backward dy={x} x={x} scale={v} mean={v} inv_std={v}",
    ):
        check(ENGINE, line, inputs(line), tolerance=32)
        check(ENGINE, line, inputs(line, shift=1e4), tolerance=1e6)


@pytest.mark.parametrize(
    "line",
    [
        "batchnorm x=8x64x30x30 scale=64 bias=64",
        "batchnorm x=8x64x30x30:f32:nhwc scale=64 bias=64",
        "batchnorm_backward dy=8x64x30x30 x=8x64x30x30 scale=64 mean=64 inv_std=64",
        "batchnorm_backward dy=8x64x30x30:f32:nhwc x=8x64x30x30:f32:nhwc scale=64 mean=64 inv_std=64",
        "batchnorm x=3x5x6x7:f32:s1000x70x10x1 scale=5:f32:s2 bias=5 -> y=3x5x6x7, mean, inv_std=5:f32:s3",
        "batchnorm x=3x20x6x7:f32:s2000x1x300x30 scale=20:f32:s2 bias=20 -> y, mean=20:f32:s4, inv_std",
        "batchnorm x=3x20x6x7:f32:s3x1000x100x10 scale=20 bias=20",
        "batchnorm x=3x20x6x7 -> y=3x20x6x7:f32:nhwc, mean, inv_std",
        "batchnorm x=3x20x6x7:f32:s0x42x7x1",
        "batchnorm_backward dy=3x20x6x7:f32:nhwc x=3x20x6x7 scale=20 mean=20 inv_std=20",
        "batchnorm_backward dy=3x20x6x7:f32:s0x0x0x0 x=3x20x6x7 scale=20 mean=20 inv_std=20",
        "batchnorm x=2x3x40x50 scale=3 bias=3 -> t, mean, inv_std; relu t -> y",
        "batchnorm x=2x3x40x50:f32:nhwc scale=3 bias=3 -> t, mean, inv_std; relu t -> y",
        "batchnorm_inference x=2x3x40x50 mean=3 var=3 scale=3 -> t; relu t -> y",
        "batchnorm_inference x=2x70x4x5:f32:nhwc mean=70 var=70 bias=70 -> t; relu t -> y",
        "batchnorm x=2x3x50:f32:s3000000000x50x1",
    ],
)
def test_layouts_and_relu(line: str) -> None:
    check(ENGINE, line, inputs(line), tolerance=16)


@pytest.mark.parametrize("layout", ["", ":f32:nhwc"])
def test_large_means(layout: str) -> None:
    line = f"batchnorm x=8x6x20x20{layout}"
    got = check(ENGINE, line, inputs(line, shift=1000.0), tolerance=1000)
    assert abs(got["y"].std() - 1) < 1e-3


@pytest.mark.parametrize("layout", ["", ":f32:nhwc"])
def test_values_of_1e30_come_out_finite(layout: str) -> None:  # D5
    line = f"batchnorm x=8x6x20x20{layout} scale=6 bias=6"
    values = inputs(line)
    values["x"] = values["x"] * np.float32(1e30)
    got = check(ENGINE, line, values, tolerance=16)
    line = f"batchnorm_backward dy=8x6x20x20{layout} x=8x6x20x20{layout} mean=6 inv_std=6"
    back = inputs(line) | {"x": values["x"], "mean": got["mean"], "inv_std": got["inv_std"]}
    check(ENGINE, line, back, tolerance=16)


@pytest.mark.parametrize("layout", ["", ":f32:nhwc"])
def test_nan_and_inf_stay_in_their_channel(layout: str) -> None:
    line = f"batchnorm x=4x5x6x7{layout}"
    values = inputs(line)
    values["x"][0, 1, 2, 3], values["x"][1, 3, 0, 0] = np.nan, np.inf
    got = execute(ENGINE, Graph.parse(line), values)["y"]
    assert np.isnan(got[:, 1]).all()
    assert np.isnan(got[:, 3]).all()
    assert np.isfinite(got[:, [0, 2, 4]]).all()


def test_running_statistics_in_place() -> None:
    line = "batchnorm x=4x35x3x3 running_mean=35 running_var=35 momentum=0.3"
    same = {"next_running_mean": "running_mean", "next_running_var": "running_var"}
    check(ENGINE, line, inputs(line), tolerance=16, alias=same)


def test_y_in_place() -> None:
    for layout in ("", ":f32:nhwc"):
        line = f"batchnorm x=4x35x3x3{layout}"
        check(ENGINE, line, inputs(line), tolerance=16, alias={"y": "x"})


def test_an_empty_batch_leaves_running_statistics() -> None:  # B3
    for layout in ("", ":f32:nhwc"):
        line = f"batchnorm x=0x9x3x3{layout} running_mean=9 running_var=9"
        values = inputs(line)
        got = execute(ENGINE, Graph.parse(line), values)
        np.testing.assert_array_equal(got["next_running_mean"], values["running_mean"])
        np.testing.assert_array_equal(got["next_running_var"], values["running_var"])


def test_refusals_say_why() -> None:
    for line, word in (
        ("relu x=3x4", "not a batch norm"),
        ("batchnorm x=3x4 -> t!, mean, inv_std; relu t -> y", "nothing behind"),
        ("batchnorm x=3x4 -> t, mean, inv_std; relu t upper_clip=6.0 -> y", "nothing behind"),
    ):
        assert word in (ENGINE.why_not(Graph.parse(line), host()) or ""), line


@pytest.mark.parametrize("layout", ["", ":f32:nhwc"])
def test_large_results_past_the_caches(layout: str) -> None:
    x = f"4x64x120x120{layout}"
    for line in (
        f"batchnorm x={x} scale=64 bias=64",
        f"batchnorm_inference x={x} mean=64 var=64",
        f"batchnorm_backward dy={x} x={x} mean=64 inv_std=64",
    ):
        check(ENGINE, line, inputs(line), tolerance=16)
