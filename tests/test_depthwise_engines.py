"""Depthwise engine: directions, layouts, types, strides, dilations, multipliers, empty sizes."""

from __future__ import annotations

import numpy as np
import pytest

from native_check import check, normal
from vlug.engines.cpu.depthwise import DepthwiseEngine
from vlug.graph import Graph
from vlug.runtime.device import host

ENGINE = DepthwiseEngine()

# N, C, multiplier, size, window, attributes
CASES = [
    (2, 19, 1, (9, 11), (3, 3), "pad=1"),
    (2, 19, 1, (9, 11), (3, 3), "pad=1 stride=2"),
    (2, 16, 1, (20, 40), (3, 3), "pad=1"),
    (1, 33, 1, (15, 35), (3, 3), "pad=1 stride=2"),
    (2, 5, 2, (9, 40), (3, 3), "pad=1 stride=2"),
    (2, 5, 3, (9, 11), (3, 3), ""),
    (2, 20, 1, (12, 13), (5, 5), "pad=2"),
    (2, 20, 1, (12, 13), (5, 3), "pad=2x1 stride=2x1"),
    (1, 7, 1, (12, 30), (7, 7), "pad=3"),
    (1, 7, 1, (12, 30), (3, 9), "pad=1x4 stride=1x3"),
    (1, 20, 1, (14, 22), (3, 3), "pad=2 dilation=2"),
    (1, 20, 1, (14, 22), (3, 3), "pad=2 dilation=2 stride=2"),
    (1, 20, 1, (14, 22), (3, 3), "pad=0 post=1 stride=3"),
    (1, 6, 1, (4, 5), (1, 1), "stride=2"),
    (3, 1, 1, (8, 9), (3, 3), "pad=1"),
    (3, 1, 4, (8, 9), (3, 3), "pad=1"),
    (2, 9, 1, (50,), (5,), "pad=2 stride=2"),
    (0, 5, 1, (6, 6), (3, 3), "pad=1"),
    (2, 5, 1, (0, 6), (3, 3), "pad=2"),
]


def lines(case: tuple, x_layout: str = "", w_layout: str = "", kind: str = "f32") -> list[str]:
    """The three directions of a case."""
    n, c, m, size, window, tail = case
    tail = f"{tail} groups={c}".strip()
    text = lambda *v: "x".join(map(str, v))  # noqa: E731
    x, w = f"{text(n, c, *size)}:{kind}{x_layout}", f"{text(c * m, 1, *window)}:{kind}{w_layout}"
    y = Graph.parse(f"conv_fprop x={x} w={w} {tail}").outputs[0]
    dy = f"{text(*y.dim)}:{kind}{x_layout}"
    return [
        f"conv_fprop x={x} w={w} {tail}",
        f"conv_dgrad dy={dy} w={w} {tail} size={text(*size)}",
        f"conv_wgrad dy={dy} x={x} {tail} size={text(*window)}",
    ]


def integers(line: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {t.name: rng.integers(-2, 3, t.dim).astype(np.float32) for t in Graph.parse(line).inputs}


@pytest.mark.parametrize("layout", ["", ":nhwc"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_small_integers_are_exact(case: tuple, layout: str) -> None:
    for line in lines(case, layout):
        check(ENGINE, line, integers(line), tolerance=0)


@pytest.mark.parametrize("layout", ["", ":nhwc"])
@pytest.mark.parametrize("kind", ["bf16", "f16", "f64"])
def test_types(kind: str, layout: str) -> None:
    for case in (CASES[0], CASES[3], CASES[10]):
        for line in lines(case, layout, kind=kind):
            check(ENGINE, line, tolerance=64 if kind == "f64" else 2)


@pytest.mark.parametrize("layout", ["", ":nhwc"])
def test_real_numbers(layout: str) -> None:
    for line in lines((4, 24, 1, (40, 50), (3, 3), "pad=1"), layout, ":nhwc" if layout else ""):
        check(ENGINE, line, normal(Graph.parse(line)), tolerance=16)


@pytest.mark.parametrize(
    "line",
    [
        "conv_fprop x=2x19x9x11:f32:s10000x300x20x1 w=19x1x3x3:f32:s1x7x60x20 pad=1 groups=19",
        "conv_fprop x=2x19x9x11:f32:s10000x1x700x40 w=19x1x3x3 pad=1 stride=2 groups=19",
        "conv_fprop x=2x19x9x11:f32:s10000x300x20x2 w=19x1x3x3 pad=1 stride=2 groups=19",
        "conv_fprop x=2x19x9x11:f32:nhwc w=19x1x3x3 pad=1 groups=19 -> y=2x19x9x11",
        "conv_fprop x=2x19x9x11:f32:s0x99x11x1 w=19x1x3x3 pad=1 groups=19",
        "conv_dgrad dy=2x19x9x11 w=19x1x3x3 pad=1 groups=19 size=9x11 -> dx=2x19x9x11:f32:nhwc",
        "conv_wgrad dy=2x19x9x11 x=2x19x9x11:f32:nhwc pad=1 groups=19 size=3 -> dw=19x1x3x3:f32:s1x1x60x20",
        "conv_fprop x=2x3x9x11:f32:s3000000000x99x11x1 w=3x1x3x3 pad=1 groups=3",
    ],
)
def test_layouts(line: str) -> None:
    check(ENGINE, line, integers(line), tolerance=0)


def test_refusals_say_why() -> None:
    for line, word in (
        ("relu x=3", "alone"),
        ("conv_fprop x=1x4x5x5 w=4x2x3x3 groups=2", "not depthwise"),
        ("conv_fprop x=1x4x5x5x5 w=4x1x3x3x3 groups=4", "spatial"),
    ):
        assert word in (ENGINE.why_not(Graph.parse(line), host()) or ""), line
