"""Losses element by element, summed in blocks where they are reduced, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vlug.codegen.ir import Int, Kernel, Lanes, Val, absolute, copysign, select
from vlug.codegen.vecmath import exp, log, log1p, sigmoid, softplus
from vlug.engines.cpu.kernels.common import sizes, unflatten, units
from vlug.engines.cpu.kernels.softmax import computed

__all__ = ["loss_gradients", "losses"]

Kinds = tuple[str | None, ...]


class Formulas:
    """The loss of vectors of elements and its derivatives; form: log_target, or beta 0."""

    def __init__(self, k: Kernel, op: str, form: bool, dtype: str) -> None:
        self.op, self.form = op, form
        name = {"smooth_l1_loss": "beta", "huber_loss": "delta"}.get(op)
        self.knee: Any = None if name is None else k.scalar(name, dtype)

    def value(self, x: Val, t: Val, pos: Any) -> Val:
        match self.op:
            case "mse_loss":
                return (x - t) * (x - t)
            case "l1_loss":
                return absolute(x - t)
            case "smooth_l1_loss":
                d, beta = absolute(x - t), self.knee
                return d if self.form else select(d < beta, d * d * 0.5 / beta, d - beta * 0.5)
            case "huber_loss":
                d, delta = absolute(x - t), self.knee
                return select(d < delta, d * d * 0.5, delta * (d - delta * 0.5))
            case "kl_div":
                if self.form:
                    return exp(t) * (t - x)
                return select(t.eq(0.0), 0.0 * t, t * log(t)) - t * x
        pt = t if pos is None else pos * t
        small = log1p(exp(-absolute(x)))  # nothing cancels against it
        return select(x < 0.0, -pt, 1.0 - t) * x + (small if pos is None else (1.0 - t + pt) * small)

    def by_x(self, x: Val, t: Val, pos: Any) -> Val:
        match self.op:
            case "kl_div":
                return -exp(t) if self.form else -t
            case "bce_with_logits":
                s = sigmoid(x)
                return s - t if pos is None else (1.0 - t + pos * t) * s - pos * t
        return self._difference(x - t)

    def by_target(self, x: Val, t: Val, pos: Any) -> Val:
        match self.op:
            case "kl_div":
                return exp(t) * (t - x + 1.0) if self.form else log(t) - x + 1.0
            case "bce_with_logits":
                return -x if pos is None else (pos - 1.0) * softplus(-x) - x
        return -self._difference(x - t)

    def _difference(self, d: Val) -> Val:
        """The derivative of losses of d = x - t."""
        if self.op == "mse_loss":
            return d * 2.0
        sign = select(absolute(d) > 0.0, copysign(_ones(d), d), d)  # NaN stays
        if self.op == "l1_loss" or (self.op == "smooth_l1_loss" and self.form):
            return sign
        if self.op == "smooth_l1_loss":
            return select(absolute(d) < self.knee, d / self.knee, sign)
        return select(absolute(d) < self.knee, d, sign * self.knee)


def _ones(x: Val) -> Val:
    return x.k.zip(lambda a: x.k.val(1.0, x).v[0], x)


def _views(k: Kernel, names: str, kinds: Kinds, steps: Sequence[int], outer: int) -> tuple[Any, list[Any]]:
    """Extents of the outer loops; views (outer…, M, N), None where a tensor is not there."""
    E, M, N = sizes(k, "e", outer), k.size("M"), k.size("N")
    views: list[Any] = []
    for at, (name, kind, step) in enumerate(zip(names, kinds, steps)):
        if kind is None:
            views.append(None)
            continue
        last = step if step >= 0 else k.size(f"{name}_inner")
        views.append(k.view(*E, M, N, strides=[*sizes(k, f"{name}_s", outer + 1), last], dtype=kind, at=at))
    return E, views


def _blocks(k: Kernel, E: Sequence[Int]) -> Iterator[tuple[Int, list[Int], Int, Int, Int, Int]]:
    """Units of MB rows by NB elements: (number, outer indices, rows from, to, elements from, to)."""
    M, N, MB, NB = (k.size(n) for n in ("M", "N", "MB", "NB"))
    blocks_m, blocks_n = k.ceil_div(M, MB), k.ceil_div(N, NB)
    for u in units(k, k.size("units")):
        *index, mb, nb = unflatten(u, [*E, blocks_m, blocks_n])
        yield u, index, mb * MB, k.min((mb + 1) * MB, M), nb * NB, k.min((nb + 1) * NB, N)


class Rows:
    """The tensors of one row: vectors at some positions, what repeats along the row as one value."""

    def __init__(self, views: Sequence[Any], steps: Sequence[int], at: Sequence[Int]) -> None:
        self.lines: list[Any] = [None if v is None else v.at(*at) for v in views]
        self.fixed = [
            None if line is None or step else line[0] for line, step in zip(self.lines, steps)
        ]  # fmt: skip

    def load(self, t: int, n: Lanes, dtype: str) -> Any:
        line, fixed = self.lines[t], self.fixed[t]
        if line is None:
            return None
        return line.k.full(fixed) if fixed is not None else line[n]


def losses(
    k: Kernel, op: str, form: bool, kinds: Kinds, steps: tuple[int, ...], outer: int, mode: str
) -> None:
    """Tensors: x target weight pos_weight loss. steps: strides along the rows, -1 for a run-time one."""
    dtype = computed(kinds[0])
    formulas = Formulas(k, op, form, dtype)
    E, views = _views(k, "xtwpl", kinds, steps, outer)
    sums = k.shared(k.size("units"), dtype="f64", size=k.size("sums"))
    for u, index, m0, m1, lo, hi in _blocks(k, E):
        total = k.var(k.zeros(4, dtype))
        for m in k.range(m0, m1):
            rows = Rows(views, steps, [*index, m])
            for n in k.vectors(lo, hi, by=4):
                x, t, w, p = (rows.load(i, n, dtype) for i in range(4))
                value = formulas.value(x, t, p)
                value = value if w is None else value * w
                if mode == "none":
                    rows.lines[4][n] = value
                else:
                    total += k.valid(n, value)
        if mode != "none":
            sums[u] = total.sum().to("f64")
    if mode == "none":
        return
    loss = k.var(k.val(0.0, dtype="f64"))
    for u in k.range(k.size("units")):
        loss += sums[u]
    out = views[4]
    out[(0,) * len(out.dims)] = loss / k.scalar("count", "f64") if mode == "mean" else loss


def loss_gradients(
    k: Kernel, op: str, form: bool, kinds: Kinds, steps: tuple[int, ...], outer: int, mode: str
) -> None:
    """Tensors: dloss x target weight pos_weight dx dtarget."""
    dtype = computed(kinds[1])
    formulas = Formulas(k, op, form, dtype)
    E, views = _views(k, "gxtwpdf", kinds, steps, outer)
    for _, index, m0, m1, lo, hi in _blocks(k, E):
        for m in k.range(m0, m1):
            rows = Rows(views, steps, [*index, m])
            for n in k.vectors(lo, hi, by=2):
                g, x, t, w, p = (rows.load(i, n, dtype) for i in range(5))
                g = g / k.scalar("count", dtype) if mode == "mean" else g
                g = g if w is None else g * w
                if views[5] is not None:
                    rows.lines[5][n] = g * formulas.by_x(x, t, p)
                if views[6] is not None:
                    rows.lines[6][n] = g * formulas.by_target(x, t, p)
