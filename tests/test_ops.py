"""Operations: samples infer what their references compute, gradients agree with finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vlug.errors import BadInput, DTypeError, ShapeError
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS
from vlug.tensor import Tensor

SAMPLES = [line for name in sorted(OPERATIONS) for line in OPERATIONS[name].samples()]


def values(g: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Random float64 inputs of a graph; integer inputs are filled by what reads them."""
    rng = np.random.default_rng(seed)
    out = {}
    for t in g.inputs:
        out[t.name] = rng.standard_normal(t.dim) if t.dtype.kind == "f" else _integers(g, t, rng)
    return out


def _integers(g: Graph, t: Tensor, rng: np.random.Generator) -> np.ndarray:
    node = next(n for n in g.nodes if t.name in n.inputs)
    if node.op.name.startswith("cross_entropy"):
        x = g.tensors[node.inputs[[p.rstrip("?") for p in node.op.inputs].index("x")]]
        target = rng.integers(0, max(x.dim[1], 1), t.dim)
        return np.where(rng.random(t.dim) < 0.2, node.op.ignore_index, target)
    if node.op.name == "max_pool_backward":  # distinct windows may share an element: any index in range does
        return rng.integers(0, max(math.prod(node.op.size), 1), t.dim)
    raise AssertionError(f"no integers for {t}")


def evaluate(g: Graph, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every tensor of a graph by the operations' references."""
    known = dict(inputs)
    for node in g.nodes:
        outs = node.op.reference(*(None if n is None else known[n] for n in node.inputs))
        known.update((n, a) for n, a in zip(node.outputs, outs) if n is not None)
    return known


@pytest.mark.parametrize("line", SAMPLES)
def test_sample_round_trips_and_infers_what_the_reference_gives(line: str) -> None:
    g = Graph.parse(line)
    assert Graph.parse(g.line) == g
    known = evaluate(g, values(g))
    for t in g.outputs:
        assert known[t.name].shape == t.dim, t
        assert known[t.name].dtype == (np.float64 if t.dtype.kind == "f" else np.int64)
    assert g.cost.flops >= 0
    assert g.cost.bytes >= 0


def differentiable(line: str) -> bool:
    try:
        g = Graph.parse(line)
        return bool(g.outputs) and 0 < sum(t.numel for t in g.inputs) < 4000 and _vjp(g) is not None
    except NotImplementedError:
        return False


def _vjp(g: Graph) -> tuple[Graph, list[Tensor | None], list[Tensor]]:
    """The graph and, appended, the gradient of Σ dy·y over the floating outputs that may have one."""
    h = Graph.parse(g.line)
    node = h.nodes[0]
    grads: list[Tensor | None] = []
    for i, name in enumerate(node.outputs):
        t = None if name is None else h.tensors[name]
        first = i == 0 or node.op.name.endswith("_backward")
        grads.append(None if t is None or not first or t.dtype.kind != "f" else h.like(f"g{i}", t))
    outs = [None if n is None else h.tensors[n] for n in node.outputs]
    dins = node.op.vjp(h, h.ins(node), outs, grads)
    return h, list(dins), [t for t in grads if t is not None]


GRADIENTS = [line for line in SAMPLES if differentiable(line)]


@pytest.mark.parametrize("line", GRADIENTS)
def test_vjp_agrees_with_finite_differences(line: str) -> None:
    g = Graph.parse(line)
    h, dins, grads = _vjp(g)
    node = h.nodes[0]
    at = values(h, seed=1)
    rng = np.random.default_rng(2)
    if node.op.name == "max_pool":  # distinct values: no step of eps changes which is largest
        at["x"] = rng.permutation(at["x"].size).reshape(at["x"].shape) / 10.0
    for t in grads:
        at.setdefault(t.name, rng.standard_normal(t.dim))
    known = evaluate(h, at)
    pairs = [(n, o) for n, o in zip(node.outputs, [f"g{i}" for i in range(len(node.outputs))]) if o in at]

    def loss(point: dict[str, np.ndarray]) -> float:
        out = evaluate(g, {n: point[n] for n in point if n in g.tensors})
        return sum(float((out[y] * at[dy]).sum()) for y, dy in pairs)

    checked = 0
    for name, d in zip(node.inputs, dins):
        if name is None or d is None:
            continue
        assert d.dim == h.tensors[name].dim
        step = rng.standard_normal(at[name].shape)
        eps = 1e-6
        plus, minus = ({**at, name: at[name] + s * eps * step} for s in (1, -1))
        want = (loss(plus) - loss(minus)) / (2 * eps)
        got = float((known[d.name] * step).sum())
        assert got == pytest.approx(want, rel=2e-5, abs=1e-6 * (1 + np.abs(known[d.name]).sum())), name
        checked += 1
    assert checked or all(h.tensors[n].numel == 0 for n in node.inputs if n)


def test_every_operation_has_samples_docs_and_a_builder_method() -> None:
    for name, op in OPERATIONS.items():
        assert list(op.samples()), name
        assert op.__doc__, name
        assert callable(getattr(Graph, name)), name


WRONG = [
    ("conv_fprop x=2x3x8x8 w=4x4x3x3", ShapeError, "x has 3 channels.*4 × 1 = 4"),
    ("conv_fprop x=2x3x8x8 w=4x3x3", ShapeError, r"w \(4, 3, 3\) must have as many dimensions as x"),
    ("conv_fprop x=2x4x8x8 w=5x2x3x3 groups=2", ShapeError, "groups 2 must divide the 5 output channels"),
    ("conv_fprop x=2x3x8x8 w=4x3x3x3:bf16", DTypeError, "w is bf16 but x is f32"),
    ("conv_fprop x=2x3x8x8:i64 w=4x3x3x3:i64", DTypeError, "x is i64, allowed are"),
    ("conv_fprop x=2x3x8x8 w=4x3x9x9", ShapeError, "a window of 9"),
    ("conv_fprop x=2x3x8x8 w=4x3x3x3 stride=0", ShapeError, "stride: .* must be 1 or more"),
    ("conv_fprop x=2x3x8x8 w=4x3x3x3 pad=-1", ShapeError, "pad: .* must be 0 or more"),
    ("conv_fprop x=2x3x8x8 w=4x3x3x3 pad=1x1x1", ShapeError, "pad: .* has 3 numbers"),
    ("conv_fprop x=2x3x8x8 w=4x3x0x3", ShapeError, "w's spatial dims"),
    ("conv_fprop x=2x3x8x8 w=4x3x3x3 groups=0", ShapeError, "groups 0 must be 1 or more"),
    ("conv_fprop x=2x3 w=4x3", ShapeError, "must have 3 dimensions or more"),
    ("conv_fprop x=2x3x8x8 w=4x3x3x3 colour=1", BadInput, "attribute 'colour' is unknown"),
    ("conv_dgrad dy=2x4x6x6 w=4x3x3x3", BadInput, "size .*required"),
    ("conv_dgrad dy=2x4x6x6 w=4x3x3x3 size=9", ShapeError, "gives dy spatial dims"),
    ("conv_wgrad dy=2x4x6x6 x=3x3x8x8 size=3", ShapeError, "same batch size"),
    ("matmul a=3x4 b=5x6", ShapeError, "K = 4, but b"),
    ("matmul a=3 b=3x6", ShapeError, "a .* must have 2 dimensions or more"),
    ("matmul a=2x3x4 b=3x4x6", ShapeError, "do not broadcast"),
    ("bias x=2x3x4x4 b=4", ShapeError, r"b \(4,\) must be \(3,\)"),
    ("bias x=2x3 b=3 axis=2", ShapeError, "axis 2 is out of range"),
    ("add a=2x3 b=2x4", ShapeError, "do not broadcast"),
    ("relu x=2x3 upper_clip=-1.0", ShapeError, "upper_clip -1.0 must be"),
    ("relu_backward dy=2x3 x=3x2", ShapeError, "must have the same dims"),
    ("reduction x=2x3 axes=2", ShapeError, "axis 2 is out of range"),
    ("reduction x=2x3 axes=0x0", ShapeError, "name a dimension twice"),
    ("reduction x=2x3 mode=max", ShapeError, "mode 'max' must be add or mean"),
]


@pytest.mark.parametrize(("line", "error", "message"), WRONG)
def test_wrong_arguments_are_named(line: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Graph.parse(line)


def test_conv_agrees_with_a_direct_sum() -> None:
    rng = np.random.default_rng(0)
    g = Graph.parse("conv_fprop x=2x4x5x6 w=6x2x3x2 pad=1x0 post=2x1 stride=2x1 dilation=1x2 groups=2")
    x, w = rng.standard_normal((2, 4, 5, 6)), rng.standard_normal((6, 2, 3, 2))
    y = evaluate(g, {"x": x, "w": w})["y"]
    want = np.zeros(y.shape)
    for n, k, p, q in np.ndindex(*y.shape):
        for c, r, s in np.ndindex(2, 3, 2):
            h, v = p * 2 + r - 1, q + 2 * s
            if 0 <= h < 5 and 0 <= v < 6:
                want[n, k, p, q] += x[n, k // 3 * 2 + c, h, v] * w[k, c, r, s]
    np.testing.assert_allclose(y, want, rtol=0, atol=1e-12)
