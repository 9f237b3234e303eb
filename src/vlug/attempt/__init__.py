"""`vlug try`: a user's own training script for N optimiser steps, stock and with vlug, one process each."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from vlug.errors import BadInput, VlugError

__all__ = ["Run", "ScriptFailed", "compare", "run_script"]

TIMEOUT = 24 * 3600.0


class ScriptFailed(VlugError):
    """The script failed or made no optimiser step; the message ends with what it said last."""


@dataclass(frozen=True)
class Run:
    """What one process saw.

    seconds: between the ends of consecutive optimiser steps (whatever lies between them included).
    losses:  of each step, the scalar that backward was last called on before it.
    memory:  most bytes resident.       stats: vlug.stats() at the end, None for stock.
    """

    seconds: list[float]
    losses: list[float]
    memory: int
    stats: dict[str, Any] | None
    finished: bool

    def step(self, warm_up: int) -> float:
        """Median seconds a step after the warm-up."""
        return statistics.median(self.seconds[warm_up:] or self.seconds)

    def spread(self, warm_up: int) -> float:
        """Distance of the quartiles of the steps' times."""
        times = self.seconds[warm_up:] or self.seconds
        if len(times) < 2:
            return 0.0
        quartiles = statistics.quantiles(times, n=4)
        return quartiles[2] - quartiles[0]


def run_script(
    script: Path,
    words: Sequence[str],
    *,
    vlug: bool,
    steps: int,
    show: bool = False,
    timeout: float = TIMEOUT,
) -> Run:
    """Run the script, unchanged, until it made `steps` optimiser steps. Raises ScriptFailed."""
    if not script.is_file():
        raise BadInput(f"SCRIPT: {script} is not a file")
    with tempfile.TemporaryDirectory(prefix="vlug-try-") as folder:
        out, told = Path(folder) / "result.json", Path(folder) / "output.txt"
        env = dict(os.environ, VLUG_HOOKS="on" if vlug else "off", PYTHONUNBUFFERED="1")
        env.setdefault("VLUG_LOG", "warn")
        command = [sys.executable, "-m", "vlug.attempt.child", str(out), str(steps), str(script), *words]
        with told.open("wb") as sink:
            try:
                code = subprocess.run(
                    command,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=None if show else sink,
                    stderr=None if show else subprocess.STDOUT,
                    timeout=timeout,
                ).returncode
            except subprocess.TimeoutExpired:
                raise ScriptFailed(f"{script.name} {_how(vlug)}: not done after {timeout:.0f} s") from None
        said = told.read_text(errors="replace").strip()
        last = "\n".join(said.splitlines()[-12:])
        if not out.exists():
            raise ScriptFailed(f"{script.name} {_how(vlug)} ended with code {code}\n{last}")
        data = json.loads(out.read_text())
    if data["error"]:
        raise ScriptFailed(f"{script.name} {_how(vlug)}: {data['error']}\n{last}")
    if len(data["times"]) < 2:
        raise ScriptFailed(
            f"{script.name} {_how(vlug)}: {len(data['times'])} optimiser steps were seen,"
            f" 2 or more are needed (torch.optim optimisers are watched)\n{last}"
        )
    times = data["times"]
    return Run(
        [b - a for a, b in pairwise(times)],
        data["losses"],
        data["memory"],
        data["stats"],
        data["finished"],
    )


def _how(vlug: bool) -> str:
    return "with vlug" if vlug else "stock"


def compare(stock: Run, ours: Run, warm_up: int, price: float | None = None) -> dict[str, Any]:
    """The figures of `vlug try`: time a step, agreement of losses, memory, what was taken, savings."""
    n = min(len(stock.losses), len(ours.losses))
    apart = [_apart(a, b) for a, b in zip(stock.losses[:n], ours.losses[:n])]
    before, after = stock.step(warm_up), ours.step(warm_up)
    out: dict[str, Any] = {
        "steps": min(len(stock.seconds), len(ours.seconds)) + 1,
        "warm_up": warm_up,
        "seconds": {"stock": before, "vlug": after},
        "spread": {"stock": stock.spread(warm_up), "vlug": ours.spread(warm_up)},
        "first_step_extra": ours.seconds[0] - stock.seconds[0],
        "speed_up": before / after,
        "losses": {"stock": stock.losses[:n], "vlug": ours.losses[:n]},
        "first_loss_apart": apart[0] if apart else None,
        "most_apart": max(apart) if apart else None,
        "memory": {"stock": stock.memory, "vlug": ours.memory},
        "memory_ratio": ours.memory / stock.memory,
        "stats": ours.stats,
    }
    if price is not None:
        out["price_per_hour"] = price
        out["saved_per_hour"] = price * (1 - after / before)
    return out


def _apart(a: float, b: float) -> float:
    """Relative distance of two losses; inf if only one is finite."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), 1e-12)
