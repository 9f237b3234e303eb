"""Reduction engine: every sample, types, layouts, accuracy of long sums, empty sums."""

from __future__ import annotations

import numpy as np
import pytest

import vlug
from native_check import check, evaluate
from vlug.engines.cpu.reduction import ReductionBackwardEngine, ReductionEngine
from vlug.errors import BadInput, ShapeError
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS
from vlug.ops.reduction import MODES
from vlug.runtime.device import host
from vlug.testing_fills import fill

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


# --- the other modes, and gradients that need x ---
BACK = ReductionBackwardEngine()
MANY = [line for line in OPERATIONS["reduction_backward"].samples() if " x=" in line]


def fitting(line: str, seed: int = 0) -> dict[str, np.ndarray]:
    return fill(Graph.parse(line), "real", seed)


@pytest.mark.parametrize("line", MANY)
def test_gradients(line: str) -> None:
    check(BACK, line, fitting(line), tolerance=8)


@pytest.mark.parametrize("kind", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("mode", ["min", "max", "amax", "mul", "mul_no_zeros"])
def test_gradients_of_long_slices_go_by_blocks(mode: str, kind: str) -> None:
    """Slices of several blocks, dense and in rows with gaps; as long a slice as counts in one block, too."""
    rng = np.random.default_rng(3)
    for x, dy, axes, zeros in (
        (f"70001:{kind}", f"scalar:{kind}", "0", 0),
        (f"3x50x700:{kind}:s60000x1100x1", f"3:{kind}", "1x2", 1),
        (f"2x33000:{kind}:s1x2", f"2:{kind}", "1", 2),
        (f"2x16384:{kind}", f"2:{kind}", "1", 1),
    ):
        dim = Graph.parse(f"relu x={x}").inputs[0].dim
        values = rng.choice([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0], dim)
        values.reshape(-1)[: values.size // 2 * 2] = np.tile([1.0, -1.0], values.size // 2)
        flat = values.reshape(dim[0] if axes != "0" else 1, -1)
        flat[:, 20] *= 2  # the only largest
        flat[:, -7] *= 2
        if mode == "mul":
            flat[-1, [5, -5][:zeros]] = 0
        line = f"reduction_backward dy={dy} x={x}{{}} axes={axes} mode={mode} size={'x'.join(map(str, dim))}"
        given = {"x": values, "dy": np.arange(1.0, 1 + len(flat)).reshape(() if axes == "0" else -1)}
        if mode in ("min", "max", "amax"):
            size = np.abs(flat) if mode == "amax" else flat
            given["y"] = (size.min(1) if mode == "min" else size.max(1)).reshape(given["dy"].shape)
            line = line.format(f" y={dy}")
        check(BACK, line.format(""), given, tolerance=8)


@pytest.mark.parametrize("mode", MODES[2:])
@pytest.mark.parametrize(
    "x",
    ["6x7x40:K:s1x6x42 axes=0x2", "6x7x40:K:s900x1x8 axes=1", "40x3000:K axes=0", "30x300:K:s3x100 axes=1"],
)
def test_modes_in_other_layouts(x: str, mode: str) -> None:
    for kind in ("f32", "bf16", "f64"):
        line = f"reduction x={x.replace('K', kind)} mode={mode}"
        values = {"x": np.exp(np.random.default_rng(0).standard_normal(Graph.parse(line).inputs[0].dim) / 20)}
        check(ENGINE, line, values, tolerance=16)


@pytest.mark.parametrize("kind", ["f32", "f64", "bf16"])
def test_norm2_leaves_the_range_only_with_the_result(kind: str) -> None:
    top = 1e300 if kind == "f64" else 1e30
    for scale in (top, 1 / top, 1.0):
        x = np.full((3, 1000), scale)
        x[1, ::2], x[2] = 1.0, np.where(np.arange(1000) % 2, scale, 1 / scale)
        check(ENGINE, f"reduction x=3x1000:{kind} axes=1 mode=norm2", {"x": x}, tolerance=32)
        check(ENGINE, f"reduction x=1000x3:{kind} axes=0 mode=norm2", {"x": x.T}, tolerance=32)
    want = np.sqrt(1000.0) * 1e30
    assert vlug.vector_norm(np.full(1000, 1e30, np.float32)) == pytest.approx(want, rel=1e-6)
    x = np.array([1e30, 1e30, 1e-30, 1e-30], np.float32)
    assert vlug.prod(x) == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_nan_reaches_every_result(mode: str) -> None:
    x = np.ones((5, 300), np.float32)
    x[3, 77] = np.nan
    got = check(ENGINE, f"reduction x=5x300 axes=1 mode={mode}", {"x": x})["y"]
    assert np.isnan(got).tolist() == [False, False, False, True, False]
    assert np.isnan(check(ENGINE, f"reduction x=300x5 axes=0 mode={mode}", {"x": x.T})["y"]).sum() == 1


def test_ties_share_the_gradient() -> None:
    x = np.array([[1, 3, 3, -3], [2, 2, 2, 2]], np.float32)
    dy = np.array([6, 8], np.float32)
    np.testing.assert_array_equal(vlug.amax_backward(dy, x, vlug.amax(x, 1), 1), [[0, 3, 3, 0], [2, 2, 2, 2]])
    np.testing.assert_array_equal(vlug.amin_backward(dy, x, vlug.amin(x, 1), 1), [[0, 0, 0, 6], [2, 2, 2, 2]])
    largest = vlug.vector_norm(x, np.inf, 1)
    got = vlug.vector_norm_backward(dy, x, largest, np.inf, 1)
    np.testing.assert_array_equal(got, [[0, 2, 2, -2], [2, 2, 2, 2]])


def test_products_with_zeros_have_a_gradient() -> None:
    x = np.array([[2, 0, 3], [0, 0, 3], [2, 5, 3]], np.float32)
    got = vlug.prod_backward(np.ones(3, np.float32), x, 1)
    np.testing.assert_array_equal(got, [[0, 6, 0], [0, 0, 0], [15, 6, 10]])


def test_functional_modes() -> None:
    x = np.random.default_rng(0).standard_normal((4, 5, 6))
    np.testing.assert_allclose(vlug.prod(x, (0, 2)), x.prod((0, 2)), rtol=1e-13)
    np.testing.assert_allclose(vlug.vector_norm(x, 1, 1, keepdims=True), np.abs(x).sum(1, keepdims=True))
    np.testing.assert_allclose(vlug.vector_norm(x), np.linalg.norm(x.ravel()))
    np.testing.assert_array_equal(vlug.reduce(x, "amax", 0), np.abs(x).max(0))
    y = vlug.vector_norm(x, 2, 1)
    np.testing.assert_allclose(vlug.vector_norm_backward(y, x, y, 2, 1), x, rtol=1e-13)
    with pytest.raises(BadInput, match="ord: 3 must be 1, 2 or inf"):
        vlug.vector_norm(x, 3)
    with pytest.raises(ShapeError, match="mode 'median' must be one of"):
        vlug.reduce(x, "median")
    with pytest.raises(ShapeError, match=r"y .* must be"):
        vlug.amax_backward(np.ones(4), x[:, :, 0], np.ones(5), 1)
