"""Heuristics: a roofline model that ranks engines, and what to expect against a framework's own kernel."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from vlug.engines.base import Engine, EngineConfig
from vlug.errors import VlugWarning
from vlug.graph import Graph, Node
from vlug.ops.base import Cost

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice
    from vlug.store import Store

__all__ = [
    "Choice",
    "Expectation",
    "Problem",
    "Roofline",
    "classify",
    "expect",
    "predict",
    "rank",
    "roofline",
]

NOISE = 0.03  # timings closer than this are a tie: the earlier engine of the list keeps its place
OVERHEAD = 2e-6  # seconds a call costs before any arithmetic


# --- the machine ---
@dataclass(frozen=True)
class Roofline:
    """Ceilings of a device with all its threads: flops/s in fp32, bytes/s from memory and from cache."""

    flops: float
    memory: float
    cache: float
    cache_bytes: int
    measured: bool

    def _bandwidth(self, cost: Cost) -> float:
        return self.cache if cost.bytes <= self.cache_bytes else self.memory

    def seconds(self, cost: Cost, graph: Graph) -> float:
        """The least time a graph of this cost can take."""
        return max(cost.flops / self.flops, cost.bytes / self._bandwidth(cost))

    def bound(self, cost: Cost, graph: Graph) -> str:
        """What limits it: arithmetic, memory or cache."""
        if cost.flops / self.flops >= cost.bytes / self._bandwidth(cost):
            return "arithmetic"
        return "cache" if cost.bytes <= self.cache_bytes else "memory"


# Estimates for a device whose ceilings were not measured: fp32 GFLOP/s and GB/s of one core.
_ESTIMATE = {
    "avx512": (160.0, 12.0, 25.0),
    "avx2": (80.0, 10.0, 20.0),
    "neon": (40.0, 10.0, 20.0),
    "none": (5.0, 8.0, 12.0),
}


def roofline(device: CpuDevice) -> Roofline:
    """The device's ceilings: measured where `device.ceilings` has them, else estimated from cores and ISA."""
    measured = getattr(device, "ceilings", None)
    found = measured() if callable(measured) else measured
    near = device.l2 * device.cores  # a shared L3 is often someone else's
    if found is not None:
        return Roofline(found.flops, found.memory, found.cache, near, True)
    kind = "avx512" if device.isa.startswith("avx512") else device.isa
    gflops, memory, cached = (c * 1e9 * device.cores for c in _ESTIMATE[kind])
    return Roofline(gflops, memory, cached, near, False)


def predict(graph: Graph, device: CpuDevice, engine: Engine) -> float:
    """Seconds that an engine is expected to take: the roofline's time over the engine's share of it.

    A share above 1 is that of an engine that does fewer operations than the definition, at most 4 times.
    """
    share = max(min(engine.share(graph, device), 4.0), 1e-6)
    return roofline(device).seconds(graph.cost, graph) / share + OVERHEAD


# --- ranking ---
@dataclass(frozen=True)
class Choice:
    """An engine's configuration with its time; `why` is "measured" or "expected"."""

    engine: Engine
    config: EngineConfig
    seconds: float
    why: str


def rank(
    graph: Graph,
    device: CpuDevice,
    engines: Sequence[Engine],
    store: Store | None = None,
    threads: int | None = None,
) -> list[Choice]:
    """Configurations of engines that take the graph, best first.

    A time measured before (`store`) replaces the model's; an engine never measured keeps its expected time,
    so that one slow measurement of one engine does not make it the winner for want of others. Times within
    noise of each other keep the engines' order, which is the list's order of preference.
    """
    choices: list[Choice] = []
    threads = threads or device.cores
    measured = store.best(graph.line, device.fingerprint, threads) if store is not None else {}
    for engine in engines:
        config = engine.default(graph, device)
        found = measured.get((engine.name, str(engine.version)))
        if found is not None:
            knobs, seconds = found
            kept = EngineConfig.parse(f"{engine.name}/{knobs}" if knobs else engine.name)
            if _allowed(engine, kept, graph, device):
                choices.append(Choice(engine, kept, seconds, "measured"))
                continue
        choices.append(Choice(engine, config, predict(graph, device, engine), "expected"))
    ranked: list[Choice] = []
    for c in choices:  # insertion keeps ties in order
        at = len(ranked)
        while at and c.seconds < ranked[at - 1].seconds * (1 - NOISE):
            at -= 1
        ranked.insert(at, c)
    return ranked


def _allowed(engine: Engine, config: EngineConfig, graph: Graph, device: CpuDevice) -> bool:
    allowed = engine.knobs(graph, device)
    knobs = dict(config.knobs)
    return knobs.keys() == allowed.keys() and all(v in allowed[k] for k, v in knobs.items())


# --- against a framework's own kernel ---
@dataclass(frozen=True)
class Problem:
    """The class of a problem that expectations are kept by.

    op:     the operation that does the work.       layout: nchw, nhwc or strided, of the main tensor.
    kind:   1x1, 1x1s (strided), 3x3, 3x3s, kxk, kxks, depthwise, grouped for convolutions, with 1d or 3d
            before it in one or three dimensions (1d3x3: a window of 3); of reductions the mode and which axes
            go (all, inner, outer), "" for a mean of inner ones; "none" for losses that are not reduced;
            else "".
    dtype:  of the main tensor.
    size:   tiny, small, large; for convolutions tiny (little to do), p7, p14, p28, p56: planes of up to 7×7 …
    """

    op: str
    layout: str
    kind: str
    dtype: str
    size: str

    @property
    def key(self) -> str:
        return "/".join((self.op, self.layout, self.kind or "-", self.dtype, self.size))


@dataclass(frozen=True)
class Expectation:
    """ratio: the framework's time / ours (above 1: ours is faster); why: where the figure comes from."""

    ratio: float
    why: str


_MINOR = frozenset({"bias", "relu", "add", "mul"})


def classify(graph: Graph) -> Problem:
    """The class of a graph, by its costliest operation that is not pointwise."""
    node = max(graph.nodes, key=lambda n: (n.op.name not in _MINOR, _flops(graph, n)))
    ins = graph.ins(node)
    main = next(t for t in ins if t is not None)
    layout = main.layout or "strided"
    w = ins[1] if node.op.name in ("conv_fprop", "conv_dgrad") else graph.outs(node)[0]
    if layout == "nchw" and any(t is not None and t.layout == "nhwc" and t.rank >= 4 for t in ins[1:2]):
        layout = "nhwc"
    kind = ""
    cost = graph.cost
    if node.op.name.startswith("conv_"):
        kind = _conv_kind(graph, node)
        pixels = min(math.prod(t.dim[2:]) for t in (*ins, *graph.outs(node)) if t is not None and t is not w)
        size = "tiny" if cost.flops < 4e6 else next((f"p{p}" for p in (7, 14, 28) if pixels <= p * p), "p56")
    elif node.op.name == "matmul":
        size = "tiny" if cost.flops < 1e6 else "small" if cost.flops < 2e8 else "large"
    else:
        kind = _kind(node.op, main.rank)
        size = "tiny" if cost.bytes < 1 << 17 else "small" if cost.bytes < 8 << 20 else "large"
    return Problem(node.op.name, layout, kind, main.dtype.name, size)


def _kind(op: Any, rank: int) -> str:
    if op.name == "reduction":
        axes = {a % rank for a in op.axes} if rank else set()
        where = "all" if len(axes) == rank else "inner" if rank - 1 in axes else "outer"
        return "" if (op.mode, where) == ("mean", "inner") else f"{op.mode}-{where}"
    if op.name.startswith(("resample", "pad", "max_pool", "avg_pool", "adaptive_", "grid_sample")):
        return str(getattr(op, "mode", "")) + ("" if rank == 4 else f"{rank - 2}d")
    return "none" if getattr(op, "reduction", "") == "none" else ""


def _flops(graph: Graph, node: Node) -> int:
    return node.op.cost(graph.ins(node), graph.outs(node)).flops


def _conv_kind(graph: Graph, node: Node) -> str:
    op: Any = node.op
    ins, outs = graph.ins(node), graph.outs(node)
    if op.name == "conv_wgrad":
        w, x = outs[0], ins[1]
    else:
        w, x = ins[1], outs[0] if op.name == "conv_dgrad" else ins[0]
    if w is None or x is None:
        return "kxk"
    rank = w.rank - 2
    dims = "" if rank == 2 else f"{rank}d"
    if op.groups > 1:
        return dims + ("depthwise" if op.groups == x.dim[1] else "grouped")
    window = set(w.dim[2:])
    size = "1x1" if window == {1} else "3x3" if window == {3} else "kxk"
    if any(d > 1 for d in op.dilation):
        size = "kxk"
    return dims + size + ("s" if any(s > 1 for s in op.stride) else "")


@cache
def _expectations() -> dict[str, Any]:
    text = resources.files("vlug").joinpath("bench/data/expect.json").read_text()
    loaded: dict[str, Any] = json.loads(text)
    return loaded


# Classes that were not measured borrow from the nearest that were, with a margin for the distance. A tiny
# problem borrows from nobody: there, what a call costs decides.
_SIZES = (("p7", "p14", "p28", "p56"), ("small", "large"))
_MARGIN = 0.9


def _nearest(size: str) -> list[str]:
    for sizes in _SIZES:
        if size in sizes:
            at = sizes.index(size)
            return sorted(sizes, key=lambda s: abs(sizes.index(s) - at))
    return [size]


def expect(
    graph: Graph, device: CpuDevice, store: Store | None = None, threads: int | None = None
) -> Expectation:
    """What PyTorch's stock kernel takes over what ours takes: from the measured times of this very problem
    where the store has both, else from the committed benchmark of its class; 0 where neither is known.
    """
    if store is not None:
        ratio = store.ratio(graph.line, device.fingerprint, threads or device.cores)
        if ratio is not None:
            return Expectation(ratio, "measured here")
    table = _expectations()
    problem = classify(graph)
    rows: dict[str, Any] = table["classes"]
    margin = 1.0
    tested: list[str] = table["isa"]
    if device.isa not in tested:
        margin *= _MARGIN
    for size in _nearest(problem.size):
        key = "/".join((problem.op, problem.layout, problem.kind or "-", problem.dtype, size))
        row = rows.get(key)
        if row is not None and row.get("products", "") not in ("", device.products):
            return Expectation(0.0, f"class {key} was measured with {row['products']} only")
        if row is not None:
            near = "" if size == problem.size else f", borrowed from {size}"
            scale = margin if size == problem.size else margin * _MARGIN
            return Expectation(row["ratio"] * scale, f"class {key}: {row['why']}{near}")
    return Expectation(0.0, f"class {problem.key} was never measured")


# --- said once ---
_warned: set[str] = set()


def warn_slow(graph: Graph, reasons: Sequence[tuple[str, str]]) -> None:
    """Say once for each kind of problem that the reference engine serves it, and why nothing faster does."""
    kind = "; ".join(n.op.name for n in graph)
    if kind in _warned:
        return
    _warned.add(kind)
    why = "; ".join(f"{engine}: {w}" for engine, w in reasons) or "no fast engine is listed"
    warnings.warn(f"slow reference engine for {graph.line} ({why})", VlugWarning, stacklevel=2)
