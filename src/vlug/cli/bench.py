"""vlug bench [SET …]: layers of well-known networks against stock PyTorch, in turn, in the same process."""

from __future__ import annotations

import argparse
import csv
import json
import math
import platform
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vlug._version import __version__
from vlug.cli.common import Parser, applied, milliseconds, positive, seconds, table, writable
from vlug.errors import VlugError
from vlug.runtime import device, threads

DEFAULT = ("resnet_50",)


def main(argv: Sequence[str]) -> int:
    from vlug.bench import problems

    p = Parser("bench", "Time layers of well-known networks, ours and stock PyTorch in turn. Weights change"
                        " before each timed call of a convolution; times are medians.")  # fmt: skip
    p.add_argument("sets", nargs="*", metavar="SET", help=f"default: {' '.join(DEFAULT)}; --list tells all")
    p.add_argument("--list", action="store_true", help="list the sets")
    how = p.add_mutually_exclusive_group()
    forced = "the hook takes every supported call (default: as shipped, only where ours is expected faster)"
    how.add_argument("--force", action="store_true", help=forced)
    how.add_argument("--direct", action="store_true", help="call plans without the hook")
    p.add_argument("--engine", help="with --direct: the engine (or configuration) to use")
    p.add_argument("--batch", type=positive, default=8, metavar="N", help="batch size (default 8)")
    p.add_argument("--own-batch", action="store_true", help="each layer's batch size as the set has it")
    p.add_argument("--layout", choices=problems.LAYOUTS, action="append", help="default: both")
    p.add_argument("--pass", dest="passes", choices=problems.PASSES, action="append", help="default: all")
    p.add_argument("--dtype", choices=("f32", "bf16", "f16"), default="f32")
    p.add_argument("--only", metavar="TEXT", help="only layers whose name or line holds TEXT")
    p.add_argument("--warm", action="store_true", help="do not empty the caches before each timed call")
    p.add_argument("--budget", type=seconds, default=0.25, metavar="S", help="seconds a layer (default 0.25)")
    p.add_argument("--csv", type=writable, metavar="FILE", help="also write the rows to FILE")
    p.add_argument("--plot", type=writable, metavar="FILE", help="also draw the ratios")
    p.add_argument("--json-file", type=writable, metavar="FILE", help=argparse.SUPPRESS)
    p.add_machine()
    words = list(argv)
    if "--json" in words and words[words.index("--json") + 1 : words.index("--json") + 2] != []:
        at = words.index("--json")
        if words[at + 1].endswith(".json"):  # --json FILE; alone it prints
            words[at] = "--json-file"
    args = p.parse_args(words)
    if args.list:
        names = problems.set_names()
        print(json.dumps(names) if args.json else "\n".join(names))
        return 0
    chosen = [
        row
        for name in (args.sets or DEFAULT)
        for row in problems.problems(
            name,
            batch=None if args.own_batch else args.batch,
            layouts=args.layout or problems.LAYOUTS,
            passes=args.passes or problems.PASSES,
            dtype=args.dtype,
        )
        if not args.only or args.only in row.name or args.only in row.line
    ]
    if not chosen:
        raise VlugError("bench: no layer is left to time")
    if find_spec("torch") is None:
        raise VlugError("bench: PyTorch is not installed: pip install 'vlug[torch]'")
    with applied(args):
        return _bench(args, chosen)


def _bench(args: argparse.Namespace, chosen: Sequence[Any]) -> int:
    import torch

    from vlug.bench.plots import plot
    from vlug.bench.runner import Bench, summarise
    from vlug.codegen import ceilings

    torch.set_num_threads(threads.thread_count())
    here = device.host()
    if here.isa != "none":
        ceilings.measured(here)
    mode = "direct" if args.direct else "force" if args.force else "shipped"
    bench = Bench(mode, cold=not args.warm, budget=args.budget, engine=args.engine)
    rows = []
    for i, problem in enumerate(chosen):
        rows.append(bench.run(problem))
        if not args.json and sys.stderr.isatty():
            print(f"\r{i + 1}/{len(chosen)} ", end="", file=sys.stderr, flush=True)
    if not args.json and sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    if ceilings.beyond(here, max((r.get("share", 0.0) for r in rows), default=0.0)):
        bench.rate_again()
    groups = summarise(rows)
    taken = sum(r["taken"] for r in rows)
    data = {
        "command": "vlug bench " + " ".join(args.sets or DEFAULT),
        "mode": mode,
        "vlug": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": str(here),
        "isa": here.isa,
        "products": here.products,
        "threads": torch.get_num_threads(),
        "ceilings": vars(bench.roof),
        "batch": None if args.own_batch else args.batch,
        "dtype": args.dtype,
        "cold": not args.warm,
        "taken": taken,
        "of": len(rows),
        "summary": groups,
        "rows": rows,
    }
    if args.json_file:
        args.json_file.parent.mkdir(parents=True, exist_ok=True)
        args.json_file.write_text(json.dumps(data, indent=1) + "\n")
    if args.csv:
        _write_csv(args.csv, rows)
    if args.plot and not plot(args.plot, rows, f"{data['command']} ({mode}), {here}, {args.dtype}"):
        print("vlug: no plot: matplotlib is not installed or nothing was timed", file=sys.stderr)
    if args.json:
        print(json.dumps(data, indent=1))
    else:
        _show(data)
    return 0


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(k for r in rows for k in r))
    with path.open("w", newline="") as f:
        out = csv.DictWriter(f, columns)
        out.writeheader()
        out.writerows(rows)


def _show(d: dict[str, Any]) -> None:
    rows = []
    for r in d["rows"]:
        if r["ratio"] is None:
            rows.append([r["name"], f"{r['pass']} {r['layout']}", r["count"], *[""] * 4, r["why"]])
            continue
        spread = max(r["stock_spread"], r["vlug_spread"])
        rows.append([
            r["name"], f"{r['pass']} {r['layout']}", r["count"],
            milliseconds(r["stock"]), milliseconds(r["vlug"]),
            f"{r['ratio']:.2f} ±{spread * r['ratio']:.2f}", f"{r['gflops']:.0f} ({100 * r['share']:.0f} %)",
            "" if r["taken"] else r["why"],
        ])  # fmt: skip
    how = {"force": "every supported call", "shipped": "as shipped", "direct": "plans without the hook"}[
        d["mode"]
    ]
    machine = f"{d['device']}; PyTorch {d['torch']}, {d['threads']} threads"
    title = f"{machine}, {d['dtype']}, batch {d['batch'] or 'as in the set'}; {how}"
    columns = [
        "layer",
        "pass",
        "count",
        "stock",
        "vlug",
        "stock/vlug",
        "GFLOP/s (of roofline)",
        "passed because",
    ]
    table(title, columns, rows, left=2)
    sums = [
        [f"{g['operation']} {g['layout']}", f"{g['taken']}/{g['layers']}",
         "" if math.isnan(g["ratio"]) else f"{g['ratio']:.2f}",
         "" if g["worst"] is None else f"{g['worst']:.2f} {g['worst_name']}",
         milliseconds(g["stock_seconds"]), milliseconds(g["vlug_seconds"])]
        for g in d["summary"]
    ]  # fmt: skip
    table("geometric means", ["", "taken", "stock/vlug", "worst layer", "stock, all", "vlug, all"], sums)
    print(f"taken: {d['taken']} of {d['of']}")
