"""Eager calls of activations, arithmetic, comparisons, casts: values, gradients, wrong arguments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import vlug
from vlug.errors import BadInput, DTypeError, ShapeError

X = np.random.default_rng(0).standard_normal((3, 5, 7)).astype(np.float32) * 3
B = np.random.default_rng(1).standard_normal((5, 1)).astype(np.float32) + 2


def near(got: np.ndarray, want: Any, tol: float = 2e-6) -> None:
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


def test_values() -> None:
    d = X.astype(np.float64)
    s = 1 / (1 + np.exp(-d))
    erf = np.vectorize(math.erf)
    u = math.sqrt(2 / math.pi) * (d + 0.044715 * d**3)
    for got, want in (
        (vlug.sigmoid(X), s),
        (vlug.tanh(X), np.tanh(d)),
        (vlug.silu(X), d * s),
        (vlug.swish(X, 1.5), d / (1 + np.exp(-1.5 * d))),
        (vlug.elu(X, 0.5), np.where(d > 0, d, 0.5 * np.expm1(d))),
        (vlug.gelu(X), d / 2 * (1 + erf(d / math.sqrt(2)))),
        (vlug.gelu(X, approximate="tanh"), d / 2 * (1 + np.tanh(u))),
        (vlug.softplus(X, beta=2.0), np.log1p(np.exp(2 * d)) / 2),
        (vlug.hardswish(X), d * np.clip(d + 3, 0, 6) / 6),
        (vlug.hardsigmoid(X), np.clip(d + 3, 0, 6) / 6),
        (vlug.mish(X), d * np.tanh(np.log1p(np.exp(d)))),
        (vlug.leaky_relu(X), np.where(d > 0, d, 0.01 * d)),
        (vlug.hardtanh(X, -2.0, 1.0), np.clip(d, -2, 1)),
        (vlug.relu6(X), np.clip(d, 0, 6)),
        (vlug.prelu(X, np.array([0.25], np.float32)), np.where(d > 0, d, 0.25 * d)),
        (vlug.sub(X, B), d - B),
        (vlug.div(X, B), d / B),
        (vlug.fmod(X, B), np.fmod(X, B)),
        (vlug.pow(vlug.absolute(X), B), np.abs(d) ** B),
        (vlug.maximum(X, B), np.maximum(X, B)),
        (vlug.add_square(X, B), d + B.astype(float) ** 2),
        (vlug.sin(X * np.float32(1e30)), np.sin((X * np.float32(1e30)).astype(np.float64))),
        (vlug.rsqrt(np.abs(X)), 1 / np.sqrt(np.abs(d))),
        (vlug.exp(X.astype(np.float64)), np.exp(d)),
        (vlug.scale(X, B[:, 0]), d * B),
    ):
        near(got, want, 4e-6)
    assert np.array_equal(vlug.greater(X, B), X > B)
    assert vlug.greater(X, B).dtype == np.bool_
    assert np.array_equal(vlug.where(X > B, X, B), np.where(X > B, X, B))
    assert np.array_equal(vlug.logical_and(X > 0, X > 1), X > 1)
    assert np.array_equal(vlug.astype(X, "i32"), X.astype(np.int32))
    assert vlug.astype(X, np.float64).dtype == np.float64
    assert np.array_equal(vlug.gen_index(X, 1), np.broadcast_to(np.arange(5)[:, None], X.shape))
    i = np.arange(9, dtype=np.int64)
    assert np.array_equal(vlug.sub(i, i[::-1].copy()), i - i[::-1])


def test_casts_of_what_does_not_fit() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, -0.9, 255.9, 256.0], np.float32)
    top, low = 2**31 - 1, -(2**31)
    assert vlug.astype(x, "i32").tolist() == [0, top, low, top, low, 0, 255, 256]
    assert vlug.astype(x, "u8").tolist() == [0, 255, 0, 255, 0, 0, 255, 255]
    assert vlug.astype(x, "i64").tolist()[1:5] == [2**63 - 1, -(2**63), 2**63 - 1, -(2**63)]
    assert vlug.astype(x, "bool").tolist() == [True] * 8
    assert vlug.astype(np.array([-1, 257, 1 << 40]), "u8").tolist() == [255, 1, 0]


PAIRS = [
    ("silu", {}), ("swish", {"beta": 1.5}), ("elu", {"alpha": 0.5}), ("gelu", {}),
    ("gelu", {"approximate": "tanh"}),
    ("softplus", {"beta": 2.0}), ("hardswish", {}), ("hardsigmoid", {}), ("mish", {}), ("leaky_relu", {}),
    ("hardtanh", {"min_val": -2.0}), ("relu6", {}), ("sigmoid", {}), ("tanh", {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "at"), PAIRS)
def test_gradients_agree_with_differences(name: str, at: dict[str, Any]) -> None:
    x = X.astype(np.float64)
    f, back = getattr(vlug, name), getattr(vlug, f"{name}_backward")
    dy, step = np.cos(x), 1e-6
    want = dy * (f(x + step, **at) - f(x - step, **at)) / (2 * step)
    got = back(dy, f(x) if name in ("sigmoid", "tanh") else x, **at)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-8)


def test_prelu_backward() -> None:
    for w in (np.array([0.3], np.float32), np.linspace(-1, 1, 5, dtype=np.float32)):
        dx, dw = vlug.prelu_backward(X, X, w)
        near(dx, np.where(X > 0, X, X * (w if w.size == 1 else w[:, None])))
        each = (X * np.minimum(X, 0)).astype(np.float64)
        near(dw, [each.sum()] if w.size == 1 else each.sum((0, 2)), 1e-5)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "fmod", "maximum", "greater", "equal"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_number_takes_the_dtype_of_the_array(name: str, dtype: str) -> None:
    x = np.abs(X).astype(vlug.dtype(dtype).numpy)
    f, two = getattr(vlug, name), np.full((), 2, x.dtype)
    for number in (2, 2.0):
        for got, want in ((f(x, number), f(x, two)), (f(number, x), f(two, x))):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)


def test_numbers_among_integers_and_conditions() -> None:
    i = np.arange(-3, 4)
    np.testing.assert_array_equal(vlug.mul(i, -2), i * -2)
    np.testing.assert_array_equal(vlug.where(X > 0, X, 0), np.maximum(X, 0))
    np.testing.assert_array_equal(vlug.where(X > 0, 1, -X), np.where(X > 0, np.float32(1), -X))


WRONG = [
    (lambda: vlug.gelu(X, approximate="erf"), BadInput, "approximate: 'erf' must be one of 'none', 'tanh'"),
    (lambda: vlug.add(1, 2), BadInput, "a: int is no array"),
    (lambda: vlug.add(np.arange(3), 0.5), BadInput, "b: 0.5 is no i64, which the arrays are"),
    (lambda: vlug.maximum(-1, np.zeros(3, np.uint8)), BadInput, "a: -1 is no u8"),
    (lambda: vlug.less(np.arange(3), math.nan), BadInput, "b: nan is no i64"),
    (lambda: vlug.mul(np.arange(3), 2**70), BadInput, "b: 1180591620717411303424 is no i64"),
    (lambda: vlug.mul(X, "2"), BadInput, "b: str is no array"),
    (lambda: vlug.elu(X, "a"), BadInput, "alpha: 'a' must be a number"),
    (lambda: vlug.softplus(X, beta=0.0), ShapeError, "beta 0.0 must be finite and not 0"),
    (lambda: vlug.sub(X, X[:2]), ShapeError, "do not broadcast"),
    (lambda: vlug.sub(X, X.astype(np.float64)), DTypeError, "b is f64 but a is f32"),
    (lambda: vlug.sigmoid(np.arange(3)), DTypeError, "x is i64, allowed are"),
    (lambda: vlug.logical_and(X, X), DTypeError, "a is f32, allowed are bool"),
    (lambda: vlug.where(X, X, X), DTypeError, "mask is f32, allowed is bool"),
    (lambda: vlug.astype(X, "complex64"), DTypeError, "dtype: complex64 is not one of"),
    (lambda: vlug.gen_index(X, 3), ShapeError, "axis 3 is out of range"),
    (lambda: vlug.gen_index(X, dtype="f64"), DTypeError, "dtype is f64, allowed are"),
    (lambda: vlug.prelu(X, np.ones(4, np.float32)), ShapeError, r"w \(4,\) must be \(1,\) or \(5,\)"),
    (lambda: vlug.scale(X, X), ShapeError, "b: .* has 3 dimensions"),
    (lambda: vlug.silu_backward(X, X[0]), ShapeError, "must have the same dims"),
    (lambda: vlug.exp(X, out=np.empty_like(X[0])), ShapeError, "out: dims are"),
    (lambda: vlug.greater(X, X, out=np.empty_like(X)), DTypeError, "out: dtype is f32, the result has bool"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG)
def test_wrong_arguments_are_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
