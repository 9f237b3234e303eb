"""Known faults of the kinds H (first calls, mismatched versions) and C (masks in softmax), as small cases."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import vlug
from vlug.codegen import jit, objects
from vlug.codegen.isa import isa_for_host
from vlug.engines.cpu.kernels.softmax import softmax_rows

FIRST_CALL = """
import time, numpy as np, vlug
x, w = np.ones((1, 3, {0}, {0}), np.float32), np.ones((4, 3, 3, 3), np.float32)
vlug.add(x, x)  # LLVM and the store are open
t = time.process_time()
vlug.conv2d(x, w, padding=1)
print(time.process_time() - t)
"""


def test_h3_a_first_call_costs_no_more_for_a_tiny_image(tmp_path: Path) -> None:
    """What it costs is a compilation, whatever the size: never a search that grows as problems shrink."""
    spent = {}
    for size in (2, 128):
        env = {**os.environ, "VLUG_CACHE_DIR": str(tmp_path / str(size)),
               "PYTHONPATH": str(Path(vlug.__file__).parent.parent)}  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", FIRST_CALL.format(size)],
            env=env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        spent[size] = float(done.stdout)
    assert spent[2] < 2 * spent[128] + 0.3
    assert spent[2] < 3.0  # processor time, on a machine that others use


def test_h3_a_search_has_a_budget(tmp_path: Path) -> None:
    line = "conv_fprop x=1x3x2x2 w=4x3x3x3 pad=1"
    source = str(Path(vlug.__file__).parent.parent)
    env = {**os.environ, "VLUG_CACHE_DIR": str(tmp_path), "PYTHONPATH": source}
    command = [sys.executable, "-m", "vlug", "tune", line]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_h9_code_of_another_compiler_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object made with another LLVM, or for other features, has another name; it is made anew."""
    isa = isa_for_host()
    if isa is None:
        pytest.skip("no kernels here")
    key = jit.object_key(softmax_rows, isa, {})
    monkeypatch.setattr(jit, "_llvmlite_version", lambda: "0.1.0")
    other = jit.object_key(softmax_rows, isa, {})
    assert key != other
    assert objects.path_of(key) != objects.path_of(other)


@pytest.mark.parametrize("cols", [441, 64, 7])
@pytest.mark.parametrize("call", [vlug.softmax, vlug.log_softmax])
def test_c5_a_row_of_the_lowest_number_is_a_shift(call: object, cols: int) -> None:
    """Masks are often the lowest float added: a whole row of it must not become -inf - -inf."""
    x = np.random.default_rng(1).standard_normal((5, cols)).astype(np.float32)
    x[2] = np.finfo(np.float32).min
    x[3, 1:] = np.finfo(np.float32).min
    y = call(x)  # type: ignore[operator]
    want = np.exp(x[2].astype(np.float64) - x[2].max())
    want /= want.sum()
    got = np.exp(y) if call is vlug.log_softmax else y
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got[2], want, rtol=1e-5)
    np.testing.assert_allclose(got[3], [1] + [0] * (cols - 1), atol=1e-6)
