"""vlug list: the operations, the engines, and which engine takes what on which machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import vlug.ops  # noqa: F401  (registers the operations)
from vlug.cli.common import Parser, table
from vlug.engines import engines
from vlug.errors import VlugError
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS
from vlug.runtime import device
from vlug.tensor import Tensor

WHAT = ("operations", "engines", "support")


def main(argv: Sequence[str]) -> int:
    import json

    p = Parser("list", "The operations, the engines, and how many sample problems each engine takes.")
    p.add_argument("what", nargs="?", choices=WHAT, default="operations")
    p.add_argument("--device", choices=sorted(device.FAKE), help="another device (default: this machine)")
    args = p.parse_args(argv)
    data = {"operations": _operations, "engines": _engines, "support": _support}[args.what](
        device.fake(args.device) if args.device else device.host()
    )
    if args.json:
        print(json.dumps(data, indent=1))
        return 0
    rows = [[_cell(v) for v in row.values()] for row in data]
    table(f"vlug list {args.what}", list(data[0]) if data else [], rows, left=9)
    return 0


def _cell(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _operations(where: device.CpuDevice) -> list[dict[str, Any]]:
    return [
        {
            "operation": name,
            "inputs": list(op.inputs),
            "outputs": list(op.outputs),
            "attributes": [op.short.get(n, n) for n in op.fields()],
        }
        for name, op in sorted(OPERATIONS.items())
    ]


def _engines(where: device.CpuDevice) -> list[dict[str, Any]]:
    return [
        {
            "engine": e.name,
            "version": e.version,
            "notes": sorted(e.notes),
            "what": (type(e).__doc__ or "").strip().splitlines()[0] if type(e).__doc__ else "",
        }
        for e in engines()
    ]


def _support(where: device.CpuDevice) -> list[dict[str, Any]]:
    """For each operation, dtype and layout: samples taken by each fast engine, as taken/all."""
    fast = [e for e in engines() if e.name != "reference"]
    out = []
    for name, op in sorted(OPERATIONS.items()):
        for dtype in op.dtypes:
            for layout in ("nchw", "nhwc"):
                graphs = [g for g in (_sample(line, dtype.name, layout) for line in op.samples()) if g]
                if not graphs:
                    continue
                taken = {e.name: sum(e.why_not(g, where) is None for g in graphs) for e in fast}
                by = [f"{e} {n}/{len(graphs)}" for e, n in taken.items() if n]
                out.append({"operation": name, "dtype": dtype.name, "layout": layout, "taken by": by})
    return out


def _sample(line: str, dtype: str, layout: str) -> Graph | None:
    """A sample (they are written in f32, row-major) in another dtype and layout; None where it has none."""
    words = []
    for word in line.split():
        key, eq, value = word.partition("=")
        if eq and value[:1].isdigit() and ":" not in value and key.partition(":")[0] in _ports(line):
            try:
                t = Tensor.parse(value)
                value = Tensor.of(t.dim, dtype, layout if t.rank >= 4 else "nchw").spec
            except VlugError:
                return None
        elif eq and ":f32" in value:
            value = value.replace(":f32", f":{dtype}")
        words.append(key + eq + value)
    try:
        return Graph.parse(" ".join(words))
    except VlugError:
        return None


def _ports(line: str) -> set[str]:
    return {p.rstrip("?") for c in line.split(";") for p in OPERATIONS[c.split()[0]].inputs}
