"""Switching vlug on and off inside frameworks, and what it did there.

A framework's frontend registers itself here when it is armed. Switching only sets flags that its native
adapters read: nothing is ever taken out of a framework.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vlug import config
from vlug.errors import BadInput

__all__ = [
    "Frontend",
    "Switches",
    "disable",
    "enable",
    "flag_file",
    "register",
    "reset_stats",
    "set_persistent",
    "stats",
    "status",
    "switched_off",
    "switches",
    "using",
]


@dataclass(frozen=True)
class Switches:
    """on: calls may be taken. force: every supported call, not only where ours is expected to be faster.
    deny: operators (or families such as conv2d) that always go to the framework."""

    on: bool = True
    force: bool = False
    deny: frozenset[str] = frozenset()


class Frontend(Protocol):
    """What a framework's frontend offers."""

    name: str

    def apply(self, switches: Switches) -> None: ...
    def wish(self, on: bool | None) -> None: ...
    def known(self) -> frozenset[str]: ...
    def stats(self) -> dict[str, Any]: ...
    def reset_stats(self) -> None: ...


_frontends: dict[str, Frontend] = {}
#: Why a framework's hooks are not on, by framework: for `vlug info`.
_refusals: dict[str, str] = {}
_lock = threading.RLock()
_wishes = threading.local()
_switches: Switches | None = None


def switches() -> Switches:
    """The switches of this process; at first what the environment says."""
    global _switches
    with _lock:
        if _switches is None:
            _switches = Switches(switched_off() is None, config.FORCE.get(), config.DENY.get())
        return _switches


def _set(new: Switches) -> None:
    global _switches
    with _lock:
        _switches = new
        for f in _frontends.values():
            f.apply(new)


def register(frontend: Frontend) -> None:
    """A frontend is armed: it takes part in every switch from now on."""
    with _lock:
        _frontends[frontend.name] = frontend
        _refusals.pop(frontend.name, None)
        frontend.apply(switches())
        frontend.wish(getattr(_wishes, "value", None))


def refuse(framework: str, why: str) -> None:
    """A framework's hooks cannot be on, and why."""
    _refusals[framework] = why


# --- for users ---
def enable(*, force: bool | None = None, deny: Iterable[str] | None = None) -> None:
    """Let the frameworks of this process use vlug; also arms one that was imported before.

    force: take every supported call (default: only where ours is expected to be at least as fast).
    deny:  operators or families (conv2d, batch_norm, …) to leave to the framework; None keeps the list.
    Raises BadInput for a name in `deny` that no armed framework knows.
    """
    now = switches()
    denied = now.deny if deny is None else _names(deny)
    _arm_loaded()
    for name in sorted(denied if deny is not None else ()):
        if _frontends and not any(name in f.known() for f in _frontends.values()):
            known = ", ".join(sorted(frozenset().union(*(f.known() for f in _frontends.values()))))
            raise BadInput(f"deny: {name!r} is no operator that vlug takes; there are {known}")
    _set(Switches(True, now.force if force is None else bool(force), denied))


def _names(deny: Iterable[str]) -> frozenset[str]:
    if isinstance(deny, str):
        deny = deny.split(",")
    return frozenset(n.strip() for n in deny if n.strip())


def _arm_loaded() -> None:
    """Arm the frontends of frameworks that are imported but were not armed when they were."""
    if "torch" in sys.modules and "torch" not in _frontends:
        from vlug.frontends import torch as frontend

        frontend.arm_or_say_why()


def disable() -> None:
    """Every call of every framework goes to its own kernels, from now on, in all threads."""
    now = switches()
    _set(Switches(False, now.force, now.deny))


@contextmanager
def using(on: bool = True) -> Iterator[None]:
    """In this thread, inside the `with`, vlug is used or not, whatever enable() and disable() say."""
    before = getattr(_wishes, "value", None)
    _wish(bool(on))
    try:
        yield
    finally:
        _wish(before)


def _wish(on: bool | None) -> None:
    _wishes.value = on
    for f in list(_frontends.values()):
        f.wish(on)


def stats() -> dict[str, dict[str, dict[str, Any]]]:
    """What was taken and passed: {framework: {operator: {"taken": n, "passed": n, "reasons": {…: n}}}}."""
    return {name: f.stats() for name, f in list(_frontends.items())}


def reset_stats() -> None:
    """Every count back to 0."""
    for f in list(_frontends.values()):
        f.reset_stats()


def status() -> dict[str, str]:
    """For `vlug info`: each framework met in this process and whether its hooks are on, else why not."""
    out = dict(_refusals)
    for name in _frontends:
        out[name] = "on" if switches().on else "off (disabled in this process)"
    return out


# --- the persistent switch ---
def flag_file() -> Path:
    """Its presence switches hooks off at the next import of a framework (`vlug hooks off`)."""
    return config.cache_dir() / "hooks.off"


def set_persistent(on: bool) -> None:
    """Switch the hooks of later processes on or off. OSError where the file cannot be written."""
    path = flag_file()
    if on:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text("switched off by `vlug hooks off`\n")


def switched_off() -> str | None:
    """Why hooks are off from the start in this process, None if they are on. VLUG_HOOKS comes first."""
    if os.environ.get(config.HOOKS.name, "").strip():
        return None if config.HOOKS.get() else f"{config.HOOKS.name} is off"
    try:
        off = flag_file().exists()
    except OSError:
        off = False
    return f"switched off by `vlug hooks off` ({flag_file()})" if off else None
