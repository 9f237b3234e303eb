"""Devices, configuration and the log."""

from __future__ import annotations

import threading

import pytest

from vlug import config, log
from vlug.codegen import isa as tables
from vlug.errors import BadInput, ConfigError, NotSupported
from vlug.runtime import device


def test_the_host():
    d = device.host()
    assert d.cores >= 1
    assert 8 << 10 <= d.l1 <= 1 << 20
    assert d.l2 >= 128 << 10
    assert len(d.fingerprint) == 16
    assert d.isa in (*device.KERNEL_ISAS, "none")
    assert d is device.host()
    assert str(d.cores) in str(d)


def test_vlug_isa_caps_the_host():
    full = device.host()
    if full.isa in ("none", "neon"):
        pytest.skip("no ISA of ours here")
    with config.ISA.using("avx2"):
        d = device.host()
        assert d.isa == "avx2"
        assert d.fingerprint != full.fingerprint or full.isa == "avx2"
        assert tables.isa_for_host() is tables.AVX2
    with config.ISA.using("none"):
        assert device.host().isa == "none"
        assert tables.isa_for_host() is None
        with pytest.raises(NotSupported):
            tables.isa_of(device.host())


@pytest.mark.parametrize(("files", "cores"), [
    ({"cpu.max": "150000 100000\n"}, 2), ({"cpu.max": "max 100000\n"}, 1 << 20),
    ({"cpu.max": "50000 100000"}, 1),
    ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
    ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1 << 20), ({}, 1 << 20),
])
def test_a_containers_quota(monkeypatch, files, cores):
    def read(path):
        name = str(path).removeprefix("/sys/fs/cgroup/")
        if name not in files:
            raise FileNotFoundError(path)
        return files[name]

    monkeypatch.setattr(device.Path, "read_text", read)
    device._quota.cache_clear()
    assert device._quota() == cores
    monkeypatch.undo()
    device._quota.cache_clear()


def test_features_decide():
    for isa, needs in device.ISA_NEEDS.items():
        best = device.best_isa(frozenset(needs))
        assert best == {"avx2": "avx2", "neon": "neon"}.get(isa, "avx512")
    assert device.best_isa(frozenset(device.ISA_NEEDS["avx512"]) - {"avx512dq"}) == "avx2"
    assert device.best_isa(frozenset()) == "none"
    assert device.best_isa(frozenset(device.ISA_NEEDS["amx"]), cap="avx2") == "avx2"


def test_made_up_devices():
    assert set(device.FAKE) == {"avx2", "avx512", "avx512_bf16", "amx", "neon"}
    for name in device.FAKE:
        d = device.fake(name)
        assert name in d.abilities
        assert tables.isa_of(d).lanes in (4, 8, 16)
    with pytest.raises(BadInput, match="'sse'"):
        device.fake("sse")


def test_tables_agree_with_config():
    assert set(tables.ALL) <= set(config.ISA_NAMES)
    assert set(device.ISA_NEEDS) == set(tables.ALL)
    for i in tables.ALL.values():
        for vectors in (1, 2, 3):
            rows = i.tile_rows(vectors)
            assert rows * vectors + vectors + 1 <= i.registers


@pytest.mark.parametrize(("variable", "good", "value"), [
    (config.HOOKS, "off", False), (config.HOOKS, "1", True), (config.ISA, "AVX2", "avx2"),
    (config.THREADS, "4", 4), (config.THREADS, "auto", 0), (config.LOG, "debug", ("debug", "")),
    (config.LOG, "info:/tmp/x", ("info", "/tmp/x")),
    (config.DENY, "conv2d, relu", frozenset({"conv2d", "relu"})),
    (config.STORE, "no", False), (config.TUNE, "on", True), (config.FORCE, "yes", True),
])
def test_variables(monkeypatch, variable, good, value):
    monkeypatch.delenv(variable.name, raising=False)
    assert variable.get() == variable.default
    monkeypatch.setenv(variable.name, good)
    assert variable.get() == value
    monkeypatch.setenv(variable.name, "  ")
    assert variable.get() == variable.default
    with variable.using(value):
        assert variable.get() == value
        seen = []
        t = threading.Thread(target=lambda: seen.append(variable.get()))
        t.start()
        t.join()
        assert seen == [variable.default]  # another thread is not touched
    assert variable.get() == variable.default
    assert variable.doc.endswith(".")


@pytest.mark.parametrize(("variable", "bad"), [
    (config.HOOKS, "maybe"), (config.ISA, "sse9"), (config.THREADS, "0"), (config.THREADS, "many"),
    (config.THREADS, "-1"), (config.LOG, "loud"), (config.STORE, "2"),
])
def test_bad_values_name_variable_value_and_what_is_allowed(monkeypatch, variable, bad):
    monkeypatch.setenv(variable.name, bad)
    with pytest.raises(ConfigError) as e:
        variable.get()
    assert variable.name in str(e.value)
    assert repr(bad) in str(e.value)
    assert variable.allowed in str(e.value)
    with pytest.raises(ConfigError), variable.using(bad):
        pass


def test_every_variable_is_in_the_table():
    named = {v.name for v in vars(config).values() if isinstance(v, config.Variable)}
    assert named == {v.name for v in config.VARIABLES}


def test_the_log(tmp_path, monkeypatch, capsys):
    path = tmp_path / "log"
    monkeypatch.setenv("VLUG_LOG", f"info:{path}")
    log.warn("one", a=1)
    log.info("two\nlines")
    log.debug("three")
    assert path.read_text() == "vlug: one a=1\nvlug: two lines\n"
    monkeypatch.setenv("VLUG_LOG", "silent")
    log.warn("no")
    monkeypatch.setenv("VLUG_LOG", "warn")
    log.notice("no")
    log.once("warn", "only once, test")
    log.once("warn", "only once, test")
    assert capsys.readouterr().err == "vlug: only once, test\n"
    monkeypatch.setenv("VLUG_LOG", "nonsense")  # never an exception from the log
    log.notice("yes")
    monkeypatch.setenv("VLUG_LOG", f"warn:{tmp_path}/none/file")
    log.warn("no")
    assert capsys.readouterr().err == "vlug: yes\n"
    assert path.read_text().count("\n") == 2


def test_arm_features_come_from_the_process_itself(monkeypatch):
    """An emulator may show /proc/cpuinfo of the machine that it runs on."""
    monkeypatch.setattr(device.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(device, "_arm_features", lambda: frozenset({"fp", "asimd"}))
    device._cpuinfo.cache_clear()
    try:
        assert device.cpu_features() == {"fp", "asimd"}
        assert device.best_isa(device.cpu_features()) == "neon"
    finally:
        device._cpuinfo.cache_clear()
