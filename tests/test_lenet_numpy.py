"""The example without a framework: LeNet learns the digits, and its gradients are those of its loss."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vlug

PATH = Path(__file__).resolve().parent.parent / "examples" / "lenet_numpy.py"
pytest.importorskip("sklearn")


def example() -> Any:
    spec = importlib.util.spec_from_file_location("lenet_numpy", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_learns_the_digits_without_a_framework() -> None:
    code = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("lenet_numpy", {str(PATH)!r})
lenet = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lenet)
accuracy = lenet.main(epochs=5)
assert "torch" not in sys.modules
assert accuracy >= 0.97, accuracy
"""
    path = os.pathsep.join([str(Path(vlug.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    # one thread: on a busy machine two of them wait for each other most of the time
    env = {**os.environ, "PYTHONPATH": path, "VLUG_THREADS": "1"}
    words = [sys.executable, "-W", "error::vlug.VlugWarning", "-c", code]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.filterwarnings("ignore::vlug.VlugWarning")  # f64 may be slow
def test_its_gradients_are_those_of_its_loss() -> None:
    lenet = example()
    rng = np.random.default_rng(0)
    p = {n: a.astype(np.float64) for n, a in lenet.parameters().items()}
    x, labels = rng.standard_normal((3, 1, 16, 16)), np.array([3, 0, 9])
    logits, kept = lenet.forward(p, x)
    g = lenet.backward(p, kept, logits, labels)

    def loss(at: dict[str, np.ndarray]) -> float:
        return float(vlug.cross_entropy(lenet.forward(at, x)[0], labels))

    for name, a in p.items():
        way = rng.standard_normal(a.shape)
        ends = [loss(p | {name: a + s * 1e-6 * way}) for s in (1, -1)]
        want = (ends[0] - ends[1]) / 2e-6
        assert float((g[name] * way).sum()) == pytest.approx(want, rel=1e-5, abs=1e-8), name
