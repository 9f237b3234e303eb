"""A picture of a bench: stock's time / ours for each layer, a panel for each operation and layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["plot"]


def plot(path: Path, rows: Sequence[dict[str, Any]], title: str) -> bool:
    """Write the picture; False without matplotlib or without a timed row."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    groups: dict[str, list[dict[str, Any]]] = {}
    for r in rows:
        if r["ratio"] is not None:
            groups.setdefault(f"{r['operation']} {r['layout']}", []).append(r)
    if not groups:
        return False
    longest = max(len(g) for g in groups.values())
    figure = Figure(figsize=(3.2 * len(groups) + 1.5, 0.24 * longest + 1.4), layout="constrained")
    for i, (name, members) in enumerate(groups.items()):
        axes = figure.add_subplot(1, len(groups), i + 1)
        labels = [f"{r['name'].rpartition(':')[2]} ×{r['count']}" for r in members]
        ratios = [r["ratio"] for r in members]
        colours = ["tab:green" if v >= 1 else "tab:red" for v in ratios]
        axes.barh(range(len(members)), ratios, color=colours)
        axes.axvline(1, color="black", lw=0.8)
        axes.set_yticks(range(len(members)), labels, fontsize=6)
        axes.invert_yaxis()
        axes.set_title(name, fontsize=8)
        axes.set_xlabel("stock / vlug", fontsize=7)
        axes.tick_params(axis="x", labelsize=7)
    figure.suptitle(title, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return True
