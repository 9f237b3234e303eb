"""The register-tile product: right in both orientations, and held in registers (golden counts)."""

from __future__ import annotations

import numpy as np
import pytest

from guarded import copy, empty
from vlug.codegen import jit, native
from vlug.codegen.ir import Kernel, maximum
from vlug.codegen.isa import ALL, AVX2, AVX512, NEON, runnable
from vlug.codegen.tile import product

#: (vectors, rows) of the largest tiles, by ISA: what engines build on.
GOLDEN = {
    "avx2": {1: 14, 2: 6, 3: 4},
    "avx512": {1: 14, 2: 14, 3: 8},
    "avx512_bf16": {1: 14, 2: 14, 3: 8},
    "amx": {1: 14, 2: 14, 3: 8},
    "neon": {1: 14, 2: 12, 3: 8},
}

ROW = 64  # a constant: run-time strides of rows in the inner loop spill (56 multiply-adds, 66 spills)


def pixels(k: Kernel, MR: int, NR: int, unroll: int = 1, dtype: str = "f32"):
    """y[m, p] = relu(sum over c of w[m, c] x[c, p]): weights broadcast, w packed [m/MR][c][MR]."""
    M, C, P = k.size("M", multiple=MR), k.size("C"), k.size("P")
    w, x = k.view(M // MR, C, MR, dtype=dtype), k.view(C, P, dtype=dtype)
    y = k.view(M, P, dtype=dtype)
    for m in k.parallel(M // MR):
        for p in k.vectors(P, by=NR, tail="switch"):
            acc = k.tile(MR, p)
            product(k, acc, (0, C), lambda i, c, m=m: w[m, c, i], lambda c, p=p: x[c, p], unroll)
            for i, a in enumerate(acc):
                y[m * MR + i, p] = maximum(a, 0.0)


def channels(k: Kernel, MR: int, NR: int, unroll: int = 1):
    """y[p, m] = sum over c of x[p, c] w[c, m]: pixels broadcast, vectors of channels; rows of x ROW apart."""
    M, C, P = k.size("M"), k.size("C"), k.size("P", multiple=MR)
    x, w, y = k.view(P, C, strides=[ROW, 1]), k.view(C, M), k.view(P, M)
    for p in k.parallel(P // MR):
        for m in k.vectors(M, by=NR, tail="switch"):
            acc = k.tile(MR, m)
            product(k, acc, (0, C), lambda i, c, p=p: x[p * MR + i, c], lambda c, m=m: w[c, m], unroll)
            for i, a in enumerate(acc):
                y[p * MR + i, m] = a


def call(build, isa, arrays, values, **constants):
    native.call(jit.compiled(build, isa, **constants), [a.ctypes.data for a in arrays], values)


def integers(*shape):
    """Small integers: sums are exact in fp32, so that the result must be equal."""
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize("isa", list(ALL.values()), ids=str)
def test_tile_shapes_follow_from_the_registers(isa):
    assert {nr: isa.tile_rows(nr) for nr in (1, 2, 3)} == GOLDEN[isa.name]


@pytest.mark.isa
@pytest.mark.parametrize("isa", runnable(), ids=str)
@pytest.mark.parametrize("NR", [1, 2, 3])
@pytest.mark.parametrize("unroll", [1, 4])
def test_products_are_exact(isa, NR, unroll):
    MR, V = isa.tile_rows(NR), isa.lanes
    for C in (0, 1, 3, 8, 13):
        for P in (1, V - 1, V, NR * V, NR * V + 1, 3 * NR * V - 3):
            w, x, y = integers(3 * MR, C), integers(C, P), empty((3 * MR, P), np.float32)
            packed = copy(w.reshape(3, MR, C).transpose(0, 2, 1))
            call(pixels, isa, [packed, copy(x), y], {"M": 3 * MR, "C": C, "P": P},
                 MR=MR, NR=NR, unroll=unroll)
            np.testing.assert_array_equal(y, np.maximum(w.astype("d") @ x, 0))
            xt, wt, y = integers(2 * MR, ROW), integers(C, P), empty((2 * MR, P), np.float32)
            call(channels, isa, [xt, copy(wt), y], {"M": P, "C": C, "P": 2 * MR},
                 MR=MR, NR=NR, unroll=unroll)
            np.testing.assert_array_equal(y, xt[:, :C].astype("d") @ wt)


@pytest.mark.isa
@pytest.mark.parametrize("isa", runnable(), ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_narrow_types_accumulate_in_fp32(isa, dtype):
    from vlug.dtypes import dtype as of

    t, MR, C, P = of(dtype).numpy, isa.tile_rows(2), 300, 37
    w, x, y = integers(MR, C), integers(C, P), empty((MR, P), t)
    packed = copy(w.T.astype(t))
    call(pixels, isa, [packed, copy(x.astype(t)), y], {"M": MR, "C": C, "P": P}, MR=MR, NR=2, dtype=dtype)
    np.testing.assert_array_equal(y, np.maximum(w @ x, 0).astype(t))


@pytest.mark.parametrize("isa", [AVX2, AVX512, NEON], ids=str)
@pytest.mark.parametrize("NR", [1, 2, 3])
@pytest.mark.parametrize("build", [pixels, channels])
def test_the_inner_loop_stays_in_registers(isa, NR, build):
    MR = isa.tile_rows(NR)
    assert jit.spills(jit.generate(build, isa, MR=MR, NR=NR), isa) == (MR * NR, 0)


@pytest.mark.parametrize("isa", [AVX2, AVX512, NEON], ids=str)
@pytest.mark.parametrize("NR", [2, 3])
def test_two_steps_unrolled_stay_in_registers_too(isa, NR):
    MR = isa.tile_rows(NR)
    assert jit.spills(jit.generate(pixels, isa, MR=MR, NR=NR, unroll=2), isa) == (MR * NR * 2, 0)


def quick_pixels(k: Kernel, MR: int, NR: int):
    k.quick = True
    pixels(k, MR, NR)


@pytest.mark.isa
@pytest.mark.parametrize("isa", runnable(), ids=str)
def test_a_quick_kernel_computes_the_same(isa):
    MR, C, P = isa.tile_rows(2), 13, 77
    w, x = integers(1, C, MR), integers(C, P)
    results = [empty((MR, P), np.float32) for _ in range(2)]
    for build, y in zip((pixels, quick_pixels), results, strict=True):
        call(build, isa, [w, x, y], {"M": MR, "C": C, "P": P}, MR=MR, NR=2)
    np.testing.assert_array_equal(*results)
    plain, quick = (jit.generate(b, isa, MR=MR, NR=2) for b in (pixels, quick_pixels))
    before = jit.emit(plain, isa)
    assert jit.emit(quick, isa) != before
    assert jit.emit(plain, isa) == before  # the option is back
    assert jit.spills(quick, isa) == (MR * 2, 0)


@pytest.mark.parametrize("isa", [AVX2, AVX512], ids=str)
def test_the_spill_check_sees_a_tile_that_is_too_large(isa):
    k = jit.generate(pixels, isa, MR=isa.registers // 2, NR=3)
    fmas, spilt = jit.spills(k, isa)
    assert fmas == isa.registers // 2 * 3
    assert spilt > 4
