"""Arming: is this PyTorch known, did the canary agree, then load the adapters, register and switch on.

The canary's verdict is kept with the adapters' object in the store, under a key that names the version of
PyTorch, its library file and our sources: a new file or a new vlug is checked anew.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import sys
from collections import Counter
from typing import Any

from vlug import log
from vlug._version import __version__
from vlug.codegen import objects
from vlug.frontends.hooks import Switches
from vlug.frontends.torch import decide, dispatcher
from vlug.frontends.torch.control import ASK_THREAD, DENIED, ON, Entry
from vlug.frontends.torch.dispatcher import Unfit
from vlug.frontends.torch.loader import Loaded, compile_object, source_digest
from vlug.frontends.torch.operators import FAMILIES, OPERATORS, Operator, denied

__all__ = ["TESTED", "TorchFrontend", "armed", "check"]

#: Versions whose structures the adapters were made for, and all of whose tests passed.
TESTED = ("2.13",)
UNTESTED = "VLUG_TORCH_UNTESTED"
_SECONDS = 120  # for the canary, most of it importing torch
_CHILD = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]);"
    "from vlug.frontends.torch.canary import main; main()"
)
_MARK = "torch adapters"

_armed: list[TorchFrontend] = []


class TorchFrontend:
    """The armed adapters of this process."""

    name = "torch"

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.block = loaded.block
        self.left_out: dict[Operator, str] = {}
        self._switches = Switches(False)
        self._asked = False
        self._epochs: dict[bool, int] = {False: 0, True: 1}
        decide.install(self.block, lambda: decide.decide(self._switches.force))

    def register(self) -> None:
        """Put the adapters in the dispatcher, switched off."""
        from vlug.codegen import native

        self.block["runner"] = native.addresses()["vlug_run"]
        self.left_out = dict(self.loaded.register())

    # --- what hooks.py asks ---
    def apply(self, switches: Switches) -> None:
        self._switches = switches
        self.block["epoch"] = self._epochs[switches.force]  # decisions of the other mode are not found
        off = denied(switches.deny)
        for op in self.loaded.operators:
            word = (ON if switches.on else 0) | (ASK_THREAD if self._asked else 0)
            if op in self.left_out:
                word = 0
            elif op.name in off:
                word = DENIED if switches.on else 0
            self.block.set(op, "on", word)

    def wish(self, on: bool | None) -> None:
        self.loaded.wish(0 if on is None else 2 if on else 1)
        if not self._asked and on is not None:
            self._asked = True
            self.apply(self._switches)

    def known(self) -> frozenset[str]:
        return frozenset(FAMILIES) | {op.name for op in self.loaded.operators}

    def stats(self) -> dict[str, Any]:
        """Calls that ours took and that went to stock with their reasons, by operator."""
        out: dict[str, Any] = {}
        with self.block.lock:
            entries = list(self.block.entries.values())
        called: dict[Operator, list[Entry]] = {}
        for e in entries:
            if e.calls:
                called.setdefault(e.op, []).append(e)
        for op in self.loaded.operators:
            mine = called.get(op, [])
            failed = self.block.of(op, "failed")
            reasons: Counter[str] = Counter()
            for e in mine:
                if not e.taken:
                    reasons[e.reason] += e.calls
            for count, why in (
                (self.block.of(op, "denied"), "denied"),
                (failed, "no memory for it, or the run refused its values"),
                (self.block.of(op, "stock_calls"), "not looked up (too many arguments, or a full table)"),
            ):
                if count:
                    reasons[why] += count
            taken = sum(e.calls for e in mine if e.taken) - failed
            passed = sum(reasons.values())
            if taken or passed:
                out[op.name] = {"taken": taken, "passed": passed, "reasons": dict(reasons.most_common())}
        for op, why in self.left_out.items():
            out[op.name] = {"taken": 0, "passed": 0, "reasons": {why: 0}}
        return out

    def problems(self) -> list[tuple[str, str, int, str]]:
        """(operator, problem line, calls, reason or "") of every call that was a problem of ours."""
        with self.block.lock:
            entries = list(self.block.entries.values())
        return [(e.op.name, e.line, e.calls, e.reason) for e in entries if e.line]

    def reset_stats(self) -> None:
        self.block.reset_counts()


def armed() -> TorchFrontend:
    """The frontend, armed at the first call. Raises Unfit with the reason where it cannot be."""
    if not _armed:
        obj = check()
        collecting = gc.isenabled()
        gc.disable()  # a collection over all of torch's objects costs more than arming
        try:
            frontend = TorchFrontend(Loaded(obj))
            frontend.register()
        finally:
            if collecting:
                gc.enable()
        _armed.append(frontend)
        _greet()
    return _armed[0]


def check() -> bytes:
    """The adapters' object, proven for this PyTorch. Raises Unfit."""
    import torch

    _fits(torch.__version__)
    key = _key(torch.__version__)
    found = objects.load(key)
    if found is not None and isinstance(found[0].get("verdict"), str):
        verdict, obj = found[0]["verdict"], found[1]
    else:
        short = ".".join(torch.__version__.split(".")[:2])
        log.notice(f"first use with PyTorch {short}: compiling and checking for a few seconds, once")
        verdict, obj = _ask_child()
        objects.save(key, {"verdict": verdict, "what": _MARK}, obj)
    if verdict:
        raise Unfit(f"its check failed: {verdict}")
    return obj


def _fits(version: str) -> None:
    machine = (sys.platform, platform.machine())
    if machine != ("linux", "x86_64"):
        raise Unfit(f"the adapters are for Linux on x86-64, this is {machine[0]} on {machine[1]}")
    tested = any(version == t or version.startswith(t + ".") for t in TESTED)
    if not tested and os.environ.get(UNTESTED) != "1":
        raise Unfit(
            f"version {version} was not tested with vlug {__version__} ({', '.join(TESTED)} was); "
            f"{UNTESTED}=1 tries it"
        )


def _key(version: str) -> str:
    path = dispatcher.library_path()
    try:
        st = os.stat(path)
    except OSError as e:
        raise Unfit(f"its library {path} cannot be read: {e.strerror}") from None
    library = f"{os.path.realpath(path)} {st.st_size} {st.st_mtime_ns} {st.st_ino}"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{_MARK} vlug={__version__} {source_digest()} torch={version} python={python} {library}"


def _ask_child() -> tuple[str, bytes]:
    """Verdict and object of the canary. Raises Unfit where no verdict came (it is not remembered then)."""
    program = sys.executable
    if not program or getattr(sys, "frozen", False):
        raise Unfit("there is no Python program to check it with")
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "VLUG_HOOKS": "off"}
    path = [os.path.abspath(p or ".") for p in sys.path]
    pipe = subprocess.PIPE
    try:
        child = subprocess.Popen(
            [program, "-c", _CHILD, json.dumps(path)], env=env, stdin=pipe, stdout=pipe, stderr=pipe
        )
        with child:
            try:
                obj = compile_object()  # while the child imports torch
                out, err = child.communicate(obj, timeout=_SECONDS)
            finally:
                child.kill()
    except (OSError, subprocess.SubprocessError) as e:
        raise Unfit(f"its check could not be run: {e}") from None
    if child.returncode < 0:  # a layout that does not fit is a crash: that is an answer
        return f"the check ended by signal {-child.returncode}", b""
    try:
        return str(json.loads(out.decode().strip().rpartition("\n")[2])["verdict"]), obj
    except (ValueError, KeyError, TypeError):
        tail = err.decode(errors="replace").strip().rpartition("\n")[2]
        raise Unfit(f"its check gave no answer: {tail or f'exit {child.returncode}'}") from None


def _greet() -> None:
    """One line where people look: that vlug was found, and for what."""
    process = sys.modules.get("multiprocessing.process")
    if not log.enabled("notice") or (process is not None and process.parent_process() is not None):
        return  # workers need not say it again
    if not (log.enabled("info") or (sys.stderr is not None and sys.stderr.isatty())):
        return
    import torch

    from vlug.runtime.device import host

    able = host().abilities
    can = ["AVX-512"] if "avx512" in able else ["AVX2"] if "avx2" in able else []
    can += ["AMX"] if "amx" in able else []
    n = torch.get_num_threads()
    short = ".".join(torch.__version__.split(".")[:2])
    text = f"{' + '.join(can) or 'no instruction set of ours'}, {n} thread{'s' * (n > 1)}; PyTorch {short}"
    log.greeting(f"vlug {'.'.join(__version__.split('.')[:2])}: {text}")


def operators() -> tuple[Operator, ...]:
    """Every operator that has an adapter, for docs and `vlug info`."""
    return OPERATORS
