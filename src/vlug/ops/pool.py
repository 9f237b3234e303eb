"""Max and average pooling and their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from vlug.dtypes import I64
from vlug.ops.axis_map import AxisMap, windows
from vlug.ops.base import Array, Builder, Cost, Operation, layout_of, need, register
from vlug.ops.window import full, out_size, taps
from vlug.tensor import Tensor

__all__ = ["AvgPool", "AvgPoolBackward", "MaxPool", "MaxPoolBackward"]

_SHORT = {"pre_padding": "pad", "post_padding": "post"}


@dataclass(frozen=True)
class _Pool(Operation):
    """Windows over the spatial dimensions of x (N, C, spatial…); stride defaults to the window.

    Padding is at most half a window (with its dilation), so that no window lies in padding alone. ceil: a
    last window that does not fit is kept unless it would start past input + left padding.
    """

    window: tuple[int, ...] = field(kw_only=True)
    pre_padding: tuple[int, ...] = ()
    post_padding: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()

    short: ClassVar[dict[str, str]] = _SHORT

    @property
    def dilations(self) -> tuple[int, ...]:
        return (1,) * len(self.window)

    def bind(self, inputs: Sequence[Tensor | None]) -> Self:
        rank = self.spatial_rank(inputs)
        window = full(self.window, rank, (), f"{self.name}: window", 1)
        pre = full(self.pre_padding, rank, (0,), f"{self.name}: pad", 0)
        op = replace(
            self,
            window=window,
            pre_padding=pre,
            post_padding=full(self.post_padding, rank, pre, f"{self.name}: post", 0),
            stride=full(self.stride, rank, window, f"{self.name}: stride", 1),
        )
        for w, d, a, b in zip(window, op.dilations, op.pre_padding, op.post_padding):
            extent = d * (w - 1) + 1
            for label, pad in (("pad", a), ("post", b)):
                op.expect(
                    2 * pad <= extent, f"{label} {pad} must be at most half the window's extent {extent}"
                )
        return op

    def _check_x(self, t: Tensor, port: str) -> None:
        self.expect(t.rank >= 3, f"{port} {t.dim} must have 3 dimensions or more (N, C, spatial)")

    def _out(self, size: Sequence[int], ceil: bool) -> tuple[int, ...]:
        return tuple(
            out_size(h, w, a, b, s, d, self.name, ceil)
            for h, w, a, b, s, d in zip(
                size, self.window, self.pre_padding, self.post_padding, self.stride, self.dilations
            )
        )

    def _room(self, size: Sequence[int], out: Sequence[int]) -> tuple[int, ...]:
        """Spatial dims of a padded input that holds every window, those of ceil included."""
        return tuple(
            max(a + h, (p - 1) * s + d * (w - 1) + 1 if p else 0)
            for h, p, a, s, w, d in zip(size, out, self.pre_padding, self.stride, self.window, self.dilations)
        )

    def _inner(self, size: Sequence[int]) -> tuple[Any, ...]:
        return (..., *(slice(a, a + h) for a, h in zip(self.pre_padding, size)))

    def cost(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]) -> Cost:
        tensors = [t for t in (*inputs, *outputs) if t is not None]
        windows = need(outputs[:1] if "backward" not in self.name else inputs[:1])[0]
        return Cost(windows.numel * math.prod(self.window), sum(t.nbytes for t in tensors))


@dataclass(frozen=True)
class _MaxPool(_Pool):
    dilation: tuple[int, ...] = ()

    exact: ClassVar[bool] = True

    @property
    def dilations(self) -> tuple[int, ...]:
        return self.dilation or (1,) * len(self.window)

    def bind(self, inputs: Sequence[Tensor | None]) -> Self:
        rank = self.spatial_rank(inputs)
        op = replace(self, dilation=full(self.dilation, rank, (1,), f"{self.name}: dilation", 1))
        return super(_MaxPool, op).bind(inputs)


@register
@dataclass(frozen=True)
class MaxPool(_MaxPool):
    """y = the largest of each window, index = where it is: flat in the plane (spatial dims) of x, int64.

    The first of equal values counts; a NaN counts as larger than any number, the last NaN wins (as PyTorch).
    Padding is -inf. A window that reaches no element (dilated, in padding) gives -inf and index -1.
    """

    ceil: bool = False

    name: ClassVar[str] = "max_pool"
    inputs: ClassVar[tuple[str, ...]] = ("x",)
    outputs: ClassVar[tuple[str, ...]] = ("y", "index?")

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs)
        self.check_dtypes(x)
        self._check_x(x, "x")
        dim = (*x.dim[:2], *self.bind(inputs)._out(x.dim[2:], self.ceil))
        return Tensor.of(dim, x.dtype, layout_of(x)), Tensor.of(dim, I64, layout_of(x))

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs)
        op = self.bind((Tensor.of(x.shape),))
        size = x.shape[2:]
        out = op._out(size, op.ceil)
        room = op._room(size, out)
        values = np.full((*x.shape[:2], *room), -np.inf, x.dtype)
        places = np.full(room, -1, np.int64)
        values[op._inner(size)] = x
        places[op._inner(size)] = np.arange(math.prod(size)).reshape(size)
        y = np.full((*x.shape[:2], *out), -np.inf, x.dtype)
        index = np.full(y.shape, -1, np.int64)
        for _, window in taps(op.window, op.stride, op.dilation, out):
            v, place = values[(..., *window)], np.broadcast_to(places[window], y.shape)
            with np.errstate(invalid="ignore"):
                take = (place >= 0) & ((index < 0) | (v > y) | np.isnan(v))
            y, index = np.where(take, v, y), np.where(take, place, index)
        return y, index

    def maps(self, size: Sequence[int], out: Sequence[int]) -> list[AxisMap]:
        """Which elements each window takes, along each axis."""
        found = []
        for n, m, w, s, d, a in zip(size, out, self.window, self.stride, self.dilations, self.pre_padding):
            at = np.arange(m, dtype=np.int64) * s - a + d * np.arange(w, dtype=np.int64)[:, None]
            found.append(AxisMap(np.where((at >= 0) & (at < n), at, -1)))
        return found

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        (x,) = need(inputs)
        dy, index = grads[0], outputs[1]
        if dy is None:
            return (None,)
        if index is None:
            index = g.append(self, inputs)[1]
        op = MaxPoolBackward(
            self.pre_padding,
            self.post_padding,
            self.stride,
            self.dilation,
            window=self.window,
            size=x.dim[2:],
        )
        return (g.append(op, (dy, index))[0],)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, tail in _MAX_SAMPLES:
            yield f"max_pool x={x} {tail}"
        yield "max_pool x=2x19x9x8 window=3 pad=1 stride=2 -> y"


@register
@dataclass(frozen=True)
class MaxPoolBackward(_MaxPool):
    """dx[n,c,i] = Σ dy over the windows whose index is i (index -1 is skipped); size: spatial dims of dx."""

    size: tuple[int, ...] = field(kw_only=True)

    name: ClassVar[str] = "max_pool_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "index")
    outputs: ClassVar[tuple[str, ...]] = ("dx",)

    def bind(self, inputs: Sequence[Tensor | None]) -> Self:
        rank = self.spatial_rank(inputs)
        return replace(super().bind(inputs), size=full(self.size, rank, (), f"{self.name}: size", 0))

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        dy, index = need(inputs)
        self.check_dtypes(dy)
        self._check_x(dy, "dy")
        self.expect(index.dtype == I64, f"index is {index.dtype}, allowed is i64")
        self.expect(index.dim == dy.dim, f"index {index.dim} and dy {dy.dim} must have the same dims")
        op = self.bind(inputs)
        self._check_windows(op, dy)
        return (Tensor.of((*dy.dim[:2], *op.size), dy.dtype, layout_of(dy)),)

    def _check_windows(self, op: Self, dy: Tensor) -> None:
        fits = [op._out(op.size, ceil) for ceil in (False, True)]
        self.expect(
            dy.dim[2:] in fits,
            f"size {op.size} gives dy spatial dims {fits[0]} (with ceil {fits[1]}), but dy is {dy.dim}",
        )

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dy, index = need(inputs)
        size = self.bind((Tensor.of(dy.shape),)).size
        planes = math.prod(dy.shape[:2])
        dx = np.zeros((planes, math.prod(size)), dy.dtype)
        flat, grad = index.reshape(planes, math.prod(dy.shape[2:])), dy.reshape(planes, -1 if dy.size else 0)
        plane, window = np.nonzero(flat >= 0)
        np.add.at(dx, (plane, flat[plane, window]), grad[plane, window])
        return (dx.reshape(*dy.shape[:2], *size),)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, tail in _MAX_SAMPLES:
            y = Tensor.parse(x)
            words = dict(w.split("=") for w in tail.split())
            out = "x".join(map(str, MaxPool.from_attributes(words, (y,)).infer(y)[0].dim))
            words.pop("ceil", None)
            rest = " ".join(f"{k}={v}" for k, v in words.items())
            size = "x".join(x.split("x")[2:])
            yield f"max_pool_backward dy={out} index={out}:i64 {rest} size={size}"


@dataclass(frozen=True)
class _AvgPool(_Pool):
    ceil: bool = False
    count_include_pad: bool = True
    divisor: int = 0

    def _counts(self, size: Sequence[int], out: Sequence[int]) -> list[Array]:
        """How many elements each window counts along each axis; a given divisor stands on the first axis."""
        found = []
        for axis, (h, p, w, s) in enumerate(zip(size, out, self.window, self.stride)):
            a, b = self.pre_padding[axis], self.post_padding[axis]
            start = np.arange(p) * s - a
            end = np.minimum(start + w, h + b)
            if not self.count_include_pad:
                start, end = np.maximum(start, 0), np.minimum(end, h)
            given = float(self.divisor if axis == 0 else 1)
            found.append(np.full(p, given) if self.divisor else (end - start).astype(np.float64))
        return found

    def _divisors(self, size: Sequence[int], out: Sequence[int]) -> Array:
        """What the sum of each window is divided by, of shape `out`."""
        result = np.ones(out)
        for axis, count in enumerate(self._counts(size, out)):
            shape = [1] * len(out)
            shape[axis] = len(count)
            result = result * count.reshape(shape)
        return result

    def maps(self, size: Sequence[int], out: Sequence[int]) -> list[AxisMap]:
        """avg_pool from spatial dims `size` to `out`, along each axis."""
        found = []
        for n, m, w, s, a, count in zip(
            size, out, self.window, self.stride, self.pre_padding, self._counts(size, out)
        ):
            start = np.arange(m, dtype=np.int64) * s - a
            found.append(AxisMap(windows(np.maximum(start, 0), np.minimum(start + w, n)), None, count))
        return found

    def transposed(self, out: Sequence[int], size: Sequence[int]) -> list[AxisMap]:
        """avg_pool_backward from dy's spatial dims to dx's."""
        return [m.transposed(n) for m, n in zip(self.maps(size, out), size)]

    def _check(self) -> None:
        self.expect(self.divisor >= 0, f"divisor {self.divisor} must be 0 (none) or more")


@register
@dataclass(frozen=True)
class AvgPool(_AvgPool):
    """y = mean of each window: the sum over `divisor` if given, else over the window's elements.

    count_include_pad counts padding too (but never what ceil reaches past input + right padding).
    """

    name: ClassVar[str] = "avg_pool"
    inputs: ClassVar[tuple[str, ...]] = ("x",)
    outputs: ClassVar[tuple[str, ...]] = ("y",)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs)
        self.check_dtypes(x)
        self._check_x(x, "x")
        self._check()
        dim = (*x.dim[:2], *self.bind(inputs)._out(x.dim[2:], self.ceil))
        return (Tensor.of(dim, x.dtype, layout_of(x)),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs)
        op = self.bind((Tensor.of(x.shape),))
        size = x.shape[2:]
        out = op._out(size, op.ceil)
        values = np.zeros((*x.shape[:2], *op._room(size, out)), x.dtype)
        values[op._inner(size)] = x
        y = np.zeros((*x.shape[:2], *out), x.dtype)
        for _, window in taps(op.window, op.stride, op.dilations, out):
            y += values[(..., *window)]
        return (y / op._divisors(size, out).astype(x.dtype),)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        (x,) = need(inputs)
        if grads[0] is None:
            return (None,)
        op = AvgPoolBackward(*_avg_attributes(self), window=self.window, size=x.dim[2:])
        return (g.append(op, (grads[0],))[0],)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, tail in _AVG_SAMPLES:
            yield f"avg_pool x={x} {tail}"


@register
@dataclass(frozen=True)
class AvgPoolBackward(_AvgPool):
    """dx = each dy over its divisor, added to all elements of its window; size: spatial dims of dx."""

    size: tuple[int, ...] = field(kw_only=True)

    name: ClassVar[str] = "avg_pool_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy",)
    outputs: ClassVar[tuple[str, ...]] = ("dx",)

    def bind(self, inputs: Sequence[Tensor | None]) -> Self:
        rank = self.spatial_rank(inputs)
        return replace(super().bind(inputs), size=full(self.size, rank, (), f"{self.name}: size", 0))

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (dy,) = need(inputs)
        self.check_dtypes(dy)
        self._check_x(dy, "dy")
        self._check()
        op = self.bind(inputs)
        want = op._out(op.size, op.ceil)
        self.expect(dy.dim[2:] == want, f"size {op.size} gives dy spatial dims {want}, but dy is {dy.dim}")
        return (Tensor.of((*dy.dim[:2], *op.size), dy.dtype, layout_of(dy)),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (dy,) = need(inputs)
        op = self.bind((Tensor.of(dy.shape),))
        out = dy.shape[2:]
        room = np.zeros((*dy.shape[:2], *op._room(op.size, out)), dy.dtype)
        share = dy / op._divisors(op.size, out).astype(dy.dtype)
        for _, window in taps(op.window, op.stride, op.dilations, out):
            room[(..., *window)] += share
        return (np.ascontiguousarray(room[op._inner(op.size)]),)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return (None,)
        return (g.append(AvgPool(*_avg_attributes(self), window=self.window), (grads[0],))[0],)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, tail in _AVG_SAMPLES:
            y = Tensor.parse(x)
            op = AvgPool.from_attributes(dict(w.split("=") for w in tail.split()), (y,))
            out, size = "x".join(map(str, op.infer(y)[0].dim)), "x".join(x.split("x")[2:])
            yield f"avg_pool_backward dy={out} {tail} size={size}"


def _avg_attributes(op: _AvgPool) -> tuple[Any, ...]:
    return op.pre_padding, op.post_padding, op.stride, op.ceil, op.count_include_pad, op.divisor


_BOTH = (
    ("2x16x8x8", "window=2"),
    ("2x19x9x11", "window=3 pad=1 stride=2"),
    ("1x5x7x9", "window=3x2 stride=1x2 pad=1x0"),
    ("3x35x6x7", "window=3 stride=1 pad=1"),
    ("1x1x6x7", "window=1 stride=2 ceil=1"),  # F1
    ("1x2x8x10", "window=3 stride=4 ceil=1"),  # F1
    ("2x3x7x7", "window=3 stride=2 pad=1 ceil=1"),
    ("2x3x8x8", "window=2 stride=2 pad=0 post=1"),
    ("2x33x7x7", "window=7"),  # global
    ("4x64x1x1", "window=1"),
    ("2x4x5x40", "window=1x13 pad=0x6 stride=1"),
    ("0x3x4x4", "window=2"),
    ("2x0x4x4", "window=2"),
    ("2x3x0x4", "window=1"),
    ("2x3x10", "window=3 stride=2 pad=1"),
    ("1x2x4x5x6", "window=2 stride=2x1x2"),
)
_MAX_SAMPLES = (
    *_BOTH,
    ("2x5x9x9", "window=3 dilation=2 stride=1 pad=1"),
    ("1x2x1x6", "window=2 dilation=2 pad=1 stride=1"),  # windows that reach nothing
)
_AVG_SAMPLES = (
    *_BOTH,
    ("2x19x9x11", "window=3 pad=1 stride=2 count_include_pad=0"),
    ("2x3x7x7", "window=3 stride=2 pad=1 ceil=1 count_include_pad=0"),
    ("2x3x7x8", "window=3 stride=2 pad=1x0 post=0x1 ceil=1"),
    ("2x3x8x8", "window=3 stride=2 divisor=5"),
)
