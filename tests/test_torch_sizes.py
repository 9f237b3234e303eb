"""What image sizes cost in PyTorch: twenty compile no more than the first did, a second process nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torch_support import armed, python

pytestmark = pytest.mark.framework

STEPS = """
import json, torch
from vlug.frontends import hooks
hooks.enable(force=True)
nn, F = torch.nn, torch.nn.functional
from vlug.codegen import jit

def model():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1, groups=32),
        nn.Conv2d(32, 16, 1), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
        nn.LogSoftmax(1),
    )

def step(m, h, w, fmt):
    x = torch.randn(2, 3, h, w).contiguous(memory_format=fmt)
    F.nll_loss(m(x), torch.tensor([1, 2])).backward()

seen = []
for fmt in (torch.contiguous_format, torch.channels_last):
    m = model().to(memory_format=fmt)
    sizes = [(37, 61)] + [(24 + 7 * i % 60, 90 - 11 * i % 61) for i in range(19)]
    for n, (h, w) in enumerate(sizes):
        step(m, h, w, fmt)
        if n in (0, 19):
            seen.append(jit.counts["compiled"])
taken = {k: v["taken"] for k, v in hooks.stats()["torch"].items()}
print(json.dumps({"seen": seen, "taken": taken}))
"""


def test_sizes_compile_nothing_new_and_a_second_process_nothing(tmp_path: Path) -> None:
    armed()
    first, second = (
        json.loads(done.stdout.splitlines()[-1])
        for done in (python(STEPS, {"VLUG_HOOKS": "on", "VLUG_CACHE_DIR": str(tmp_path)}) for _ in range(2))
        if done.returncode == 0 or pytest.fail(done.stderr)
    )
    assert all(first["taken"][op] > 0 for op in ("_convolution", "convolution_backward", "native_batch_norm"))
    assert first["seen"][0] > 5  # something was compiled, and counted
    assert first["seen"][1] == first["seen"][0]
    assert first["seen"][3] == first["seen"][2]
    assert second["seen"] == [0] * 4
