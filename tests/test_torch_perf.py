"""What the hooks cost where there is nothing to gain: tiny calls, taken and passed, against stock's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from torch_support import armed, torch
from vlug.frontends import hooks

pytestmark = [pytest.mark.framework, pytest.mark.perf]
F: Any = torch.nn.functional

x, w = torch.randn(1, 1, 4, 4), torch.randn(1, 1, 3, 3)
m, b = torch.randn(8, 8), torch.randn(8)
CALLS: dict[str, Callable[[], Any]] = {
    "conv2d": lambda: F.conv2d(x, w),
    "relu": lambda: torch.relu(x),
    "max_pool2d": lambda: F.max_pool2d(x, 2),
    "avg_pool2d": lambda: F.avg_pool2d(x, 2),
    "mean": lambda: x.mean((2, 3)),
    "addmm": lambda: torch.addmm(b, m, m),
    "softmax": lambda: F.softmax(m, 1),
}


def interleaved(call: Callable[[], Any], modes: dict[str, Callable[[], None]]) -> dict[str, float]:
    """The best time of a call in each mode, in seconds."""
    best = dict.fromkeys(modes, 1e9)
    with torch.no_grad():
        for _ in range(20):
            for name, switch in modes.items():
                switch()
                for _ in range(30):
                    call()
                start = time.perf_counter()
                for _ in range(300):
                    call()
                best[name] = min(best[name], (time.perf_counter() - start) / 300)
    return best


@pytest.mark.parametrize("name", CALLS)
def test_a_tiny_call_costs_no_more_than_stocks(name: str) -> None:
    armed()
    modes: dict[str, Callable[[], None]] = {
        "stock": hooks.disable,
        "taken": lambda: hooks.enable(force=True),
        "shipped": lambda: hooks.enable(force=False),
    }
    try:
        best = interleaved(CALLS[name], modes)
    finally:
        hooks.enable(force=True)
    assert best["taken"] <= best["stock"] * 1.02, best
    # passed on: the key and one look-up, about 0.1 µs
    assert best["shipped"] <= best["stock"] + 3e-7, best


def test_activation_with_a_full_store() -> None:
    from torch_support import python

    armed()
    code = (
        "import torch, time; t = time.perf_counter(); from vlug.frontends.torch import autoload; autoload();"
        "print(time.perf_counter() - t)"
    )
    times = [float(python(code).stdout) for _ in range(5)]
    assert sorted(times)[2] < 0.1, times
