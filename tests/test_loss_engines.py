"""Losses: what they mean in PyTorch, layouts, extreme values, arguments that are wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vlug
from native_check import check
from vlug.engines.cpu.pointwise_loss import PointwiseLossEngine
from vlug.errors import BadInput, DTypeError, ShapeError

POINTWISE = PointwiseLossEngine()


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def probabilities(*shape: int) -> np.ndarray:
    p = np.abs(data(*shape, seed=5))
    p[..., 0] = 0
    return np.asarray(p / p.sum(-1, keepdims=True))


LOSSES: list[tuple[str, dict[str, Any]]] = [
    ("mse_loss", {}),
    ("l1_loss", {}),
    ("smooth_l1_loss", {}),
    ("smooth_l1_loss", {"beta": 0.25}),
    ("smooth_l1_loss", {"beta": 0.0}),
    ("huber_loss", {"delta": 0.5}),
    ("kl_div", {}),
    ("kl_div", {"log_target": True}),
    ("binary_cross_entropy_with_logits", {}),
    ("binary_cross_entropy_with_logits", {"weight": np.abs(data(7, 1)), "pos_weight": np.abs(data(9))}),
]


@pytest.mark.framework
@pytest.mark.parametrize("reduction", ["mean", "sum", "none", "batchmean"])
@pytest.mark.parametrize(("name", "more"), LOSSES, ids=lambda v: v if isinstance(v, str) else ",".join(v))
def test_losses_mean_what_pytorch_means(name: str, more: dict[str, Any], reduction: str) -> None:
    torch = pytest.importorskip("torch")
    if reduction == "batchmean" and name != "kl_div":
        return
    x, target = data(7, 9), data(7, 9, seed=1)
    if name == "kl_div" and not more:
        target = probabilities(7, 9)
    if name.startswith("binary"):
        target = (target > 0).astype(float)
    tx = torch.from_numpy(x).requires_grad_()
    kept = {n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in more.items()}
    want = getattr(torch.nn.functional, name)(tx, torch.from_numpy(target), reduction=reduction, **kept)
    dloss = data(*want.shape, seed=2)
    want.backward(torch.from_numpy(dloss))
    for kind, tolerance in (("f64", 1e-13), ("f32", 2e-6)):
        cast = vlug.dtype(kind).numpy
        given = {n: v.astype(cast) if isinstance(v, np.ndarray) else v for n, v in more.items()}
        a, t, d = x.astype(cast), target.astype(cast), dloss.astype(cast)
        got = getattr(vlug, name)(a, t, reduction=reduction, **given)
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=tolerance, atol=tolerance)
        dx = getattr(vlug, f"{name}_backward")(d, a, t, reduction=reduction, **given)
        np.testing.assert_allclose(dx, tx.grad.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "words",
    [
        "x=6x40x30:f32:s1200x1x40 target=6x40x30",
        "x=6x40x30:f32:s5000x60x2 target=6x40x30:f32:s0x1x0",
        "x=6x40x30 target=6x40x30:f32:s1x180x6",
        "x=2x100:f32:s3000000000x1 target=2x100",
        "x=70001:bf16 target=70001:bf16",
    ],
)
def test_layouts(words: str) -> None:
    for tail in ("", "reduction=none"):
        check(POINTWISE, f"mse_loss {words} {tail}", tolerance=8)
        shape = words.split("x=")[1].split(":")[0].split(" ")[0] if tail else "scalar"
        kind = ":bf16" if "bf16" in words else ""
        check(POINTWISE, f"smooth_l1_loss_backward dloss={shape}{kind} {words} {tail}", tolerance=8)


def test_extreme_logits_give_finite_losses() -> None:
    x = np.array([1e30, -1e30, 200, -200, 0, -80], np.float32)
    target = np.array([1, 0, 0, 1, 0.5, 0], np.float32)
    got = vlug.binary_cross_entropy_with_logits(x, target, reduction="none")
    np.testing.assert_allclose(got, [0, 0, 200, 200, np.log(2), np.exp(-80.0)], rtol=1e-6)
    dx = vlug.binary_cross_entropy_with_logits_backward(np.ones(6, np.float32), x, target, reduction="none")
    np.testing.assert_allclose(dx, [0, 0, 1, -1, 0, np.exp(-80.0)], rtol=1e-6)


def test_mean_of_nothing_is_nan() -> None:
    x = np.ones((0, 3), np.float32)
    assert np.isnan(vlug.mse_loss(x, x))
    assert vlug.mse_loss(x, x, reduction="sum") == 0
    assert vlug.mse_loss_backward(np.ones((), np.float32), x, x).shape == (0, 3)


def test_bad_arguments_are_named() -> None:
    x = np.ones((2, 3), np.float32)
    for call, error, words in (
        (lambda: vlug.mse_loss(x, x[:1]), ShapeError, r"target \(1, 3\) must have the dims of x"),
        (lambda: vlug.mse_loss(x, x.astype(float)), DTypeError, "target is f64 but x is f32"),
        (lambda: vlug.l1_loss(x, x, reduction="max"), ShapeError, "reduction 'max' must be one of"),
        (lambda: vlug.smooth_l1_loss(x, x, beta=-1), ShapeError, "beta -1.0 must be 0 or more"),
        (lambda: vlug.huber_loss(x, x, delta=0), ShapeError, "delta 0.0 must be positive"),
        (
            lambda: vlug.binary_cross_entropy_with_logits(x, x, pos_weight=np.ones(2, np.float32)),
            ShapeError,
            r"pos_weight \(2,\) does not broadcast",
        ),
        (lambda: vlug.kl_div_backward(x, x, x), ShapeError, r"dloss \(2, 3\) must be \(\)"),
        (lambda: vlug.mse_loss_backward(x[0, 0], x, x, out=x), BadInput, "overlaps"),
    ):
        with pytest.raises(error, match=words):
            call()
