"""Eager layer, RMS, group and instance norm: argument names, gradients, and what wrong arguments say."""

from __future__ import annotations

import numpy as np
import pytest

import vlug


def data(*size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def test_layer_norm_and_its_backward() -> None:
    x, w, b, dy = data(4, 3, 8), data(8, seed=1), data(8, seed=2), data(4, 3, 8, seed=3)
    y, mean, inv_std = vlug.layer_norm(x, (8,), w, b, statistics=True)
    want = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, want * w + b, atol=2e-6)
    np.testing.assert_array_equal(vlug.layer_norm(x, 8, w, b), y)
    dx, dw, db = vlug.layer_norm_backward(dy, x, 8, mean, inv_std, w)
    np.testing.assert_allclose(dw, (dy * want).sum((0, 1)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(db, dy.sum((0, 1)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dx.sum(-1), 0, atol=1e-5)


def test_rms_norm_and_its_backward() -> None:
    x, w, dy = data(4, 24), data(24, seed=1), data(4, 24, seed=2)
    y, inv_std = vlug.rms_norm(x, 24, w, statistics=True)
    want = x / np.sqrt((x * x).mean(-1, keepdims=True) + 2.0**-23)
    np.testing.assert_allclose(y, want * w, rtol=1e-5, atol=1e-6)
    dx, dw, _ = vlug.rms_norm_backward(dy, x, 24, inv_std, w)
    np.testing.assert_allclose(dw, (dy * want).sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose((dx * x).sum(-1), 0, atol=1e-4)


def test_group_and_instance_norm_and_their_backward() -> None:
    x, w, b, dy = data(2, 6, 4, 5), data(6, seed=1), data(6, seed=2), data(2, 6, 4, 5, seed=3)
    y, mean, inv_std = vlug.group_norm(x, 6, w, b, statistics=True)
    z, m, v = vlug.instance_norm(x, w, b, statistics=True)
    np.testing.assert_array_equal(y, z)
    assert m.shape == (2, 6, 1, 1)
    assert mean.shape == (2, 6)
    for one, other in zip(
        vlug.group_norm_backward(dy, x, 6, mean, inv_std, w), vlug.instance_norm_backward(dy, x, m, v, w)
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: vlug.layer_norm(data(4, 8), (4,)), "normalized_shape"),
        (lambda: vlug.layer_norm(data(4, 8), (8,), data(7)), "scale"),
        (lambda: vlug.layer_norm(data(4, 8), (8,), eps=-1.0), "eps"),
        (lambda: vlug.layer_norm(data(4, 8), (8,), out=data(4, 7)), "out"),
        (lambda: vlug.group_norm(data(2, 6, 4), 4), "groups 4"),
        (lambda: vlug.group_norm(data(2, 6, 4), 2, data(5)), "scale"),
        (lambda: vlug.instance_norm(data(6)), "2 dimensions"),
        (lambda: vlug.rms_norm(data(2, 6), 6, data(6).astype(np.float64)), "f64"),
    ],
)
def test_wrong_arguments_are_named(call: object, words: str) -> None:
    with pytest.raises(vlug.BadInput, match=words):
        call()  # type: ignore[operator]
