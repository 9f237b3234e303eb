"""Grid engine: samples, types, strides, grids of NaN and far places; the calls."""

from __future__ import annotations

import numpy as np
import pytest

import vlug
from native_check import check
from vlug.engines.cpu.grid import GridEngine
from vlug.errors import BadInput, ShapeError
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS
from vlug.testing import fill

ENGINE = GridEngine()
SAMPLES = [line for n in ("grid_sample", "grid_sample_backward") for line in OPERATIONS[n].samples()]


@pytest.mark.parametrize("line", SAMPLES)
def test_samples(line: str) -> None:
    check(ENGINE, line, fill(Graph.parse(line)), tolerance=16)


@pytest.mark.parametrize("kind", ["bf16", "f16", "f64"])
def test_types_and_strides(kind: str) -> None:
    for line in (
        f"grid_sample x=2x5x9x8:{kind}:nhwc grid=2x3x21x2:{kind}",
        f"grid_sample x=2x5x9x8:{kind} grid=2x3x21x2:{kind}:s126x1x6x3 padding=reflection",
        f"grid_sample_backward dy=2x5x3x21:{kind} x=2x5x9x8:{kind}:nhwc grid=2x3x21x2:{kind} padding=border",
    ):
        check(ENGINE, line, fill(Graph.parse(line)), tolerance=16)
    check(ENGINE, "grid_sample_backward dy=1x2x2x9 x=1x2x4x5 grid=1x2x9x2 -> dx")
    check(ENGINE, "grid_sample_backward dy=1x2x2x9 x=1x2x4x5 grid=1x2x9x2 -> _, dgrid", tolerance=16)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grids_of_nan_and_far_places(padding: str, mode: str) -> None:
    line = f"grid_sample x=1x2x5x7 grid=1x2x20x2 mode={mode} padding={padding}"
    values = dict(fill(Graph.parse(line)))
    odd = [np.nan, np.inf, -np.inf, 1e30, -1e30, 1e5, 0.0, 1e-40]
    values["grid"][0, 0, :8, 0] = odd
    values["grid"][0, 1, :8, 1] = odd
    check(ENGINE, line, values, tolerance=16)


def test_calls() -> None:
    x = np.arange(30.0).reshape(1, 1, 5, 6)
    rows, columns = np.meshgrid(np.linspace(-1, 1, 5), np.linspace(-1, 1, 6), indexing="ij")
    grid = np.stack([columns, rows], -1)[None]
    np.testing.assert_allclose(vlug.grid_sample(x, grid, align_corners=True), x, rtol=1e-12, atol=1e-12)
    far = vlug.grid_sample(x, grid * 9, padding_mode="border")
    assert far.min() == 0
    assert far.max() == 29
    dx, dgrid = vlug.grid_sample_backward(np.ones_like(x), x, grid * 0.9, align_corners=True)
    assert np.isclose(dx.sum(), x.size)
    np.testing.assert_allclose(dgrid[..., 0], 2.5)  # 1 a column, 5 / 2 columns
    np.testing.assert_allclose(dgrid[..., 1], 12.0)
    with pytest.raises(BadInput, match="mode"):
        vlug.grid_sample(x, grid, mode="bicubic")
    with pytest.raises(BadInput, match="padding_mode"):
        vlug.grid_sample(x, grid, padding_mode="wrap")
    with pytest.raises(ShapeError, match="grid"):
        vlug.grid_sample(x, grid[..., :1])
