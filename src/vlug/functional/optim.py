"""Eager calls: steps of optimisers, in place, on one parameter or lists of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from vlug.dtypes import dtype
from vlug.errors import BadInput, ShapeError
from vlug.functional.base import floats
from vlug.runtime import handle
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.graph import Graph

__all__ = ["adam_step", "adamw_step", "sgd_step"]

_Layout = tuple[tuple[int, ...], tuple[int, ...], str]


def sgd_step(
    p: Any,
    g: Any,
    buf: Any = None,
    *,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
    first: bool = False,
) -> None:
    """A step of stochastic gradient descent, in place, as torch.optim.SGD takes it.

    p, g, buf: parameters, gradients, momentum buffers: an array each, or a list of arrays each (one call for
    all of them). There is a buf exactly if momentum is not 0. first: buf is only written (it becomes the
    gradient).
    """
    if buf is None and (momentum or nesterov or first):
        raise BadInput("buf: momentum, nesterov and first need buffers")
    if buf is not None and not momentum:
        raise BadInput("momentum: 0 beside buffers: leave buf out")
    scalars = floats(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay)
    flags = {"nesterov": bool(nesterov), "maximize": bool(maximize), "first": bool(first)}
    written = ("p", "buf")
    _step("sgd_step", {"p": p, "g": g, "buf": buf}, written, scalars, flags, None)


def adam_step(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    vmax: Any = None,
    *,
    step: int | Sequence[int],
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> None:
    """A step of Adam, in place, as torch.optim.Adam takes it (weight_decay is added to the gradient).

    p, g, m, v: parameters, gradients, running means of gradients and of their squares: an array each, or a
    list of arrays each (one call for all of them). vmax: the largest v so far, for AMSGrad. step: how many
    steps were made, this one included; one number, or one a parameter.
    """
    flags = {"decoupled": False, "maximize": bool(maximize)}
    _adam((p, g, m, v, vmax), step, lr, betas, eps, weight_decay, flags)


def adamw_step(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    vmax: Any = None,
    *,
    step: int | Sequence[int],
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    maximize: bool = False,
) -> None:
    """As adam_step, with decoupled weight decay: p shrinks by 1 - lr · weight_decay (torch.optim.AdamW)."""
    flags = {"decoupled": True, "maximize": bool(maximize)}
    _adam((p, g, m, v, vmax), step, lr, betas, eps, weight_decay, flags)


def _adam(
    arrays: tuple[Any, ...], step: Any, lr: Any, betas: Any, eps: Any, decay: Any, flags: dict[str, bool]
) -> None:
    try:
        beta1, beta2 = betas
    except (TypeError, ValueError):
        raise BadInput(f"betas: {betas!r} must be two numbers") from None
    scalars = floats(lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=decay)
    for n in ("beta1", "beta2"):
        if not 0 <= scalars[n] < 1:
            raise BadInput(f"betas: {betas!r} must be 0 or more and below 1")
    given = dict(zip(("p", "g", "m", "v", "vmax"), arrays))
    _step("adam_step", given, ("p", "m", "v", "vmax"), scalars, flags, step)


def _step(
    name: str,
    given: Mapping[str, Any],
    written: Sequence[str],
    scalars: Mapping[str, float],
    flags: Mapping[str, bool],
    step: Any,
) -> None:
    from vlug.plan import plan

    optional = ("buf", "vmax")
    lists = {n: _list(a, n, n in written) for n, a in given.items() if a is not None or n not in optional}
    count = len(lists["p"])
    for n, arrays in lists.items():
        if len(arrays) != count:
            raise ShapeError(f"{n}: {len(arrays)} arrays came for {count} parameters")
    numbers = {n: np.array(x) for n, x in scalars.items()}
    steps = None if step is None else _steps(step, count)
    _apart(lists, written)
    rows = list(zip(*lists.values())) if count else []
    layouts = tuple(tuple((a.shape, a.strides, a.dtype.name) for a in row) for row in rows)
    for at in _groups(layouts):
        chosen = tuple(layouts[i] for i in at)
        graph = _graph(name, tuple(lists), tuple(scalars), tuple(flags.items()), chosen, steps is not None)
        held: dict[str, Any] = dict(numbers)
        for k, i in enumerate(at):
            for n, a in zip(lists, rows[i]):
                held[f"{n}{k}"] = held[f"next_{n}{k}"] = a
            if steps is not None:
                held[f"step{k}"] = steps[i]
        plan(graph).run_checked(held)


def _apart(lists: Mapping[str, Sequence[handle.Array]], written: Sequence[str]) -> None:
    """Raise BadInput if an array that is written shares memory with another."""
    reach = []
    for n, arrays in lists.items():
        for i, a in enumerate(arrays):
            if a.size:
                span = sum((d - 1) * s for d, s in zip(a.shape, a.strides)) + 1
                reach.append((a.pointer, a.pointer + span * a.dtype.itemsize, n in written, n, i))
    reach.sort()
    end = end_written = 0
    for start, stop, changed, n, i in reach:
        if start < (end if changed else end_written):
            raise BadInput(f"{n}[{i}]: its memory overlaps that of another array of the step")
        end = max(end, stop)
        end_written = max(end_written, stop if changed else 0)


def _list(given: Any, argument: str, written: bool) -> list[handle.Array]:
    """The memory of an array, or of each of a list."""
    several = isinstance(given, (list, tuple))
    out = []
    for i, x in enumerate(given if several else [given]):
        where = f"{argument}[{i}]" if several else argument
        a = handle.array(x, where, written)
        if any(s < 0 for s in a.strides):
            raise BadInput(f"{where}: negative strides {a.strides} are not allowed")
        out.append(a)
    return out


def _steps(step: Any, count: int) -> list[Any]:
    many = list(step) if isinstance(step, (list, tuple)) else [step] * count
    if len(many) != count:
        raise ShapeError(f"step: {len(many)} numbers came for {count} parameters")
    out: dict[Any, Any] = {}
    for s in many:
        if isinstance(s, bool) or not isinstance(s, (int, np.integer)) or not 1 <= s < 1 << 53:
            raise BadInput(f"step: {s!r} must be an integer of 1 or more")
        out.setdefault(s, np.array(float(s)))
    return [out[s] for s in many]


def _tensor(shape: tuple[int, ...], strides: tuple[int, ...], kind: str) -> Tensor:
    return Tensor(shape, strides, dtype(kind)).normalised


@lru_cache(maxsize=256)
def _groups(layouts: tuple[tuple[_Layout, ...], ...]) -> list[list[int]]:
    """Which parameters go together: dense ones of the same dtypes; any other by itself."""
    groups: dict[Any, list[int]] = {}
    for i, row in enumerate(layouts):
        tensors = [_tensor(*layout) for layout in row]
        first = tensors[0]
        dense = first.span == first.numel and not first.overlaps
        alike = all(t.dim == first.dim and t.has_strides(first.stride) for t in tensors)
        key = tuple(t.dtype.name for t in tensors) if dense and alike else i
        groups.setdefault(key, []).append(i)
    return list(groups.values())


@lru_cache(maxsize=256)
def _graph(
    name: str,
    ports: tuple[str, ...],
    scalars: tuple[str, ...],
    flags: tuple[tuple[str, bool], ...],
    layouts: tuple[tuple[_Layout, ...], ...],
    counted: bool,
) -> Graph:
    from vlug.graph import Graph
    from vlug.ops import OPERATIONS

    op = OPERATIONS[name](**dict(flags))
    g = Graph()
    numbers = {n: g.tensor(n, (), "f64") for n in scalars}
    for k, row in enumerate(layouts):
        full = {n: _tensor(*layout) for n, layout in zip(ports, row)}
        first = dict(flags).get("first", False)
        known = {n: g.like(f"{n}{k}", t) for n, t in full.items() if not (n == "buf" and first)}
        if counted:
            known["step"] = g.tensor(f"step{k}", (), "f64")
        known |= numbers
        ins = [known.get(p.rstrip("?")) for p in op.inputs]
        outs = [o.rstrip("?") for o in op.outputs if o.rstrip("?").removeprefix("next_") in full]
        for o in outs:
            if full[o.removeprefix("next_")].overlaps:
                raise ShapeError(f"{o.removeprefix('next_')}: strides make elements share memory")
        g.append(op, ins, [f"{o}{k}" for o in outs], [full[o.removeprefix("next_")] for o in outs])
    return g
