"""What eager calls share: arguments checked, graphs made once, plans run on the caller's memory."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vlug.errors import BadInput, DTypeError, ShapeError
from vlug.runtime import handle
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.graph import Graph

# Graphs, operations and plans are imported by the first call: `import vlug` stays light.

__all__ = [
    "Array",
    "Ints",
    "Padding",
    "Step",
    "arg",
    "args",
    "axes_of",
    "chain",
    "floats",
    "integer",
    "integers",
    "items_of",
    "one",
    "one_of",
    "operands",
    "pair",
    "ports_of",
    "sizes_of",
    "spatial",
    "window_of",
]


Array = NDArray[Any]


Ints = int | Sequence[int]


Padding = Ints | Sequence[Sequence[int]] | str


def arg(x: Any, argument: str, rank: int | None = None) -> handle.Array:
    """The argument's memory; a copy if a stride is negative."""
    a = handle.array(x, argument)
    if rank is not None and len(a.shape) != rank:
        raise ShapeError(f"{argument}: {a.shape} has {len(a.shape)} dimensions, {rank} are allowed")
    if builtins.any(s < 0 for s in a.strides):
        a = handle.array(a.numpy().copy(), argument)
    return a


def operands(**given: Any) -> dict[str, handle.Array]:
    """Operands that broadcast. A Python number takes the dtype of the first array, as in NumPy.

    BadInput where that dtype has no such number (0.5 among integers).
    """
    plain = {n: v for n, v in given.items() if isinstance(v, (int, float)) and not isinstance(v, np.generic)}
    made = {n: arg(v, n) for n, v in given.items() if n not in plain}
    if plain and not made:
        made = {n: arg(v, n) for n, v in given.items()}  # says that numbers are no arrays
    for n, v in plain.items():
        dtype = next(iter(made.values())).dtype
        try:
            with np.errstate(all="ignore"):
                a = np.asarray(v).astype(dtype.numpy)
            fits = dtype.is_float or bool(a == v)
        except (OverflowError, TypeError, ValueError):
            fits = False
        if not fits:
            raise BadInput(f"{n}: {v!r} is no {dtype.name}, which the arrays are")
        made[n] = arg(a, n)
    return {n: made[n] for n in given}


class _Given(dict[str, handle.Array]):
    """Arrays by argument; one that was left out and is needed after all is named."""

    def __missing__(self, name: str) -> handle.Array:
        raise BadInput(f"{name}: None came, an array is wanted")


def args(**arguments: Any) -> dict[str, handle.Array]:
    """The arrays that came, None left out."""
    return _Given({n: arg(a, n) for n, a in arguments.items() if a is not None})


def integer(value: Any, argument: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise BadInput(f"{argument}: {value!r} must be an integer") from None


def integers(**values: Any) -> dict[str, int]:
    return {n: integer(v, n) for n, v in values.items()}


def spatial(value: Any, argument: str, rank: int) -> tuple[int, ...]:
    """One integer for each spatial dimension, or one for all of them."""
    if isinstance(value, (int, np.integer)):
        value = (value,) * rank
    given = tuple(value) if isinstance(value, Iterable) else ()
    if len(given) != rank or not builtins.all(isinstance(v, (int, np.integer)) for v in given):
        raise BadInput(f"{argument}: {value!r} must be one integer{('', ' or two', ' or three')[rank - 1]}")
    return tuple(int(v) for v in given)


def pair(value: Any, argument: str) -> tuple[int, int]:
    a, b = spatial(value, argument, 2)
    return a, b


def sizes_of(sizes: Any, argument: str) -> tuple[int, ...]:
    """A shape: a sequence of integers, 0 or more each."""
    if not isinstance(sizes, Iterable):
        raise BadInput(f"{argument}: {sizes!r} must be a sequence of integers")
    found = tuple(integer(n, argument) for n in sizes)
    if builtins.any(n < 0 for n in found):
        raise BadInput(f"{argument}: {found} must be 0 or more each")
    return found


def one_of(value: Any, argument: str, names: Iterable[str]) -> str:
    """One of some names."""
    allowed = tuple(names)
    if not isinstance(value, str) or value not in allowed:
        raise BadInput(f"{argument}: {value!r} must be one of {', '.join(map(repr, allowed))}")
    return value


def items_of(value: Any, argument: str) -> list[Any]:
    """What a sequence holds."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
        raise BadInput(f"{argument}: {value!r} must be a sequence")
    return list(value)


def axes_of(axes: Ints) -> tuple[int, ...]:
    given = axes if isinstance(axes, Iterable) else (axes,)
    return tuple(integer(a, "axes") for a in given)


def floats(**values: float) -> dict[str, float]:
    out = {}
    for argument, value in values.items():
        try:
            out[argument] = float(value)
        except (TypeError, ValueError):
            raise BadInput(f"{argument}: {value!r} must be a number") from None
    return out


def window_of(
    shape: Sequence[int], window: Sequence[int], stride: Ints, padding: Padding, dilation: Ints
) -> dict[str, Any]:
    """stride, dilation and both paddings, a value for each dimension of the window."""
    rank = len(window)
    s, d = spatial(stride, "stride", rank), spatial(dilation, "dilation", rank)
    pre: tuple[int, ...]
    post: tuple[int, ...]
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise BadInput(f"padding: {padding!r} must be integers, pairs, 'same' or 'valid'")
        if builtins.any(v < 1 for v in (*s, *window, *d)):
            raise ShapeError(f"window: {tuple(window)}, stride {s} and dilation {d} must be 1 or more")
        total = [0] * rank
        if padding == "same":
            sizes = zip(shape[2:], window, s, d)
            total = [max((-(-h // st) - 1) * st + (r - 1) * dl + 1 - h, 0) for h, r, st, dl in sizes]
        pre, post = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    elif isinstance(padding, Iterable) and builtins.any(isinstance(p, Sequence) for p in padding):
        ends = [tuple(p) if isinstance(p, Sequence) else () for p in padding]
        if len(ends) != rank or builtins.any(len(p) != 2 for p in ends):
            wanted = "((front, back), (top, bottom), (left, right))"
            wanted = {1: "((left, right),)", 2: "((top, bottom), (left, right))"}.get(rank, wanted)
            raise BadInput(f"padding: {padding!r} must be {wanted}")
        pre, post = (spatial([p[i] for p in ends], "padding", rank) for i in (0, 1))
    else:
        pre = post = spatial(padding, "padding", rank)
    return {"stride": s, "dilation": d, "pre_padding": pre, "post_padding": post}


Step = tuple[str, tuple[str, ...], dict[str, Any]]


def ports_of(name: str) -> tuple[str, ...]:
    from vlug.ops import OPERATIONS

    return tuple(p.rstrip("?") for p in OPERATIONS[name].inputs)


def one(name: str, arrays: Mapping[str, handle.Array], result: str, out: Any, **attributes: Any) -> Array:
    """One operation with one result."""
    return chain([(name, ports_of(name), attributes)], arrays, {result: out}, (result,))[0]


def chain(
    steps: Sequence[Step],
    arrays: Mapping[str, handle.Array],
    outs: Mapping[str, Any],
    names: Sequence[str] | None = None,
) -> list[Array]:
    """Run operations one after the other; in `ports` "" stands for the result before.

    outs: given arrays by result name. names: results of the last operation that are wanted.
    """
    from vlug.plan import plan

    wanted = tuple(names) if names is not None else ("y",)
    for _, _, attributes in steps:
        for attribute, value in attributes.items():
            if not isinstance(value, (int, float, str, tuple)):
                raise BadInput(f"{attribute}: {value!r} is neither a number nor a name")
    given = {
        n: handle.array(a, "out" if n == wanted[0] else n.removeprefix("next_"), True)
        for n, a in outs.items()
        if a is not None
    }
    key = tuple((n, ports, tuple(sorted(at.items()))) for n, ports, at in steps)
    graph = _graph(
        key,
        tuple((n, _tensor(a, n)) for n, a in arrays.items()),
        tuple((n, _tensor(a, "out")) for n, a in given.items()),
        wanted,
    )
    held: dict[str, Any] = dict(arrays)
    results = []
    for name in wanted:
        t = graph.tensors[name]
        held[name] = given[name] if name in given else handle.empty(t.dim, t.dtype, t.stride)
        results.append(held[name].numpy() if name in given else held[name])
    plan(graph).execute(held)
    return results


def _tensor(a: handle.Array, argument: str) -> Tensor:
    if builtins.any(s < 0 for s in a.strides):
        raise BadInput(f"{argument}: negative strides {a.strides} are not allowed")
    return Tensor(a.shape, a.strides, a.dtype).normalised


@lru_cache(maxsize=1024)
def _graph(
    steps: tuple[tuple[str, tuple[str, ...], tuple[tuple[str, Any], ...]], ...],
    inputs: tuple[tuple[str, Tensor], ...],
    outs: tuple[tuple[str, Tensor], ...],
    wanted: tuple[str, ...],
) -> Graph:
    from vlug.graph import Graph
    from vlug.ops import OPERATIONS

    g = Graph()
    known = {n: g.like(n, t) for n, t in inputs}
    likes = dict(outs)
    last: Tensor | None = None
    for i, (name, ports, attributes) in enumerate(steps):
        ins = [last if p == "" else known.get(p) for p in ports]
        if i == len(steps) - 1:
            labels: Sequence[str] = _labels(name, wanted)
            like = [likes.get(n) for n in labels]
        else:
            labels, like = (g.fresh("t"),), []
        op = OPERATIONS[name](**dict(attributes))
        for t, n in zip(op.infer(*ins), labels):
            _check_out(likes.get(n), t, n, wanted)
        last = g.append(op, ins, labels, like)[0]
    return g


def _check_out(given: Tensor | None, t: Tensor, name: str, wanted: Sequence[str]) -> None:
    argument = "out" if name == wanted[0] else name.removeprefix("next_")
    if given is not None and given.dim != t.dim:
        raise ShapeError(f"{argument}: dims are {given.dim}, the result has {t.dim}")
    if given is not None and given.dtype != t.dtype:
        raise DTypeError(f"{argument}: dtype is {given.dtype}, the result has {t.dtype}")
    if given is not None and given.overlaps:
        raise ShapeError(f"{argument}: strides {given.stride} make elements share memory")


def _labels(name: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """Names for the outputs of an operation: those wanted, "_" for the others; alone, it keeps its name."""
    from vlug.ops import OPERATIONS

    ports = [o.rstrip("?") for o in OPERATIONS[name].outputs]
    if len(ports) == 1:
        return (wanted[0],)
    return tuple(p if p in wanted else "_" for p in ports)
