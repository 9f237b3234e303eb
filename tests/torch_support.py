"""What the tests of the PyTorch frontend share: ours on and off, compared; layouts that lead to trouble."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vlug.codegen.isa import runnable
from vlug.frontends import hooks

torch: Any = pytest.importorskip("torch")

nn: Any = torch.nn
F: Any = torch.nn.functional

ROOT = Path(__file__).resolve().parent.parent


def unarmed(why: str | None) -> None:
    """Skip, or fail in `make test`, which has the torch we know, on a machine that we serve."""
    give_up = pytest.fail if "EXPECT_WHEEL" in os.environ and runnable() else pytest.skip
    give_up(f"not armed here: {why}")


def armed() -> Any:
    """The frontend, armed and forced, nothing denied.

    Where it cannot be armed the tests have nothing to say.
    """
    hooks.enable(force=True, deny=[])
    if "torch" not in hooks.stats():
        unarmed(hooks.status().get("torch"))
    from vlug.frontends.torch import arm

    return arm.armed()


def flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [v for item in value for v in flat(item)]
    return [value]


def outcome(call: Callable[[], Any]) -> list[Any] | str:
    """Results, flat; or the first line of the error."""
    try:
        return flat(call())
    except Exception as e:
        return f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"


def same(want: Any, got: Any, rtol: float = 2e-4, atol: float = 2e-4) -> None:
    """Values near enough; strides, dtypes, devices and errors equal."""
    if isinstance(want, str) or isinstance(got, str):
        assert want == got
        return
    assert len(want) == len(got)
    for i, (a, b) in enumerate(zip(want, got)):
        if not isinstance(a, torch.Tensor):
            if isinstance(a, float):
                assert a == pytest.approx(b, rel=rtol, abs=atol)
            else:
                assert a == b, f"result {i}"
            continue
        assert isinstance(b, torch.Tensor), f"result {i}"
        assert (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device), f"result {i}"
        assert a.stride() == b.stride(), f"result {i}: strides {b.stride()}, stock gives {a.stride()}"
        assert a.requires_grad == b.requires_grad, f"result {i}"
        torch.testing.assert_close(
            b.detach(), a.detach(), rtol=rtol, atol=atol, equal_nan=True, check_stride=False
        )


def counts(operator: str) -> tuple[int, int, dict[str, int]]:
    """(taken, passed, reasons) of an operator."""
    found = hooks.stats().get("torch", {}).get(operator, {"taken": 0, "passed": 0, "reasons": {}})
    return found["taken"], found["passed"], found["reasons"]


def off_on(call: Callable[[], Any], *operators: str, **tolerance: float) -> None:
    """Stock's results and ours agree; the named operators were met, and taken unless no engine serves."""
    frontend = armed()
    with hooks.using(False):
        want = outcome(call)
    before = {op: counts(op) for op in operators}
    got = outcome(call)
    same(want, got, **tolerance)
    assert frontend.block["alive"]
    missing = []
    for op in operators:
        taken, passed, reasons = counts(op)
        assert taken + passed > before[op][0] + before[op][1], f"{op} was not met"
        if taken == before[op][0]:
            new = [r for r, n in reasons.items() if n > before[op][2].get(r, 0)]
            missing.append(f"{op}: {', '.join(new)}")
            assert all(r.startswith("no engine") for r in new), missing[-1]
    if missing:
        pytest.skip("; ".join(missing))


def layouts(t: Any) -> Iterator[tuple[str, Any]]:
    """A tensor's values in every layout that an operator may meet."""
    yield "contiguous", t.contiguous()
    if t.dim() == 4:
        yield "channels_last", t.contiguous(memory_format=torch.channels_last)
        yield "batch inside", t.permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0)
        yield "transposed plane", t.transpose(2, 3).contiguous().transpose(2, 3)
    wide = torch.zeros(*t.shape[:-1], t.shape[-1] + 3, dtype=t.dtype)
    wide[..., 1 : 1 + t.shape[-1]] = t
    yield "a slice", wide[..., 1 : 1 + t.shape[-1]]
    twice = torch.zeros(2 * t.shape[0], *t.shape[1:], dtype=t.dtype)
    twice[::2] = t
    yield "every second", twice[::2]
    moved = torch.zeros(t.numel() + 1, dtype=t.dtype)[1:]
    moved.copy_(t.reshape(-1))
    yield "misaligned", moved.view(t.shape)
    if 1 in t.shape:
        odd = [9973 if d == 1 else s for d, s in zip(t.shape, t.contiguous().stride())]
        yield "odd strides of size 1", t.contiguous().as_strided(t.shape, odd)
    first = t[:1]
    yield "expanded", first.expand(t.shape)


def python(
    code: str, env: dict[str, str] | None = None, timeout: int = 300
) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter that sees this vlug."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    full = {**os.environ, "PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **(env or {})}
    return subprocess.run(
        [sys.executable, "-c", code], env=full, capture_output=True, text=True, timeout=timeout, check=False
    )


# --- a small network with every operator
def net(seed: int = 1) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=4, dilation=2, padding=2, bias=False), nn.ReLU(inplace=True),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8 * 4 * 4, 10),
    )  # fmt: skip


X = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 10, (4,), generator=torch.Generator().manual_seed(0))
W = torch.linspace(-1, 1, 4 * 3 * 9).reshape(4, 3, 3, 3)


def train(model: Any, steps: int = 3, x: Any = X) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), Y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def taken() -> dict[str, int]:
    return {op: n["taken"] for op, n in hooks.stats()["torch"].items()}


def check(call: Callable[[], Any], *operators: str, rtol: float = 1e-3, atol: float = 2e-4) -> None:
    """Off and on give the same; the named operators were taken."""
    armed()
    with hooks.using(False):
        want = outcome(call)
        idle = taken()
    before = taken()
    assert idle == before, "switched off for this thread, nothing is taken"
    got = outcome(call)
    same(want, got, rtol=rtol, atol=atol)
    after = taken()
    for op in operators:
        assert after.get(op, 0) > before.get(op, 0), f"{op} was not taken: {hooks.stats()['torch'].get(op)}"
