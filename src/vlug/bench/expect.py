"""Makes the table of expectations (bench/data/expect.json) from results of `vlug bench --force --json`.

python -m vlug.bench.expect results/*.json > src/vlug/bench/data/expect.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vlug.bench.runner import geometric
from vlug.errors import BadInput
from vlug.graph import Graph
from vlug.heuristics import classify

__all__ = ["LEAST_WORST", "MOST_SPREAD", "table"]

#: A class whose worst layer is below this counts as fast as that layer only: no layer may lose much so that
#: others gain. Single layers scatter by about 5 % between runs.
LEAST_WORST = 0.93
#: Rows whose times scatter more (half the distance between the quartiles over the median) say nothing: the
#: machine did something else meanwhile. A class that has no other rows counts as never measured.
MOST_SPREAD = 0.5


def table(results: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The table of named results: for each class of problem the ratio to expect and where it comes from."""
    groups: dict[str, list[tuple[float, str]]] = {}
    products: dict[str, str] = {}
    isas: set[str] = set()
    files: list[str] = []
    for name, data in results:
        if data.get("mode") != "force":
            raise BadInput(f"{name}: not a result of vlug bench --force")
        files.append(name)
        isas.add(data["isa"])
        for row in data["rows"]:
            if row["taken"] and row["ratio"] is not None and _steady(row):
                problem = classify(Graph.parse(row["line"]))
                groups.setdefault(problem.key, []).append((row["ratio"], row["name"]))
                if problem.dtype == "bf16" and data.get("products"):
                    products[problem.key] = data["products"]
    classes: dict[str, dict[str, Any]] = {}
    for key, found in sorted(groups.items()):
        mean, (worst, which) = geometric(r for r, _ in found), min(found)
        low = worst < LEAST_WORST
        why = f"{len(found)} layers, mean {mean:.2f}, worst {worst:.2f} ({which})"
        classes[key] = {"ratio": round(min(mean, worst) if low else mean, 3), "why": why}
        if key in products:
            classes[key]["products"] = products[key]
    return {
        "what": "stock PyTorch's time / ours by class: operation/layout/kind/dtype/size",
        "source": ", ".join(files),
        "isa": sorted(isas),
        "classes": classes,
    }


def _steady(row: dict[str, Any]) -> bool:
    return all(row.get(f"{side}_spread", 0.0) <= MOST_SPREAD for side in ("vlug", "stock"))


def main() -> int:
    paths = [Path(p) for p in sys.argv[1:]]
    print(json.dumps(table((p.name, json.loads(p.read_text())) for p in paths), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
