"""Losses of x against a target of the same dims, element by element, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vlug.ops.base import Array, Builder, Operation, dense_like, need, register, total
from vlug.tensor import Tensor

__all__ = [
    "BceWithLogits",
    "BceWithLogitsBackward",
    "HuberLoss",
    "HuberLossBackward",
    "KlDiv",
    "KlDivBackward",
    "L1Loss",
    "L1LossBackward",
    "MseLoss",
    "MseLossBackward",
    "SmoothL1Loss",
    "SmoothL1LossBackward",
]

REDUCTIONS = ("mean", "sum", "none")


def _sign(x: Array) -> Array:
    return np.asarray(np.where(np.isnan(x), x, np.sign(x)))


def _softplus(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


# --- the formulas: what an element's loss is, and its derivatives by x and by the target ---
@dataclass(frozen=True)
class _Loss(Operation):
    reduction: str = "mean"

    def value(self, x: Array, t: Array) -> Array:
        """The loss of each element."""
        raise NotImplementedError

    def slopes(self, x: Array, t: Array) -> tuple[Array, Array]:
        """Its derivatives by x and by t."""
        raise NotImplementedError

    def _check_loss(self, x: Tensor, target: Tensor) -> None:
        self.expect(
            self.reduction in REDUCTIONS,
            f"reduction {self.reduction!r} must be one of {', '.join(REDUCTIONS)}",
        )
        self.expect(target.dim == x.dim, f"target {target.dim} must have the dims of x {x.dim}")

    def _arguments(self, *inputs: Array | None) -> tuple[Array, ...]:
        """x, target and the factor of each loss (1 where there are no weights)."""
        x, t = need(inputs[:2])
        return x, t, np.ones((), x.dtype)


@dataclass(frozen=True)
class _Forward(_Loss):
    inputs: ClassVar[tuple[str, ...]] = ("x", "target")
    outputs: ClassVar[tuple[str, ...]] = ("loss",)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        x, target = need(inputs[:2])
        self.check_dtypes(*inputs, same=range(1, len(inputs)))
        self._check_loss(x, target)
        self._check_weights(x, *inputs[2:])
        if self.reduction == "none":
            return (Tensor(x.dim, dense_like(x, x.dim), x.dtype),)
        return (Tensor.of((), x.dtype),)

    def _check_weights(self, x: Tensor, *weights: Tensor | None) -> None:
        for i, w in enumerate(weights):
            if w is None:
                continue
            spread = (1,) * (x.rank - w.rank) + w.dim
            fits = w.rank <= x.rank and all(a in (1, b) for a, b in zip(spread, x.dim))
            name = ("weight", "pos_weight")[i]
            self.expect(fits, f"{name} {w.dim} does not broadcast to the dims of x {x.dim}")

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, t, factor = self._arguments(*inputs)
        with np.errstate(all="ignore"):
            losses = np.asarray(self._weighted_value(x, t, *inputs[2:]) * factor, x.dtype)
            if self.reduction == "none":
                return (losses,)
            loss = total(losses)
            return (np.asarray(np.divide(loss, x.size) if self.reduction == "mean" else loss, x.dtype),)

    def _weighted_value(self, x: Array, t: Array, *weights: Array | None) -> Array:
        return self.value(x, t)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return (None,) * len(inputs)
        made = g.append(self._backward(), (grads[0], *inputs))
        return (*made, *(None for _ in inputs[2:]))

    def _backward(self) -> Operation:
        import dataclasses

        from vlug.ops.base import OPERATIONS

        return OPERATIONS[f"{self.name}_backward"](**dataclasses.asdict(self))

    @classmethod
    def _tails(cls) -> Iterator[str]:
        yield ""
        yield "reduction=sum"
        yield "reduction=none"

    @classmethod
    def samples(cls) -> Iterator[str]:
        for tail in cls._tails():
            yield f"{cls.name} x=3x35x6x5 target=3x35x6x5 {tail}".strip()
        if cls.name.startswith("mse"):
            yield f"{cls.name} x=20011 target=20011"
            yield f"{cls.name} x=scalar target=scalar"
            yield f"{cls.name} x=0x3 target=0x3"
            yield f"{cls.name} x=0x3 target=0x3 reduction=none"


@dataclass(frozen=True)
class _Backward(_Forward):
    inputs: ClassVar[tuple[str, ...]] = ("dloss", "x", "target")
    outputs: ClassVar[tuple[str, ...]] = ("dx?", "dtarget?")

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        dloss, x, target = need(inputs[:3])
        self.check_dtypes(*inputs, same=range(1, len(inputs)))
        self._check_loss(x, target)
        self._check_weights(x, *inputs[3:])
        want = x.dim if self.reduction == "none" else ()
        self.expect(dloss.dim == want, f"dloss {dloss.dim} must be {want} for reduction {self.reduction}")
        return tuple(Tensor(t.dim, dense_like(t, t.dim), t.dtype) for t in (x, target))

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (dloss,) = need(inputs[:1])
        x, t, factor = self._arguments(*inputs[1:])
        with np.errstate(all="ignore"):
            g = dloss / x.size if self.reduction == "mean" else dloss
            slopes = self._weighted_slopes(x, t, *inputs[3:])
            return tuple(np.array(g * factor * s, x.dtype) for s in slopes)

    def _weighted_slopes(self, x: Array, t: Array, *weights: Array | None) -> tuple[Array, Array]:
        return self.slopes(x, t)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        raise NotImplementedError(f"{self.name}: no second derivative")

    @classmethod
    def samples(cls) -> Iterator[str]:
        forward = cls.name.removesuffix("_backward")
        for line in super().samples():
            dims = line.split("x=")[1].split()[0]
            dloss = dims if "none" in line else "scalar"
            yield line.replace(f"{forward}_backward x=", f"{forward}_backward dloss={dloss} x=")
        if forward == "mse_loss":
            yield "mse_loss_backward dloss=scalar x=7x9 target=7x9 -> dx"
            yield "mse_loss_backward dloss=7x9 x=7x9 target=7x9 reduction=none -> _, dtarget"


class _Mse(_Loss):
    @property
    def is_exact(self) -> bool:
        return self.reduction != "mean"

    def value(self, x: Array, t: Array) -> Array:
        return np.asarray(np.square(x - t))

    def slopes(self, x: Array, t: Array) -> tuple[Array, Array]:
        d = 2 * (x - t)
        return d, -d


@register
@dataclass(frozen=True)
class MseLoss(_Mse, _Forward):
    """loss = (x - target)², its mean or sum over all elements, or one each (reduction none)."""

    name: ClassVar[str] = "mse_loss"


@register
@dataclass(frozen=True)
class MseLossBackward(_Mse, _Backward):
    """dx = 2 (x - target) · dloss, over the number of elements for reduction mean; dtarget = -dx."""

    name: ClassVar[str] = "mse_loss_backward"


class _L1(_Loss):
    @property
    def is_exact(self) -> bool:
        return self.reduction != "mean"

    def value(self, x: Array, t: Array) -> Array:
        return np.asarray(np.abs(x - t))

    def slopes(self, x: Array, t: Array) -> tuple[Array, Array]:
        d = _sign(x - t)
        return d, -d


@register
@dataclass(frozen=True)
class L1Loss(_L1, _Forward):
    """loss = |x - target|."""

    name: ClassVar[str] = "l1_loss"


@register
@dataclass(frozen=True)
class L1LossBackward(_L1, _Backward):
    """dx = sign(x - target) · dloss, 0 where they are equal; over the number of elements for a mean."""

    name: ClassVar[str] = "l1_loss_backward"


@dataclass(frozen=True)
class _SmoothL1(_Loss):
    beta: float = 1.0

    def _check_loss(self, x: Tensor, target: Tensor) -> None:
        super()._check_loss(x, target)
        self.expect(self.beta >= 0, f"beta {self.beta} must be 0 or more")

    def value(self, x: Array, t: Array) -> Array:
        d = np.abs(x - t)
        if self.beta == 0:
            return np.asarray(d)
        return np.asarray(np.where(d < self.beta, d * d * 0.5 / self.beta, d - 0.5 * self.beta))

    def slopes(self, x: Array, t: Array) -> tuple[Array, Array]:
        d = x - t
        if self.beta == 0:
            s = _sign(d)
        else:
            s = np.asarray(np.where(np.abs(d) < self.beta, d / self.beta, _sign(d)))
        return s, -s

    @classmethod
    def _tails(cls) -> Iterator[str]:
        yield from ("", "reduction=sum beta=0.5", "reduction=none beta=0.0", "reduction=none beta=1.5")


@register
@dataclass(frozen=True)
class SmoothL1Loss(_SmoothL1, _Forward):
    """loss = d² / (2 beta) where d = |x - target| is below beta, else d - beta/2; beta 0 is the l1 loss."""

    name: ClassVar[str] = "smooth_l1_loss"


@register
@dataclass(frozen=True)
class SmoothL1LossBackward(_SmoothL1, _Backward):
    """dx = dloss · (x - target) / beta below beta, dloss · sign(x - target) elsewhere."""

    name: ClassVar[str] = "smooth_l1_loss_backward"


@dataclass(frozen=True)
class _Huber(_Loss):
    delta: float = 1.0

    def _check_loss(self, x: Tensor, target: Tensor) -> None:
        super()._check_loss(x, target)
        self.expect(self.delta > 0, f"delta {self.delta} must be positive")

    def value(self, x: Array, t: Array) -> Array:
        d = np.abs(x - t)
        return np.asarray(np.where(d < self.delta, d * d * 0.5, self.delta * (d - 0.5 * self.delta)))

    def slopes(self, x: Array, t: Array) -> tuple[Array, Array]:
        d = x - t
        s = np.asarray(np.where(np.abs(d) < self.delta, d, self.delta * _sign(d)))
        return s, -s

    @classmethod
    def _tails(cls) -> Iterator[str]:
        yield from ("", "reduction=sum delta=0.5", "reduction=none delta=1.5")


@register
@dataclass(frozen=True)
class HuberLoss(_Huber, _Forward):
    """loss = d² / 2 where d = |x - target| is below delta, else delta · (d - delta/2)."""

    name: ClassVar[str] = "huber_loss"


@register
@dataclass(frozen=True)
class HuberLossBackward(_Huber, _Backward):
    """dx = dloss · (x - target) below delta, dloss · delta · sign(x - target) elsewhere."""

    name: ClassVar[str] = "huber_loss_backward"


@dataclass(frozen=True)
class _KlDiv(_Loss):
    log_target: bool = False

    def value(self, x: Array, t: Array) -> Array:
        if self.log_target:
            return np.asarray(np.exp(t) * (t - x))
        return np.asarray(np.where(t == 0, 0, t * np.log(t)) - t * x)

    def slopes(self, x: Array, t: Array) -> tuple[Array, Array]:
        if self.log_target:
            p = np.exp(t)
            return -p, p * (t - x + 1)
        return -t, np.log(t) - x + 1

    @classmethod
    def _tails(cls) -> Iterator[str]:
        yield from ("", "reduction=sum log_target=1", "reduction=none", "reduction=none log_target=1")


@register
@dataclass(frozen=True)
class KlDiv(_KlDiv, _Forward):
    """loss = target · (log target - x), 0 · log 0 being 0; x holds log-probabilities.

    log_target: target does too: loss = exp(target) · (target - x).
    """

    name: ClassVar[str] = "kl_div"


@register
@dataclass(frozen=True)
class KlDivBackward(_KlDiv, _Backward):
    """dx = -target · dloss and dtarget = (log target + 1 - x) · dloss.

    With log_target -exp(target) · dloss and exp(target) · (target + 1 - x) · dloss.
    """

    name: ClassVar[str] = "kl_div_backward"


@dataclass(frozen=True)
class _Bce(_Loss):
    def _arguments(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, t = need(inputs[:2])
        return x, t, np.ones((), x.dtype) if inputs[2] is None else inputs[2]

    def _weighted_value(self, x: Array, t: Array, *weights: Array | None) -> Array:
        pt = t if weights[1] is None else weights[1] * t
        small = (1 - t + pt) * np.log1p(np.exp(-np.abs(x)))  # nothing cancels against it
        return np.asarray(np.where(x < 0, -pt, 1 - t) * x + small)

    def _weighted_slopes(self, x: Array, t: Array, *weights: Array | None) -> tuple[Array, Array]:
        p = weights[1]
        e = np.exp(-np.abs(x))
        sigmoid = np.where(x < 0, e, 1) / (1 + e)
        if p is None:
            return np.asarray(sigmoid - t), -x
        return np.asarray((1 - t + p * t) * sigmoid - p * t), np.asarray((p - 1) * _softplus(-x) - x)


@register
@dataclass(frozen=True)
class BceWithLogits(_Bce, _Forward):
    """loss = weight · ((1 - target) · x + (1 - target + pos_weight · target) · log(1 + exp(-x))).

    The binary cross-entropy of sigmoid(x), of logits of any size; both weights broadcast to x (pos_weight is
    one a class, as a rule). reduction mean divides by the number of elements, whatever the weights.
    """

    name: ClassVar[str] = "bce_with_logits"
    inputs: ClassVar[tuple[str, ...]] = ("x", "target", "weight?", "pos_weight?")

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield from super().samples()
        for tail in cls._tails():
            yield f"bce_with_logits x=7x33 target=7x33 weight=7x1 pos_weight=33 {tail}".strip()
        yield "bce_with_logits x=3x35x6x5 target=3x35x6x5 pos_weight=35x1x1"


@register
@dataclass(frozen=True)
class BceWithLogitsBackward(_Bce, _Backward):
    """dx = dloss · weight · ((1 - target + pos_weight · target) · sigmoid(x) - pos_weight · target)."""

    name: ClassVar[str] = "bce_with_logits_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dloss", "x", "target", "weight?", "pos_weight?")

    @classmethod
    def samples(cls) -> Iterator[str]:
        yield from super().samples()
        words = "x=7x33 target=7x33 weight=7x1 pos_weight=33"
        yield f"bce_with_logits_backward dloss=scalar {words}"
        yield f"bce_with_logits_backward dloss=7x33 {words} reduction=none"
