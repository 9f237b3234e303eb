"""Cross-entropy of logits against class indices, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vlug.dtypes import I64
from vlug.errors import BadInput, DTypeError
from vlug.ops.base import Array, Builder, Operation, dense_like, need, register, total, wide
from vlug.tensor import Tensor

__all__ = ["CrossEntropy", "CrossEntropyBackward"]


@dataclass(frozen=True)
class _CrossEntropy(Operation):
    reduction: str = "mean"
    ignore_index: int = -100
    label_smoothing: float = 0.0

    def _check(self, x: Tensor, target: Tensor, weight: Tensor | None) -> tuple[int, ...]:
        """Checks what both directions take; the dims of a loss a position."""
        modes = ("mean", "sum", "none")
        self.expect(
            self.reduction in modes, f"reduction {self.reduction!r} must be one of {', '.join(modes)}"
        )
        self.expect(
            0 <= self.label_smoothing <= 1, f"label_smoothing {self.label_smoothing} must be from 0 to 1"
        )
        if x.dtype not in self.dtypes:
            allowed = ", ".join(d.name for d in self.dtypes)
            raise DTypeError(f"{self.name}: x is {x.dtype}, allowed are {allowed}")
        if target.dtype != I64:
            raise DTypeError(f"{self.name}: target is {target.dtype}, allowed is i64")
        self.expect(x.rank >= 2, f"x {x.dim} must have 2 dimensions or more (N, C, spatial)")
        rest = (x.dim[0], *x.dim[2:])
        self.expect(target.dim == rest, f"target {target.dim} must be {rest}, x {x.dim} without its channels")
        if weight is not None:
            self.expect(
                weight.dim == (x.dim[1],), f"weight {weight.dim} must be ({x.dim[1]},), as x has channels"
            )
            if weight.dtype not in (x.dtype, wide(x.dtype)):
                raise DTypeError(
                    f"{self.name}: weight is {weight.dtype}, allowed are {x.dtype} and {wide(x.dtype)}"
                )
        return rest

    def _parts(
        self, x: Array, target: Array, weight: Array | None
    ) -> tuple[Array, Array, Array, Array, float]:
        """Class weights; for each position whether it counts, its class (0 if not), its weight; their sum."""
        c = x.shape[1]
        counts = target != self.ignore_index
        if np.any(counts & ((target < 0) | (target >= c))):
            bad = target[counts & ((target < 0) | (target >= c))][0]
            raise BadInput(
                f"{self.name}: target holds {bad}, allowed are 0 to {c - 1} and {self.ignore_index} (ignored)"
            )
        w = np.ones(c, x.dtype) if weight is None else weight
        label = np.where(counts, target, 0)
        share = np.where(counts, w[label] if c else 0, 0)
        return w, counts, label, share, float(share.sum())

    def _per_class(self, w: Array, x: Array) -> Array:
        return w.reshape(1, -1 if w.size else 0, *(1,) * (x.ndim - 2))

    @classmethod
    def _cases(cls) -> Iterator[tuple[str, str, bool, str]]:
        """x, target, whether with weights, attributes."""
        yield "17x33", "17", False, ""
        yield "17x33", "17", True, ""
        yield "17x33", "17", True, "reduction=sum ignore_index=3"
        yield "17x33", "17", False, "reduction=none"
        yield "17x33", "17", True, "label_smoothing=0.1"
        yield "17x33", "17", False, "label_smoothing=0.1 reduction=sum"
        yield "3x7x5x4", "3x5x4", True, ""
        yield "3x7x5x4", "3x5x4", False, "reduction=none label_smoothing=0.2"
        yield "8x1000", "8", False, ""
        yield "1x1", "1", False, ""
        yield "0x5", "0", False, "reduction=sum"
        yield "0x5", "0", False, ""


def _lse(x: Array) -> Array:
    if 0 in x.shape:
        return np.full((x.shape[0], *x.shape[2:]), -np.inf, x.dtype)
    top = x.max(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(top + np.log(total(np.exp(x - np.expand_dims(top, 1)), 1)))


@register
@dataclass(frozen=True)
class CrossEntropy(_CrossEntropy):
    """loss = Σ over positions of (1-s)·w[t]·(lse - x[t]) + s/C · Σ_c w[c]·(lse - x[c]), s: label_smoothing.

    x: logits N, C, spatial…; target: classes N, spatial…; lse = log Σ exp x, kept for the gradient. Positions
    with target = ignore_index count nothing. reduction mean divides by the sum of the weights w[t] of the
    positions that count (NaN if none does, as in PyTorch); none gives the loss a position.
    """

    name: ClassVar[str] = "cross_entropy"
    inputs: ClassVar[tuple[str, ...]] = ("x", "target", "weight?")
    outputs: ClassVar[tuple[str, ...]] = ("loss", "lse?")

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        x, target = need(inputs[:2])
        rest = self._check(x, target, inputs[2])
        return Tensor.of(rest if self.reduction == "none" else (), x.dtype), Tensor.of(rest, wide(x.dtype))

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, target = need(inputs[:2])
        w, counts, label, share, weights = self._parts(x, target, inputs[2])
        lse = _lse(x)
        if x.size == 0:
            losses = np.zeros(lse.shape, x.dtype)
        else:
            at_label = np.take_along_axis(x, np.expand_dims(label, 1), 1)[:, 0]
            losses = (1 - self.label_smoothing) * share * (lse - at_label)
            if self.label_smoothing:
                spread = total(self._per_class(w, x) * (np.expand_dims(lse, 1) - x), 1)
                losses = losses + self.label_smoothing / x.shape[1] * spread
            losses = np.where(counts, losses, 0)
        if self.reduction == "none":
            return losses, lse
        with np.errstate(invalid="ignore", divide="ignore"):
            loss = total(losses) if self.reduction == "sum" else np.divide(total(losses), weights)
        return np.asarray(loss), lse

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        if any(t is not None for t in grads[1:]):
            raise NotImplementedError("cross_entropy: no gradient through lse")
        if grads[0] is None:
            return (None,) * len(inputs)
        lse = outputs[1] if len(outputs) > 1 else None
        op = CrossEntropyBackward(self.reduction, self.ignore_index, self.label_smoothing)
        return g.append(op, (grads[0], *inputs, lse))[0], None, None

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, target, weighted, tail in cls._cases():
            weight = f"weight={x.split('x')[1]} " if weighted else ""
            yield f"cross_entropy x={x} target={target}:i64 {weight}{tail}".strip()
        yield "cross_entropy x=17x33 target=17:i64 -> loss"


@register
@dataclass(frozen=True)
class CrossEntropyBackward(_CrossEntropy):
    """dx = d · ((1-s)·w[t]·(p - [c=t]) + s/C · (p·Σw - w[c])) with p = exp(x - lse).

    d = dloss, divided by Σ w[t] for reduction mean. lse is computed from x where it is left out.
    """

    name: ClassVar[str] = "cross_entropy_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dloss", "x", "target", "weight?", "lse?")
    outputs: ClassVar[tuple[str, ...]] = ("dx",)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        dloss, x, target = need(inputs[:3])
        rest = self._check(x, target, inputs[3])
        want = rest if self.reduction == "none" else ()
        self.check_dtypes(dloss, x, same=(1,))
        self.expect(dloss.dim == want, f"dloss {dloss.dim} must be {want} for reduction {self.reduction}")
        lse = inputs[4]
        if lse is not None:
            self.expect(lse.dim == rest, f"lse {lse.dim} must be {rest}")
            if lse.dtype != wide(x.dtype):
                raise DTypeError(f"{self.name}: lse is {lse.dtype}, allowed is {wide(x.dtype)}")
        return (Tensor(x.dim, dense_like(x, x.dim), x.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dloss, x, target = need(inputs[:3])
        w, counts, label, share, weights = self._parts(x, target, inputs[3])
        if x.size == 0:
            return (np.zeros(x.shape, x.dtype),)
        lse = inputs[4] if inputs[4] is not None else _lse(x)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            p = np.exp(x - np.expand_dims(lse, 1))
            d = dloss / weights if self.reduction == "mean" else dloss
        hit = np.arange(x.shape[1]).reshape(1, -1, *(1,) * (x.ndim - 2)) == np.expand_dims(label, 1)
        s = self.label_smoothing
        dx = (1 - s) * np.expand_dims(share, 1) * (p - hit)
        if s:
            dx = dx + s / x.shape[1] * (p * w.sum() - self._per_class(w, x))
        with np.errstate(invalid="ignore"):
            dx = dx * np.expand_dims(np.broadcast_to(d, lse.shape), 1)
        return (np.where(np.expand_dims(counts, 1), dx, 0),)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, target, weighted, tail in cls._cases():
            weight = f"weight={x.split('x')[1]} " if weighted else ""
            dloss = target if "none" in tail else "scalar"
            yield f"cross_entropy_backward dloss={dloss} x={x} target={target}:i64 {weight}{tail}".strip()
        yield "cross_entropy_backward dloss=scalar x=17x33 target=17:i64 lse=17"
