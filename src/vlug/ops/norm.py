"""Batch normalisation: training, inference and gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vlug.errors import DTypeError
from vlug.ops.base import Array, Builder, Operation, dense_like, need, register, total, wide
from vlug.tensor import Tensor

__all__ = ["Batchnorm", "BatchnormBackward", "BatchnormInference"]


@dataclass(frozen=True)
class _Norm(Operation):
    """Checks that the three share: x is N, C, spatial…; everything else has one dimension of C."""

    def _check(self, x: Tensor, port: str, inputs: Sequence[Tensor | None], first: int) -> None:
        self.expect(x.rank >= 2, f"{port} {x.dim} must have 2 dimensions or more (N, C, spatial)")
        c = (x.dim[1],)
        for name, t in zip(self.inputs[first:], inputs[first:]):
            if t is None:
                continue
            name = name.rstrip("?")
            self.expect(t.dim == c, f"{name} {t.dim} must be {c}, the channels of {port} {x.dim}")
            if t.dtype not in self.dtypes:
                allowed = ", ".join(d.name for d in self.dtypes)
                raise DTypeError(f"{self.name}: {name} is {t.dtype}, allowed are {allowed}")


def _per_channel(a: Array, rank: int) -> Array:
    """A (C,) array shaped to broadcast over N, C, spatial…."""
    return a.reshape(1, -1 if a.size else 0, *(1,) * (rank - 2))


def _reduce_axes(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank))


def _same(x: Tensor) -> Tensor:
    return Tensor(x.dim, dense_like(x, x.dim), x.dtype)


@register
@dataclass(frozen=True)
class Batchnorm(_Norm):
    """Training: y = scale · (x - mean) · inv_std + bias with each channel's mean and biased variance.

    inv_std = 1 / sqrt(biased variance + eps). next_running = (1 - momentum) · running + momentum · new, where
    the new variance is n/(n-1) times the biased one if `unbiased` (n = elements a channel). Over n = 0
    elements mean and variance are 0 and the running statistics stay as they are; for n = 1 the running
    variance takes the biased one, 0. scale and bias default to 1 and 0.
    """

    eps: float = 1e-5
    momentum: float = 0.1
    unbiased: bool = True

    name: ClassVar[str] = "batchnorm"
    inputs: ClassVar[tuple[str, ...]] = ("x", "scale?", "bias?", "running_mean?", "running_var?")
    outputs: ClassVar[tuple[str, ...]] = ("y", "mean", "inv_std", "next_running_mean?", "next_running_var?")

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs[:1])
        self.check_dtypes(x)
        self.expect(0 <= self.eps < math.inf, f"eps {self.eps} must be finite and 0 or more")
        self._check(x, "x", inputs, 1)
        running_mean, running_var = inputs[3:]
        self.expect(
            (running_mean is None) == (running_var is None),
            "running_mean and running_var must be given together",
        )
        stat = Tensor.of((x.dim[1],), wide(x.dtype))
        if running_mean is None or running_var is None:
            return _same(x), stat, stat
        running = (Tensor.of(t.dim, t.dtype) for t in (running_mean, running_var))
        return _same(x), stat, stat, *running

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs[:1])
        scale, bias, running_mean, running_var = inputs[1:]
        axes, c = _reduce_axes(x.ndim), x.shape[1]
        n = math.prod(x.shape[a] for a in axes)
        mean = total(x, axes) / n if n else np.zeros(c, x.dtype)
        d = x - _per_channel(mean, x.ndim)
        var = total(d * d, axes) / n if n else np.zeros(c, x.dtype)
        with np.errstate(divide="ignore"):
            inv_std = 1 / np.sqrt(var + self.eps)
        y = d * _per_channel(inv_std if scale is None else inv_std * scale, x.ndim)
        if bias is not None:
            y = y + _per_channel(bias, x.ndim)
        if running_mean is None or running_var is None:
            return y, mean, inv_std
        if n == 0:
            return y, mean, inv_std, running_mean.copy(), running_var.copy()
        m = self.momentum
        new_var = var * (n / max(n - 1, 1)) if self.unbiased else var
        return y, mean, inv_std, (1 - m) * running_mean + m * mean, (1 - m) * running_var + m * new_var

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        if any(t is not None for t in grads[1:]):
            raise NotImplementedError("batchnorm: no gradient through its statistics")
        dy, (x, scale, bias) = grads[0], inputs[:3]
        if dy is None:
            return (None,) * len(inputs)
        wanted = [f"d{p}" if t is not None else "_" for p, t in zip(("x", "scale", "bias"), (x, scale, bias))]
        names = [g.fresh(n) if n != "_" else n for n in wanted]
        made = g.append(BatchnormBackward(), (dy, x, scale, outputs[1], outputs[2]), names)
        grad = iter(made)
        return (*(None if n == "_" else next(grad) for n in names), None, None)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x in _SHAPES:
            c = x.split("x")[1]
            yield f"batchnorm x={x} scale={c} bias={c} running_mean={c} running_var={c}"
        yield "batchnorm x=2x19x5x4"
        yield "batchnorm x=2x19x5x4 scale=19 eps=0.001"
        yield "batchnorm x=5x6 running_mean=6 running_var=6 momentum=1.0"  # D1
        yield "batchnorm x=5x6 running_mean=6 running_var=6 unbiased=0 momentum=1.0"
        yield "batchnorm x=2x6x3x3 scale=6 bias=6 running_mean=6 running_var=6 -> y, mean, inv_std"


@register
@dataclass(frozen=True)
class BatchnormInference(_Norm):
    """y = scale · (x - mean) / sqrt(var + eps) + bias with given statistics."""

    eps: float = 1e-5

    name: ClassVar[str] = "batchnorm_inference"
    inputs: ClassVar[tuple[str, ...]] = ("x", "mean", "var", "scale?", "bias?")

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        (x,) = need(inputs[:1])
        self.check_dtypes(x)
        self.expect(0 <= self.eps < math.inf, f"eps {self.eps} must be finite and 0 or more")
        self._check(x, "x", inputs, 1)
        return (_same(x),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, mean, var = need(inputs[:3])
        scale, bias = inputs[3:]
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = 1 / np.sqrt(var + self.eps)
        if scale is not None:
            factor = factor * scale
        y = (x - _per_channel(mean, x.ndim)) * _per_channel(factor, x.ndim)
        return (y if bias is None else y + _per_channel(bias, x.ndim),)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        """mean and var are constants."""
        if grads[0] is None:
            return (None,) * len(inputs)
        x, mean, var, scale, bias = inputs
        back = BatchnormInferenceBackward(self.eps)
        given = (grads[0], x, scale, mean, var)
        dx, dscale, dbias = _append(g, back, given, (("dx", x), ("dscale", scale), ("dbias", bias)))
        return dx, None, None, dscale, dbias

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x in _SHAPES:
            c = x.split("x")[1]
            yield f"batchnorm_inference x={x} mean={c} var={c} scale={c} bias={c}"
        yield "batchnorm_inference x=2x19x5x4 mean=19 var=19"
        yield "batchnorm_inference x=2x19x5x4 mean=19 var=19 bias=19 eps=0.001"


@register
@dataclass(frozen=True)
class BatchnormBackward(_Norm):
    """dx, dscale, dbias of dy, x and the forward pass's mean and inv_std (n = elements a channel):

    x̂ = (x - mean) · inv_std; dbias = Σ dy; dscale = Σ dy · x̂;
    dx = scale · inv_std · (dy - dbias/n - x̂ · dscale/n), or scale · inv_std · dy if not `training` (mean and
    inv_std are constants then).
    """

    training: bool = True

    name: ClassVar[str] = "batchnorm_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "x", "scale?", "mean", "inv_std")
    outputs: ClassVar[tuple[str, ...]] = ("dx?", "dscale?", "dbias?")

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        dy, x = need(inputs[:2])
        scale = inputs[2]
        self.check_dtypes(dy, x, same=(1,))
        self.expect(dy.dim == x.dim, f"dy {dy.dim} and x {x.dim} must have the same dims")
        self._check(x, "x", inputs, 2)
        dscale = Tensor.of((x.dim[1],), wide(x.dtype) if scale is None else scale.dtype)
        return _same(x), dscale, dscale

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dy, x = need(inputs[:2])
        mean, inv_std = need(inputs[3:])
        scale, rank = inputs[2], x.ndim
        axes = _reduce_axes(rank)
        n = math.prod(x.shape[a] for a in axes)
        normal = (x - _per_channel(mean, rank)) * _per_channel(inv_std, rank)
        dbias, dscale = total(dy, axes), total(dy * normal, axes)
        dx = dy
        if self.training and n:
            dx = dy - _per_channel(dbias / n, rank) - normal * _per_channel(dscale / n, rank)
        dx = dx * _per_channel(inv_std if scale is None else inv_std * scale, rank)
        return dx, dscale, dbias

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x in _SHAPES:
            c = x.split("x")[1]
            yield f"batchnorm_backward dy={x} x={x} scale={c} mean={c} inv_std={c}"
        yield "batchnorm_backward dy=2x19x5x4 x=2x19x5x4 mean=19 inv_std=19"
        yield "batchnorm_backward dy=2x19x5x4 x=2x19x5x4 scale=19 mean=19 inv_std=19 training=0"
        yield "batchnorm_backward dy=2x19x5x4 x=2x19x5x4 scale=19 mean=19 inv_std=19 -> _, dscale, dbias"
        yield "batchnorm_backward dy=2x19x5x4 x=2x19x5x4 scale=19 mean=19 inv_std=19 -> dx"


@register
@dataclass(frozen=True)
class BatchnormInferenceBackward(_Norm):
    """dx, dscale, dbias of batchnorm_inference's dy, x and its mean and var, which are constants:

    inv_std = 1 / sqrt(var + eps); dx = scale · inv_std · dy; dscale = Σ dy · (x - mean) · inv_std;
    dbias = Σ dy.
    """

    eps: float = 1e-5

    name: ClassVar[str] = "batchnorm_inference_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "x", "scale?", "mean", "var")
    outputs: ClassVar[tuple[str, ...]] = ("dx?", "dscale?", "dbias?")

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        self.expect(0 <= self.eps < math.inf, f"eps {self.eps} must be finite and 0 or more")
        dy, x = need(inputs[:2])
        self.check_dtypes(dy, x, same=(1,))
        self.expect(dy.dim == x.dim, f"dy {dy.dim} and x {x.dim} must have the same dims")
        self._check(x, "x", inputs, 2)
        dscale = Tensor.of((x.dim[1],), wide(x.dtype) if inputs[2] is None else inputs[2].dtype)
        return _same(x), dscale, dscale

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dy, x = need(inputs[:2])
        mean, var = need(inputs[3:])
        with np.errstate(divide="ignore", invalid="ignore"):
            inv_std = 1 / np.sqrt(var + var.dtype.type(self.eps))
        return BatchnormBackward(training=False).reference(dy, x, inputs[2], mean, inv_std)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x in ("3x35x6x5", "17x33", "0x5x9"):
            c = x.split("x")[1]
            yield f"batchnorm_inference_backward dy={x} x={x} scale={c} mean={c} var={c}"
        yield "batchnorm_inference_backward dy=2x19x5x4 x=2x19x5x4 mean=19 var=19 eps=0.001"


def _append(
    g: Builder, op: Operation, inputs: Sequence[Tensor | None], wanted: Sequence[tuple[str, Tensor | None]]
) -> tuple[Tensor | None, ...]:
    names = [g.fresh(n) if t is not None else "_" for n, t in wanted]
    made = iter(g.append(op, inputs, names))
    return tuple(None if n == "_" else next(made) for n in names)


_SHAPES = (
    "4x16x8x8",
    "3x35x6x5",  # A5
    "17x33",
    "8x8x8x8",  # B9
    "2x3x40",
    "1x5x1x1",
    "1x64x7x7",
    "2x2x3x4x5",
    "0x5x9",  # B3
    "3x0x4x4",
    "3x4x0x2",
)
