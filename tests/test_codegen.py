"""The vocabulary: every construct, run under each ISA of the host, against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from guarded import copy, empty
from vlug.codegen import jit, native
from vlug.codegen.ir import Kernel, maximum, minimum, select, shuffle, transpose
from vlug.codegen.isa import ALL, AVX2, AVX512, NEON, runnable

ISAS = [pytest.param(i, id=i.name, marks=pytest.mark.isa) for i in runnable()]
NUMPY = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "f64": np.float64, "i64": np.int64,
         "i32": np.int32, "u8": np.uint8, "bool": np.bool_}
SIZES = (0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 257)


def call(build, isa, arrays, values=None, **constants):
    native.call(jit.compiled(build, isa, **constants), [a.ctypes.data for a in arrays], values or {})


@pytest.fixture(params=ISAS)
def isa(request):
    return request.param


def axpy(k: Kernel, by=2, tail="loop", dtype="f32"):
    n = k.size("n")
    a = k.scalar("a")
    x, y = k.view(n, dtype=dtype), k.view(n, dtype=dtype)
    for u in k.parallel(k.ceil_div(n, 96)):
        for i in k.vectors(u * 96, k.min((u + 1) * 96, n), by=by, tail=tail):
            y[i] = x[i] * a + 1.0


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("tail", ["loop", "switch"])
@pytest.mark.parametrize("by", [1, 3])
def test_pointwise_reads_and_writes_only_its_elements(isa, by, tail, dtype):
    for n in SIZES:
        for at in ("start", "end"):
            x = copy(np.random.default_rng(n).standard_normal(n).astype(NUMPY[dtype]), at)
            y = empty(n, NUMPY[dtype], at)
            call(axpy, isa, [x, y], {"n": n, "a": 0.5}, by=by, tail=tail, dtype=dtype)
            expected = (x.astype(np.float32) * np.float32(0.5) + 1).astype(NUMPY[dtype])
            np.testing.assert_array_equal(y.view(np.uint8), expected.view(np.uint8))


def convert(k: Kernel, src="f32", dst="bf16"):
    n = k.size("n")
    x, y = k.view(n, dtype=src), k.view(n, dtype=dst)
    for _ in k.parallel(1):
        for i in k.vectors(n, by=2):
            y[i] = x[i]


def interesting_floats():
    """Every exponent, mantissas near rounding ties, infinities, NaNs, denormals."""
    top = np.arange(1 << 16, dtype=np.uint32) << 16
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return np.ascontiguousarray((top[:, None] | low).reshape(-1).view(np.float32))


@pytest.mark.parametrize("dst", ["bf16", "f16"])
def test_stores_round_to_nearest_even_and_keep_nan(isa, dst):
    x = interesting_floats()
    y = empty(x.size, NUMPY[dst])
    call(convert, isa, [x, y], {"n": x.size}, src="f32", dst=dst)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(NUMPY[dst])
    nan = np.isnan(x)
    assert np.isnan(y[nan].astype(np.float32)).all()
    np.testing.assert_array_equal(y[~nan].view(np.uint16), expected[~nan].view(np.uint16))


@pytest.mark.parametrize("src", ["bf16", "f16"])
def test_loads_widen_every_value(isa, src):
    x = np.arange(1 << 16, dtype=np.uint16).view(NUMPY[src])
    y = empty(x.size, np.float32)
    call(convert, isa, [x, y], {"n": x.size}, src=src, dst="f32")
    np.testing.assert_array_equal(y, x.astype(np.float32))


@pytest.mark.parametrize(("src", "dst"), [("f32", "f64"), ("f64", "f32"), ("f32", "i64"), ("i64", "f32"),
                                          ("i32", "i64"), ("i64", "i32"), ("u8", "f32"), ("f32", "u8"),
                                          ("bool", "f32"), ("f32", "bool"), ("i64", "i64"), ("u8", "i64")])
def test_conversions(isa, src, dst):
    for n in (1, 19, 70):
        values = np.random.default_rng(3).integers(0, 100, n)
        x = copy((values % 2 if src == "bool" else values).astype(NUMPY[src]))
        y = empty(n, NUMPY[dst])
        call(convert, isa, [x, y], {"n": n}, src=src, dst=dst)
        np.testing.assert_array_equal(y, x.astype(NUMPY[dst]))


def strided(k: Kernel, step=0, out=1):
    n, s = k.size("n"), k.size("step") if step == 0 else step
    x, y = k.view(n, strides=[s]), k.view(n, strides=[out])
    for _ in k.parallel(1):
        for i in k.vectors(n, by=2, tail="switch"):
            y[i] = x[i]


@pytest.mark.parametrize("step", [0, 2, 3, -1, 5])
@pytest.mark.parametrize("out", [1, 3])
def test_strided_access(isa, step, out):
    """Run-time stride (0), shuffles (2), backwards, gathers, scatters; nothing past the last element."""
    for n in (1, 7, 16, 17, 40, 64):
        s = step or 4
        size = (n - 1) * abs(s) + 1
        values = np.random.default_rng(1).standard_normal(size).astype(np.float32)
        buf = copy(values, "end" if s > 0 else "start")
        x = buf[:: s] if s > 0 else buf[::-1]
        outer = empty((n - 1) * out + 1, np.float32)
        program = jit.compiled(strided, isa, step=step, out=out)
        native.call(program, [x.ctypes.data, outer.ctypes.data], {"n": n, "step": s})
        np.testing.assert_array_equal(outer[::out], x)
        assert np.isnan(np.delete(outer, np.arange(n) * out)).all()


def every_second(k: Kernel):
    """Lanes times 2: y[i] = x[2i + 1]."""
    n = k.size("n")
    x, y = k.view(2 * n), k.view(n)
    for _ in k.parallel(1):
        for i in k.vectors(n, by=2, tail="switch"):
            y[i] = x[i * 2 + 1]


def test_lanes_times_two(isa):
    for n in (1, 8, 16, 19, 64):
        x, y = copy(np.arange(2 * n, dtype=np.float32)), empty(n, np.float32)
        call(every_second, isa, [x, y], {"n": n})
        np.testing.assert_array_equal(y, x[1::2])


def argmax(k: Kernel):
    """Row maxima with NaN as torch has it, and the int64 index of the first."""
    M, N = k.size("M"), k.size("N")
    x, y, where = k.view(M, N), k.view(M), k.view(M, dtype="i64")
    for m in k.parallel(M):
        best, at = k.var(k.full(float("-inf")).lane(0)), k.var(k.to_int(0))
        for n in k.range(N):
            v = x[m, n]
            new = (v > best) | v.isnan()
            best.set(select(new, v, best))
            at.set(select(new, k.to_int(n), at))
        y[m], where[m] = best, at


def test_scalar_variables_and_int64(isa):
    x = np.random.default_rng(0).standard_normal((9, 33)).astype(np.float32)
    x[2, 5] = x[3, 0] = x[3, 32] = np.nan
    x[4] = np.inf
    y, where = empty(9, np.float32), empty(9, np.int64)
    call(argmax, isa, [x, y, where], {"M": 9, "N": 33})
    np.testing.assert_array_equal(y, x.max(1))
    assert where[2] == 5
    assert where[3] == 32  # torch keeps the last NaN
    keep = [0, 1, 4, 5, 6, 7, 8]
    np.testing.assert_array_equal(where[keep], x[keep].argmax(1))


def extremes(k: Kernel):
    n = k.size("n")
    a, b, top, low, relu = (k.view(n) for _ in range(5))
    for _ in k.parallel(1):
        for i in k.vectors(n):
            top[i], low[i], relu[i] = maximum(a[i], b[i]), minimum(a[i], b[i]), maximum(a[i], 0.0)


def test_maximum_and_minimum_keep_nan(isa):
    pool = np.array([np.nan, -np.inf, -1, -0.0, 0.0, 2, np.inf], np.float32)
    a, b = (np.ascontiguousarray(v.reshape(-1)) for v in np.meshgrid(pool, pool))
    out = [empty(a.size, np.float32) for _ in range(3)]
    call(extremes, isa, [a, b, *out], {"n": a.size})
    np.testing.assert_array_equal(out[0], np.maximum(a, b))
    np.testing.assert_array_equal(out[1], np.minimum(a, b))
    np.testing.assert_array_equal(out[2], np.maximum(a, 0))


def reductions(k: Kernel, by=4, tail="loop"):
    n = k.size("n")
    x, out = k.view(n), k.view(6)
    for _ in k.parallel(1):
        total, top = k.var(k.zeros(by)), k.var(k.full(float("-inf"), by))
        low = k.var(k.full(float("inf"), by))
        negative, all_small = k.var(k.zeros(1)), k.var(k.full(1.0))
        for i in k.vectors(n, by=by, tail=tail):
            total += x.load(i, other=0.0)
            top.imax(x.load(i, other=float("-inf")))
            low.imin(x.load(i, other=float("inf")))
            neg = (x.load(i, other=1.0) < 0.0).any()
            negative.set(select(neg, 1.0, negative))
            small = (x.load(i, other=0.0) < 100.0).all()
            all_small.set(select(small, all_small, 0.0))
        out[0], out[1], out[2] = total.sum(), top.max(), low.min()
        out[3], out[4] = negative.lane(0), all_small.lane(0)
        out[5] = k.to_float(n * 3 - 1)


@pytest.mark.parametrize("tail", ["loop", "switch"])
def test_reductions(isa, tail):
    for n in SIZES[1:]:
        x = copy(np.random.default_rng(n).integers(-50, 50, n).astype(np.float32))
        out = empty(6, np.float32)
        call(reductions, isa, [x, out], {"n": n}, tail=tail)
        assert out.tolist() == [x.sum(), x.max(), x.min(), float((x < 0).any()), 1.0, 3 * n - 1]
    x[0] = np.nan
    call(reductions, isa, [x, out], {"n": n}, tail=tail)
    assert np.isnan(out[:3]).all()


def branches(k: Kernel):
    """Conditions on integers and values; variables through branches; both known and unknown."""
    n = k.size("n")
    y = k.view(8)
    for _ in k.parallel(1):
        v = k.var(k.val(0.0))
        with k.when(n > 5):
            v.set(1.0)
        with k.unless(n > 5):
            v += 10.0
        y[0] = v
        for yes in k.either(n.eq(3)):
            v.set(2.0 if yes else 3.0)
        y[1] = v
        with k.when(False):
            v.set(99.0)
        y[2] = v
        with k.when(True):
            v += 1.0
        y[3] = v
        y[4] = k.to_float(k.choose(n < 4, n * 2, n - 1))
        y[5] = k.to_float(k.floor_div(n - 10, 4))
        y[6] = k.to_float(k.floor_div(n - 10, 3))
        y[7] = k.to_float(k.max(k.min(n, 4), 2))


def test_branches(isa):
    for n in (0, 1, 3, 5, 6, 10, 13):
        y = empty(8, np.float32)
        call(branches, isa, [y], {"n": n})
        b = 2.0 if n == 3 else 3.0
        expected = [1.0 if n > 5 else 10.0, b, b, b + 1, n * 2 if n < 4 else n - 1, (n - 10) // 4,
                    (n - 10) // 3, max(min(n, 4), 2)]
        assert y.tolist() == expected


def two_regions(k: Kernel):
    """Column sums over blocks of rows: parts write to shared workspace, a second region adds them up."""
    M, N, B = k.size("M"), k.size("N"), 4
    blocks = k.ceil_div(M, B)
    x, y = k.view(M, N), k.view(N)
    partial = k.shared(blocks, N)
    for b in k.parallel(blocks):
        row = k.scratch(N)
        for n in k.vectors(N):
            row[n] = 0.0
        for m in k.range(b * B, k.min(b * B + B, M)):
            for n in k.vectors(N):
                row[n] = row[n] + x[m, n]
        for n in k.vectors(N):
            partial[b, n] = row[n]
    for lo, hi in k.chunk(N):
        for n in k.vectors(lo, hi):
            s = k.var(k.zeros())
            for b in k.range(blocks):
                s += partial[b, n]
            y[n] = s


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_workspace_and_several_regions(isa, threads):
    from vlug import config

    with config.THREADS.using(threads):
        for M, N in ((1, 1), (3, 17), (21, 50), (40, 3)):
            x = np.random.default_rng(M).integers(-9, 9, (M, N)).astype(np.float32)
            y = empty(N, np.float32)
            call(two_regions, isa, [copy(x), y], {"M": M, "N": N})
            np.testing.assert_array_equal(y, x.sum(0))


def test_workspace_sizes_follow_from_the_arguments(isa):
    p = jit.compiled(two_regions, isa)
    values = {"M": 21, "N": 1000}
    assert p.shared_bytes(values) % 4096 == 0
    assert 6 * 1000 * 4 <= p.shared_bytes(values) <= 6 * 1000 * 4 + 8192
    assert 4000 <= p.part_bytes(values) <= 8192
    assert p.workspace_bytes(values, 3) == p.shared_bytes(values) + 3 * p.part_bytes(values)


def fails(k: Kernel):
    n = k.size("n")
    y = k.view(n)
    k.error_if(n > 100, 7)
    for i in k.parallel(n):
        k.error_if(k.compare("==", i, 50), 8)
        y[i] = 1.0


def test_error_codes(isa):
    from vlug.errors import ExecutionError

    y = np.zeros(101, np.float32)
    call(fails, isa, [y], {"n": 50})
    assert y.sum() == 50
    with pytest.raises(ExecutionError, match="code 8"):
        call(fails, isa, [y], {"n": 60})
    with pytest.raises(ExecutionError, match="code 7"):
        call(fails, isa, [y], {"n": 101})


def divisions(k: Kernel):
    a, b = k.size("a"), k.size("b")
    y = k.view(5)
    for _ in k.parallel(1):
        k.scratch(a // b + a % b)
        for i, v in enumerate((a // b, a % b, 7 // b, 7 % b, k.floor_div(0 - a, b))):
            y[i] = k.to_float(v)


def test_dividing_by_a_size_of_zero_is_no_trap(isa):
    for a, b in ((7, 2), (12, 5), (9, 0), (0, 0), (3, 100)):
        y, by = empty(5, np.float32), b or 1
        call(divisions, isa, [y], {"a": a, "b": b})
        assert y.tolist() == [a // by, a % by, 7 // by, 7 % by, -a // by]


def table(k: Kernel):
    """Taps by a table of int64 offsets: y[i] = sum over t of x[i + offsets[t]]."""
    n, T = k.size("n"), k.size("T")
    x, offsets, y = k.view(n), k.view(T, dtype="i64"), k.view(n)
    for _ in k.parallel(1):
        for i in k.vectors(n, by=2):
            s = k.var(k.zeros(len(i.masks)))
            for t in k.range(T):
                s += x[i + offsets[t].idx()]
            y[i] = s


def test_offset_table(isa):
    buf, off, n = np.arange(200, dtype=np.float32), np.array([0, 5, 40], np.int64), 77
    y = empty(n, np.float32)
    call(table, isa, [buf, off, y], {"n": n, "T": 3})
    np.testing.assert_array_equal(y, sum(buf[o : o + n] for o in off))


def square(k: Kernel):
    V = k.V
    x, y = k.view(V, V), k.view(V, V)
    lane = k.vector()
    for _ in k.parallel(1):
        for i, row in enumerate(transpose([x[r, lane] for r in range(V)])):
            y[i, lane] = shuffle(row, row, range(V - 1, -1, -1))


def test_transpose_and_shuffle(isa):
    V = isa.lanes
    x, y = np.random.default_rng(0).standard_normal((V, V)).astype(np.float32), empty((V, V), np.float32)
    call(square, isa, [copy(x), y])
    np.testing.assert_array_equal(y, x.T[:, ::-1])


def far(k: Kernel):
    """One element at a run-time offset beyond 2^31."""
    n = k.size("n")
    x, y = k.view(n, 2, strides=[k.size("stride"), 1], dtype="u8"), k.view(n)
    for i in k.parallel(n):
        y[i] = x[i, 1].to("f32")


def test_offsets_past_two_to_the_31(isa):
    import mmap

    stride = (1 << 31) + 4096
    m = mmap.mmap(-1, 2 * stride + 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # NORESERVE
    x = np.frombuffer(m, np.uint8)
    for i in range(3):
        x[i * stride + 1] = i + 5
    y = empty(3, np.float32)
    call(far, isa, [x, y], {"n": 3, "stride": stride})
    assert y.tolist() == [5, 6, 7]


def streamed(k: Kernel):
    n = k.size("n", multiple=k.V)
    x, y = k.view(n), k.view(n)
    for u in k.parallel(n // k.V):
        y.store(k.vector(u * k.V), x[k.vector(u * k.V)], stream=True)


def test_streaming_stores(isa):
    n = isa.lanes * 37
    x, y = np.arange(n, dtype=np.float32), empty(n, np.float32)
    call(streamed, isa, [x, y], {"n": n})
    np.testing.assert_array_equal(y, x)
    text = jit.assembly(jit.generate(streamed, isa), isa)
    assert "vmovntps" in text
    assert "sfence" in text


@pytest.mark.parametrize("isa", list(ALL.values()), ids=str)
def test_every_isa_is_emitted_on_any_host(isa):
    for build in (axpy, strided, argmax, two_regions, table, reductions, square, every_second):
        obj = jit.emit(jit.generate(build, isa), isa)
        assert obj[:4] == b"\x7fELF"
        machine = int.from_bytes(obj[18:20], "little")
        assert machine == (183 if isa is NEON else 62)


def test_no_instructions_beyond_the_isa():
    for build in (axpy, strided, argmax, two_regions, table, reductions, square, every_second):
        text = jit.assembly(jit.generate(build, AVX2), AVX2)
        assert "%ymm" in text or build is argmax
        assert "%zmm" not in text
        assert "%k1" not in text
        assert "%ymm16" not in text
        text = jit.assembly(jit.generate(build, AVX512), AVX512)
        assert "%zmm" in text or build is argmax


def test_misuse_is_refused():
    def leaves(k: Kernel):
        for i in k.range(k.size("n")):
            if i is not None:
                break

    def nested(k: Kernel):
        for _ in k.parallel(3):
            for _ in k.parallel(3):
                pass

    def escapes(k: Kernel):
        x, s = k.view(4), None
        for _ in k.parallel(1):
            s = x[0]
        x[0] = s

    def guesses(k: Kernel):
        t = k.view(1, dtype="i64")
        for _ in k.parallel(1):
            k.scratch(t[0].idx())

    def late(k: Kernel):
        for _ in k.range(k.size("n")):
            s = k.var(k.zeros())
        s += 1.0

    def outside(k: Kernel):
        s = k.var(k.zeros())
        for _ in k.parallel(3):
            s += 1.0

    wrong = ((late, "variable was set"), (outside, "variable was set"), (leaves, "break"), (nested, "nest"),
             (escapes, "outside"), (guesses, "follow from sizes"))
    for build, message in wrong:
        with pytest.raises((RuntimeError, ValueError), match=message):
            jit.generate(build, AVX2)
    with pytest.raises(IndexError, match="2 indices"):
        Kernel(AVX512).view(4).load(0, 0)
    with pytest.raises(ValueError, match="dtype 'f8'"):
        Kernel(AVX512).view(4, dtype="f8")
