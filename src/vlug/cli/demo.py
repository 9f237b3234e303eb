"""vlug demo: train a small network on real images, stock and with vlug, and show what was gained."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vlug.cli.common import Parser, milliseconds, positive, table, writable
from vlug.cli.counts import taken_lines
from vlug.demo import report
from vlug.errors import VlugError

SIDES = ("stock", "vlug")


def main(argv: Sequence[str]) -> int:
    p = Parser("demo", "Train a small residual network on handwritten digits and make one ResNet-50 training"
                       " step, each stock and with vlug in a process of its own.")  # fmt: skip
    p.add_argument("--quick", action="store_true", help="two epochs and no ResNet-50; accuracy is not judged")
    p.add_argument("--epochs", type=positive, default=10)
    p.add_argument("--no-resnet", action="store_true", help="leave ResNet-50 out")
    p.add_argument("--out", type=Path, default=Path("demo_out"), metavar="DIR", help="where the plot goes")
    p.add_argument("--json-file", type=writable, metavar="FILE", help=argparse.SUPPRESS)
    args, rest = p.parse_known_args(_json_file(list(argv)))
    if rest:
        p.error(f"{rest[0]!r} is not an argument")
    epochs = 2 if args.quick else args.epochs
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        p.error(f"--out {args.out} cannot be made: {e.strerror}")
    for module, what in (("torch", "PyTorch"), ("sklearn", "scikit-learn (its digits)")):
        if find_spec(module) is None:
            raise VlugError(f"demo: {what} is not installed: pip install 'vlug[torch,demo]'")
    sides: dict[str, dict[bool, Any]] = {}
    tasks: list[tuple[str, str, dict[str, Any]]] = [("digits", "digits", {"epochs": epochs})]
    if not (args.quick or args.no_resnet):
        tasks.append(("resnet50", "ResNet-50", {"steps": 3}))
    with _progress(quiet=args.json) as begin:
        for task, label, options in tasks:
            sides[task] = {}
            for vlug in (False, True):
                step = begin(f"{label}, {'with vlug' if vlug else 'stock'}")
                sides[task][vlug] = report.run_child(task, options, vlug=vlug, progress=step)
    digits = report.digits_figures(sides["digits"][False], sides["digits"][True])
    resnet = None
    if "resnet50" in sides:
        resnet = report.resnet_figures(sides["resnet50"][False], sides["resnet50"][True])
    held = report.agreements(digits, resnet)
    if args.quick:
        held = held[:1]
    data: dict[str, Any] = {"digits": digits, "resnet50": resnet, "agreements": [vars(h) for h in held],
            "agree": all(h.holds for h in held)}  # fmt: skip
    picture = args.out / "losses.png"
    drawn = report.plot(picture, digits)
    data["plot"] = str(picture) if drawn else None
    if args.json_file:
        args.json_file.parent.mkdir(parents=True, exist_ok=True)
        args.json_file.write_text(json.dumps(data, indent=1) + "\n")
    if args.json:
        print(json.dumps(data, indent=1))
    else:
        _show(digits, resnet, held, picture if drawn else None)
    return 0 if data["agree"] else 1


def _json_file(argv: list[str]) -> list[str]:
    """`--json FILE` writes the figures to FILE; `--json` alone prints them."""
    if "--json" in argv:
        at = argv.index("--json")
        if at + 1 < len(argv) and not argv[at + 1].startswith("-"):
            argv[at] = "--json-file"
    return argv


@contextmanager
def _progress(quiet: bool) -> Iterator[Any]:
    """Gives begin(label), which gives a callback (at, of): a bar in a terminal, else a line for each part."""
    if quiet or not sys.stderr.isatty():

        def plain(label: str) -> report.Progress:
            if not quiet:
                print(f"{label} …", file=sys.stderr, flush=True)
            return lambda at, of: None

        yield plain
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:26}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
               TimeElapsedColumn(), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bars:

        def begin(label: str) -> report.Progress:
            task = bars.add_task(label, total=None)
            return lambda at, of: bars.update(task, completed=at, total=of)

        yield begin


def _show(
    digits: dict[str, Any],
    resnet: dict[str, Any] | None,
    held: list[report.Demanded],
    picture: Path | None,
) -> None:
    for line in digits["vlug"]["said"]:
        print(line)
    rows: list[list[Any]] = [
        ["digits: time an epoch", *(f"{digits['epoch_seconds'][s]:.2f} s" for s in SIDES),
         f"×{digits['speed_up']:.2f}"],
        ["digits: accuracy", *(f"{digits['accuracy'][s]:.2f} %" for s in SIDES), ""],
        ["digits: memory", *(f"{digits['memory'][s] / 2**20:.0f} MiB" for s in SIDES), ""],
    ]  # fmt: skip
    if resnet is not None:
        rows += [
            ["ResNet-50: training step", *(milliseconds(resnet["step_seconds"][s]) for s in SIDES),
             f"×{resnet['speed_up']:.2f}"],
            ["ResNet-50: first step", *(milliseconds(resnet[s]["step_seconds"][0]) for s in SIDES),
             f"{resnet['first_step_extra']:+.2f} s"],
            ["ResNet-50: loss", *(f"{resnet[s]['losses'][0]:.6f}" for s in SIDES), ""],
            ["ResNet-50: memory", *(f"{resnet['memory'][s] / 2**20:.0f} MiB" for s in SIDES), ""],
        ]  # fmt: skip
    threads = digits["vlug"]["threads"]
    table(f"PyTorch {digits['vlug']['torch']}, {threads} threads", ["", "stock", "vlug", ""], rows)
    for name, part in (("digits", digits), ("ResNet-50", resnet)):
        if part is not None:
            print(f"{name}:")
            print("\n".join("  " + line for line in taken_lines(part["stats"])))
    for h in held:
        print(f"{'ok    ' if h.holds else 'FAILED'} {h.what}: {h.value:.3g} (bound {h.bound:g})")
    print(f"loss curves: {picture}" if picture else "loss curves: not drawn (matplotlib is not installed)")
