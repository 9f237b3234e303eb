"""What subcommands share: their parser, output as text or JSON, tables, problem lines, checked numbers."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vlug import config
from vlug.errors import BadInput
from vlug.graph import Graph

__all__ = [
    "Parser",
    "applied",
    "emit",
    "graph_of",
    "milliseconds",
    "positive",
    "seconds",
    "table",
    "threads",
    "writable",
]


class Parser(argparse.ArgumentParser):
    """The parser of `vlug NAME`, with --json; a wrong argument is one line on stderr and exit code 2."""

    def __init__(self, name: str, doc: str, **more: Any) -> None:
        super().__init__(prog=f"vlug {name}", description=doc, allow_abbrev=False, **more)
        self.add_argument("--json", action="store_true", help="print one JSON object instead of text")

    def error(self, message: str) -> Any:
        self.exit(2, f"vlug: error: {message} (vlug {self.prog.split()[-1]} --help)\n")

    def add_machine(self) -> None:
        """--threads and --isa."""
        self.add_argument("--threads", type=threads, metavar="N", help="threads (default: VLUG_THREADS)")
        self.add_argument(
            "--isa", choices=config.ISA_NAMES, help="highest instruction set (default: VLUG_ISA)"
        )


def positive(text: str) -> int:
    """An integer of 1 or more."""
    try:
        n = int(text)
    except ValueError:
        n = 0
    if n < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return n


def threads(text: str) -> int:
    """A number of threads that VLUG_THREADS allows too."""
    n = positive(text)
    if n > config.MAX_THREADS:
        raise argparse.ArgumentTypeError(f"{n} is more than {config.MAX_THREADS}")
    return n


def seconds(text: str) -> float:
    """A time above 0, in seconds."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def writable(text: str) -> Path:
    """A file to write results to, tried before the work that leads to them."""
    path = Path(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        path.open("ab").close()
        if new:
            path.unlink()
    except OSError as e:
        raise argparse.ArgumentTypeError(f"{text} cannot be written: {e.strerror}") from None
    return path


def applied(args: argparse.Namespace) -> ExitStack:
    """A context in which --threads and --isa hold."""
    stack = ExitStack()
    if getattr(args, "threads", None):
        stack.enter_context(config.THREADS.using(args.threads))
    if getattr(args, "isa", None):
        stack.enter_context(config.ISA.using(args.isa))
    return stack


def graph_of(words: Sequence[str]) -> Graph:
    """The graph of a problem line that came as one or several arguments."""
    line = " ".join(words)
    if not line.strip():
        raise BadInput("LINE: a problem line is wanted, such as: relu x=8x64x56x56")
    return Graph.parse(line)


def emit(args: argparse.Namespace, data: Any, text: str) -> None:
    """Print the data as JSON with --json, else the text."""
    print(json.dumps(data, indent=1, default=str) if args.json else text)


def milliseconds(seconds: float) -> str:
    """A time for people: ns, µs, ms or s with three digits."""
    for unit, scale in (("ns", 1e9), ("µs", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], left: int = 1) -> None:
    """Print a table; the first `left` columns are text, the others figures."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    t = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    for i, c in enumerate(columns):
        t.add_column(c, justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        t.add_row(*(Text("" if v is None else f"{v:.2f}" if isinstance(v, float) else str(v)) for v in row))
    width = None if sys.stdout.isatty() else 160
    Console(width=width, highlight=False).print(t)
