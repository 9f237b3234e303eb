"""What to do with a call that was not met before: a plan, or stock with a reason. Runs once for each key."""

from __future__ import annotations

import _thread
import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlug import config, log
from vlug.frontends.torch.control import ENTRY, Block, Entry, address
from vlug.frontends.torch.keys import Pass, read_key
from vlug.frontends.torch.operators import Operator

__all__ = ["Decider", "Decision", "install"]

#: A ratio below this is not worth a call: stock serves.
LEAST = 1.0


@dataclass(frozen=True)
class Decision:
    """plan: address of the plan's words, 0 for stock; reason: why stock."""

    plan: int = 0
    order: tuple[int, ...] = ()
    outputs: Sequence[Any] = ()
    reason: str = ""
    line: str = ""
    keep: Any = None
    #: Measured once it is in the table; gives the reason why stock serves it after all, or "".
    trial: Callable[[Entry], str] | None = None


Decider = Callable[[Operator, tuple[int, ...]], Decision]


def decide(force: bool) -> Decider:
    """The decision as shipped, or (force) for every call that is supported."""

    def one(op: Operator, key: tuple[int, ...]) -> Decision:
        from vlug.frontends.torch.problems import problem

        try:
            p = problem(op, read_key(op, key))
        except Pass as e:
            return Decision(reason=str(e))
        line = p.graph.line
        tried = not force and _to_try(p.graph)
        try:
            if not force and not tried:
                _worth_it(p.graph)
            held = _planned(p.graph)
        except Pass as e:
            return Decision(reason=str(e), line=line)
        missing = [n for n in held.outer if n not in p.order]
        if missing:
            return Decision(reason=f"internal: no place for {', '.join(missing)}", line=line)
        plan = held.native(tuple(p.order))
        if op.each and any(plan[1:4]):  # a failure would come after other tensors were changed
            return Decision(reason="its plan needs memory", line=line)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(plan))  # it outlives Python
        made = Decision(address(plan), tuple(p.order.values()), p.results, "", line, held)
        return replace(made, trial=lambda entry: _tried(op, key, entry, p.graph, held)) if tried else made

    return one


def _planned(graph: Any) -> Any:
    """The native plan of a graph; Pass where there is none."""
    from vlug.errors import NotSupported
    from vlug.plan import plan
    from vlug.runtime.device import host

    try:
        found = plan(graph, host(), allow_reference=False, threads=_threads())
    except NotSupported as e:
        raise Pass(_short(e)) from None
    if not found.is_native:
        raise Pass("no engine's code is native here")
    return found


def _threads() -> int:
    import torch

    return int(torch.get_num_threads())


def _short(e: Any) -> str:
    """Why no engine serves: the reasons of those that know the operation at all."""
    whys = list(dict.fromkeys(why for _, why in e.reasons))
    own = [w for w in whys if "only" not in w] or whys
    return "no engine: " + "; ".join(own[:2]) if own else "no engine"


def _to_try(graph: Any) -> bool:
    """Whether VLUG_TUNE is on and this problem was not measured yet."""
    if not config.TUNE.get():
        return False
    from vlug.frontends.torch import trial
    from vlug.runtime.device import host
    from vlug.store import default_store

    known = default_store().ratio(graph.line, host().fingerprint, _threads())
    return known is None and trial.possible()


def _tried(op: Operator, key: tuple[int, ...], entry: Entry, graph: Any, held: Any) -> str:
    """Why stock serves it after measuring both, "" if ours does."""
    from vlug.frontends.torch import trial

    trial.trial(op, key, entry, graph, held, _threads())
    try:
        _worth_it(graph)
    except Pass as e:
        return str(e)
    return ""


def _worth_it(graph: Any) -> None:
    """Pass unless ours is measured, or expected, to be at least as fast as stock's."""
    ratio, why = expected(graph)
    if ratio == 0:
        raise Pass(f"not known to be faster ({why})")
    if ratio < LEAST:
        raise Pass(f"expected slower ({ratio:.2f} x)")


def expected(graph: Any) -> tuple[float, str]:
    """Stock's time over ours for a graph: measured as a whole, else of its parts weighed by their flops."""
    from vlug import heuristics
    from vlug.runtime.device import host
    from vlug.store import default_store

    device, store, threads = host(), default_store(), _threads()
    measured = store.ratio(graph.line, device.fingerprint, threads)
    if measured is not None:
        return measured, "measured here"
    parts = [i for i, n in enumerate(graph.nodes) if n.op.name in ("conv_dgrad", "conv_wgrad")]
    if len(parts) < 2:
        e = heuristics.expect(graph, device, store, threads)
        return e.ratio, e.why
    stock = ours = 0.0
    for i in parts:
        piece = graph.subgraph([i])
        e = heuristics.expect(piece, device, store, threads)
        if e.ratio == 0:
            return 0.0, e.why
        flops = float(piece.cost.flops)
        ours += flops
        stock += flops * e.ratio
    return stock / ours, "expected of its parts"


_Callback = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)
_callbacks: list[Any] = []  # called from native code as long as the process lives


def install(block: Block, choose: Callable[[], Decider]) -> None:
    """Have the adapters of a block ask `choose()` about every new key."""

    def miss(number: int, key_at: int, n: int, hashed: int) -> int:
        op = block.operators[number]
        try:
            key = tuple((ctypes.c_int64 * n).from_address(key_at))
            found = block.entries.get(key)
            if found is None:
                if block.full:
                    return 0
                found = _decided(block, op, key, hashed, choose())
            return address(found.words)
        except KeyboardInterrupt:
            _thread.interrupt_main()  # it cannot pass through native code: raise it again outside
            return 0
        except BaseException as e:
            log.once("warn", f"{op.name} is left to PyTorch after an error of ours: {type(e).__name__}: {e}")
            return 0

    callback = _Callback(miss)
    _callbacks.append(callback)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(callback))
    block["miss"] = ctypes.cast(callback, ctypes.c_void_p).value or 0


def _decided(block: Block, op: Operator, key: tuple[int, ...], hashed: int, choose: Decider) -> Any:
    try:
        d = choose(op, key)
    except Exception as e:  # an error is a reason too: known, counted, told once
        d = Decision(reason=f"internal error: {type(e).__name__}: {e}")
        log.once("warn", f"{op.name} is left to PyTorch after an error of ours: {type(e).__name__}: {e}")
    entry = block.insert(
        op, key, hashed,
        plan=d.plan, order=d.order, outputs=d.outputs, reason=d.reason, line=d.line, keep=d.keep,
    )  # fmt: skip
    if d.trial is not None and entry.keep is d.keep:  # not where another thread came first
        why = _after_trial(d.trial, op, entry)
        if why:
            entry.give_up(why)
        entry.words[ENTRY["calls"]] = 0
    if log.enabled("info"):
        what = f"aten::{op.name} " + (f"passed: {entry.reason}" if entry.reason else "taken")
        log.info(what, **({"problem": f"'{d.line}'"} if d.line else {"key": key[1:]}))
    return entry


def _after_trial(measure: Callable[[Entry], str], op: Operator, entry: Entry) -> str:
    try:
        return measure(entry)
    except Exception as e:  # what cannot be measured is not preferred
        log.once("warn", f"{op.name} could not be measured: {type(e).__name__}: {e}")
        return f"could not be measured: {type(e).__name__}: {e}"
