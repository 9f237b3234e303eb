"""Random calls of every operator of the PyTorch frontend: values against float64, all else against stock.

Each case is drawn from one seed: sizes, layouts, dtypes, attributes, and now and then NaN, inf, huge and tiny
values. `VLUG_RANDOM_CASES` sets how many cases a family has, `VLUG_RANDOM_SEED` where they begin.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from torch_support import armed, outcome, torch
from vlug.frontends import hooks

pytestmark = pytest.mark.framework
F: Any = torch.nn.functional
A: Any = torch.ops.aten
EDGES = [float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 3e38, 1e-42, 0.0]
COUNT = int(os.environ.get("VLUG_RANDOM_CASES", "0"))  # 0: 10 convolutions, which compile most, 40 others
SEED = int(os.environ.get("VLUG_RANDOM_SEED", "0"))


@dataclass
class Case:
    """tensors: the arguments. run: results of those arguments. terms: how many rounded steps lie behind a
    result, at most. linear: whether run of absolute values gives what the errors are measured against."""

    tensors: list[Any]
    run: Callable[..., Sequence[Any]]
    terms: float
    linear: bool
    about: str


class Draw(random.Random):
    """Random tensors in random layouts."""

    edge = False

    def dtype(self) -> Any:
        return self.choice([torch.float32] * 4 + [torch.bfloat16, torch.float16])

    def values(self, shape: Sequence[int], dtype: Any) -> Any:
        g = torch.Generator().manual_seed(self.randrange(2**31))
        t = torch.randn(*shape, generator=g) + self.choice([0.0, 0.0, 0.0, 3.0])
        if self.edge and t.numel():
            for _ in range(self.randint(1, 3)):
                t.view(-1)[self.randrange(t.numel())] = self.choice(EDGES)
        return t.to(dtype)

    def tensor(self, shape: Sequence[int], dtype: Any, flat: bool = False) -> Any:
        t = self.values(shape, dtype)
        kinds = ["contiguous"] * 3 + ["slice", "second", "permuted", "expanded", "reversed", "odd"]
        if len(shape) == 4:
            kinds += ["last"] * 3 + ["last slice", "inside"]
        kind = "contiguous" if flat else self.choice(kinds)
        if kind == "last":
            return t.contiguous(memory_format=torch.channels_last)
        if kind == "last slice":
            wide = torch.zeros(shape[0], shape[1] + 3, shape[2] + 1, shape[3], dtype=dtype)
            wide = wide.contiguous(memory_format=torch.channels_last)
            wide[:, 1 : 1 + shape[1], 1:] = t
            return wide[:, 1 : 1 + shape[1], 1:]
        if kind == "inside":
            return t.permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0)
        if kind == "slice":
            wide = torch.zeros(*shape[:-1], shape[-1] + 3, dtype=dtype)
            wide[..., 1 : 1 + shape[-1]] = t
            return wide[..., 1 : 1 + shape[-1]]
        if kind == "second":
            wide = torch.zeros(*shape[:-1], 2 * shape[-1], dtype=dtype)
            wide[..., ::2] = t
            return wide[..., ::2]
        if kind == "permuted":
            order = self.sample(range(len(shape)), len(shape))
            back = [order.index(i) for i in range(len(shape))]
            return t.permute(order).contiguous().permute(back)
        if kind == "expanded":
            axis = self.randrange(len(shape))
            return t.narrow(axis, 0, 1).expand(shape) if shape[axis] else t
        if kind == "odd":
            stride = [self.choice([s, 1, 7777]) if d == 1 else s for d, s in zip(shape, t.stride())]
            return t.as_strided(shape, stride)
        return t


# --- families ---
def conv(r: Draw) -> Case:
    groups = r.choice([1, 1, 1, 1, 2, 3, 0])
    c, k = r.choice([1, 2, 3, 5, 8, 16, 17, 32]), r.choice([1, 2, 3, 8, 16, 19, 32])
    if groups == 0:  # depthwise
        groups, k = c, c * r.choice([1, 1, 2])
    elif groups > 1:
        c, k = c * groups, k * groups
    n, h, w = r.choice([0, 1, 1, 2, 3, 5]), r.randint(1, 20), r.randint(1, 20)
    rs = r.choice([(1, 1), (1, 1), (3, 3), (3, 3), (3, 3), (2, 2), (1, 3), (5, 5), (4, 2)])
    stride = r.choice([(1, 1), (1, 1), (2, 2), (3, 3), (2, 1)])
    dilation = r.choice([(1, 1), (1, 1), (1, 1), (2, 2), (1, 3)])
    padding: Any = r.choice([(0, 0), (1, 1), (rs[0] // 2, rs[1] // 2), (2, 0), (3, 3)])
    if stride == (1, 1) and r.random() < 0.15:
        padding = "same"
    dtype = r.dtype()
    x = r.tensor((n, c, h, w), dtype)
    edge, r.edge = r.edge, False  # an infinite weight times padding: NaN, but stock leaves some padding out
    weight = r.tensor((k, c // groups, *rs), dtype)
    r.edge = edge
    bias = [r.values((k,), dtype)] if r.random() < 0.5 else []
    tensors = [x, weight, *bias]
    mask = [r.random() < 0.8, r.random() < 0.8, bool(bias) and r.random() < 0.8]
    seed = r.randrange(2**31)
    with hooks.using(False):
        try:
            shape = F.conv2d(x, weight, None, stride, padding, dilation, groups).shape
        except RuntimeError:
            shape = None
    dy = None if shape is None else Draw(seed).tensor(tuple(shape), dtype)
    if dy is not None:
        tensors.append(dy)

    def run(x: Any, w: Any, *rest: Any) -> Any:
        b = rest[0] if bias else None
        y = F.conv2d(x, w, b, stride, padding, dilation, groups)
        out = [y]
        if padding != "same" and any(mask):
            grads = A.convolution_backward(
                rest[-1], x, w, [k] if bias else None, stride, padding, dilation, False, [0, 0], groups, mask
            )
            out += [t for t, wanted in zip(grads, mask) if wanted]  # stock gives some that were not asked for
        return out

    terms = max(c // groups, k // groups) * rs[0] * rs[1] + n * h * w
    about = f"stride {stride} padding {padding} dilation {dilation} groups {groups} mask {mask}"
    return Case(tensors, run, terms, True, about)


def batch_norm(r: Draw) -> Case:
    c = r.choice([1, 2, 3, 8, 16, 17, 35])
    n, h, w = r.randint(1, 4), r.randint(1, 9), r.randint(1, 9)
    shape = r.choice([(n, c, h, w), (n, c, h, w), (5 * n, c), (2, c, 7), (1, c, 1, 1)])
    dtype = r.choice([torch.float32] * 4 + [torch.bfloat16])
    other = r.choice([dtype, torch.float32])
    training, affine, kept = r.random() < 0.6, r.random() < 0.8, r.random() < 0.7
    momentum, eps = r.choice([0.1, 1.0, 0.0, 0.3]), r.choice([1e-5, 1e-3])
    x = r.tensor(shape, dtype)
    edge, r.edge = r.edge, False  # sums of huge gradients are infinite or NaN as the order has it
    dy = r.tensor(shape, dtype)
    w, b, rm = (r.values((c,), other) for _ in range(3))
    rv = r.values((c,), other).abs() + 0.5
    r.edge = edge

    def run(x: Any, dy: Any, w: Any, b: Any, rm: Any, rv: Any) -> Any:
        x, w, b = (t.detach().requires_grad_() for t in (x, w, b))
        rm, rv = (rm.clone(), rv.clone()) if kept or not training else (None, None)
        y = F.batch_norm(x, rm, rv, w if affine else None, b if affine else None, training, momentum, eps)
        grads = torch.autograd.grad(y, (x, w, b) if affine else (x,), dy)
        return [y.detach(), *grads, *([] if rm is None else [rm, rv])]

    about = f"training {training} affine {affine} kept {kept} momentum {momentum} eps {eps}"
    # what the mean is wrong by in its last digits is divided by the deviation
    seen = x.double().transpose(0, 1).flatten(1)
    gain = float(seen.abs().max() / (seen.var(1, correction=0).min() + eps).sqrt()) if training else 1.0
    terms = (100 * gain) ** 2 if math.isfinite(gain) else 1e4
    return Case([x, dy, w, b, rm, rv], run, terms, False, about)


def pool(r: Draw) -> Case:
    n, c = r.choice([0, 1, 2, 3]), r.choice([1, 2, 3, 8, 16, 19])
    shape = (n, c, r.randint(1, 15), r.randint(1, 15))
    window = r.choice([(2, 2), (2, 2), (3, 3), (3, 3), (1, 1), (3, 2), (5, 5), (1, 4)])
    stride = r.choice([None, (1, 1), (2, 2), (3, 2), (4, 4)])
    pad = r.choice([(0, 0), (window[0] // 2, window[1] // 2), (0, window[1] // 2)])
    ceil = r.random() < 0.4
    dtype = r.dtype()
    seed = r.randrange(2**31)
    most_of = r.random() < 0.5
    dilation = r.choice([1, 1, 2]) if most_of else 1
    if dilation > 1:  # where a window holds no element, stock writes outside of dx
        shape = (n, c, max(shape[2], 2), max(shape[3], 2))
    x = r.tensor(shape, dtype)
    if most_of:

        def most(x: Any) -> Any:
            x = x.detach().requires_grad_()
            y, index = F.max_pool2d(x, window, stride, pad, dilation, ceil, True)
            dy = Draw(seed).tensor(tuple(y.shape), x.dtype)
            return [y.detach(), index, *torch.autograd.grad(y, x, dy)]

        return Case([x], most, 64, False, f"max {window} {stride} {pad} {dilation} {ceil}")
    counted, divisor = r.random() < 0.5, r.choice([None, None, 3, -2])

    def average(x: Any) -> Any:
        x = x.detach().requires_grad_()
        y = F.avg_pool2d(x, window, stride, pad, ceil, counted, divisor)
        dy = Draw(seed).tensor(tuple(y.shape), x.dtype)
        return [y.detach(), *torch.autograd.grad(y, x, dy)]

    return Case([x], average, 64, False, f"avg {window} {stride} {pad} {ceil} {counted} {divisor}")


def any_shape(r: Draw, low: int = 1) -> tuple[int, ...]:
    return tuple(r.choice([1, 1, 2, 3, 5, 8, 17, 33]) for _ in range(r.randint(low, 4)))


def relu(r: Draw) -> Case:
    shape, dtype = any_shape(r), r.dtype()
    x, dy = r.tensor(shape, dtype), r.tensor(shape, dtype)
    if r.random() < 0.5:
        dy = torch.empty_like(x).copy_(dy) if 0 not in x.stride() else dy

    def run(x: Any, dy: Any) -> Any:
        z = x.clone()
        return [torch.relu(x), A.threshold_backward(dy, x, 0), F.relu_(z), z]

    return Case([x, dy], run, 1, False, "")


def softmax(r: Draw) -> Case:
    shape, dtype = any_shape(r), r.dtype()
    axis, log = r.randrange(-len(shape), len(shape)), r.random() < 0.5
    x, dy = r.tensor(shape, dtype), r.tensor(shape, dtype)
    if r.edge and r.random() < 0.5:
        x = torch.full_like(x, r.choice([-float("inf"), -3e38 if dtype == torch.float32 else -6e4]))

    def run(x: Any, dy: Any) -> Any:
        x = x.detach().requires_grad_()
        y = (F.log_softmax if log else F.softmax)(x, axis)
        return [y.detach(), *torch.autograd.grad(y, x, dy)]

    return Case([x, dy], run, 200, False, f"axis {axis} log {log}")


def linear(r: Draw) -> Case:
    m, n, k = (r.choice([0, 1, 1, 2, 3, 7, 16, 33, 70]) for _ in range(3))
    dtype = r.dtype()
    a, b = r.tensor((m, k), dtype), r.tensor((k, n), dtype)
    if r.random() < 0.3:
        a = r.tensor((k, m), dtype, True).t()
    if r.random() < 0.5:
        b = r.tensor((n, k), dtype, True).t()
    kind = r.choice(["mm", "addmm", "addmm", "linear"])
    if kind == "mm":
        return Case([a, b], lambda a, b: [a @ b], k, True, "mm")
    if kind == "linear":
        bias = r.values((n,), dtype)

        def run(a: Any, b: Any, bias: Any) -> Any:
            a, w, bias = (t.detach().requires_grad_() for t in (a, b.t(), bias))
            y = F.linear(a, w, bias)
            return [y.detach(), *torch.autograd.grad(y, (a, w, bias), torch.ones_like(y))]

        return Case([a, b, bias], run, max(m, n, k), True, "linear")
    c = r.tensor(r.choice([(n,), (m, n), (1, n), (m, 1), (1,), (1, 1)]), dtype)
    beta, alpha = r.choice([(1, 1), (1, 1), (0, 1), (2, 1), (0.5, -1)])
    if beta == 0 and c.numel() and 0 not in c.stride():
        c = torch.full_like(c, float("nan"))  # beta 0: c is not read
    return Case(
        [c, a, b], lambda c, a, b: [torch.addmm(c, a, b, beta=beta, alpha=alpha)],
        k, min(alpha, beta) > 0, f"addmm {beta} {alpha}",
    )  # fmt: skip


def mean(r: Draw) -> Case:
    shape, dtype = any_shape(r), r.dtype()
    axes: Any = r.sample(range(len(shape)), r.randint(0, len(shape)))
    axes = r.choice([axes, [a - len(shape) for a in axes], None])
    keep = r.random() < 0.5
    return Case(
        [r.tensor(shape, dtype)], lambda x: [A.mean.dim(x, axes, keep)], 1e3, True, f"axes {axes} keep {keep}"
    )


FAMILIES = {f.__name__: f for f in (conv, batch_norm, pool, relu, softmax, linear, mean)}


# --- the judge ---
def judge(case: Case) -> str:
    """What is wrong with ours, or nothing."""
    inputs = [t.clone() for t in case.tensors]
    with hooks.using(False):
        want = outcome(lambda: case.run(*case.tensors))
        exact = outcome(lambda: case.run(*[t.double() for t in case.tensors]))
        scale = outcome(lambda: case.run(*[t.double().abs() for t in case.tensors])) if case.linear else exact
    got = outcome(lambda: case.run(*case.tensors))
    for before, after in zip(inputs, case.tensors):
        if not torch.equal(before.nan_to_num(7), after.nan_to_num(7)):
            return "an input was written to"
    if isinstance(want, str) or isinstance(got, str):
        return "" if want == got else f"stock: {str(want)[:200]}, ours: {str(got)[:200]}"
    for i, (a, b) in enumerate(zip(want, got, strict=True)):
        stock, ours = ((tuple(t.shape), t.stride(), t.dtype, t.requires_grad) for t in (a, b))
        if stock != ours:
            return f"result {i}: {stock} stock, {ours} ours"
        if not a.is_floating_point():
            if not torch.equal(a, b):
                return f"result {i}: indices differ"
            continue
        if isinstance(exact, str) or isinstance(scale, str):
            e, s = a.double(), a.double().abs()
        else:
            e, s = exact[i], scale[i].abs()
        a, b = a.double(), b.double()
        odd = ~a.isfinite()
        if not torch.equal(a[odd].nan_to_num(7), b[odd].nan_to_num(7)) or not torch.equal(odd, ~b.isfinite()):
            apart = (odd | ~b.isfinite()) & ~((a == b) | (a.isnan() & b.isnan()))
            return f"result {i}: NaN or inf: stock {a[apart][:4].tolist()} ours {b[apart][:4].tolist()}"
        fine = ~odd & e.isfinite()
        if not fine.any():
            continue
        eps = torch.finfo(want[i].dtype).eps
        most = s[s.isfinite()].max() if s.isfinite().any() else 0.0
        bound = 2 * (a - e)[fine].abs().max() + 1.2e-7 * (4 + case.terms**0.5) * most + 1e-37
        wrong = (b - e)[fine].abs() > bound + eps * e[fine].abs()
        if wrong.any():
            at = (b - e)[fine].abs().argmax()
            return (
                f"result {i}: {b[fine][at]:.9g} for {e[fine][at]:.9g}, stock {a[fine][at]:.9g}, "
                f"bound {bound:.3g}; {int(wrong.sum())} of {wrong.numel()} wrong"
            )
    return ""


def run(family: str, seed: int) -> str:
    r = Draw(f"{family} {seed}")
    r.edge = r.random() < 0.2
    case = FAMILIES[family](r)
    found = judge(case)
    if not found:
        return ""
    shapes = ", ".join(f"{tuple(t.shape)}/{t.stride()} {t.dtype}" for t in case.tensors)
    return f"{family} seed {seed}{' edge' if r.edge else ''}: {found}\n  {shapes}\n  {case.about}"


@pytest.mark.parametrize("family", FAMILIES)
def test_random(family: str) -> None:
    frontend = armed()
    before = sum(n["taken"] for n in hooks.stats()["torch"].values())
    count = COUNT or (10 if family == "conv" else 40)
    found = [f for seed in range(SEED, SEED + count) if (f := run(family, seed))]
    assert not found, "\n".join([f"{len(found)} of {count}", *found[:12]])
    assert frontend.block["alive"]
    assert sum(n["taken"] for n in hooks.stats()["torch"].values()) > before
