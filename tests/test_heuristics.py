"""Heuristics: classes of problems, what is expected of them, the roofline, the table's making."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vlug import heuristics
from vlug.errors import BadInput
from vlug.graph import Graph
from vlug.heuristics import classify, expect, roofline
from vlug.ops.base import Cost
from vlug.runtime.device import FAKE
from vlug.store import STOCK_TORCH, Store, Timing

HERE = replace(FAKE["avx512"], fingerprint="test")


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("conv_fprop x=8x64x56x56 w=64x64x1x1", "conv_fprop/nchw/1x1/f32/p56"),
        ("conv_fprop x=8x64x56x56 w=64x64x1x1 stride=2", "conv_fprop/nchw/1x1s/f32/p28"),
        ("conv_fprop x=8x64x14x14:bf16:nhwc w=64x64x3x3:bf16:nhwc pad=1", "conv_fprop/nhwc/3x3/bf16/p14"),
        ("conv_fprop x=8x3x224x224 w=64x3x7x7 pad=3 stride=2", "conv_fprop/nchw/kxks/f32/p56"),
        ("conv_fprop x=8x64x28x28 w=64x64x3x3 pad=2 dilation=2", "conv_fprop/nchw/kxk/f32/p28"),
        ("conv_fprop x=8x64x28x28 w=64x1x3x3 pad=1 groups=64", "conv_fprop/nchw/depthwise/f32/p28"),
        ("conv_fprop x=8x64x28x28 w=64x32x3x3 pad=1 groups=2", "conv_fprop/nchw/grouped/f32/p28"),
        ("conv_dgrad dy=8x64x7x7 w=64x64x3x3 pad=1 size=7", "conv_dgrad/nchw/3x3/f32/p7"),
        ("conv_wgrad dy=8x256x7x7 x=8x64x14x14 stride=2 size=1", "conv_wgrad/nchw/1x1s/f32/p7"),
        ("conv_fprop x=1x3x8x8 w=4x3x3x3 -> a; relu a -> y", "conv_fprop/nchw/3x3/f32/tiny"),
        ("conv_fprop x=8x64x9x9 w=64x64x1x1 -> a; bias a b=64 -> c; relu c", "conv_fprop/nchw/1x1/f32/p14"),
        ("relu x=8x64x56x56", "relu/nchw/-/f32/large"),
        ("relu x=8x4x8x8:f32:nhwc", "relu/nhwc/-/f32/tiny"),
        ("relu x=8x64x28x28:f32:s100352x784x28x1", "relu/strided/-/f32/small"),
        ("matmul a=64x64 b=64x64", "matmul/nchw/-/f32/tiny"),
    ],
)  # fmt: skip
def test_classes(line, key):
    assert classify(Graph.parse(line)).key == key


@pytest.fixture
def known(monkeypatch):
    """A table of one class."""
    rows = {"conv_fprop/nchw/3x3/f32/p28": {"ratio": 1.5, "why": "3 layers"}}
    monkeypatch.setattr(heuristics, "_expectations", lambda: {"isa": ["avx512"], "classes": rows})


def three(plane: int) -> Graph:
    return Graph.parse(f"conv_fprop x=8x64x{plane}x{plane} w=64x64x3x3 pad=1")


def test_expect_reads_the_table(known):
    e = expect(three(28), HERE)
    assert e.ratio == 1.5
    assert "conv_fprop/nchw/3x3/f32/p28: 3 layers" in e.why


def test_expect_borrows_with_a_margin(known):
    e = expect(three(56), HERE)
    assert e.ratio == pytest.approx(1.5 * 0.9)
    assert "borrowed from p28" in e.why


def test_expect_is_careful_on_another_isa(known):
    assert expect(three(28), FAKE["avx2"]).ratio == pytest.approx(1.5 * 0.9)


def test_products_of_bf16_are_expected_only_where_they_were_measured(monkeypatch):
    rows = {"conv_fprop/nchw/3x3/bf16/p28": {"ratio": 1.5, "why": "3 layers", "products": "amx"}}
    monkeypatch.setattr(heuristics, "_expectations", lambda: {"isa": ["avx512"], "classes": rows})
    graph = Graph.parse("conv_fprop x=8x64x28x28:bf16 w=64x64x3x3:bf16 pad=1")
    assert expect(graph, FAKE["amx"]).ratio == 1.5
    for name in ("avx512", "avx512_bf16", "avx2"):
        e = expect(graph, FAKE[name])
        assert e.ratio == 0
        assert "with amx only" in e.why


@pytest.mark.parametrize("line", ["relu x=8x64x56x56", "conv_fprop x=1x2x6x6 w=2x2x3x3 pad=1"])
def test_nothing_is_expected_of_what_was_never_measured(known, line):
    e = expect(Graph.parse(line), HERE)
    assert e.ratio == 0
    assert "never measured" in e.why


def test_measured_times_come_first(known):
    store = Store(None)
    for engine, seconds in (("cpu.conv_nchw", 2e-3), (STOCK_TORCH, 1e-3)):
        store.record(Timing(three(28).line, "test", engine, "1", "", 4, seconds))
    assert expect(three(28), HERE, store).ratio == pytest.approx(0.5)
    assert expect(three(28), HERE, store, threads=1).ratio == 1.5


def test_the_committed_table():
    table = heuristics._expectations()
    assert table["classes"]
    assert ".json" in table["source"], "figures come from results, not from guesses"
    for key, row in table["classes"].items():
        assert key.count("/") == 4
        assert 0.05 < row["ratio"] < 50
        assert "layers" in row["why"]


def test_roofline():
    roof = roofline(FAKE["avx512"])
    assert not roof.measured
    assert roof.flops == 4 * 160e9
    small, big = Cost(1000, 1 << 20), Cost(1000, 1 << 30)
    assert roof.seconds(small, three(28)) == (1 << 20) / roof.cache
    assert roof.bound(small, three(28)) == "cache"
    assert roof.bound(big, three(28)) == "memory"
    assert roof.bound(Cost(10**15, 1), three(28)) == "arithmetic"


def result(*ratios: float, mode: str = "force") -> dict:
    rows = [
        {"line": three(28).line, "name": f"layer{i}", "ratio": r, "taken": True} for i, r in enumerate(ratios)
    ]
    return {"mode": mode, "isa": "avx512", "rows": rows}


def test_the_table_is_made_of_results():
    pytest.importorskip("torch")
    from vlug.bench.expect import table

    made = table([("a.json", result(1.0, 2.0)), ("b.json", result(4.0))])
    (row,) = made["classes"].values()
    assert row["ratio"] == 2.0
    assert made["source"] == "a.json, b.json"
    (row,) = table([("a.json", result(4.0, 0.5))])["classes"].values()
    assert row["ratio"] == 0.5, "a class with a slow layer counts as fast as that layer"
    shaken = result(4.0, 0.1)
    shaken["rows"][1]["stock_spread"] = 3.0
    (row,) = table([("a.json", shaken)])["classes"].values()
    assert row["ratio"] == 4.0, "a row that scatters is not counted"
    half = result(1.5) | {"products": "amx"}
    half["rows"][0]["line"] = "conv_fprop x=8x64x28x28:bf16 w=64x64x3x3:bf16 pad=1"
    (row,) = table([("a.json", half)])["classes"].values()
    assert row["products"] == "amx"
    with pytest.raises(BadInput, match=r"a.json: not a result of vlug bench --force"):
        table([("a.json", result(1.0, mode="shipped"))])
