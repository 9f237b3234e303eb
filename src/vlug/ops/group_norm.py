"""Group and instance normalisation, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vlug.ops.base import Array, Builder, Operation, need, register, total, wide
from vlug.ops.row_norm import append_gradients, check_eps, check_vector, row_mean, same
from vlug.tensor import Tensor

__all__ = ["GroupNorm", "GroupNormBackward", "InstanceNorm", "InstanceNormBackward"]


@dataclass(frozen=True)
class _Groups(Operation):
    """What the four share: x is N, C, spatial…; the channels of an image make groups of neighbours."""

    def _count(self, x: Tensor) -> int:
        """Groups of an image."""
        raise NotImplementedError

    def _stat_dim(self, x: Tensor) -> tuple[int, ...]:
        raise NotImplementedError

    def _checked(self, x: Tensor, port: str, vectors: dict[str, Tensor | None]) -> None:
        self.expect(x.rank >= 2, f"{port} {x.dim} must have 2 dimensions or more (N, C, spatial)")
        groups = self._count(x)
        self.expect(groups >= 1 or x.dim[1] == 0, f"groups {groups} must be 1 or more")
        self.expect(
            x.dim[1] % max(groups, 1) == 0, f"groups {groups} must divide the {x.dim[1]} channels of {port}"
        )
        for name, t in vectors.items():
            if name in ("mean", "inv_std"):
                check_vector(self, name, t, self._stat_dim(x), x, f"one a group of {port} {x.dim}")
            else:
                check_vector(self, name, t, x.dim[1:2], x, f"the channels of {port} {x.dim}")

    def _forward(
        self, x: Tensor, eps: float, scale: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, ...]:
        self.check_dtypes(x)
        check_eps(self, eps)
        self._checked(x, "x", {"scale": scale, "bias": bias})
        stat = Tensor.of(self._stat_dim(x), wide(x.dtype))
        return same(x), stat, stat

    def _backward(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        dy, x = need(inputs[:2])
        self.check_dtypes(dy, x, same=(1,))
        self.expect(dy.dim == x.dim, f"dy {dy.dim} and x {x.dim} must have the same dims")
        scale, mean, inv_std = inputs[2:]
        self._checked(x, "x", {"scale": scale, "mean": mean, "inv_std": inv_std})
        dscale = Tensor.of(x.dim[1:2], wide(x.dtype) if scale is None else scale.dtype)
        return same(x), dscale, dscale

    # --- references: arrays as (N, groups, elements of a group) ---
    def _split(self, a: Array) -> Array:
        groups = self._count(Tensor.of(a.shape))
        size = math.prod(a.shape[1:]) // max(groups, 1)
        return a.reshape(a.shape[0], groups, size)

    def _normal(self, x: Array, eps: float) -> tuple[Array, Array, Array]:
        """(x - mean) · inv_std, mean, inv_std."""
        rows = self._split(x)
        mean = row_mean(rows, (2,), rows.shape[2])
        d = rows - mean
        with np.errstate(divide="ignore"):
            inv = 1 / np.sqrt(row_mean(d * d, (2,), rows.shape[2]) + rows.dtype.type(eps))
        return (d * inv).reshape(x.shape), mean, inv

    def _gradients(self, *inputs: Array | None) -> tuple[Array, ...]:
        dy, x = need(inputs[:2])
        scale = inputs[2]
        stat = (x.shape[0], self._count(Tensor.of(x.shape)), 1)
        mean, inv = (a.reshape(stat) for a in need(inputs[3:]))
        normal = ((self._split(x) - mean) * inv).reshape(x.shape)
        axes = (0, *range(2, x.ndim))
        dscale, dbias = total(dy * normal, axes), total(dy, axes)
        g = self._split(dy if scale is None else dy * _channels(scale, x.ndim))
        h, n = self._split(normal), g.shape[2]
        dx = (g - row_mean(g, (2,), n) - h * row_mean(g * h, (2,), n)) * inv
        return dx.reshape(x.shape), dscale, dbias


def _channels(a: Array, rank: int) -> Array:
    return a.reshape(1, a.size, *(1,) * (rank - 2))


def _affine(y: Array, scale: Array | None, bias: Array | None) -> Array:
    y = y if scale is None else y * _channels(scale, y.ndim)
    return y if bias is None else y + _channels(bias, y.ndim)


def _vjp(
    op: Operation,
    back: Operation,
    g: Builder,
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor | None],
    grads: Sequence[Tensor | None],
) -> tuple[Tensor | None, ...]:
    if any(t is not None for t in grads[1:]):
        raise NotImplementedError(f"{op.name}: no gradient through its statistics")
    if grads[0] is None:
        return (None,) * len(inputs)
    if None in outputs[1:]:
        raise NotImplementedError(f"{op.name}: its gradient needs mean and inv_std")
    x, scale, bias = inputs
    given = (grads[0], x, scale, *outputs[1:])
    return append_gradients(g, back, given, (("dx", x), ("dscale", scale), ("dbias", bias)))


@register
@dataclass(frozen=True)
class GroupNorm(_Groups):
    """y = scale · (x - mean) · inv_std + bias; the C channels of an image make `groups` groups of neighbours,

    each with its own mean and biased variance over its C/groups · spatial elements; scale and bias are a
    channel's and default to 1 and 0. inv_std = 1 / sqrt(variance + eps); mean and inv_std are (N, groups).
    """

    groups: int
    eps: float = 1e-5

    name: ClassVar[str] = "groupnorm"
    inputs: ClassVar[tuple[str, ...]] = ("x", "scale?", "bias?")
    outputs: ClassVar[tuple[str, ...]] = ("y", "mean?", "inv_std?")

    def _count(self, x: Tensor) -> int:
        return self.groups

    def _stat_dim(self, x: Tensor) -> tuple[int, ...]:
        return x.dim[0], self.groups

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        return self._forward(need(inputs[:1])[0], self.eps, *inputs[1:])

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs[:1])
        normal, mean, inv = self._normal(x, self.eps)
        return _affine(normal, *inputs[1:]), mean[..., 0], inv[..., 0]

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        return _vjp(self, GroupNormBackward(self.groups), g, inputs, outputs, grads)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, groups in _SHAPES:
            c = x.split("x")[1]
            yield f"groupnorm x={x} scale={c} bias={c} groups={groups}"
        yield "groupnorm x=2x6x5x4 groups=3 eps=0.001"
        yield "groupnorm x=2x6x5x4 bias=6 groups=1 -> y"


@register
@dataclass(frozen=True)
class GroupNormBackward(_Groups):
    """dx, dscale, dbias of dy, x and the forward pass's mean and inv_std (n = elements of a group):

    x̂ = (x - mean) · inv_std; dbias = Σ dy; dscale = Σ dy · x̂ (over images and space);
    dx = inv_std · (g - Σ g / n - x̂ · Σ g · x̂ / n) with g = scale · dy (sums over a group).
    """

    groups: int

    name: ClassVar[str] = "groupnorm_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "x", "scale?", "mean", "inv_std")
    outputs: ClassVar[tuple[str, ...]] = ("dx?", "dscale?", "dbias?")

    def _count(self, x: Tensor) -> int:
        return self.groups

    def _stat_dim(self, x: Tensor) -> tuple[int, ...]:
        return x.dim[0], self.groups

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        return self._backward(*inputs)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return self._gradients(*inputs)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, groups in _SHAPES:
            n, c = x.split("x")[:2]
            stat = f"{n}x{groups}"
            yield f"groupnorm_backward dy={x} x={x} scale={c} mean={stat} inv_std={stat} groups={groups}"
        yield "groupnorm_backward dy=2x6x5x4 x=2x6x5x4 mean=2x3 inv_std=2x3 groups=3"
        yield "groupnorm_backward dy=2x6x5x4 x=2x6x5x4 scale=6 mean=2x1 inv_std=2x1 groups=1 -> dx"


@register
@dataclass(frozen=True)
class InstanceNorm(_Groups):
    """groupnorm with a group a channel: each plane has its own mean and biased variance.

    mean and inv_std = 1 / sqrt(variance + eps) are (N, C, 1, …), as cuDNN has them.
    """

    eps: float = 1e-5

    name: ClassVar[str] = "instancenorm"
    inputs: ClassVar[tuple[str, ...]] = ("x", "scale?", "bias?")
    outputs: ClassVar[tuple[str, ...]] = ("y", "mean?", "inv_std?")

    def _count(self, x: Tensor) -> int:
        return x.dim[1]

    def _stat_dim(self, x: Tensor) -> tuple[int, ...]:
        return (*x.dim[:2], *(1,) * (x.rank - 2))

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        return self._forward(need(inputs[:1])[0], self.eps, *inputs[1:])

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = need(inputs[:1])
        normal, *stats = self._normal(x, self.eps)
        dim = self._stat_dim(Tensor.of(x.shape))
        return _affine(normal, *inputs[1:]), *(s.reshape(dim) for s in stats)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        return _vjp(self, InstanceNormBackward(), g, inputs, outputs, grads)

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield "instancenorm x=2x19x6x5 scale=19 bias=19"
        yield "instancenorm x=3x4x50"
        yield "instancenorm x=1x2x40x500 scale=2"


@register
@dataclass(frozen=True)
class InstanceNormBackward(_Groups):
    """groupnorm_backward with a group a channel; mean and inv_std are (N, C, 1, …)."""

    name: ClassVar[str] = "instancenorm_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "x", "scale?", "mean", "inv_std")
    outputs: ClassVar[tuple[str, ...]] = ("dx?", "dscale?", "dbias?")

    def _count(self, x: Tensor) -> int:
        return x.dim[1]

    def _stat_dim(self, x: Tensor) -> tuple[int, ...]:
        return (*x.dim[:2], *(1,) * (x.rank - 2))

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        return self._backward(*inputs)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return self._gradients(*inputs)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x in ("2x19x6x5", "1x2x40x500"):
            n, c = x.split("x")[:2]
            stat = f"{n}x{c}x1x1"
            yield f"instancenorm_backward dy={x} x={x} scale={c} mean={stat} inv_std={stat}"


# x, groups
_SHAPES = (
    ("4x35x6x3", 7),
    ("2x64x9x7", 4),
    ("3x6x5", 6),
    ("9x40", 5),
    ("1x4x90x200", 1),
    ("2x12x2x3x4", 2),
    ("0x6x4x4", 2),
    ("2x6x0", 3),
)
