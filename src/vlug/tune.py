"""Measuring candidates: interleaved, in shuffled order, from a cold cache; the store keeps every timing."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vlug import log
from vlug.engines.base import EngineConfig
from vlug.graph import Graph
from vlug.heuristics import NOISE
from vlug.runtime import device as devices
from vlug.store import STOCK_TORCH, Store, Timing, default_store

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["Sample", "decide", "fastest", "flush", "measure", "remember"]

Call = Callable[[], object]


@dataclass(frozen=True)
class Sample:
    """Times of one candidate in seconds: the median, the distance between the quartiles, how many calls."""

    median: float
    spread: float
    count: int

    @classmethod
    def of(cls, times: list[float]) -> Sample:
        quartiles = statistics.quantiles(times, n=4) if len(times) > 1 else [times[0]] * 3
        return cls(statistics.median(times), quartiles[2] - quartiles[0], len(times))


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
    rounds: int = 5,
    seconds: float = 0.25,
    cold: bool = True,
    before: Call | None = None,
    seed: int = 0,
) -> dict[str, Sample]:
    """Time each candidate in rounds, every round in another order, until `rounds` or `seconds` are used up
    (three rounds at the least).

    The first call of each is not counted. cold: caches are emptied before each call. before: is called before
    each timed call, outside the time (a weight update, say).
    """
    order = random.Random(seed)
    names = list(candidates)
    for name in names:
        if before is not None:
            before()
        candidates[name]()
    times: dict[str, list[float]] = {name: [] for name in names}
    end = time.perf_counter() + seconds
    done = 0
    while done < rounds and (done < 3 or time.perf_counter() < end):
        order.shuffle(names)
        for name in names:
            if before is not None:
                before()
            if cold:
                flush()
            start = time.perf_counter()
            candidates[name]()
            times[name].append(time.perf_counter() - start)
        done += 1
    return {name: Sample.of(times[name]) for name in candidates}


def fastest(samples: Mapping[str, Sample]) -> str:
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
    sample: Sample,
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
            sample.spread,
            sample.count,
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
