"""Measuring candidates: interleaved, in shuffled order, from a cold cache; the store keeps every timing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from vlug import log
from vlug.engines.base import EngineConfig
from vlug.graph import Graph
from vlug.heuristics import NOISE
from vlug.runtime import device as devices
from vlug.runtime.timing import Stats, interleaved
from vlug.store import STOCK_TORCH, Store, Timing, default_store

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["decide", "fastest", "flush", "measure", "remember"]

Call = Callable[[], object]


class _Flush:
    """Pushes what was computed before out of the caches by writing over more than they hold."""

    most = 64 << 20  # a shared cache larger than this is not emptied: it would take longer than the calls

    def __init__(self) -> None:
        self._block: np.ndarray[tuple[int], np.dtype[np.uint8]] | None = None

    def __call__(self) -> None:
        if self._block is None:
            d = devices.host()
            self._block = np.zeros(min(max(2 * d.l2 * d.cores, d.l3), self.most), np.uint8)
        self._block += 1


flush = _Flush()


def measure(
    candidates: Mapping[str, Call],
    *,
    budget: float = 0.25,
    rounds: tuple[int, int] = (3, 9),
    cold: bool = True,
    before: Call | None = None,
) -> dict[str, Stats]:
    """Time candidates in turn, in another order each round, within `budget` seconds (rounds[0] rounds at the
    least); the first call of each is not counted. cold: caches are emptied before each call. before: called
    before each timed call, outside the time (a weight update, say).
    """

    def prepare() -> None:
        if before is not None:
            before()
        if cold:
            flush()

    return interleaved(candidates, budget=budget, rounds=rounds, cold=prepare)


def fastest(samples: Mapping[str, Stats]) -> str:
    """The name of the fastest; a later one must beat an earlier by more than the noise."""
    best = ""
    for name, s in samples.items():
        if not best or s.median < samples[best].median * (1 - NOISE):
            best = name
    return best


def remember(
    graph: Graph,
    config: EngineConfig | str,
    version: str,
    sample: Stats,
    threads: int,
    *,
    device: CpuDevice | None = None,
    store: Store | None = None,
) -> None:
    """Keep a sample in the store; `config` is an engine's configuration or a name such as "stock:torch"."""
    if isinstance(config, EngineConfig):
        engine, knobs = config.engine, ",".join(f"{k}={v}" for k, v in config.knobs)
    else:
        engine, knobs = config, ""
    device = device or devices.host()
    (store or default_store()).record(
        Timing(
            graph.line,
            device.fingerprint,
            engine,
            version,
            knobs,
            threads,
            max(sample.median, 1e-9),
            2 * sample.spread * sample.median,
            sample.calls,
        )
    )


def decide(
    graph: Graph,
    ours: Call,
    stock: Call,
    *,
    config: EngineConfig | str,
    version: str = "1",
    stock_version: str,
    threads: int,
    stock_name: str = STOCK_TORCH,
    device: CpuDevice | None = None,
    store: Store | None = None,
) -> bool:
    """Whether ours is at least as fast as the framework's own kernel, within noise.

    Asks the store first; otherwise calls `ours` and `stock` a few times each (at most about a quarter of a
    second), cold and interleaved, and remembers both. Both must be callable again and again without harm.
    """
    device = device or devices.host()
    store = store or default_store()
    ratio = store.ratio(graph.line, device.fingerprint, threads, stock_name)
    if ratio is None:
        samples = measure({"ours": ours, "stock": stock})
        remember(graph, config, version, samples["ours"], threads, device=device, store=store)
        remember(graph, stock_name, stock_version, samples["stock"], threads, device=device, store=store)
        ratio = samples["stock"].median / samples["ours"].median
        log.info("tuned", ratio=f"{ratio:.2f}", line=repr(graph.line))
    return ratio >= 1 - NOISE
