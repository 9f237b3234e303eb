"""Layout engine: every operation that moves elements, every item size, strides; the calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vlug
from native_check import check
from vlug.engines.cpu.axis import AxisEngine
from vlug.engines.cpu.layout import LayoutEngine
from vlug.errors import BadInput, DTypeError, ShapeError
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS
from vlug.runtime.device import host

ENGINE = LayoutEngine()
NAMES = ("reshape", "transpose", "slice", "slice_backward", "concatenate", "broadcast", "pad")
SAMPLES = [line for name in NAMES for line in OPERATIONS[name].samples()]
BACK = list(OPERATIONS["pad_backward"].samples())
KINDS = ("bf16", "f16", "f64", "i64", "i32", "u8", "bool")


def values(line: str) -> dict[str, np.ndarray]:
    rng, made = np.random.default_rng(0), {}
    for t in Graph.parse(line).inputs:
        plain = rng.standard_normal(t.dim) if t.dtype.kind == "f" else rng.integers(0, 99, t.dim)
        made[t.name] = (plain % 2 if t.dtype.kind == "b" else plain).astype(t.dtype.numpy)
    return made


@pytest.mark.parametrize("line", SAMPLES)
def test_samples(line: str) -> None:
    check(ENGINE, line, values(line), tolerance=0)


@pytest.mark.parametrize("line", BACK)
def test_pad_backward(line: str) -> None:
    check(AxisEngine(), line, values(line))


@pytest.mark.parametrize("kind", KINDS)
def test_types(kind: str) -> None:
    for line in (
        "transpose x=2x3x20x17:K permutation=0x2x3x1",
        "broadcast x=2x35x6x7:K -> y=2x35x6x7:K:nhwc",
        "broadcast x=2x3x6x20:K:nhwc -> y=2x3x6x20:K",
        "pad x=2x3x5x40:K pre=0x0x2x3 mode=reflect",
        "pad x=2x3x5x40:K pre=0x0x2x3 value=1.0",
        "concatenate x0=2x3x5x7:K x1=2x3x5x40:K x2=2x3x5x1:K axis=-1",
        "slice x=2x3x5x40:K step=1x2x2x3",
        "slice_backward dy=2x2x3x14:K step=1x2x2x3 size=2x3x5x40",
    ):
        full = line.replace(":K", f":{kind}")
        check(ENGINE, full, values(full), tolerance=0)


@pytest.mark.parametrize(
    "line",
    [
        "slice x=2x3x20x30:f32:s3000000000x600x30x1 start=0x0x3x4 stop=2x3x18x29",
        "pad x=2x3x20x30:f32:s3000000000x600x30x1 pre=0x0x1x1 mode=circular",
        "transpose x=100x100:f32:s0x1",
        "transpose x=70x90:f32:s200x2",
        "pad x=2x3x5x7:f32:s400x1x60x7 pre=1x1x1x1",
        "pad x=2x3x5x7 pre=1 -> y=4x5x7x9:f32:nhwc",
        "concatenate x0=20x30:f32:s1x20 x1=20x7 axis=1",
    ],
)
def test_strides(line: str) -> None:
    check(ENGINE, line, values(line), tolerance=0)


def test_refusals_say_why() -> None:
    for line, word in (
        ("relu x=3", "alone"),
        ("reshape x=4x6:f32:s1x4 size=3x8 -> y=3x8:f32:s1x3", "row-major"),
        ("pad x=3000000 pre=1", "entries"),
        ("broadcast x=3 -> y=3:f64", "bytes are moved"),
    ):
        assert word in (ENGINE.why_not(Graph.parse(line), host()) or ""), line


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad_is_numpys(mode: Any) -> None:
    x = np.arange(60.0).reshape(3, 4, 5)
    around = ((1, 0), (2, 3), (3, 1))
    ours = {"edge": "replicate", "wrap": "circular"}.get(mode, mode)
    y = vlug.pad(x, around, mode=ours)
    np.testing.assert_array_equal(y, np.pad(x, around, mode=mode))
    dy = np.random.default_rng(0).standard_normal(y.shape)
    # the transpose: ⟨pad x, dy⟩ = ⟨x, pad_backward dy⟩
    assert np.isclose((y * dy).sum(), (x * vlug.pad_backward(dy, around, mode=ours)).sum())


def test_calls() -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    same = np.testing.assert_array_equal
    same(vlug.reshape(x, (4, -1)), x.reshape(4, 6))
    same(vlug.permute(x), x.T)
    same(vlug.permute(x, (1, 2, 0)), x.transpose(1, 2, 0))
    taken = vlug.slice(x, (0, 1, None), (None, -1, None), (1, 1, 2))
    same(taken, x[:, 1:-1, ::2])
    back = vlug.slice_backward(np.ones_like(taken), x.shape, (0, 1, None), (None, -1, None), (1, 1, 2))
    assert back.sum() == taken.size
    assert back[:, 1:-1, ::2].all()
    for mine, his in zip(vlug.split(x, 3, -1), np.split(x, [3], -1)):
        same(mine, his)
    same(vlug.concatenate([x] * 20, 1), np.concatenate([x] * 20, 1))
    same(vlug.broadcast_to(x[:, :1], (5, 2, 3, 4)), np.broadcast_to(x[:, :1], (5, 2, 3, 4)))
    same(vlug.pad(x, ((0, -1), 0, (-1, 2))), np.pad(x[:1, :, 1:], ((0, 0), (0, 0), (0, 2))))
    same(vlug.pad(np.arange(6, dtype=np.int32), 2, value=7), np.pad(np.arange(6), 2, constant_values=7))
    out = np.empty((2, 3, 4))
    assert vlug.reshape(x.ravel(), (2, 3, 4), out=out) is out


X = np.ones((2, 3, 4), np.float32)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: vlug.reshape(X, (5, -1)), "do not divide"),
        (lambda: vlug.reshape(X, (5, 5)), "24 elements"),
        (lambda: vlug.permute(X, (0, 1, 1)), "twice"),
        (lambda: vlug.permute(X, (0, 1)), "2 numbers for 3"),
        (lambda: vlug.slice(X, None, None, (1, 0, 1)), "step"),
        (lambda: vlug.concatenate([]), "one or more"),
        (lambda: vlug.concatenate([X, X[:, :2]]), "must have x0's dims"),
        (lambda: vlug.concatenate([X, X.astype(np.float64)]), "x1 is f64"),
        (lambda: vlug.split(X, (1, 3), 0), "add up to 2"),
        (lambda: vlug.broadcast_to(X, (2, 2, 4)), "does not broadcast"),
        (lambda: vlug.pad(X, ((0, 0), (3, 0), (0, 0)), mode="reflect"), "at most 2"),
        (lambda: vlug.pad(X, ((0, 0), (-3, -1), (0, 0))), "leave nothing"),
        (lambda: vlug.pad(X, 1, mode="symmetric"), "must be one of"),
        (lambda: vlug.pad(X, ((1, 2, 3),) * 3), "padding"),
    ],
)
def test_bad_calls_name_the_argument(call: Any, words: str) -> None:
    with pytest.raises((BadInput, DTypeError, ShapeError), match=words):
        call()
