"""Graphs: building, checks as they are built, and the problem line."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlug.errors import BadInput, DTypeError, ParseError, ShapeError
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS
from vlug.testing import problem_lines, variants

EXAMPLES = [
    "conv_fprop x=8x64x56x56:f32:nhwc w=64x64x3x3:f32 pad=1",
    "conv_fprop x=8x3x224x224:f32 w=64x3x7x7:f32 pad=3 stride=2 -> a; bias a b=64:f32 -> c; relu c",
    "batchnorm x=8x64x56x56:f32 scale=64:f32 bias=64:f32 running_mean=64:f32 running_var=64:f32",
    "conv_fprop x=2x3x8x8:f32 w=4x3x2x2:f32 pad=0 post=1x2 stride=2x1 -> y=2x4x4x9:f32:nhwc",
    "max_pool x=2x3x8x8:f32 window=3x2 pad=1x0 stride=2 ceil=1 -> y",
    "max_pool x=2x3x8x8:f32 window=2 pad=2 dilation=3 -> y",  # without dilation the padding is too large
    "batchnorm_backward dy=2x3:f32 x=2x3:f32 scale=3:f32 mean=3:f32 inv_std=3:f32 -> _, dscale, dbias",
    "relu x=2x3:f32 -> a!; add a b=2x3:f32",
    "mul a=2x3:f32 b=a",
]


@pytest.mark.parametrize("line", EXAMPLES)
def test_lines_round_trip(line: str) -> None:
    g = Graph.parse(line)
    assert Graph.parse(g.line).line == g.line
    assert Graph.parse(g.line) == g
    assert hash(Graph.parse(g.line)) == hash(g)


def test_the_line_leaves_out_what_is_default_or_inferred() -> None:
    g = Graph.parse(
        "conv_fprop x=2x3x8x8 w=4x3x3x3 pad=0x0 post=0 stride=1x1 dilation=1 groups=1 -> y=2x4x6x6"
    )
    assert g.line == "conv_fprop x=2x3x8x8:f32 w=4x3x3x3:f32"
    g = Graph.parse("max_pool x=2x3x8x8 window=2 stride=2x2 -> y, index")
    assert g.line == "max_pool x=2x3x8x8:f32 window=2"
    g = Graph.parse("avg_pool x=2x3x8x8 window=3 pad=1 post=0")
    assert g.line == "avg_pool x=2x3x8x8:f32 window=3 pad=1 post=0"


def test_builder_methods_say_the_same_as_lines() -> None:
    g = Graph()
    x, w = g.tensor("x", (2, 3, 8, 8), layout="nhwc"), g.tensor("w", (4, 3, 3, 3))
    b = g.tensor("b", (4,))
    y = g.relu(g.bias(g.conv_fprop(x, w, padding=1, stride=2, names=("a",)), b, names=("c",)))
    assert g.line == (
        "conv_fprop x=2x3x8x8:f32:nhwc w=4x3x3x3:f32 pad=1 stride=2 -> a; bias a b=4:f32 -> c; relu c"
    )
    assert g.outputs == (y,)
    assert [t.name for t in g.inputs] == ["x", "w", "b"]
    assert [t.name for t in g.virtuals] == ["a", "c"]
    assert g.cost.flops == 2 * 2 * 4 * 4 * 4 * 27 + 2 * (2 * 4 * 4 * 4)


def test_asymmetric_padding_and_tuples() -> None:
    g = Graph()
    x, w = g.tensor("x", (1, 1, 4, 4)), g.tensor("w", (1, 1, 2, 2))
    y = g.conv_fprop(x, w, pre_padding=0, post_padding=[1, 1])
    assert y.dim == (1, 1, 4, 4)
    assert g.nodes[0].op.post_padding == (1, 1)
    with pytest.raises(BadInput, match="attribute 'paddding' is unknown"):
        g.call("conv_fprop", x, w, paddding=1)
    with pytest.raises(BadInput, match="attribute size is required"):
        g.call("conv_dgrad", y, w)


def test_outputs_may_be_left_out_or_marked() -> None:
    g = Graph.parse("max_pool x=2x3x8x8 window=2 -> y")
    assert [t.name for t in g.outputs] == ["y"]
    g = Graph.parse("batchnorm x=4x3")
    assert [t.name for t in g.outputs] == ["y", "mean", "inv_std"]
    g = Graph.parse("relu x=4x3 -> a; relu a -> y")
    assert [t.name for t in g.outputs] == ["y"]
    g.output(g.tensors["a"])
    assert [t.name for t in g.outputs] == ["a", "y"]
    assert "-> a!" in g.line
    assert [t.name for t in Graph.parse(g.line).outputs] == ["a", "y"]


def test_subgraphs_hand_out_what_others_read() -> None:
    g = Graph.parse("relu x=4x3 -> a; relu a -> b; add a b -> y")
    first, rest = g.subgraph([0, 1]), g.subgraph([2])
    assert [t.name for t in first.outputs] == ["a", "b"]
    assert [t.name for t in rest.inputs] == ["a", "b"]
    assert Graph.parse(first.line) == first


def test_the_line_follows_changes() -> None:
    g = Graph()
    x = g.tensor("x", (2, 3))
    a = g.relu(x)
    before = g.line
    g.relu(a)
    assert g.line != before
    assert Graph.parse(g.line) == g


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ("", ParseError, "no operation"),
        ("batch_norm x=2", ParseError, "'batch_norm' is unknown; the nearest are batchnorm, .*`vlug list"),
        ("xyzzy x=2", ParseError, r"'xyzzy' is unknown \(`vlug list operations`"),
        ("relu y=2x3", ParseError, "attribute 'y' is unknown"),
        ("relu x=2x3 z", ParseError, "'z' is neither"),
        ("relu x=abc", ParseError, "x='abc' is neither dims nor a tensor"),
        ("relu", BadInput, "input x is missing"),
        ("relu x=2x3 negative_slope=steep", ParseError, "negative_slope: 'steep' is not float"),
        ("max_pool x=1x1x4x4 window=2 ceil=2", ParseError, "ceil: '2' is not bool"),
        ("relu x=2x3 -> 1y", BadInput, "tensor name: '1y'"),
        ("relu x=2x3 -> x", BadInput, "'x' is already in the graph"),
        ("relu x=2x3 -> y, z", BadInput, "relu has 1 output"),
        ("relu x=2x3 -> _", BadInput, "output y cannot be left out"),
        ("relu x=2x3 -> y=3x2", ShapeError, r"y has dims \(2, 3\), not \(3, 2\)"),
        ("relu x=2x3 -> y=2x3:i64", DTypeError, "y is f32, not i64"),
        ("relu x=2x3 -> y=2x3:f32:s1x1", ShapeError, "make elements share memory"),
        ("add a=2x3", BadInput, "input b is missing"),
    ],
)
def test_refusals(line: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Graph.parse(line)


def test_tensors_of_another_graph_are_refused() -> None:
    g, other = Graph(), Graph()
    x = other.tensor("x", (2, 3))
    with pytest.raises(BadInput, match="not a tensor of this graph"):
        g.relu(x)
    with pytest.raises(BadInput, match="not a tensor of this graph"):
        g.output(x)


@given(st.sampled_from(sorted(OPERATIONS)).flatmap(problem_lines))
def test_made_up_problems_round_trip(line: str) -> None:
    g = Graph.parse(line)
    assert Graph.parse(g.line) == g
    for _, variant in variants(line):
        assert Graph.parse(variant.line) == variant


@given(st.text("convfpxw=:;->_!,0123456789 x", max_size=60))
def test_nonsense_is_refused_with_an_error_of_ours(text: str) -> None:
    with contextlib.suppress(BadInput):
        Graph.parse(text)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_samples_print_and_parse(name: str) -> None:
    """What an operation says of itself survives its text, also where all sizes are equal."""
    for line in OPERATIONS[name].samples():
        g = Graph.parse(line)
        assert Graph.parse(g.line) == g


@pytest.mark.parametrize("line", ["nll_loss_backward dloss=scalar target=1:i64 size=1x1",
                                  "nll_loss_backward dloss=scalar target=5:i64 size=5x5",
                                  "nll_loss_backward dloss=scalar target=3x3:i64 size=3x3x3",
                                  "nll_loss_backward dloss=scalar target=scalar:i64 size=4"])  # fmt: skip
def test_equal_sizes_print_as_one_and_parse_as_all(line: str) -> None:
    g = Graph.parse(line)
    assert Graph.parse(g.line) == g
    assert g.outputs[0].dim == tuple(map(int, line.rpartition("=")[2].split("x")))
