"""Softmax and cross-entropy engines: samples, layouts, types, -inf, NaN, bad targets."""

from __future__ import annotations

import numpy as np
import pytest

from native_check import check, devices, execute, normal
from vlug.engines.base import Engine
from vlug.engines.cpu.loss import CrossEntropyEngine
from vlug.engines.cpu.softmax import SoftmaxEngine
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS
from vlug.runtime.device import host

NAMES = ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward")
SOFTMAX, LOSS = SoftmaxEngine(), CrossEntropyEngine()
SAMPLES = [line for name in NAMES for line in OPERATIONS[name].samples()]
LOSSES = [line for name in ("cross_entropy", "cross_entropy_backward") for line in OPERATIONS[name].samples()]


def inputs(line: str) -> dict[str, np.ndarray]:
    """Random tensors; a y that softmax or log-softmax could give; targets among the classes, some ignored."""
    g = Graph.parse(line)
    values, node = normal(g), g.nodes[0]
    rng = np.random.default_rng(1)
    if "y" in values and values["y"].size:
        y = values["y"].astype(np.float64)
        shape = y.shape
        (soft,) = OPERATIONS[node.op.name.replace("_backward", "")](node.op.axis).reference(y)
        values["y"] = soft.reshape(shape).astype(values["y"].dtype)
    if "target" in values:
        x = g.tensors["x"]
        target = rng.integers(0, x.dim[1], g.tensors["target"].dim)
        values["target"] = np.where(rng.random(target.shape) < 0.2, node.op.ignore_index, target)
        if target.size == 1:
            values["target"] = target
    if "weight" in values:
        values["weight"] = rng.random(values["weight"].shape).astype(values["weight"].dtype)
    if "lse" in values:
        x = values["x"].astype(np.float64)
        values["lse"] = np.log(np.exp(x).sum(1)).astype(np.float32)
    return values


@pytest.mark.parametrize("line", SAMPLES)
def test_softmax_samples(line: str) -> None:
    check(SOFTMAX, line, inputs(line), tolerance=8)


@pytest.mark.parametrize("line", LOSSES)
def test_cross_entropy_samples(line: str) -> None:
    check(LOSS, line, inputs(line), tolerance=16)


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("shape", ["9x77", "3x21x6x50"])
def test_types(kind: str, shape: str) -> None:
    x = f"{shape}:{kind}"
    for line in (
        f"softmax x={x} axis=1",
        f"log_softmax x={x} axis=1",
        f"softmax_backward dy={x} y={x} axis=1",
        f"log_softmax_backward dy={x} y={x} axis=1",
    ):
        check(SOFTMAX, line, inputs(line), tolerance=2)
    n, _, *rest = shape.split("x")
    target = "x".join((n, *rest))
    for line in (
        f"cross_entropy x={x} target={target}:i64",
        f"cross_entropy_backward dloss=scalar:{kind} x={x} target={target}:i64",
    ):
        check(LOSS, line, inputs(line), tolerance=4)


@pytest.mark.parametrize(
    "line",
    [
        "softmax x=8x21x30x40 axis=1",
        "softmax x=8x21x30x40:f32:nhwc axis=1",
        "log_softmax x=8x21x30x40 axis=1",
        "log_softmax x=40x2000",
        "softmax x=500x10",
        "softmax x=6x50:f32:s100x2",
        "softmax x=6x50:f32:s0x1",
        "softmax x=5x6x7 axis=1 -> y=5x6x7:f32:s1x5x30",
        "softmax x=2x3x4x5 axis=2",
        "softmax_backward dy=8x21x30x40 y=8x21x30x40 axis=1",
        "log_softmax_backward dy=300x100 y=300x100",
        "softmax_backward dy=6x50:f32:s0x1 y=6x50",
        "softmax x=2x100:f32:s3000000000x1",
    ],
)
def test_softmax_layouts(line: str) -> None:
    check(SOFTMAX, line, inputs(line), tolerance=8)


@pytest.mark.parametrize("tail", ["", "label_smoothing=0.1", "reduction=sum", "reduction=none"])
@pytest.mark.parametrize(
    "line",
    [
        "x=8x21x30x40 target=8x30x40:i64 weight=21",
        "x=8x21x30x40:f32:nhwc target=8x30x40:i64",
        "x=64x1000 target=64:i64",
        "x=64x100:f32:s300x3 target=64:i64:s2 weight=100:f32:s2",
        "x=6x20x9:f32:s1000x2x50 target=6x9:i64",
    ],
)
def test_cross_entropy_layouts(line: str, tail: str) -> None:
    check(LOSS, f"cross_entropy {line} {tail}", inputs(f"cross_entropy {line} {tail}"), tolerance=16)
    dloss = line.split("target=")[1].split(":")[0] if "none" in tail else "scalar"
    back = f"cross_entropy_backward dloss={dloss} {line} {tail}"
    check(LOSS, back, inputs(back), tolerance=16)


def test_infinities_and_nan_as_the_reference() -> None:
    x = np.random.default_rng(0).standard_normal((8, 40)).astype(np.float32)
    x[0, :] = -np.inf
    x[1, 3], x[2, 5], x[3, :39], x[4, 0] = -np.inf, np.nan, -np.inf, 1e38
    x[5] *= 50
    for op in ("softmax", "log_softmax"):
        check(SOFTMAX, f"{op} x=8x40", {"x": x}, tolerance=100)
        check(SOFTMAX, f"{op} x=40x8 axis=0", {"x": np.ascontiguousarray(x.T)}, tolerance=100)
    x[6, 7] = np.inf
    got = execute(SOFTMAX, Graph.parse("softmax x=8x40"), {"x": x})["y"]
    assert np.isnan(got[6]).all()


def test_all_positions_ignored() -> None:
    target = np.full(5, -100)
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    got = check(LOSS, "cross_entropy x=5x7 target=5:i64", {"x": x, "target": target})
    assert np.isnan(got["loss"])
    line = "cross_entropy_backward dloss=scalar x=5x7 target=5:i64"
    check(LOSS, line, {"x": x, "target": target, "dloss": np.ones((), np.float32)})


@pytest.mark.parametrize("bad", [-1, 7, 1 << 40, -(1 << 62)])
def test_a_target_out_of_range_is_an_error(bad: int) -> None:
    for shape, rest in (((5, 7), (5,)), ((2, 7, 20), (2, 20))):
        x, target = np.ones(shape, np.float32), np.zeros(rest, np.int64)
        target[-1, ...] = bad
        words = f"x={'x'.join(map(str, shape))} target={'x'.join(map(str, rest))}:i64"
        for line in (f"cross_entropy {words}", f"cross_entropy_backward dloss=scalar {words}"):
            values = {"x": x, "target": target, "dloss": np.ones((), np.float32)}
            for device in devices():
                execute(LOSS, Graph.parse(line), values, 3, device, code=2)


def test_refusals_say_why() -> None:
    cases: list[tuple[Engine, str, str]] = [
        (SOFTMAX, "relu x=3", "alone"),
        (LOSS, "softmax x=3", "alone"),
        (LOSS, "cross_entropy x=0x0 target=0:i64", "classes"),
    ]
    for engine, line, word in cases:
        assert word in (engine.why_not(Graph.parse(line), host()) or ""), line
