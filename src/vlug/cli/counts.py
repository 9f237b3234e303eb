"""vlug.stats() for people: what was taken, what was left to the framework and why."""

from __future__ import annotations

from typing import Any

__all__ = ["reasons", "taken_lines", "totals"]


def totals(stats: dict[str, Any] | None) -> tuple[int, int]:
    """Calls taken and calls passed to the frameworks."""
    taken = passed = 0
    for operators in (stats or {}).values():
        for counts in operators.values():
            taken += counts["taken"]
            passed += counts["passed"]
    return taken, passed


def reasons(stats: dict[str, Any] | None) -> dict[str, int]:
    """Reason, with the operator it was given for → calls passed for it, the commonest first."""
    out: dict[str, int] = {}
    for operators in (stats or {}).values():
        for name, counts in operators.items():
            for why, n in counts.get("reasons", {}).items():
                out[f"{name}: {why}"] = out.get(f"{name}: {why}", 0) + n
    return dict(sorted(out.items(), key=lambda kv: -kv[1]))


def taken_lines(stats: dict[str, Any] | None, most: int = 6) -> list[str]:
    """Lines that tell the share taken and the commonest reasons for passing."""
    taken, passed = totals(stats)
    if taken + passed == 0:
        return ["calls         vlug saw none"]
    share = 100 * taken / (taken + passed)
    lines = [f"calls         {taken} taken, {passed} left to stock ({share:.0f} % taken)"]
    why = reasons(stats)
    lines += [f"              {count} × {reason}" for reason, count in list(why.items())[:most]]
    if len(why) > most:
        lines.append(f"              and {len(why) - most} more reasons")
    return lines
