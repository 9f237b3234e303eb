"""Eager calls: operations that move elements. Results are new arrays (copies) or what `out` names."""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterable, Sequence
from typing import Any

from vlug.errors import BadInput, ShapeError
from vlug.functional.base import Array, arg, integer, items_of, one

__all__ = [
    "broadcast_to",
    "concatenate",
    "pad",
    "pad_backward",
    "permute",
    "reshape",
    "slice",
    "slice_backward",
    "split",
]

#: Most inputs of one operation.
MOST = 16


def _numbers(value: Any, argument: str) -> tuple[int, ...]:
    given = value if isinstance(value, Iterable) else (value,)
    return tuple(integer(v, argument) for v in given)


def reshape(x: Any, size: int | Sequence[int], *, out: Any = None) -> Array:
    """The elements of x in row-major order, as dims `size`, of which one may be -1."""
    a, full = arg(x, "x"), list(_numbers(size, "size"))
    if full.count(-1) > 1:
        raise BadInput(f"size: {tuple(full)} has more than one -1")
    if -1 in full:
        rest = math.prod(n for n in full if n != -1)
        if rest == 0 or a.size % rest:
            raise ShapeError(
                f"size: {tuple(full)}: the {a.size} elements of x {a.shape} do not divide by {rest}"
            )
        full[full.index(-1)] = a.size // rest
    return one("reshape", {"x": a}, "y", out, size=tuple(full))


def permute(x: Any, permutation: Sequence[int] | None = None, *, out: Any = None) -> Array:
    """A row-major copy whose dimension i is permutation[i] of x; by default all in reverse."""
    a = arg(x, "x")
    order = range(len(a.shape))[::-1] if permutation is None else permutation
    full = _numbers(order, "permutation")
    if len(full) != len(a.shape):
        raise ShapeError(f"permutation: {full} has {len(full)} numbers for {len(a.shape)} dimensions of x")
    return one("transpose", {"x": a}, "y", out, permutation=full)


def _bounds(shape: Sequence[int], start: Any, stop: Any, step: Any) -> dict[str, tuple[int, ...]]:
    """start, stop and step for every dimension: None is all of it, negative ones count from the end."""
    rank = len(shape)
    found: dict[str, list[int]] = {"start": [], "stop": [], "step": []}
    bounds = zip(found, (start, stop, step))
    given = [[None] * rank if v is None else items_of(v, name) for name, v in bounds]
    for name, v in zip(found, given):
        if len(v) != rank:
            raise ShapeError(f"{name}: {tuple(v)} has {len(v)} numbers for {rank} dimensions")
    for n, a, b, s in zip(shape, *given):
        by = 1 if s is None else integer(s, "step")
        if by < 1:
            raise BadInput(f"step: {by} must be 1 or more")
        ends = [None if v is None else integer(v, m) for v, m in ((a, "start"), (b, "stop"))]
        first, last, _ = builtins.slice(*ends).indices(n)
        found["start"].append(first)
        found["stop"].append(max(first, last))
        found["step"].append(by)
    return {n: tuple(v) for n, v in found.items()}


def slice(
    x: Any,
    start: Sequence[int | None] | None = None,
    stop: Sequence[int | None] | None = None,
    step: Sequence[int | None] | None = None,
    *,
    out: Any = None,
) -> Array:
    """A copy of x[start:stop:step] along every dimension, by Python's rules; steps are 1 or more."""
    a = arg(x, "x")
    return one("slice", {"x": a}, "y", out, **_bounds(a.shape, start, stop, step))


def slice_backward(
    dy: Any,
    size: Sequence[int],
    start: Sequence[int | None] | None = None,
    stop: Sequence[int | None] | None = None,
    step: Sequence[int | None] | None = None,
    *,
    out: Any = None,
) -> Array:
    """dx of dims `size`: dy at slice's elements, zeros elsewhere."""
    full = _numbers(size, "size")
    at = _bounds(full, start, stop, step)
    return one("slice_backward", {"dy": arg(dy, "dy")}, "dx", out, size=full, **at)


def split(x: Any, sizes: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Copies of consecutive pieces along `axis`: of these sizes, or all of one size but the last."""
    a = arg(x, "x")
    rank = len(a.shape)
    axis = integer(axis, "axis")
    if not -rank <= axis < rank:
        raise ShapeError(f"axis: {axis} is out of range for {rank} dimensions")
    n = a.shape[axis]
    if isinstance(sizes, Iterable):
        pieces = _numbers(sizes, "sizes")
        if sum(pieces) != n or min(pieces, default=0) < 0:
            raise ShapeError(f"sizes: {pieces} must be 0 or more and add up to {n}")
    else:
        by = integer(sizes, "sizes")
        if by < 1:
            raise BadInput(f"sizes: {by} must be 1 or more")
        pieces = tuple(min(by, n - i) for i in range(0, n, by)) or (0,)
    found, at = [], 0
    for size in pieces:
        start, stop = [0] * rank, list(a.shape)
        start[axis], stop[axis] = at, at + size
        found.append(one("slice", {"x": a}, "y", None, **_bounds(a.shape, start, stop, None)))
        at += size
    return found


def concatenate(arrays: Sequence[Any], axis: int = 0, *, out: Any = None) -> Array:
    """The arrays one after the other along `axis`; their other dims are equal."""
    given = [arg(a, f"arrays[{i}]") for i, a in enumerate(items_of(arrays, "arrays"))]
    if not given:
        raise BadInput("arrays: there must be one or more")
    if len(given) > MOST:
        heads = [concatenate(given[i : i + MOST], axis) for i in range(0, len(given), MOST)]
        return concatenate(heads, axis, out=out)
    named = {f"x{i}": a for i, a in enumerate(given)}
    return one("concatenate", named, "y", out, axis=integer(axis, "axis"))


def broadcast_to(x: Any, size: int | Sequence[int], *, out: Any = None) -> Array:
    """A copy of x broadcast to dims `size` by NumPy's rule."""
    return one("broadcast", {"x": arg(x, "x")}, "y", out, size=_numbers(size, "size"))


def _around(padding: Any, rank: int) -> dict[str, tuple[int, ...]]:
    """pre and post of every dimension."""
    given = list(padding) if isinstance(padding, Iterable) else [padding] * rank
    pairs = [_numbers(p, "padding") for p in given]
    pairs = [p * 2 if len(p) == 1 else p for p in pairs]
    if len(pairs) != rank or any(len(p) != 2 for p in pairs):
        raise BadInput(
            f"padding: {padding!r} must be one integer, or one or a pair for each of {rank} dimensions"
        )
    return {"pre": tuple(p[0] for p in pairs), "post": tuple(p[1] for p in pairs)}


def pad(x: Any, padding: Any, *, mode: str = "constant", value: float = 0.0, out: Any = None) -> Array:
    """x with elements around: padding is (before, behind) for each dimension; negative numbers crop.

    mode: constant (of `value`), reflect, replicate, circular.
    """
    a = arg(x, "x")
    at = _around(padding, len(a.shape))
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BadInput(f"value: {value!r} must be a number") from None
    return one("pad", {"x": a}, "y", out, mode=str(mode), value=number, **at)


def pad_backward(dy: Any, padding: Any, *, mode: str = "constant", out: Any = None) -> Array:
    """dx of pad's dy."""
    a = arg(dy, "dy")
    return one("pad_backward", {"dy": a}, "dx", out, mode=str(mode), **_around(padding, len(a.shape)))
