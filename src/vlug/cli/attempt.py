"""vlug try SCRIPT.py [ARGUMENT …]: your own training script for some steps, stock and with vlug."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vlug import attempt
from vlug.cli.common import Parser, emit, milliseconds, positive
from vlug.cli.counts import taken_lines
from vlug.errors import BadInput


def _price(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a price above 0")
    return value


def main(argv: Sequence[str]) -> int:
    p = Parser("try", "Run a training script unchanged, stock and with vlug, and compare.")
    p.add_argument("--steps", type=positive, default=30, metavar="N", help="optimiser steps (default 30)")
    p.add_argument("--warm-up", type=positive, default=None, metavar="N",
                   help="steps left out of the times (default: a fifth, at least 2)")  # fmt: skip
    p.add_argument("--price-per-hour", type=_price, metavar="X", help="what the machine costs an hour")
    p.add_argument("--show", action="store_true", help="let the script's own output through")
    p.add_argument("script", type=Path, metavar="SCRIPT.py")
    p.add_argument("arguments", nargs=argparse.REMAINDER, help="handed to the script")
    args = p.parse_args(argv)
    steps = max(args.steps, 2)
    warm_up = min(args.warm_up if args.warm_up is not None else max(steps // 5, 2), max(steps - 2, 0))
    if not args.script.is_file():
        raise BadInput(f"SCRIPT: {args.script} is not a file")
    runs = {}
    for vlug in (False, True):
        if not args.json:
            print(f"{'with vlug' if vlug else 'stock'} …", file=sys.stderr, flush=True)
        runs[vlug] = attempt.run_script(args.script, args.arguments, vlug=vlug, steps=steps, show=args.show)
    data = attempt.compare(runs[False], runs[True], warm_up, args.price_per_hour)
    emit(args, data, describe(data))
    apart = data["first_loss_apart"]
    return 1 if apart is not None and apart > 1e-3 else 0


def describe(d: dict[str, Any]) -> str:
    """The comparison in sentences."""
    s, spread, m = d["seconds"], d["spread"], d["memory"]
    lines = [
        f"{d['steps']} steps, the first {d['warm_up']} not timed",
        f"time a step   stock {milliseconds(s['stock'])} (±{milliseconds(spread['stock'] / 2)}),"
        f" with vlug {milliseconds(s['vlug'])} (±{milliseconds(spread['vlug'] / 2)}): ×{d['speed_up']:.2f}",
    ]
    if d["most_apart"] is None:
        lines.append("losses        none were seen (backward was called on no scalar)")
    else:
        lines.append(
            f"losses        {d['first_loss_apart']:.1e} apart at the first step,"
            f" {d['most_apart']:.1e} at most (relative)"
        )
        if d["first_loss_apart"] > 1e-3:
            lines.append("              they do not agree: that is a fault of vlug, or the script is random")
    lines.append(
        f"memory        stock {m['stock'] / 2**20:.0f} MiB, with vlug {m['vlug'] / 2**20:.0f} MiB"
        f" (×{d['memory_ratio']:.2f})"
    )
    lines += taken_lines(d["stats"])
    if "saved_per_hour" in d:
        saved, price = d["saved_per_hour"], d["price_per_hour"]
        verb = "saves" if saved >= 0 else "costs"
        lines.append(
            f"price         at {price:g} an hour vlug {verb} {abs(saved):.4g} of each hour's {price:g}:"
            f" the same steps take {100 * s['vlug'] / s['stock']:.0f} % of the time"
        )
    return "\n".join(lines)
