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
