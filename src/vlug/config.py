"""Every environment variable of vlug in one table: typed, documented, each also a context manager."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Generic, TypeVar

from vlug.errors import ConfigError

__all__ = [
    "CACHE_DIR",
    "DENY",
    "FORCE",
    "HOOKS",
    "ISA",
    "LOG",
    "STORE",
    "THREADS",
    "TUNE",
    "VARIABLES",
    "Variable",
    "cache_dir",
]

T = TypeVar("T")

#: Instruction sets by rising ability; VLUG_ISA names the highest that may be used.
ISA_NAMES = ("none", "avx2", "avx512", "avx512_bf16", "amx", "neon")
#: Log levels by rising detail.
LOG_LEVELS = ("silent", "warn", "notice", "info", "debug")


class Variable(Generic[T]):
    """One environment variable: `get()` is its value now, `using(v)` another one for a while.

    `get` raises ConfigError, naming the variable, what it holds and what is allowed. Reads the environment at
    each call, so that a change in os.environ is seen.
    """

    def __init__(self, name: str, default: T, parse: Callable[[str], T], allowed: str, doc: str):
        self.name, self.default, self.parse, self.allowed, self.doc = name, default, parse, allowed, doc
        self._override: ContextVar[Any] = ContextVar(name, default=None)
        self._seen: tuple[str, T] | None = None

    def get(self) -> T:
        held = self._override.get()
        if held is not None:
            found: T = held[0]
            return found
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default
        if self._seen is None or self._seen[0] != text:
            self._seen = text, self._parse(text)
        return self._seen[1]

    def _parse(self, text: str) -> T:
        try:
            return self.parse(text)
        except ValueError:
            raise ConfigError(f"{self.name}={text!r}: allowed is {self.allowed}") from None

    @contextmanager
    def using(self, value: T | str) -> Iterator[T]:
        """The variable holds `value` (or its text) inside the `with`, in this thread or task."""
        held = self._parse(value) if isinstance(value, str) else value
        token = self._override.set((held,))
        try:
            yield held
        finally:
            self._override.reset(token)

    def __repr__(self) -> str:
        return f"{self.name}={self.get()!r}"


def _switch(text: str) -> bool:
    low = text.lower()
    if low in ("1", "on", "true", "yes"):
        return True
    if low in ("0", "off", "false", "no"):
        return False
    raise ValueError(text)


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in names:
            raise ValueError(text)
        return text.lower()

    return parse


#: Most threads that can be asked for.
MAX_THREADS = 1024


def _count(text: str) -> int:
    if text.lower() == "auto":
        return 0
    n = int(text)
    if not 1 <= n <= MAX_THREADS:
        raise ValueError(text)
    return n


def _log(text: str) -> tuple[str, str]:
    level, _, path = text.partition(":")
    return _one_of(*LOG_LEVELS)(level), path


def _names(text: str) -> frozenset[str]:
    return frozenset(n.strip() for n in text.split(",") if n.strip())


HOOKS = Variable("VLUG_HOOKS", True, _switch, "on or off", "Whether frameworks use vlug by themselves.")
ISA = Variable("VLUG_ISA", "auto", _one_of("auto", *ISA_NAMES), "auto, " + ", ".join(ISA_NAMES),
               "The highest instruction set that kernels may use; `none` leaves only the reference.")
THREADS = Variable("VLUG_THREADS", 0, _count, f"auto, or a number from 1 to {MAX_THREADS}",
                   "Threads of vlug's own calls; inside a framework its own setting counts, capped by this.")
LOG = Variable("VLUG_LOG", ("notice", ""), _log, " or ".join(LOG_LEVELS) + ", then optionally :FILE",
               "What is told, one line an event, on stderr or appended to FILE.")
CACHE_DIR = Variable("VLUG_CACHE_DIR", None, lambda t: Path(t).expanduser(), "a directory",
                     "Where compiled kernels and timings are kept; by default the user's cache directory.")
STORE = Variable("VLUG_STORE", True, _switch, "on or off", "Whether anything is kept between processes.")
DENY: Variable[frozenset[str]] = Variable("VLUG_DENY", frozenset(), _names, "operator names, comma-separated",
                                          "Operators that always go to the framework's own kernels.")
FORCE = Variable("VLUG_FORCE", False, _switch, "on or off",
                 "Take every supported call, also where the framework's own kernel is expected to be faster.")
TUNE = Variable("VLUG_TUNE", False, _switch, "on or off",
                "Measure ours and the framework's kernel once for each problem met, and remember the faster.")

#: All of them, in the order of the documentation.
VARIABLES: tuple[Variable[Any], ...] = (HOOKS, DENY, FORCE, TUNE, ISA, THREADS, LOG, CACHE_DIR, STORE)


def cache_dir() -> Path:
    """The directory of the store (not created here)."""
    chosen = CACHE_DIR.get()
    if chosen is not None:
        return chosen
    try:
        from platformdirs import user_cache_path
    except ImportError:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vlug"
    return user_cache_path("vlug", appauthor=False)
