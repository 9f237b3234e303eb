"""Whole processes in bad surroundings (no room, no right to write, a failing plug-in): results are right."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import vlug

#: Without capabilities even root may not write where the mode forbids it.
NO_CAPABILITIES = """
import ctypes
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capset(header, data) == 0
"""
COMPUTE = """
import numpy as np
import vlug
x, w = np.ones((2, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32)
print("RESULT", float(vlug.relu(vlug.conv2d(x, w)).sum()))
"""
RESULT = f"RESULT {2 * 4 * 36 * 27.0}\n"
needs_posix = pytest.mark.skipif(sys.platform != "linux", reason="capabilities and limits of Linux")


def run(code: str, cache: Path, room: int | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter with this cache directory that may write files of at most `room` bytes."""

    def limit() -> None:
        if room is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    where = str(Path(vlug.__file__).parent.parent)
    env = dict(os.environ, PYTHONPATH=where, PYTHONDONTWRITEBYTECODE="1", VLUG_CACHE_DIR=str(cache), **env)
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, preexec_fn=limit, timeout=300
    )


@needs_posix
@pytest.mark.parametrize("room", [0, 100, 5000])
def test_no_room_in_the_cache(room: int, tmp_path: Path) -> None:
    done = run(COMPUTE, tmp_path / "cache", room)
    assert (done.returncode, done.stdout) == (0, RESULT), done.stderr
    assert "Traceback" not in done.stderr
    done = run(COMPUTE, tmp_path / "cache")  # what was left half-written harms nobody
    assert (done.returncode, done.stdout) == (0, RESULT), done.stderr
    assert "Traceback" not in done.stderr


@needs_posix
@pytest.mark.parametrize("filled", [False, True])
def test_a_cache_that_may_not_be_written(filled: bool, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    if filled:
        assert run(COMPUTE, cache).stdout == RESULT
    folders = [cache, *(p for p in cache.rglob("*") if p.is_dir())]
    before = sorted(cache.rglob("*"))
    for folder in folders:
        folder.chmod(0o500)
    try:
        done = run(NO_CAPABILITIES + COMPUTE, cache)
    finally:
        for folder in folders:
            folder.chmod(0o700)
    assert (done.returncode, done.stdout) == (0, RESULT), done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(cache.rglob("*")) == before


# --- import torch, by the entry point ---
def has_entry_point() -> bool:
    return any(e.name == "vlug" for e in metadata.entry_points(group="torch.backends"))


by_entry_point = pytest.mark.skipif(not has_entry_point(), reason="vlug is not installed here (`make test`)")
TORCH = "import torch; print('RESULT', torch.relu(torch.ones(3, 5)).sum().item())"


@pytest.mark.framework
@by_entry_point
def test_import_torch_arms_by_itself(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = TORCH + "; import vlug; print(sorted(vlug.stats()))"
    done = run(code, tmp_path, VLUG_HOOKS="on", VLUG_FORCE="on")
    assert (done.returncode, done.stdout) == (0, "RESULT 15.0\n['torch']\n"), done.stderr


@pytest.mark.framework
@by_entry_point
@pytest.mark.parametrize("module", ["frontends.hooks", "frontends.torch.arm", "codegen.native"])
def test_a_plug_in_that_fails_costs_a_line(module: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run(f"import sys; sys.modules['vlug.{module}'] = None\n{TORCH}", tmp_path, VLUG_HOOKS="on")
    assert (done.returncode, done.stdout) == (0, "RESULT 15.0\n"), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.framework
@by_entry_point
@needs_posix
def test_import_torch_without_room_for_a_verdict(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = TORCH + "; import vlug; print(sorted(vlug.stats()))"
    done = run(code, tmp_path / "cache", 0, VLUG_HOOKS="on")
    assert (done.returncode, done.stdout) == (0, "RESULT 15.0\n['torch']\n"), done.stderr
    assert "Traceback" not in done.stderr
