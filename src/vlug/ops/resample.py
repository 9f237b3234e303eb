"""Resampling (nearest, linear, cubic) and adaptive pooling, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from vlug.dtypes import I64
from vlug.ops.axis_map import AxisMap, adaptive_windows, resampling, windows
from vlug.ops.base import Array, Builder, Cost, Operation, layout_of, need, register
from vlug.ops.window import full
from vlug.tensor import Tensor

__all__ = [
    "AdaptiveAvgPool",
    "AdaptiveAvgPoolBackward",
    "AdaptiveMaxPool",
    "AdaptiveMaxPoolBackward",
    "Resample",
    "ResampleBackward",
]

MODES = ("nearest", "nearest_exact", "linear", "cubic")


def applied(maps: Sequence[AxisMap], x: Array) -> Array:
    """Maps along the spatial axes of x (N, C, spatial…), the first axis first."""
    for axis, m in enumerate(maps):
        x = m.apply(x, axis + 2)
    return x


@dataclass(frozen=True)
class Sized(Operation):
    """Operations whose attribute `size` is the spatial dims of the result (N, C, spatial…)."""

    size: tuple[int, ...] = field(kw_only=True)

    def bind(self, inputs: Sequence[Tensor | None]) -> Self:
        rank = self.spatial_rank(inputs)
        return replace(self, size=full(self.size, rank, (), f"{self.name}: size", 0))

    def sized(self, t: Tensor, elements: bool = True) -> tuple[int, ...]:
        """Dims of the result of t; elements: a result that is not empty needs an input that is not."""
        port = self.port(0)
        self.expect(t.rank >= 3, f"{port} {t.dim} must have 3 dimensions or more (N, C, spatial)")
        size = self.bind((t,)).size
        empty = elements and 0 in t.dim[2:] and 0 not in size
        self.expect(not empty, f"{port} {t.dim} has no elements to make size {size} of")
        return (*t.dim[:2], *size)

    def _result(self, t: Tensor, elements: bool = True) -> Tensor:
        self.check_dtypes(t)
        return Tensor.of(self.sized(t, elements), t.dtype, layout_of(t))

    def cost(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]) -> Cost:
        tensors = [t for t in (*inputs, *outputs) if t is not None]
        return Cost(2 * max(t.numel for t in tensors), sum(t.nbytes for t in tensors))


# --- resampling ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Resample(Sized):
    mode: str = "linear"
    align_corners: bool = False
    scale_d: float = 0.0
    scale_h: float = 0.0
    scale_w: float = 0.0

    def check_mode(self, rank: int) -> None:
        self.expect(self.mode in MODES, f"mode {self.mode!r} must be one of {', '.join(MODES)}")
        self.expect(rank <= 3, f"{rank} spatial dimensions, 1 to 3 are allowed")
        plain = not self.align_corners or not self.mode.startswith("nearest")
        self.expect(plain, f"align_corners does not go with mode {self.mode}")
        for n in ("scale_d", "scale_h", "scale_w"):
            s = getattr(self, n)
            self.expect(math.isfinite(s) and s >= 0, f"{n} {s} must be 0 (none) or a positive number")

    def maps(self, size: Sequence[int], out: Sequence[int]) -> list[AxisMap]:
        """From spatial dims `size` to `out`, forward."""
        scales = (self.scale_d, self.scale_h, self.scale_w)[3 - len(size) :]
        return [resampling(n, m, self.mode, self.align_corners, s) for n, m, s in zip(size, out, scales)]

    @property
    def common(self) -> dict[str, Any]:
        names = ("mode", "align_corners", "scale_d", "scale_h", "scale_w")
        return {n: getattr(self, n) for n in names}


@register
@dataclass(frozen=True)
class Resample(_Resample):
    """y of spatial dims `size`, from x by interpolation: nearest, nearest_exact, linear or cubic (each axis).

    The place of result o among the elements: align_corners o·(in-1)/(out-1), else (o+½)·in/out - ½ (linear
    not below 0); scale_d, scale_h, scale_w stand for out/in where not 0. nearest: floor(o·in/out), the
    product in float32, nearest_exact: floor((o+½)·in/out), likewise; cubic: Keys's kernel with a = -0.75.
    As PyTorch's interpolate.
    """

    name: ClassVar[str] = "resample"
    inputs: ClassVar[tuple[str, ...]] = ("x",)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs)
        self.check_mode(x.rank - 2)
        return (self._result(x),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs)
        size = self.bind((Tensor.of(x.shape),)).size
        return (applied(self.maps(x.shape[2:], size), x),)

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
        return (g.append(ResampleBackward(size=x.dim[2:], **self.common), (grads[0],))[0],)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, size, tail in _RESAMPLED:
            yield f"resample x={x} size={size} {tail}"


@register
@dataclass(frozen=True)
class ResampleBackward(_Resample):
    """dx of resample's dy: each element takes the results that it is a term of, with the same weights.

    size: spatial dims of dx.
    """

    name: ClassVar[str] = "resample_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy",)
    outputs: ClassVar[tuple[str, ...]] = ("dx",)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (dy,) = need(inputs)
        self.check_mode(dy.rank - 2)
        result = self._result(dy, False)
        empty = math.prod(dy.dim[2:]) and not math.prod(result.dim[2:])
        self.expect(not empty, f"size {self.size} has no elements that dy {dy.dim} could be made of")
        return (result,)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (dy,) = need(inputs)
        size = self.bind((Tensor.of(dy.shape),)).size
        return (applied(self.transposed(dy.shape[2:], size), dy),)

    def transposed(self, out: Sequence[int], size: Sequence[int]) -> list[AxisMap]:
        """Maps from dy's dims to dx's."""
        if not math.prod(out):
            return [AxisMap(np.zeros((0, n), np.int64)) for n in size]
        return [m.transposed(n) for m, n in zip(self.maps(size, out), size)]

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        (dy,) = need(inputs)
        if grads[0] is None:
            return (None,)
        return (g.append(Resample(size=dy.dim[2:], **self.common), (grads[0],))[0],)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, size, tail in _RESAMPLED:
            n, c, *dims = x.split("x")
            yield f"resample_backward dy={n}x{c}x{size} size={'x'.join(dims)} {tail}"


# --- adaptive pooling ----------------------------------------------------------------------------
def _mean_maps(size: Sequence[int], out: Sequence[int]) -> list[AxisMap]:
    found = []
    for n, m in zip(size, out):
        start, end = adaptive_windows(n, m)
        found.append(AxisMap(windows(start, end), None, (end - start).astype(np.float64)))
    return found


@register
@dataclass(frozen=True)
class AdaptiveAvgPool(Sized):
    """y of spatial dims `size`: means over windows [floor(o·in/out), ceil((o+1)·in/out)) along each axis."""

    name: ClassVar[str] = "adaptive_avg_pool"
    inputs: ClassVar[tuple[str, ...]] = ("x",)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs)
        return (self._result(x),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs)
        return (applied(self.maps(x.shape[2:], self.bind((Tensor.of(x.shape),)).size), x),)

    def maps(self, size: Sequence[int], out: Sequence[int]) -> list[AxisMap]:
        return _mean_maps(size, out)

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
        return (g.append(AdaptiveAvgPoolBackward(size=x.dim[2:]), (grads[0],))[0],)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, size in _ADAPTIVE:
            yield f"adaptive_avg_pool x={x} size={size}"


@register
@dataclass(frozen=True)
class AdaptiveAvgPoolBackward(Sized):
    """dx of adaptive_avg_pool's dy: each dy over its window's elements, added to all of them."""

    name: ClassVar[str] = "adaptive_avg_pool_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy",)
    outputs: ClassVar[tuple[str, ...]] = ("dx",)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (dy,) = need(inputs)
        result = self._result(dy, False)
        empty = math.prod(dy.dim[2:]) and not math.prod(result.dim[2:])
        self.expect(not empty, f"size {self.size} has no elements that dy {dy.dim} could be made of")
        return (result,)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (dy,) = need(inputs)
        size = self.bind((Tensor.of(dy.shape),)).size
        return (applied(self.transposed(dy.shape[2:], size), dy),)

    def transposed(self, out: Sequence[int], size: Sequence[int]) -> list[AxisMap]:
        """Maps from dy's dims to dx's."""
        if not math.prod(out):
            return [AxisMap(np.zeros((0, n), np.int64)) for n in size]
        return [m.transposed(n) for m, n in zip(_mean_maps(size, out), size)]

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        (dy,) = need(inputs)
        if grads[0] is None:
            return (None,)
        return (g.append(AdaptiveAvgPool(size=dy.dim[2:]), (grads[0],))[0],)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, size in _ADAPTIVE:
            n, c, *dims = x.split("x")
            yield f"adaptive_avg_pool_backward dy={n}x{c}x{size} size={'x'.join(dims)}"


@register
@dataclass(frozen=True)
class AdaptiveMaxPool(Sized):
    """y = the largest of each of adaptive_avg_pool's windows, index = where it is (as max_pool), int64."""

    name: ClassVar[str] = "adaptive_max_pool"
    inputs: ClassVar[tuple[str, ...]] = ("x",)
    outputs: ClassVar[tuple[str, ...]] = ("y", "index?")
    exact: ClassVar[bool] = True

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs)
        y = self._result(x)
        return y, Tensor.of(y.dim, I64, layout_of(x))

    def maps(self, size: Sequence[int], out: Sequence[int]) -> list[AxisMap]:
        return _mean_maps(size, out)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs)
        out = self.bind((Tensor.of(x.shape),)).size
        size = x.shape[2:]
        y = np.full((*x.shape[:2], *out), -np.inf, x.dtype)
        index = np.full(y.shape, -1, np.int64)
        if not y.size:
            return y, index
        spans = [list(zip(*adaptive_windows(n, m))) for n, m in zip(size, out)]
        places = np.arange(math.prod(size)).reshape(size)
        for at in np.ndindex(*out):
            window = tuple(slice(*spans[a][o]) for a, o in enumerate(at))
            here: tuple[Any, ...] = (..., *window)
            v = x[here].reshape(*x.shape[:2], -1)
            nan = np.isnan(v)
            last = v.shape[-1] - 1 - np.argmax(nan[..., ::-1], axis=-1)  # the last NaN wins
            best = np.where(nan.any(-1), last, np.argmax(np.where(nan, -np.inf, v), axis=-1))
            y[(..., *at)] = np.take_along_axis(v, best[..., None], -1)[..., 0]
            index[(..., *at)] = places[window].reshape(-1)[best]
        return y, index

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
        return (g.append(AdaptiveMaxPoolBackward(size=x.dim[2:]), (dy, index))[0],)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, size in _ADAPTIVE:
            yield f"adaptive_max_pool x={x} size={size}"
        yield "adaptive_max_pool x=2x19x9x8 size=4x5 -> y"


@register
@dataclass(frozen=True)
class AdaptiveMaxPoolBackward(Sized):
    """dx[n,c,i] = Σ dy over the windows whose index is i (index -1 is skipped); size: spatial dims of dx."""

    name: ClassVar[str] = "adaptive_max_pool_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "index")
    outputs: ClassVar[tuple[str, ...]] = ("dx",)
    exact: ClassVar[bool] = True

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        dy, index = need(inputs)
        self.expect(index.dtype == I64, f"index is {index.dtype}, allowed is i64")
        self.expect(index.dim == dy.dim, f"index {index.dim} and dy {dy.dim} must have the same dims")
        return (self._result(dy, False),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dy, index = need(inputs)
        size = self.bind((Tensor.of(dy.shape),)).size
        planes = math.prod(dy.shape[:2])
        dx = np.zeros((planes, math.prod(size)), dy.dtype)
        flat, grad = index.reshape(planes, math.prod(dy.shape[2:])), dy.reshape(planes, -1 if dy.size else 0)
        plane, window = np.nonzero((flat >= 0) & (flat < dx.shape[1]))
        np.add.at(dx, (plane, flat[plane, window]), grad[plane, window])
        return (dx.reshape(*dy.shape[:2], *size),)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, size in _ADAPTIVE:
            n, c, *dims = x.split("x")
            out = f"{n}x{c}x{size}"
            yield f"adaptive_max_pool_backward dy={out} index={out}:i64 size={'x'.join(dims)}"


_RESAMPLED = (
    ("2x3x5x7", "10x14", "mode=nearest"),
    ("1x19x9x8", "4x13", "mode=nearest"),
    ("2x3x9x8", "4x13", "mode=nearest_exact"),
    ("2x3x11", "23", "mode=nearest scale_w=2.1"),
    ("2x3x5x7", "10x14", "mode=linear"),
    ("1x35x9x20", "4x33", "mode=linear"),
    ("2x3x5x7", "9x13", "mode=linear align_corners=1"),
    ("2x3x5x7", "5x1", "mode=linear align_corners=1"),
    ("2x3x11", "40", "mode=linear"),
    ("1x2x3x4x5", "5x4x9", "mode=linear"),
    ("1x2x3x4x5", "4x2x10", "mode=nearest"),
    ("1x2x1x4x5", "2x3x9", "mode=linear align_corners=1"),
    ("2x3x6x7", "12x15", "mode=linear scale_h=2.0 scale_w=2.2"),
    ("2x3x5x7", "8x4", "mode=cubic"),
    ("2x3x5x7", "8x14", "mode=cubic align_corners=1"),
    ("0x3x4x4", "2x8", "mode=linear"),
    ("2x3x4x4", "0x8", "mode=nearest"),
)
_ADAPTIVE = (
    ("2x16x8x8", "4x4"),
    ("2x19x9x11", "4x3"),
    ("2x3x5x7", "8x9"),
    ("2x33x7x7", "1x1"),
    ("1x3x10", "3"),
    ("1x2x5x6x7", "2x3x4"),
    ("1x35x4x3x9", "3x3x2"),
    ("0x3x4x4", "2x2"),
    ("2x3x4x4", "2x0"),
)
