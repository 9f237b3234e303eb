"""Operations that move elements and compute nothing: reshape, transpose, slice, concatenate, pad, broadcast.

They take every dtype. Results are row-major (reshape, transpose) or in the memory order of the first input;
another layout of the result is a layout copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from vlug.dtypes import BF16, BOOL, F16, F32, F64, I32, I64, U8, DType
from vlug.errors import DTypeError
from vlug.ops.axis_map import AxisMap
from vlug.ops.base import Array, Builder, Cost, Operation, axis_of, dense_like, need, register
from vlug.ops.reduction import unbroadcast
from vlug.tensor import Tensor

__all__ = [
    "Broadcast",
    "Concatenate",
    "Pad",
    "PadBackward",
    "Reshape",
    "Slice",
    "SliceBackward",
    "Transpose",
]

#: Most inputs of one concatenate.
MOST = 16
PAD_MODES = ("constant", "reflect", "replicate", "circular")
Tensors = Sequence[Tensor | None]


@dataclass(frozen=True)
class _Layout(Operation):
    inputs: ClassVar[tuple[str, ...]] = ("x",)
    dtypes: ClassVar[tuple[DType, ...]] = (F32, BF16, F16, F64, I64, I32, U8, BOOL)
    exact: ClassVar[bool] = True

    @classmethod
    def spatial_rank(cls, inputs: Tensors) -> int:
        """Attributes have a number for every dimension."""
        first = next((t for t in inputs if t is not None), None)
        return first.rank if first is not None else 1

    def cost(self, inputs: Tensors, outputs: Tensors) -> Cost:
        return Cost(0, sum(t.nbytes for t in (*inputs, *outputs) if t is not None))

    def every(self, value: Sequence[int], rank: int, default: Sequence[int], what: str) -> tuple[int, ...]:
        """An attribute spelled out: one number for each dimension."""
        value = tuple(int(v) for v in (value or default))
        self.expect(len(value) == rank, f"{what} {value} has {len(value)} numbers for {rank} dimensions")
        return value


@dataclass(frozen=True)
class _OfSize(_Layout):
    size: tuple[int, ...] = ()

    @classmethod
    def spatial_rank(cls, inputs: Tensors) -> int:
        return 1

    def attributes(self, inputs: Tensors = ()) -> dict[str, str]:
        # its rank is known from nothing else: equal sizes are not written as one
        size = self.bind(inputs).size
        found = super().attributes(inputs)
        return found | {"size": "x".join(map(str, size))} if size else found


@register
@dataclass(frozen=True)
class Reshape(_OfSize):
    """The elements of x in row-major order of its dims, as a tensor of dims `size`: a copy, row-major."""

    name: ClassVar[str] = "reshape"

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs)
        self.check_dtypes(x)
        self.expect(all(n >= 0 for n in self.size), f"size {self.size} must be 0 or more")
        same = math.prod(self.size) == x.numel
        self.expect(same, f"x {x.dim} has {x.numel} elements, size {self.size} has {math.prod(self.size)}")
        return (Tensor.of(self.size, x.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return (need(inputs)[0].reshape(self.size),)

    def vjp(self, g: Builder, inputs: Tensors, outputs: Tensors, grads: Tensors) -> tuple[Tensor | None, ...]:
        (x,) = need(inputs)
        return (None if grads[0] is None else g.append(Reshape(x.dim), (grads[0],))[0],)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, size in (("2x3x20", "6x20"), ("4x6", "3x8"), ("2x3x4x5:f32:nhwc", "6x20"), ("7", "7x1x1")):
            yield f"reshape x={x} size={size}"
        yield "reshape x=6x4:f32:s1x6 size=2x12"
        yield "reshape x=1x1"
        yield "reshape x=0x3 size=5x0"


@register
@dataclass(frozen=True)
class Transpose(_Layout):
    """y, a row-major copy: dimension i of y is dimension permutation[i] of x."""

    permutation: tuple[int, ...] = ()

    name: ClassVar[str] = "transpose"

    def bind(self, inputs: Tensors) -> Self:
        rank = self.spatial_rank(inputs)
        full = self.every(self.permutation, rank, range(rank)[::-1], "permutation")
        full = tuple(axis_of(a, rank, f"{self.name}: permutation: dimension") for a in full)
        self.expect(len(set(full)) == rank, f"permutation {full} names a dimension twice")
        return replace(self, permutation=full)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs)
        self.check_dtypes(x)
        return (Tensor.of([x.dim[a] for a in self.bind(inputs).permutation], x.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs)
        op = self.bind((Tensor.of(x.shape),))
        return (np.transpose(x, op.permutation).copy(),)

    def vjp(self, g: Builder, inputs: Tensors, outputs: Tensors, grads: Tensors) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return (None,)
        back = tuple(int(a) for a in np.argsort(self.bind(inputs).permutation))
        return (g.append(Transpose(back), (grads[0],))[0],)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield "transpose x=33x47"
        yield "transpose x=2x3x20x17 permutation=0x2x3x1"
        yield "transpose x=2x20x17x3 permutation=0x3x1x2"
        yield "transpose x=2x3x4x5x6 permutation=4x2x0x3x1"
        yield "transpose x=5 permutation=0"
        yield "transpose x=0x3"
        yield "transpose x=scalar"


@dataclass(frozen=True)
class _Slice(_Layout):
    start: tuple[int, ...] = ()
    stop: tuple[int, ...] = ()
    step: tuple[int, ...] = ()

    def _bound(self, dim: Sequence[int]) -> dict[str, tuple[int, ...]]:
        rank = len(dim)
        start = self.every(self.start, rank, (0,) * rank, "start")
        stop = self.every(self.stop, rank, dim, "stop")
        step = self.every(self.step, rank, (1,) * rank, "step")
        for axis, (a, b, s, n) in enumerate(zip(start, stop, step, dim)):
            self.expect(s >= 1, f"step {s} of dimension {axis} must be 1 or more")
            self.expect(0 <= a <= b <= n, f"start {a}, stop {b} of dimension {axis} must lie in 0 ≤ … ≤ {n}")
        return {"start": start, "stop": stop, "step": step}

    def _sizes(self) -> tuple[int, ...]:
        return tuple(-(-(b - a) // s) for a, b, s in zip(self.start, self.stop, self.step))

    def _slices(self) -> tuple[slice, ...]:
        return tuple(slice(a, b, s) for a, b, s in zip(self.start, self.stop, self.step))


@register
@dataclass(frozen=True)
class Slice(_Slice):
    """y = x[start:stop:step] along every dimension, a copy; 0 ≤ start ≤ stop ≤ size, step ≥ 1."""

    name: ClassVar[str] = "slice"

    def bind(self, inputs: Tensors) -> Self:
        (x,) = need(inputs)
        return replace(self, **self._bound(x.dim))

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs)
        self.check_dtypes(x)
        dim = self.bind(inputs)._sizes()
        return (Tensor(dim, dense_like(x, dim), x.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs)
        return (x[self.bind((Tensor.of(x.shape),))._slices()].copy(),)

    def vjp(self, g: Builder, inputs: Tensors, outputs: Tensors, grads: Tensors) -> tuple[Tensor | None, ...]:
        (x,) = need(inputs)
        if grads[0] is None:
            return (None,)
        op = self.bind(inputs)
        return (g.append(SliceBackward(op.start, op.stop, op.step, x.dim), (grads[0],))[0],)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, tail in _SLICES:
            yield f"slice x={x} {tail}"


@register
@dataclass(frozen=True)
class SliceBackward(_Slice):
    """dx of dims `size`: dy at [start:stop:step], zeros elsewhere."""

    size: tuple[int, ...] = ()

    name: ClassVar[str] = "slice_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy",)
    outputs: ClassVar[tuple[str, ...]] = ("dx",)

    def bind(self, inputs: Tensors) -> Self:
        (dy,) = need(inputs)
        size = self.every(self.size, dy.rank, dy.dim, "size")
        self.expect(all(n >= 0 for n in size), f"size {size} must be 0 or more")
        return replace(self, size=size, **self._bound(size))

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (dy,) = need(inputs)
        self.check_dtypes(dy)
        op = self.bind(inputs)
        self.expect(dy.dim == op._sizes(), f"dy {dy.dim} must have the dims of the slice {op._sizes()}")
        return (Tensor(op.size, dense_like(dy, op.size), dy.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (dy,) = need(inputs)
        op = self.bind((Tensor.of(dy.shape),))
        dx = np.zeros(op.size, dy.dtype)
        dx[op._slices()] = dy
        return (dx,)

    def indices(self, dim: Sequence[int]) -> list[Array]:
        """For each dimension, the element of dy that an element of dx takes, -1: zero."""
        found = []
        for n, a, b, s in zip(self.size, self.start, self.stop, self.step):
            index = np.full(n, -1, np.int64)
            index[a:b:s] = np.arange(-(-(b - a) // s))
            found.append(index)
        return found

    def vjp(self, g: Builder, inputs: Tensors, outputs: Tensors, grads: Tensors) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return (None,)
        return (g.append(Slice(self.start, self.stop, self.step), (grads[0],))[0],)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, tail in _SLICES:
            t = Tensor.parse(x)
            full: Any = Slice.from_attributes(dict(w.split("=") for w in tail.split()), (t,)).bind((t,))
            size = "x".join(map(str, t.dim))
            stop = "x".join(map(str, full.stop))
            words = " ".join(w for w in tail.split() if not w.startswith("stop"))
            yield f"slice_backward dy={'x'.join(map(str, full._sizes()))} {words} stop={stop} size={size}"


@register
@dataclass(frozen=True)
class Concatenate(_Layout):
    """y: the inputs (up to 16) one after the other along `axis`; their other dims are equal."""

    axis: int = 0

    name: ClassVar[str] = "concatenate"
    inputs: ClassVar[tuple[str, ...]] = ("x0", *(f"x{i}?" for i in range(1, MOST)))

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        given = [t for t in inputs if t is not None]
        self.check_dtypes(*inputs)
        first = given[0]
        axis = axis_of(self.axis, first.rank, f"{self.name}: axis")
        for i, t in enumerate(inputs):
            if t is None:
                continue
            if t.dtype != first.dtype:
                raise DTypeError(f"{self.name}: {self.port(i)} is {t.dtype} but x0 is {first.dtype}")
            same = t.rank == first.rank and all(
                a == b for d, (a, b) in enumerate(zip(t.dim, first.dim)) if d != axis
            )
            self.expect(same, f"{self.port(i)} {t.dim} must have x0's dims {first.dim} but for axis {axis}")
        dim = list(first.dim)
        dim[axis] = sum(t.dim[axis] for t in given)
        return (Tensor(tuple(dim), dense_like(first, dim), first.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return (np.concatenate([a for a in inputs if a is not None], self.axis),)

    def vjp(self, g: Builder, inputs: Tensors, outputs: Tensors, grads: Tensors) -> tuple[Tensor | None, ...]:
        found: list[Tensor | None] = []
        at = 0
        for t in inputs:
            if t is None or grads[0] is None:
                found.append(None)
                continue
            axis = self.axis % t.rank
            start = tuple(at if d == axis else 0 for d in range(t.rank))
            at += t.dim[axis]
            stop = tuple(at if d == axis else n for d, n in enumerate(t.dim))
            found.append(g.append(Slice(start, stop), (grads[0],))[0])
        return tuple(found)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield "concatenate x0=2x3x5x7 x1=2x4x5x7 axis=1"
        yield "concatenate x0=2x3x5x7 x1=2x3x5x40 x2=2x3x5x1 axis=-1"
        yield "concatenate x0=3x5 x1=4x5 x2=1x5 x3=0x5"
        yield "concatenate x0=2x3x5x7:f32:nhwc x1=2x33x5x7:f32:nhwc axis=1"
        yield "concatenate x0=7"


@register
@dataclass(frozen=True)
class Broadcast(_OfSize):
    """y = x broadcast to dims `size` by NumPy's rule, a copy; without a size a copy of x as it is."""

    name: ClassVar[str] = "broadcast"

    def bind(self, inputs: Tensors) -> Self:
        x = next((t for t in inputs if t is not None), None)
        return self if self.size or x is None else replace(self, size=x.dim)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs)
        self.check_dtypes(x)
        size = self.bind(inputs).size
        if size == x.dim:
            return (Tensor(size, dense_like(x, size), x.dtype),)
        fits = len(size) >= x.rank and all(a in (1, b) for a, b in zip(x.dim[::-1], size[::-1]))
        self.expect(fits and all(n >= 0 for n in size), f"x {x.dim} does not broadcast to size {size}")
        return (Tensor.of(size, x.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs)
        return (np.broadcast_to(x, self.size or x.shape).copy(),)

    def vjp(self, g: Builder, inputs: Tensors, outputs: Tensors, grads: Tensors) -> tuple[Tensor | None, ...]:
        (x,) = need(inputs)
        return (None if grads[0] is None else unbroadcast(g, grads[0], x.dim),)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield "broadcast x=3x1x5 size=2x3x4x5"
        yield "broadcast x=scalar size=3x5"
        yield "broadcast x=1 size=77"
        yield "broadcast x=2x3x17x20:f32:nhwc -> y=2x3x17x20"
        yield "broadcast x=2x35x6x7 -> y=2x35x6x7:f32:nhwc"
        yield "broadcast x=4x5:f32:s20x2"
        yield "broadcast x=0x5"


# --- pad -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Pad(_Layout):
    pre: tuple[int, ...] = ()
    post: tuple[int, ...] = ()
    mode: str = "constant"

    def bind(self, inputs: Tensors) -> Self:
        rank = self.spatial_rank(inputs)
        pre = self.every(self.pre, rank, (0,) * rank, "pre")
        return replace(self, pre=pre, post=self.every(self.post, rank, pre, "post"))

    def padded(self, dim: Sequence[int], port: str) -> tuple[int, ...]:
        """Dims around x's; raises ShapeError."""
        self.expect(self.mode in PAD_MODES, f"mode {self.mode!r} must be one of {', '.join(PAD_MODES)}")
        most = {"reflect": -1, "circular": 0}.get(self.mode)
        for axis, (n, a, b) in enumerate(zip(dim, self.pre, self.post)):
            self.expect(
                n + a + b >= 0 and (n + min(a, 0) + min(b, 0) >= 0),
                f"pre {a} and post {b} leave nothing of dimension {axis} of {port} {tuple(dim)}",
            )
            if most is not None and max(a, b) > 0:
                least = n + most
                self.expect(
                    max(a, b) <= least,
                    f"pre {a} and post {b} of dimension {axis} must be at most {least} with mode {self.mode}",
                )
            if self.mode == "replicate":
                self.expect(n > 0 or max(a, b) <= 0, f"{port} {tuple(dim)} has no element to replicate")
        return tuple(n + a + b for n, a, b in zip(dim, self.pre, self.post))

    def indices(self, dim: Sequence[int]) -> list[Array]:
        """For each dimension, the element of x that an element of y takes, -1: the constant."""
        found = []
        for n, a, b in zip(dim, self.pre, self.post):
            at = np.arange(-a, n + b, dtype=np.int64)
            if self.mode == "constant":
                at = np.where((at >= 0) & (at < n), at, -1)
            elif self.mode == "replicate":
                at = np.clip(at, 0, max(n - 1, 0))
            elif self.mode == "circular":
                at = at % max(n, 1)
            else:
                turn = max(2 * (n - 1), 1)
                at = np.abs(at) % turn
                at = np.minimum(at, turn - at) if n > 1 else at * 0
            found.append(at)
        return found


@register
@dataclass(frozen=True)
class Pad(_Pad):
    """y: x with `pre` elements before and `post` behind each dimension; negative ones crop.

    mode constant: of `value`; reflect: mirrored at the edge elements, which are not repeated (at most size -
    1); replicate: the edge elements; circular: from the other side (at most size).
    """

    value: float = 0.0

    name: ClassVar[str] = "pad"

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs)
        self.check_dtypes(x)
        dim = self.bind(inputs).padded(x.dim, "x")
        return (Tensor(dim, dense_like(x, dim), x.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs)
        y = x
        for axis, index in enumerate(self.bind((Tensor.of(x.shape),)).indices(x.shape)):
            shape = [1] * x.ndim
            shape[axis] = len(index)
            if not y.shape[axis]:
                y = np.zeros((*y.shape[:axis], 1, *y.shape[axis + 1 :]), x.dtype)
            taken = np.take(y, np.maximum(index, 0), axis=axis)
            y = np.where((index >= 0).reshape(shape), taken, np.asarray(self.value).astype(x.dtype))
        return (y,)

    def vjp(self, g: Builder, inputs: Tensors, outputs: Tensors, grads: Tensors) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return (None,)
        op = self.bind(inputs)
        return (g.append(PadBackward(op.pre, op.post, op.mode), (grads[0],))[0],)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, tail in _PADS:
            yield f"pad x={x} {tail}"
        yield "pad x=3x5 pre=1x2 value=1.5"


@register
@dataclass(frozen=True)
class PadBackward(_Pad):
    """dx of pad's dy: each element takes the dy that it was copied to."""

    name: ClassVar[str] = "pad_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy",)
    outputs: ClassVar[tuple[str, ...]] = ("dx",)
    dtypes: ClassVar[tuple[DType, ...]] = (F32, BF16, F16, F64)

    def size(self, dim: Sequence[int]) -> tuple[int, ...]:
        """Dims of dx from those of dy."""
        size = tuple(n - a - b for n, a, b in zip(dim, self.pre, self.post))
        allowed = all(n >= 0 for n in size)
        self.expect(allowed, f"dy {tuple(dim)} is smaller than pre {self.pre} and post {self.post} together")
        self.padded(size, "dx")
        return size

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (dy,) = need(inputs)
        self.check_dtypes(dy)
        dim = self.bind(inputs).size(dy.dim)
        return (Tensor(dim, dense_like(dy, dim), dy.dtype),)

    def maps(self, dim: Sequence[int]) -> list[AxisMap]:
        """For each dimension, the elements of dy that an element of dx takes."""
        size = self.size(dim)
        return [AxisMap(index[None]).transposed(n) for index, n in zip(self.indices(size), size)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs)
        for axis, m in enumerate(self.bind((Tensor.of(x.shape),)).maps(x.shape)):
            x = m.apply(x, axis)
        return (x,)

    def vjp(self, g: Builder, inputs: Tensors, outputs: Tensors, grads: Tensors) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return (None,)
        return (g.append(Pad(self.pre, self.post, self.mode), (grads[0],))[0],)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, tail in _PADS:
            t = Tensor.parse(x)
            op: Any = Pad.from_attributes(dict(w.split("=") for w in tail.split()), (t,))
            (y,) = op.infer(t)
            yield f"pad_backward dy={'x'.join(map(str, y.dim))}:f32{':nhwc' if 'nhwc' in x else ''} {tail}"


_SLICES = (
    ("2x3x5x7", "start=0x1x0x2 stop=2x3x4x7"),
    ("2x3x5x40", "step=1x2x2x3"),
    ("9x20", "start=1x3 stop=9x20 step=3x2"),
    ("40", "start=3 stop=39"),
    ("2x3x5x7:f32:nhwc", "start=0x0x1x1 stop=2x3x5x6"),
    ("4x5", "start=2x0 stop=2x5"),
)
_PADS = (
    ("2x3x5x7", "pre=0x0x1x2 post=0x0x3x0"),
    ("2x3x5x40", "pre=0x0x2x3 mode=reflect"),
    ("2x3x5x7", "pre=0x0x2x3 post=0x0x1x0 mode=replicate"),
    ("2x3x5x7", "pre=0x0x5x3 post=0x0x0x7 mode=circular"),
    ("2x35x5x7:f32:nhwc", "pre=0x0x1x1 mode=reflect"),
    ("2x3x4x5x6", "pre=0x0x1x2x3 mode=replicate"),
    ("3x5x7", "pre=1x-1x2 post=0x-2x-3"),
    ("2x3x9", "pre=0x0x-1 post=0x0x2 mode=reflect"),
    ("9", "pre=2 post=3"),
    ("0x3", "pre=1x0 post=2x1"),
)
