"""What the demo says: running both sides, the figures, the agreements that must hold, the plot."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlug.errors import VlugError

__all__ = ["FIRST", "Demanded", "agreements", "digits_figures", "plot", "resnet_figures", "run_child"]

FIRST = 20  # losses that must agree to LOSS_APART
LOSS_APART = 1e-4
ACCURACY_APART = 0.5
ACCURACY_LEAST = 97.0

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Demanded:
    """One thing that must hold: what, the figure, the bound, whether it holds."""

    what: str
    value: float
    bound: float
    holds: bool


def run_child(task: str, options: dict[str, Any], *, vlug: bool, progress: Progress) -> dict[str, Any]:
    """One side of the demo in a process of its own; raises VlugError with what it said last."""
    env = dict(os.environ, VLUG_HOOKS="on" if vlug else "off", PYTHONUNBUFFERED="1")
    module = ["-m", "vlug.demo.train"] if not vlug else ["-m", "vlug.demo.served"]
    result: dict[str, Any] | None = None
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, *module, task, json.dumps(options)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            for line in child.stdout or ():
                if not line.startswith("{"):
                    continue
                said = json.loads(line)
                if "result" in said:
                    result = said["result"]
                else:
                    progress(said["at"], said["of"])
            code = child.wait()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        errors.seek(0)
        told = errors.read().strip().splitlines()
    if code or result is None:
        side = "with vlug" if vlug else "stock"
        raise VlugError(f"demo: {task} {side} ended with code {code}\n" + "\n".join(told[-12:]))
    result["said"] = [line for line in told if line.startswith("vlug")]
    return result


def _apart(a: list[float], b: list[float]) -> float:
    return max((abs(x - y) / max(abs(x), 1e-12) for x, y in zip(a, b)), default=0.0)


def digits_figures(stock: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Time an epoch after the first, accuracies, agreement of the first losses."""
    epoch = {
        "stock": statistics.median(stock["epoch_seconds"][1:] or stock["epoch_seconds"]),
        "vlug": statistics.median(ours["epoch_seconds"][1:] or ours["epoch_seconds"]),
    }
    return {
        "epoch_seconds": epoch,
        "speed_up": epoch["stock"] / epoch["vlug"],
        "accuracy": {"stock": stock["accuracy"], "vlug": ours["accuracy"]},
        "first_losses_apart": _apart(stock["losses"][:FIRST], ours["losses"][:FIRST]),
        "memory": {"stock": stock["memory"], "vlug": ours["memory"]},
        "stats": ours["stats"],
        "stock": stock,
        "vlug": ours,
    }


def resnet_figures(stock: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Time a step after the first, what the first cost more, agreement of the losses."""
    step = {
        "stock": statistics.median(stock["step_seconds"][1:] or stock["step_seconds"]),
        "vlug": statistics.median(ours["step_seconds"][1:] or ours["step_seconds"]),
    }
    return {
        "step_seconds": step,
        "speed_up": step["stock"] / step["vlug"],
        "first_step_extra": ours["step_seconds"][0] - stock["step_seconds"][0],
        "loss_apart": _apart(stock["losses"][:1], ours["losses"][:1]),
        "memory": {"stock": stock["memory"], "vlug": ours["memory"]},
        "stats": ours["stats"],
        "stock": stock,
        "vlug": ours,
    }


def agreements(digits: dict[str, Any] | None, resnet: dict[str, Any] | None) -> list[Demanded]:
    """What must hold; the demo fails if one does not. Speed is told, not demanded."""
    out = []
    if digits is not None:
        apart = digits["first_losses_apart"]
        out.append(Demanded(f"first {FIRST} losses apart", apart, LOSS_APART, apart <= LOSS_APART))
        a, b = digits["accuracy"]["stock"], digits["accuracy"]["vlug"]
        out.append(
            Demanded("accuracies apart, points", abs(a - b), ACCURACY_APART, abs(a - b) <= ACCURACY_APART)
        )
        out.append(Demanded("least accuracy, %", min(a, b), ACCURACY_LEAST, min(a, b) >= ACCURACY_LEAST))
    if resnet is not None:
        apart = resnet["loss_apart"]
        out.append(Demanded("ResNet-50 loss apart", apart, LOSS_APART, apart <= LOSS_APART))
    return out


def plot(path: Path, digits: dict[str, Any]) -> bool:
    """Both loss curves as a picture; False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, style in (("stock", {"lw": 3, "alpha": 0.45}), ("vlug", {"lw": 1})):
        seconds = digits["epoch_seconds"][name]
        axes.plot(digits[name]["losses"], label=f"{name}: {seconds:.2f} s an epoch", **style)
    axes.set(xlabel="step", ylabel="training loss", yscale="log",
             title=f"Handwritten digits, small residual network: ×{digits['speed_up']:.2f}")  # fmt: skip
    axes.legend()
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return True
