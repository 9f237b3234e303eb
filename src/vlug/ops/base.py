"""Operation: what a primitive means. From it come the tests of every engine, the fuzzing and the docs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Protocol, Self, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from vlug.dtypes import BF16, F16, F32, F64, DType
from vlug.errors import DTypeError, ParseError, ShapeError
from vlug.tensor import Tensor, parse_dims

__all__ = ["OPERATIONS", "Builder", "Cost", "Operation", "register"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Cost:
    """What the arithmetic and the memory traffic of an operation come to, at the least."""

    flops: int
    bytes: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)


class Builder(Protocol):
    """What `Operation.vjp` may use to say a gradient in terms of other operations."""

    def append(
        self, op: Operation, inputs: Sequence[Tensor | None], names: Sequence[str | None] | None = None
    ) -> tuple[Tensor, ...]: ...

    def fresh(self, stem: str) -> str: ...


@dataclass(frozen=True)
class Operation:
    """A primitive and its attributes: a frozen dataclass of ints, floats, bools, strs and int tuples.

    name:     what stands in problem lines and is the Graph's builder method.
    inputs:   port names in order; a trailing "?" marks one that may be left out.
    outputs:  names of the results in order; a trailing "?" marks one that need not be asked for.
    short:    field name → name in problem lines, where they differ.
    dtypes:   what the main input may be.
    exact:    whether small integers give an exactly representable result (products and sums do).
    """

    name: ClassVar[str] = ""
    inputs: ClassVar[tuple[str, ...]] = ()
    outputs: ClassVar[tuple[str, ...]] = ("y",)
    short: ClassVar[dict[str, str]] = {}
    dtypes: ClassVar[tuple[DType, ...]] = (F32, BF16, F16, F64)
    exact: ClassVar[bool] = False

    # --- what an operation says of itself ---
    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        """The outputs' dims, default strides and dtypes; raises ShapeError or DTypeError naming the input.

        Trailing outputs that these inputs do not give (running statistics) are left off.
        """
        raise NotImplementedError

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """The definition, in NumPy: float64 in (whatever the tensors' dtypes), float64 out.

        Given float32 arrays it computes in float32, sums term by term: the plain run of the tolerances.
        """
        raise NotImplementedError

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs given those of the outputs, as further operations added to `g`."""
        raise NotImplementedError

    def bind(self, inputs: Sequence[Tensor | None]) -> Self:
        """The operation with every attribute spelled out for these inputs (Graph.append calls it).

        Tuples left out take their default and one number serves for every spatial dimension, so that engines
        see full tuples. Override where an attribute's default depends on another; raises as infer does.
        """
        return self

    @property
    def is_exact(self) -> bool:
        """As `exact`, for these attributes."""
        return self.exact

    def cost(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]) -> Cost:
        """At the least: every tensor once through memory, one flop per output element. Override for more."""
        tensors = [t for t in (*inputs, *outputs) if t is not None]
        return Cost(sum(t.numel for t in outputs if t is not None), sum(t.nbytes for t in tensors))

    @classmethod
    def samples(cls) -> Iterator[str]:
        """Problem lines that between them reach every case of the operation, f32; tests derive the rest."""
        return iter(())

    # --- text ---
    @classmethod
    def fields(cls) -> dict[str, Any]:
        """Attribute name → type, in order."""
        return dict(_fields(cls))  # type: ignore[arg-type]  # mypy takes the instances' __hash__

    @classmethod
    def required(cls) -> list[str]:
        """Attributes without a default."""
        return [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]

    def attributes(self, inputs: Sequence[Tensor | None] = ()) -> dict[str, str]:
        """Attributes as text, by their names in problem lines; those at their default are left out."""
        out = {}
        full = self.bind(inputs)
        for f in dataclasses.fields(self):
            value = getattr(full, f.name)
            if f.default is not dataclasses.MISSING:
                if value == f.default:
                    continue
                if isinstance(value, tuple) and full._same_without(f.name, f.default, inputs):
                    continue
            out[self.short.get(f.name, f.name)] = _text(value)
        return out

    def _same_without(self, name: str, default: Any, inputs: Sequence[Tensor | None]) -> bool:
        """Whether the default of an attribute comes to the value it has."""
        try:
            return replace(self, **{name: default}).bind(inputs) == self
        except ShapeError:  # together with the other attributes, the default is not even allowed
            return False

    @classmethod
    def from_attributes(cls, given: dict[str, str], inputs: Sequence[Tensor | None]) -> Operation:
        """The operation of textual attributes; a single number serves for every spatial dimension."""
        long = {short: name for name, short in cls.short.items()}
        kinds, values = cls.fields(), {}
        rank = cls.spatial_rank(inputs)
        for key, text in given.items():
            name = long.get(key, key)
            if name not in kinds:
                allowed = ", ".join(cls.short.get(n, n) for n in kinds) or "no attributes"
                raise ParseError(f"{cls.name}: attribute {key!r} is unknown; it has {allowed}")
            values[name] = _value(kinds[name], text, f"{cls.name} {key}", rank)
        missing = [k for k in cls.required() if k not in values]
        if missing:
            raise ParseError(f"{cls.name}: attribute {cls.short.get(missing[0], missing[0])} is required")
        return cls(**values)

    @classmethod
    def spatial_rank(cls, inputs: Sequence[Tensor | None]) -> int:
        """How many spatial dimensions tuple attributes have: the main input's rank less N and C."""
        first = next((t for t in inputs if t is not None), None)
        return max(first.rank - 2, 1) if first is not None else 2

    # --- checks that many operations share ---
    def check_dtypes(self, *inputs: Tensor | None, same: Sequence[int] = ()) -> None:
        """The first input has an allowed dtype and the inputs numbered `same` have it too."""
        first = inputs[0]
        if first is None:
            raise ShapeError(f"{self.name}: {self.port(0)} is missing")
        if first.dtype not in self.dtypes:
            allowed = ", ".join(d.name for d in self.dtypes)
            raise DTypeError(f"{self.name}: {self.port(0)} is {first.dtype}, allowed are {allowed}")
        for i in same:
            t = inputs[i]
            if t is not None and t.dtype != first.dtype:
                raise DTypeError(
                    f"{self.name}: {self.port(i)} is {t.dtype} but {self.port(0)} is {first.dtype}"
                )

    def expect(self, ok: bool, message: str) -> None:
        """Raise ShapeError with the operation's name in front unless `ok`."""
        if not ok:
            raise ShapeError(f"{self.name}: {message}")

    @classmethod
    def port(cls, i: int) -> str:
        return cls.inputs[i].rstrip("?")


@cache
def _fields(cls: type[Operation]) -> dict[str, Any]:
    hints = get_type_hints(cls)  # half a millisecond each time
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, tuple):
        return str(value[0]) if value and len(set(value)) == 1 else "x".join(map(str, value))
    return repr(value) if isinstance(value, float) else str(value)


def _value(kind: Any, text: str, argument: str, rank: int) -> Any:
    try:
        if kind is bool:
            if text not in ("0", "1"):
                raise ValueError
            return text == "1"
        if kind is int:
            return int(text)
        if kind is float:
            return float(text)
        if kind is str:
            return text
    except ValueError:
        raise ParseError(f"{argument}: {text!r} is not {kind.__name__}") from None
    dims = parse_dims(text, argument)
    return dims * rank if len(dims) == 1 else dims


OPERATIONS: dict[str, type[Operation]] = {}


def register(cls: type[Operation]) -> type[Operation]:
    """Class decorator: put the operation where graphs, tests, docs and the command line find it."""
    if not cls.name or cls.name in OPERATIONS:
        raise ValueError(f"operation name {cls.name!r} is empty or taken")
    OPERATIONS[cls.name] = cls
    return cls


T = TypeVar("T")


def need(items: Sequence[T | None]) -> tuple[T, ...]:
    """The items, none of which is None (Graph.append has seen to it)."""
    found = tuple(i for i in items if i is not None)
    if len(found) != len(items):
        raise ShapeError("an input or output that cannot be left out is missing")
    return found


def total(a: Array, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """Sum over axes (None: all); of float32 strictly in order, so that its error is that of a plain loop."""
    every = tuple(range(a.ndim)) if axes is None else (axes,) if isinstance(axes, int) else tuple(axes)
    every = tuple(x % a.ndim for x in every)
    if a.dtype != np.float32 or a.size == 0 or not every:
        return np.asarray(a.sum(axis=every, keepdims=keepdims))
    rest = [i for i in range(a.ndim) if i not in every]
    rows = np.transpose(a, (*rest, *every)).reshape(*(a.shape[i] for i in rest), -1)
    y = np.add.accumulate(rows, axis=-1)[..., -1]
    return np.asarray(np.expand_dims(y, every) if keepdims else y)


def wide(d: DType) -> DType:
    """The type in which sums over `d` are kept: f64 for f64, else f32."""
    return F64 if d == F64 else F32


def layout_of(*tensors: Tensor | None) -> str:
    """Layout of a result: "nhwc" if one of the tensors is channels last and not also row-major."""
    return "nhwc" if any(t is not None and t.layout == "nhwc" for t in tensors) else "nchw"


def dense_like(t: Tensor, dim: Sequence[int]) -> tuple[int, ...]:
    """Gap-free strides for `dim` with the dimensions ordered in memory as those of `t`.

    Row-major wherever the strides of `t` do not say otherwise (size 1, stride 0 or equal strides).
    """
    if t.dim == tuple(dim) and t.layout:
        return Tensor.of(dim, t.dtype, t.layout).stride
    steps = [s if d > 1 and s else _inner(t, i) for i, (d, s) in enumerate(zip(t.dim, t.stride))]
    order = sorted(range(len(dim)), key=lambda i: (-steps[i], i))
    stride, n = [0] * len(dim), 1
    for i in reversed(order):
        stride[i] = n
        n *= max(dim[i], 1)
    return tuple(stride)


def _inner(t: Tensor, i: int) -> int:
    """The stride that a size-1 or stride-0 dimension would have in row-major order among the others."""
    return max((s for d, s in zip(t.dim[i + 1 :], t.stride[i + 1 :]) if d > 1), default=1)


def axis_of(axis: int, rank: int, what: str) -> int:
    """`axis` counted from the front; raises ShapeError naming `what` unless -rank ≤ axis < rank."""
    if not -rank <= axis < rank:
        raise ShapeError(f"{what} {axis} is out of range for {rank} dimensions")
    return axis % rank


def broadcast_dims(a: Tensor, b: Tensor, what: str) -> tuple[int, ...]:
    """The common shape of two tensors by NumPy's rule; raises ShapeError."""
    try:
        return tuple(np.broadcast_shapes(a.dim, b.dim))
    except ValueError:
        raise ShapeError(f"{what}: {a.dim} and {b.dim} do not broadcast") from None
