"""The store of timings: what is kept, and every way in which its file may be unusable."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from vlug import store as module
from vlug.errors import BadInput
from vlug.store import STOCK_TORCH, Store, Timing

RELU = "relu x=4x8:f32"


def timing(seconds: float = 1e-3, **other) -> Timing:
    return Timing(**{"line": RELU, "device": "d", "engine": "cpu.rowwise", "version": "1", "knobs": "by=4",
                     "threads": 2, "seconds": seconds, **other})  # fmt: skip


@pytest.fixture
def said(monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr(module, "_say", lines.append)
    return lines


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "timings.db"


def test_timings_outlive_the_process(path):
    Store(path).record(timing(2e-3))
    again = Store(path)
    assert again.best(RELU, "d", 2) == {("cpu.rowwise", "1"): ("by=4", 2e-3)}
    assert again.best(RELU, "d", 1) == {}
    assert again.best(RELU, "other", 2) == {}


def test_reading_creates_nothing(path):
    store = Store(path)
    assert store.best(RELU, "d", 2) == {}
    assert store.timings() == []
    assert not path.parent.exists()


def test_files_are_private(path):
    Store(path).record(timing())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_every_timing_is_kept_up_to_32_of_a_key(path):
    store = Store(path)
    for i in range(40):
        store.record(timing(1e-3 + i * 1e-6, at=1.0 + i))
    store.record(timing(knobs="by=2"))
    kept = Store(path).timings()
    assert len(kept) == 33
    assert min(t.at for t in kept if t.knobs == "by=4") == 9.0


def test_best_is_the_median_of_the_fastest_knobs():
    store = Store(None)
    for s in (1e-3, 9e-3, 2e-3):
        store.record(timing(s))
    store.record(timing(3e-3, knobs="by=2"))
    assert store.best(RELU, "d", 2) == {("cpu.rowwise", "1"): ("by=4", 2e-3)}


def test_ratio_needs_both_sides():
    store = Store(None)
    store.record(timing(2e-3))
    assert store.ratio(RELU, "d", 2) is None
    store.record(timing(3e-3, engine=STOCK_TORCH, version="2.13.0", knobs=""))
    assert store.ratio(RELU, "d", 2) == pytest.approx(1.5)


def test_corrupt_file_is_renamed_aside_with_one_line(path, said):
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b"this is no database at all" * 100)
    path.chmod(0o600)
    store = Store(path)
    assert store.best(RELU, "d", 2) == {}
    store.record(timing())
    assert len(Store(path).timings()) == 1
    assert len(list(path.parent.glob("timings.db.bad-*"))) == 1
    assert len(said) == 1


def test_damage_inside_the_file_is_found(path, said):
    store = Store(path)
    store.record_all(timing(1e-3 + i * 1e-6, line=f"relu x={i + 1}x8:f32") for i in range(300))
    data = bytearray(path.read_bytes())
    assert len(data) > 3 * 4096
    data[4096 : 2 * 4096] = os.urandom(4096)
    path.write_bytes(data)
    again = Store(path)
    again.record(timing())
    assert len(Store(path).timings()) == 1
    assert len(said) == 1


def test_another_format_is_renamed_aside(path, said):
    path.parent.mkdir(mode=0o700)
    c = sqlite3.connect(path)
    c.execute("PRAGMA user_version = 77")
    c.close()
    path.chmod(0o600)
    Store(path).record(timing())
    assert len(Store(path).timings()) == 1
    assert "format 77" in said[0]


@pytest.mark.parametrize("what", ["file", "directory"])
def test_group_writable_is_ignored(path, said, what):
    Store(path).record(timing())
    (path if what == "file" else path.parent).chmod(0o775)
    store = Store(path)
    assert store.best(RELU, "d", 2) == {}
    store.record(timing(5e-3))
    assert store.best(RELU, "d", 2) == {("cpu.rowwise", "1"): ("by=4", 5e-3)}
    assert len(said) == 1
    assert "group or others may write" in said[0]
    path.parent.chmod(0o700)
    path.chmod(0o600)
    assert len(Store(path).timings()) == 1


def test_foreign_owner_is_ignored(path, said, monkeypatch):
    Store(path).record(timing())
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert Store(path).best(RELU, "d", 2) == {}
    assert "belongs to user" in said[0]


def test_a_link_is_not_followed(path, said, tmp_path):
    Store(path).record(timing())
    other = tmp_path / "other" / "timings.db"
    other.parent.mkdir(mode=0o700)
    other.symlink_to(path)
    assert Store(other).best(RELU, "d", 2) == {}
    assert "symbolic link" in said[0]


def test_no_directory_can_be_made(tmp_path, said):
    (tmp_path / "cache").write_text("a file stands where the directory should")
    store = Store(tmp_path / "cache" / "timings.db")
    store.record(timing())
    assert store.best(RELU, "d", 2) == {("cpu.rowwise", "1"): ("by=4", 1e-3)}
    assert len(said) == 1


def test_a_database_that_cannot_be_written(path, said):
    Store(path).record(timing(2e-3))
    store = Store(path)
    store.best(RELU, "d", 2)
    assert store._connection is not None
    store._connection.execute("PRAGMA query_only = 1")  # what a read-only or full disk looks like
    store.record(timing(4e-3))
    assert store.best(RELU, "d", 2) == {("cpu.rowwise", "1"): ("by=4", 3e-3)}
    assert len(Store(path).timings()) == 1
    assert len(said) == 1


def run(code: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), *args], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip


def test_two_processes_fill_it_at_once(path):
    code = """
    import sys
    from vlug.store import Store, Timing
    store = Store(sys.argv[1])
    for i in range(60):
        store.record(Timing(f"relu x={i + 1}x8:f32", "d", sys.argv[2], "1", "", 2, 1e-3))
    sys.exit(bool(store.trouble))
    """
    both = [run(code, str(path), name) for name in ("a", "b")]
    for p in both:
        out, _ = p.communicate(timeout=60)
        assert p.returncode == 0, out
    assert len(Store(path).timings()) == 120
    assert not list(path.parent.glob("*.bad-*"))


def test_a_fork_opens_a_connection_of_its_own(path):
    code = """
    import os, sys
    from vlug.store import Store, Timing
    t = lambda e: Timing("relu x=4x8:f32", "d", e, "1", "", 2, 1e-3)
    store = Store(sys.argv[1])
    store.record(t("parent"))
    before = store._connection
    pid = os.fork()
    if pid == 0:
        store.record(t("child"))
        os._exit(0 if store._connection is not before and not store.trouble else 1)
    _, status = os.waitpid(pid, 0)
    store.record(t("after"))
    names = sorted(r.engine for r in store.timings())
    sys.exit(0 if status == 0 and names == ["after", "child", "parent"] else repr((status, names)))
    """
    p = run(code, str(path))
    out, _ = p.communicate(timeout=60)
    assert p.returncode == 0, out


def test_export_and_import(path, tmp_path):
    store = Store(path)
    store.record_all([timing(), timing(2e-3, engine=STOCK_TORCH, version="2.13.0+cpu", knobs="")])
    file = tmp_path / "timings.json"
    file.write_text(json.dumps(store.export()))
    other = Store(tmp_path / "other" / "timings.db")
    assert other.take_file(file) == 2
    assert other.take_file(file) == 0
    assert other.timings() == store.timings()
    assert str(path) not in file.read_text()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"line": "no_such_operation x=1"}, "entry 1: operation"),
        ({"line": "relu x=4x8:f32; rm"}, "entry 1"),
        ({"seconds": "0.1"}, "entry 1: seconds"),
        ({"seconds": float("nan")}, "entry 1: seconds"),
        ({"seconds": -1.0}, "entry 1: seconds"),
        ({"threads": 0}, "entry 1: threads"),
        ({"threads": True}, "entry 1: threads"),
        ({"engine": "a b"}, "entry 1: engine"),
        ({"knobs": "mr=1;drop"}, "entry 1: knobs"),
        ({"device": "a\nb"}, "entry 1: device"),
        ({"more": 1}, "exactly"),
    ],
)
def test_import_checks_all_before_it_keeps_any(change, match):
    data = Store(None).export()
    good = timing(at=1.0).__dict__
    data["timings"] = [{**good, **change}, good]
    store = Store(None)
    with pytest.raises(BadInput, match=match):
        store.take(data)
    assert store.timings() == []


@pytest.mark.parametrize("data", [None, [], {"format": 2, "timings": []}, {"format": 1}])
def test_import_of_something_else(data):
    with pytest.raises(BadInput, match="not an export"):
        Store(None).take(data)


def test_clear_and_verify(path):
    store = Store(path)
    store.record_all([timing(), timing(line="nonsense x=1")])
    assert store.revision(RELU) == 1
    assert len(store.verify()) == 1
    assert store.clear() == 2
    assert store.timings() == []
    assert store.revision(RELU) == 2
    assert Store(path).verify() == []
