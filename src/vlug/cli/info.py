"""vlug info: the machine, the engines, the frameworks and whether vlug serves them, the store."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from vlug import config
from vlug._version import __version__
from vlug.cli.common import Parser, emit, positive
from vlug.engines import engines
from vlug.errors import ConfigError
from vlug.heuristics import roofline
from vlug.runtime import device, threads
from vlug.store import default_store

#: Frameworks: the distribution that brings each, and the module by which vlug serves it.
FRAMEWORKS = {"torch": "torch"}


def main(argv: Sequence[str]) -> int:
    p = Parser("info", "This machine, the engines, the frameworks and whether vlug serves them, the store.")
    p.add_argument(
        "--measure", action="store_true", help="measure the machine's ceilings now (a second)"
    )
    p.add_argument("--no-frameworks", action="store_true", help="do not import frameworks")
    p.add_argument("--threads", type=positive, metavar="N")
    args = p.parse_args(argv)
    data = gather(args.measure, not args.no_frameworks)
    emit(args, data, describe(data))
    return 0


def gather(measure: bool = False, frameworks: bool = True) -> dict[str, Any]:
    """Everything `vlug info` tells, as plain values."""
    # Frameworks first: they bring the thread pool that vlug then shares.
    found = {name: _framework(name) for name in FRAMEWORKS} if frameworks else {}
    here = device.host()
    if measure and here.isa != "none":
        from vlug.codegen import ceilings

        ceilings.measure(here)
    roof = roofline(here)
    store = default_store()
    return {
        "vlug": __version__,
        "python": platform.python_version(),
        "machine": {
            "name": here.name,
            "isa": here.isa,
            "products": here.products,
            "abilities": list(here.abilities),
            "cores": here.cores,
            "caches": {"l1": here.l1, "l2": here.l2, "l3": here.l3},
            "fingerprint": here.fingerprint,
        },
        "roofline": {
            "flops": roof.flops,
            "memory": roof.memory,
            "cache": roof.cache,
            "measured": roof.measured,
        },
        "threads": threads.thread_count(),
        "pool": threads.find_pool().describe(),
        "engines": [e.name for e in engines()],
        "frameworks": found,
        "store": {"path": store.identity, "timings": len(store.timings()), "trouble": store.trouble},
        "objects": objects(),
        "settings": {v.name: _setting(v) for v in config.VARIABLES},
    }


def _setting(v: config.Variable[Any]) -> str:
    try:
        return str(v.get())
    except ConfigError as e:
        return f"wrong: {e}"


def _framework(name: str) -> dict[str, Any]:
    try:
        version = metadata.version(FRAMEWORKS[name])
    except metadata.PackageNotFoundError:
        return {"version": None, "hooks": "not installed"}
    try:
        __import__(name)
    except Exception as e:
        return {"version": version, "hooks": f"off: importing it fails: {type(e).__name__}: {e}"}
    from vlug.frontends import hooks

    why = hooks.switched_off()
    if why is None and name not in hooks.status():
        hooks.enable()  # run from a source tree: no entry point armed it
    return {"version": version, "hooks": hooks.status().get(name) or f"off: {why or 'it is not armed'}"}


def objects() -> dict[str, Any]:
    """Compiled kernels in the store: how many, their bytes, where."""
    folder = config.cache_dir() / "objects"
    sizes = [f.stat().st_size for f in folder.rglob("*") if f.is_file()] if folder.is_dir() else []
    return {"path": str(folder), "files": len(sizes), "bytes": sum(sizes)}


def _products(m: dict[str, Any]) -> str:
    """What products of bf16 run on, and that a processor's AMX is not allowed, if so."""
    text = f", bf16 products by {m['products']}" if m["products"] else ""
    if "amx" in m["abilities"] and m["products"] != "amx" and not device.tiles_allowed():
        text += "; the system does not allow AMX's tiles"
    return text


def describe(d: dict[str, Any]) -> str:
    m, r, s, o = d["machine"], d["roofline"], d["store"], d["objects"]
    source = "measured" if r["measured"] else "estimated; vlug info --measure measures"
    lines = [
        f"vlug {d['vlug']}, Python {d['python']}",
        f"machine     {m['name']}, {m['cores']} cores; caches L1 {m['caches']['l1'] >> 10} KiB,"
        f" L2 {m['caches']['l2'] >> 10} KiB, L3 {m['caches']['l3'] >> 10} KiB",
        f"kernels     {m['isa']}{_products(m)}"
        f" (the processor has {', '.join(m['abilities']) or 'none that vlug uses'})",
        f"ceilings    {r['flops'] / 1e9:.0f} GFLOP/s, {r['memory'] / 1e9:.0f} GB/s memory,"
        f" {r['cache'] / 1e9:.0f} GB/s cache ({source})",
        f"threads     {d['threads']}: {d['pool']}",
        f"engines     {', '.join(d['engines'])}",
    ]
    for name, f in d["frameworks"].items():
        lines.append(f"{name:12}{f['version'] or ''}{' ' if f['version'] else ''}hooks {f['hooks']}")
    lines.append(f"store       {s['timings']} timings in {s['path']}")
    if s["trouble"]:
        lines.append(f"            {s['trouble']}")
    lines.append(f"kernels     {o['files']} files, {o['bytes'] >> 10} KiB in {o['path']}")
    lines += [f"setting     {k}={v}" for k, v in d["settings"].items() if v.startswith("wrong")]
    return "\n".join(lines)
