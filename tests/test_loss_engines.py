"""Losses: what they mean in PyTorch, layouts, extreme values, arguments that are wrong."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import vlug
from native_check import check, devices, execute
from vlug import config
from vlug.engines.cpu.ctc import CtcEngine
from vlug.engines.cpu.embedding import EmbeddingEngine
from vlug.engines.cpu.nll import NllEngine
from vlug.engines.cpu.pointwise_loss import PointwiseLossEngine
from vlug.errors import BadInput, DTypeError, ShapeError
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS
from vlug.testing_fills import fill

CTC, EMBEDDING, NLL, POINTWISE = CtcEngine(), EmbeddingEngine(), NllEngine(), PointwiseLossEngine()


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


# --- classes ---
@pytest.mark.framework
@pytest.mark.parametrize("line", [s for s in OPERATIONS["nll_loss"].samples() if "-> loss" not in s])
def test_nll_loss_means_what_pytorch_means(line: str) -> None:
    torch = pytest.importorskip("torch")
    g = Graph.parse(line)
    op, values = g.nodes[0].op, fill(g, "real", 2)
    if "x" not in values or 0 in values["x"].shape[1:]:
        return
    x = torch.from_numpy(values["x"]).requires_grad_()
    target = torch.from_numpy(np.asarray(values["target"]))
    weight = values.get("weight")
    tw = None if weight is None else torch.from_numpy(weight)
    kw = {"ignore_index": op.ignore_index, "reduction": op.reduction}
    want = torch.nn.functional.nll_loss(x, target, tw, **kw)
    dloss = np.asarray(data(*want.shape))
    want.backward(torch.from_numpy(dloss))
    got = vlug.nll_loss(values["x"], values["target"], weight, **kw)
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-12)
    dx = vlug.nll_loss_backward(dloss, values["x"], values["target"], weight, **kw)
    np.testing.assert_allclose(dx, x.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize("bad", [-1, 7, 1 << 40, -(1 << 62)])
def test_a_class_out_of_range_is_an_error(bad: int) -> None:
    for shape, rest in (((5, 7), (5,)), ((2, 7, 20), (2, 20)), ((7,), ())):
        x, target = np.ones(shape, np.float32), np.zeros(rest, np.int64)
        target[(-1,) * len(rest)] = bad
        dims, where = "x".join(map(str, shape)), "x".join(map(str, rest)) or "scalar"
        values = {"x": x, "target": target, "dloss": np.ones((), np.float32)}
        for device in devices():
            execute(NLL, Graph.parse(f"nll_loss x={dims} target={where}:i64"), values, 3, device, code=2)
            line = f"nll_loss_backward dloss=scalar target={where}:i64 size={dims}"
            execute(NLL, Graph.parse(line), values, 3, device, code=2)
        with pytest.raises(BadInput, match=f"nll_loss: target holds {bad}, allowed are 0 to 6 and -100"):
            vlug.nll_loss(x, target)


# --- rows by index ---
def test_embedding_and_its_gradient() -> None:
    w, i = data(11, 33).astype(np.float32), np.random.default_rng(0).integers(0, 11, (4, 50))
    np.testing.assert_array_equal(vlug.embedding(i, w), w[i])
    np.testing.assert_array_equal(vlug.embedding(i.astype(np.int32), w.T.copy().T), w[i])
    dy = data(4, 50, 33).astype(np.float32)
    want = np.zeros((11, 33), np.float32)
    for at in np.ndindex(4, 50):  # in this order, in f32
        want[i[at]] += dy[at]
    np.testing.assert_array_equal(vlug.embedding_backward(dy, i, 11), want)
    want[2] = 0
    np.testing.assert_array_equal(vlug.embedding_backward(dy, i, 11, 2), want)
    np.testing.assert_array_equal(vlug.embedding_backward(dy, i, 11, -9), want)


@pytest.mark.parametrize("bad", [-1, 11, 1 << 40, -(1 << 62)])
def test_an_index_out_of_range_is_an_error(bad: int) -> None:
    w, i = np.ones((11, 4), np.float32), np.zeros((3, 5), np.int64)
    i[2, 3] = bad
    with pytest.raises(BadInput, match=f"embedding: indices hold {bad}, allowed are 0 to 10"):
        vlug.embedding(i, w)
    with pytest.raises(BadInput, match=f"embedding_backward: indices hold {bad}, allowed are 0 to 10"):
        vlug.embedding_backward(np.ones((3, 5, 4), np.float32), i, 11)
    values = {"weight": w, "indices": i, "dy": np.ones((3, 5, 4), np.float32)}
    for line in (
        "embedding weight=11x4 indices=3x5:i64",
        "embedding_backward dy=3x5x4 indices=3x5:i64 size=11x4",
    ):
        for device in devices():
            execute(EMBEDDING, Graph.parse(line), values, 3, device, code=2)
    with pytest.raises(BadInput, match="padding_idx: 11 must be a row, -11 to 10"):
        vlug.embedding(i * 0, w, 11)


def test_embedding_adds_low_precision_rows_in_f32() -> None:
    dy = np.full((1000, 1), 1.0, ml_dtypes.bfloat16)
    assert vlug.embedding_backward(dy, np.zeros(1000, np.int64), 2)[0, 0] == 1000


# --- sequences ---
def ctc_batch(seed: int = 0, t: int = 30, n: int = 4, c: int = 9, s: int = 8) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((t, n, c))
    x -= np.log(np.exp(x).sum(2, keepdims=True))
    target = rng.integers(1, c, (n, s))
    target[:, 1] = target[:, 0]  # a label twice in a row needs a blank between
    lengths = (
        np.array([t, t - 3, t // 2, 5])[:n],
        np.array([s, 3, 0, s])[:n],
    )  # the last one fits no alignment
    return x, target, *lengths


@pytest.mark.framework
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_ctc_means_what_pytorch_means(padded: bool, zero: bool, reduction: str) -> None:
    torch = pytest.importorskip("torch")
    x, target, t, s = ctc_batch()
    if not padded:
        target = np.concatenate([row[:n] for row, n in zip(target, s)])
    kw = {"reduction": reduction, "zero_infinity": zero}
    logits = torch.from_numpy(x).requires_grad_()
    lengths = torch.from_numpy(t), torch.from_numpy(s)
    want = torch.nn.functional.ctc_loss(logits.log_softmax(2), torch.from_numpy(target), *lengths, **kw)
    got = vlug.ctc_loss(x, target, t, s, **kw)
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-12)
    dloss = np.asarray(np.abs(data(*want.shape)))
    want.backward(torch.from_numpy(dloss))
    dx = vlug.ctc_loss_backward(dloss, x, target, t, s, **kw)
    through = dx - np.exp(x) * dx.sum(2, keepdims=True)  # log-softmax's own gradient
    np.testing.assert_allclose(through, logits.grad.numpy(), rtol=1e-9, atol=1e-12)
    near = vlug.ctc_loss_backward(dloss.astype(np.float32), x.astype(np.float32), target, t, s, **kw)
    np.testing.assert_allclose(near, dx, rtol=1e-3, atol=1e-5)


def test_ctc_of_an_empty_target_is_the_blanks() -> None:
    p = np.array([[0.5, 0.5], [0.25, 0.75]])
    x, none = np.log(p)[:, None], np.zeros((1, 0), np.int64)
    got = vlug.ctc_loss(x, none, [2], [0], reduction="sum")
    assert got == pytest.approx(2.0794415, abs=1e-7)  # -Σ log p(blank)
    dx = vlug.ctc_loss_backward(np.ones(()), x, none, [2], [0], reduction="sum")
    np.testing.assert_allclose(dx[:, 0], [[-0.5, 0.5], [-0.75, 0.75]], atol=1e-12)
    assert vlug.ctc_loss(x[:, 0], none[0], 2, 0, reduction="sum") == got
    assert vlug.ctc_loss(x[:0], none, [0], [0], reduction="sum") == 0
    assert np.isinf(vlug.ctc_loss(x[:0], np.ones((1, 1), np.int64), [0], [1], reduction="sum"))


def test_ctc_of_long_targets_is_the_same_every_time() -> None:
    x, *_ = ctc_batch(1, 600, 2, 30)
    target = np.random.default_rng(1).integers(1, 30, (2, 256))
    given = (x.astype(np.float32), target, np.array([600, 590]), np.array([256, 250]))
    loss = vlug.ctc_loss(*given, reduction="none")
    exact = vlug.ctc_loss(x, *given[1:], reduction="none")
    np.testing.assert_allclose(loss, exact, rtol=1e-5)
    d = np.ones(2, np.float32)
    first = vlug.ctc_loss_backward(d, *given, reduction="none").tobytes()
    for threads in (1, 2, 3, 2, 1):
        with config.THREADS.using(threads):
            assert vlug.ctc_loss(*given, reduction="none").tobytes() == loss.tobytes()
            assert vlug.ctc_loss_backward(d, *given, reduction="none").tobytes() == first


def test_ctc_with_impossible_classes_has_a_finite_gradient() -> None:
    x, target, t, s = ctc_batch()
    x[:, :, 5] = -np.inf
    target[target == 5] = 6
    kw = {"reduction": "sum", "zero_infinity": True}
    assert np.isfinite(vlug.ctc_loss(x, target, t, s, **kw))
    assert np.isfinite(vlug.ctc_loss_backward(np.ones(()), x, target, t, s, **kw)).all()


def test_ctc_checks_lengths_and_labels() -> None:
    x, target, t, s = ctc_batch()
    wrong = target.copy()
    wrong[0, 3] = 9
    one = np.ones(())
    for call, words in (
        (lambda: vlug.ctc_loss(x, wrong, t, s), "ctc_loss: targets hold 9, allowed are 0 to 8"),
        (lambda: vlug.ctc_loss_backward(one, x, wrong, t, s), "ctc_loss_backward: targets hold 9"),
        (lambda: vlug.ctc_loss(x, target, t + 1, s), "input_lengths hold 31, allowed are 0 to 30"),
        (lambda: vlug.ctc_loss(x, target, t, -s), "target_lengths hold -8, allowed are 0 to 8"),
        (lambda: vlug.ctc_loss(x, target.ravel(), t, s), "add up to 19, targets has 32 labels"),
        (lambda: vlug.ctc_loss(x, target, t[:2], s), r"input_lengths: \(2,\) must be \(4,\)"),
        (lambda: vlug.ctc_loss(x, target, t, s, 9), "blank 9 must be a class, 0 to 8"),
        (lambda: vlug.ctc_loss(x, target, t, s, reduction="most"), "reduction: 'most' must be"),
        (lambda: vlug.ctc_loss_backward(np.ones(3), x, target, t, s), r"dloss: \(3,\) must be \(\)"),
    ):
        with pytest.raises(BadInput, match=words):
            call()
    line = "ctc_loss x=30x4x9:f64 target=4x8:i64 input_lengths=4:i64 target_lengths=4:i64"
    values = {"x": x, "target": target, "input_lengths": t, "target_lengths": s, "dloss": np.ones(4)}
    for change, code in (({"target": wrong}, 2), ({"input_lengths": t + 1}, 3), ({"target_lengths": -s}, 3)):
        for device in devices():
            execute(CTC, Graph.parse(line), values | change, 3, device, code=code)
            back = line.replace("ctc_loss ", "ctc_loss_backward dloss=4:f64 ")
            execute(CTC, Graph.parse(back), values | change, 3, device, code=code)
    longest = Graph.parse(line + " longest=1")
    execute(CTC, longest, values)
    execute(CTC, longest, values | {"target_lengths": np.minimum(s, 7)}, code=3)
