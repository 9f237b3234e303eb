"""Measuring time: a monotonic clock, and several functions taken in turn so that drift hits all alike."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Stats", "interleaved", "median", "once"]

Function = Callable[[], object]


@dataclass(frozen=True)
class Stats:
    """Seconds of the calls of one function."""

    median: float
    best: float
    spread: float  # half the distance between the quartiles, as a share of the median
    calls: int


def once(f: Function) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def _stats(seconds: list[float]) -> Stats:
    m = statistics.median(seconds)
    if len(seconds) < 4:
        return Stats(m, min(seconds), 0.0, len(seconds))
    low, _, high = statistics.quantiles(seconds, n=4)
    return Stats(m, min(seconds), (high - low) / 2 / m if m else 0.0, len(seconds))


def interleaved(functions: Mapping[str, Function], *, budget: float = 0.5, rounds: tuple[int, int] = (5, 200),
                cold: Function | None = None, seed: int = 0) -> dict[str, Stats]:
    """Statistics of each function, called in turn in an order shuffled anew each round.

    budget: seconds for all together, after one call of each that is not counted; at least rounds[0] rounds.
    cold:   called before every timed call (to empty caches), not timed itself.
    A fixed order favours or harms whoever comes after another by 3 to 6 % (measured), hence the shuffle.
    """
    order, taken = list(functions), {name: list[float]() for name in functions}
    for f in functions.values():
        f()
    shuffle = random.Random(seed).shuffle
    collecting = gc.isenabled()
    gc.disable()
    try:
        end = time.perf_counter() + budget
        for done in range(rounds[1]):
            if done >= rounds[0] and time.perf_counter() > end:
                break
            shuffle(order)
            for name in order:
                if cold is not None:
                    cold()
                taken[name].append(once(functions[name]))
    finally:
        if collecting:
            gc.enable()
    return {name: _stats(t) for name, t in taken.items()}


def median(f: Function, *, budget: float = 0.2, rounds: tuple[int, int] = (5, 200)) -> float:
    """Median seconds of one function."""
    return interleaved({"": f}, budget=budget, rounds=rounds)[""].median
