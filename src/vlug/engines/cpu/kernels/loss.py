"""Cross-entropy and its gradient from logits, without log-softmax in memory: rows, or columns of positions.

A target that is neither a class nor ignore_index ends the program with BAD_TARGET before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.codegen.ir import Int, Kernel, View, larger, reduce, select
from vlug.codegen.vecmath import exp, log
from vlug.engines.cpu.kernels.common import sizes, unflatten, units
from vlug.engines.cpu.kernels.softmax import LOW, computed, top_of

__all__ = ["BAD_TARGET", "cross_entropy_backward_columns", "cross_entropy_backward_rows",
           "cross_entropy_columns", "cross_entropy_rows", "nll_loss", "nll_loss_backward_columns",
           "nll_loss_backward_rows"]  # fmt: skip

BAD_TARGET = 2
WIDE = "f64"
Kinds = tuple[str | None, ...]


def _full(
    k: Kernel, name: str, at: int, I: Sequence[Int], dims: Sequence[Int], steps: Sequence[int], kind: Any
) -> View:
    own = [s or k.size(f"{name}_d{i}") for i, s in enumerate(steps)]
    return k.view(*I, *dims, strides=[*sizes(k, f"{name}_i", len(I)), *own], dtype=kind, at=at)


def _each(
    k: Kernel, name: str, at: int, I: Sequence[Int], dims: Sequence[Int], kinds: Kinds, scalar: bool = False
) -> Any:
    """What has one element a position (dense along the columns), None if absent; a scalar has stride 0."""
    if kinds[at] is None:
        return None
    if scalar:
        return k.view(*I, *dims, strides=[0] * (len(I) + len(dims)), dtype=kinds[at], at=at)
    own = [1] if len(dims) else []
    return k.view(*I, *dims, strides=[*sizes(k, f"{name}_i", len(I)), *own], dtype=kinds[at], at=at)


def _weight(k: Kernel, at: int, C: Int, kinds: Kinds) -> Any:
    return None if kinds[at] is None else k.view(C, strides=[k.size("weight_step")], dtype=kinds[at], at=at)


def _checked(k: Kernel, t: Any, C: Int) -> Any:
    """Whether positions count; leaves the program where a target is no class."""
    counts = t.ne(k.to_int(k.size("ignore")))
    bad = counts & ((t < 0) | (t >= k.to_int(C)))
    k.error_if(bad.any(), BAD_TARGET)
    return counts


def _lse(k: Kernel, line: View, C: Int, short: bool) -> Any:
    """log Σ exp of a row; short: it is four vectors at most and stays in registers."""
    dtype = computed(line.elem.name)
    if not short:
        high, e = top_of(k, line, 0, C), k.var(k.zeros(4, dtype))
        for n in k.vectors(C, by=4):
            e += k.valid(n, exp(line.load(n, other=LOW) - high))
        return high + log(e.sum())
    high, total = k.var(k.val(0.0, dtype=dtype)), k.var(k.val(0.0, dtype=dtype))
    for n in k.vectors(C, by=4, tail="switch"):  # one of its bodies runs
        v = line.load(n, other=LOW)
        high.set(reduce(v, larger))
        total.set(k.valid(n, exp(v - high)).sum())
    return high + log(total)


def _mean(k: Kernel, mode: str, loss: Any, sums: View, blocks: Int) -> None:
    """The loss from the blocks' sums of losses and weights."""
    total, weights = k.var(k.val(0.0, dtype=WIDE)), k.var(k.val(0.0, dtype=WIDE))
    for b in k.range(blocks):
        total += sums[b, 0]
        weights += sums[b, 1]
    loss[(0,) * len(loss.dims)] = total / weights if mode == "mean" else total


def cross_entropy_rows(
    k: Kernel, kinds: Kinds, outer: int, unit: bool, mode: str, smooth: bool, short: bool
) -> None:
    """Tensors: x target weight loss lse; classes along the rows."""
    dtype = computed(kinds[0])
    C, I = k.size("C"), sizes(k, "i", outer)
    x = _full(k, "x", 0, I, [C], [int(unit)], kinds[0])
    weight = _weight(k, 2, C, kinds)
    target, lse_out = (_each(k, n, at, I, [], kinds) for n, at in (("target", 1), ("lse", 4)))
    loss = _each(k, "loss", 3, I, [], kinds, scalar=mode != "none")
    s = k.scalar("smoothing", dtype)
    group, count = k.size("group"), k.size("count")
    blocks = k.ceil_div(count, group)
    sums = k.shared(blocks, 2, dtype=WIDE)
    for u in units(k, blocks):
        total, weights = k.var(k.val(0.0, dtype=WIDE)), k.var(k.val(0.0, dtype=WIDE))
        for at in k.range(u * group, k.min((u + 1) * group, count)):
            i = unflatten(at, I)
            line, t = x.at(*i), target[tuple(i)]
            counts = _checked(k, t, C)
            label = select(counts, t, 0).idx()
            lse = _lse(k, line, C, short)
            share = k.val(1.0, dtype=dtype) if weight is None else weight[label]
            value = (lse - line[label]) * share
            if smooth:
                spread = k.var(k.zeros(4, dtype))
                for n in k.vectors(C, by=4):
                    d = lse - line[n]
                    spread += k.valid(n, d if weight is None else d * weight[n])
                value = value * (1.0 - s) + spread.sum() * (s / k.to_float(C, dtype))
            value = select(counts, value, 0.0)
            if lse_out is not None:
                lse_out.store(*i, lse)
            if mode == "none":
                loss.store(*i, value)
            total += value.to(WIDE)
            weights += select(counts, share, 0.0).to(WIDE)
        sums[u, 0] = total
        sums[u, 1] = weights
    if mode != "none":
        _mean(k, mode, loss, sums, blocks)


def cross_entropy_columns(k: Kernel, kinds: Kinds, outer: int, mode: str, smooth: bool) -> None:
    """The same with vectors along N dense positions."""
    dtype = computed(kinds[0])
    C, N, I = k.size("C"), k.size("N"), sizes(k, "i", outer)
    x = _full(k, "x", 0, I, [C, N], [0, 1], kinds[0])
    weight = _weight(k, 2, C, kinds)
    target, lse_out = (_each(k, n, at, I, [N], kinds) for n, at in (("target", 1), ("lse", 4)))
    loss = _each(k, "loss", 3, I, [N], kinds, scalar=mode != "none")
    s = k.scalar("smoothing", dtype)
    NB, count = k.size("NB"), k.size("count")
    across = k.ceil_div(N, NB)
    blocks = count * across
    sums = k.shared(blocks, 2, dtype=WIDE, size=k.size("sums"))
    for u in units(k, blocks):
        i, b = unflatten(u // across, I), u % across
        total, weights = k.var(k.zeros(1, WIDE)), k.var(k.zeros(1, WIDE))
        plane = x.at(*i)
        for n in k.vectors(b * NB, k.min((b + 1) * NB, N)):
            t = target[(*i, n)]
            counts = _checked(k, t, C)
            label = select(counts, t, 0).to("i32")
            top, e = k.var(k.full(LOW, dtype=dtype)), k.var(k.zeros(1, dtype))
            picked, share = k.var(k.zeros(1, dtype)), k.var(k.full(1.0, dtype=dtype))
            for c in k.range(C):
                v, hit = plane[c, n], label.eq(k.to_int(c, "i32"))
                top.set(larger(v, top))
                picked.set(select(hit, v, picked))
                if weight is not None:
                    share.set(select(hit, k.full(weight[c]), share))
            for c in k.range(C):
                e += exp(plane[c, n] - top)
            lse = top + log(e)
            value = (lse - picked) * share
            if smooth:
                spread = k.var(k.zeros(1, dtype))
                for c in k.range(C):
                    d = lse - plane[c, n]
                    spread += d if weight is None else d * weight[c]
                value = value * (1.0 - s) + spread * (s / k.to_float(C, dtype))
            value = select(counts, value, 0.0)
            if lse_out is not None:
                lse_out[(*i, n)] = lse
            if mode == "none":
                loss[(*i, n)] = value
            total += k.valid(n, value).to(WIDE)
            weights += k.valid(n, select(counts, share, 0.0)).to(WIDE)
        sums[u, 0] = total.sum()
        sums[u, 1] = weights.sum()
    if mode != "none":
        _mean(k, mode, loss, sums, blocks)


# --- backward ------------------------------------------------------------------------------------
def _weights_of_targets(
    k: Kernel, target: View, weight: Any, I: Sequence[Int], inner: bool, C: Int, dtype: str
) -> Any:
    """Σ w[t] over the positions that count; checks every target first."""
    count, N = k.size("count"), k.size("N") if inner else 1
    blocks, group = k.size("weigh_blocks"), k.size("weigh_group")
    sums = k.shared(blocks, dtype=WIDE)
    for u in k.parallel(blocks):
        total = k.var(k.val(0.0, dtype=WIDE))
        for at in k.range(u * group, k.min((u + 1) * group, count)):
            i = unflatten(at, I)
            for j in k.range(N):
                t = target.load(*i, *([j] if inner else []))
                counts = _checked(k, t, C)
                share = k.val(1.0, dtype=dtype) if weight is None else weight[select(counts, t, 0).idx()]
                total += select(counts, share, 0.0).to(WIDE)
        sums[u] = total
    weights = k.var(k.val(0.0, dtype=WIDE))
    for b in k.range(blocks):
        weights += sums[b]
    return weights.to(dtype)


def _all_weights(k: Kernel, weight: Any, C: Int, dtype: str) -> Any:
    """Σ w over the classes."""
    if weight is None:
        return k.to_float(C, dtype)
    total = k.var(k.val(0.0, dtype=WIDE))
    for c in k.range(C):
        total += weight[c].to(WIDE)
    return total.to(dtype)


def cross_entropy_backward_rows(
    k: Kernel, kinds: Kinds, outer: int, unit: bool, mode: str, smooth: bool, short: bool
) -> None:
    """dx = p · A - [c = t] · B - w[c] · D. Tensors: dloss x target weight lse dx; classes along the rows."""
    dtype = computed(kinds[1])
    C, I = k.size("C"), sizes(k, "i", outer)
    x, dx = (_full(k, n, at, I, [C], [int(unit)], kinds[at]) for n, at in (("x", 1), ("dx", 5)))
    weight = _weight(k, 3, C, kinds)
    target, lse_in = (_each(k, n, at, I, [], kinds) for n, at in (("target", 2), ("lse", 4)))
    dloss = _each(k, "dloss", 0, I, [], kinds, scalar=mode != "none")
    weights = _weights_of_targets(k, target, weight, I, False, C, dtype)
    s = k.scalar("smoothing", dtype)
    spread = _all_weights(k, weight, C, dtype) if smooth else None
    group, count = k.size("group"), k.size("count")
    for u in units(k, k.ceil_div(count, group)):
        for at in k.range(u * group, k.min((u + 1) * group, count)):
            i = unflatten(at, I)
            line, out, t = x.at(*i), dx.at(*i), target.load(*i)
            counts = t.ne(k.to_int(k.size("ignore")))
            with k.unless(counts):
                for n in k.vectors(C, by=4):
                    out[n] = 0.0
            with k.when(counts):
                if lse_in is None:
                    lse = _lse(k, line, C, short)
                else:
                    lse = lse_in.load(*i)
                d = dloss.load(*i) / weights if mode == "mean" else dloss.load(*i)
                share = d if weight is None else d * weight[t.idx()]
                a = b = share * (1.0 - s) if smooth else share
                each = d * (s / k.to_float(C, dtype)) if smooth else None
                if each is not None:
                    a = a + each * spread
                label = t.to("i32")
                for n in k.vectors(C, by=4):
                    v = exp(line[n] - lse) * a
                    if each is not None:
                        v = v - (k.full(each) if weight is None else weight[n] * each)
                    out[n] = select(k.positions(n, "i32").eq(label), v - b, v)


def cross_entropy_backward_columns(k: Kernel, kinds: Kinds, outer: int, mode: str, smooth: bool) -> None:
    """The same with vectors along N dense positions."""
    dtype = computed(kinds[1])
    C, N, I = k.size("C"), k.size("N"), sizes(k, "i", outer)
    x, dx = (_full(k, n, at, I, [C, N], [0, 1], kinds[at]) for n, at in (("x", 1), ("dx", 5)))
    weight = _weight(k, 3, C, kinds)
    target, lse_in = (_each(k, n, at, I, [N], kinds) for n, at in (("target", 2), ("lse", 4)))
    dloss = _each(k, "dloss", 0, I, [N], kinds, scalar=mode != "none")
    weights = _weights_of_targets(k, target, weight, I, True, C, dtype)
    s = k.scalar("smoothing", dtype)
    spread = _all_weights(k, weight, C, dtype) if smooth else None
    NB, count = k.size("NB"), k.size("count")
    across = k.ceil_div(N, NB)
    for u in units(k, count * across):
        i, block = unflatten(u // across, I), u % across
        plane, out = x.at(*i), dx.at(*i)
        for n in k.vectors(block * NB, k.min((block + 1) * NB, N)):
            t = target[(*i, n)]
            counts, label = t.ne(k.to_int(k.size("ignore"))), t.to("i32")
            share = k.var(k.full(1.0, dtype=dtype))
            if weight is not None:
                for c in k.range(C):
                    share.set(select(label.eq(k.to_int(c, "i32")), k.full(weight[c]), share))
            if lse_in is None:
                top, e = k.var(k.full(LOW, dtype=dtype)), k.var(k.zeros(1, dtype))
                for c in k.range(C):
                    top.set(larger(plane[c, n], top))
                for c in k.range(C):
                    e += exp(plane[c, n] - top)
                lse = top + log(e)
            else:
                lse = lse_in[(*i, n)]
            g = k.full(dloss.load(*[0] * len(dloss.dims))) if mode != "none" else dloss[(*i, n)]
            d = g / weights if mode == "mean" else g
            b = share * d
            b = b * (1.0 - s) if smooth else b
            each = d * (s / k.to_float(C, dtype)) if smooth else None
            a = b if each is None else b + each * spread
            for c in k.range(C):
                v = exp(plane[c, n] - lse) * a
                if each is not None:
                    v = v - (each if weight is None else each * weight[c])
                v = select(label.eq(k.to_int(c, "i32")), v - b, v)
                out[c, n] = select(counts, v, 0.0)


# --- of log-probabilities ------------------------------------------------------------------------
def nll_loss(k: Kernel, kinds: Kinds, outer: int, mode: str, unit: bool) -> None:
    """Tensors: x target weight loss total; one element of x a position is read, vectors of positions at once.

    Positions are I… × N. unit: target (and loss, of "none") lie side by side along N.
    """
    dtype = computed(kinds[0])
    C, N, I = k.size("C"), k.size("N"), sizes(k, "i", outer)

    def along(name: str, at: int, step: Any, *dims: Int) -> View:
        own = [step, *sizes(k, f"{name}_d", len(dims))]
        return k.view(*I, N, *dims, strides=[*sizes(k, f"{name}_i", outer), *own], dtype=kinds[at], at=at)

    def step(name: str) -> Int:
        return 1 if unit else k.size(f"{name}_step")

    target, x = along("target", 1, step("target")), along("x", 0, k.size("x_step"), C)
    across, down = k.to_int(k.size("x_step")), k.to_int(k.size("x_d0"))
    weight = None if kinds[2] is None else k.view(1, strides=[1], dtype=kinds[2], at=2)
    apart = None if weight is None else k.to_int(k.size("weight_step"))
    none = mode == "none"
    loss = along("loss", 3, step("loss")) if none else k.view(1, strides=[0], dtype=kinds[3], at=3)
    out = None if kinds[4] is None else k.view(1, strides=[0], dtype=kinds[4], at=4)
    group, count, NB = k.size("group"), k.size("count"), k.size("NB")  # a block: group × NB positions
    wide = k.ceil_div(N, NB)
    blocks = k.ceil_div(count, group) * wide
    sums = k.shared(blocks, 2, dtype=WIDE)
    for u in units(k, blocks):
        g, b = u // wide, u % wide
        total, weights = k.var(k.zeros(1, WIDE)), k.var(k.zeros(1, WIDE))
        for at in k.range(g * group, k.min((g + 1) * group, count)):
            i = unflatten(at, I)
            labels, losses = target.at(*i), loss.at(*i) if none else None
            start = x.at(*i).ptr
            flat = View(k, start, [C], [1], kinds[0])
            for n in k.vectors(b * NB, k.min((b + 1) * NB, N)):
                t = labels[n]
                counts = t.ne(k.to_int(k.size("ignore")))
                bad = k.valid(n, counts & ((t < 0) | (t >= k.to_int(C))))
                k.error_if(bad.any(), BAD_TARGET)
                counts = k.valid(n, counts)
                value = -flat.gather(t * down + k.positions(n) * across, counts)
                share = counts.to(dtype)
                if weight is not None and apart is not None:
                    share = weight.gather(t * apart, counts)
                    value = value * share
                value = select(counts, value, 0.0)
                if losses is not None:
                    losses[n] = value
                total += value.to(WIDE)
                weights += share.to(WIDE)
        sums[u, 0] = total.sum()
        sums[u, 1] = weights.sum()
    if not none:
        _mean(k, mode, loss, sums, blocks)
    if out is not None:
        sum_of_weights = k.var(k.val(0.0, dtype=WIDE))
        if not none:
            for b in k.range(blocks):
                sum_of_weights += sums[b, 1]
        out[0] = sum_of_weights


def _share(k: Kernel, d: Any, weights: Any, weight: Any, t: Any, mode: str) -> Any:
    """What the element of dx at the target's class is."""
    d = d / weights if mode == "mean" else d
    return -d if weight is None else -(weight[t.idx()] * d)


def nll_loss_backward_rows(k: Kernel, kinds: Kinds, outer: int, unit: bool, mode: str) -> None:
    """Tensors: dloss target weight total dx; classes along the rows."""
    dtype = computed(kinds[4])
    C, I = k.size("C"), sizes(k, "i", outer)
    dx, weight = _full(k, "dx", 4, I, [C], [int(unit)], kinds[4]), _weight(k, 2, C, kinds)
    target, dloss = _each(k, "target", 1, I, [], kinds), _each(k, "dloss", 0, I, [], kinds, mode != "none")
    weights = _total(k, kinds, I, target, weight, False, C, dtype, mode)
    group, count = k.size("group"), k.size("count")
    for u in units(k, k.ceil_div(count, group)):
        for at in k.range(u * group, k.min((u + 1) * group, count)):
            i = unflatten(at, I)
            row, t = dx.at(*i), target[tuple(i)]
            counts = _checked(k, t, C)
            for n in k.vectors(C, by=4):
                row[n] = 0.0
            with k.when(counts):
                row[t.idx()] = _share(k, dloss[tuple(i)], weights, weight, t, mode)


def nll_loss_backward_columns(k: Kernel, kinds: Kinds, outer: int, mode: str) -> None:
    """The same with vectors along N dense positions."""
    dtype = computed(kinds[4])
    C, N, I = k.size("C"), k.size("N"), sizes(k, "i", outer)
    dx, weight = _full(k, "dx", 4, I, [C, N], [0, 1], kinds[4]), _weight(k, 2, C, kinds)
    target, dloss = _each(k, "target", 1, I, [N], kinds), _each(k, "dloss", 0, I, [N], kinds, mode != "none")
    weights = _total(k, kinds, I, target, weight, True, C, dtype, mode)
    NB, count = k.size("NB"), k.size("count")
    across = k.ceil_div(N, NB)
    for u in units(k, count * across):
        i, b = unflatten(u // across, I), u % across
        plane, lo, hi = dx.at(*i), b * NB, k.min((b + 1) * NB, N)
        for c in k.range(C):
            for n in k.vectors(lo, hi, by=4):
                plane[c, n] = 0.0
        for j in k.range(lo, hi):
            t = target[(*i, j)]
            with k.when(_checked(k, t, C)):
                plane[t.idx(), j] = _share(k, dloss[(*i, j)], weights, weight, t, mode)


def _total(
    k: Kernel, kinds: Kinds, I: Sequence[Int], target: View, weight: Any, inner: bool, C: Int, dtype: str,
    mode: str,
) -> Any:  # fmt: skip
    """The sum of weights that a mean divides by: as given, or computed."""
    if mode != "mean":
        return None
    if kinds[3] is None:
        return _weights_of_targets(k, target, weight, I, inner, C, dtype)
    return k.view(1, strides=[0], dtype=kinds[3], at=3)[0]
