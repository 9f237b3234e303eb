"""vlug cache: the store of timings and compiled kernels: show, verify, clear, export, import."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from vlug.cli.common import Parser, emit
from vlug.cli.info import objects
from vlug.errors import BadInput
from vlug.store import default_store


def main(argv: Sequence[str]) -> int:
    p = Parser("cache", "The store of timings and compiled kernels.")
    p.add_argument("do", nargs="?", choices=("show", "verify", "clear", "export", "import"), default="show")
    p.add_argument(
        "file", nargs="?", type=Path, help="for export and import: timings and configurations, JSON"
    )
    args = p.parse_args(argv)
    store = default_store()
    if args.do in ("export", "import") and args.file is None:
        p.error(f"cache {args.do}: FILE is missing")
    if args.do == "show":
        timings, kept = store.timings(), objects()
        engines: dict[str, int] = {}
        for t in timings:
            engines[t.engine] = engines.get(t.engine, 0) + 1
        data = {
            "path": store.identity,
            "timings": len(timings),
            "lines": len({t.line for t in timings}),
            "engines": engines,
            "trouble": store.trouble,
            "objects": kept,
        }
        text = f"{data['timings']} timings of {data['lines']} problems in {data['path']}"
        text += "".join(f"\n  {name}: {n}" for name, n in sorted(engines.items()))
        text += f"\n{kept['files']} files of kernels, {kept['bytes'] >> 10} KiB in {kept['path']}"
        emit(args, data, text + (f"\n{store.trouble}" if store.trouble else ""))
    elif args.do == "verify":
        faults = store.verify()
        emit(args, {"faults": faults}, "\n".join(faults) or "the store is well")
        return 1 if faults else 0
    elif args.do == "clear":
        removed, files = store.clear(), _clear_objects()
        emit(args, {"timings": removed, "files": files}, f"{removed} timings and {files} files removed")
    elif args.do == "export":
        exported = store.export()
        try:
            args.file.write_text(json.dumps(exported, indent=1) + "\n")
        except OSError as e:
            raise BadInput(f"FILE: {args.file}: {e.strerror}") from None
        n = len(exported["timings"])
        emit(args, {"timings": n}, f"wrote {n} timings to {args.file}")
    else:
        new = store.take_file(args.file)
        emit(args, {"new": new}, f"{new} new timings")
    return 0


def _clear_objects() -> int:
    folder, n = Path(objects()["path"]), 0
    for f in sorted(folder.rglob("*"), reverse=True) if folder.is_dir() else ():
        if f.is_file() or f.is_symlink():
            f.unlink(missing_ok=True)
            n += 1
    return n
