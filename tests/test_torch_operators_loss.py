"""Reductions, losses and embedding in PyTorch: values, gradients, strides, dtypes and errors as stock's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torch_support import layouts, off_on, torch

pytestmark = pytest.mark.framework
F: Any = torch.nn.functional
A: Any = torch.ops.aten
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
#: Of the largest element; sums of 16-bit floats are rounded once by us, now and then more often by stock.
NEAR = {torch.float32: 4e-6, torch.float64: 1e-12, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}


def rand(*size: int, seed: int = 0, dtype: Any = torch.float32) -> Any:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


REDUCTIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "sum": ("sum.dim_IntList", torch.sum),
    "mean": ("mean.dim", torch.mean),
    "amax": ("amax", torch.amax),
    "amin": ("amin", torch.amin),
    "norm": ("linalg_vector_norm", lambda x, d, keepdim: torch.linalg.vector_norm(x, 2, d, keepdim)),
    "norm 1": ("linalg_vector_norm", lambda x, d, keepdim: torch.linalg.vector_norm(x, 1, d, keepdim)),
    "norm inf": (
        "linalg_vector_norm",
        lambda x, d, keepdim: torch.linalg.vector_norm(x, torch.inf, d, keepdim),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, dtype: Any) -> None:
    operator, f = REDUCTIONS[name]
    near = {"rtol": NEAR[dtype], "atol": 4 * NEAR[dtype]}
    x = rand(3, 4, 5, 6, dtype=dtype)
    for label, t in layouts(x) if dtype is torch.float32 else [("contiguous", x)]:
        for dims in ((0, 2, 3), (1,), (3,), (0, 1, 2, 3)):
            off_on(lambda t=t, d=dims: f(t, d, keepdim=len(d) > 2), operator, **near)
        del label
    for t in (rand(7, dtype=dtype), rand(0, 3, dtype=dtype), rand(dtype=dtype)):
        off_on(lambda t=t: f(t, 0, keepdim=False), **near)
    off_on(lambda: f(x, (0, 0), keepdim=False))
    off_on(lambda: f(x, 4, keepdim=False))
    off_on(lambda: f(torch.arange(12).reshape(3, 4), 1, keepdim=True))


def test_whole_reductions_and_gradients() -> None:
    x0 = rand(40, 50)
    for f in (torch.sum, torch.amax, torch.amin, torch.prod, torch.linalg.vector_norm, torch.norm):

        def step(f: Any = f) -> Any:
            x = x0.detach().requires_grad_()
            y = f(x)
            return [y, torch.autograd.grad(y, x)]

        off_on(step, rtol=1e-5, atol=1e-4)
    for dtype in DTYPES:
        small = 1 + rand(5, 9, dtype=dtype) / 8
        off_on(lambda t=small: [t.prod(), t.prod(1), t.prod(0, keepdim=True)], "prod", "prod.dim_int",
               rtol=4 * NEAR[dtype], atol=0)  # fmt: skip
    off_on(lambda: [x0.sum(dtype=torch.float64), x0.prod(1, dtype=torch.float64)])
    off_on(lambda: [torch.linalg.vector_norm(x0, p) for p in (0, 3, -1, -torch.inf)], rtol=1e-4)
    y = torch.tensor([[1.0, torch.nan, 3.0], [torch.inf, -torch.inf, 0.0], [1e30, 1e30, -1e30]])
    for f in (torch.sum, torch.amax, torch.amin):
        off_on(lambda f=f: [f(y), f(y, 0), f(y, 1)])


POINTWISE: dict[str, tuple[Any, dict[str, Any]]] = {
    "mse_loss": (F.mse_loss, {}),
    "smooth_l1_loss": (F.smooth_l1_loss, {"beta": 0.5}),
    "huber_loss": (F.huber_loss, {"delta": 0.5}),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", POINTWISE)
def test_losses(name: str, dtype: Any) -> None:
    f, more = POINTWISE[name]
    near = {"rtol": NEAR[dtype], "atol": NEAR[dtype]}
    operators = [name, "mse_loss_backward"] if name == "mse_loss" else [name]
    x0, t0 = rand(2, 3, 4, 5, dtype=dtype), rand(2, 3, 4, 5, seed=1, dtype=dtype)
    pairs = list(zip(layouts(x0), layouts(t0))) if dtype is torch.float32 else [((0, x0), (0, t0))]
    for (_, x), (_, t) in pairs:
        for reduction in ("mean", "sum", "none"):

            def step(x: Any = x, t: Any = t, reduction: str = reduction) -> Any:
                a = x.detach().requires_grad_()
                y = f(a, t, reduction=reduction, **more)
                return [y, torch.autograd.grad(y.sum() * 1.5, a)]

            off_on(step, *(operators if x.is_contiguous() else []), **near)
            off_on(lambda x=x, r=reduction: f(x, t0, reduction=r, **more), **near)
    off_on(lambda: f(x0, t0[:0]))
    off_on(lambda: f(x0[:0], t0[:0]))
    off_on(lambda: f(x0, t0.to(torch.float64 if dtype is not torch.float64 else torch.float32)), **near)
    off_on(lambda: f(x0, t0[:, :1], **more), **near)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(9, 33), (3, 7, 5, 4), (9,), (4, 5, 6)], ids=str)
def test_nll_loss(shape: Any, dtype: Any) -> None:
    near = {"rtol": NEAR[dtype], "atol": NEAR[dtype]}
    classes = shape[min(1, len(shape) - 1)]
    rest = shape[:1] + shape[2:] if len(shape) > 1 else ()
    g = torch.Generator().manual_seed(2)
    target = torch.randint(0, classes, rest, generator=g)
    x0 = rand(*shape, dtype=dtype)
    if len(shape) == 4:
        x0 = x0.contiguous(memory_format=torch.channels_last)
    for weight in (None, rand(classes, seed=3, dtype=dtype).abs()):
        for reduction in ("mean", "sum", "none"):
            for ignore in (-100, int(target.reshape(-1)[0])):

                def step(w: Any = weight, reduction: str = reduction, ignore: int = ignore) -> Any:
                    x = x0.detach().requires_grad_()
                    y = F.nll_loss(x, target, w, reduction=reduction, ignore_index=ignore)
                    return [y, torch.autograd.grad(y.sum() * 1.5, x)]

                off_on(step, **near)
    operator = "nll_loss2d" if len(shape) > 2 else "nll_loss"
    off_on(lambda: F.nll_loss(x0, target), f"{operator}_forward", **near)
    off_on(lambda: F.nll_loss(x0, torch.full_like(target, -100)))
    off_on(lambda: F.cross_entropy(x0, target), **near)


def test_classes_out_of_range_are_stocks_error() -> None:
    for shape, rest in (((5, 7), (5,)), ((2, 7, 3, 4), (2, 3, 4))):
        x, target = rand(*shape).requires_grad_(), torch.zeros(rest, dtype=torch.int64)
        for bad in (7, -1, 1 << 40):
            target.view(-1)[-1] = bad
            off_on(lambda x=x, t=target: F.nll_loss(x, t))
            off_on(lambda x=x, t=target: F.cross_entropy(x, t))
    x = rand(5, 7)
    off_on(lambda: F.nll_loss(x, torch.zeros(4, dtype=torch.int64)))
    off_on(lambda: F.nll_loss(x, torch.zeros(5)))
    off_on(lambda: F.nll_loss(x, torch.zeros(5, dtype=torch.int64), rand(6)))
    off_on(lambda: F.nll_loss(x, torch.zeros(5, dtype=torch.uint8)))
    off_on(lambda: F.nll_loss(x, torch.zeros(5, dtype=torch.int64), reduction="most"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embedding(dtype: Any) -> None:
    near = {"rtol": NEAR[dtype], "atol": NEAR[dtype]}
    w0 = rand(11, 33, dtype=dtype)
    index = torch.randint(0, 11, (3, 8), generator=torch.Generator().manual_seed(1))
    for i in (index, index.int(), index.t(), index[0, 0], index[:0]):
        for padding in (None, 2, -1):

            def step(i: Any = i, padding: Any = padding) -> Any:
                w = w0.detach().requires_grad_()
                y = F.embedding(i, w, padding)
                return [y, torch.autograd.grad(y, w, rand(*y.shape, seed=4, dtype=dtype))]

            off_on(step, **near)
    off_on(lambda: F.embedding(index, w0), "index_select", rtol=0, atol=0)
    dy = rand(3, 8, 33, dtype=dtype)
    off_on(lambda: A.embedding_dense_backward(dy, index, 11, -1, False), "embedding_dense_backward", **near)
    off_on(lambda: A.embedding_dense_backward(dy, index, 11, 3, True), **near)
    off_on(lambda: F.embedding(index, w0.t().contiguous().t()), rtol=0, atol=0)
    off_on(lambda: torch.index_select(w0, 1, index[0]), rtol=0, atol=0)
    off_on(lambda: torch.index_select(w0, -2, index[0, ::2]), rtol=0, atol=0)


def test_indices_out_of_range_are_stocks_error() -> None:
    w = rand(11, 5)
    for bad in (11, -1, 1 << 40):
        i = torch.tensor([0, 3, bad])
        off_on(lambda i=i: F.embedding(i, w))
        off_on(lambda i=i: torch.index_select(w, 0, i))
    off_on(lambda: F.embedding(torch.tensor([0.0]), w))
    off_on(lambda: F.embedding(torch.tensor([1]), w, 11))
    off_on(lambda: A.embedding_dense_backward(rand(2, 5), torch.tensor([0, 1, 2]), 11, -1, False))


@pytest.mark.parametrize("f", [torch.softmax, torch.log_softmax])
def test_softmax_in_f64(f: Any) -> None:
    x0 = rand(6, 40, dtype=torch.float64)

    def step() -> Any:
        x = x0.detach().requires_grad_()
        y = f(x, 1)
        return [y, torch.autograd.grad(y, x, rand(6, 40, seed=1, dtype=torch.float64))]

    name = f"_{f.__name__}"
    off_on(step, name, f"{name}_backward_data", rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_ctc_loss(dtype: Any) -> None:
    near = {"rtol": NEAR[dtype] * 8, "atol": NEAR[dtype] * 8}
    taken = ("_ctc_loss", "_ctc_loss_backward")
    g = torch.Generator().manual_seed(4)
    x0 = rand(14, 3, 6, dtype=dtype)
    target = torch.randint(1, 6, (3, 5), generator=g)

    def step(t: Any, steps: Any, labels: Any, reduction: str = "mean", zero: bool = False) -> Any:
        x = x0.detach().requires_grad_()
        logs = x.log_softmax(2)
        y = F.ctc_loss(logs, t, steps, labels, 0, reduction, zero)
        return [y, torch.autograd.grad(y.sum() * 1.5, [x, logs])]

    # one key, other lengths each time; 2 steps are too few for 5 labels: the loss is infinite
    for steps, labels in (([14, 14, 14], [5, 5, 5]), ([9, 2, 14], [0, 5, 3]), ([14, 13, 12], [5, 1, 2])):
        for reduction in ("mean", "sum", "none"):
            for zero in (False, True):
                at = target, steps, labels, reduction, zero
                off_on(lambda at=at: step(*at), *taken, **near)
        as_tensors = torch.tensor(steps), torch.tensor(labels, dtype=torch.int32)
        off_on(lambda v=as_tensors: step(target, *v), *taken, **near)
    logs = x0.log_softmax(2)
    full = [14] * 3, [5] * 3
    for lengths, name in ((full, ""), (tuple(map(torch.tensor, full)), ".Tensor")):

        def raw(lengths: Any = lengths) -> Any:
            loss, alpha = A._ctc_loss(logs, target, *lengths, 0, False)
            grads = torch.ones((), dtype=dtype).expand(3)
            return [loss, alpha, A._ctc_loss_backward(grads, logs, target, *lengths, loss, alpha, 0)]

        off_on(raw, f"_ctc_loss{name}", f"_ctc_loss_backward{name}", **near)
    # stock's: no target of all five labels, targets in a row, int32, other layouts of x are taken
    off_on(lambda: step(target, [14, 9, 8], [4, 4, 3]), **near)
    off_on(lambda: step(target.reshape(-1)[:9], [14, 9, 8], [4, 3, 2]), **near)
    off_on(lambda: step(target.int(), *full), **near)
    turned = logs.transpose(0, 1).contiguous().transpose(0, 1)
    off_on(lambda: F.ctc_loss(turned, target, *full, reduction="none"), "_ctc_loss", **near)
    many = rand(4, 300, 3, dtype=dtype).log_softmax(2)  # more lengths than an adapter holds
    off_on(lambda: F.ctc_loss(many, target[:1, :2].expand(300, 2) % 3, [4] * 300, [2] * 300), **near)
    # errors are stock's
    for steps, labels in (
        ([15, 3, 3], [5, 5, 5]), ([14, 3, -1], [5, 5, 5]), ([14, 3], [5, 5, 5]), ([14, 3, 3], [5, 5, 6]),
        ([14, 3, 3], [5, 5, -1]), ([14, 3, 3], [5, 5, 5, 5]),
    ):  # fmt: skip
        off_on(lambda s=steps, n=labels: F.ctc_loss(logs, target, s, n), **near)
    off_on(lambda: F.ctc_loss(logs, target, *full, blank=6))
    off_on(lambda: F.ctc_loss(logs, target[:2], *full))
    off_on(lambda: F.ctc_loss(logs.bfloat16(), target, *full))
