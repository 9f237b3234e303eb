"""The convolution engines: block sizes, odd strides, few kernels, registers; see also test_engines."""

from __future__ import annotations

import itertools
import mmap

import numpy as np
import pytest

import programs
from vlug.bench.problems import problems
from vlug.codegen import isa as isas
from vlug.codegen import jit
from vlug.engines.base import EngineConfig
from vlug.engines.cpu import conv_nchw, conv_nhwc, conv_pointwise
from vlug.engines.cpu.conv_base import Axis, Conv, Planes, parse
from vlug.engines.reference import evaluate
from vlug.graph import Graph
from vlug.runtime.device import FAKE
from vlug.testing import check, fill, run_program

NCHW, NHWC, POINT = conv_nchw.ConvNCHW(), conv_nhwc.ConvNHWC(), conv_pointwise.ConvPointwise()
devices = pytest.mark.parametrize("device", programs.DEVICES, ids=lambda d: d.isa)

LINES = [
    "conv_fprop x=3x37x13x18:f32{0} w=41x37x3x3 pad=1",
    "conv_fprop x=2x9x23x19:f32{0} w=20x9x5x3 pad=2x1 stride=2x3",
    "conv_fprop x=3x40x9x17:f32{0} w=36x40x1x1 stride=2",
    "conv_dgrad dy=3x37x13x18:f32{0} w=37x41x3x3 pad=1 size=13x18",
    "conv_dgrad dy=2x20x12x6:f32{0} w=20x9x3x3 pad=1 stride=2x3 size=23x18",
    "conv_dgrad dy=3x36x5x9:f32{0} w=36x40x1x1 stride=2 size=9x17",
    "conv_dgrad dy=2x20x5x4:f32{0} w=20x9x2x1 stride=3 size=14x12",
]


def settings(engine, graph, device, **chosen) -> EngineConfig:
    every = {k: v[0] for k, v in engine.knobs(graph, device).items()}
    return EngineConfig(engine.name, tuple((every | {k: v for k, v in chosen.items() if k in every}).items()))


@devices
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("engine", [NCHW, NHWC, POINT], ids=lambda e: e.name)
def test_every_block_size(engine, line, images, device):
    line = line.format(":nhwc" if engine is NHWC else "")
    graph = Graph.parse(line)
    if engine.why_not(graph, device) is not None:
        pytest.skip("another engine's")
    blocks = conv_nhwc.BLOCKS if engine is NHWC else (5, 16, 64)
    for c_block, (band, k_chunk) in itertools.product(blocks, ((1, 8), (4, 64))):
        chosen = settings(engine, graph, device, c_block=c_block, band=band, k_chunk=k_chunk, images=images,
                          pixels_first=images - 1,
                          pixels=48 * band)  # fmt: skip
        assert check(graph, engine, "exact", (1, 3), device=device, settings=chosen) is None


@devices
@pytest.mark.parametrize("line", [
    "conv_fprop x=1x5x4x5:f32{0} w=1061x5x1x1",
    "conv_fprop x=1x5x4x5:f32{0} w=1061x5x2x2",
    "conv_fprop x=2x10x4x5:f32{0} w=1078x5x1x2:f32:nhwc groups=2",
    "conv_dgrad dy=1x5x4x5:f32{0} w=5x1061x1x1 size=4x5",
    "conv_dgrad dy=1x5x4x5:f32{0} w=5x1061x3x3 pad=1 size=4x5",
])  # fmt: skip
@pytest.mark.parametrize("engine", [NCHW, NHWC, POINT], ids=lambda e: e.name)
def test_many_outputs_are_packed_together(engine, line, device):
    graph = Graph.parse(line.format(":nhwc" if engine is NHWC else ""))
    if engine.why_not(graph, device) is not None:
        pytest.skip("another engine's")
    assert check(graph, engine, "exact", (1, 3), device=device) is None


@devices
def test_sums_do_not_depend_on_blocks(device):
    """The reduction runs in one order, so real numbers give the same bits whatever the blocking."""
    graph = Graph.parse("conv_fprop x=2x50x11x11 w=24x50x3x3 pad=1")
    given = programs.inputs(graph, "real")
    first = None
    for c_block, band, images in itertools.product((7, 50), (2, 11), (1, 2)):
        chosen = settings(NCHW, graph, device, c_block=c_block, band=band, images=images)
        got = programs.execute(NCHW, graph, device, given, config=chosen)["y"]
        first = got if first is None else first
        assert np.array_equal(first, got)


FAR = 2**31 + 5


@devices
@pytest.mark.parametrize(("engine", "line"), [
    (NCHW, "conv_fprop x=2x3x6x7:f32:s{far}x42x7x1 w=4x3x3x2 -> y=2x4x4x6:f32:s{far}x24x6x1"),
    (NCHW, "conv_dgrad dy=2x3x4x5:f32:s{far}x20x5x1 w=3x2x3x3 size=6x7 -> dx=2x2x6x7:f32:s{far}x42x7x1"),
    (NHWC, "conv_fprop x=2x3x6x7:f32:s{far}x1x21x3 w=4x3x3x2 -> y=2x4x4x6:f32:s{far}x1x24x4"),
    (POINT, "conv_fprop x=2x3x6x7:f32:s{far}x42x7x1 w=4x3x1x1 stride=2 -> y=2x4x3x4:f32:s{far}x12x4x1"),
], ids=lambda p: getattr(p, "name", ""))  # fmt: skip
def test_offsets_past_two_to_the_31(engine, line, device):
    graph = Graph.parse(line.format(far=FAR))
    assert engine.why_not(graph, device) is None
    values = fill(graph, "exact")
    arrays = {t.name: far_array(t) for t in (*graph.inputs, *graph.outputs)}
    for name, value in values.items():
        arrays[name][...] = value
    run_program(engine.compile(graph, engine.default(graph, device), device), arrays, 2)
    for name, want in evaluate(graph, values).items():
        assert np.array_equal(arrays[name], want)


def far_array(t):
    """An array of the tensor's strides in memory of which only the pages touched exist."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE of Linux
    flat = np.frombuffer(mmap.mmap(-1, t.span * 4, flags), np.float32)
    return np.lib.stride_tricks.as_strided(flat, t.dim, [4 * s for s in t.stride])


def test_new_sizes_need_no_new_kernel():
    device = FAKE["avx512"]
    names = set()
    for n in range(20):
        for line in (f"conv_fprop x={1 + n % 3}x{16 + n}x{20 + n}x{30 - n} w=24x{16 + n}x3x3 pad=1",
                     f"conv_fprop x={1 + n % 3}x{16 + n}x{20 + n}x{30 - n} w=24x{16 + n}x5x2 pad=2"):
            graph = Graph.parse(line)
            names.add(NCHW.compile(graph, NCHW.default(graph, device), device).address)
    assert len(names) == 1


def test_a_resnet_step_needs_few_kernels():
    device, kernels = FAKE["avx512"], set()
    for problem in problems("resnet_50", layouts=("nchw",), passes=("fwd", "dgrad")):
        engine = next(e for e in (POINT, NCHW) if e.why_not(problem.graph, device) is None)
        program = engine.compile(problem.graph, engine.default(problem.graph, device), device)
        kernels.add(program.address)
    assert len(kernels) <= 8


def test_avx2_tiles_stay_in_registers():
    plain = {"dtype": "f32", "bias": False, "relu": False}
    for build, constants in (
        (conv_nchw.conv_planes, {"rows": 6, "vectors": 2, "in_step": 1, "out_step": 1}),
        (conv_nhwc.conv_pixels, {"run": 3, "c_block": 32}),
        (conv_pointwise.conv_points, {"rows": 4, "in_step": 1, "out_step": 1}),
    ):
        fmas, spilt = jit.spills(jit.generate(build, isas.AVX2, **plain, **constants), isas.AVX2)
        assert fmas >= 12
        assert spilt == 0


@pytest.mark.parametrize("isa", [isas.AVX512], ids=str)
@pytest.mark.parametrize(("build", "constants"), [
    (conv_nchw.conv_planes, {"dtype": "f32", "rows": 8, "vectors": 3, "in_step": 1, "out_step": 1}),
    (conv_nchw.conv_planes, {"dtype": "f32", "rows": 8, "vectors": 3, "in_step": 2, "out_step": 2}),
    (conv_nchw.conv_planes, {"dtype": "bf16", "rows": 8, "vectors": 3, "in_step": 1, "out_step": 2}),
    (conv_nhwc.conv_pixels, {"dtype": "f32", "run": 7, "c_block": 32}),
    (conv_nhwc.conv_pixels, {"dtype": "f16", "run": 7, "c_block": 128}),
    (conv_pointwise.conv_points, {"dtype": "f32", "rows": 8, "in_step": 1, "out_step": 1}),
    (conv_pointwise.conv_points, {"dtype": "f16", "rows": 8, "in_step": 2, "out_step": 1}),
], ids=lambda p: getattr(p, "__name__", ""))  # fmt: skip
def test_inner_loops_stay_in_registers(build, constants, isa):
    for extras in ({"bias": False, "relu": False}, {"bias": True, "relu": True}):
        fmas, spilt = jit.spills(jit.generate(build, isa, **constants, **extras), isa)
        assert fmas >= 24
        assert spilt == 0


@pytest.mark.parametrize(("line", "words"), [
    ("conv_fprop x=1x2x5x5x5x5 w=3x2x3x3x3x3", "spatial"),
    ("conv_fprop x=1x2x5x5 w=3x2x3x3 -> a; bias a b=3 -> c; mul c b:d=1x3x3x3 -> y", "mul"),
    ("conv_fprop x=1x2x5x5 w=3x2x3x3 -> a!; relu a -> y", "not just"),
    ("conv_fprop x=1x2x5x5 w=3x2x3x3 -> a; relu a negative_slope=0.1 -> y", "slope"),
    ("relu x=4", "begins with relu"),
])  # fmt: skip
def test_refusals_are_sentences(line, words):
    for engine in (NCHW, NHWC, POINT):
        why = engine.why_not(Graph.parse(line), FAKE["avx512"])
        assert why is not None
        assert words in why


@pytest.mark.parametrize(("line", "words"), [
    ("conv_fprop x=1x2x5x5:f64:nhwc w=3x2x3x3:f64", "f64"),
    ("conv_fprop x=1x2x5x5x5:f32:nhwc w=3x2x3x3x3", "spatial"),
    ("conv_fprop x=1x1x4x1x4099:f64 w=3x1x3x1x3:f64", "f64"),
])  # fmt: skip
def test_what_planes_alone_take(line, words):
    graph = Graph.parse(line)
    assert NCHW.why_not(graph, FAKE["avx512"]) is None
    for engine in (NHWC, POINT):
        assert words in engine.why_not(graph, FAKE["avx512"])


def test_taps_of_both_directions_are_each_others_transpose():
    """Output i reads source s by tap r in fprop exactly if dgrad's output s reads source i by that tap."""
    every = itertools.product((1, 7, 12), (1, 3, 4), (0, 1, 3), (1, 2, 3), (1, 2))
    for size, taps, pad, stride, dilation in every:
        out = (size + 2 * pad - dilation * (taps - 1) - 1) // stride + 1
        if out < 1:
            continue
        fprop = Axis.of("fprop", size, out, taps, pad, stride, dilation)
        dgrad = Axis.of("dgrad", out, size, taps, pad, stride, dilation)
        assert pairs(fprop) == {(b, a, r) for a, b, r in pairs(dgrad)}


def pairs(axis):
    """(output, source, tap) of every product inside the image."""
    return {
        (i * axis.out_step + a, i * axis.in_step + offset, tap)
        for a, phase in enumerate(axis.phases)
        for tap, offset in phase
        for i in range(axis.count)
        if 0 <= i * axis.in_step + offset < axis.source and i * axis.out_step + a < axis.size
    }


def test_taps_stay_inside_the_packed_planes():
    for line in LINES:
        g = parse(Graph.parse(line.format("")))
        assert not isinstance(g, str)
        c = Conv.of(g)
        for band, images in ((1, 1), (4, 2), (c.rows.count, 3)):
            planes = Planes.of(c, band, images, 16)
            room = planes.plane * len(c.rows.planes) * len(c.cols.planes)
            last = (band - 1) * planes.pitch + (images - 1) * planes.width + c.cols.count - 1
            for phase in planes.taps(c):
                for at, _ in phase:
                    assert at >= 0
                    assert at + last < room
