"""The command line: `vlug NAME …`; each subcommand is a module in vlug.cli."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from vlug._version import __version__

#: name → (module of vlug.cli, what it does)
COMMANDS = {
    "info": ("info", "this machine, the engines, the frameworks and whether vlug serves them, the store"),
    "doctor": ("doctor", "check that vlug works here: a small training step, stock and with vlug"),
    "demo": ("demo", "train a small network on real images, stock and with vlug"),
    "try": ("attempt", "run your own training script for some steps, stock and with vlug"),
    "bench": ("bench", "time layers of well-known networks against stock PyTorch"),
    "list": ("listing", "operations, engines and which takes what"),
    "explain": ("explain", "which engine takes a problem, with what, and why not the others"),
    "run": ("run", "run one problem: error, time, share of what the machine can do"),
    "tune": ("tune", "measure once for each problem of a script (or a line) and remember the faster"),
    "cache": ("cache", "the store: show, verify, clear, export, import"),
    "hooks": ("hooks", "switch the use by frameworks on or off, for good"),
}


def usage() -> str:
    lines = [f"vlug {__version__}: tuned deep-learning primitives", "", "usage: vlug COMMAND …", ""]
    lines += [f"  {name:8} {what}" for name, (_, what) in COMMANDS.items()]
    lines += ["", "vlug COMMAND --help tells more. Every command takes --json."]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit code: 0, 1 for a failure, 2 for a wrong argument."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"vlug {__version__}")
        return 0
    name, *rest = words
    if name not in COMMANDS:
        print(f"vlug: error: {name!r} is not a command; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    import warnings

    from vlug.errors import BadInput, VlugError, VlugWarning

    def show(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
        own = issubclass(category, VlugWarning)
        print(f"vlug: {'' if own else category.__name__ + ': '}{message}", file=sys.stderr)

    warnings.showwarning = show  # a line for people, not a place in our source
    try:
        code = import_module(f"vlug.cli.{COMMANDS[name][0]}").main(rest)
        sys.stdout.flush()
        return int(code or 0)
    except VlugError as e:
        return _failed(str(e), 2 if isinstance(e, BadInput) else 1)
    except KeyboardInterrupt:
        return _failed("interrupted", 130)
    except BrokenPipeError:  # the reader of our output went away (vlug … | head)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as e:
        return _failed(f"{type(e).__name__}: {e}", 1)


def _failed(message: str, code: int) -> int:
    from vlug import log

    if log.enabled("debug"):
        import traceback

        traceback.print_exc()
    print(f"vlug: error: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
