"""Negative log-likelihood of log-probabilities against class indices, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from vlug.dtypes import I64
from vlug.errors import BadInput, DTypeError
from vlug.ops.base import Array, Builder, Operation, need, register, total, wide
from vlug.tensor import Tensor, contiguous_strides

__all__ = ["NllLoss", "NllLossBackward"]


@dataclass(frozen=True)
class _Nll(Operation):
    reduction: str = "mean"
    ignore_index: int = -100

    @classmethod
    def spatial_rank(cls, inputs: Sequence[Tensor | None]) -> int:
        return 1

    def _check(
        self, dim: tuple[int, ...], main: Tensor, target: Tensor, weight: Tensor | None
    ) -> tuple[int, ...]:
        """Checks what both directions take (dim: of x); the dims of a loss a position."""
        modes = ("mean", "sum", "none")
        self.expect(
            self.reduction in modes, f"reduction {self.reduction!r} must be one of {', '.join(modes)}"
        )
        self.check_dtypes(main)
        if target.dtype != I64:
            raise DTypeError(f"{self.name}: target is {target.dtype}, allowed is i64")
        self.expect(len(dim) >= 1, f"x {dim} must have 1 dimension or more: (C), or (N, C, spatial)")
        axis = min(1, len(dim) - 1)
        rest = (*dim[:axis], *dim[axis + 1 :])
        self.expect(target.dim == rest, f"target {target.dim} must be {rest}, x {dim} without its classes")
        if weight is not None:
            c = dim[axis]
            self.expect(weight.dim == (c,), f"weight {weight.dim} must be ({c},), one a class")
            if weight.dtype not in (main.dtype, wide(main.dtype)):
                raise DTypeError(
                    f"{self.name}: weight is {weight.dtype}, allowed are {main.dtype} and {wide(main.dtype)}"
                )
        return rest

    def _shares(self, target: Array, weight: Array | None, c: int, kind: type) -> tuple[Array, Array]:
        """For each position its class (0 where it counts nothing) and its weight."""
        counts = target != self.ignore_index
        bad = counts & ((target < 0) | (target >= c))
        if np.any(bad):
            allowed = f"0 to {c - 1} and {self.ignore_index} (ignored)"
            raise BadInput(f"{self.name}: target holds {target[bad][0]}, allowed are {allowed}")
        label = np.where(counts, target, 0)
        w = np.ones(max(c, 1), kind) if weight is None or not c else weight
        return label, np.where(counts, w[label], 0).astype(kind)

    @classmethod
    def _cases(cls) -> Iterator[tuple[str, str, str, str]]:
        """x, target, classes, attributes."""
        yield "17x33", "17", "", ""
        yield "17x33", "17", "33", "reduction=sum ignore_index=3"
        yield "17x33", "17", "33", "reduction=none"
        yield "3x7x5x4", "3x5x4", "7", ""
        yield "3x7x5x4", "3x5x4", "", "reduction=none"
        yield "9", "scalar", "9", ""
        yield "0x5", "0", "", ""
        yield "4x0", "4", "", "reduction=sum"


@register
@dataclass(frozen=True)
class NllLoss(_Nll):
    """loss = -Σ over positions of w[t] · x[t]; reduction mean divides by the sum of these weights, `total`.

    x: log-probabilities (C), or N, C, spatial…; target: classes, x's dims without C. Positions with target =
    ignore_index count nothing (a mean is NaN if none counts, as in PyTorch). reduction none gives the loss a
    position, and total 0.
    """

    name: ClassVar[str] = "nll_loss"
    inputs: ClassVar[tuple[str, ...]] = ("x", "target", "weight?")
    outputs: ClassVar[tuple[str, ...]] = ("loss", "total?")

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        x, target = need(inputs[:2])
        rest = self._check(x.dim, x, target, inputs[2])
        return Tensor.of(rest if self.reduction == "none" else (), x.dtype), Tensor.of((), x.dtype)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, target = need(inputs[:2])
        axis = min(1, x.ndim - 1)
        label, share = self._shares(target, inputs[2], x.shape[axis], x.dtype.type)
        if x.shape[axis]:
            picked = np.squeeze(np.take_along_axis(x, np.expand_dims(label, axis), axis), axis)
            losses = np.asarray(np.where(target == self.ignore_index, 0, -picked * share), x.dtype)
        else:
            losses = np.zeros(target.shape, x.dtype)
        if self.reduction == "none":
            return losses, np.zeros((), x.dtype)
        loss, weights = total(losses), total(share)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(loss / weights if self.reduction == "mean" else loss, x.dtype), weights

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        if any(t is not None for t in grads[1:]):
            raise NotImplementedError("nll_loss: no gradient through total")
        if grads[0] is None:
            return (None,) * len(inputs)
        (x,) = need(inputs[:1])
        total_ = outputs[1] if len(outputs) > 1 else None
        op = NllLossBackward(self.reduction, self.ignore_index, size=x.dim)
        return g.append(op, (grads[0], inputs[1], inputs[2], total_))[0], None, None

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, target, classes, tail in cls._cases():
            weight = f"weight={classes} " if classes else ""
            yield f"nll_loss x={x} target={target}:i64 {weight}{tail}".strip()
        yield "nll_loss x=17x33 target=17:i64 -> loss"


@register
@dataclass(frozen=True)
class NllLossBackward(_Nll):
    """dx = -w[t] · dloss at the target's class, over total for reduction mean; 0 elsewhere.

    size: the dims of dx. total: nll_loss's; computed from the targets where it is left out.
    """

    size: tuple[int, ...] = field(kw_only=True)

    name: ClassVar[str] = "nll_loss_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dloss", "target", "weight?", "total?")
    outputs: ClassVar[tuple[str, ...]] = ("dx",)

    @classmethod
    def spatial_rank(cls, inputs: Sequence[Tensor | None]) -> int:
        """`size` has the target's dims and the classes: equal ones print as one number."""
        return 1 if inputs[1] is None else inputs[1].rank + 1

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        dloss, target = need(inputs[:2])
        rest = self._check(self.size, dloss, target, inputs[2])
        want = rest if self.reduction == "none" else ()
        self.expect(dloss.dim == want, f"dloss {dloss.dim} must be {want} for reduction {self.reduction}")
        t = inputs[3]
        if t is not None:
            self.expect(t.dim == (), f"total {t.dim} must be ()")
            self.check_dtypes(*inputs, same=(3,))
        return (Tensor(self.size, contiguous_strides(self.size), dloss.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dloss, target = need(inputs[:2])
        axis = min(1, len(self.size) - 1)
        label, share = self._shares(target, inputs[2], self.size[axis], dloss.dtype.type)
        dx = np.zeros(self.size, dloss.dtype)
        if dx.size:
            d = dloss
            with np.errstate(invalid="ignore", divide="ignore"):
                if self.reduction == "mean":
                    d = dloss / (total(share) if inputs[3] is None else inputs[3])
                at = np.where(target == self.ignore_index, 0, -share * d)
            np.put_along_axis(dx, np.expand_dims(label, axis), np.expand_dims(at, axis), axis)
        return (dx,)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, target, classes, tail in cls._cases():
            weight = f"weight={classes} " if classes else ""
            dloss = target if "none" in tail else "scalar"
            yield f"nll_loss_backward dloss={dloss} target={target}:i64 {weight}{tail} size={x}"
        yield "nll_loss_backward dloss=scalar target=17:i64 total=scalar size=17x33"
