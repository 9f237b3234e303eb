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
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1.17549435e-38, 1.1754942e-38, F32_MAX,
                  -F32_MAX, 1, -1, 88.72283, 88.7229, -87.33655, -103.97, -103.98, -150, 200], np.float32)
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
