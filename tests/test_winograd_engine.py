"""The Winograd engine: matrices, every layout, kernel and tile against float64, its error, and its refuge."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import programs
from vlug import testing
from vlug.engines.base import EngineConfig
from vlug.engines.cpu import winograd
from vlug.engines.cpu.winograd_kernels import POINTS, matrices
from vlug.graph import Graph
from vlug.runtime.device import FAKE
from vlug.testing_plain import plain

ENGINE = winograd.Winograd()
devices = pytest.mark.parametrize("device", programs.DEVICES, ids=lambda d: d.isa)


@pytest.fixture(autouse=True)
def small_problems(monkeypatch):
    """Problems too small to be worth it are taken here."""
    monkeypatch.setattr(winograd, "LEAST_FLOPS", 0)


def hold(line, device, fill="real", threads=(1, 2, 3), variant="plain", **knobs):
    """Hold the engine to a line, with some knobs set; its reason if it refuses."""
    v = testing.VARIANTS[variant]
    graph = testing.derive(Graph.parse(line), v.inputs, v.outputs)
    why = ENGINE.why_not(graph, device)
    if why is not None:
        return why
    chosen = {k: v[0] for k, v in ENGINE.knobs(graph, device).items()} | knobs
    settings = EngineConfig(ENGINE.name, tuple(chosen.items()))
    return testing.check(graph, ENGINE, fill, threads, device=device, settings=settings, shift=v.shift)


@pytest.mark.parametrize("m", sorted(POINTS))
def test_matrices_are_exact(m):
    """Aᵀ [(G g) ⊙ (Bᵀ d)] is the correlation of d and g, in fractions."""
    at, g, bt = matrices(m)
    rng = np.random.default_rng(0)
    d = [Fraction(int(v)) for v in rng.integers(-9, 10, m + 2)]
    f = [Fraction(int(v)) for v in rng.integers(-9, 10, 3)]

    def apply(matrix, v):
        return [sum(a * b for a, b in zip(row, v)) for row in matrix]

    got = apply(at, [a * b for a, b in zip(apply(g, f), apply(bt, d))])
    assert got == [sum(d[i + j] * f[j] for j in range(3)) for i in range(m)]


LINES = [
    "conv_fprop x=2x64x12x12 w=32x64x3x3 pad=1",
    "conv_fprop x=3x70x13x9 w=37x70x3x3 pad=1 -> a; bias a b=37 -> c; relu c -> y",  # tails everywhere
    "conv_fprop x=1x65x7x35 w=16x65x3x3 pad=0x2 post=2x1 -> a; relu a -> y",
    "conv_fprop x=5x17x3x3 w=19x17x3x3 pad=1 -> a; bias a b=19 -> y",
    "conv_fprop x=2x16x20x1 w=33x16x3x3 pad=2",
    "conv_fprop x=2x64x9x8 w=16x64x3x3",
    "conv_dgrad dy=2x64x12x12 w=64x32x3x3 pad=1 size=12x12",
    "conv_dgrad dy=3x70x13x9 w=70x37x3x3 pad=1 size=13x9",
    "conv_dgrad dy=2x66x5x11 w=66x18x3x3 size=7x13",
    "conv_dgrad dy=2x19x9x10 w=19x16x3x3 pad=2 size=7x8",
    "conv_dgrad dy=2x64x10x6 w=64x16x3x3 pad=3 size=6x2",
]


@devices
@pytest.mark.parametrize("whole", [0, 1])
@pytest.mark.parametrize(
    "variant", ["plain", "nhwc", "nhwc_data", "nhwc_to_nchw", "misaligned", "nhwc_padded"]
)
@pytest.mark.parametrize("line", LINES)
def test_lines(line, variant, whole, device):
    why = hold(line, device, variant=variant, whole=whole)
    assert why is None or (variant == "nhwc_padded" and "bias" in why), why


@devices
@pytest.mark.parametrize("fill", ["edge", "exact"])
@pytest.mark.parametrize("variant", ["plain", "nhwc"])
@pytest.mark.parametrize("line", LINES)
def test_other_fills(line, variant, fill, device):
    for whole in (0, 1):
        assert hold(line, device, fill, variant=variant, whole=whole) is None


@devices
@pytest.mark.parametrize("variant", list(testing.VARIANTS))
def test_layouts_are_taken_or_refused(variant, device):
    for line in (LINES[1], LINES[7]):
        why = hold(line, device, variant=variant)
        assert why is None or "memory" in why or "gap" in why or "contiguous" in why


@devices
@pytest.mark.parametrize("variant", ["plain", "nhwc"])
def test_every_block(variant, device):
    """All shapes of tiles, groups and blocks; the last ones are not whole."""
    line = "conv_fprop x=3x88x21x18 w=72x88x3x3 pad=1"
    knobs = ENGINE.knobs(Graph.parse(line), device)
    for rows in knobs["rows"]:
        assert hold(line, device, threads=(2,), variant=variant, rows=rows) is None
    for images in (1, 2):
        for tile_rows in (1, 2, 4):
            for whole in (0, 1):
                assert hold(line, device, threads=(1, 2), variant=variant, images=images, tile_rows=tile_rows,
                            whole=whole, c_block=32, k_block=32) is None  # fmt: skip


# Channels of ResNet-50's and VGG's 3×3 layers; planes, K and N scaled down.
CLASSES = [(16, 14), (24, 14), (32, 14), (48, 14), (64, 28), (128, 14), (256, 14), (512, 7), (512, 14)]


@devices
@pytest.mark.parametrize(("channels", "plane"), CLASSES)
def test_error_is_within_twice_a_sequential_sum(channels, plane, device):
    """The largest error against float64 is at most twice that of a plain fp32 sum, for several seeds."""
    size = f"{plane}x{plane}"
    lines = (f"conv_fprop x=2x{channels}x{size} w=16x{channels}x3x3 pad=1",
             f"conv_dgrad dy=2x{channels}x{size} w={channels}x16x3x3 pad=1 size={size}")  # fmt: skip
    for seed, line in enumerate(lines * 2):
        graph = Graph.parse(line)
        given = programs.inputs(graph, "real", seed=seed)
        (out,) = graph.outputs
        got = programs.execute(ENGINE, graph, device, given, 2)[out.name].astype(np.float64)
        want = programs.reference(graph, given)[out.name]
        rough = plain(graph, {n: a.astype(np.float64) for n, a in given.items()})[out.name]
        assert np.abs(got - want).max() <= 2 * np.abs(rough - want).max(), (line, seed)


@devices
@pytest.mark.parametrize("variant", ["plain", "nhwc"])
@pytest.mark.parametrize("whole", [0, 1])
@pytest.mark.parametrize("where", ["x", "w", "dy"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38, -1e25])
def test_what_is_no_number_stays_where_it_belongs(value, where, whole, variant, device):
    """One such value: every element is what the direct form gives, infinite, NaN or finite."""
    line = LINES[7] if where == "dy" else LINES[1]
    v = testing.VARIANTS[variant]
    graph = testing.derive(Graph.parse(line), v.inputs, v.outputs)
    given = testing.fill(graph, "real", 1)
    given[where][1, 3, 1, 2] = np.float32(value)
    expected = testing.evaluate(graph, given)
    case = testing.Case(graph, given, expected, testing.tolerance(graph, given, expected))
    chosen = {k: v[0] for k, v in ENGINE.knobs(graph, device).items()} | {"whole": whole}
    settings = EngineConfig(ENGINE.name, tuple(chosen.items()))
    with np.errstate(all="ignore"):
        assert testing.check(case, ENGINE, threads=(1, 2), device=device, settings=settings) is None
    (out,) = graph.outputs
    affected = np.abs(expected[out.name]) > 1e10 if abs(value) < np.inf else ~np.isfinite(expected[out.name])
    assert 0 < affected.sum() < affected.size  # the rest had to be right beside them


def test_refusals(monkeypatch):
    device = FAKE["avx2"]
    for line, reason in {
        "conv_fprop x=2x64x12x12 w=32x64x3x3 pad=1 stride=2": "stride 2x2",
        "conv_fprop x=2x64x12x12 w=32x64x3x3 pad=1 dilation=2": "dilation 2x2",
        "conv_fprop x=2x64x12x12 w=32x32x3x3 pad=1 groups=2": "groups 2",
        "conv_fprop x=2x64x12x12 w=32x64x5x5 pad=1": "window of 5x5",
        "conv_fprop x=2x64x12x12:bf16 w=32x64x3x3:bf16 pad=1": "bf16",
        "conv_fprop x=2x8x12x12 w=32x8x3x3 pad=1": "8 input channels",
        "conv_fprop x=2x32x12x12 w=8x32x3x3 pad=1": "8 output channels",
        "conv_fprop x=0x32x12x12 w=32x32x3x3 pad=1": "empty",
        "relu x=4": "relu",
    }.items():
        assert reason in ENGINE.why_not(Graph.parse(line), device)
    assert "none" in ENGINE.why_not(Graph.parse(LINES[0]), replace(FAKE["neon"], isa="none"))
    monkeypatch.setattr(winograd, "LEAST_FLOPS", 30e6)
    assert "MFLOP" in ENGINE.why_not(Graph.parse(LINES[0]), device)


def test_ranked_before_the_direct_form():
    from vlug.engines import engines
    from vlug.heuristics import rank

    graph = Graph.parse("conv_fprop x=8x64x56x56 w=64x64x3x3 pad=1")
    device = FAKE["avx512"]
    taking = [e for e in engines() if e.name != "reference" and e.why_not(graph, device) is None]
    assert rank(graph, device, taking)[0].engine.name == ENGINE.name
    assert len(taking) > 1


def test_one_object_for_all_sizes():
    """Another size compiles nothing, with the very knobs that a plan would choose."""
    from vlug.codegen import jit

    def compile_at(n: int, images: int, channels: int) -> int:
        graph = Graph.parse(f"conv_fprop x={images}x{channels}x{n}x{n} w={channels}x{channels}x3x3 pad=1")
        for device in programs.DEVICES:
            ENGINE.compile(graph, ENGINE.default(graph, device), device)
        return len(jit._loaded)

    for channels in (64, 512):
        first = compile_at(24, 2, channels)
        others = ((7, 1), (10, 16), (31, 2), (57, 1), (130, 3))
        assert [compile_at(n, images, channels) for n, images in others] == [first] * len(others)
