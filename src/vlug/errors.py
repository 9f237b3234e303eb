"""Exceptions, warnings and refusals: what a caller may catch, and what each means."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "BadInput",
    "ConfigError",
    "DTypeError",
    "ExecutionError",
    "NotSupported",
    "ParseError",
    "Refusal",
    "ShapeError",
    "VlugError",
    "VlugWarning",
]


class VlugError(Exception):
    """Base of every error that vlug raises on purpose."""


class BadInput(VlugError, ValueError):
    """An argument is wrong; the message names it, what came and what is allowed."""


class ShapeError(BadInput):
    """Ranks, dimensions or strides do not fit together."""


class DTypeError(BadInput, TypeError):
    """An element type that the operation does not take."""


class ParseError(BadInput):
    """A problem line or a configuration that does not follow its grammar."""


class ConfigError(BadInput):
    """An environment variable or a setting with a value that is not allowed."""


class ExecutionError(VlugError, RuntimeError):
    """A compiled program reported a failure (no memory for its workspace, a bad code)."""


class Refusal(str):
    """Why an engine does not take a graph: a sentence without a full stop."""

    __slots__ = ()


class NotSupported(VlugError, NotImplementedError):
    """No engine takes the graph. `reasons` holds (engine name, why not) for each that was asked."""

    def __init__(self, what: str, reasons: Sequence[tuple[str, str]] = ()) -> None:
        self.reasons = tuple(reasons)
        lines = [what, *(f"  {engine}: {why}" for engine, why in self.reasons)]
        super().__init__("\n".join(lines))


class VlugWarning(UserWarning):
    """A warning of vlug's own (a slow fallback, a cache that cannot be used)."""
