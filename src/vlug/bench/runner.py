"""Running a bench: ours and stock in turn, in the same process, and what came of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from vlug import plan as planner
from vlug.bench.peers import Peer, peer
from vlug.bench.problems import Problem
from vlug.errors import NotSupported, VlugError
from vlug.graph import Graph
from vlug.heuristics import roofline
from vlug.plan import ExecutionPlan
from vlug.runtime import device as devices
from vlug.tune import measure

__all__ = ["Bench", "geometric", "summarise"]

#: Calls shorter than this are timed several at a time.
SHORTEST = 200e-6


def geometric(values: Iterable[float]) -> float:
    """The geometric mean (nan of nothing)."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


class Bench:
    """How problems are timed.

    mode: "force"    the hook takes every supported call;
          "shipped"  the hook as users have it;
          "direct"   plans are called without the hook (results allocated by PyTorch in both).
    """

    def __init__(
        self,
        mode: str = "shipped",
        *,
        cold: bool = True,
        budget: float = 0.25,
        rounds: tuple[int, int] = (5, 15),
        engine: str | None = None,
    ) -> None:
        self.mode, self.cold, self.budget, self.rounds, self.engine = mode, cold, budget, rounds, engine
        self.device = devices.host()
        self.roof = roofline(self.device)
        self._rated: list[tuple[dict[str, Any], Graph]] = []
        self.threads = torch.get_num_threads()
        if mode != "direct":
            from vlug.frontends import hooks

            hooks.enable(force=mode == "force")
            state = hooks.status().get("torch", "it is not armed")
            if state != "on":
                raise VlugError(f"bench: vlug's hooks in PyTorch are not on: {state} (--direct needs none)")

    # --- one problem ---
    def run(self, problem: Problem) -> dict[str, Any]:
        """The row of a problem: times of both, their ratio, whether it was taken and if not why."""
        with torch.inference_mode(False), torch.no_grad():
            p = peer(problem.graph)
            ours, why = self._ours(problem, p)
            row: dict[str, Any] = {
                "name": problem.name,
                "count": problem.count,
                "pass": problem.which,
                "layout": problem.layout,
                "operation": problem.graph.nodes[0].op.name,
                "line": problem.line,
                "taken": why is None,
                "why": why,
            }
            if ours is None:
                return row | {"stock": None, "vlug": None, "ratio": None}
            stock = self._hooked(p.call, False) if self.mode != "direct" else p.call
            calls = self._repeats(stock)
            times = measure(
                {"vlug": _repeated(ours, calls), "stock": _repeated(stock, calls)},
                budget=self.budget,
                rounds=self.rounds,
                cold=self.cold,
                before=p.before,
            )
            cost = problem.graph.cost
            for side in ("stock", "vlug"):
                row[side] = times[side].median / calls
                row[f"{side}_spread"] = times[side].spread
            row["ratio"] = row["stock"] / row["vlug"]
            row["rounds"], row["calls"] = times["vlug"].calls, calls
            row["gflops"] = cost.flops / row["vlug"] / 1e9
            row["share"] = self.roof.seconds(cost, problem.graph) / row["vlug"]
            self._rated.append((row, problem.graph))
            return row

    def rate_again(self) -> None:
        """The machine's ceilings were measured anew: rows get their shares of the new ones."""
        self.roof = roofline(self.device)
        for row, graph in self._rated:
            row["share"] = self.roof.seconds(graph.cost, graph) / row["vlug"]

    def _repeats(self, call: Callable[[], Any]) -> int:
        call()
        start = time.perf_counter()
        call()
        return max(1, min(1000, math.ceil(SHORTEST / max(time.perf_counter() - start, 1e-7))))

    def _ours(self, problem: Problem, p: Peer) -> tuple[Callable[[], Any] | None, str | None]:
        """What is timed as ours, and why vlug does not take the problem (None if it does)."""
        if self.mode == "direct":
            try:
                made = planner.plan(problem.graph, allow_reference=False, prefer=self.engine)
            except NotSupported as e:
                return None, _reason(e)
            return _direct(made, p), None
        call = self._hooked(p.call, True)
        before = _counts()
        call()
        after = _counts()
        for name, now in after.items():
            was = before.get(name, {"passed": 0, "reasons": {}})
            if now["passed"] > was["passed"]:
                news = [w for w, n in now["reasons"].items() if n > was["reasons"].get(w, 0)]
                return (call if self.mode == "shipped" else None), f"{name}: {news[0] if news else 'passed'}"
        if all(now["taken"] == before.get(name, {"taken": 0})["taken"] for name, now in after.items()):
            return (call if self.mode == "shipped" else None), "the hook saw no call"
        return call, None

    def _hooked(self, call: Callable[[], Any], on: bool) -> Callable[[], Any]:
        from vlug.frontends import hooks

        def run() -> Any:
            with hooks.using(on):
                return call()

        run.inner, run.context = call, lambda: hooks.using(on)  # type: ignore[attr-defined]
        return run


def _repeated(call: Callable[[], Any], n: int) -> Callable[[], Any]:
    """n calls as one, switched once."""
    inner: Callable[[], Any] = getattr(call, "inner", call)
    context: Callable[[], AbstractContextManager[Any]] = getattr(call, "context", nullcontext)

    def run() -> None:
        with context():
            for _ in range(n):
                inner()

    return run


def _counts() -> dict[str, dict[str, Any]]:
    from vlug.frontends import hooks

    found: dict[str, dict[str, Any]] = hooks.stats().get("torch", {})
    return {n: {**c, "reasons": dict(c.get("reasons", {}))} for n, c in found.items()}


def _reason(e: NotSupported) -> str:
    return "; ".join(f"{engine}: {why}" for engine, why in e.reasons) or str(e)


def _direct(made: ExecutionPlan, p: Peer) -> Callable[[], Any]:
    """A call of the plan itself with results that PyTorch allocates, as its own operator does."""
    from vlug.bench.peers import DTYPES
    from vlug.codegen import native

    words = made.native()
    graph = made.graph
    fixed = {name: t.data_ptr() for name, t in p.tensors.items()}
    outputs = [(t.dim, t.stride, DTYPES[t.dtype.name]) for t in graph.outputs]
    inputs = [fixed[t.name] for t in graph.inputs]

    def run() -> Any:
        made_here = [torch.empty_strided(dim, stride, dtype=dtype) for dim, stride, dtype in outputs]
        native.run(words, [*inputs, *(t.data_ptr() for t in made_here)])
        return made_here

    return run


def summarise(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each operation and layout: geometric mean of stock's time / ours, the worst layer, total times."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for r in rows:
        groups.setdefault((r["operation"], r["layout"]), []).append(r)
    out = []
    for (operation, layout), members in groups.items():
        timed = [r for r in members if r["ratio"] is not None]
        worst = min(timed, key=lambda r: r["ratio"], default=None)
        out.append(
            {
                "operation": operation,
                "layout": layout,
                "layers": len(members),
                "taken": sum(r["taken"] for r in members),
                "ratio": geometric(r["ratio"] for r in timed),
                "worst": None if worst is None else worst["ratio"],
                "worst_name": None if worst is None else worst["name"],
                "stock_seconds": sum(r["stock"] * r["count"] for r in timed),
                "vlug_seconds": sum(r["vlug"] * r["count"] for r in timed),
            }
        )
    return out
