"""Layer and RMS normalisation over trailing dimensions, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from vlug.errors import DTypeError
from vlug.ops.base import Array, Builder, Operation, axis_of, dense_like, need, register, total, wide
from vlug.tensor import Tensor

__all__ = [
    "LayerNorm",
    "LayerNormBackward",
    "RmsNorm",
    "RmsNormBackward",
    "append_gradients",
    "check_eps",
    "check_vector",
    "row_mean",
    "same",
]


def check_eps(op: Operation, eps: float) -> None:
    op.expect(0 <= eps < math.inf, f"eps {eps} must be finite and 0 or more")


def check_vector(
    op: Operation, name: str, t: Tensor | None, dim: tuple[int, ...], x: Tensor, of: str
) -> None:
    """A parameter or statistic has the dims `dim` (which are `of`) and a type that goes with x's."""
    if t is None:
        return
    op.expect(t.dim == dim, f"{name} {t.dim} must be {dim}, {of}")
    if t.dtype not in op.dtypes:
        allowed = ", ".join(d.name for d in op.dtypes)
        raise DTypeError(f"{op.name}: {name} is {t.dtype}, allowed are {allowed}")
    if (t.dtype.name == "f64") != (x.dtype.name == "f64"):
        raise DTypeError(f"{op.name}: {name} is {t.dtype} beside {x.dtype}; f64 goes with f64 alone")


def same(x: Tensor) -> Tensor:
    return Tensor(x.dim, dense_like(x, x.dim), x.dtype)


def row_mean(a: Array, axes: tuple[int, ...], n: int) -> Array:
    """Mean over axes, their sizes kept as 1; of nothing, 0."""
    return np.asarray(total(a, axes, True) / a.dtype.type(max(n, 1)))


@dataclass(frozen=True)
class _Rows(Operation):
    """What the four share: rows are the elements of x along dimensions `axis` and on."""

    axis: int = -1

    def bind(self, inputs: Sequence[Tensor | None]) -> Self:
        return replace(self, axis=self._axis(need(inputs[:1])[0].rank))

    def _axis(self, rank: int) -> int:
        self.expect(rank >= 1, f"{self.port(0)} must have 1 dimension or more")
        return axis_of(self.axis, rank, f"{self.name}: axis")

    def attributes(self, inputs: Sequence[Tensor | None] = ()) -> dict[str, str]:
        """The last axis is the default however it was said."""
        first = inputs[0] if inputs else None
        last = first is not None and self.axis in (-1, first.rank - 1)
        out = super().attributes(inputs)
        return {n: v for n, v in out.items() if n != "axis" or not last}

    def _row(self, x: Tensor) -> tuple[int, ...]:
        return x.dim[self._axis(x.rank) :]

    def _stat(self, x: Tensor) -> Tensor:
        """A number a row: x's rank, the row's dimensions 1."""
        at = self._axis(x.rank)
        return Tensor.of((*x.dim[:at], *(1,) * (x.rank - at)), wide(x.dtype))

    def _axes(self, rank: int) -> tuple[int, ...]:
        return tuple(range(self._axis(rank), rank))

    def _forward(self, x: Tensor, eps: float, **parameters: Tensor | None) -> None:
        self.check_dtypes(x)
        check_eps(self, eps)
        for name, t in parameters.items():
            check_vector(self, name, t, self._row(x), x, f"the dims of x {x.dim} from axis {self.axis} on")

    def _backward(self, dy: Tensor, x: Tensor, scale: Tensor | None, **statistics: Tensor | None) -> Tensor:
        self.check_dtypes(dy, x, same=(1,))
        self.expect(dy.dim == x.dim, f"dy {dy.dim} and x {x.dim} must have the same dims")
        check_vector(self, "scale", scale, self._row(x), x, f"the dims of x {x.dim} from axis {self.axis} on")
        for name, t in statistics.items():
            check_vector(self, name, t, self._stat(x).dim, x, f"one a row of x {x.dim}")
        return Tensor.of(self._row(x), wide(x.dtype) if scale is None else scale.dtype)


def _affine(y: Array, scale: Array | None, bias: Array | None) -> Array:
    y = y if scale is None else y * scale
    return y if bias is None else y + bias


def _inverse(var: Array, eps: float) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(1 / np.sqrt(var + var.dtype.type(eps)))


def append_gradients(
    g: Builder,
    op: Operation,
    inputs: Sequence[Tensor | None],
    wanted: Sequence[tuple[str, Tensor | None]],
) -> tuple[Tensor | None, ...]:
    """The gradients that `op` gives, None for those of inputs that were left out."""
    names = [g.fresh(n) if t is not None else "_" for n, t in wanted]
    made = iter(g.append(op, inputs, names))
    return tuple(None if n == "_" else next(made) for n in names)


@register
@dataclass(frozen=True)
class LayerNorm(_Rows):
    """y = scale · (x - mean) · inv_std + bias, each row with its own mean and biased variance.

    A row is what lies along dimensions `axis` and on; scale and bias have its dims and default to 1 and 0.
    inv_std = 1 / sqrt(variance + eps) (cuDNN calls it inv_variance). mean and inv_std have x's rank, the
    row's dimensions 1. A row of no elements has mean and variance 0.
    """

    eps: float = 1e-5

    name: ClassVar[str] = "layernorm"
    inputs: ClassVar[tuple[str, ...]] = ("x", "scale?", "bias?")
    outputs: ClassVar[tuple[str, ...]] = ("y", "mean?", "inv_std?")

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs[:1])
        self._forward(x, self.eps, scale=inputs[1], bias=inputs[2])
        return same(x), self._stat(x), self._stat(x)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs[:1])
        axes = self._axes(x.ndim)
        n = math.prod(x.shape[a] for a in axes)
        mean = row_mean(x, axes, n)
        d = x - mean
        inv = _inverse(row_mean(d * d, axes, n), self.eps)
        return _affine(d * inv, *inputs[1:]), mean, inv

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        if any(t is not None for t in grads[1:]):
            raise NotImplementedError("layernorm: no gradient through its statistics")
        if grads[0] is not None and None in outputs[1:]:
            raise NotImplementedError("layernorm: its gradient needs mean and inv_std")
        if grads[0] is None:
            return (None,) * len(inputs)
        x, scale, bias = inputs
        given = (grads[0], x, scale, outputs[1], outputs[2])
        return append_gradients(
            g, LayerNormBackward(self.axis), given, (("dx", x), ("dscale", scale), ("dbias", bias))
        )

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, row, axis in _SHAPES:
            yield f"layernorm x={x} scale={row} bias={row} axis={axis}"
        yield "layernorm x=5x77 eps=0.001"
        yield "layernorm x=5x77 bias=77"
        yield "layernorm x=2x3x40 scale=40 -> y"


@register
@dataclass(frozen=True)
class LayerNormBackward(_Rows):
    """dx, dscale, dbias of dy, x and the forward pass's mean and inv_std (n = elements of a row):

    x̂ = (x - mean) · inv_std; dbias = Σ dy; dscale = Σ dy · x̂ (over rows);
    dx = inv_std · (g - Σ g / n - x̂ · Σ g · x̂ / n) with g = scale · dy (sums over a row).
    """

    name: ClassVar[str] = "layernorm_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "x", "scale?", "mean", "inv_std")
    outputs: ClassVar[tuple[str, ...]] = ("dx?", "dscale?", "dbias?")

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        dy, x = need(inputs[:2])
        dscale = self._backward(dy, x, inputs[2], mean=inputs[3], inv_std=inputs[4])
        return same(x), dscale, dscale

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dy, x = need(inputs[:2])
        mean, inv = need(inputs[3:])
        return _gradients(self._axis(x.ndim), dy, (x - mean) * inv, inputs[2], inv, True)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, row, axis in _SHAPES:
            s = _stat_words(x, axis)
            yield f"layernorm_backward dy={x} x={x} scale={row} mean={s} inv_std={s} axis={axis}"
        yield "layernorm_backward dy=5x77 x=5x77 mean=5x1 inv_std=5x1"
        yield "layernorm_backward dy=5x77 x=5x77 scale=77 mean=5x1 inv_std=5x1 -> dx"
        yield "layernorm_backward dy=5x77 x=5x77 scale=77 mean=5x1 inv_std=5x1 -> _, dscale, dbias"


@register
@dataclass(frozen=True)
class RmsNorm(_Rows):
    """y = scale · x · inv_std + bias with inv_std = 1 / sqrt(mean of the row's squares + eps).

    Rows, scale, bias and inv_std are as layernorm's. With eps 0 a row of denormals has an inv_std that f32
    does not hold: inf, and so has y.
    """

    eps: float = 1e-5

    name: ClassVar[str] = "rmsnorm"
    inputs: ClassVar[tuple[str, ...]] = ("x", "scale?", "bias?")
    outputs: ClassVar[tuple[str, ...]] = ("y", "inv_std?")

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs[:1])
        self._forward(x, self.eps, scale=inputs[1], bias=inputs[2])
        return same(x), self._stat(x)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs[:1])
        axes = self._axes(x.ndim)
        inv = _inverse(row_mean(x * x, axes, math.prod(x.shape[a] for a in axes)), self.eps)
        return _affine(x * inv, *inputs[1:]), inv

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        if grads[1] is not None:
            raise NotImplementedError("rmsnorm: no gradient through its statistic")
        if grads[0] is not None and outputs[1] is None:
            raise NotImplementedError("rmsnorm: its gradient needs inv_std")
        if grads[0] is None:
            return (None,) * len(inputs)
        x, scale, bias = inputs
        given = (grads[0], x, scale, outputs[1])
        return append_gradients(
            g, RmsNormBackward(self.axis), given, (("dx", x), ("dscale", scale), ("dbias", bias))
        )

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, row, axis in _SHAPES:
            yield f"rmsnorm x={x} scale={row} axis={axis}"
        yield "rmsnorm x=5x77 eps=0.001"
        yield "rmsnorm x=5x77 scale=77 bias=77 -> y"


@register
@dataclass(frozen=True)
class RmsNormBackward(_Rows):
    """dx, dscale, dbias of dy, x and the forward pass's inv_std: layernorm_backward's with x̂ = x · inv_std

    and without Σ g / n."""

    name: ClassVar[str] = "rmsnorm_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "x", "scale?", "inv_std")
    outputs: ClassVar[tuple[str, ...]] = ("dx?", "dscale?", "dbias?")

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        dy, x = need(inputs[:2])
        dscale = self._backward(dy, x, inputs[2], inv_std=inputs[3])
        return same(x), dscale, dscale

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dy, x = need(inputs[:2])
        (inv,) = need(inputs[3:])
        return _gradients(self._axis(x.ndim), dy, x * inv, inputs[2], inv, False)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, row, axis in _SHAPES:
            yield f"rmsnorm_backward dy={x} x={x} scale={row} inv_std={_stat_words(x, axis)} axis={axis}"
        yield "rmsnorm_backward dy=5x77 x=5x77 inv_std=5x1"
        yield "rmsnorm_backward dy=5x77 x=5x77 scale=77 inv_std=5x1 -> dx"


def _gradients(
    axis: int, dy: Array, normal: Array, scale: Array | None, inv: Array, centred: bool
) -> tuple[Array, Array, Array]:
    """dx, dscale, dbias from x̂."""
    row, rest = tuple(range(axis, dy.ndim)), tuple(range(axis))
    n = math.prod(dy.shape[a] for a in row)
    dscale, dbias = total(dy * normal, rest), total(dy, rest)
    if not rest:
        dscale, dbias = dy * normal, dy
    g = dy if scale is None else dy * scale
    dx = g - normal * row_mean(g * normal, row, n)
    if centred:
        dx = dx - row_mean(g, row, n)
    return dx * inv, dscale, dbias


def _stat_words(x: str, axis: int) -> str:
    dim = x.split("x")
    at = axis % len(dim)
    return "x".join((*dim[:at], *["1"] * (len(dim) - at)))


# x, the dims of a row, axis
_SHAPES = (
    ("17x33", "33", -1),
    ("2x3x5x9", "5x9", 2),
    ("9x50", "9x50", 0),
    ("2x17000", "17000", -1),
    ("6x1", "1", -1),
    ("0x5", "5", -1),
    ("4x0", "0", -1),
)
