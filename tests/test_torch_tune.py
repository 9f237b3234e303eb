"""VLUG_TUNE and `vlug tune SCRIPT.py`: a problem is measured once, remembered, and the faster preferred."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torch_support import ROOT, W, X, armed, python, torch
from vlug.frontends import hooks
from vlug.frontends.torch.canary_cases import FAMILIES
from vlug.frontends.torch.trial import call_of

pytestmark = pytest.mark.framework

SCRIPT = """
import sys
import torch
import torch.nn.functional as F
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
                          torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(4 * 4 * 4, 5))
x, y = torch.randn(2, 3, 10, 10), torch.tensor([1, 2])
before = torch.random.get_rng_state()
for _ in range(3):
    loss = F.cross_entropy(net(x), y)
    loss.backward()
assert torch.equal(before, torch.random.get_rng_state())
assert sys.argv[1:] == ["--some", "word"], sys.argv
"""


def tune(script: Path, cache: Path) -> dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "VLUG_CACHE_DIR": str(cache), "VLUG_STORE": "on"}
    words = [sys.executable, "-m", "vlug", "tune", "--json", str(script), "--some", "word"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_script_is_measured_once(tmp_path: Path) -> None:
    armed()
    script, cache = tmp_path / "script.py", tmp_path / "cache"
    script.write_text(SCRIPT)
    first = tune(script, cache)
    operations = {line.split()[0] for line in first["ratios"]}
    wanted = {"conv_fprop", "batchnorm", "batchnorm_backward", "relu", "relu_backward", "max_pool",
              "max_pool_backward", "matmul", "log_softmax", "log_softmax_backward"}  # fmt: skip
    assert wanted <= operations
    assert first["timings"] == 2 * first["problems"], "ours and stock, once each"
    assert all(r > 0 for r in first["ratios"].values())
    second = tune(script, cache)
    assert second["timings"] == 0, "with a full store nothing is measured"


CODE = """
import json, torch
from vlug.frontends import hooks
from vlug.frontends.torch import arm
from vlug.runtime import device
from vlug.store import STOCK_TORCH, default_store
hooks.enable()
x, w, m = torch.randn(2, 3, 12, 12), torch.randn(4, 3, 3, 3), torch.randn(16, 16)
for _ in range(2):
    torch.conv2d(x, w); torch.relu(x); torch.softmax(m, 1); torch.mm(m, m)
store, where, out = default_store(), device.host().fingerprint, []
for name, line, calls, reason in arm.armed().problems():
    if calls:
        out.append([name, line, calls, reason, store.ratio(line, where, torch.get_num_threads())])
print(json.dumps([len(store.timings()), out]))
"""


def test_the_faster_is_preferred(tmp_path: Path) -> None:
    armed()
    env = {"VLUG_TUNE": "on", "VLUG_FORCE": "off", "VLUG_HOOKS": "on", "VLUG_CACHE_DIR": str(tmp_path)}
    done = python(CODE, env | {"VLUG_STORE": "on"})
    assert done.returncode == 0, done.stderr
    timings, rows = json.loads(done.stdout)
    assert timings == 2 * len(rows) == 8
    for name, line, calls, reason, ratio in rows:
        assert calls == 2, f"{name}: the trial's calls are not counted"
        assert (ratio >= 1) == (reason == ""), (line, ratio, reason)
        assert not reason or reason.startswith("expected slower (")


def test_a_slower_one_goes_to_stock_and_gives_its_result() -> None:
    frontend = armed()
    with hooks.using(False):
        want = torch.conv2d(X, W, None, 3)
    hooks.reset_stats()
    torch.conv2d(X, W, None, 3)
    (entry,) = [e for e in frontend.block.entries.values() if e.op.name == "_convolution" and e.calls]
    assert entry.taken
    entry.give_up("slower here")
    before = entry.calls
    assert torch.equal(torch.conv2d(X, W, None, 3), want)
    assert entry.calls == before + 1
    assert not entry.taken
    assert hooks.stats()["torch"]["_convolution"]["reasons"]["slower here"] >= 1


def test_every_operator_can_be_called_from_its_key() -> None:
    """The call made up for a key has that very key: no new entry comes of it."""
    frontend = armed()
    A = torch.ops.aten
    x = torch.randn(2, 4, 6, 6)
    c = torch.ones(4)
    mean, inv = torch.zeros(4), torch.ones(4)
    y, index = A.max_pool2d_with_indices(x, [2, 2])
    A._convolution(x, torch.randn(4, 4, 3, 3), c, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, *[False] * 4)
    attributes = [1, 1], [0, 0], [1, 1], False, [0, 0], 1
    A.convolution_backward(x, x, torch.randn(4, 4, 1, 1), [4], *attributes, [True] * 3)
    A.native_batch_norm(x, c, c, mean, inv, True, 0.1, 1e-5)
    A._native_batch_norm_legit(x, c, c, mean, inv, True, 0.1, 1e-5)
    A.native_batch_norm_backward(x, x, c, mean, inv, mean, inv, True, 1e-5, [True] * 3)
    A.relu(x), A.relu_(x.clone()), A.threshold_backward(x, x, 0)
    A.max_pool2d_with_indices_backward(y, x, [2, 2], [2, 2], [0, 0], [1, 1], False, index)
    A.avg_pool2d_backward(A.avg_pool2d(x, [2, 2]), x, [2, 2], [2, 2], [0, 0], False, True, None)
    A.mean.dim(x, [2, 3], True)
    m = torch.randn(6, 6).t()
    A.mm(m, m), A.addmm(m[0].contiguous(), m, m)
    for f, b in ((A._softmax, A._softmax_backward_data), (A._log_softmax, A._log_softmax_backward_data)):
        f(x, 1, False), b(x, x, 1, torch.float32)
    for family in FAMILIES:  # the canary's calls reach every operator
        for _, call in family.cases(torch.float32):
            with contextlib.suppress(RuntimeError, IndexError, ValueError):
                call()
    served = {}
    for key, entry in frontend.block.entries.items():
        if entry.taken:
            served[entry.op.name] = (key, entry)
    assert set(served) >= {op.name for op in frontend.loaded.operators}
    entries = len(frontend.block.entries)
    for key, entry in served.values():
        before = entry.calls
        with hooks.using(False):
            call = call_of(entry.op, key)
        call()
        assert entry.calls == before + 1, entry.op.name
    assert len(frontend.block.entries) == entries


def test_denied_calls_are_counted() -> None:
    armed()
    x = torch.randn(3, 7)
    hooks.reset_stats()
    try:
        hooks.enable(force=True, deny=["relu"])
        want = torch.relu(x)
        with hooks.using(True):
            torch.relu(x)
        with hooks.using(False):
            torch.relu(x)
        found = hooks.stats()["torch"]["relu"]
        assert found == {"taken": 0, "passed": 2, "reasons": {"denied": 2}}
        hooks.disable()
        torch.relu(x)
        assert hooks.stats()["torch"]["relu"] == found, "switched off, nothing is counted"
    finally:
        hooks.enable(force=True, deny=[])
    assert torch.equal(torch.relu(x), want)
    assert hooks.stats()["torch"]["relu"]["taken"] == 1
