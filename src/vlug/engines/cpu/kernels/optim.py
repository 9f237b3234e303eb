"""Steps of optimisers in one pass over memory, over a list of tensors or over one with strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.codegen.ir import Int, Kernel, Val, View, fma, maximum, select, sqrt
from vlug.codegen.types import I64, PTR
from vlug.engines.cpu.kernels.common import sizes, unflatten, units, whole

__all__ = ["BAD_MOMENTUM", "BAD_STEP", "optimise"]

#: Codes: a step that is no whole number of 0 or more; momentum without a buffer or a buffer without momentum.
#: Nothing was written then.
BAD_STEP, BAD_MOMENTUM = 21, 22
#: Elements that are fetched ahead: one core then takes 13 % less time over what lies in a far cache.
AHEAD = 256
Kinds = tuple[tuple[str, str], ...]


def sgd(x: dict[str, Val], s: dict[str, Val], flags: Sequence[str]) -> list[Val]:
    """New p and buffer; see ops/optim.py for the formula."""
    p, g = x["p"], -x["g"] if "maximize" in flags else x["g"]
    decay = s["weight_decay"]
    g = select(decay.eq(0.0), g, g + p * decay)  # no decay: an infinite p leaves g alone
    if "first" in flags:
        buf = g
    elif "buf" in x:
        buf = x["buf"] * s["momentum"] + g * s["undamped"]
    else:
        return [p - g * s["lr"]]
    return [p - (g + buf * s["momentum"] if "nesterov" in flags else buf) * s["lr"], buf]


def adam(x: dict[str, Val], s: dict[str, Val], flags: Sequence[str]) -> list[Val]:
    """New p, m, v and vmax; `size` = lr / (1 - beta1^step), `scale` = 1 / sqrt(1 - beta2^step)."""
    p, g = x["p"], -x["g"] if "maximize" in flags else x["g"]
    if "decoupled" in flags:
        p = p * s["shrink"]
    else:
        decay = s["weight_decay"]
        g = select(decay.eq(0.0), g, g + p * decay)
    m = x["m"] + (g - x["m"]) * s["new1"]
    v = x["v"] * s["beta2"] + g * g * s["new2"]
    top = maximum(x["vmax"], v) if "vmax" in x else v
    p = p - s["size"] * m / (sqrt(top) * s["scale"] + s["eps"])
    return [p, m, v] if "vmax" not in x else [p, m, v, top]


RULES = {"sgd_step": sgd, "adam_step": adam}


def _hyper(given: dict[str, Val], dtype: str) -> dict[str, Val]:
    """The scalars that formulas use, derived in f64."""
    s = dict(given)
    if "dampening" in s:
        s["undamped"] = 1.0 - s["dampening"]
    else:
        s["shrink"] = 1.0 - s["lr"] * s["weight_decay"]
        s["new1"], s["new2"] = 1.0 - s["beta1"], 1.0 - s["beta2"]
    return {n: v.to(dtype) for n, v in s.items()}


def _one_minus_power(k: Kernel, base: Val, n: Val) -> Val:
    """1 - base^n of a whole n below 2^53, by squaring.

    Numbers are pairs (high, low) whose sum they are: near 1 the difference would keep only what one number's
    rounding left.
    """

    def times(ah: Val, al: Val, bh: Val, bl: Val) -> tuple[Val, Val]:
        p = ah * bh
        e = fma(ah, bh, -p) + (ah * bl + al * bh)
        high = p + e
        return high, e - (high - p)

    one, zero = k.val(1.0, dtype="f64"), k.val(0.0, dtype="f64")
    high, low, square, rest = k.var(one), k.var(zero), k.var(base), k.var(zero)
    left = k.var(n)
    for _ in k.range(53):
        odd = (left & 1).ne(0)
        by = times(high.get(), low.get(), square.get(), rest.get())
        again = times(square.get(), rest.get(), square.get(), rest.get())
        high.set(select(odd, by[0], high))
        low.set(select(odd, by[1], low))
        square.set(again[0])
        rest.set(again[1])
        left.set(left >> 1)
    return (1.0 - high.get()) - low.get()


def _correction(k: Kernel, step: Val, s: dict[str, Val]) -> tuple[Val, Val]:
    """(size, scale) after so many steps."""
    count = step.to("i64")
    k.error_if(count.to("f64").ne(step) | (step < 0.0) | (step >= 2.0**53), BAD_STEP)
    first, second = (_one_minus_power(k, s[n], count) for n in ("beta1", "beta2"))
    return s["lr"] / first, 1.0 / sqrt(second)


def _corrections(k: Kernel, steps: Any, count: Int, s: dict[str, Val]) -> View:
    """(size, scale) of each tensor; equal steps in a row, the usual case, are worked out once."""
    made = k.shared(count, 2, dtype="f64")
    known, size, scale = (k.var(k.val(x, dtype="f64")) for x in (-1.0, 0.0, 0.0))
    for t in k.range(count):
        step = steps(t)
        with k.when(step.ne(known)):
            now, by = _correction(k, step, s)
            known.set(step)
            size.set(now)
            scale.set(by)
        made[t, 0] = size
        made[t, 1] = scale
    return made


def _pointer(k: Kernel, i: Int) -> Any:
    """The address of the call's tensor i."""
    table = View(k, k.main.args[0], (1,), [1], "i64")
    return k.op("inttoptr", k.op("load", k.gep(table.ptr, i, I64), typ=I64), PTR)


def optimise(
    k: Kernel,
    rule: str,
    flags: tuple[str, ...],
    scalars: Kinds,
    full: Kinds,
    step: str,
    results: tuple[str, ...],
    inner: tuple[int, ...],
    outer: int,
    by: int,
    alone: bool,
) -> None:
    """Tensors: the scalars, then for each parameter `full` ones (name, dtype), its step if the rule has one,
    the results. alone: there is one parameter, and no workspace is needed.

    Without `inner`: any number of dense parameters. Behind the named arguments stand start[U + 1] and then
    pieces[…][3] (parameter, first element, end): unit u does the pieces from start[u] to start[u + 1]. With
    `inner` (each tensor's stride along N: 1, or -1 for one known at run time): one parameter, axes E and N.
    """
    dtype = "f64" if full[0][1] == "f64" else "f32"
    wide = {n: k.view(1, dtype=d, at=i)[0].to("f64") for i, (n, d) in enumerate(scalars)}
    s = _hyper(wide, dtype)
    first, each = len(scalars), len(full) + bool(step) + len(results)
    kinds = [d for _, d in full] + ([step] if step else []) + list(results)
    T = k.size("T")

    def tensor(t: Int, j: int) -> Any:
        return _pointer(k, t * each + (first + j))

    def step_of(t: Int) -> Val:
        return View(k, tensor(t, len(full)), (1,), [1], step)[0].to("f64")

    one: list[Val] = []
    many: Any = None
    if rule == "sgd_step":
        buffered = "first" in flags or any(n == "buf" for n, _ in full)
        none = wide["momentum"].eq(0.0)
        k.error_if(none if buffered else ~none, BAD_MOMENTUM)
    elif alone:
        one = [v.to(dtype) for v in _correction(k, step_of(0), wide)]
    else:
        many = _corrections(k, step_of, T, wide)

    def update(t: Int) -> Any:
        own = dict(s)
        if step:
            size, scale = one or [many[t, i].to(dtype) for i in range(2)]
            own |= {"size": size, "scale": scale}
        return lambda x: RULES[rule](x, own, flags)

    def lines(views: Sequence[View], of: Any, lo: Int, hi: Int) -> None:
        sources, outs = views[: len(full)], views[len(views) - len(results) :]
        for n in k.vectors(lo, hi, by=by):
            if whole(n):
                for v in sources:
                    for u in range(by):
                        v.prefetch(n.base + (AHEAD + u * k.V))
            x = {name: v[n] for (name, _), v in zip(full, sources)}
            for out, value in zip(outs, of(x)):
                out[n] = value

    if not inner:
        U = k.size("U")
        behind = k.main_entry.gep(k.main.args[1], [I64(len(k.arg_names))], source_etype=I64)
        start = View(k, behind, (U + 1,), [1], "i64")
        pieces = View(k, start.addr(U + 1), (U, 3), [3, 1], "i64")
        for u in k.parallel(U):
            for q in k.range(start[u].idx(), start[u + 1].idx()):
                t, lo, hi = (pieces[q, i].idx() for i in range(3))
                views = [View(k, tensor(t, j), (hi,), [1], kinds[j]) for j in range(each)]
                lines(views, update(t), lo, hi)
        return
    E, N, NB = sizes(k, "e", outer), k.size("N"), k.size("NB")
    views = []
    for j in range(each):
        strides = [*sizes(k, f"t{j}_s", outer), 1 if inner[j] == 1 else k.size(f"t{j}_inner")]
        views.append(View(k, k.view(1, dtype=kinds[j], at=first + j).ptr, (*E, N), strides, kinds[j]))
    blocks = k.ceil_div(N, NB)
    total: Int = blocks
    for extent in E:
        total = total * extent
    for u in units(k, total):
        *index, nb = unflatten(u, [*E, blocks])
        lines([v.at(*index) for v in views], update(0), nb * NB, k.min((nb + 1) * NB, N))
