"""The object cache: found again, shared between processes, and never trusted when it should not be."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from vlug import config, log
from vlug.codegen import jit, native, objects
from vlug.codegen.ir import Kernel
from vlug.codegen.isa import ALL, NEON, runnable
from vlug.errors import NotSupported

KEY = "a key"
META = {"needs": ["avx2"], "part": [0, "N", "*"]}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache directory of the test's own; the log's lines are kept."""
    log._said.clear()
    monkeypatch.setenv("VLUG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("VLUG_LOG", f"warn:{tmp_path / 'log'}")
    return tmp_path


def said(cache):
    path = cache / "log"
    return path.read_text().splitlines() if path.exists() else []


def test_round_trip():
    assert objects.load(KEY) is None
    assert objects.save(KEY, META, b"\n\0code\n")
    assert objects.load(KEY) == (META, b"\n\0code\n")
    assert objects.load("another key") is None
    path = objects.path_of(KEY)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert objects.usage() == (1, path.stat().st_size)
    assert objects.clear() == 1
    assert objects.load(KEY) is None


def spoil_truncate(path):
    path.write_bytes(path.read_bytes()[:-3])


def spoil_bit(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def spoil_empty(path):
    path.write_bytes(b"")


def spoil_group(path):
    path.chmod(0o620)


def spoil_world(path):
    path.chmod(0o602)


def spoil_link(path):
    path.rename(path.with_suffix(".x"))
    path.symlink_to(path.with_suffix(".x"))


def spoil_other_key(path):
    objects.save("b", META, b"code")
    objects.path_of("b").rename(path)


def spoil_owner(path):
    if os.geteuid():
        pytest.skip("only root can give a file away")
    os.chown(path, 65534, 65534)


def spoil_directory_group(path):
    path.parent.chmod(0o770)


def spoil_directory_owner(path):
    if os.geteuid():
        pytest.skip("only root can give a directory away")
    os.chown(path.parent, 65534, 65534)


def spoil_parent_world(path):
    path.parent.parent.chmod(0o777)


FILES = [spoil_truncate, spoil_bit, spoil_empty, spoil_group, spoil_world, spoil_link, spoil_other_key,
         spoil_owner]
DIRECTORIES = [spoil_directory_group, spoil_directory_owner, spoil_parent_world]


@pytest.mark.parametrize("spoil", FILES, ids=lambda f: f.__name__[6:])
def test_a_bad_file_is_ignored_with_one_line_and_rebuilt(cache, spoil):
    objects.save(KEY, META, b"code")
    spoil(objects.path_of(KEY))
    assert objects.load(KEY) is None
    assert objects.load(KEY) is None
    assert len(said(cache)) == 1, said(cache)
    assert str(objects.path_of(KEY)) in said(cache)[0]
    assert objects.save(KEY, META, b"new")
    assert objects.load(KEY) == (META, b"new")


@pytest.mark.parametrize("spoil", DIRECTORIES, ids=lambda f: f.__name__[6:])
def test_a_bad_directory_is_not_used(cache, spoil):
    objects.save(KEY, META, b"code")
    spoil(objects.path_of(KEY))
    assert objects.load(KEY) is None
    assert not objects.save("other", META, b"code")
    assert len(said(cache)) == 1, said(cache)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
def test_a_read_only_or_full_directory_costs_only_the_cache(cache, monkeypatch, number):
    real_open, real_write = os.open, os.write

    def no_open(path, flags, *a, **kw):
        if flags & os.O_CREAT and number in (errno.EROFS, errno.EACCES) and ".o" in str(path):
            raise OSError(number, os.strerror(number))
        return real_open(path, flags, *a, **kw)

    def no_write(fd, data):
        if len(data) > 100 and number in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(number, os.strerror(number))
        return real_write(fd, data)

    monkeypatch.setattr(os, "open", no_open)
    monkeypatch.setattr(os, "write", no_write)
    for _ in range(2):
        assert not objects.save(KEY, META, b"c" * 1000)
    monkeypatch.undo()
    assert os.listdir(cache / "cache" / "objects") == []


def test_a_cache_path_that_is_a_file(cache):
    (cache / "cache").write_text("")
    assert not objects.save(KEY, META, b"code")
    assert objects.load(KEY) is None
    assert len(said(cache)) == 1


def test_store_off(cache):
    with config.STORE.using(False):
        assert not objects.save(KEY, META, b"code")
        assert objects.load(KEY) is None
    assert not (cache / "cache").exists()


def test_the_longest_unused_go_first():
    for i in range(6):
        objects.save(str(i), META, b"x" * 1000)
        os.utime(objects.path_of(str(i)), (i, i))
    size = objects.path_of("0").stat().st_size
    stale = objects.path_of("0").with_name(".left")
    stale.write_bytes(b"")
    os.utime(stale, (1, 1))
    assert objects.load("1") is not None  # used: young again
    assert objects.evict(limit=3 * size) == 4
    assert [i for i in range(6) if objects.load(str(i))] == [1, 4, 5]
    assert time.time() - objects.path_of("1").stat().st_mtime < 60


def double(k: Kernel):
    n = k.size("n")
    x, y = k.view(n), k.view(n)
    for _ in k.parallel(1):
        s = k.scratch(n)
        for i in k.vectors(n):
            s[i] = x[i] * 2.0
        for i in k.vectors(n):
            y[i] = s[i]


def run_double(isa):
    jit._loaded.clear()
    x, y = np.arange(50, dtype=np.float32), np.zeros(50, np.float32)
    native.call(jit.compiled(double, isa), [x.ctypes.data, y.ctypes.data], {"n": 50})
    np.testing.assert_array_equal(y, 2 * x)


@pytest.mark.isa
@pytest.mark.parametrize("isa", runnable(), ids=str)
def test_a_kernel_is_compiled_once(isa):
    native.env(), native.addresses()  # their objects apart
    before = dict(jit.counts)
    run_double(isa)
    assert jit.counts["compiled"] == before["compiled"] + 1
    run_double(isa)
    assert jit.counts["compiled"] == before["compiled"] + 1
    assert jit.counts["loaded"] == before["loaded"] + 1


@pytest.mark.isa
@pytest.mark.parametrize("isa", runnable(), ids=str)
def test_an_object_for_another_processor_is_never_loaded(isa, monkeypatch):
    run_double(isa)
    key = jit.object_key(double, isa, {})
    meta, obj = objects.load(key)
    assert meta["needs"] == list(isa.needs)
    assert all(f in key for f in isa.needs)
    objects.save(key, {**meta, "needs": [*isa.needs, "amx_fp8"]}, b"never run this")
    run_double(isa)
    assert objects.load(key) == (meta, obj)
    less = jit.cpu_features() - {isa.needs[-1]}
    monkeypatch.setattr(jit, "cpu_features", lambda: less)
    with pytest.raises(NotSupported, match=isa.needs[-1]):
        run_double(isa)


def test_code_for_another_machine_is_not_run():
    if NEON.needs[0] in jit.cpu_features():
        pytest.skip("this machine runs NEON")
    with pytest.raises(NotSupported, match="lacks asimd"):
        jit.compiled(double, NEON)


def test_the_key_holds_what_shapes_an_object(monkeypatch):
    isa = runnable()[0] if runnable() else NEON
    constants = ({}, {"tail": "loop"}, {"tail": "switch"})
    keys = {jit.object_key(double, i, c) for i in ALL.values() for c in constants}
    keys.add(jit.object_key(test_store_off, isa, {}))
    assert len(keys) == 3 * len(ALL) + 1
    with pytest.raises(TypeError, match="constant f="):
        jit.object_key(double, isa, {"f": lambda: 0})
    jit._sources.clear()
    before = jit.object_key(double, isa, {})
    real = jit.Path.read_bytes
    monkeypatch.setattr(jit.Path, "read_bytes", lambda p: real(p) + (b"#" if p.name == "values.py" else b""))
    jit._sources.clear()
    assert jit.object_key(double, isa, {}) != before
    monkeypatch.undo()
    jit._sources.clear()


SCRIPT = """
    import json, sys
    sys.path.insert(0, {tests!r})
    from test_objects import run_double
    from vlug.codegen import jit
    from vlug.codegen.isa import runnable
    for isa in runnable():
        run_double(isa)
    print(json.dumps(jit.counts))
"""


def processes(n):
    tests = os.path.dirname(__file__)
    code = textwrap.dedent(SCRIPT.format(tests=tests))
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(n)]
    outs = [p.communicate(timeout=120)[0] for p in runs]
    assert all(p.returncode == 0 for p in runs)
    return [json.loads(o) for o in outs]


def test_several_processes_fill_the_cache_at_once_and_the_next_compiles_nothing(cache):
    processes(3)
    names = os.listdir(cache / "cache" / "objects")
    assert names
    assert all(n.endswith(".o") and not n.startswith(".") for n in names)
    (counts,) = processes(1)
    assert counts["compiled"] == 0
    assert counts["loaded"] == len(names)
    assert said(cache) == []
