"""Plans: choice, split, workspace, native words, checks of arrays, reasons."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from vlug import heuristics
from vlug.codegen import native
from vlug.engines.base import Engine, EngineConfig, NativeProgram, Program
from vlug.errors import BadInput, DTypeError, NotSupported, ShapeError, VlugWarning
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS, Operation
from vlug.plan import clear_plans, plan
from vlug.store import Store, Timing

pytestmark = pytest.mark.usefixtures("operations")
DEVICE: Any = SimpleNamespace(fingerprint="test", cores=2, isa="avx2", l2=1 << 20, l3=0)


@pytest.fixture
def operations(monkeypatch):
    """A small set of operations, so that these tests are about plans only."""

    @dataclass(frozen=True)
    class Twice(Operation):
        name: ClassVar[str] = "twice"
        inputs: ClassVar[tuple[str, ...]] = ("x",)

        def infer(self, *inputs):
            return (inputs[0],)

        def reference(self, *inputs):
            return (2 * inputs[0],)

    @dataclass(frozen=True)
    class Once(Twice):
        name: ClassVar[str] = "once"

        def reference(self, *inputs):
            return (1 * inputs[0],)

    monkeypatch.setitem(OPERATIONS, "twice", Twice)
    monkeypatch.setitem(OPERATIONS, "once", Once)
    clear_plans()
    heuristics._warned.clear()
    yield
    clear_plans()


class Python(Engine):
    """Runs graphs through their definitions, in Python."""

    def __init__(self, name: str, takes: set[str], longest: int = 9, share: float = 0.5) -> None:
        self.name = name  # type: ignore[misc]
        self.takes, self.longest, self._share = takes, longest, share
        self.compiled: list[str] = []

    def why_not(self, graph, device):
        bad = [n.op.name for n in graph if n.op.name not in self.takes]
        if bad:
            return f"{bad[0]} is not taken"
        return f"at most {self.longest} operations" if len(graph) > self.longest else None

    def knobs(self, graph, device):
        return {"mr": (4, 8)}

    def share(self, graph, device):
        return self._share

    def compile(self, graph, config, device) -> Program:
        self.compiled.append(str(config))

        class Run:
            def run(self, arrays: Mapping[str, Any]) -> None:
                held = dict(arrays)
                for node in graph:
                    outs = node.op.reference(*[held[n] for n in node.inputs])
                    for name, value in zip(node.outputs, outs):
                        if name in arrays:
                            arrays[name][...] = value
                        held[name] = value

        return Run()


class Native(Python):
    def compile(self, graph, config, device) -> Program:
        names = tuple(t.name for t in (*graph.inputs, *graph.outputs))
        return NativeProgram(4242, names, (7, 8, 9), 4096 * len(graph), 8192, (f"k_{self.name}",))


def line(*ops: str) -> Graph:
    """A chain of operations, each reading what the one before made (t0, t1, …)."""
    clauses = [f"{o} {'x=4x8' if i == 0 else f't{i - 1}'} -> t{i}" for i, o in enumerate(ops)]
    return Graph.parse("; ".join(clauses))


def test_higher_share_wins_and_the_reason_is_kept():
    slow, fast = Python("slow", {"once"}, share=0.2), Python("fast", {"once"}, share=0.8)
    g = Graph.parse("once x=512x512")
    p = plan(g, DEVICE, engines=[slow, fast])
    assert p.engine == "fast"
    assert p.config == EngineConfig("fast", (("mr", 4),))
    assert [r.engine for r in p.rejected] == ["slow"]
    assert slow.compiled == []


def test_ties_keep_the_order_of_the_list():
    a, b = Python("a", {"once"}, share=0.50), Python("b", {"once"}, share=0.51)
    assert plan("once x=512x512", DEVICE, engines=[a, b]).engine == "a"
    assert plan("once x=512x512", DEVICE, engines=[b, a]).engine == "b"


def test_measured_times_come_first():
    a, b = Python("a", {"once"}, share=0.9), Python("b", {"once"}, share=0.1)
    store = Store(None)
    for engine, knobs, seconds in (("a", "mr=4", 2e-3), ("b", "mr=8", 1e-3), ("b", "mr=4", 3e-3)):
        store.record(Timing("once x=512x512:f32", "test", engine, "1", knobs, 2, seconds))
    p = plan("once x=512x512", DEVICE, engines=[a, b], store=store)
    assert str(p.config) == "b/mr=8"
    assert p.seconds == 1e-3


def test_a_timing_with_knobs_that_are_no_longer_allowed_is_ignored():
    store = Store(None)
    store.record(Timing("once x=512x512:f32", "test", "a", "1", "mr=99", 2, 1e-9))
    p = plan("once x=512x512", DEVICE, engines=[Python("a", {"once"})], store=store)
    assert str(p.config) == "a/mr=4"


def test_a_new_timing_makes_a_new_plan():
    a, b = Python("a", {"once"}, share=0.9), Python("b", {"once"}, share=0.1)
    store = Store(None)
    first = plan("once x=512x512", DEVICE, engines=(engines := [a, b]), store=store)
    assert plan("once x=512x512", DEVICE, engines=engines, store=store) is first
    store.record(Timing("once x=512x512:f32", "test", "b", "1", "mr=4", 2, 1e-9))
    assert plan("once x=512x512", DEVICE, engines=engines, store=store).engine == "b"


def test_greedy_split_takes_the_largest_pieces_from_the_front():
    one, two = Native("one", {"once"}), Native("two", {"twice"}, longest=2)
    g = line("once", "once", "twice", "twice", "twice", "once")
    p = plan(g, DEVICE, engines=[one, two])
    assert [len(s.graph) for s in p.steps] == [2, 2, 1, 1]
    assert [s.config.engine for s in p.steps] == ["one", "two", "two", "one"]
    assert p.explain(as_dict=True)["split"]


def test_split_plan_computes_the_whole():
    one, two = Python("one", {"once"}), Python("two", {"twice"})
    g = line("twice", "once", "twice")
    p = plan(g, DEVICE, engines=[one, two])
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    y = np.full((4, 8), np.nan, np.float32)
    p.execute({"x": x, g.outputs[0].name: y})
    np.testing.assert_array_equal(y, 4 * x)


def test_native_words():
    one, two = Native("one", {"once"}), Native("two", {"twice"})
    g = line("once", "twice", "once", "twice")
    p = plan(g, DEVICE, engines=[one, two])
    words = list(p.native())
    # Intermediates of 4·8·4 = 128 bytes: t0 and t2 may share, t1 lies beside them; rounded to a page.
    assert words[:6] == [4, 4096, 4096, 8192, 2, 1]  # so small that one thread serves
    steps = [words[6 + 5 * i : 11 + 5 * i] for i in range(4)]
    t0, t1, t2 = native.temporary(0), native.temporary(128), native.temporary(0)
    assert [s[0] for s in steps] == [4242] * 4
    assert [s[2:] for s in steps] == [[2, 0, t0], [2, t0, t1], [2, t1, t2], [2, t2, 1]]
    assert list((ctypes.c_int64 * 3).from_address(steps[0][1])) == [7, 8, 9]
    assert p.workspace_size(3) == 4096 + 4096 + 8192
    assert p.kernels == ("k_one", "k_two", "k_one", "k_two")
    assert list(p.native(["t3", "x"]))[-2:] == [t2, 0]
    assert p.native() is p.native()


def test_native_order_must_name_every_tensor():
    p = plan("once x=4x8", DEVICE, engines=[Native("one", {"once"})])
    with pytest.raises(BadInput, match="y of the graph"):
        p.native(["x"])


def test_a_python_plan_has_no_native_form():
    p = plan("once x=4x8", DEVICE, engines=[Python("one", {"once"})])
    assert not p.is_native
    with pytest.raises(NotSupported, match="not native"):
        p.native()


def test_reference_serves_last_and_warns_once():
    slow = Python("reference", {"once", "twice"})
    fast = Python("fast", {"twice"})
    with pytest.warns(VlugWarning, match="fast: once is not taken"):
        assert plan("once x=4x8", DEVICE, engines=[fast, slow]).engine == "reference"
    plan("once x=4x9", DEVICE, engines=[fast, slow])  # an error if it warned again


def test_reference_is_silent_about_empty_tensors():
    assert plan("once x=0x8", DEVICE, engines=[Python("reference", {"once"})]).engine == "reference"


def test_without_reference_every_reason_is_told():
    engines = [Python("a", {"twice"}), Python("b", set()), Python("reference", {"once"})]
    with pytest.raises(NotSupported) as e:
        plan("once x=4x8", DEVICE, engines=engines, allow_reference=False)
    assert e.value.reasons == (("a", "once is not taken"), ("b", "once is not taken"))


def test_prefer_names_an_engine_or_a_configuration():
    engines = [Python("a", {"once"}, share=0.9), Python("b", {"once"}, share=0.1)]
    assert plan("once x=4x8", DEVICE, engines=engines, prefer="b").engine == "b"
    assert str(plan("once x=4x8", DEVICE, engines=engines, prefer="b/mr=8").config) == "b/mr=8"
    with pytest.raises(BadInput, match="mr=5 is not one of"):
        plan("once x=4x8", DEVICE, engines=engines, prefer="b/mr=5")
    with pytest.raises(BadInput, match="'c' is unknown"):
        plan("once x=4x8", DEVICE, engines=engines, prefer="c")
    with pytest.raises(NotSupported, match="twice is not taken"):
        plan("twice x=4x8", DEVICE, engines=engines, prefer="a")


def test_an_engine_that_refuses_while_compiling_is_passed_over():
    class Shy(Python):
        def compile(self, graph, config, device):
            raise NotSupported("no room")

    p = plan(
        "once x=4x8", DEVICE, engines=[Shy("shy", {"once"}, share=0.9), Python("b", {"once"}, share=0.1)]
    )
    assert p.engine == "b"
    assert ("shy", "compile refused: no room") in [(r.engine, r.why) for r in p.rejected]


@pytest.mark.parametrize(
    ("arrays", "error", "match"),
    [
        ({"x": np.zeros((4, 8), np.float32)}, BadInput, "y: no array"),
        ({"x": np.zeros((4, 9), np.float32)}, ShapeError, r"x: dims are \(4, 9\)"),
        ({"x": np.zeros((4, 8), np.float64)}, DTypeError, "x: dtype is f64"),
        ({"x": np.zeros((8, 4), np.float32).T}, ShapeError, "x: strides are"),
        ({"x": "abc"}, BadInput, "x: str is no array"),
        ({"x": 0}, BadInput, "x: its address is null"),
        ({"x": np.zeros((4, 8), np.float32), "z": 1}, BadInput, "z: not a tensor"),
    ],
)
def test_bad_arrays_are_named(arrays, error, match):
    p = plan("once x=4x8", DEVICE, engines=[Python("one", {"once"})])
    with pytest.raises(error, match=match):
        p.execute(arrays)


def test_outputs_must_be_writable_and_apart():
    p = plan("once x=4x8", DEVICE, engines=[Python("one", {"once"})])
    x = np.zeros((4, 8), np.float32)
    y = np.zeros((4, 8), np.float32)
    y.flags.writeable = False
    with pytest.raises(BadInput, match="y: the array is read-only"):
        p.execute({"x": x, "y": y})
    with pytest.raises(BadInput, match="y: its memory overlaps that of x"):
        p.execute({"x": x, "y": x})


def test_an_output_that_overlaps_itself_is_refused():
    with pytest.raises(ShapeError, match="share memory"):
        plan("once x=4x8 -> y=4x8:f32:s0x1", DEVICE, engines=[Python("one", {"once"})])


def test_strides_of_size_one_dimensions_mean_nothing():
    p = plan("once x=1x8", DEVICE, engines=[Python("one", {"once"})])
    x = np.lib.stride_tricks.as_strided(np.ones(8, np.float32), (1, 8), (4 * 77, 4))
    y = np.empty((1, 8), np.float32)
    p.execute({"x": x, "y": y})
    assert (y == 1).all()


def test_addresses_are_taken_as_they_are():
    p = plan("twice x=4x8", DEVICE, engines=[Python("one", {"twice"})])
    x, y = np.ones((4, 8), np.float32), np.empty((4, 8), np.float32)
    p.execute({"x": x.ctypes.data, "y": y.ctypes.data})
    assert (y == 2).all()


def test_explain_tells_choice_cost_and_reasons():
    p = plan("once x=512x512", DEVICE, engines=[Native("a", {"once"}), Native("b", {"twice"})])
    d = p.explain(as_dict=True)
    assert d["engine"] == "a"
    assert d["steps"][0]["knobs"] == {"mr": 4}
    assert d["steps"][0]["kernels"] == ["k_a"]
    assert d["rejected"] == [{"engine": "b", "line": p.graph.line, "why": "once is not taken"}]
    text = p.explain()
    for part in ("a/mr=4", "kernels: k_a", "roofline", "b: once is not taken"):
        assert part in text


def test_a_tiny_problem_is_served_by_one_thread() -> None:
    """A second thread may sleep: waking it costs more than the problem (word 5 of a plan is the cap)."""
    tiny, large = plan("conv_wgrad dy=1x4x4x4 x=1x4x4x4 size=1x1"), plan("relu x=8x64x56x56")
    assert (tiny.native()[5], large.native()[5] > 1000) == (1, True)
