"""Operations: samples infer what their references compute, gradients agree with finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vlug.errors import BadInput, DTypeError, ShapeError
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS
from vlug.tensor import Tensor
from vlug.testing_fills import fill

SAMPLES = [line for name in sorted(OPERATIONS) for line in OPERATIONS[name].samples()]


def values(g: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Random float64 inputs of a graph; integer inputs are filled by what reads them."""
    rng = np.random.default_rng(seed)
    out = {}
    for t in g.inputs:
        out[t.name] = rng.standard_normal(t.dim) if t.dtype.kind == "f" else _integers(g, t, rng)
        node = next((n for n in g.nodes if t.name in n.inputs), None)
        if node is not None and t.dtype.kind == "f":
            port = node.op.port(node.inputs.index(t.name))
            out[t.name] = DOMAINS.get((node.op.name, port), lambda x: x)(out[t.name])
    return out


#: Where an operation is smooth, if that is not everywhere.
DOMAINS = {
    **{(n, "x"): lambda x: np.abs(x) + 0.5 for n in ("log", "sqrt", "rsqrt", "reciprocal")},
    ("batchnorm_inference", "var"): lambda x: np.abs(x) + 0.5,
    ("pow", "a"): lambda x: np.abs(x) + 0.5,
    ("div", "b"): lambda x: x + np.copysign(0.5, x),
    ("mod", "b"): lambda x: np.abs(x) + 5,
    ("tan", "x"): np.tanh,
}


#: Operations that take integers or bools.
POINTWISE = ("identity", "binary_select", "logical_and", "logical_or", "logical_not")


def _integers(g: Graph, t: Tensor, rng: np.random.Generator) -> np.ndarray:
    node = next(n for n in g.nodes if t.name in n.inputs)
    if node.op.name.startswith("cross_entropy"):
        x = g.tensors[node.inputs[[p.rstrip("?") for p in node.op.inputs].index("x")]]
        target = rng.integers(0, max(x.dim[1], 1), t.dim)
        return np.where(rng.random(t.dim) < 0.2, node.op.ignore_index, target)
    if node.op.name.endswith("max_pool_backward"):  # windows may share an element: any index in range
        return rng.integers(0, max(math.prod(node.op.size), 1), t.dim)
    if "seed" in node.op.inputs:
        return rng.integers(0, 1 << 40, t.dim)
    if node.op.name in POINTWISE:
        return rng.integers(0, 2 if t.dtype.kind == "b" else 100, t.dim)
    return fill(g, "real", 1)[t.name]


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
        return bool(g.outputs) and 0 < sum(t.numel for t in g.inputs) < 4000 and any(_vjp(g)[1])
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
    if node.op.name == "ctc_loss":  # targets that fit an alignment: no other has a gradient
        at["input_lengths"][...], at["target_lengths"] = at["x"].shape[0], np.minimum(at["target_lengths"], 3)
    for t in grads:
        at.setdefault(t.name, rng.standard_normal(t.dim))
    known = evaluate(h, at)
    pairs = [(n, o) for n, o in zip(node.outputs, [f"g{i}" for i in range(len(node.outputs))]) if o in at]

    def loss(point: dict[str, np.ndarray]) -> float:
        out = evaluate(g, {n: point[n] for n in point if n in g.tensors})
        finite = {y: np.where(np.isneginf(out[y]), 0, out[y]) for y, _ in pairs}  # windows that reach nothing
        return sum(float((finite[y] * at[dy]).sum()) for y, dy in pairs)

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
    ("max_pool x=1x1x2x2 window=2 pad=2", ShapeError, "pad 2 must be at most half the window's extent 2"),
    ("max_pool x=1x1x4x4", BadInput, "attribute window is required"),
    ("max_pool x=4x4 window=2", ShapeError, "must have 3 dimensions or more"),
    ("max_pool x=1x1x2x2 window=5", ShapeError, "a window of 5"),
    ("max_pool_backward dy=1x1x2x2 index=1x1x2x2:f32 window=2 size=4", ShapeError, "index is f32"),
    ("max_pool_backward dy=1x1x2x2 index=1x1x2x2:i64 window=2 size=8", ShapeError, "gives dy spatial dims"),
    ("avg_pool x=1x1x4x4 window=2 divisor=-1", ShapeError, "divisor -1 must be 0"),
    ("batchnorm x=2x3x4x4 scale=4", ShapeError, r"scale \(4,\) must be \(3,\)"),
    ("batchnorm x=2x3x4x4 running_mean=3", ShapeError, "must be given together"),
    ("batchnorm x=2x3 scale=3:i64", DTypeError, "scale is i64"),
    ("batchnorm x=2x3 -> y, mean, inv_std, a, b", BadInput, "next_running_mean does not exist"),
    ("batchnorm x=2x3 -> y, _, inv_std", BadInput, "output mean cannot be left out"),
    ("batchnorm_backward dy=2x3 x=2x4 mean=4 inv_std=4", ShapeError, "must have the same dims"),
    ("softmax x=2x3 axis=2", ShapeError, "axis 2 is out of range"),
    ("softmax_backward dy=2x3 y=3x2", ShapeError, "must have the dims of dy"),
    ("cross_entropy x=2x3 target=3:i64", ShapeError, r"target \(3,\) must be \(2,\)"),
    ("cross_entropy x=2x3 target=2:f32", DTypeError, "target is f32, allowed is i64"),
    ("cross_entropy x=2x3 target=2:i64 reduction=max", ShapeError, "reduction 'max' must be one of"),
    ("cross_entropy x=2x3 target=2:i64 label_smoothing=2.0", ShapeError, "must be from 0 to 1"),
    ("reduction x=2x3 axes=2", ShapeError, "axis 2 is out of range"),
    ("reduction x=2x3 axes=0x0", ShapeError, "name a dimension twice"),
    ("reduction x=2x3 mode=maximum", ShapeError, "mode .maximum. must be one of"),
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


# --- against PyTorch, where it is installed: an independent reading of the same definitions ---
def reference(line: str, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    return evaluate(Graph.parse(line), inputs)


POOLS = [line for line in SAMPLES if line.startswith(("max_pool x", "avg_pool x")) and " post=" not in line]


@pytest.mark.framework
@pytest.mark.parametrize("line", POOLS)
def test_pooling_means_what_pytorch_means(line: str) -> None:
    torch = pytest.importorskip("torch")
    g = Graph.parse(line)
    op, (x,) = g.nodes[0].op, g.inputs
    if x.rank not in (3, 4) or 0 in x.dim[1:] or ("dilation=2 pad=1 stride=1" in line and x.dim[2] == 1):
        pytest.skip("PyTorch refuses it")
    data = np.random.default_rng(0).integers(-3, 4, x.dim).astype(np.float64)  # ties
    data[..., -1:] = np.nan if x.dim[-1] > 4 else data[..., -1:]
    of = torch.nn.functional
    if op.name == "max_pool":
        pool = of.max_pool2d if x.rank == 4 else of.max_pool1d
        args = (op.window, op.stride, op.pre_padding, op.dilation, op.ceil)
        y, index = pool(torch.from_numpy(data), *args, return_indices=True)
        want = {"y": y.numpy(), "index": index.numpy()}
    else:
        args = (op.window, op.stride, op.pre_padding, op.ceil, op.count_include_pad)
        if x.rank == 4:
            y = of.avg_pool2d(torch.from_numpy(data), *args, op.divisor or None)
        else:
            y = of.avg_pool1d(torch.from_numpy(data), *args)
        want = {"y": y.numpy()}
    got = reference(line, x=data)
    for t in g.outputs:
        np.testing.assert_allclose(got[t.name], want[t.name], rtol=1e-14)


@pytest.mark.framework
@pytest.mark.parametrize("line", [s for s in SAMPLES if s.startswith("cross_entropy x")])
def test_cross_entropy_means_what_pytorch_means(line: str) -> None:
    torch = pytest.importorskip("torch")
    g = Graph.parse(line)
    op, inputs = g.nodes[0].op, values(g, seed=3)
    weight = inputs.get("weight")
    if weight is not None:
        inputs["weight"] = weight = np.abs(weight)
    loss = torch.nn.functional.cross_entropy(
        torch.from_numpy(inputs["x"]),
        torch.from_numpy(inputs["target"]),
        None if weight is None else torch.from_numpy(weight),
        ignore_index=op.ignore_index,
        reduction=op.reduction,
        label_smoothing=op.label_smoothing,
    )
    np.testing.assert_allclose(reference(line, **inputs)["loss"], loss.numpy(), rtol=1e-12)


@pytest.mark.framework
@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (5, 6), (2, 3, 7)])
def test_batchnorm_means_what_pytorch_means(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    c = shape[1]
    x, scale, bias, mean = (rng.standard_normal(s) for s in (shape, c, c, c))
    var = rng.random(c) + 0.5
    dims = "x".join(map(str, shape))
    got = reference(
        f"batchnorm x={dims} scale={c} bias={c} running_mean={c} running_var={c} momentum=0.3 eps=0.01",
        x=x, scale=scale, bias=bias, running_mean=mean, running_var=var,
    )  # fmt: skip
    m, v = torch.from_numpy(mean.copy()), torch.from_numpy(var.copy())
    y = torch.nn.functional.batch_norm(
        torch.from_numpy(x), m, v, torch.from_numpy(scale), torch.from_numpy(bias), True, 0.3, 0.01
    )
    np.testing.assert_allclose(got["y"], y.numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(got["next_running_mean"], m.numpy(), rtol=1e-12)
    np.testing.assert_allclose(got["next_running_var"], v.numpy(), rtol=1e-12)
    got = reference(
        f"batchnorm_inference x={dims} mean={c} var={c} scale={c} bias={c} eps=0.01",
        x=x, mean=mean, var=var, scale=scale, bias=bias,
    )  # fmt: skip
    y = torch.nn.functional.batch_norm(
        *(torch.from_numpy(a) for a in (x, mean, var, scale, bias)), False, 0.3, 0.01
    )
    np.testing.assert_allclose(got["y"], y.numpy(), rtol=1e-10, atol=1e-12)
