"""Axis engine: resampling, adaptive pooling and pooling in three dimensions against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

import vlug
from native_check import check, execute, normal
from vlug.engines.cpu.axis import AxisEngine
from vlug.errors import BadInput, ShapeError
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS
from vlug.runtime.device import host

ENGINE = AxisEngine()
NAMES = (
    "resample",
    "resample_backward",
    "adaptive_avg_pool",
    "adaptive_avg_pool_backward",
    "adaptive_max_pool",
    "adaptive_max_pool_backward",
)
POOLS = ("max_pool", "max_pool_backward", "avg_pool", "avg_pool_backward")
SAMPLES = [line for name in NAMES for line in OPERATIONS[name].samples()]
SAMPLES += [
    line for name in POOLS for line in OPERATIONS[name].samples() if Graph.parse(line).inputs[0].rank == 5
]


def inputs(line: str) -> dict[str, np.ndarray]:
    g = Graph.parse(line)
    values = normal(g)
    if "index" in g.tensors and "index" not in {t.name for t in g.outputs}:
        op = g.nodes[0].op.bind(g.ins(g.nodes[0]))
        values["index"] = np.random.default_rng(1).integers(
            -1, max(math.prod(op.size), 1), g.tensors["dy"].dim
        )
    return values


@pytest.mark.parametrize("line", SAMPLES)
def test_samples(line: str) -> None:
    check(ENGINE, line, inputs(line))


@pytest.mark.parametrize("layout", ["", ":nhwc"])
@pytest.mark.parametrize("kind", ["bf16", "f16", "f64"])
def test_types(kind: str, layout: str) -> None:
    for name in NAMES:
        mode = " mode=linear" if name.startswith("resample") else ""
        if name.endswith("backward"):
            index = f" index=2x19x4x13:i64{layout}" if "max" in name else ""
            line = f"{name} dy=2x19x4x13:{kind}{layout}{index} size=9x11{mode}"
        else:
            line = f"{name} x=2x19x9x11:{kind}{layout} size=4x13{mode}"
        check(ENGINE, line, inputs(line), tolerance=8)


@pytest.mark.parametrize(
    "line",
    [
        "resample x=2x3x20x30:f32:s100000x3000x80x1 size=33x47",
        "resample x=2x3x20x30:f32:s100000x2x2000x50 size=33x47 mode=cubic",
        "resample x=2x3x20x30 size=33x47 mode=nearest -> y=2x3x33x47:f32:nhwc",
        "resample x=2x3x20x30:f32:s0x600x30x1 size=7x11",
        "resample_backward dy=2x3x33x47:f32:nhwc size=20x30 -> dx=2x3x20x30",
        "adaptive_avg_pool x=2x3x20x30:f32:s3000000000x600x30x1 size=7x11",
        "max_pool x=2x3x9x8x7:f32:s10000x1x500x60x6 window=3 stride=2 pad=1",
        "max_pool x=2x3x9x8x7 window=2x3x1 stride=2 dilation=2x1x1 ceil=1",
        "max_pool x=1x2x5x6x40:f64 window=3 stride=1 pad=1 -> y",
        "avg_pool x=2x3x9x8x7:bf16 window=3 stride=2 pad=1 count_include_pad=0 ceil=1",
        "avg_pool x=2x3x9x8x7 window=3 stride=2 pad=1 divisor=7",
        "avg_pool_backward dy=2x3x5x4x4 window=3 stride=2 pad=1 size=9x8x7",
    ],
)
def test_layouts_and_three_dimensions(line: str) -> None:
    check(ENGINE, line, inputs(line), tolerance=8)


def test_nan_infinities_and_ties() -> None:
    for seed in range(2):
        rng = np.random.default_rng(seed)
        x = rng.integers(-1, 2, (1, 20, 4, 9, 10)).astype(np.float32)
        x[rng.random(x.shape) < 0.1] = np.nan
        x[rng.random(x.shape) < 0.4] = -np.inf
        x[rng.random(x.shape) < 0.05] = np.inf
        check(ENGINE, "max_pool x=1x20x4x9x10 window=3 pad=1 stride=2", {"x": x})
        check(ENGINE, "adaptive_max_pool x=1x20x4x9x10 size=2x4x7", {"x": x})
        for line in ("resample x=20x4x9x10 size=13x7", "adaptive_avg_pool x=20x4x9x10 size=5x7"):
            check(ENGINE, line, {"x": x[0]})
            check(ENGINE, line.replace("x10 ", "x10:f32:nhwc "), {"x": x[0]})


def test_an_index_from_elsewhere_writes_nowhere_else() -> None:
    g = Graph.parse("adaptive_max_pool_backward dy=1x16x3x3 index=1x16x3x3:i64 size=6x6")
    index = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, (1, 16, 3, 3))
    got = execute(ENGINE, g, {"dy": np.ones((1, 16, 3, 3), np.float32), "index": index})["dx"]
    assert got.sum() == 0


def test_windows_that_reach_only_padding_or_overhang() -> None:
    x = np.arange(42, dtype=np.float32).reshape(1, 1, 6, 7)
    assert vlug.max_pool2d(x, 1, stride=2, ceil=True).shape == (1, 1, 3, 4)  # F1
    y = np.arange(80, dtype=np.float32).reshape(1, 1, 8, 10)
    assert vlug.max_pool2d(y, 3, stride=4, ceil=True).shape == (1, 1, 2, 3)
    with pytest.raises(ShapeError, match="half the window"):  # F3
        vlug.max_pool2d(np.ones((1, 1, 2, 2), np.float32), 2, padding=2)
    dy = (
        np.random.default_rng(0).standard_normal((4, 32, 1, 1)).astype(np.float32)
    )  # F5: two layouts in sequence
    x = np.random.default_rng(1).standard_normal((4, 32, 32, 32)).astype(np.float32)
    for data in (x, np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2), x):
        y, index = vlug.max_pool2d(data, 32, return_index=True)
        np.testing.assert_array_equal(y, x.max((2, 3), keepdims=True))
        dx = vlug.max_pool2d_backward(dy, index, (32, 32), 32)
        np.testing.assert_array_equal(dx.sum((2, 3), keepdims=True), dy)
        assert np.count_nonzero(dx) == dy.size


def test_calls() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 4, 6, 8))
    y, index = vlug.max_pool3d(x, 2, return_index=True)
    blocks = x.reshape(2, 3, 2, 2, 3, 2, 4, 2)
    np.testing.assert_array_equal(y, blocks.max((3, 5, 7)))
    assert vlug.max_pool3d_backward(np.ones_like(y), index, (4, 6, 8), 2).sum() == y.size
    np.testing.assert_allclose(vlug.avg_pool3d(x, 2), blocks.mean((3, 5, 7)), rtol=1e-12)
    np.testing.assert_allclose(vlug.adaptive_avg_pool3d(x, (2, 3, 4)), blocks.mean((3, 5, 7)), rtol=1e-12)
    np.testing.assert_allclose(vlug.avg_pool1d(x[0, :, 0], 2)[..., 0], x[0, :, 0, :, :2].mean(-1), rtol=1e-12)
    assert vlug.max_pool1d(x[0, :, 0], 3, stride=2).shape == (3, 6, 3)
    up = vlug.interpolate(x[:, :, 0], scale_factor=2)
    np.testing.assert_array_equal(up, x[:, :, 0].repeat(2, 2).repeat(2, 3))
    dx = vlug.interpolate_backward(np.ones_like(up), (6, 8), scale_factor=2)
    np.testing.assert_array_equal(dx, np.full(dx.shape, 4.0))
    corners = vlug.interpolate(x[:, :, 0], (3, 2), mode="bilinear", align_corners=True)
    np.testing.assert_allclose(corners[..., ::2, :], x[:, :, 0, ::5, ::7], rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: vlug.interpolate(x), "either size or scale_factor"),
        (lambda x: vlug.interpolate(x, 3, mode="trilinear"), "3 spatial dimensions"),
        (lambda x: vlug.interpolate(x, 3, mode="area"), "must be one of"),
        (lambda x: vlug.interpolate(x, scale_factor=-1.0), "positive"),
        (lambda x: vlug.interpolate(x, (3, 4, 5)), "one integer or two"),
        (lambda x: vlug.adaptive_avg_pool2d(x, -1), "must be 0 or more"),
        (lambda x: vlug.adaptive_avg_pool3d(x, 1), "dimensions"),
        (lambda x: vlug.interpolate(x[:, :, :0], 3), "no elements"),
    ],
)
def test_bad_calls_name_the_argument(call, words: str) -> None:
    with pytest.raises((BadInput, ShapeError), match=words):
        call(np.ones((1, 2, 5, 6), np.float32))


def test_refusals_say_why() -> None:
    for line, word in (
        ("relu x=3", "alone"),
        ("max_pool x=1x2x3x4x5x6 window=2", "spatial dimensions"),
        ("avg_pool x=1x1x3000000 window=1500000 stride=1", "entries"),
    ):
        assert word in (ENGINE.why_not(Graph.parse(line), host()) or ""), line
