"""vecmath against float64 over dense sweeps of all floats and at the edges, in ulp."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vlug.codegen import jit, native, vecmath
from vlug.codegen.ir import Kernel
from vlug.codegen.isa import runnable

erf64 = np.vectorize(math.erf)
F32_MAX = float(np.finfo(np.float32).max)

#: name → (float64 reference, largest error in ulp, as the docstrings say)
FUNCTIONS = {
    "exp": (np.exp, 1.0),
    "log": (np.log, 1.0),
    "tanh": (np.tanh, 2.0),
    "erf": (erf64, 2.0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 2.5),
}


def unary(k: Kernel, name="exp"):
    n = k.size("n")
    x, y = k.view(n), k.view(n)
    f = getattr(vecmath, name)
    for _ in k.parallel(1):
        for i in k.vectors(n):
            y[i] = f(x[i])


def scalar(k: Kernel, name="exp"):
    x, y = k.view(1), k.view(1)
    for _ in k.parallel(1):
        y[0] = getattr(vecmath, name)(x[0])


def run(isa, name, x, build=unary):
    y = np.full_like(x, -7)
    values = {} if build is scalar else {"n": x.size}
    native.call(jit.compiled(build, isa, name=name), [x.ctypes.data, y.ctypes.data], values)
    return y


def ulp_error(y, exact):
    """|y - exact| in units in the last place of the exact value; 0 where both are the same special value."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        unit = np.spacing(np.minimum(np.abs(rounded), F32_MAX).astype(np.float32)).astype(np.float64)
        error = np.abs(y.astype(np.float64) - exact) / unit
    same = (y == rounded) | (np.isnan(y) & np.isnan(rounded))
    return np.where(same, 0.0, np.where(np.isfinite(rounded) & np.isfinite(y), error, np.inf))


def sweep(count=1 << 21):
    """Floats evenly over all bit patterns, and densely where the functions change."""
    step = (1 << 32) // count
    everywhere = (np.arange(count, dtype=np.uint64) * step + 12345 % step).astype(np.uint32).view(np.float32)
    ranges = ((-105, -86), (86, 90), (-2, 2), (-20, 20), (0.5, 2), (-0.7, -0.5), (0.9, 1), (3, 5), (0, 1e-37))
    dense = [np.linspace(a, b, count // 16, dtype=np.float32) for a, b in ranges]
    return np.concatenate([everywhere, *dense])


@pytest.mark.isa
@pytest.mark.parametrize("isa", runnable(), ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_largest_error(isa, name):
    f, most = FUNCTIONS[name]
    x = sweep(1 << 18 if name == "erf" else 1 << 21)
    with np.errstate(all="ignore"):
        error = ulp_error(run(isa, name, x), f(x.astype(np.float64)))
    worst = int(error.argmax())
    assert error[worst] <= most, (name, float(x[worst]), float(error[worst]))


@pytest.mark.isa
@pytest.mark.parametrize("isa", runnable(), ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_edges(isa, name):
    f, most = FUNCTIONS[name]
    x = np.array(
        [
            np.nan,
            np.inf,
            -np.inf,
            0.0,
            -0.0,
            1e-45,
            -1e-45,
            1.17549435e-38,
            1.1754942e-38,
            F32_MAX,
            -F32_MAX,
            1,
            -1,
            88.72283,
            88.7229,
            -87.33655,
            -103.97,
            -103.98,
            -150,
            200,
        ],
        np.float32,
    )
    with np.errstate(all="ignore"):
        exact = f(x.astype(np.float64))
    y = run(isa, name, x)
    assert ulp_error(y, exact).max() <= most, (x, y, exact)
    if name in ("tanh", "erf"):
        assert np.signbit(y[4])
    for v, expected in zip(x[:12], y[:12], strict=True):
        one = run(isa, name, np.array([v], np.float32), scalar)
        np.testing.assert_array_equal(one[0], expected)


@pytest.mark.isa
@pytest.mark.parametrize("isa", runnable(), ids=str)
def test_activations(isa):
    x = np.linspace(-12, 12, 5001, dtype=np.float32)
    d = x.astype(np.float64)
    s = 1 / (1 + np.exp(-d))
    np.testing.assert_allclose(run(isa, "silu", x), d * s, rtol=1e-6, atol=1e-7)
    low = np.linspace(-112, -80, 1001, dtype=np.float32)  # e^x is denormal below -87.3, the product later
    want = low.astype(np.float64) * np.exp(low.astype(np.float64))
    np.testing.assert_allclose(run(isa, "silu", low), want, rtol=1e-6, atol=112 * 2.0**-149)
    np.testing.assert_allclose(run(isa, "softplus", x), np.log1p(np.exp(d)), rtol=1e-6, atol=1e-7)
    gelu = d / 2 * (1 + erf64(d / math.sqrt(2)))
    np.testing.assert_allclose(run(isa, "gelu", x), gelu, rtol=2e-6, atol=5e-7)
    assert run(isa, "softplus", np.array([200, -200, np.inf], np.float32)).tolist() == [200, 0, np.inf]


# --- f64 ---
def wide(k: Kernel, name="exp"):
    n = k.size("n")
    x, y = k.view(n, dtype="f64"), k.view(n, dtype="f64")
    for _ in k.parallel(1):
        for i in k.vectors(n):
            y[i] = getattr(vecmath, name)(x[i])


LOGS = np.concatenate([np.geomspace(5e-324, 1e308, 100_000), np.linspace(0.5, 2, 100_000), [1.0]])
EXPS = np.concatenate([np.linspace(-746, 709.78, 200_000), np.linspace(-1, 1, 50_000)])


@pytest.mark.isa
@pytest.mark.parametrize("isa", runnable(), ids=str)
@pytest.mark.parametrize(
    ("name", "x", "f"),
    [
        ("exp", EXPS, np.exp),
        ("log", LOGS, np.log),
        ("softplus", np.linspace(-700, 700, 100_000), lambda x: np.maximum(x, 0) + np.log1p(np.exp(-abs(x)))),
    ],
)
def test_f64(isa, name, x, f):
    y = run(isa, name, x, wide)
    exact = f(x.astype(np.longdouble))
    error = np.abs(y - exact) / np.spacing(np.abs(exact.astype(np.float64)))
    assert error.max() <= 2, float(x[error.argmax()])
    edges = np.array([np.nan, np.inf, -np.inf, 0.0, -1e300, 1e300, -746.0, 709.78, -1.0])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(run(isa, name, edges, wide), f(edges), rtol=1e-15)


# --- both types, two operands ---
def typed(k: Kernel, name="exp", dtype="f32", two=False):
    n = k.size("n")
    views = [k.view(n, dtype=dtype) for _ in range(2 + two)]
    f = getattr(vecmath, name)
    for _ in k.parallel(1):
        for i in k.vectors(n):
            views[-1][i] = f(*(v[i] for v in views[:-1]))


def apply(isa, name, *xs):
    y = np.full_like(xs[0], -7)
    dtype = "f64" if y.dtype == np.float64 else "f32"
    program = jit.compiled(typed, isa, name=name, dtype=dtype, two=len(xs) == 2)
    native.call(program, [a.ctypes.data for a in (*xs, y)], {"n": y.size})
    return y


def ulps(y, exact):
    """As ulp_error, of results of any type, from values of more bits."""
    top = np.finfo(y.dtype).max
    with np.errstate(all="ignore"):
        rounded = exact.astype(y.dtype)
        unit = np.spacing(np.minimum(np.abs(rounded), top)).astype(np.float64)
        error = (np.abs(y.astype(np.longdouble) - exact) / unit).astype(np.float64)
    same = (y == rounded) | (np.isnan(y) & np.isnan(rounded))
    return np.where(same, 0.0, np.where(np.isfinite(rounded) & np.isfinite(y), error, np.inf))


def angle(f, x):
    """An exact function of angles however large: mpmath with enough bits."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workprec(1300):
        out = [
            mpmath.nstr(getattr(mpmath, f)(mpmath.mpf(float(v))), 25) if np.isfinite(v) else "nan" for v in x
        ]
    return np.array(out, np.longdouble)


L = np.longdouble
MORE = {  # name → (reference, ulp in f32, in f64): as the docstrings say
    "exp": (np.exp, 1.0, 1.0),
    "log": (np.log, 1.0, 1.0),
    "expm1": (np.expm1, 2.0, 2.0),
    "log1p": (np.log1p, 2.0, 2.0),
    "tanh": (np.tanh, 2.0, 3.0),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 2.5, 2.5),
    "softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), 3.0, 3.0),
}


def sweep64(count=1 << 16):
    step = (1 << 64) // count
    bits = (np.arange(count, dtype=np.uint64) * np.uint64(step)) + np.uint64(987654321987)
    ranges = ((-746, -700), (700, 710), (-2, 2), (-20, 20), (0.5, 2), (-1.0001, -0.99), (0, 1e-300))
    return np.concatenate(
        [
            bits.view(np.float64),
            *(np.linspace(a, b, count // 8) for a, b in ranges),
            [np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324],
        ]
    )


@pytest.mark.isa
@pytest.mark.parametrize("isa", runnable()[:2], ids=str)
@pytest.mark.parametrize("name", MORE)
def test_both_types(isa, name):
    f, most, most64 = MORE[name]
    for x, bound in ((sweep(1 << 18), most), (sweep64(), most64)):
        with np.errstate(all="ignore"):
            error = ulps(apply(isa, name, x), f(x.astype(L)))
        worst = int(error.argmax())
        assert error[worst] <= bound, (name, x[worst], error[worst])


@pytest.mark.isa
@pytest.mark.parametrize("isa", runnable()[:2], ids=str)
def test_angles_of_any_size(isa):
    near = np.arange(-40, 40) * (np.pi / 2)
    x64 = np.concatenate([sweep64(1 << 9), near, near * 1e5, [1e300, 1.5e18, 2.0**30, -(2.0**31)]])
    x32 = np.concatenate([sweep(1 << 10)[::3], near, near * 777, [1e30, -1e30, 1e4, 3.4e38, np.inf]]).astype(
        np.float32
    )
    for name, most in (("sin", 2.0), ("cos", 2.0), ("tan", 3.0)):
        for x in (x64, x32):
            error = ulps(apply(isa, name, x), angle(name, x))
            worst = int(error.argmax())
            assert error[worst] <= most, (name, x[worst], error[worst])


EDGES = np.array(
    [0, -0.0, 1, -1, 2, -2, 0.5, -0.5, np.inf, -np.inf, np.nan, 3, -3, 1e30, 1e-40, -1e-40, 2**24 + 1]
)


@pytest.mark.isa
@pytest.mark.parametrize("isa", runnable()[:2], ids=str)
def test_powers_and_remainders(isa):
    rng = np.random.default_rng(0)
    for kind, most in ((np.float32, 1.0), (np.float64, 2.0)):
        a, b = (m.ravel().astype(kind) for m in np.meshgrid(EDGES, EDGES))
        many = rng.standard_normal((4, 1 << 12))
        a = np.concatenate([a, many[0] * 10, np.exp(many[1] * 30)]).astype(kind)
        b = np.concatenate([b, np.round(many[2] * 8), many[3] * 3]).astype(kind)
        with np.errstate(all="ignore"):
            exact = np.power(a.astype(L), b.astype(L))  # 64 bits: enough for f32, about 2^-5 ulp of f64 off
            assert ulps(apply(isa, "pow", a, b), exact).max() <= most + 0.1
            tiny = (rng.integers(1, 1 << 20, 1 << 10) * np.finfo(kind).smallest_subnormal).astype(kind)
            top = np.full(1 << 9, np.finfo(kind).max, kind)
            a = np.concatenate([a, a[-512:], top, tiny[::-1]])
            b = np.concatenate([b, tiny, tiny])
            want, got = np.fmod(a, b), apply(isa, "fmod", a, b)
        np.testing.assert_array_equal(got, want)
        assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()


@pytest.mark.isa
@pytest.mark.parametrize("isa", runnable()[:2], ids=str)
def test_derivatives_of_activations(isa):
    """Against differences of the exact functions, and at values that overflow on the way."""
    x = np.linspace(-12, 12, 2001)
    s = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    exact = {
        "silu_backward": lambda v: v * s(v),
        "gelu_backward": lambda v: v / 2 * (1 + erf64(v / np.sqrt(2))),
        "gelu_tanh_backward": lambda v: v / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))),
        "mish_backward": lambda v: v * np.tanh(np.log1p(np.exp(v))),
    }
    for name, f in exact.items():
        want = (f(x + 1e-5) - f(x - 1e-5)) / 2e-5
        np.testing.assert_allclose(apply(isa, name, x), want, atol=1e-9)
        np.testing.assert_allclose(apply(isa, name, x.astype(np.float32)), want, atol=5e-7)
        big = np.array([1e30, 300, -1e30, -300], np.float32)
        np.testing.assert_array_equal(np.abs(apply(isa, name, big)), [1, 1, 0, 0])
