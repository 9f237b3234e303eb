"""The one event line: `vlug: what happened key=value …`, on stderr or appended to a file, by VLUG_LOG."""

from __future__ import annotations

import os
import sys
from typing import Any

from vlug import config
from vlug.errors import ConfigError

__all__ = ["debug", "enabled", "greeting", "info", "notice", "once", "warn"]

_said: set[str] = set()


def _target() -> tuple[int, str]:
    try:
        level, path = config.LOG.get()
    except ConfigError:  # a bad VLUG_LOG must not stop a program; `vlug info` tells
        level, path = config.LOG.default
    return config.LOG_LEVELS.index(level), path


def enabled(level: str) -> bool:
    """Whether events of a level are told now."""
    return config.LOG_LEVELS.index(level) <= _target()[0]


def _event(level: str, message: str, fields: dict[str, Any]) -> None:
    _line(level, " ".join([f"vlug: {message}", *(f"{k}={v}" for k, v in fields.items())]))


def _line(level: str, text: str) -> None:
    most, path = _target()
    if config.LOG_LEVELS.index(level) > most:
        return
    line = text.replace("\n", " ") + "\n"
    try:
        if path:
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(fd, line.encode())  # one write: lines of several processes do not mix
            finally:
                os.close(fd)
        elif sys.stderr is not None:
            sys.stderr.write(line)
            sys.stderr.flush()
    except (OSError, ValueError):
        pass  # a closed stderr or a full disk is no reason to stop


def warn(message: str, **fields: Any) -> None:
    """Something works worse than it should (told unless VLUG_LOG=silent)."""
    _event("warn", message, fields)


def notice(message: str, **fields: Any) -> None:
    """What a user should know once (the default level)."""
    _event("notice", message, fields)


def greeting(text: str) -> None:
    """A notice that begins with vlug's name and version itself."""
    _line("notice", text)


def info(message: str, **fields: Any) -> None:
    """Plans made, kernels compiled."""
    _event("info", message, fields)


def debug(message: str, **fields: Any) -> None:
    """Each call and each decision."""
    _event("debug", message, fields)


def once(level: str, message: str, **fields: Any) -> None:
    """An event that is told at most once in this process (by its message)."""
    if message not in _said:
        _said.add(message)
        _event(level, message, fields)
