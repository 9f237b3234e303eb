"""The store of timings: SQLite in the user's cache directory, shared by processes, safe to lose.

Every timing is kept (the newest 32 of a key), keyed by problem line, device fingerprint, engine, its version,
knobs and threads; a framework's own kernel stands under the engine name "stock:torch". Compiled objects are
files of their own (`codegen/objects`); they are machine code and are never exported or imported.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import statistics
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlug.errors import BadInput, VlugError
from vlug.graph import Graph

if TYPE_CHECKING:
    import sqlite3

__all__ = ["STOCK_TORCH", "Store", "Timing", "default_store"]

STOCK_TORCH = "stock:torch"
FORMAT = 1
_KEPT = 32
_TRIM = f"""
DELETE FROM timings WHERE rowid IN (
    SELECT rowid FROM timings WHERE line=? AND device=? AND threads=? AND engine=? AND version=? AND knobs=?
    ORDER BY at DESC, rowid DESC LIMIT -1 OFFSET {_KEPT})
"""
_COLUMNS = "line, device, engine, version, knobs, threads, seconds, spread, samples, at"
_INSERT = f"INSERT INTO timings ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?)"
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS timings (
    line TEXT NOT NULL, device TEXT NOT NULL, engine TEXT NOT NULL, version TEXT NOT NULL,
    knobs TEXT NOT NULL, threads INTEGER NOT NULL, seconds REAL NOT NULL, spread REAL NOT NULL,
    samples INTEGER NOT NULL, at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS by_line ON timings (line, device, threads);
PRAGMA user_version = {FORMAT};
"""


@dataclass(frozen=True)
class Timing:
    """One measurement: the median of `samples` calls in seconds, and how far quartiles lie apart (spread)."""

    line: str
    device: str
    engine: str
    version: str
    knobs: str
    threads: int
    seconds: float
    spread: float = 0.0
    samples: int = 1
    at: float = 0.0


class Store:
    """Timings in a SQLite file; in memory only (with one line that says why) where the file cannot be used.

    path: the database file, or None for memory only.
    """

    def __init__(self, path: Path | str | None) -> None:
        self.path = None if path is None else Path(path)
        self.trouble = ""
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0
        self._memory: dict[tuple[str, str], list[Timing]] = {}
        self._revision: dict[str, int] = {}
        self._shut = self.path is None

    @property
    def identity(self) -> str:
        return str(self.path) if self.path is not None else f"memory:{id(self)}"

    def revision(self, line: str) -> int:
        """How many timings this process recorded for the line: part of a plan's key."""
        return self._revision.get(line, 0)

    # --- the file ---
    def _give_up(self, why: str) -> None:
        """Go on in memory; said once."""
        self._shut = True
        self._connection = None
        if not self.trouble:
            self.trouble = why
            _say(f"timings are kept in memory only: {why}")

    def _connect(self, create: bool) -> sqlite3.Connection | None:
        """The connection of this very process; None without a file. Called with the lock held."""
        if self._connection is not None and self._pid != os.getpid():
            _inherited.append(self._connection)  # neither used nor closed: its locks are the parent's
            self._connection, self._memory = None, {}
        if self._connection is not None or self._shut or self.path is None:
            return self._connection
        import sqlite3

        path = self.path
        if not create and not path.exists():
            return None
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as e:
            self._give_up(f"{path.parent}: {e.strerror}")
            return None
        for p in (path.parent, path):
            why = _untrusted(p)
            if why:
                self._give_up(why)
                return None
        for attempt in (1, 2):
            try:
                self._connection = self._open(path)
                self._pid = os.getpid()
                return self._connection
            except sqlite3.OperationalError as e:
                self._give_up(f"{path}: {e}")
                return None
            except sqlite3.DatabaseError as e:
                if attempt == 2 or not self._set_aside(path, str(e)):
                    self._give_up(f"{path}: {e}")
                    return None
        return None

    def _open(self, path: Path) -> sqlite3.Connection:
        import sqlite3

        old = os.umask(0o077)
        try:
            c = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
        finally:
            os.umask(old)
        try:
            version = c.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, FORMAT):
                raise sqlite3.DatabaseError(f"it has format {version}, this vlug writes {FORMAT}")
            if version == 0:
                c.executescript(_SCHEMA)
            if c.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("it is damaged")
            c.execute(f"SELECT {_COLUMNS} FROM timings LIMIT 1").fetchone()
        except BaseException:
            c.close()
            raise
        return c

    def _set_aside(self, path: Path, why: str) -> bool:
        kept = path.with_name(f"{path.name}.bad-{time.time_ns()}")
        try:
            path.rename(kept)
        except FileNotFoundError:
            return True  # another process did so
        except OSError:
            return False
        _say(f"store {path} cannot be read ({why}); it was renamed to {kept.name} and begun anew")
        return True

    @contextmanager
    def _guarded(self, create: bool = False) -> Iterator[sqlite3.Connection | None]:
        """The connection under the lock; whatever the database says, the caller goes on in memory."""
        import sqlite3

        with self._lock:
            try:
                yield self._connect(create)
            except sqlite3.OperationalError as e:
                self._give_up(f"{self.path}: {e}")  # read-only, full, locked for too long
            except sqlite3.DatabaseError as e:
                self._connection = None
                if self.path is None or not self._set_aside(self.path, str(e)):
                    self._give_up(f"{self.path}: {e}")

    # --- timings ---
    def record(self, timing: Timing) -> None:
        """Keep a timing; one that cannot be written is kept in memory."""
        self.record_all([timing])

    def record_all(self, timings: Iterable[Timing]) -> None:
        """Keep several in one transaction."""
        now = time.time()
        rows = [t if t.at else Timing(**{**asdict(t), "at": now}) for t in timings]
        for t in rows:
            _check(t)
        with self._lock:
            for t in rows:
                self._rows(t.line, t.device)  # read what the file has before adding to it
            with self._guarded(create=True) as c:
                if c is not None:
                    c.execute("BEGIN IMMEDIATE")
                    try:
                        for t in rows:
                            c.execute(_INSERT, _row(t))
                            key = (t.line, t.device, t.threads, t.engine, t.version, t.knobs)
                            c.execute(_TRIM, key)
                        c.execute("COMMIT")
                    except BaseException:
                        if c.in_transaction:
                            c.execute("ROLLBACK")
                        raise
            for t in rows:
                self._memory.setdefault((t.line, t.device), []).append(t)
                self._revision[t.line] = self._revision.get(t.line, 0) + 1

    def _rows(self, line: str, device: str) -> list[Timing]:
        """Timings of a line, read from the file once in a process."""
        key = (line, device)
        with self._lock:
            if self._pid not in (0, os.getpid()):
                self._connect(False)
            found = self._memory.get(key)
            if found is None:
                found = []
                with self._guarded() as c:
                    if c is not None:
                        query = f"SELECT {_COLUMNS} FROM timings WHERE line=? AND device=? ORDER BY at"
                        found = [Timing(*r) for r in c.execute(query, key)]
                self._memory[key] = found
            return found

    def best(self, line: str, device: str, threads: int) -> dict[tuple[str, str], tuple[str, float]]:
        """(engine, version) → (knobs, seconds) of its fastest knobs, by the median of what was measured."""
        groups: dict[tuple[str, str, str], list[float]] = {}
        for t in self._rows(line, device):
            if t.threads == threads:
                groups.setdefault((t.engine, t.version, t.knobs), []).append(t.seconds)
        best: dict[tuple[str, str], tuple[str, float]] = {}
        for (engine, version, knobs), seconds in groups.items():
            median = statistics.median(seconds[-_KEPT:])
            if (engine, version) not in best or median < best[engine, version][1]:
                best[engine, version] = (knobs, median)
        return best

    def ratio(self, line: str, device: str, threads: int, stock: str = STOCK_TORCH) -> float | None:
        """The stock kernel's measured time / ours; None unless both were measured."""
        best = self.best(line, device, threads)
        theirs = [s for (engine, _), (_, s) in best.items() if engine == stock]
        ours = [s for (engine, _), (_, s) in best.items() if not engine.startswith("stock:")]
        return theirs[-1] / min(ours) if theirs and ours else None

    def timings(self) -> list[Timing]:
        """Everything, oldest first."""
        with self._lock:
            rows: list[Timing] | None = None
            with self._guarded() as c:
                if c is not None:
                    rows = [Timing(*r) for r in c.execute(f"SELECT {_COLUMNS} FROM timings ORDER BY at")]
            return rows if rows is not None else [t for ts in self._memory.values() for t in ts]

    # --- care ---
    def clear(self) -> int:
        """Forget all timings; returns how many there were."""
        with self._lock:
            n = len(self.timings())
            with self._guarded() as c:
                if c is not None:
                    c.execute("DELETE FROM timings")
                    c.execute("VACUUM")
            for line, _ in self._memory:
                self._revision[line] = self._revision.get(line, 0) + 1
            self._memory.clear()
            return n

    def verify(self) -> list[str]:
        """What is wrong with the store: nothing, if the list is empty."""
        faults = []
        for i, t in enumerate(self.timings()):
            try:
                _check(t)
                Graph.parse(t.line)
            except VlugError as e:
                faults.append(f"timing {i + 1}: {e}")
        return ([self.trouble] if self.trouble else []) + faults

    def export(self) -> dict[str, Any]:
        """Timings and configurations as plain values: no code, no paths."""
        return {"format": FORMAT, "what": "vlug timings", "timings": [asdict(t) for t in self.timings()]}

    def take(self, data: Any) -> int:
        """Add what `export` gave (maybe elsewhere); returns how many timings were new.

        Everything is checked before anything is kept: BadInput names the entry that is wrong.
        """
        if (
            not isinstance(data, dict)
            or data.get("format") != FORMAT
            or not isinstance(data.get("timings"), list)
        ):
            raise BadInput(f"import: not an export of vlug timings in format {FORMAT}")
        names = {f.name for f in fields(Timing)}
        known = set(self.timings())
        rows: dict[Timing, None] = {}
        for i, entry in enumerate(data["timings"]):
            if not isinstance(entry, dict) or set(entry) != names:
                raise BadInput(f"import: entry {i + 1} does not have exactly {', '.join(sorted(names))}")
            t = Timing(**entry)
            try:
                _check(t)
                line = Graph.parse(t.line).line
            except VlugError as e:
                raise BadInput(f"import: entry {i + 1}: {e}") from None
            if line != t.line:
                raise BadInput(f"import: entry {i + 1}: line {t.line!r} is not in its printed form")
            if t not in known:
                rows[t] = None
        self.record_all(rows)
        return len(rows)

    def take_file(self, path: Path | str) -> int:
        """`take` of a JSON file."""
        try:
            data = json.loads(Path(path).read_text())
        except (OSError, ValueError) as e:
            raise BadInput(f"import: {path}: {e}") from None
        return self.take(data)


_inherited: list[Any] = []  # connections of a parent process: kept, so that no destructor touches them
_NAME = re.compile(r"[A-Za-z0-9_.:+\-]{1,80}\Z")
_KNOBS = re.compile(r"([a-z_][a-z0-9_]*=-?\d{1,9}(,[a-z_][a-z0-9_]*=-?\d{1,9})*)?\Z")


def _check(t: Timing) -> None:
    def number(name: str, kind: Any, low: float, high: float) -> None:
        value: Any = getattr(t, name)
        if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
            raise BadInput(f"{name}: {value!r} is not within {low:g} to {high:g}")

    for name, pattern in (("engine", _NAME), ("version", _NAME), ("knobs", _KNOBS)):
        value = getattr(t, name)
        if not isinstance(value, str) or not pattern.match(value):
            raise BadInput(f"{name}: {value!r} is not allowed")
    for name in ("line", "device"):
        value = getattr(t, name)
        if not isinstance(value, str) or not 0 < len(value) <= 10_000 or not value.isprintable():
            raise BadInput(f"{name}: {value!r} is not a line of text")
    real = (int, float)
    number("threads", int, 1, 4096)
    number("seconds", real, 1e-9, 1e6)
    number("spread", real, 0, math.inf)
    number("samples", int, 1, 1 << 40)
    number("at", real, 0, 1e12)


def _row(t: Timing) -> tuple[Any, ...]:
    return tuple(getattr(t, f.name) for f in fields(Timing))


def _untrusted(p: Path) -> str:
    """Why a file or directory is not ours alone ("" if it is, or is not there yet)."""
    try:
        s = os.lstat(p)
    except FileNotFoundError:
        return ""
    except OSError as e:
        return f"{p}: {e.strerror}"
    if stat.S_ISLNK(s.st_mode) and p.is_dir():
        s = os.stat(p)
    elif stat.S_ISLNK(s.st_mode):
        return f"{p}: it is a symbolic link"
    if s.st_uid != os.geteuid():
        return f"{p}: it belongs to user {s.st_uid}, not to {os.geteuid()}"
    if s.st_mode & 0o022:
        return f"{p}: group or others may write it (mode {stat.S_IMODE(s.st_mode):o}); chmod go-w mends that"
    return ""


def _say(text: str) -> None:
    from vlug import log

    log.warn(text)


_stores: dict[str, Store] = {}


def default_store() -> Store:
    """The user's store: timings.db in the cache directory; in memory only with VLUG_STORE=off."""
    from vlug import config

    if not config.STORE.get():
        return _stores.setdefault("", Store(None))
    path = config.cache_dir() / "timings.db"
    found = _stores.get(str(path))
    if found is None:
        found = _stores.setdefault(str(path), Store(path))
    return found


def _after_fork() -> None:
    for store in _stores.values():
        store._lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
