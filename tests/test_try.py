"""vlug try: a script that knows nothing of vlug, run unchanged in two processes."""

from __future__ import annotations

import hashlib
import math
import textwrap

import pytest

from vlug.attempt import Run, ScriptFailed, _apart, compare, run_script
from vlug.cli.attempt import describe
from vlug.errors import BadInput

HEAD = """
import sys
import torch, torch.nn as nn, torch.nn.functional as F
layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)]
model = nn.Sequential(*layers)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    loss = F.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.randint(10, (4,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss
"""


@pytest.fixture
def script(tmp_path):
    def make(body: str):
        path = tmp_path / "train.py"
        path.write_text(HEAD + textwrap.dedent(body))
        return path

    return make


def run_of(seconds, losses, memory=100, stats=None) -> Run:
    return Run(seconds, losses, memory, stats, True)


def test_figures():
    stats = {"torch": {"relu": {"taken": 3, "passed": 1, "reasons": {"too small": 1}}}}
    d = compare(run_of([9.0, 2.0, 2.0], [1.0, 2.0]), run_of([10.0, 1.0, 1.0], [1.0, 2.2], 110, stats), 1, 3.0)
    assert d["speed_up"] == 2.0
    assert d["first_step_extra"] == 1.0
    assert d["first_loss_apart"] == 0.0
    assert d["most_apart"] == pytest.approx(0.1)
    assert d["memory_ratio"] == pytest.approx(1.1)
    assert d["saved_per_hour"] == pytest.approx(1.5)
    text = describe(d)
    for part in ("×2.00", "3 taken, 1 left", "1 × relu: too small", "saves 1.5 of each hour's 3"):
        assert part in text


def test_losses_that_are_not_finite():
    assert _apart(math.nan, math.nan) == 0.0
    assert _apart(math.inf, math.inf) == 0.0
    assert _apart(1.0, math.nan) == math.inf


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BadInput, match="is not a file"):
        run_script(tmp_path / "no.py", [], vlug=False, steps=3)


pytest.importorskip("torch")
framework = pytest.mark.framework


@framework
def test_stops_after_n_steps_and_leaves_the_script_alone(script):
    path = script("""
        assert __name__ == "__main__" and sys.argv[1:] == ["--width", "3"]
        while True:
            step()
    """)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    stock = run_script(path, ["--width", "3"], vlug=False, steps=5, timeout=120)
    ours = run_script(path, ["--width", "3"], vlug=True, steps=5, timeout=120)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    assert stock.finished
    assert len(stock.seconds) == 4
    assert len(stock.losses) == 5
    assert stock.stats is None
    assert ours.stats is not None
    assert stock.memory > 1 << 20
    d = compare(stock, ours, 1)
    assert d["most_apart"] < 1e-4
    counts = [c for ops in ours.stats.values() for c in ops.values()]
    assert sum(c["taken"] + c["passed"] for c in counts) > 0


@framework
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise RuntimeError('of its own')", "RuntimeError: of its own"),
        ("step(); sys.exit(3)", "exit code 3"),
        ("print('nothing is trained')", "0 optimiser steps were seen"),
        ("step(); import os; os._exit(7)", "ended with code 7"),
    ],
)
def test_what_goes_wrong_is_told(script, body, said):
    with pytest.raises(ScriptFailed, match=said):
        run_script(script(body), [], vlug=False, steps=3, timeout=120)


@framework
def test_a_script_that_ends_early_or_catches_everything(script):
    early = run_script(script("for _ in range(4): step()"), [], vlug=False, steps=100, timeout=120)
    assert not early.finished
    assert len(early.losses) == 4
    stubborn = script("""
        while True:
            try:
                step()
            except BaseException:
                pass
    """)
    assert len(run_script(stubborn, [], vlug=False, steps=3, timeout=120).losses) == 3


@framework
def test_the_first_of_several_optimisers_counts(script):
    path = script("""
        other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        while True:
            step()
            for p in other.param_groups[0]["params"]: p.grad = torch.ones(1)
            other.step()
    """)
    assert len(run_script(path, [], vlug=False, steps=3, timeout=120).losses) == 3
