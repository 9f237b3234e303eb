"""Connectionist temporal classification: the loss of label sequences without alignment, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vlug.dtypes import I64
from vlug.errors import BadInput, DTypeError
from vlug.ops.base import Array, Builder, Cost, Operation, need, register, wide
from vlug.tensor import Tensor, contiguous_strides

__all__ = ["CtcLoss", "CtcLossBackward"]


def _lse(*terms: Array) -> Array:
    """log Σ exp, of -inf alone -inf; NaN with inf among the terms, which no probability has (as PyTorch)."""
    top = np.maximum.reduce(terms)
    at = np.where(np.isneginf(top), np.zeros((), top.dtype), top)
    total = np.zeros_like(top)
    for t in terms:
        total = total + np.exp(t - at)
    return np.asarray(at + np.log(total))


def _shifted(a: Array, by: int) -> Array:
    """a[s - by], -inf before the first (past the last for negative `by`)."""
    out = np.full_like(a, -np.inf)
    n = max(a.size - abs(by), 0)
    if by >= 0:
        out[by : by + n] = a[:n]
    else:
        out[:n] = a[-by : -by + n]
    return out


@dataclass(frozen=True)
class _Ctc(Operation):
    blank: int = 0
    zero_infinity: bool = False

    def _check(self, x: Tensor, target: Tensor, *lengths: Tensor) -> tuple[int, int, int]:
        """T, N and the most labels that a target can have."""
        self.expect(x.rank == 3, f"x {x.dim} must have 3 dimensions: T, N, C")
        t, n, c = x.dim
        self.expect(0 <= self.blank < c, f"blank {self.blank} must be a class, 0 to {c - 1}")
        self.expect(
            target.rank == 1 or (target.rank == 2 and target.dim[0] == n),
            f"target {target.dim} must be ({n}, labels), or the labels of all targets one after the other",
        )
        for name, each in zip(("input_lengths", "target_lengths"), lengths):
            self.expect(each.dim == (n,), f"{name} {each.dim} must be ({n},), one a sequence")
        for name, each in zip(("target", "input_lengths", "target_lengths"), (target, *lengths)):
            if each.dtype != I64:
                raise DTypeError(f"{self.name}: {name} is {each.dtype}, allowed is i64")
        return t, n, target.dim[-1]

    def _labels(
        self, x: Array, target: Array, input_lengths: Array, target_lengths: Array, longest: bool
    ) -> list[Array]:
        """The labels of each sequence, all checked."""
        t, n, c = x.shape
        s = target.shape[-1]
        for name, each, most in (("input_lengths", input_lengths, t), ("target_lengths", target_lengths, s)):
            bad = (each < 0) | (each > most)
            if bad.any():
                raise BadInput(f"{self.name}: {name} holds {each[bad][0]}, allowed are 0 to {most}")
        if longest and target_lengths.max(initial=0) != s:
            raise BadInput(f"{self.name}: no target has all {s} labels")
        if target.ndim == 1:
            ends = np.cumsum(target_lengths)
            if n and ends[-1] > s:
                raise BadInput(f"{self.name}: target_lengths add up to {ends[-1]}, target has {s} labels")
            labels = [target[e - l : e] for e, l in zip(ends, target_lengths)]
        else:
            labels = [row[:l] for row, l in zip(target, target_lengths)]
        for row in labels:
            bad = (row < 0) | (row >= c)
            if bad.any():
                raise BadInput(f"{self.name}: target holds {row[bad][0]}, allowed are 0 to {c - 1}")
        return labels

    def _states(self, labels: Array) -> tuple[Array, Array]:
        """Classes of the states blank, label, blank, …; 0 where a state may follow the one two before it."""
        states = np.full(2 * labels.size + 1, self.blank)
        states[1::2] = labels
        skip = np.full(states.size, -np.inf)
        skip[3::2] = np.where(labels[1:] != labels[:-1], 0, -np.inf)
        return states, skip

    def _alphas(self, x: Array, labels: Array) -> Array:
        """log of the probability of all paths to a state, (T, states), for one sequence x (T, C)."""
        states, skip = self._states(labels)
        skip = skip.astype(x.dtype)
        alpha = np.full((x.shape[0], states.size), -np.inf, x.dtype)
        for t in range(x.shape[0]):
            if t == 0:
                alpha[0, :2] = x[0, states[:2]]
                continue
            a = alpha[t - 1]
            alpha[t] = _lse(a, _shifted(a, 1), _shifted(a, 2) + skip) + x[t, states]
        return alpha

    def _loss(self, alpha: Array) -> Array:
        """-log of the probability of a target."""
        if alpha.shape[0] == 0:
            return np.asarray(0.0 if alpha.shape[1] == 1 else np.inf, alpha.dtype)
        last = alpha[-1]
        return np.asarray(-(_lse(last[-1:], last[-2:-1])[0] if last.size > 1 else last[-1]))

    @classmethod
    def _cases(cls) -> Iterator[str]:
        lengths = "input_lengths=N:i64 target_lengths=N:i64"
        for words, n in (
            ("x=12x3x7 target=3x4:i64 LENGTHS", 3),
            ("x=9x2x40 target=9:i64 LENGTHS blank=5", 2),
            ("x=30x2x5 target=2x19:i64 LENGTHS zero_infinity=1", 2),
            ("x=5x3x4 target=3x0:i64 LENGTHS", 3),
            ("x=6x0x4 target=0x3:i64 LENGTHS", 0),
        ):
            yield words.replace("LENGTHS", lengths.replace("N", str(n)))


@register
@dataclass(frozen=True)
class CtcLoss(_Ctc):
    """loss[n] = -log Σ over the alignments of target n of their probabilities.

    x: log-probabilities (T, N, C). target: labels, (N, S) padded or all of them one after the other; the
    first input_lengths[n] steps and target_lengths[n] labels of a sequence count. A target that no alignment
    fits has loss inf, or 0 with zero_infinity. alpha (N, T, 2 S + 1), kept for the gradient: log of the
    probability of all paths to a state, -inf past the lengths. longest: some target must have all S labels
    (PyTorch's alpha is as wide as the longest target). An x of inf gives NaN where paths may meet (as there).
    """

    longest: bool = False

    name: ClassVar[str] = "ctc_loss"
    inputs: ClassVar[tuple[str, ...]] = ("x", "target", "input_lengths", "target_lengths")
    outputs: ClassVar[tuple[str, ...]] = ("loss", "alpha?")

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        x, target, *lengths = need(inputs)
        self.check_dtypes(x)
        t, n, s = self._check(x, target, *lengths)
        return Tensor.of((n,), x.dtype), Tensor.of((n, t, 2 * s + 1), wide(x.dtype))

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, target, input_lengths, target_lengths = need(inputs)
        labels = self._labels(x, target, input_lengths, target_lengths, self.longest)
        loss = np.zeros(x.shape[1], x.dtype)
        alpha = np.full((x.shape[1], x.shape[0], 2 * target.shape[-1] + 1), -np.inf, x.dtype)
        with np.errstate(all="ignore"):
            for n, (row, t) in enumerate(zip(labels, input_lengths)):
                a = self._alphas(x[:t, n], row)
                alpha[n, :t, : a.shape[1]] = a
                loss[n] = self._loss(a)
        return np.where(np.isposinf(loss), 0, loss) if self.zero_infinity else loss, alpha

    def cost(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]) -> Cost:
        x, target = need(inputs[:2])
        states = x.dim[0] * x.dim[1] * (2 * target.dim[-1] + 1)
        return Cost(80 * states, x.nbytes)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        if any(t is not None for t in grads[1:]):
            raise NotImplementedError("ctc_loss: no gradient through alpha")
        if grads[0] is None:
            return (None,) * 4
        alpha = outputs[1] if len(outputs) > 1 else None
        op = CtcLossBackward(self.blank, self.zero_infinity, of_softmax=False)
        return g.append(op, (grads[0], *inputs, alpha, None))[0], None, None, None

    @classmethod
    def samples(cls) -> Iterator[str]:
        for words in cls._cases():
            yield f"ctc_loss {words}"
        yield "ctc_loss x=12x3x7 target=3x4:i64 input_lengths=3:i64 target_lengths=3:i64 -> loss"


@register
@dataclass(frozen=True)
class CtcLossBackward(_Ctc):
    """dx[t, n, c] = dloss[n] · (exp(x[t, n, c]) - the share of the alignments in class c at step t).

    of_softmax: x is a log-softmax, whose own gradient cancels exp(x) again; that form is PyTorch's and
    cuDNN's. 0: the derivative proper, without exp(x). Steps past input_lengths get 0; a target that no
    alignment fits NaN, or 0 with zero_infinity. alpha, loss: ctc_loss's, the loss without
    zero_infinity; computed where they are left out.
    """

    of_softmax: bool = True

    name: ClassVar[str] = "ctc_loss_backward"
    inputs: ClassVar[tuple[str, ...]] = (
        "dloss",
        "x",
        "target",
        "input_lengths",
        "target_lengths",
        "alpha?",
        "loss?",
    )
    outputs: ClassVar[tuple[str, ...]] = ("dx",)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        dloss, x, target, *lengths = need(inputs[:5])
        self.check_dtypes(dloss, x, same=(1,))
        t, n, s = self._check(x, target, *lengths)
        self.expect(dloss.dim == (n,), f"dloss {dloss.dim} must be ({n},)")
        alpha = inputs[5]
        if alpha is not None:
            want = (n, t, 2 * s + 1)
            self.expect(alpha.dim == want, f"alpha {alpha.dim} must be {want}")
            if alpha.dtype != wide(x.dtype):
                raise DTypeError(f"{self.name}: alpha is {alpha.dtype}, allowed is {wide(x.dtype)}")
        loss = inputs[6]
        if loss is not None:
            self.check_dtypes(loss, x, same=(1,))
            self.expect(loss.dim == (n,), f"loss {loss.dim} must be ({n},)")
        return (Tensor(x.dim, contiguous_strides(x.dim), x.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dloss, x, target, input_lengths, target_lengths = need(inputs[:5])
        labels = self._labels(x, target, input_lengths, target_lengths, False)
        dx = np.zeros(x.shape, x.dtype)
        with np.errstate(all="ignore"):
            for n, (row, steps) in enumerate(zip(labels, input_lengths)):
                states, skip = self._states(row)
                if inputs[5] is None:
                    alpha = self._alphas(x[:steps, n], row)
                else:
                    alpha = inputs[5][n, :steps, : states.size]
                loss = self._loss(alpha) if inputs[6] is None else inputs[6][n]
                if steps == 0 or (self.zero_infinity and np.isposinf(loss)):
                    continue
                onward = _shifted(skip.astype(x.dtype), -2)
                beta = np.full(states.size, -np.inf, x.dtype)
                for t in reversed(range(steps)):
                    if t == steps - 1:
                        rest = beta.copy()
                        rest[-2:] = 0
                    else:
                        rest = _lse(beta, _shifted(beta, -1), _shifted(beta, -2) + onward)
                    beta = rest + x[t, n, states]
                    share = np.zeros(x.shape[2], x.dtype)
                    np.add.at(share, states, np.exp(alpha[t] + rest + loss))
                    own = np.exp(x[t, n]) if self.of_softmax else np.zeros((), x.dtype)
                    dx[t, n] = dloss[n] * (own - share + (loss - loss))
        return (dx,)

    def cost(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]) -> Cost:
        x, target = need(inputs[1:3])
        states = x.dim[0] * x.dim[1] * (2 * target.dim[-1] + 1)
        return Cost(120 * states + 20 * x.numel, 2 * x.nbytes)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for words in cls._cases():
            n = words.split("x=")[1].split("x")[1]
            yield f"ctc_loss_backward dloss={n} {words}"
        lengths = "input_lengths=3:i64 target_lengths=3:i64"
        yield f"ctc_loss_backward dloss=3 x=12x3x7 target=3x4:i64 {lengths} of_softmax=0"
        yield f"ctc_loss_backward dloss=3 x=12x3x7 target=3x4:i64 {lengths} alpha=3x12x9"
        yield f"ctc_loss_backward dloss=3 x=12x3x7 target=3x4:i64 {lengths} alpha=3x12x9 loss=3"
