"""vlug tune SCRIPT.py [ARGUMENT …] | LINE: measure once for each problem met, and remember the faster."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path
from typing import Any

from vlug import plan as planner
from vlug import tune
from vlug.cli.common import Parser, emit, graph_of, milliseconds, positive
from vlug.engines import engines
from vlug.engines.base import EngineConfig
from vlug.errors import BadInput, NotSupported, VlugError
from vlug.graph import Graph
from vlug.runtime import device, threads
from vlug.store import STOCK_TORCH, Store, default_store


def main(argv: Sequence[str]) -> int:
    p = Parser(
        "tune",
        "Measure once for each problem that a script meets (ours and the framework's own kernel), or every"
        " engine and knob for one problem line; remember the faster.",
    )
    p.add_argument(
        "--most", type=positive, default=24, metavar="N", help="configurations of an engine to try"
    )
    p.add_argument("--clear", action="store_true", help="forget earlier timings first")
    p.add_argument("what", metavar="SCRIPT.py|LINE", help="a Python script, or a problem line")
    p.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="handed to the script; or the rest of the line"
    )
    args = p.parse_args(argv)
    store = default_store()
    if args.clear:
        store.clear()
    if args.what.endswith(".py"):
        data = _script(Path(args.what), args.arguments, store)
        emit(args, data, _describe_script(data))
    else:
        data = _line(graph_of([args.what, *args.arguments]), store, args.most)
        emit(args, data, _describe_line(data))
    return 0


#: Arms vlug also where no entry point does (a source tree), then runs the script as `python SCRIPT` would.
_CHILD = """
import os, runpy, sys
import torch
from vlug.frontends import hooks
hooks.enable()
if hooks.status().get("torch") != "on":
    sys.exit(f"vlug: tune: hooks in PyTorch are not on: {hooks.status().get('torch', 'not armed')}")
sys.argv = sys.argv[1:]
if not getattr(sys.flags, "safe_path", False):
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def _script(script: Path, words: Sequence[str], store: Store) -> dict[str, Any]:
    if not script.is_file():
        raise BadInput(f"SCRIPT: {script} is not a file")
    before = set(store.timings())
    if find_spec("torch") is None:
        raise VlugError("tune: PyTorch is not installed: pip install 'vlug[torch]'")
    env = dict(os.environ, VLUG_TUNE="on", VLUG_HOOKS="on", VLUG_FORCE="off")
    code = subprocess.run([sys.executable, "-c", _CHILD, str(script), *words], env=env).returncode
    if code:
        raise VlugError(f"tune: {script} ended with code {code}")
    new = [t for t in store.timings() if t not in before]
    where = device.host().fingerprint
    ratios = {
        t.line: store.ratio(t.line, where, t.threads) for t in new if t.engine == STOCK_TORCH
    }  # fmt: skip
    known = {line: r for line, r in ratios.items() if r is not None}
    return {"script": str(script), "problems": len(known), "timings": len(new), "ratios": known}


def _describe_script(d: dict[str, Any]) -> str:
    faster = sum(r >= 1 for r in d["ratios"].values())
    head = f"{d['problems']} problems measured: ours is preferred for {faster}"
    lines = [f"{head}, stock for {d['problems'] - faster}"]
    lines += [f"  ×{r:.2f}  {line}" for line, r in sorted(d["ratios"].items(), key=lambda kv: -kv[1])]
    return "\n".join(lines)


def configurations(graph: Graph, where: device.CpuDevice, most: int) -> list[EngineConfig]:
    """Every fast engine's configurations for a graph, the default of each first, at most `most` an engine."""
    out = []
    for e in engines():
        if e.name == planner.REFERENCE or e.why_not(graph, where) is not None:
            continue
        knobs = e.knobs(graph, where)
        for values in islice(product(*knobs.values()), most):
            out.append(EngineConfig(e.name, tuple(zip(knobs, values))))
    return out


def _line(graph: Graph, store: Store, most: int) -> dict[str, Any]:
    from vlug import testing
    from vlug.runtime import handle

    where, n = device.host(), threads.thread_count()
    inputs = testing.fill(graph, "real")
    arrays = {}
    for t in (*graph.inputs, *graph.outputs):
        arrays[t.name] = handle.empty(t.dim, t.dtype, t.stride)
        arrays[t.name][...] = inputs.get(t.name, 0)
    candidates: dict[str, Callable[[], object]] = {}
    for config in configurations(graph, where, most):
        try:
            made = planner.plan(graph, where, prefer=config)
        except NotSupported:
            continue
        candidates[str(config)] = lambda made=made: made.execute(arrays)  # type: ignore[misc]
    if not candidates:
        planner.plan(graph, where, allow_reference=False)  # raises with the reasons
    stock_version = ""
    if find_spec("torch") is not None:
        import torch

        from vlug.bench.peers import peer

        try:
            candidates[STOCK_TORCH] = _stock(peer(graph).call)
            stock_version = torch.__version__
        except NotSupported:
            pass
    seconds = 0.05 * len(candidates)
    samples = tune.measure(candidates, budget=max(seconds, 0.5), rounds=(5, 40))
    versions = {e.name: str(e.version) for e in engines()}
    for name, s in samples.items():
        if name == STOCK_TORCH:
            tune.remember(graph, name, stock_version, s, n, device=where, store=store)
        else:
            found = EngineConfig.parse(name)
            tune.remember(graph, found, versions[found.engine], s, n, device=where, store=store)
    ours = {k: v for k, v in samples.items() if k != STOCK_TORCH}
    best = tune.fastest(ours)
    return {
        "line": graph.line,
        "threads": n,
        "seconds": {name: s.median for name, s in samples.items()},
        "best": best,
        "stock": samples[STOCK_TORCH].median if STOCK_TORCH in samples else None,
    }


def _stock(call: Callable[[], Any]) -> Callable[[], Any]:
    import torch

    from vlug.frontends import hooks

    def run() -> None:
        with hooks.using(False), torch.no_grad():
            call()

    return run


def _describe_line(d: dict[str, Any]) -> str:
    lines = [d["line"]]
    for name, s in sorted(d["seconds"].items(), key=lambda kv: kv[1]):
        lines.append(f"  {milliseconds(s):>9}  {name}{'   (preferred)' if name == d['best'] else ''}")
    if d["stock"] is not None:
        lines.append(f"  stock / ours: ×{d['stock'] / d['seconds'][d['best']]:.2f}")
    return "\n".join(lines)
