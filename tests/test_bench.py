"""Benchmarks: what the sets hold, that the peers compute what the lines say, sums, files written."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest

from vlug.bench import problems as sets
from vlug.engines.reference import evaluate
from vlug.errors import BadInput, NotSupported
from vlug.graph import Graph

NETWORKS = ("resnet_50", "resnet_50:bn", "resnet_50:relu", "resnet_50:pool", "resnet_50:softmax",
            "resnet_50:linear", "resnet_50:mean")  # fmt: skip
SMALL = ("tails", "dilated", "mobilenet_dw", "regression_dw", "pool/2d_small", "pool/global_pooling",
         "bnorm/regressions", "softmax/nlp")  # fmt: skip


@pytest.mark.parametrize("name", sets.set_names())
def test_every_set_parses(name):
    for p in sets.problems(name, batch=None):
        assert Graph.parse(p.line).line == p.line
        assert p.layout in sets.LAYOUTS
        assert p.which in sets.PASSES


def test_the_source_of_the_shapes_is_named():
    data = sets.shapes()
    assert "oneDNN" in data["source"]
    assert "Apache-2.0" in data["licence"]


def test_resnet_50_is_whole():
    found = sets.problems("resnet_50")
    assert len(found) == 20 * 3 * 2
    convs = sum(p.count for p in found if p.which == "fwd" and p.layout == "nchw")
    assert convs == 53
    assert (
        sum(p.count for p in sets.problems("resnet_50:bn") if p.which == "fwd" and p.layout == "nchw") == 53
    )
    flops = sum(p.graph.cost.flops * p.count for p in found if p.which == "fwd" and p.layout == "nchw")
    assert flops / 8 == pytest.approx(7.7e9, rel=0.1)  # ResNet-50 v1: 3.9 G multiply-adds an image


def test_filters():
    some = sets.problems("resnet_50", batch=2, layouts=["nhwc"], passes=["dgrad"], dtype="bf16")
    assert len(some) == 20
    assert all(":bf16:nhwc" in p.line and p.line.startswith("conv_dgrad dy=2x") for p in some)


def test_unknown_set_is_named():
    with pytest.raises(BadInput, match="'vgg_99' is unknown; there are resnet_50"):
        sets.problems("vgg_99")


torch = pytest.importorskip("torch")
from vlug.bench import runner  # noqa: E402
from vlug.bench.peers import peer  # noqa: E402


@pytest.mark.framework
@pytest.mark.parametrize("name", [*NETWORKS, *SMALL])
def test_peers_compute_what_the_line_says(name):
    """One small problem of each operation and layout: value, dims, strides and dtype of every result."""
    seen = set()
    for p in sets.problems(name, batch=2):
        g = p.graph
        key = (g.nodes[0].op.name, p.layout)
        if key in seen or g.cost.flops > 2e8 or g.cost.bytes > 3e7:
            continue
        seen.add(key)
        agrees(g)
    assert seen


@pytest.mark.framework
@pytest.mark.parametrize("line", [
    "conv_fprop x=2x3x8x8 w=4x3x3x3 pad=1 -> a; bias a b=4",
    "matmul a=5x7 b=7x3 -> c; bias c b:d=3 axis=1",
    "conv_dgrad dy=2x4x6x6:f32:s0x0x0x0 w=4x3x3x3 size=8x8",
])
def test_peers_of_what_a_model_meets(line):
    """A bias in the operator itself, a gradient that is one number repeated."""
    agrees(Graph.parse(line))


@pytest.mark.framework
@pytest.mark.parametrize("line", [
    "conv_fprop x=2x3x8x8 w=4x3x3x3 -> a; bias a b=6 axis=2",
    "conv_fprop x=2x3x8x8 w=4x3x3x3 -> a; relu a",
    "matmul a=2x5x7 b=7x3 -> c; bias c b:d=5 axis=1",
])
def test_no_peer(line):
    with pytest.raises(NotSupported):
        peer(Graph.parse(line))


def agrees(g):
    """PyTorch's operator gives what the graph means, with its dims, strides and dtypes."""
    made = peer(g)
    inputs = {
        n: t.double().numpy() if t.is_floating_point() else t.numpy() for n, t in made.tensors.items()
    }
    want = evaluate(g, {n: a.copy() for n, a in inputs.items()})
    results = made.call()
    checked = 0
    for label, got in zip(made.results, results if isinstance(results, tuple) else (results,)):
        if not label:
            continue
        t = g.tensors[label]
        assert tuple(got.shape) == t.dim
        assert t.has_strides(got.stride()), (g.line, label)
        scale = max(float(np.abs(want[label]).max()), 1e-9)
        assert float(np.abs(got.double().numpy() - want[label]).max()) / scale < 1e-4, (g.line, label)
        checked += 1
    assert checked


@pytest.mark.framework
def test_weights_change_before_each_timed_call():
    made = peer(Graph.parse("conv_fprop x=1x2x4x4 w=2x2x1x1"))
    before = made.tensors["w"].clone()
    made.before()
    assert not torch.equal(before, made.tensors["w"])


@pytest.mark.framework
def test_no_peer_is_said():
    with pytest.raises(NotSupported, match="conv_fprop; relu"):
        peer(Graph.parse("conv_fprop x=1x2x4x4 w=2x2x1x1; relu y -> z"))
    with pytest.raises(NotSupported, match="pads alike"):
        peer(Graph.parse("conv_fprop x=1x2x4x4 w=2x2x2x2 pad=0 post=1"))


def row(ratio, **other):
    base = {"operation": "relu", "layout": "nchw", "taken": True, "name": "a", "count": 2, "ratio": ratio,
            "stock": 2.0, "vlug": 1.0}  # fmt: skip
    return base | other


def test_summary_is_a_geometric_mean_with_the_worst_layer():
    (s,) = runner.summarise([row(4.0), row(1.0, name="b"), row(None, taken=False, stock=None, vlug=None)])
    assert s["ratio"] == pytest.approx(2.0)
    assert (s["worst"], s["worst_name"]) == (1.0, "b")
    assert (s["taken"], s["layers"]) == (2, 3)
    assert s["stock_seconds"] == 8.0
    assert math.isnan(runner.geometric([]))


@pytest.mark.framework
def test_direct_bench_writes_its_files(tmp_path, capsys):
    from vlug.__main__ import main

    files = {k: tmp_path / f"b.{k}" for k in ("json", "csv", "png")}
    words = ["bench", "resnet_50:softmax", "--direct", "--budget", "0.01", "--json", str(files["json"]),
             "--csv", str(files["csv"]), "--plot", str(files["png"])]  # fmt: skip
    assert main(words) == 0
    assert "geometric means" in capsys.readouterr().out
    data = json.loads(files["json"].read_text())
    assert [r["pass"] for r in data["rows"]] == ["fwd", "bwd"]
    assert all(r["ratio"] == pytest.approx(r["stock"] / r["vlug"]) for r in data["rows"])
    assert data["taken"] == 2
    assert len(list(csv.DictReader(files["csv"].open()))) == 2
    if data["rows"]:
        pytest.importorskip("matplotlib")
        assert files["png"].read_bytes().startswith(b"\x89PNG")


@pytest.mark.framework
def test_hooked_bench_counts_what_was_taken(capsys):
    from vlug.__main__ import main

    words = ["bench", "resnet_50:relu", "--force", "--budget", "0.01", "--batch", "1", "--layout", "nchw",
             "--only", "64x112", "--json"]  # fmt: skip
    code = main(words)
    out, err = capsys.readouterr()
    if code and "not on" in err:
        pytest.skip(err.strip())
    data = json.loads(out)
    assert data["mode"] == "force"
    assert data["of"] == 2
    assert all(r["taken"] or r["why"] for r in data["rows"])
    assert any(r["taken"] for r in data["rows"])
