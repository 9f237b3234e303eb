"""The canary: in a child process, before anything is armed, the adapters must agree with stock's kernels.

It registers the adapters in its own copy of PyTorch and lets a stand-in run the plans that computes with
stock's kernels, on exactly the memory that the adapters hand over. So every argument, mask, list and optional
that is read, every result that is allocated, and every way back to stock is compared, called both as C++ and
as the interpreter calls; an offset that does not fit this PyTorch shows as a difference or as a crash, here.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from vlug.dtypes import F64
from vlug.frontends.torch import decide, problems
from vlug.frontends.torch.calls import bound, dtype_of
from vlug.frontends.torch.canary_cases import Case, cases
from vlug.frontends.torch.control import IS_LIST, IS_OUTPUT, IS_SCALAR
from vlug.frontends.torch.keys import Arg, Pass, Varying, VaryingList, read_key, torch_dtype
from vlug.frontends.torch.loader import Loaded
from vlug.frontends.torch.operators import OPERATORS, Operator
from vlug.runtime.threads import Env

__all__ = ["main", "verdict"]


class _StandIn:
    """Runs a plan by calling stock's operator on the memory that an adapter handed over."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.calls: list[tuple[Operator, list[Any], problems.Problem]] = []
        self.fault = ""
        runner = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 4)
        self._runner = runner(self._run)
        loaded.block["runner"] = ctypes.cast(self._runner, ctypes.c_void_p).value or 0
        decide.install(loaded.block, lambda: self._decide)

    def switch(self, on: int) -> None:
        for op in self.loaded.operators:
            self.loaded.block.set(op, "on", on)

    def _decide(self, op: Operator, key: tuple[int, ...]) -> decide.Decision:
        arguments = read_key(op, key)
        flat = [a for v in arguments for a in (v if isinstance(v, tuple) else (v,))]
        if any(isinstance(a, Arg) and a.number == torch_dtype(F64) for a in flat):
            return decide.Decision(reason="float64, so that the way to stock is walked too")
        try:
            p = problems.problem(op, arguments)
        except Pass as e:
            return decide.Decision(reason=str(e))
        self.calls.append((op, arguments, p))
        order = tuple(p.order.values())
        return decide.Decision(len(self.calls), order, p.results, "", p.graph.line)

    def _run(self, plan: int, outer: int, env: int) -> int:
        try:
            op, arguments, p = self.calls[plan - 1]
            pointers = (ctypes.c_int64 * len(p.order)).from_address(outer)
            self._check_pool(env)
            self.switch(0)
            self._compute(op, arguments, p, dict(zip(p.order, pointers)))
            return 0
        except BaseException as e:
            self.fault = f"{type(e).__name__}: {e}"
            return 1
        finally:
            self.switch(1)

    def _compute(
        self, op: Operator, arguments: list[Any], p: problems.Problem, at: dict[str, int]
    ) -> None:
        codes = {p.order[n]: at[n] for n in p.order}
        places = {c & (IS_OUTPUT - 1): t for c, t in codes.items() if not c & (IS_OUTPUT | IS_SCALAR)}

        def number(v: Varying | VaryingList) -> Any:
            if isinstance(v, VaryingList):
                values = (ctypes.c_int64 * v.length).from_address(codes[IS_SCALAR | IS_LIST | 2 * v.place])
                return list(values)
            for code, type_ in enumerate((ctypes.c_double, ctypes.c_float), IS_SCALAR | 2 * v.place):
                if code in codes:
                    return type_.from_address(codes[code]).value
            return 0.0  # the problem makes nothing of it

        made = bound(op, arguments, lambda a: _tensor(a, places), number)()
        results = made if isinstance(made, tuple) else (made,)
        for n, code in p.order.items():
            if code & IS_OUTPUT:
                t = p.graph.tensors[n]
                _memory(at[n], t.dim, t.stride, results[code & (IS_OUTPUT - 1)].dtype).copy_(
                    results[code & (IS_OUTPUT - 1)]
                )

    def _check_pool(self, env: int) -> None:
        """parallel_for must run every part once."""
        lent = Env.from_buffer_copy((ctypes.c_char * 64).from_address(env))
        lent.threads, lent.count = 2, None
        seen = []
        body_type = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
        body = body_type(lambda ctx, part, begin, end: seen.append((part, begin, end)))
        call = ctypes.CFUNCTYPE(None, ctypes.c_int64, body_type, ctypes.c_int64, ctypes.c_int64)
        call(lent.parallel_for)(ctypes.addressof(lent), body, 0, 7)
        seen.sort()
        if seen != [(0, 0, 3), (1, 3, 7)]:
            raise ValueError(f"parallel_for gave {seen} for 2 threads")


def _memory(pointer: int, dim: Any, stride: Any, dtype: Any) -> Any:
    import torch

    n = 1 + sum((d - 1) * s for d, s in zip(dim, stride)) if 0 not in dim else 1
    size = torch.empty((), dtype=dtype).element_size()
    raw = torch.frombuffer((ctypes.c_char * (n * size)).from_address(pointer), dtype=dtype)
    return raw.as_strided(tuple(dim), tuple(stride))


def _tensor(a: Arg, places: dict[int, int]) -> Any:
    import torch

    dtype = dtype_of(a.number)
    if a.place not in places:
        return torch.empty_strided(a.dim, a.stride, dtype=dtype)
    return _memory(places[a.place], a.dim, a.stride, dtype)


def verdict(
    obj: bytes, operators: Sequence[Operator] = OPERATORS, compared: Sequence[Case] | None = None
) -> str:
    """"" if the adapters in `obj` agree with stock in this process, else what differs.

    compared: calls that between them reach the operators, by default `cases()`.

    The adapters stay registered: only for a process that ends with it.
    """
    import torch

    torch.set_num_threads(1)  # a busy machine makes two wait for each other
    loaded = Loaded(obj, operators)
    stand_in = _StandIn(loaded)
    compared = cases() if compared is None else compared
    wanted = [_outcome(call) for _, call in compared]
    left_out = loaded.register()
    if left_out:
        return "; ".join(why for _, why in left_out)
    for (name, call), want in zip(compared, wanted):
        again = _outcome(call)
        if not _same(want, again):
            return f"{name}: switched off, it differs from stock"
        stand_in.switch(1)
        got = _outcome(call)
        stand_in.switch(0)
        if stand_in.fault:
            return f"{name}: {stand_in.fault}"
        if not _same(want, got):
            return f"{name}: it differs from stock"
    for op in loaded.operators:
        entries = [e for e in loaded.block.entries.values() if e.op is op]
        if not any(e.taken and e.calls for e in entries) or not any(not e.taken for e in entries):
            return f"{op.name}: the adapter was not reached"
        if loaded.block.of(op, "failed"):
            return f"{op.name}: the adapter could not allocate or run"
    return ""


def _outcome(call: Callable[[], Any]) -> Any:
    import torch

    try:
        made = call()
    except (AttributeError, NameError):
        raise  # a fault of the case itself
    except Exception as e:
        return str(e).splitlines()[0] if str(e) else type(e).__name__
    flat: list[Any] = []
    for v in made if isinstance(made, (list, tuple)) else [made]:
        flat += v if isinstance(v, (list, tuple)) else [v]
    return [v.detach() if isinstance(v, torch.Tensor) else v for v in flat]


def _same(want: Any, got: Any) -> bool:
    import torch

    if isinstance(want, str) or isinstance(got, str):
        return bool(want == got)
    if len(want) != len(got):
        return False
    for a, b in zip(want, got):
        if a is None or b is None:
            if a is not b:
                return False
            continue
        alike = (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device)
        if not alike or not torch.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True):
            return False
    return True


def main() -> None:
    """For the child process: the object comes on stdin, the verdict goes to stdout as JSON."""
    import torch  # takes longest, while the parent compiles the object

    obj = sys.stdin.buffer.read()
    answer = {"verdict": verdict(obj), "torch": torch.__version__}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # whatever PyTorch does at its end says nothing of the adapters
