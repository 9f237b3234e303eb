"""PyTorch with our hooks on, in several threads and processes; switches flipped meanwhile; memory."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

from torch_support import W, X, armed, net, python, taken, torch, train
from vlug.frontends import hooks

pytestmark = pytest.mark.framework
nn: Any = torch.nn
F: Any = torch.nn.functional


def test_same_bits_for_any_number_of_threads() -> None:
    armed()
    before = torch.get_num_threads()
    results = []
    for n in (1, 2, 3, 5):
        torch.set_num_threads(n)
        try:
            results.append(train(net(), 4))
        finally:
            torch.set_num_threads(before)
    assert results.count(results[0]) == len(results)


def test_four_python_threads() -> None:
    armed()
    want = train(net())
    models = [net() for _ in range(12)]
    got: list[Any] = []
    todo = list(models)

    def body() -> None:
        while True:
            try:
                model = todo.pop()
            except IndexError:
                return
            got.append(train(model))

    threads = [threading.Thread(target=body) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [want] * 12, "bitwise, whatever runs beside it"


def test_many_threads_meet_new_shapes_together() -> None:
    frontend = armed()
    xs = [torch.randn(1, 2, 5, 6 + i) for i in range(40)]
    w = torch.randn(3, 2, 3, 3)
    with hooks.using(False):
        want = [F.conv2d(x, w) for x in xs]
    wrong: list[Any] = []
    before = len(frontend.block.entries)

    def body() -> None:
        for x, y in zip(xs, want):
            if not torch.allclose(F.conv2d(x, w), y, atol=1e-4):
                wrong.append(x.shape)

    threads = [threading.Thread(target=body) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert len(frontend.block.entries) - before == len(xs), "one decision for each shape"


def test_flags_flip_under_load() -> None:
    armed()
    want = F.conv2d(X, W)
    stop: list[int] = []
    wrong: list[float] = []
    calls = [0]

    def body() -> None:
        while not stop:
            with torch.no_grad():
                y = F.conv2d(X, W)
            calls[0] += 1
            if not torch.allclose(y, want, atol=1e-4):
                wrong.append(1.0)

    threads = [threading.Thread(target=body) for _ in range(3)]
    for t in threads:
        t.start()
    end = time.monotonic() + 2
    flips = 0
    while time.monotonic() < end:
        hooks.disable()
        hooks.enable()
        with hooks.using(False):
            pass
        flips += 1
    stop.append(1)
    for t in threads:
        t.join()
    assert not wrong
    assert flips > 20
    assert calls[0] > 20


def test_disable_deny_and_using() -> None:
    armed()

    def met() -> bool:
        before = taken().get("_convolution", 0)
        F.conv2d(X, W)
        return taken()["_convolution"] > before

    assert met()
    hooks.disable()
    try:
        assert not met()
        with hooks.using(True):
            assert met()
        assert not met()
    finally:
        hooks.enable()
    hooks.enable(deny=["conv2d"])
    try:
        assert not met()
        with hooks.using(True):
            assert not met(), "a denied operator stays denied"
        before = taken()
        torch.relu(X)
        assert taken()["relu"] == before.get("relu", 0) + 1
    finally:
        hooks.enable(deny=[])
    assert met()
    with hooks.using(False):
        seen: list[bool] = []
        t = threading.Thread(target=lambda: seen.append(met()))
        t.start()
        t.join()
        assert seen == [True], "another thread goes on"
        assert not met()


def test_as_shipped_and_forced_are_apart() -> None:
    frontend = armed()
    x = torch.randn(2, 3, 17, 19)
    w = torch.randn(4, 3, 3, 3)
    hooks.enable(force=False)
    try:
        hooks.reset_stats()
        F.conv2d(x, w)
        shipped = hooks.stats()["torch"]["_convolution"]
        assert shipped["taken"] + shipped["passed"] == 1
        if shipped["passed"]:
            (reason,) = shipped["reasons"]
            assert reason.startswith(("expected slower (", "not known to be faster"))
    finally:
        hooks.enable(force=True)
    F.conv2d(x, w)
    assert hooks.stats()["torch"]["_convolution"]["taken"] >= 1
    lines = [line for op, line, calls, _ in frontend.problems() if op == "_convolution" and calls]
    assert "conv_fprop x=2x3x17x19:f32 w=4x3x3x3:f32" in lines
    hooks.reset_stats()
    assert not hooks.stats()["torch"].get("_convolution", {}).get("taken")


class Convolved(torch.utils.data.Dataset):  # type: ignore[misc]
    """Convolves in the worker."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Any:
        before = taken().get("_convolution", 0)
        y = F.conv2d(torch.ones(1, 1, 6, 7) * i, torch.ones(1, 1, 3, 3))
        return torch.tensor([y.sum().item(), taken()["_convolution"] - before])


def test_dataloader_workers() -> None:
    armed()
    train(net())  # the parent's pool has been used
    loader = torch.utils.data.DataLoader(Convolved(), num_workers=2, batch_size=4, timeout=60)
    rows = torch.cat(list(loader))
    assert rows[:, 0].tolist() == [9.0 * 20 * i for i in range(8)]
    assert rows[:, 1].tolist() == [1.0] * 8


@pytest.mark.parametrize("known", [True, False])
def test_fork_with_a_used_pool(known: bool) -> None:
    armed()
    torch.set_num_threads(2)
    big = torch.randn(2, 16, 40, 40 if known else 43)
    w = torch.randn(16, 16, 3, 3)
    with hooks.using(False):
        want = F.conv2d(big, w, padding=1)
    F.conv2d(torch.randn(2, 16, 40, 40), w, padding=1)
    pid = os.fork()
    if pid == 0:
        ok = False
        try:
            y = F.conv2d(big, w, padding=1)  # a hang here would be ours: our plans run serially in a child
            ok = bool(abs(y.numpy() - want.numpy()).max() < 1e-3)
        finally:
            os._exit(0 if ok else 1)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        done, code = os.waitpid(pid, os.WNOHANG)
        if done:
            assert code == 0
            return
        time.sleep(0.02)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    pytest.fail("the child hung")


def test_a_table_that_grows() -> None:
    frontend = armed()
    before = len(frontend.block.entries)
    size = frontend.block.size
    with torch.no_grad():
        for i in range(size // 2 - before + 10 if before < size // 2 else 10):
            torch.relu(torch.zeros(3, i + 1, 2))
    assert frontend.block.size > size or before >= size // 2
    x = torch.randn(3, 5, 2)
    assert torch.equal(torch.relu(x), x.clamp(min=0))


def test_memory_does_not_grow() -> None:
    code = """
import resource, torch
from vlug.frontends import hooks
hooks.enable(force=True)
import torch.nn.functional as F
A = torch.ops.aten
x, w = torch.randn(1, 2, 6, 6), torch.randn(2, 2, 3, 3)
xd, wd = x.double(), w.double()
w2 = torch.randn(4, 3, 3, 3)
def wrong():
    try: F.conv2d(x, w2)
    except RuntimeError: pass
def grads():
    a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
    torch.autograd.grad(F.max_pool2d(F.relu(F.conv2d(a, b)), 2).mean((2, 3)).sum(), (a, b))
calls = [lambda: F.conv2d(x, w), lambda: F.conv2d(xd, wd), lambda: torch.relu(x), lambda: A.relu(x), wrong,
         lambda: A.max_pool2d_with_indices(x, [2, 2]), grads, lambda: A.mean.dim(x, [2, 3], True),
         lambda: A._convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, *[False] * 4),
         lambda: torch.relu_(x.clone()), lambda: A.relu_(x.clone()), lambda: A.native_batch_norm(
         x, torch.ones(2), torch.ones(2), torch.ones(2), torch.ones(2), True, .1, 1e-5)]
for call in calls:
    for _ in range(300): call()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(4000): call()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 600, (calls.index(call), grown)
print("steady")
"""
    done = python(code, {"VLUG_HOOKS": "on"})
    assert done.stdout.strip() == "steady", done.stderr
