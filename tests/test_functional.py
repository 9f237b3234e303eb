"""The functional API: values, layouts, outputs given, other people's arrays, and arguments that are wrong."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import vlug
from vlug import functional as f
from vlug.errors import BadInput, DTypeError, ShapeError, VlugWarning


@pytest.fixture(autouse=True)
def slow_is_fine() -> Any:
    """What no fast engine takes yet runs in NumPy, with a warning that is not this file's matter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VlugWarning)
        yield


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def near(got: np.ndarray, want: Any, tol: float = 1e-5) -> None:
    want = np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(
        got.astype(np.float64), want, rtol=tol, atol=tol * max(1, np.abs(want).max(initial=0))
    )


def conv(x: np.ndarray, w: np.ndarray, pre: int = 0, post: int = 0, stride: int = 1) -> np.ndarray:
    """A convolution written out, in float64."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pre, post), (pre, post)))
    p, q = ((h - r) // stride + 1 for h, r in zip(x.shape[2:], w.shape[2:]))
    y = np.zeros((x.shape[0], w.shape[0], p, q))
    for i in range(p):
        for j in range(q):
            part = x[:, :, i * stride : i * stride + w.shape[2], j * stride : j * stride + w.shape[3]]
            y[:, :, i, j] = np.tensordot(part, w.astype(np.float64), ((1, 2, 3), (1, 2, 3)))
    return y


def test_every_public_name_is_the_package_s() -> None:
    for name in f.__all__:
        assert getattr(vlug, name) is getattr(f, name)
        assert name in vlug.__all__


def test_conv2d_and_its_backward() -> None:
    x, w, b = data(2, 5, 9, 8), data(7, 5, 3, 3, seed=1), data(7, seed=2)
    near(vlug.conv2d(x, w, padding=1), conv(x, w, 1, 1))
    near(vlug.conv2d(x, w, b, stride=2), conv(x, w, stride=2) + b[:, None, None])
    near(vlug.conv2d(x, w[:, :, :2, :2], padding="same"), conv(x, w[:, :, :2, :2], 0, 1))
    near(vlug.conv2d(x, w, padding=((0, 1), (0, 1))), conv(x, w, 0, 1))
    dy = data(2, 7, 9, 8, seed=3)
    dx, dw, db = vlug.conv2d_backward(dy, x, w, padding=1)
    assert dx.shape == x.shape
    assert dw.shape == w.shape
    # <dy, conv(v, w)> = <dx, v> for any v, and likewise for w
    v, u = data(2, 5, 9, 8, seed=4), data(7, 5, 3, 3, seed=5)
    assert np.vdot(dy, conv(v, w, 1, 1)) == pytest.approx(float(np.vdot(dx, v)), rel=1e-4)
    assert np.vdot(dy, conv(x, u, 1, 1)) == pytest.approx(float(np.vdot(dw, u)), rel=1e-4)
    near(db, dy.sum((0, 2, 3)))


def test_channels_last_in_gives_channels_last_out() -> None:
    x, w = data(2, 5, 9, 8), data(7, 5, 3, 3, seed=1)
    nhwc = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    y = vlug.conv2d(nhwc, w, padding=1)
    near(y, conv(x, w, 1, 1))
    assert y.transpose(0, 2, 3, 1).flags.c_contiguous


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_element_types(kind: Any) -> None:
    x, w = data(2, 5, 9, 8).astype(kind), data(7, 5, 3, 3, seed=1).astype(kind)
    y = vlug.conv2d(x, w)
    assert y.dtype == kind
    near(y, conv(x.astype(np.float64), w.astype(np.float64)), 1e-5 if np.dtype(kind).itemsize > 2 else 1e-2)


def test_strange_strides_are_read_in_place() -> None:
    x, w = data(2, 5, 18, 24), data(7, 5, 3, 3, seed=1)
    near(vlug.conv2d(x[:, :, ::2, ::3], w), conv(x[:, :, ::2, ::3], w))
    near(vlug.conv2d(x[:, :, ::-2, ::3], w), conv(x[:, :, ::-2, ::3], w))
    same = np.broadcast_to(x[:1], (3, 5, 18, 24))
    near(vlug.conv2d(same, w), conv(same, w))
    near(vlug.relu(x.transpose(3, 1, 0, 2)), np.maximum(x.transpose(3, 1, 0, 2), 0))


def test_out_is_written_in_place() -> None:
    x, w = data(2, 5, 9, 8), data(7, 5, 3, 3, seed=1)
    room = np.full((2, 7, 8, 8), np.nan, np.float32)
    out = room[:, :, :7, :6]
    y = vlug.conv2d(x, w, out=out)
    assert np.shares_memory(y, out)
    near(out, conv(x, w))
    assert np.isnan(room[:, :, 7:]).all()
    near(vlug.relu(x.copy(), out=(target := np.empty_like(x))), np.maximum(x, 0))
    near(target, np.maximum(x, 0))


def test_products() -> None:
    a, b = data(3, 4, 5), data(3, 5, 6, seed=1)
    near(vlug.matmul(a, b), a @ b)
    near(vlug.matmul(a, data(7, 5, seed=2), transpose_b=True), a @ data(7, 5, seed=2).T)
    x, w, bias = data(2, 3, 5), data(7, 5, seed=1), data(7, seed=2)
    near(vlug.linear(x, w, bias), x @ w.T + bias)
    dy = data(2, 3, 7, seed=3)
    dx, dw, db = vlug.linear_backward(dy, x, w)
    near(dx, dy @ w)
    near(dw, np.einsum("abk,abc->kc", dy, x))
    near(db, dy.sum((0, 1)))


def test_pointwise_and_reductions() -> None:
    x, y = data(2, 5, 4), data(5, 1, seed=1)
    near(vlug.add(x, y), x + y)
    near(vlug.mul(x, y), x * y)
    near(vlug.relu(x, upper_clip=0.5), np.clip(x, 0, 0.5))
    near(vlug.relu(x, negative_slope=0.1), np.where(x > 0, x, 0.1 * x))
    near(vlug.relu_backward(np.ones_like(x), x), (x > 0).astype(np.float32))
    near(vlug.sum(x), x.sum())
    near(vlug.sum(x, 1, keepdims=True), x.sum(1, keepdims=True))
    near(vlug.mean(x, (0, -1)), x.mean((0, 2)))
    near(vlug.sum_backward(y[:, 0], (5, 3), 1), np.repeat(y, 3, 1))
    near(vlug.mean_backward(y, (5, 4), 1, keepdims=True), np.repeat(y, 4, 1) / 4)


def test_whatever_gives_one_array_takes_out() -> None:
    """`out` by keyword, for every call whose result is one array; in-place steps and tuples have none."""
    for name in f.__all__:
        has = inspect.signature(getattr(f, name))
        if has.return_annotation == "Array":
            assert "out" in has.parameters, name
    dx = np.empty((5, 3), np.float32)
    assert vlug.sum_backward(data(5), size=(5, 3), axes=1, out=dx) is dx
    near(dx, np.repeat(data(5)[:, None], 3, 1))
    near(vlug.mean_backward(data(5), size=(5, 3), axes=1, out=dx), np.repeat(data(5)[:, None], 3, 1) / 3)


def test_pooling() -> None:
    x = data(2, 3, 6, 8)
    blocks = x.reshape(2, 3, 3, 2, 4, 2)
    y, index = vlug.max_pool2d(x, 2, return_index=True)
    near(y, blocks.max((3, 5)))
    assert np.array_equal(
        np.take_along_axis(x.reshape(2, 3, 48), index.reshape(2, 3, -1), 2).reshape(y.shape), y
    )
    near(vlug.max_pool2d(x, 2), y)
    dx = vlug.max_pool2d_backward(y, index, (6, 8), 2)
    near(dx, np.where(np.repeat(np.repeat(y, 2, 2), 2, 3) == x, x, 0))
    near(vlug.avg_pool2d(x, 2), blocks.mean((3, 5)))
    near(vlug.avg_pool2d_backward(y, (6, 8), 2), np.repeat(np.repeat(y, 2, 2), 2, 3) / 4)


def test_batch_norm() -> None:
    x, scale, bias = data(4, 3, 5, 6), data(3, seed=1), data(3, seed=2)
    mean, var = np.zeros(3, np.float32), np.ones(3, np.float32)
    y, m, inv = vlug.batch_norm_training(x, scale, bias, mean, var, momentum=0.25)
    want_m, want_v = x.mean((0, 2, 3)), x.var((0, 2, 3))
    near(m, want_m)
    near(inv, 1 / np.sqrt(want_v + 1e-5))
    col = (slice(None), None, None)
    near(y, (x - want_m[col]) * inv[col] * scale[col] + bias[col])
    near(mean, 0.25 * want_m)
    near(var, 0.75 + 0.25 * want_v * 120 / 119)
    near(vlug.batch_norm(x, want_m, want_v, scale, bias), y)
    dx, dscale, dbias = vlug.batch_norm_backward(x, x, scale, m, inv)
    near(dbias, x.sum((0, 2, 3)), 1e-4)
    near(dscale, (x * (x - want_m[col]) * inv[col]).sum((0, 2, 3)), 1e-4)
    assert dx.shape == x.shape


def test_softmax_and_loss() -> None:
    x, target = data(6, 5), np.array([0, 4, -100, 2, 2, 1])
    e = np.exp(x - x.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    near(vlug.softmax(x), p)
    near(vlug.log_softmax(x, 1), np.log(p))
    kept = target >= 0
    want = -np.log(p[kept, target[kept]]).mean()
    near(vlug.cross_entropy(x, target), want)
    dx = vlug.cross_entropy_backward(np.float32(1).reshape(()), x, target)
    near(dx, np.where(kept[:, None], (p - np.eye(5)[np.where(kept, target, 0)]) / kept.sum(), 0))
    dy = data(6, 5, seed=1)
    near(vlug.softmax_backward(dy, p), p * (dy - (dy * p).sum(1, keepdims=True)))
    near(vlug.log_softmax_backward(dy, np.log(p)), dy - p * dy.sum(1, keepdims=True))


def test_empty_arrays_give_empty_results() -> None:
    w = data(4, 3, 3, 3)
    assert vlug.conv2d(data(0, 3, 8, 8), w).shape == (0, 4, 6, 6)
    dx, dw, db = vlug.conv2d_backward(data(0, 4, 6, 6), data(0, 3, 8, 8), w)
    assert dx.shape == (0, 3, 8, 8)
    assert not dw.any()
    assert not db.any()
    assert vlug.matmul(data(3, 0), data(0, 4)).tolist() == np.zeros((3, 4)).tolist()
    assert vlug.softmax(data(0, 4)).shape == (0, 4)


@pytest.mark.framework
def test_tensors_of_pytorch_are_read_and_written_in_place() -> None:
    torch = pytest.importorskip("torch")
    x, w = torch.randn(2, 5, 9, 8), torch.randn(7, 5, 3, 3)
    near(vlug.conv2d(x, w), torch.nn.functional.conv2d(x, w).numpy())
    out = torch.empty(2, 7, 7, 6)
    vlug.conv2d(x, w, out=out)
    near(out.numpy(), torch.nn.functional.conv2d(x, w).numpy())
    half = vlug.conv2d(x.bfloat16(), w.bfloat16())
    assert half.dtype == ml_dtypes.bfloat16
    last = x.to(memory_format=torch.channels_last)
    assert vlug.conv2d(last, w).transpose(0, 2, 3, 1).flags.c_contiguous


def readonly(a: np.ndarray) -> np.ndarray:
    a.flags.writeable = False
    return a


def index(value: int) -> np.ndarray:
    return np.full((1, 1, 1, 1), value, np.int64)


X, W = data(2, 5, 9, 8), data(7, 5, 3, 3)
BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: vlug.conv2d(X[0], W), ShapeError, r"x: \(5, 9, 8\) has 3 dimensions, 4 are allowed"),
    (lambda: vlug.conv2d(X, W[:, :4]), ShapeError, "x has 5 channels"),
    (lambda: vlug.conv2d(X, W.astype(np.float16)), DTypeError, "w is f16 but x is f32"),
    (lambda: vlug.conv2d(X.astype(complex), W), DTypeError, "x: complex128 is not one of"),
    (lambda: vlug.conv2d(X.astype(">f4"), W), DTypeError, "x: byte order"),
    (lambda: vlug.conv2d("x", W), BadInput, "x: str is no array"),
    (lambda: vlug.conv2d(X, W, groups=2), ShapeError, "x has 5 channels.*groups=2"),
    (lambda: vlug.conv2d(X, W, data(6)), ShapeError, r"b \(6,\) must be \(7,\)"),
    (lambda: vlug.conv2d(X, W, stride=0), ShapeError, "stride"),
    (lambda: vlug.conv2d(X, W, stride=(1, 2, 3)), BadInput, "stride: .* must be one integer or two"),
    (lambda: vlug.conv2d(X, W, padding="half"), BadInput, "padding: 'half' must be"),
    (lambda: vlug.conv2d(X, W, padding=((1, 1),)), BadInput, "padding: .* must be"),
    (lambda: vlug.conv2d(X, W, out=np.empty((2, 7, 7, 7), np.float32)), ShapeError, "out: dims are"),
    (lambda: vlug.conv2d(X, W, out=np.empty((2, 7, 7, 6))), DTypeError, "out: dtype is f64"),
    (lambda: vlug.conv2d(X, W, out=readonly(data(2, 7, 7, 6))), BadInput, "out: .*read-only"),
    (
        lambda: vlug.conv2d(X, W, out=np.broadcast_to(np.float32(0), (2, 7, 7, 6))),
        BadInput,
        "out: .*(read-only|share memory)",
    ),
    (lambda: vlug.conv2d(X, W, stride=1.5), BadInput, "stride: 1.5 must be one integer or two"),
    (lambda: vlug.conv2d(X, W, dilation=None), BadInput, "dilation: None must be one integer or two"),
    (lambda: vlug.conv2d(X, W, padding=0.5), BadInput, "padding: 0.5 must be one integer or two"),
    (lambda: vlug.conv2d(X, W, groups=1.5), BadInput, "groups: 1.5 must be an integer"),
    (lambda: vlug.conv2d(X, W, groups="1"), BadInput, "groups: '1' must be an integer"),
    (lambda: vlug.conv2d(X, W, stride=2**31), ShapeError, "stride: .* must be at most 2147483647"),
    (lambda: vlug.max_pool2d(X, None), BadInput, "None must be one integer or two"),
    (lambda: vlug.softmax(X, 1.0), BadInput, "axis: 1.0 must be an integer"),
    (lambda: vlug.sum(X, 1.0), BadInput, "axes: 1.0 must be an integer"),
    (lambda: vlug.relu(X, negative_slope="a"), BadInput, "negative_slope: 'a' must be a number"),
    (lambda: vlug.batch_norm_training(X, eps="a"), BadInput, "eps: 'a' must be a number"),
    (lambda: vlug.batch_norm_training(X, eps=-1.0), BadInput, "eps -1.0 must be finite and 0 or more"),
    (lambda: vlug.batch_norm(X, data(5), data(5), eps=math.nan), BadInput, "eps nan must be finite"),
    (lambda: vlug.conv2d(X, W[..., :1, :1], out=None, dilation=0), ShapeError, "dilation"),
    (lambda: vlug.matmul(X, W), ShapeError, "matmul"),
    (lambda: vlug.linear(data(5), data(7, 5)), ShapeError, "x .* must have 2 dimensions or more"),
    (lambda: vlug.max_pool2d(X, 2, padding=2), ShapeError, "pad 2 must be at most half"),
    (lambda: vlug.max_pool2d_backward(data(1, 1, 1, 1), index(4), (2, 2), 2), BadInput, "index holds 4"),
    (lambda: vlug.max_pool2d_backward(data(1, 1, 1, 1), index(-2), (2, 2), 2), BadInput, "index holds -2"),
    (lambda: vlug.cross_entropy(data(2, 3), np.array([0, 3])), BadInput, "target holds 3, allowed are 0"),
    (lambda: vlug.cross_entropy(data(2, 3), np.array([0, -1])), BadInput, "target holds -1"),
    (lambda: vlug.cross_entropy(data(2, 3), np.array([0.0, 1.0])), DTypeError, "target is f64"),
    (lambda: vlug.cross_entropy(data(2, 3), np.array([0])), ShapeError, r"target \(1,\) must be \(2,\)"),
    (lambda: vlug.softmax(X, 4), ShapeError, "axis 4 is out of range"),
    (lambda: vlug.batch_norm_training(X, running_mean=data(5)), ShapeError, "must be given together"),
    (
        lambda: vlug.batch_norm_training(X, running_mean=readonly(data(5)), running_var=data(5)),
        BadInput,
        "running_mean: .*read-only",
    ),
    (lambda: vlug.sum(X, 7), ShapeError, "axis 7 is out of range"),
    (lambda: vlug.add(X, data(3)), ShapeError, "do not broadcast"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_wrong_arguments_are_named(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_an_output_that_overlaps_an_input_is_refused() -> None:
    room = data(4, 5, 9, 8)
    with pytest.raises(BadInput, match="overlaps"):
        vlug.conv2d(room[:2], data(5, 5, 1, 1), out=room[1:3])
    x = data(3, 4)
    with pytest.raises(BadInput, match="overlaps"):
        vlug.softmax(x, out=x)
    y = vlug.relu(x.copy(), out=None)
    vlug.relu(x, out=x)  # exactly in place is allowed for a pointwise operation
    near(x, y)


@pytest.mark.framework
def test_a_tensor_elsewhere_is_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(BadInput, match="x: "):
        vlug.relu(torch.empty(3, device="meta"))


def test_nan_and_infinity_pass_through() -> None:
    x = np.array([np.nan, np.inf, -np.inf, -1.0], np.float32)
    assert np.array_equal(vlug.relu(x), [np.nan, np.inf, 0, 0], equal_nan=True)
    assert math.isnan(float(vlug.sum(x)))
    x = np.zeros((1, 1, 2, 2), np.float32)
    x[0, 0, 1, 0] = np.nan
    assert np.isnan(vlug.max_pool2d(x, 2)).all()
