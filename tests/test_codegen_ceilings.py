"""Measured ceilings: the kernels compute what they claim, figures are kept and validated."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vlug import config
from vlug.codegen import ceilings, jit, native
from vlug.codegen.isa import runnable
from vlug.runtime import device
from vlug.runtime.device import Ceilings


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VLUG_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(device, "_known", {})
    return tmp_path


@pytest.mark.isa
@pytest.mark.parametrize("isa", runnable(), ids=str)
def test_the_kernels_do_what_is_counted(isa):
    y = np.zeros(3, np.float32)
    rounds, sums = 50, 2 * isa.registers // 3
    native.call(jit.compiled(ceilings.multiply_adds, isa), [y.ctypes.data], {"units": 3, "rounds": rounds})
    one = 0.0
    for _ in range(rounds):
        one = one * 0.999 + 0.001
    np.testing.assert_allclose(y, one * sums * isa.lanes, rtol=1e-5)
    kernel = jit.generate(ceilings.multiply_adds, isa)
    assert jit.spills(kernel, isa) == (sums, 0)
    x, y = np.random.default_rng(0).random((2, 3, 256), np.float32)
    program = jit.compiled(ceilings.copy, isa)
    native.call(program, [x.ctypes.data, y.ctypes.data], {"n": 256, "times": 2, "units": 3})
    np.testing.assert_array_equal(x, y)
    native.call(jit.compiled(ceilings.read, isa), [x.ctypes.data, y.ctypes.data], {"n": 256, "units": 3})
    np.testing.assert_allclose(y.ravel()[:3], x.sum(1), rtol=1e-5)


def test_figures_are_kept(cache):
    a, b = Ceilings(1e11, 1e10, 2e10), Ceilings(2e11, 3e10, 4e10)
    assert device.load_ceilings("a") is None
    device.save_ceilings("a", a)
    device.save_ceilings("b", b)
    device._known.clear()
    assert device.load_ceilings("a") == a
    assert device.load_ceilings("b") == b
    assert device.load_ceilings("c") is None
    with config.STORE.using(False):
        assert device.load_ceilings("a") is None


@pytest.mark.parametrize("text", [
    "", "[]", "{", '{"a": 3}', '{"a": {"flops": 1e11}}',
    '{"a": {"flops": -1, "memory": 1e10, "cache": 1e10}}',
    '{"a": {"flops": "x", "memory": 1e10, "cache": 1e10}}',
    '{"a": {"flops": 1e11, "memory": 1e10, "cache": 1e10, "when": "now"}}',
    '{"a": {"flops": 1e11, "memory": 1e10, "cache": 1e10, "more": 1e10}}',
])
def test_a_bad_file_counts_as_none(cache, text):
    (cache / "ceilings.json").write_text(text)
    assert device.load_ceilings("a") is None
    device.save_ceilings("a", Ceilings(1e11, 1e10, 2e10))
    device._known.clear()
    assert device.load_ceilings("a") == Ceilings(1e11, 1e10, 2e10)
    assert json.loads((cache / "ceilings.json").read_text())["a"]["flops"] == 1e11


@pytest.mark.skipif(not runnable(), reason="this machine runs no kernel ISA")
def test_this_machine_is_measured_once():
    host = device.host()
    first = ceilings.measured(host)
    assert 1e9 < first.flops < 1e15
    assert 1e8 < first.memory < 1e13
    assert 1e8 < first.cache < 1e14
    assert ceilings.measured(host) == first == host.ceilings()


def test_figures_count_for_a_day(monkeypatch):
    host, now = device.host(), [1e9]
    monkeypatch.setattr(ceilings.time, "time", lambda: now[0])
    found = [Ceilings(1e11, 1e10, 2e10, now[0]), Ceilings(9e10, 2e10, 2e10, now[0] + ceilings.DAY)]

    def measure(d):
        device.save_ceilings(d.fingerprint, found[0])
        return found.pop(0)

    monkeypatch.setattr(ceilings, "measure", measure)
    first = ceilings.measured(host)
    now[0] += ceilings.DAY - 1
    assert ceilings.measured(host) == first
    now[0] += 2
    assert ceilings.measured(host).memory == 2e10
    now[0] = 0  # a clock that was set back
    with pytest.raises(IndexError):
        ceilings.measured(host)


def test_a_result_beyond_the_ceiling_has_it_measured_again(monkeypatch):
    host, calls = device.host(), []
    device.save_ceilings(host.fingerprint, Ceilings(1e11, 1e10, 2e10, 5.0))

    def measure(d):
        calls.append(d)
        return Ceilings(2e11, 5e9, 2e10, 6.0)

    monkeypatch.setattr(ceilings, "measure", measure)
    assert not ceilings.beyond(host, 1.05)
    assert calls == []
    assert ceilings.beyond(host, 1.06)
    assert host.ceilings() == Ceilings(2e11, 1e10, 2e10, 6.0)  # the higher of each
    assert not ceilings.beyond(host, 1.5)  # an engine that does fewer operations
    assert len(calls) == 2
