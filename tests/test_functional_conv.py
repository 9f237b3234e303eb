"""Eager convolutions of one to three dimensions and transposed ones, against PyTorch's own."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import vlug
from vlug.errors import BadInput, ShapeError

ATTRIBUTES = [
    # stride, padding, output padding, dilation, groups
    (1, 0, 0, 1, 1),
    (2, 1, 1, 1, 1),
    (2, 1, 0, 1, 2),
    (3, 2, 2, 2, 1),
    (1, 0, 1, 2, 1),  # output padding as large as the stride: beyond what x reaches
    (1, 2, 1, 2, 2),
    (2, 0, 1, 1, 4),
    (1, 1, 2, 3, 1),
    (2, 3, 1, 1, 1),
]


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch")
    with vlug.using(False):
        yield found


def rand(*shape: int, seed: int = 0, kind: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(kind)


def near(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("rank", "kind"), list(itertools.product((1, 2, 3), (np.float32, np.float64))))
def test_forward_and_backward(torch: Any, rank: int, kind: Any) -> None:
    F = torch.nn.functional
    for stride, padding, more, dilation, groups in ATTRIBUTES[kind is np.float64 :: 2]:
        x, window = rand(2, 4, *(5, 6, 7)[:rank], kind=kind), (3, 2, 3)[:rank]
        at = {"stride": stride, "padding": padding, "groups": groups, "dilation": dilation}
        for transposed in (False, True):
            shape = (4, 8 // groups) if transposed else (8, 4 // groups)
            w, b = rand(*shape, *window, seed=1, kind=kind), rand(8, seed=2, kind=kind)
            if not transposed and 5 + 2 * padding < 2 * dilation + 1:
                continue
            name = f"conv_transpose{rank}d" if transposed else f"conv{rank}d"
            tx, tw, tb = (torch.tensor(a, requires_grad=True) for a in (x, w, b))
            extra = {"output_padding": more} if transposed else {}
            y = getattr(F, name)(tx, tw, tb, **at, **extra)
            got = getattr(vlug, name)(x, w, b, **at, **extra)
            near(got, y)
            out = np.empty_like(got)
            assert getattr(vlug, name)(x, w, b, **at, **extra, out=out) is out
            assert np.array_equal(out, got)
            dy = rand(*y.shape, seed=3, kind=kind)
            found = getattr(vlug, f"{name}_backward")(dy, x, w, **at)
            for have, want in zip(found, torch.autograd.grad(y, (tx, tw, tb), torch.tensor(dy))):
                near(have, want)


X, W = rand(2, 4, 5, 5), rand(4, 3, 3, 3)


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda: vlug.conv_transpose2d(X, W, output_padding=1), BadInput, "output_padding: .* less than"),
    (lambda: vlug.conv_transpose2d(X, W, output_padding=-1), BadInput, "output_padding"),
    (lambda: vlug.conv_transpose2d(X, W, stride=2, output_padding=(1, 2)), BadInput, "output_padding"),
    (lambda: vlug.conv_transpose2d(X, W[:3]), ShapeError, "w: .* takes 3 channels, but x .* has 4"),
    (lambda: vlug.conv_transpose2d(X, W, groups=3), ShapeError, "groups: 3 must divide the 4 channels"),
    (lambda: vlug.conv_transpose2d(X, W, stride=0), ShapeError, "stride"),
    (lambda: vlug.conv_transpose2d(X, W, padding=9), ShapeError, "padding: leaves y"),
    (lambda: vlug.conv_transpose2d(X, W, padding="same"), BadInput, "padding: 'same'"),
    (lambda: vlug.conv_transpose2d(X, W, rand(4)), ShapeError, r"b \(4,\) must be \(3,\)"),
    (lambda: vlug.conv_transpose2d_backward(rand(2, 3, 9, 7), X, W), ShapeError, "dy: .* spatial dims 7, 7"),
    (lambda: vlug.conv_transpose1d(X, W), ShapeError, r"x: .* has 4 dimensions, 3 are allowed"),
    (lambda: vlug.conv1d(X[0], W[0], stride=(1, 2)), BadInput, "stride: .* must be one integer"),
    (lambda: vlug.conv3d(X[None], W[None], stride=(1, 2)), BadInput, "must be one integer or three"),
    (lambda: vlug.conv1d(X[0], W[0], padding=((1, 1), (1, 1))), BadInput, "padding: .* must be"),
])  # fmt: skip
def test_wrong_arguments_are_named(call: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_empty() -> None:
    assert vlug.conv_transpose2d(rand(0, 4, 5, 5), W, stride=2, output_padding=1).shape == (0, 3, 12, 12)
    dx, dw, db = vlug.conv_transpose2d_backward(rand(0, 3, 7, 7), rand(0, 4, 5, 5), W)
    assert dx.shape == (0, 4, 5, 5)
    assert not dw.any()
    assert not db.any()
    assert vlug.conv3d(rand(0, 2, 3, 3, 3), rand(4, 2, 1, 1, 1)).shape == (0, 4, 3, 3, 3)


def test_asymmetric_padding_in_three_dimensions() -> None:
    x, w = rand(1, 2, 4, 4, 4), rand(3, 2, 2, 2, 2)
    want = vlug.conv3d(np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1), (0, 1))), w)
    np.testing.assert_allclose(vlug.conv3d(x, w, padding="same"), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(vlug.conv3d(x, w, padding=((0, 1),) * 3), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("wrong", ["stride", "dilation"])
def test_named_padding_of_a_step_below_one(padding: str, wrong: str) -> None:
    """Without the check, "same" divides by the stride."""
    x, w = np.ones((1, 2, 5, 5), np.float32), np.ones((3, 2, 3, 3), np.float32)
    with pytest.raises(ShapeError, match=wrong):
        vlug.conv2d(x, w, padding=padding, **{wrong: 0})
