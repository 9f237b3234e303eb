"""Lanes and masks: positions, fewer lanes, single vectors, masks as values, int64 and f64 arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from guarded import copy, empty
from vlug.codegen import jit, native
from vlug.codegen.ir import Kernel, absolute, floor, fma, larger, select, smaller, sqrt
from vlug.codegen.isa import runnable

pytestmark = pytest.mark.isa
SIZES = (1, 5, 8, 16, 21, 64, 100)


@pytest.fixture(params=runnable(), ids=str)
def isa(request):
    return request.param


def call(build, isa, arrays, values=None, **constants):
    native.call(jit.compiled(build, isa, **constants), [a.ctypes.data for a in arrays], values or {})


def maxima_with_index(k: Kernel):
    """The largest value and its position in vectors, then over the lanes: as max pooling and argmax do."""
    M, N = k.size("M"), k.size("N")
    x, y, where = k.view(M, N), k.view(M), k.view(M, dtype="i64")
    for m in k.parallel(M):
        best, at = k.var(k.full(float("-inf"))), k.var(k.zeros(dtype="i64"))
        for n in k.vectors(N):
            v, i = x.load(m, n, other=float("-inf")), k.positions(n)
            new = v > best
            at.set(select(new, i, at))
            best.set(select(new, v, best))
        top = best.max()
        y[m] = top
        where[m] = select(best.eq(top), at, 1 << 40).min()


def test_positions_and_int64_variables(isa):
    for n in SIZES:
        x = copy(np.random.default_rng(n).standard_normal((7, n)).astype(np.float32))
        y, where = empty(7, np.float32), empty(7, np.int64)
        call(maxima_with_index, isa, [x, y, where], {"M": 7, "N": n})
        np.testing.assert_array_equal(y, x.max(1))
        np.testing.assert_array_equal(where, x.argmax(1))


def positions(k: Kernel, dtype="i64"):
    n, s = k.size("n"), k.size("s")
    y, z = k.view(n, dtype=dtype), k.view(n, dtype=dtype)
    for _ in k.parallel(1):
        for i in k.vectors(n, by=2):
            y[i] = k.positions(i + 3, dtype)
            z[i] = k.positions(i * s, dtype)


@pytest.mark.parametrize("dtype", ["i64", "i32"])
def test_positions_of_shifted_and_stepped_lanes(isa, dtype):
    t = np.dtype(dtype.replace("i", "int"))
    for n in SIZES:
        y, z = empty(n, t), empty(n, t)
        call(positions, isa, [y, z], {"n": n, "s": 7}, dtype=dtype)
        np.testing.assert_array_equal(y, np.arange(n) + 3)
        np.testing.assert_array_equal(z, np.arange(n) * 7)


def border(k: Kernel):
    """y[i] = x[i - 2] where that exists, else 0: lanes where a mask holds touch no other memory."""
    n = k.size("n")
    x, y = k.view(n), k.view(n)
    for _ in k.parallel(1):
        for i in k.vectors(n, by=2):
            there = k.positions(i) >= 2
            y[i] = x[(i - 2).where(there)]


def nothing(k: Kernel):
    """Rows outside [0, H) are read as zeros by a scalar condition."""
    H, W = k.size("H"), k.size("W")
    x, y = k.view(H, W), k.view(H + 2, W)
    for h in k.parallel(H + 2):
        row = h - 1
        inside = (row >= 0) & (row < H)
        for w in k.vectors(W, by=2):
            y[h, w] = x[row, w.where(inside)]


def test_lanes_where_a_condition_holds(isa):
    for n in SIZES:
        x, y = copy(np.arange(1, n + 1, dtype=np.float32), "start"), empty(n, np.float32)
        call(border, isa, [x, y], {"n": n})
        np.testing.assert_array_equal(y, np.concatenate([[0, 0], x])[:n])
        for at in ("start", "end"):
            x, y = copy(np.ones((3, n), np.float32), at), empty((5, n), np.float32, at)
            call(nothing, isa, [x, y], {"H": 3, "W": n})
            np.testing.assert_array_equal(y.sum(1), [0, n, n, n, 0])


def single(k: Kernel):
    """first(at, count) and parts of bundles: each vector of x turned by its number."""
    n, count = k.size("n", multiple=k.V * 3), k.size("count")
    x, y, z = k.view(n), k.view(n), k.view(count)
    for _ in k.parallel(1):
        for i in k.vectors(n, by=3):
            v = x[i]
            for j in range(3):
                y[i.part(j)] = v.part(j) * float(j)
        z[k.first(0, count)] = x[k.first(1, count)]
        x.prefetch(0)
        y.prefetch(n - 1, write=1, level=2)


def test_parts_and_first_lanes(isa):
    V = isa.lanes
    for count in (0, 1, V - 1, V):
        x, y, z = np.arange(3 * V, dtype=np.float32), empty(3 * V, np.float32), empty(count, np.float32)
        call(single, isa, [x, y, z], {"n": 3 * V, "count": count})
        np.testing.assert_array_equal(y.reshape(3, V), x.reshape(3, V) * [[0], [1], [2]])
        np.testing.assert_array_equal(z, x[1 : count + 1])


def masks(k: Kernel):
    """Masks as values: stored as bool, loaded, combined, turned into numbers."""
    n = k.size("n")
    x, m, y = k.view(n), k.view(n, dtype="bool"), k.view(n)
    for _ in k.parallel(1):
        for i in k.vectors(n, by=2):
            v = x[i]
            m[i] = (v > 0.5) | ((v < -0.5) & ~(v < -1.0)) | v.isnan()
        for i in k.vectors(n, by=2):
            y[i] = select(m[i], x[i], -9.0) + (m[i] ^ True).to("f32") * 0.25


def test_masks_are_values(isa):
    for n in SIZES:
        x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
        x[::7] = np.nan
        m, y = empty(n, np.bool_), empty(n, np.float32)
        call(masks, isa, [copy(x), m, y], {"n": n})
        with np.errstate(invalid="ignore"):
            expected = (x > 0.5) | ((x < -0.5) & ~(x < -1)) | np.isnan(x)
        np.testing.assert_array_equal(m, expected)
        np.testing.assert_array_equal(y, np.where(expected, x, -9) + ~expected * np.float32(0.25))


def doubles(k: Kernel):
    n = k.size("n")
    a = k.scalar("a", dtype="f64")
    x, y = k.view(n, dtype="f64"), k.view(n, dtype="f64")
    for _ in k.parallel(1):
        total = k.var(k.zeros(2, "f64"))
        for i in k.vectors(n, by=2):
            total += x[i]
        mean = total.sum() / k.to_float(n, "f64")
        for i in k.vectors(n, by=2):
            y[i] = sqrt(absolute(x[i] - mean)) * a


def test_double_precision(isa):
    for n in SIZES:
        x, y = np.random.default_rng(n).standard_normal(n), empty(n, np.float64)
        call(doubles, isa, [copy(x), y], {"n": n, "a": 1 / 3})
        np.testing.assert_allclose(y, np.sqrt(abs(x - x.mean())) / 3, rtol=1e-12, atol=1e-7)


def rounding(k: Kernel):
    n = k.size("n")
    x, low, one, big, small = (k.view(n) for _ in range(5))
    for _ in k.parallel(1):
        for i in k.vectors(n):
            v = x[i]
            low[i], one[i] = floor(v), fma(v, v, -v)
            big[i], small[i] = larger(v, 0.25), smaller(v, 0.25)


def test_one_instruction_functions(isa):
    x = np.array([-1.5, -0.0, 0.2, 0.25, 0.5, 2, np.inf, -np.inf, np.nan, 1e-40], np.float32)
    low, one, big, small = (empty(x.size, np.float32) for _ in range(4))
    call(rounding, isa, [copy(x), low, one, big, small], {"n": x.size})
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(low, np.floor(x))
        d = x.astype(np.float64)
        np.testing.assert_array_equal(one, (d * d - d).astype(np.float32))
    np.testing.assert_array_equal(big, np.fmax(x, np.float32(0.25)))  # NaN gives the second
    np.testing.assert_array_equal(small, np.fmin(x, np.float32(0.25)))


def repeated(k: Kernel, dtype="f32"):
    """Stride 0 along the lanes: a broadcast operand."""
    n, s = k.size("n"), k.size("s")
    x, b, c = k.view(n, dtype=dtype), k.view(n, strides=[0], dtype=dtype), k.view(n, strides=[s], dtype=dtype)
    y = k.view(n, dtype=dtype)
    for _ in k.parallel(1):
        for i in k.vectors(n, by=2, tail="switch"):
            y[i] = x[i] + b[i] * c[i]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_stride_zero(isa, dtype):
    from vlug.dtypes import dtype as of

    t = of(dtype).numpy
    for n in SIZES:
        x, b, c = copy(np.arange(n).astype(t)), copy(np.array([2]).astype(t)), copy(np.array([3]).astype(t))
        y = empty(n, t)
        call(repeated, isa, [x, b, c, y], {"n": n, "s": 0}, dtype=dtype)
        np.testing.assert_array_equal(y, (np.arange(n) + 6).astype(t))
