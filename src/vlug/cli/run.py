"""vlug run LINE: one problem on real numbers: error against the reference, time, share of the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vlug import plan as planner
from vlug import testing
from vlug.cli.common import Parser, applied, emit, graph_of, milliseconds, seconds
from vlug.codegen import ceilings
from vlug.engines.reference import evaluate
from vlug.graph import Graph
from vlug.heuristics import roofline
from vlug.runtime import device, handle, threads
from vlug.testing_trial import PLAN, VARIANT_NAMES, Trial
from vlug.tune import measure


def main(argv: Sequence[str]) -> int:
    p = Parser("run", "Run one problem: error against the float64 reference, time, share of the roofline.")
    p.add_argument("line", nargs="+", help="a problem line, such as: relu x=8x64x56x56")
    p.add_argument("--engine", help="an engine or a configuration (cpu.x/knob=1)")
    p.add_argument(
        "--no-check", action="store_true", help="leave the reference out (slow for large problems)"
    )
    p.add_argument("--warm", action="store_true", help="do not empty the caches before each timed call")
    p.add_argument("--budget", type=seconds, default=0.5, metavar="S", help="seconds to time (default 0.5)")
    p.add_machine()
    strict = p.add_argument_group("strict", "hold it to its definition, in guarded memory")
    strict.add_argument("--strict", choices=testing.FILLS, help="which numbers")
    strict.add_argument("--seed", type=int, metavar="N", help="where the numbers come from")
    strict.add_argument("--dtype", metavar="D", help="replaces the line's")
    strict.add_argument("--variant", choices=VARIANT_NAMES, help="layout of the tensors")
    strict.add_argument("--at", choices=("start", "end"), help="guard page to lie at")
    args = p.parse_args(argv)
    graph = graph_of(args.line)
    if args.strict:
        return _strict(args)
    for name in ("seed", "dtype", "variant", "at"):
        if getattr(args, name) is not None:
            p.error(f"argument --{name}: only with --strict")
    with applied(args):
        data = run(graph, args.engine, not args.no_check, not args.warm, args.budget)
    emit(args, data, describe(data))
    return 0 if all(e["good"] for e in data["errors"].values()) else 1


def _strict(args: Any) -> int:
    """One trial: refused or right."""
    trial = Trial(
        " ".join(args.line), args.engine or PLAN, args.strict, args.seed or 0, args.dtype or "",
        args.variant or "plain", args.isa or "", args.threads or 1, args.at or "end",
    )  # fmt: skip
    try:
        why = trial.run()
    except testing.Mismatch as e:
        emit(args, {"trial": trial.words, "good": False, "why": str(e)}, f"WRONG: {e}")
        return 1
    text = f"{trial.graph.line}\n  refused: {why}" if why else f"{trial.graph.line}\n  right"
    emit(args, {"trial": trial.words, "good": True, "refused": why}, text)
    return 0


def run(graph: Graph, engine: str | None, check: bool, cold: bool, budget: float) -> dict[str, Any]:
    """The figures of `vlug run`."""
    here = device.host()
    made = planner.plan(graph, here, prefer=engine, threads=threads.thread_count())
    inputs = testing.fill(graph, "real")
    arrays = {}
    for t in (*graph.inputs, *graph.outputs):
        a = handle.empty(t.dim, t.dtype, t.stride)
        a[...] = inputs[t.name] if t.name in inputs else np.zeros((), t.dtype.numpy)
        arrays[t.name] = a
        if t.overlaps and t.name in inputs:  # the values that share an element are one value
            inputs[t.name] = a.astype(inputs[t.name].dtype)
    made.execute(arrays)
    errors = _errors(graph, inputs, arrays) if check else {}
    sample = measure({"": lambda: made.execute(arrays)}, budget=budget, rounds=(3, 1000), cold=cold)[""]
    if here.isa != "none":
        ceilings.measured(here)
    roof, cost = roofline(here), graph.cost
    if ceilings.beyond(here, roof.seconds(cost, graph) / sample.median):
        roof = roofline(here)
    return {
        "line": graph.line,
        "device": str(here),
        "threads": threads.thread_count(),
        "engine": made.engine,
        "configs": [str(s.config) for s in made.steps],
        "seconds": sample.median,
        "spread": sample.spread,
        "calls": sample.calls,
        "cold": cold,
        "gflops": cost.flops / sample.median / 1e9,
        "gbytes": cost.bytes / sample.median / 1e9,
        "share": roof.seconds(cost, graph) / sample.median,
        "bound_by": roof.bound(cost, graph),
        "workspace": made.workspace_size(threads.thread_count()),
        "errors": errors,
    }


def _errors(graph: Graph, inputs: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
    """Largest error of each output over the largest magnitude of the reference, against what is allowed:
    a float32 sum of so many terms in any order, and one rounding to the dtype."""
    with np.errstate(all="ignore"):
        want = {name: np.asarray(v, np.float64) for name, v in evaluate(graph, inputs).items()}
    out = {}
    terms = max(graph.cost.flops / max(sum(t.numel for t in graph.outputs), 1), 1.0)
    for t in graph.outputs:
        if not t.numel:
            continue
        have, right = arrays[t.name].astype(np.float64), want[t.name]
        apart = np.array(have != right) & ~(np.isnan(have) & np.isnan(right))  # equal infinities are not
        finite = np.abs(right[np.isfinite(right)])
        scale = float(finite.max(initial=0.0)) or 1.0
        error = float(np.abs(have[apart] - right[apart]).max(initial=0.0)) / scale
        allowed = (2.0**-24 * (4 + terms**0.5) if t.dtype.name != "f64" else 1e-10) + t.dtype.eps
        out[t.name] = {"relative": error, "allowed": allowed, "good": bool(error <= allowed)}
    return out


def describe(d: dict[str, Any]) -> str:
    lines = [
        d["line"],
        f"  {', '.join(d['configs'])} on {d['device']}, {d['threads']} threads",
        f"  {milliseconds(d['seconds'])} ±{100 * d['spread']:.0f} % ({d['calls']} calls,"
        f" {'cold' if d['cold'] else 'warm'} caches): {d['gflops']:.1f} GFLOP/s, {d['gbytes']:.1f} GB/s,"
        f" {100 * d['share']:.0f} % of the roofline ({d['bound_by']})",
    ]
    for name, e in d["errors"].items():
        verdict = "" if e["good"] else "  WRONG"
        lines.append(
            f"  {name}: error {e['relative']:.1e} of the largest value (allowed {e['allowed']:.1e}){verdict}"
        )
    return "\n".join(lines)
