"""Measuring and deciding: order, ties, what is remembered. Time itself is made up: nothing is flaky."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vlug import tune
from vlug.engines.base import EngineConfig
from vlug.graph import Graph
from vlug.runtime import timing
from vlug.store import STOCK_TORCH, Store

DEVICE: Any = SimpleNamespace(fingerprint="test", cores=2, isa="avx2", l2=1 << 20, l3=0)
GRAPH = Graph.parse("relu x=4x8")


@pytest.fixture
def clock(monkeypatch):
    """A clock that only calls made by `takes` move."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def takes(*seconds: float):
        log: list[float] = []

        def call():
            log.append(now[0])
            now[0] += seconds[min(len(log) - 1, len(seconds) - 1)]

        call.log = log  # type: ignore[attr-defined]
        return call

    return takes


def test_before_is_called_for_each_call_outside_the_time(clock):
    before, a = clock(50.0), clock(1.0)
    s = tune.measure({"a": a}, rounds=(3, 3), cold=False, before=before)["a"]
    assert s.median == 1.0
    assert (len(before.log), len(a.log)) == (3, 4)  # the first call is not timed


def test_a_tie_keeps_the_earlier():
    one, close, fast = (timing.Stats(t, t, 0.0, 5) for t in (1.0, 0.99, 0.9))
    assert tune.fastest({"a": one, "b": close}) == "a"
    assert tune.fastest({"a": one, "b": close, "c": fast}) == "c"


@pytest.mark.parametrize(("ours", "take"), [(0.5, True), (1.0, True), (1.02, True), (1.2, False)])
def test_decide_prefers_the_faster_and_ours_in_a_tie(clock, monkeypatch, ours, take):
    monkeypatch.setattr(tune, "flush", lambda: None)
    store = Store(None)
    a, b = clock(ours), clock(1.0)
    how: Any = {"config": EngineConfig("cpu.x", (("mr", 4),)), "stock_version": "2.13.0", "threads": 2,
                "device": DEVICE, "store": store}  # fmt: skip
    assert tune.decide(GRAPH, a, b, **how) is take
    kept = {(t.engine, t.version, t.knobs, t.threads, t.seconds) for t in store.timings()}
    assert {k[:4] for k in kept} == {("cpu.x", "1", "mr=4", 2), (STOCK_TORCH, "2.13.0", "", 2)}
    calls = len(a.log)
    assert tune.decide(GRAPH, a, b, **how) is take
    assert len(a.log) == calls, "it is measured once"


def test_flush_writes_over_the_caches():
    f = tune._Flush()
    f()
    assert f._block is not None
    assert f._block.size >= 1 << 20
    assert f._block.min() == 1
