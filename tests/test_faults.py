"""Known faults of libraries of this kind, each as a small case with its right value.

The letters are those of the list of public reports that the cases retell: A refusals, B empty and degenerate
shapes, D normalisation, E convolution, F pooling, H plans and workspaces. vlug's own warnings are errors
here, so a case that no fast engine takes fails too.
"""

from __future__ import annotations

import itertools
import mmap
import os
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import vlug
from vlug.errors import ShapeError
from vlug.graph import Graph
from vlug.plan import plan
from vlug.testing import Case, run_program

FAR = (1 << 30) + 5  # elements: two steps pass 2^31


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return rng(seed).standard_normal(shape).astype(np.float32)


def ints(*shape: int, seed: int = 0) -> np.ndarray:
    return rng(seed).integers(-3, 4, shape).astype(np.float32)


def reference(line: str, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    """All tensors of a problem by the operations' definitions in float64."""
    known = {n: a.astype(np.float64) if a.dtype.kind != "i" else a for n, a in inputs.items()}
    for node in Graph.parse(line):
        outs = node.op.reference(*(None if n is None else known[n] for n in node.inputs))
        known.update((n, a) for n, a in zip(node.outputs, outs) if n is not None)
    return known


def dims(a: np.ndarray) -> str:
    return "x".join(map(str, a.shape))


def sparse(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """An array spread over far more address space than memory: only pages that are touched exist."""
    size = np.dtype(dtype).itemsize
    span = 1 + sum((d - 1) * s for d, s in zip(shape, strides))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    try:
        memory = mmap.mmap(-1, span * size, flags)
    except OSError:
        pytest.skip("the system lends no sparse address space")
    flat = np.frombuffer(memory, dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, [s * size for s in strides])


# --- A, E17, D9: element offsets past 2^31 ---
def test_a1_e17_convolution_with_offsets_past_2_31() -> None:
    for batch, channel in ((FAR, 16), (100, FAR)):
        x = sparse((3, 2, 4, 4), (batch, channel, 4, 1)) if batch == FAR else None
        if x is None:
            x = sparse((3, 3, 4, 4), (batch, channel, 4, 1))
        x[...] = ints(*x.shape)
        w = ints(5, x.shape[1], 3, 3, seed=1)
        out = sparse((3, 5, 2, 2), (FAR, 4, 2, 1))
        vlug.conv2d(x, w, out=out)
        want = reference(f"conv_fprop x={dims(x)} w={dims(w)}", x=x, w=w)["y"]
        assert np.array_equal(out, want)
        dy = sparse((3, 5, 2, 2), (FAR, 4, 2, 1))
        dy[...] = ints(*dy.shape, seed=2)
        dx, dw, db = vlug.conv2d_backward(dy, x, w)
        line = f"conv_dgrad dy={dims(dy)} w={dims(w)} size=4"
        assert np.array_equal(dx, reference(line, dy=dy, w=w)["dx"])
        line = f"conv_wgrad dy={dims(dy)} x={dims(x)} size=3"
        assert np.array_equal(dw, reference(line, dy=dy, x=x)["dw"])
        assert np.array_equal(db, dy.sum((0, 2, 3)))


def test_d9_rows_past_2_31() -> None:
    x, y = (sparse((3, 40), (FAR, 1)) for _ in range(2))
    x[...] = data(3, 40)
    vlug.relu(x, out=y)
    assert np.array_equal(y, np.maximum(x, 0))
    vlug.add(x, np.ones((3, 40), np.float32), out=y)
    assert np.array_equal(y, x + 1)
    np.testing.assert_allclose(vlug.sum(x, 1), x.sum(1), rtol=1e-5)
    e = np.exp(x - x.max(1, keepdims=True))
    vlug.softmax(x, out=y)
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(vlug.matmul(x, data(40, 5)), x @ data(40, 5), rtol=1e-4, atol=1e-5)


def test_pooling_and_norms_with_offsets_past_2_31() -> None:
    x = sparse((3, 5, 4, 4), (FAR, 16, 4, 1))
    x[...] = data(3, 5, 4, 4)
    assert np.array_equal(vlug.max_pool2d(x, 2), x.reshape(3, 5, 2, 2, 2, 2).max((3, 5)))
    y, mean, _ = vlug.batch_norm_training(x)
    np.testing.assert_allclose(mean, x.mean((0, 2, 3)), rtol=1e-4, atol=1e-6)
    want = (x - x.mean((0, 2, 3), keepdims=True)) / np.sqrt(x.var((0, 2, 3), keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def test_a3_backward_of_1x1_on_1x1_planes() -> None:
    x, w, dy = ints(4, 2048, 1, 1), ints(256, 2048, 1, 1, seed=1), ints(4, 256, 1, 1, seed=2)
    dx, dw, _ = vlug.conv2d_backward(dy, x, w)
    assert np.array_equal(dx[..., 0, 0], dy[..., 0, 0] @ w[..., 0, 0])
    assert np.array_equal(dw[..., 0, 0], dy[..., 0, 0].T @ x[..., 0, 0])


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a5_batch_norm_of_35_channels(kind: Any, layout: str) -> None:
    x = data(4, 35, 6, 3).astype(kind)
    if layout == "nhwc":
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    scale, bias = data(35, seed=1), data(35, seed=2)
    y, mean, inv_std = vlug.batch_norm_training(x, scale, bias)
    want = reference(f"batchnorm x={dims(x)} scale=35 bias=35", x=x, scale=scale, bias=bias)
    assert y.dtype == kind
    tol = {2: 2e-2, 4: 1e-5}[np.dtype(kind).itemsize]
    np.testing.assert_allclose(y.astype(np.float64), want["y"], rtol=tol, atol=tol)
    np.testing.assert_allclose(mean, want["mean"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(inv_std, want["inv_std"], rtol=1e-4)
    y = vlug.batch_norm(x, want["mean"].astype(np.float32), 1 / want["inv_std"].astype(np.float32) ** 2)
    assert np.isfinite(y.astype(np.float32)).all()


def test_a11_stride_larger_than_the_kernel_leaves_zeros() -> None:
    x, w, dy = ints(2, 3, 8, 8), ints(16, 3, 1, 1, seed=1), ints(2, 16, 4, 4, seed=2)
    dx, dw, _ = vlug.conv2d_backward(dy, x, w, stride=2)
    want = np.zeros((2, 3, 8, 8))
    want[:, :, ::2, ::2] = np.einsum("nkpq,kc->ncpq", dy, w[:, :, 0, 0])
    assert np.array_equal(dx, want)
    assert np.array_equal(dw[:, :, 0, 0], np.einsum("nkpq,ncpq->kc", dy, x[:, :, ::2, ::2]))


# --- B: empty and degenerate shapes ---
def test_b1_convolution_of_an_empty_batch() -> None:
    x, w = data(0, 3, 3, 3), data(3, 3, 3, 3)
    y = vlug.conv2d(x, w, data(3))
    assert y.shape == (0, 3, 1, 1)
    dx, dw, db = vlug.conv2d_backward(y, x, w)
    assert dx.shape == (0, 3, 3, 3)
    assert dw.shape == w.shape
    assert not dw.any()
    assert db.shape == (3,)
    assert not db.any()


def test_b1_convolution_without_channels() -> None:
    assert not vlug.conv2d(data(2, 0, 4, 4), data(5, 0, 3, 3)).any()
    assert vlug.conv2d(data(2, 3, 4, 4), data(0, 3, 3, 3)).shape == (2, 0, 2, 2)
    dx, dw, db = vlug.conv2d_backward(data(2, 5, 2, 2), data(2, 0, 4, 4), data(5, 0, 3, 3))
    assert (dx.shape, dw.shape, db.shape) == ((2, 0, 4, 4), (5, 0, 3, 3), (5,))
    dx, dw, db = vlug.conv2d_backward(data(2, 0, 2, 2), data(2, 3, 4, 4), data(0, 3, 3, 3))
    assert not dx.any()
    assert (dx.shape, dw.shape, db.shape) == ((2, 3, 4, 4), (0, 3, 3, 3), (0,))
    bias = data(5)
    assert np.array_equal(vlug.conv2d(data(2, 0, 3, 3), data(5, 0, 3, 3), bias)[0, :, 0, 0], bias)


def test_b3_batch_norm_of_an_empty_batch_leaves_running_statistics() -> None:
    mean, var = data(5), np.abs(data(5)) + 1
    before = mean.copy(), var.copy()
    y, _, _ = vlug.batch_norm_training(data(0, 5, 9), data(5), data(5), mean, var)
    assert y.shape == (0, 5, 9)
    assert np.array_equal(mean, before[0])
    assert np.array_equal(var, before[1])
    dx, dscale, dbias = vlug.batch_norm_backward(y, data(0, 5, 9), data(5), data(5), data(5))
    assert dx.shape == (0, 5, 9)
    assert not dscale.any()
    assert not dbias.any()


def test_b9_all_dims_equal() -> None:
    x = data(8, 8, 8, 8)
    y, _, _ = vlug.batch_norm_training(x)
    want = reference("batchnorm x=8x8x8x8", x=x)["y"]
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)
    w = ints(8, 8, 8, 8)
    assert np.array_equal(
        vlug.conv2d(ints(8, 8, 8, 8, seed=1), w),
        reference("conv_fprop x=8x8x8x8 w=8x8x8x8", x=ints(8, 8, 8, 8, seed=1), w=w)["y"],
    )


# --- D: normalisation ---
def test_d1_running_variance_is_unbiased_or_biased_as_asked() -> None:
    x = data(1, 6, 5)
    for unbiased, ratio in ((True, 1.25), (False, 1.0)):
        mean, var = np.zeros(6, np.float32), np.zeros(6, np.float32)
        y, _, _ = vlug.batch_norm_training(x, None, None, mean, var, momentum=1.0, unbiased=unbiased)
        np.testing.assert_allclose(var, x.var((0, 2)) * ratio, rtol=1e-5)
        np.testing.assert_allclose(y[0].var(1), 1, rtol=1e-4)  # the normalisation itself is biased in both


def test_d3_inv_std_is_the_inverse_standard_deviation() -> None:
    x = data(50, 1, 3)
    _, _, inv_std = vlug.batch_norm_training(x, eps=0.1)
    np.testing.assert_allclose(inv_std, 1 / np.sqrt(x.var() + 0.1), rtol=1e-5)


@pytest.mark.parametrize("shape", [(8, 3), (4, 3, 5, 5)])
def test_d5_large_values_do_not_overflow_the_variance(shape: tuple[int, ...]) -> None:
    x = (1e30 * rng().standard_normal(shape)).astype(np.float32)
    y, _, _ = vlug.batch_norm_training(x)
    want = reference(f"batchnorm x={dims(x)}", x=x)["y"]
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def test_batch_norm_of_a_large_mean_keeps_its_digits() -> None:
    x = (1e4 + rng().standard_normal((16, 4, 8, 8))).astype(np.float32)
    y, _, inv_std = vlug.batch_norm_training(x)
    want = reference(f"batchnorm x={dims(x)}", x=x)
    np.testing.assert_allclose(inv_std, want["inv_std"], rtol=1e-3)
    np.testing.assert_allclose(y, want["y"], atol=5e-3)


def test_d7_long_sums_are_not_naive() -> None:
    x = rng().random(1 << 23, np.float32)
    assert float(vlug.sum(x)) == pytest.approx(float(x.sum(dtype=np.float64)), rel=1e-5)
    assert float(vlug.mean(x.reshape(1 << 12, -1))) == pytest.approx(
        float(x.mean(dtype=np.float64)), rel=1e-5
    )
    rows = vlug.sum(x.reshape(8, -1), 1)
    np.testing.assert_allclose(rows, x.reshape(8, -1).sum(1, dtype=np.float64), rtol=1e-5)
    columns = vlug.sum(x.reshape(-1, 8), 0)
    np.testing.assert_allclose(columns, x.reshape(-1, 8).sum(0, dtype=np.float64), rtol=1e-5)


# --- E: convolution ---
@pytest.mark.parametrize(("size", "window", "stride"), [(4, 2, 1), (7, 4, 2), (8, 4, 2), (5, 2, 2)])
def test_e1_same_padding_of_even_kernels(size: int, window: int, stride: int) -> None:
    x, w = ints(2, 3, size, size), ints(4, 3, window, window, seed=1)
    out = -(-size // stride)
    total = max((out - 1) * stride + window - size, 0)
    pre, post = total // 2, total - total // 2
    tail = f"pad={pre} post={post} stride={stride}"
    y = vlug.conv2d(x, w, stride=stride, padding="same")
    assert y.shape == (2, 4, out, out)
    assert np.array_equal(y, reference(f"conv_fprop x={dims(x)} w={dims(w)} {tail}", x=x, w=w)["y"])
    dy = ints(*y.shape, seed=2)
    dx, dw, _ = vlug.conv2d_backward(dy, x, w, stride=stride, padding="same")
    line = f"conv_dgrad dy={dims(dy)} w={dims(w)} {tail} size={size}"
    assert np.array_equal(dx, reference(line, dy=dy, w=w)["dx"])
    line = f"conv_wgrad dy={dims(dy)} x={dims(x)} {tail} size={window}"
    assert np.array_equal(dw, reference(line, dy=dy, x=x)["dw"])


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_e3_a_2x2_convolution_of_ones_is_4(kind: Any) -> None:
    x = w = np.ones((1, 1, 2, 2), kind)
    assert vlug.conv2d(x, w).item() == 4
    dx, dw, _ = vlug.conv2d_backward(np.full((1, 1, 1, 1), 3, kind), x, w)
    assert (dx == 3).all()
    assert (dw == 3).all()


def test_e5_groups_of_a_transposed_convolution_are_concatenated() -> None:
    dy, w = ints(1, 8, 1, 1), ints(8, 4, 1, 1, seed=1)  # two groups of 4 → 4 channels each
    dx, _, _ = vlug.conv2d_backward(dy, ints(1, 8, 1, 1, seed=2), w, groups=2)
    want = np.concatenate([dy[0, :4, 0, 0] @ w[:4, :, 0, 0], dy[0, 4:, 0, 0] @ w[4:, :, 0, 0]])
    assert np.array_equal(dx[0, :, 0, 0], want)


@pytest.mark.parametrize(
    "tail",
    [
        "conv_fprop x=8x64x56x56{0} w=64x64x3x3{0} pad=1",
        "conv_dgrad dy=8x64x56x56{0} w=64x64x3x3{0} pad=1 size=56",
        "conv_wgrad dy=8x64x56x56{0} x=8x64x56x56{0} pad=1 size=3",
        "conv_fprop x=8x512x7x7{0} w=2048x512x1x1{0}",
        "conv_wgrad dy=8x2048x7x7{0} x=8x512x7x7{0} size=1",
    ],
)
def test_e11_workspace_is_bounded(tail: str) -> None:
    """No more than the tensors' own bytes in fp32 and 8 MiB a thread, for bf16 as for fp32."""
    wide, narrow = (plan(tail.format(k), allow_reference=False) for k in ("", ":bf16"))
    own = sum(t.numel * 4 for t in (*wide.graph.inputs, *wide.graph.outputs))
    for threads in (1, 2, 8):
        for p in (wide, narrow):
            assert p.workspace_size(threads) <= own + threads * (8 << 20)


def test_e13_strides_of_size_one_dimensions_mean_nothing() -> None:
    x, w = ints(2, 1, 5, 6), ints(3, 1, 3, 3, seed=1)
    want = vlug.conv2d(x, w)
    odd = np.lib.stride_tricks.as_strided(x, x.shape, (x.strides[0], 4 << 20, *x.strides[2:]))
    w_odd = np.lib.stride_tricks.as_strided(w, w.shape, (w.strides[0], 12, *w.strides[2:]))
    got = vlug.conv2d(odd, w_odd)
    assert np.array_equal(got, want)
    assert got.strides == want.strides
    column = data(9, 1)
    assert np.array_equal(
        vlug.relu(np.lib.stride_tricks.as_strided(column, (9, 1), (4, 400))), np.maximum(column, 0)
    )


def test_e15_long_kernels() -> None:
    x, w = ints(2, 1, 3, 40), ints(4, 1, 1, 41, seed=1)
    y = vlug.conv2d(x, w, padding=(0, 20))
    assert np.array_equal(y, reference(f"conv_fprop x={dims(x)} w={dims(w)} pad=0x20", x=x, w=w)["y"])
    dy = ints(*y.shape, seed=2)
    dx, dw, _ = vlug.conv2d_backward(dy, x, w, padding=(0, 20))
    line = f"conv_dgrad dy={dims(dy)} w={dims(w)} pad=0x20 size=3x40"
    assert np.array_equal(dx, reference(line, dy=dy, w=w)["dx"])
    line = f"conv_wgrad dy={dims(dy)} x={dims(x)} pad=0x20 size=1x41"
    assert np.array_equal(dw, reference(line, dy=dy, x=x)["dw"])


# --- F: pooling ---
def test_f1_ceil_mode_makes_no_window_outside() -> None:
    x = data(1, 1, 6, 7)
    assert vlug.max_pool2d(x, 1, stride=2, ceil=True).shape == (1, 1, 3, 4)
    y = vlug.max_pool2d(data(1, 2, 8, 10), 3, stride=4, ceil=True)
    assert y.shape == (1, 2, 2, 3)
    assert np.isfinite(y).all()
    assert np.isfinite(vlug.avg_pool2d(data(1, 2, 8, 10), 3, stride=4, ceil=True)).all()


def test_f3_padding_beyond_half_a_window_is_refused() -> None:
    for pool in (vlug.max_pool2d, vlug.avg_pool2d):
        with pytest.raises(ShapeError, match="pad 2 must be at most half the window's extent 2"):
            pool(data(1, 1, 2, 2), 2, padding=2)
    low = np.full((1, 1, 2, 2), -np.inf, np.float32)
    assert np.isneginf(vlug.max_pool2d(low, 2, padding=1)).all()


def test_f5_two_layouts_in_sequence() -> None:
    dy = data(4, 32, 1, 1)
    want = np.broadcast_to(dy / 1024, (4, 32, 32, 32))
    rows = np.empty((4, 32, 32, 32), np.float32)
    last = np.empty((4, 32, 32, 32), np.float32).transpose(0, 3, 1, 2)
    for out in (rows, last, rows, last):
        out[...] = np.nan
        vlug.avg_pool2d_backward(dy, (32, 32), 32, out=out)
        np.testing.assert_allclose(out, want, rtol=1e-6)
    x = ints(2, 3, 8, 8)
    x_last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    w = ints(4, 3, 3, 3, seed=1)
    for first, second in itertools.product((x, x_last), repeat=2):
        assert np.array_equal(vlug.conv2d(first, w), vlug.conv2d(second, w))


# --- H: plans and workspaces ---
def test_code_loads_wherever_memory_lies() -> None:
    """Big mappings between loads put sections of an object far apart: its offsets have 32 bits."""
    code = """
import mmap, random
from vlug.codegen import jit
from vlug.codegen.isa import base_isa
text = '@c = private constant [2 x double] [double 1.0, double 2.0]\\n' \\
    'define double @f(i64 %k) uwtable { %p = getelementptr [2 x double], ptr @c, i64 0, i64 %k\\n' \\
    '%v = load double, ptr %p\\nret double %v }'
r, kept, made = random.Random(1), [], jit._emit_text(text, base_isa())
for i in range(2000):
    jit.load(made, ['f'])
    size = r.choice([4096, 8192, 16384, 1 << 33])
    kept.append(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000))
    if r.random() < 0.5:
        kept.pop(r.randrange(len(kept))).close()
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr


def test_h1_new_sizes_compile_nothing_new() -> None:
    from vlug.codegen import jit

    def sizes(seed: int, count: int) -> None:
        r = rng(seed)
        for _ in range(count):
            h, w = (int(v) for v in r.integers(20, 90, 2))
            for tail in (
                f"conv_fprop x=2x16x{h}x{w} w=32x16x3x3 pad=1",
                f"conv_dgrad dy=2x32x{h}x{w} w=32x16x3x3 pad=1 size={h}x{w}",
                f"conv_wgrad dy=2x32x{h}x{w} x=2x16x{h}x{w} pad=1 size=3",
                f"max_pool x=2x16x{h}x{w} window=3 stride=2 pad=1",
                f"batchnorm x=2x16x{h}x{w} scale=16 bias=16",
                f"relu x=2x16x{h}x{w}",
            ):
                plan(tail, allow_reference=False)

    sizes(0, 8)
    before = len(jit._loaded)
    sizes(1, 20)
    assert len(jit._loaded) == before


@pytest.mark.parametrize(
    "line",
    [
        "conv_fprop x=2x17x9x13 w=19x17x3x3 pad=1",
        "conv_dgrad dy=2x19x9x13 w=19x17x3x3 pad=1 size=9x13",
        "conv_wgrad dy=2x19x9x13 x=2x17x9x13 pad=1 size=3",
        "batchnorm x=3x35x6x5 scale=35 bias=35",
        "reduction x=40x3000 axes=0",
    ],
)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_h5_workspace_as_large_as_the_query_says_is_enough(line: str, threads: int) -> None:
    p = plan(line, allow_reference=False)
    case = Case.of(p.graph, "exact")
    (step,) = p.steps
    assert p.workspace_size(threads) >= step.program.workspace_size(threads)  # type: ignore[union-attr]
    arrays = {t.name: case.inputs[t.name].astype(t.dtype.numpy) for t in p.graph.inputs}
    arrays |= {t.name: np.empty(t.dim, t.dtype.numpy) for t in p.graph.outputs}
    run_program(step.program, arrays, threads)  # a guard page ends the workspace
    for t in p.graph.outputs:
        np.testing.assert_allclose(arrays[t.name], case.expected[t.name], rtol=1e-4, atol=1e-5)
