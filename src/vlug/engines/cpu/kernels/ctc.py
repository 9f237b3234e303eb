"""CTC: the recursions over the states blank, label, blank, … of a target, vectors of states at a time.

A part takes whole sequences, so nothing depends on the number of threads. Rows of states lie in scratch
between two states that cannot be, so that the neighbours of the first and last one can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlug.codegen.ir import Int, Kernel, Lanes, Val, View, larger, select
from vlug.codegen.vecmath import exp, log
from vlug.engines.cpu.kernels.softmax import LOW, computed

__all__ = ["BAD_LABEL", "BAD_LENGTH", "ctc_loss", "ctc_loss_backward"]

BAD_LABEL, BAD_LENGTH = 2, 3
#: Impossible states before and after a row.
PAD = 2


def _lse(a: Val, b: Val, c: Val | None = None) -> Val:
    """log Σ exp, of -inf alone -inf."""
    top = larger(a, b) if c is None else larger(larger(a, b), c)
    top = select(top.eq(LOW), 0.0 * _ones(top), top)
    total = exp(a - top) + exp(b - top)
    return top + log(total if c is None else total + exp(c - top))


def _ones(x: Val) -> Val:
    return x.k.zip(lambda a: x.k.val(1.0, x).v[0], x)


@dataclass
class Batch:
    """The tensors that both directions read, and the sizes."""

    k: Kernel
    x: View
    target: View
    input_lengths: View
    target_lengths: View
    starts: View | None

    @classmethod
    def of(cls, k: Kernel, kinds: Sequence[str | None], padded: bool, first: int) -> Batch:
        """The tensors from number `first` on; leaves the program where a length is out of range."""
        T, N, C, S = (k.size(n) for n in "TNCS")
        x = k.view(T, N, C, strides=[k.size(f"x{i}") for i in range(3)], dtype=kinds[first], at=first)
        steps = [k.size("t0"), k.size("t1")] if padded else [k.size("t1")]
        target = k.view(*([N, S] if padded else [S]), strides=steps, dtype="i64", at=first + 1)
        lengths = [
            k.view(N, strides=[k.size(f"{n}_step")], dtype="i64", at=first + 2 + i)
            for i, n in enumerate(("il", "tl"))
        ]
        starts = None if padded else k.shared(N, dtype="i64")
        at, most = k.var(k.val(0, dtype="i64")), k.var(k.val(0, dtype="i64"))
        for n in k.range(N):
            t, s = lengths[0][n], lengths[1][n]
            k.error_if((t < 0) | (t > k.to_int(T)) | (s < 0) | (s > k.to_int(S)), BAD_LENGTH)
            if starts is not None:
                starts[n] = at
            at += s
            most.set(select(s > most, s, most))
        if not padded:
            k.error_if(at > k.to_int(S), BAD_LENGTH)
        k.error_if(most < k.to_int(k.size("least")), BAD_LENGTH)
        return cls(k, x, target, lengths[0], lengths[1], starts)

    def labels_of(self, n: Int) -> View:
        if self.starts is None:
            return self.target.at(n)
        whole = self.target
        p = whole.addr(self.starts[n].idx())
        return View(self.k, p, whole.dims, whole.strides, "i64")


class Sequence1:
    """One sequence in a part: its labels, which states may follow which, what the steps emit."""

    def __init__(self, batch: Batch, n: Int, dtype: str) -> None:
        k = self.k = batch.k
        C, S, blank = k.size("C"), k.size("S"), k.size("blank")
        self.x, self.n, self.dtype, self.blank = batch.x, n, dtype, blank
        self.steps, self.count = batch.input_lengths[n].idx(), batch.target_lengths[n].idx()
        self.states = self.count * 2 + 1
        self.labels = k.scratch(S, dtype="i64")
        width = S * 2 + (1 + 2 * PAD)
        self.skip, self.emitted = k.scratch(width, dtype=dtype), k.scratch(width, dtype=dtype)
        given = batch.labels_of(n)
        for i in k.vectors(width):
            self.skip[i] = LOW
        for j in k.range(self.count):
            label = given[j]
            k.error_if((label < 0) | (label >= k.to_int(C)), BAD_LABEL)
            self.labels[j] = label
        for j in k.range(1, self.count):
            differ = self.labels[j].ne(self.labels[j - 1])
            self.skip[j * 2 + (1 + PAD)] = select(differ, k.val(0.0, dtype=dtype), LOW)

    def emit(self, t: Int) -> None:
        """What each state emits at step t."""
        k, row = self.k, self.x.at(t, self.n)
        blank = row[self.blank]
        self.emitted[PAD] = blank
        for j in k.range(self.count):
            self.emitted[j * 2 + (1 + PAD)] = row[self.labels[j].idx()]
            self.emitted[j * 2 + (2 + PAD)] = blank

    def forward(self, rows: View, t: Int, before: Int, here: Int) -> None:
        """Row `here` of alphas at step t from row `before`."""
        k = self.k
        self.emit(t)
        for first in k.either(k.compare("==", t, 0)):
            if first:
                for s in k.vectors(self.states):
                    possible = k.positions(s, "i32") < 2
                    rows[here, s + PAD] = select(possible, self.emitted[s + PAD], LOW)
            else:
                a = rows.at(before)
                for s in k.vectors(self.states):
                    v = _lse(a[s + PAD], a[s + (PAD - 1)], a[s + (PAD - 2)] + self.skip[s + PAD])
                    rows[here, s + PAD] = v + self.emitted[s + PAD]

    def loss(self, row: View) -> Any:
        """-log of the target's probability from the last row of alphas (pad and all)."""
        k = self.k
        last = row[self.states + (PAD - 1)]
        before = row[self.states + (PAD - 2)]  # of a target of no labels: the pad
        blank = k.compare("==", self.count, 0)
        found = -select(blank, last, _lse(last, before))  # of one state no log-sum-exp, which has NaN for inf
        none = select(blank, k.val(0.0, dtype=self.dtype), -LOW)
        return select(k.compare("==", self.steps, 0), none, found)


def _low(k: Kernel, rows: View, count: int, width: Int) -> None:
    for r in range(count):
        for i in k.vectors(width):
            rows[r, i] = LOW


def ctc_loss(k: Kernel, kinds: tuple[str | None, ...], padded: bool, zero_infinity: bool) -> None:
    """Tensors: x target input_lengths target_lengths loss alpha."""
    dtype = computed(kinds[0])
    batch = Batch.of(k, kinds, padded, 0)
    T, N, S = k.size("T"), k.size("N"), k.size("S")
    loss, alpha = k.view(N, strides=[k.size("loss_step")], dtype=kinds[4], at=4), None
    if kinds[5] is not None:
        alpha = k.view(N, T, S * 2 + 1, strides=[k.size(f"a{i}") for i in range(3)], dtype=kinds[5], at=5)
    for n in k.parallel(N):
        one = Sequence1(batch, n, dtype)
        width = S * 2 + (1 + 2 * PAD)
        rows = k.scratch(2, width, dtype=dtype)
        _low(k, rows, 2, width)
        for t in k.range(one.steps):
            here = t % 2
            one.forward(rows, t, 1 - here, here)
            if alpha is not None:
                for s in k.vectors(one.states):
                    alpha[n, t, s] = rows[here, s + PAD]
                for s in k.vectors(one.states, S * 2 + 1):
                    alpha[n, t, s] = LOW
        if alpha is not None:
            for t in k.range(one.steps, T):
                for s in k.vectors(S * 2 + 1):
                    alpha[n, t, s] = LOW
        found = one.loss(rows.at((one.steps + 1) % 2))
        loss[n] = select(found.eq(-LOW), 0.0, found) if zero_infinity else found


def ctc_loss_backward(
    k: Kernel, kinds: tuple[str | None, ...], padded: bool, zero_infinity: bool, of_softmax: bool
) -> None:
    """Tensors: dloss x target input_lengths target_lengths alpha loss dx."""
    dtype = computed(kinds[1])
    batch = Batch.of(k, kinds, padded, 1)
    T, N, C, S = (k.size(n) for n in "TNCS")
    dloss = k.view(N, strides=[k.size("loss_step")], dtype=kinds[0], at=0)
    dx = k.view(T, N, C, strides=[k.size(f"d{i}") for i in range(3)], dtype=kinds[7], at=7)
    known = None if kinds[6] is None else k.view(N, strides=[k.size("known_step")], dtype=kinds[6], at=6)
    given = None
    if kinds[5] is not None:
        given = k.view(N, T, S * 2 + 1, strides=[k.size(f"a{i}") for i in range(3)], dtype=kinds[5], at=5)
    for n in k.parallel(N):
        one = Sequence1(batch, n, dtype)
        width = S * 2 + (1 + 2 * PAD)
        # all alphas, or the last row of them
        alphas = k.scratch(T + 1 if given is None else 2, width, dtype=dtype)
        _low(k, alphas, 1, width)
        for t in k.range(one.steps):
            if given is None:
                for i in k.vectors(width):
                    alphas[t + 1, i] = LOW
                one.forward(alphas, t, t, t + 1)
        if given is None:
            loss = one.loss(alphas.at(one.steps))
        else:
            with k.when(one.steps > 0):
                for s in k.vectors(one.states):
                    alphas[0, s + PAD] = given[n, one.steps - 1, s]
            loss = one.loss(alphas.at(0))
        if known is not None:
            loss = known[n]
        betas, shares = k.scratch(2, width, dtype=dtype), k.scratch(C, dtype=dtype)
        parts = k.scratch(width, dtype=dtype)
        _low(k, betas, 2, width)
        g = dloss[n]
        dead = loss.eq(-LOW)
        for back in k.range(one.steps):
            t, here = one.steps - 1 - back, back % 2
            one.emit(t)
            b, out = betas.at(1 - here), betas.at(here)
            for s in k.vectors(one.states):
                rest = _rest(k, one, b, s, back)
                out[s + PAD] = rest + one.emitted[s + PAD]
                a = alphas[t + 1, s + PAD] if given is None else given[n, t, s]
                parts[s] = exp(a + rest + loss)
            for c in k.vectors(C):
                shares[c] = 0.0
            every = k.var(parts[0])
            for j in k.range(one.count):
                label = one.labels[j].idx()
                shares[label] = shares[label] + parts[j * 2 + 1]
                every += parts[j * 2 + 2]
            shares[one.blank] = shares[one.blank] + every
            row, to = batch.x.at(t, n), dx.at(t, n)
            for c in k.vectors(C):
                own = exp(row[c]) - shares[c] if of_softmax else -shares[c]
                v = (own + (loss - loss)) * g
                to[c] = select(dead, 0.0, v) if zero_infinity else v
        for t in k.range(one.steps, T):
            for c in k.vectors(C):
                dx[t, n, c] = 0.0


def _rest(k: Kernel, one: Sequence1, b: View, s: Lanes, back: Int) -> Val:
    """log of the probability of all paths from the states to the end, without what they emit now."""
    on = _lse(b[s + PAD], b[s + (PAD + 1)], b[s + (PAD + 2)] + one.skip[s + (PAD + 2)])
    at_end = k.positions(s, "i32") >= k.to_int(one.states - 2, "i32")
    last = select(at_end, 0.0 * _ones(on), LOW)
    return select(k.compare("==", back, 0), last, on)
