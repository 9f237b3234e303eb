"""vlug doctor: does vlug work here? Kernels against the reference, the store, a training step in PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from vlug import plan as planner
from vlug.cli.common import Parser, emit
from vlug.runtime import device
from vlug.store import default_store

LINES = (
    "relu x=4x16x9x9",
    "conv_fprop x=2x16x14x14 w=32x16x3x3 pad=1",
    "conv_wgrad dy=2x32x14x14 x=2x16x14x14 size=3 pad=1",
    "batchnorm x=4x16x9x9 scale=16 bias=16 running_mean=16 running_var=16",
)

STEP = """
import json, os, torch, torch.nn as nn, torch.nn.functional as F
import vlug
vlug.enable(force=True)
from vlug.frontends import hooks

def step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Flatten(), nn.Linear(16 * 64, 10))
    loss = F.cross_entropy(model(torch.randn(4, 3, 16, 16)), torch.arange(4))
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters()]

with vlug.using(False):
    stock, grads = step()
ours, other = step()
size = max(float(a.abs().max()) for a in grads)  # a bias before batch norm has a gradient of rounding only
apart = max(float((a - b).abs().max()) for a, b in zip(grads, other)) / size
counts = [c for ops in vlug.stats().values() for c in ops.values()]
print(json.dumps({"status": hooks.status().get("torch"),
                  "loss": abs(stock - ours) / abs(stock), "grads": apart,
                  "taken": sum(c["taken"] for c in counts), "passed": sum(c["passed"] for c in counts)}))
"""


def main(argv: Sequence[str]) -> int:
    args = Parser("doctor", "Check that vlug works on this machine.").parse_args(argv)
    checks: list[dict[str, Any]] = []

    def check(what: str, f: Callable[[], tuple[bool, str]]) -> None:
        try:
            good, said = f()
        except Exception as e:
            good, said = False, f"{type(e).__name__}: {e}"
        checks.append({"what": what, "good": good, "said": said})

    here = device.host()
    check("instruction set", lambda: (here.isa != "none", str(here)))
    for line in LINES:
        check(line.split()[0], lambda line=line: _kernel(line))  # type: ignore[misc]
    check("store", _store)
    check("PyTorch", _torch)
    text = "\n".join(f"{'ok    ' if c['good'] else 'FAILED'} {c['what']}: {c['said']}" for c in checks)
    good = all(c["good"] for c in checks)
    emit(args, {"good": good, "checks": checks}, text)
    return 0 if good else 1


def _kernel(line: str) -> tuple[bool, str]:
    from vlug.cli.run import run
    from vlug.graph import Graph

    d = run(Graph.parse(line), None, True, False, 0.01)
    worst = max(e["relative"] for e in d["errors"].values())
    fast = planner.REFERENCE not in d["engine"]
    return fast and all(e["good"] for e in d["errors"].values()), f"{d['engine']}, error {worst:.1e}"


def _store() -> tuple[bool, str]:
    store = default_store()
    faults = store.verify()
    return not faults, faults[0] if faults else store.identity


def _torch() -> tuple[bool, str]:
    if find_spec("torch") is None:
        return True, "not installed"
    done = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, timeout=300)
    if done.returncode:
        return False, (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
    d = json.loads(done.stdout.strip().splitlines()[-1])
    if d["status"] != "on":
        return False, f"hooks are not on: {d['status']}"
    good = d["loss"] < 1e-5 and d["grads"] < 1e-3 and d["taken"] > 0
    apart = f"loss {d['loss']:.1e}, gradients {d['grads']:.1e} apart"
    said = f"{d['taken']} calls taken, {d['passed']} left; {apart}"
    return good, said
