"""Known faults of convolutions, those of slow paths and of one and three dimensions; see also test_faults."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

import vlug
from vlug.engines import engine
from vlug.engines.reference import evaluate
from vlug.graph import Graph
from vlug.plan import plan
from vlug.runtime.device import FAKE, host
from vlug.testing import fill, run_program

FAR = (1 << 30) + 5  # elements: two steps pass 2^31


def far_array(t):
    """An array of the tensor's strides in memory of which only the pages touched exist."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE of Linux
    flat = np.frombuffer(mmap.mmap(-1, t.span * 4, flags), np.float32)
    return np.lib.stride_tricks.as_strided(flat, t.dim, [4 * s for s in t.stride])


@pytest.mark.parametrize("line", [
    "conv_fprop x=3x2x4x4x5:f32:s{far}x80x20x5x1 w=3x2x3x3x3 pad=1 -> y=3x3x4x4x5:f32:s{far}x80x20x5x1",
    "conv_fprop x=1x2x3x4x5:f32:s300x100x{far}x5x1 w=3x2x3x3x3 pad=1 -> y=1x3x3x4x5:f32:s300x100x{far}x5x1",
    "conv_dgrad dy=3x2x9:f32:s{far}x9x1 w=2x3x3 pad=1 size=9 -> dx=3x3x9:f32:s{far}x9x1",
    "conv_wgrad dy=1x3x3x4x5:f32:s300x100x{far}x5x1 x=1x2x3x4x5:f32:s300x100x{far}x5x1 pad=1 size=3",
])  # fmt: skip
def test_a1_e17_offsets_past_2_31_in_one_and_three_dimensions(line):
    graph = Graph.parse(line.format(far=FAR))
    values = fill(graph, "exact")
    arrays = {t.name: far_array(t) for t in (*graph.inputs, *graph.outputs)}
    for name, value in values.items():
        arrays[name][...] = value
    run_program(_program(graph), arrays, 2)
    for name, want in evaluate(graph, values).items():
        assert np.array_equal(arrays[name], want)


def _program(graph):
    e = engine(plan(graph, allow_reference=False).engine)
    return e.compile(graph, e.default(graph, host()), host())


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a11_stride_larger_than_the_kernel(rank):
    dy, w = np.ones((2, 3, *(3,) * rank), np.float32), np.ones((3, 2, *(1,) * rank), np.float32)
    dx = vlug.conv_transpose1d if rank == 1 else vlug.conv_transpose2d if rank == 2 else vlug.conv_transpose3d
    got = dx(dy, w, stride=2, output_padding=1)
    want = np.zeros((2, 2, *(6,) * rank))
    want[(..., *(slice(None, None, 2),) * rank)] = 3
    assert np.array_equal(got, want)


@pytest.mark.parametrize("groups", [1, 2])
def test_e5_groups_of_transposed_convolutions_are_concatenated(groups):
    x, w = np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1), np.ones((8, 4, 1, 1), np.float32)
    got = vlug.conv_transpose2d(x, w, groups=groups).ravel()
    want = [28] * 4 if groups == 1 else [6] * 4 + [22] * 4
    assert got.tolist() == want


def test_e7_output_padding_is_served_by_the_same_engine():
    lines = [f"conv_dgrad dy=4x128x6x6 w=128x64x3x3 stride=2 pad=1 size={n}x{n}" for n in (11, 12)]
    kernels = [plan(line, device=FAKE["avx512"], allow_reference=False) for line in lines]
    assert kernels[0].engine == kernels[1].engine
    work = [p.workspace_size(2) for p in kernels]
    assert work[1] < 1.5 * work[0]


def test_e9_dilation_is_served_by_the_same_program():
    """A tap is an offset, dilated or not: one object serves all, and does as many operations."""
    device, found = FAKE["avx512"], set()
    for d in (1, 2, 3):
        for line in (f"conv_fprop x=1x256x80x45 w=256x256x3x3 pad={d} dilation={d}",
                     f"conv_fprop x=1x64x4000 w=64x64x3 pad={d * 64} dilation={d * 64}"):
            graph = Graph.parse(line)
            e = engine("cpu.conv_nchw")
            found.add((graph.inputs[0].rank, e.compile(graph, e.default(graph, device), device).address))
    assert len(found) == 2


@pytest.mark.perf
def test_e7_e9_no_slow_path_by_the_clock():
    import time

    def seconds(line):
        graph = Graph.parse(line)
        p = plan(graph, allow_reference=False)
        arrays = {t.name: np.ones(t.dim, np.float32) for t in (*graph.inputs, *graph.outputs)}
        best = 1e9
        for _ in range(7):
            start = time.perf_counter()
            p.execute(arrays)
            best = min(best, time.perf_counter() - start)
        return best

    direct = "conv_fprop x=1x256x80x45 w=64x256x3x3 pad={0} dilation={0}"
    plain, *dilated = (seconds(direct.format(d)) for d in (2, 3, 4))
    assert max(dilated) < 1.4 * plain
    a, b = (seconds(f"conv_dgrad dy=8x128x6x6 w=128x64x3x3 stride=2 pad=1 size={n}x{n}") for n in (11, 12))
    assert b < 1.6 * a  # a fifth more elements
