"""Steps of optimisers: a parameter, its gradient and its state in, the new ones out (as a rule in place).

What changes from call to call (step, learning rate, betas …) are scalar inputs, f32 or f64: a new value costs
no plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from vlug.dtypes import F32, F64
from vlug.errors import DTypeError
from vlug.ops.base import Array, Operation, dense_like, need, register
from vlug.tensor import Tensor

__all__ = ["AdamStep", "SgdStep"]


@dataclass(frozen=True)
class _Step(Operation):
    """full: ports of the parameter's dims, the parameter first, then its gradient, then state."""

    full: ClassVar[int] = 0
    state: ClassVar[tuple[str, ...]] = ()

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        p, g, *state = inputs[: self.full]
        p, g = need((p, g))
        self.check_dtypes(p)
        for i, t in enumerate(inputs):
            if t is None:
                continue
            port = self.port(i)
            if i >= self.full:
                self.expect(t.numel == 1, f"{port} {t.dim} must be one number")
                if t.dtype not in (F32, F64):
                    raise DTypeError(f"{self.name}: {port} is {t.dtype}, allowed are f32, f64")
                continue
            self.expect(t.dim == p.dim, f"{port} {t.dim} must have the dims of p {p.dim}")
            if t.dtype != p.dtype and (t.dtype != F32 or p.dtype == F64):
                allowed = p.dtype.name if p.dtype == F64 else f"{p.dtype}, f32"
                raise DTypeError(f"{self.name}: {port} is {t.dtype}, allowed with p {p.dtype}: {allowed}")
        made = (p, *self.new_state(p, state))
        return tuple(Tensor(t.dim, dense_like(t, t.dim), t.dtype) for t in made if t is not None)

    def new_state(self, p: Tensor, state: list[Tensor | None]) -> list[Tensor | None]:
        """What the step keeps for the next one; trailing state that is absent is left off."""
        return state


def _number(a: Array | None) -> float:
    """A Python number, which takes the arrays' precision."""
    return float(need((a,))[0].reshape(()))


@register
@dataclass(frozen=True)
class SgdStep(_Step):
    """Stochastic gradient descent: g' = g + weight_decay · p, b' = momentum · b + (1 - dampening) · g',
    p' = p - lr · b' (nesterov: lr · (g' + momentum · b'); without a buffer: lr · g').

    maximize: g is taken with the other sign. first: b' = g', and no b comes. As torch.optim.SGD: there is a
    buffer exactly if momentum is not 0 (an engine reports a code where that is not so).
    """

    nesterov: bool = False
    maximize: bool = False
    first: bool = False

    name: ClassVar[str] = "sgd_step"
    inputs: ClassVar[tuple[str, ...]] = ("p", "g", "buf?", "lr", "momentum", "dampening", "weight_decay")
    outputs: ClassVar[tuple[str, ...]] = ("next_p", "next_buf?")
    full: ClassVar[int] = 3

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        if self.first:
            self.expect(inputs[2] is None, "buf is not read by the first step: it must be left out")
        return super().infer(*inputs)

    def new_state(self, p: Tensor, state: list[Tensor | None]) -> list[Tensor | None]:
        return [p] if self.first else state

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        p, g = need(inputs[:2])
        buf = inputs[2]
        lr, momentum, dampening, weight_decay = map(_number, inputs[3:])
        g = -g if self.maximize else g
        if weight_decay:
            g = g + weight_decay * p
        if buf is None and not self.first:
            return (p - lr * g,)
        new = g if buf is None else momentum * buf + (1 - dampening) * g
        return p - lr * (g + momentum * new if self.nesterov else new), new

    @classmethod
    def samples(cls) -> Iterator[str]:
        scalars = "lr=scalar:f64 momentum=scalar:f64 dampening=scalar:f64 weight_decay=scalar:f64"
        yield f"sgd_step p=1001 g=1001 buf=1001 {scalars}"
        yield f"sgd_step p=16x3x3x3 g=16x3x3x3 {scalars} maximize=1"
        yield f"sgd_step p=300x40 g=300x40 {scalars} first=1"
        yield f"sgd_step p=33x7 g=33x7 buf=33x7 {scalars} nesterov=1"
        yield f"sgd_step p=50:bf16 g=50:bf16 buf=50 {scalars}"
        yield f"sgd_step p=scalar g=scalar buf=scalar {scalars}"
        yield f"sgd_step p=0x4 g=0x4 {scalars}"
        yield (
            f"sgd_step p=100 g=100 buf=100 {scalars} -> a, b; sgd_step p:p2=7x5 g:g2=7x5 buf:buf2=7x5 lr=lr"
            " momentum=momentum dampening=dampening weight_decay=weight_decay -> c, d"
        )


def _one_minus_power(beta: Any, step: Any) -> Any:
    """1 - beta^step, without the rounding of a power near 1."""
    return -np.expm1(step * np.log1p(beta - 1))


@register
@dataclass(frozen=True)
class AdamStep(_Step):
    """Adam (Kingma, Ba 2015), AMSGrad where vmax is there; decoupled: AdamW (Loshchilov, Hutter 2019).

    g' = g + weight_decay · p (decoupled: p shrinks by 1 - lr · weight_decay instead);
    m' = m + (1 - beta1) (g' - m);
    v' = beta2 · v + (1 - beta2) g'²; vmax' = max(vmax, v');
    p' = p - lr / (1 - beta1^step) · m' / (sqrt(v' or vmax') / sqrt(1 - beta2^step) + eps).

    step: how many steps were made, this one included: a whole number. maximize: g with the other sign.
    """

    decoupled: bool = False
    maximize: bool = False

    name: ClassVar[str] = "adam_step"
    inputs: ClassVar[tuple[str, ...]] = (
        "p", "g", "m", "v", "vmax?", "step", "lr", "beta1", "beta2", "eps", "weight_decay",
    )  # fmt: skip
    outputs: ClassVar[tuple[str, ...]] = ("next_p", "next_m", "next_v", "next_vmax?")
    full: ClassVar[int] = 5

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        p, g, m, v = need(inputs[:4])
        vmax = inputs[4]
        step, lr, beta1, beta2, eps, weight_decay = map(_number, inputs[5:])
        g = -g if self.maximize else g
        if self.decoupled:
            p = p * (1 - lr * weight_decay)
        elif weight_decay:
            g = g + weight_decay * p
        m = m + (1 - beta1) * (g - m)
        v = beta2 * v + (1 - beta2) * (g * g)
        top = v if vmax is None else np.maximum(vmax, v)
        size, scale = lr / _one_minus_power(beta1, step), 1 / np.sqrt(_one_minus_power(beta2, step))
        p = p - size * (m / (np.sqrt(top) * scale + eps))
        return (p, m, v) if vmax is None else (p, m, v, top)

    @classmethod
    def samples(cls) -> Iterator[str]:
        scalars = " ".join(f"{s}=scalar:f64" for s in ("step", "lr", "beta1", "beta2", "eps", "weight_decay"))
        yield f"adam_step p=1001 g=1001 m=1001 v=1001 {scalars}"
        yield f"adam_step p=16x3x3x3 g=16x3x3x3 m=16x3x3x3 v=16x3x3x3 vmax=16x3x3x3 {scalars} decoupled=1"
        yield f"adam_step p=300x40 g=300x40 m=300x40 v=300x40 {scalars} maximize=1 decoupled=1"
        yield f"adam_step p=50:bf16 g=50:bf16 m=50 v=50 vmax=50 {scalars} maximize=1"
        yield f"adam_step p=scalar g=scalar m=scalar v=scalar {scalars}"
        yield f"adam_step p=0x4 g=0x4 m=0x4 v=0x4 {scalars}"
        again = " ".join(f"{s}={s}" for s in ("lr", "beta1", "beta2", "eps", "weight_decay"))
        yield (
            f"adam_step p=100 g=100 m=100 v=100 {scalars} -> a, b, c; "
            f"adam_step p:p2=7x5 g:g2=7x5 m:m2=7x5 v:v2=7x5 step:step2=scalar:f64 {again} -> d, e, f"
        )
