"""VLUG_TUNE: at the first sight of a problem ours and stock are timed once, the store keeps both times.

What is timed is the very call: the operator with tensors of the same sizes, strides and dtypes (values made
up), through the same dispatcher, with vlug on and off in this thread. No value of the caller is touched.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vlug import log
from vlug.frontends import hooks
from vlug.frontends.torch.calls import bound, dtype_of
from vlug.frontends.torch.control import Entry
from vlug.frontends.torch.keys import Arg, Varying, read_key
from vlug.frontends.torch.operators import Operator

__all__ = ["call_of", "possible", "trial"]

#: Calls shorter than this are timed several at a time.
SHORTEST = 200e-6
Call = Callable[[], Any]


def possible() -> bool:
    """Whether operators may be called here: not inside a transformation or a mode that watches calls."""
    import torch

    return (
        torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
    )


def call_of(op: Operator, key: tuple[int, ...]) -> Call:
    """A call of PyTorch's operator that has this key."""
    import torch

    random = torch.Generator().manual_seed(0)

    def tensor(a: Arg) -> Any:
        dtype = dtype_of(a.number)
        size = 1 + sum((d - 1) * s for d, s in zip(a.dim, a.stride))
        if not dtype.is_floating_point:
            return torch.zeros(size, dtype=dtype).as_strided(a.dim, a.stride)
        values = torch.randn(size, generator=random)
        if a.rank == 1:
            values = values.abs() + 0.5  # a variance
        return values.to(dtype).as_strided(a.dim, a.stride)

    values = read_key(op, key)
    held: dict[int, Any] = {}

    def one(a: Arg) -> Any:
        if a.place not in held:
            held[a.place] = tensor(a)
        return held[a.place]

    call = bound(op, values, one, lambda v: 0.5 if isinstance(v, Varying) else [1] * v.length)
    if op.name == "max_pool2d_with_indices_backward":  # indices as its forward gives them
        _, x, *attributes, index = values
        plain = [list(v) if isinstance(v, tuple) else v for v in attributes]
        one(index).copy_(torch.ops.aten.max_pool2d_with_indices(one(x), *plain)[1])
    return call


def trial(op: Operator, key: tuple[int, ...], entry: Entry, graph: Any, plan: Any, threads: int) -> float:
    """Stock's time over ours for the entry's call, remembered; 0 where its adapter did not meet the call."""
    import torch

    from vlug import tune
    from vlug.engines import engines
    from vlug.store import STOCK_TORCH

    with torch.no_grad(), hooks.using(False):
        call = call_of(op, key)
        call()
        start = time.perf_counter()
        call()
        n = max(1, min(200, math.ceil(SHORTEST / max(time.perf_counter() - start, 1e-7))))

        def repeated(on: bool) -> Call:
            def run() -> None:
                with hooks.using(on):
                    for _ in range(n):
                        call()

            return run

        samples = tune.measure({"ours": repeated(True), "stock": repeated(False)})
    if not entry.calls:
        return 0.0
    one = {name: replace(s, median=s.median / n, best=s.best / n) for name, s in samples.items()}
    config: Any = plan.config if len(plan.steps) == 1 else plan.engine[:80]
    versions = {e.name: str(e.version) for e in engines()}
    tune.remember(graph, config, versions.get(plan.engine, "1"), one["ours"], threads)
    tune.remember(graph, STOCK_TORCH, torch.__version__, one["stock"], threads)
    ratio = one["stock"].median / one["ours"].median
    log.info("tuned", ratio=f"{ratio:.2f}", line=repr(graph.line))
    return ratio
