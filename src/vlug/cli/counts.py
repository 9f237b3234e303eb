"""vlug.stats() for people: what was taken, what was left to the framework and why."""

from __future__ import annotations

from typing import Any

__all__ = ["taken_lines", "totals"]


def totals(stats: dict[str, Any] | None) -> tuple[int, int]:
    """Calls taken and calls passed to the framework."""
    if not stats:
        return 0, 0
    return int(stats.get("taken", 0)), int(stats.get("passed", 0))


def taken_lines(stats: dict[str, Any] | None, most: int = 6) -> list[str]:
    """Lines that tell the share taken and the commonest reasons for passing."""
    taken, passed = totals(stats)
    if not stats or taken + passed == 0:
        return ["calls         vlug saw none"]
    share = 100 * taken / (taken + passed)
    lines = [f"calls         {taken} taken, {passed} left to stock ({share:.0f} % taken)"]
    reasons = sorted(stats.get("reasons", {}).items(), key=lambda kv: -kv[1])
    lines += [f"              {count} × {why}" for why, count in reasons[:most]]
    if len(reasons) > most:
        lines.append(f"              and {len(reasons) - most} more reasons")
    return lines
