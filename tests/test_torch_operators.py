"""Every operator of the PyTorch frontend: values, strides and dtypes as stock's, in every layout."""

from __future__ import annotations

from typing import Any

import pytest

from torch_support import layouts, off_on, torch

pytestmark = pytest.mark.framework
F: Any = torch.nn.functional
A: Any = torch.ops.aten
LAYOUTS = [name for name, _ in layouts(torch.zeros(2, 1, 3, 4))]


def rand(*size: int, seed: int = 0, dtype: Any = torch.float32) -> Any:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def laid(t: Any, layout: str) -> Any:
    found = dict(layouts(t))
    if layout not in found:
        pytest.skip("the layout needs a dimension of size 1")
    return found[layout]


CONVS = [
    # x, w, stride, padding, dilation, groups
    ((2, 16, 10, 10), (32, 16, 3, 3), 1, 1, 1, 1),
    ((2, 16, 9, 7), (8, 16, 1, 1), 1, 0, 1, 1),
    ((1, 3, 23, 22), (16, 3, 7, 7), 2, 3, 1, 1),
    ((2, 8, 14, 14), (24, 8, 1, 1), 2, 0, 1, 1),
    ((3, 4, 11, 9), (6, 4, 3, 2), (3, 2), (1, 0), 1, 1),
    ((1, 6, 12, 12), (10, 6, 3, 3), 1, 2, 2, 1),
    ((2, 32, 8, 8), (64, 8, 3, 3), 1, 1, 1, 4),
    ((2, 24, 12, 10), (24, 1, 3, 3), 1, 1, 1, 24),
    ((1, 1, 4, 4), (1, 1, 3, 3), 1, 0, 1, 1),
    ((4, 64, 1, 1), (32, 64, 1, 1), 1, 0, 1, 1),
    ((2, 1, 5, 6), (4, 1, 3, 3), 1, 1, 1, 1),
    ((2, 5, 1, 33), (7, 5, 1, 3), 1, (0, 1), 1, 1),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("weights", ["contiguous", "channels_last"])
@pytest.mark.parametrize("case", CONVS, ids=str)
def test_conv2d(case: Any, layout: str, weights: str) -> None:
    xs, ws, stride, padding, dilation, groups = case
    x, w = laid(rand(*xs), layout), laid(rand(*ws, seed=1), weights)
    b = rand(ws[0], seed=2)
    off_on(lambda: F.conv2d(x, w, None, stride, padding, dilation, groups), "_convolution")
    off_on(lambda: F.conv2d(x, w, b, stride, padding, dilation, groups), "_convolution")


@pytest.mark.parametrize("layout", [n for n in LAYOUTS if n != "odd strides of size 1"])
@pytest.mark.parametrize("weights", ["contiguous", "channels_last"])
@pytest.mark.parametrize("case", CONVS, ids=str)
def test_conv2d_backward(case: Any, layout: str, weights: str) -> None:
    xs, ws, stride, padding, dilation, groups = case
    b = rand(ws[0], seed=2)
    xd, wd = laid(rand(*xs), layout).detach(), laid(rand(*ws, seed=1), weights)

    def step() -> Any:
        x, w = xd.requires_grad_(), wd.detach().requires_grad_()
        bias = b.detach().clone().requires_grad_()
        y = F.conv2d(x, w, bias, stride, padding, dilation, groups)
        return torch.autograd.grad(y, (x, w, bias), rand(*y.shape, seed=3))

    off_on(step, "convolution_backward", rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, False),
                                  (False, False, True), (False, True, True)], ids=str)  # fmt: skip
def test_conv_backward_masks(mask: Any) -> None:
    x, w, dy = rand(2, 8, 9, 9), rand(6, 8, 3, 3, seed=1), rand(2, 6, 9, 9, seed=2)
    names = ["convolution_backward"] if any(mask[:2]) else []
    off_on(
        lambda: A.convolution_backward(
            dy, x, w, [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, list(mask)
        ),
        *names, rtol=1e-3, atol=1e-3,
    )  # fmt: skip


NORMS = [(2, 35, 6, 5), (1, 3, 4, 4), (4, 1, 3, 3), (8, 16, 1, 1), (17, 33)]


@pytest.mark.parametrize("shape", NORMS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(shape: Any, layout: str, training: bool) -> None:
    x0 = laid(rand(*shape), layout) if len(shape) == 4 else rand(*shape)
    dy = rand(*shape, seed=9)
    c = shape[1]

    def step() -> Any:
        x = x0.detach().requires_grad_()
        w, b = rand(c, seed=1).requires_grad_(), rand(c, seed=2).requires_grad_()
        rm, rv = rand(c, seed=3), rand(c, seed=4).abs() + 0.5
        y = F.batch_norm(x, rm, rv, w, b, training, 0.25, 1e-3)
        return [y, torch.autograd.grad(y, (x, w, b), dy), rm, rv, rm._version, rv._version]

    off_on(step, rtol=1e-3, atol=1e-3)


def test_batch_norm_taken() -> None:
    x = rand(4, 16, 8, 8)
    stats = [torch.zeros(16), torch.ones(16)]
    off_on(lambda: F.batch_norm(x, *stats, training=True, momentum=0.0), "native_batch_norm")
    off_on(lambda: F.batch_norm(x, *stats), "native_batch_norm")
    off_on(lambda: F.batch_norm(x, None, None, training=True), "native_batch_norm")
    off_on(lambda: A._native_batch_norm_legit(x, None, None, *stats, True, 0.0, 1e-5),
           "_native_batch_norm_legit")  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 7, 9), (5, 4, 1, 1), (2, 2, 1, 3)], ids=str)
def test_relu(shape: Any, layout: str) -> None:
    x = laid(rand(*shape), layout)
    off_on(lambda: [torch.relu(x), A.relu(x)])
    if layout != "expanded":
        off_on(lambda: (lambda t: [torch.relu_(t), t, t._version])(laid(rand(*shape), layout)))
    for other in LAYOUTS:
        dy = dict(layouts(rand(*shape, seed=5))).get(other)
        if dy is not None:
            off_on(lambda dy=dy: A.threshold_backward(dy, x, 0))


def test_relu_edges() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-42, -1e-42, 3.0])
    dy = torch.arange(1.0, 9.0)
    off_on(lambda: torch.relu(x), "relu")
    off_on(lambda: A.threshold_backward(dy, x, 0), "threshold_backward")
    off_on(lambda: A.threshold_backward(dy, x, 1.5))
    off_on(lambda: F.leaky_relu(x, 0.1))
    off_on(lambda: torch.relu(torch.tensor(-2.0)))
    off_on(lambda: torch.relu(torch.arange(-3, 3)))


POOLS = [
    # shape, window, stride, padding, ceil
    ((2, 3, 8, 9), 2, None, 0, False),
    ((2, 19, 9, 8), 3, 2, 1, False),
    ((1, 4, 7, 7), (3, 2), (2, 1), (1, 0), True),
    ((2, 16, 10, 10), 3, 1, 1, False),
    ((1, 1, 5, 6), 5, 5, 2, True),
    ((3, 8, 1, 4), (1, 2), 1, 0, False),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", POOLS, ids=str)
def test_pools(case: Any, layout: str) -> None:
    shape, window, stride, padding, ceil = case
    x0 = laid(rand(*shape), layout)

    def most() -> Any:
        x = x0.detach().requires_grad_()
        y, index = F.max_pool2d(x, window, stride, padding, 1, ceil, True)
        return [y, index, torch.autograd.grad(y, x, rand(*y.shape, seed=4))]

    off_on(most, "max_pool2d_with_indices", "max_pool2d_with_indices_backward")
    for counted, divisor in ((True, None), (False, None), (True, 3)):

        def mean(counted: bool = counted, divisor: Any = divisor) -> Any:
            x = x0.detach().requires_grad_()
            y = F.avg_pool2d(x, window, stride, padding, ceil, counted, divisor)
            return [y, torch.autograd.grad(y, x, rand(*y.shape, seed=4))]

        off_on(mean, "avg_pool2d", "avg_pool2d_backward")


def test_pool_edges() -> None:
    x = rand(2, 3, 9, 9)
    x[0, 0, 3, 3] = float("nan")
    x[1] = -float("inf")
    off_on(lambda: F.max_pool2d(x, 3, 2, 1, return_indices=True))
    off_on(lambda: F.max_pool2d(x, 3, 2, 1, dilation=2, return_indices=True))
    off_on(lambda: F.max_pool2d(torch.zeros(1, 1, 6, 6), 2, return_indices=True))
    off_on(lambda: F.max_pool2d(x[0], 3))
    off_on(lambda: F.max_pool2d(x, 20))
    off_on(lambda: F.avg_pool2d(x, 3, divisor_override=0))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dims", [(2, 3), (-1,), (1,), (0, 2, 3), None, ()], ids=str)
@pytest.mark.parametrize("keepdim", [True, False])
def test_mean(layout: str, dims: Any, keepdim: bool) -> None:
    x = laid(rand(4, 5, 6, 7), layout) if layout != LAYOUTS[-2] else rand(4, 5, 6, 7)
    off_on(lambda: A.mean.dim(x, dims, keepdim))


def test_mean_of_planes() -> None:
    for fmt in (torch.contiguous_format, torch.channels_last):
        x = rand(4, 32, 7, 7).contiguous(memory_format=fmt)
        off_on(lambda x=x: F.adaptive_avg_pool2d(x, (1, 1)), "mean.dim")
        off_on(lambda x=x: x.mean((2, 3)), "mean.dim")
    off_on(lambda: rand(3, 4).mean(1, dtype=torch.float64))


@pytest.mark.parametrize("m", [1, 5, 33])
def test_products(m: int) -> None:
    a, b, w, v = rand(m, 17), rand(17, 9, seed=1), rand(9, 17, seed=2), rand(9, seed=3)
    off_on(lambda: torch.mm(a, b), "mm")
    off_on(lambda: torch.mm(a, w.t()), "mm")
    off_on(lambda: torch.mm(b.t(), a.t()), "mm")
    off_on(lambda: F.linear(a, w, v), "addmm")
    off_on(lambda: torch.addmm(rand(m, 9, seed=4), a, b), "addmm")
    off_on(lambda: torch.addmm(v, a, b, beta=2, alpha=0.5))
    off_on(lambda: torch.addmm(v.expand(m, 9), a, b))
    off_on(lambda: torch.mm(a[:, ::2], rand(9, 4)))
    off_on(lambda: torch.mm(a, a))
    off_on(lambda: torch.mm(a[:0], b))

    def step() -> Any:
        x, ww, vv = (t.detach().requires_grad_() for t in (a, w, v))
        return torch.autograd.grad(F.linear(x, ww, vv).square().sum(), (x, ww, vv))

    off_on(step, "mm", rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("call", ["_softmax", "_log_softmax"])
@pytest.mark.parametrize(("shape", "axis"), [((4, 10), 1), ((4, 10), 0), ((3, 5, 7), 1), ((2, 3, 4, 5), -1),
                                             ((6,), 0), ((1, 1), 1), ((2, 1000), 1)])  # fmt: skip
def test_softmax(call: str, shape: Any, axis: int) -> None:
    x = rand(*shape) * 5
    f, back = getattr(A, call), getattr(A, f"{call}_backward_data")
    off_on(lambda: f(x, axis, False), call)
    y, dy = f(x, axis, False), rand(*shape, seed=6)
    off_on(lambda: back(dy, y, axis, torch.float32), f"{call}_backward_data")
    if len(shape) == 4:
        for name, t in layouts(x):
            off_on(lambda t=t: f(t, axis, False))
            assert name
    off_on(lambda: f(x.bfloat16(), axis, False), rtol=2e-2, atol=2e-2)
    off_on(lambda: f(x.bfloat16(), axis, True))


def test_softmax_edges() -> None:
    x = rand(4, 6)
    x[0, 2], x[1], x[2, 0], x[3] = float("inf"), -float("inf"), float("nan"), 1e30
    off_on(lambda: A._softmax(x, 1, False))
    off_on(lambda: A._log_softmax(x, 1, False))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype: Any) -> None:
    x, w = rand(2, 16, 9, 9, dtype=dtype), rand(8, 16, 3, 3, seed=1, dtype=dtype)
    near = {"rtol": 2e-2, "atol": 1e-1}
    off_on(lambda: F.conv2d(x, w, padding=1), **near)
    off_on(lambda: torch.relu(x))
    off_on(lambda: F.max_pool2d(x, 2, return_indices=True))
    off_on(lambda: F.avg_pool2d(x, 3, 2, 1), **near)
    off_on(lambda: x.mean((2, 3)), **near)
    off_on(lambda: F.linear(x[0, 0], w[0, 0].repeat(1, 3)), **near)
    off_on(lambda: A._softmax(x, 1, False), **near)
    if dtype is torch.bfloat16:
        ones = torch.ones(16)
        off_on(lambda: F.batch_norm(x, None, None, ones, ones, training=True), **near)


def test_errors_are_stocks() -> None:
    x = rand(2, 3, 8, 8)
    for call in (
        lambda: F.conv2d(x, rand(4, 2, 3, 3)),
        lambda: F.conv2d(x, rand(4, 3, 9, 9)),
        lambda: F.conv2d(x, rand(4, 3, 3, 3), groups=2),
        lambda: F.conv2d(x, rand(4, 3, 3, 3), rand(5)),
        lambda: F.conv2d(x.double(), rand(4, 3, 3, 3)),
        lambda: F.conv2d(x, rand(4, 3, 3, 3), stride=0),
        lambda: F.conv2d(x, rand(4, 3, 3, 3), padding=-1),
        lambda: F.conv2d(x[0, 0], rand(4, 3, 3, 3)),
        lambda: F.conv2d(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 3, 3), padding=400000),
        lambda: torch.mm(x[0, 0], rand(7, 8)),
        lambda: F.max_pool2d(x, 3, padding=2),
        lambda: F.batch_norm(x, None, None),
        lambda: F.batch_norm(rand(1, 3), None, None, training=True),
        lambda: A._softmax(x, 7, False),
        lambda: A._log_softmax(x, -5, False),
        lambda: A._softmax_backward_data(x, x, 4, torch.float32),
        lambda: x.mean((2, 5)),
        lambda: x.mean((1, -3)),
        lambda: torch.addmm(rand(5), x[0, 0], rand(8, 4)),
    ):
        off_on(call)


@pytest.mark.parametrize("shape", [(0, 3, 6, 6), (2, 0, 6, 6), (2, 3, 0, 6)], ids=str)
def test_empty(shape: Any) -> None:
    x = torch.zeros(shape)
    off_on(lambda: F.conv2d(x, torch.zeros(4, shape[1], 3, 3), padding=2))
    off_on(lambda: torch.relu(x))
    off_on(lambda: F.max_pool2d(x, 2))
    off_on(lambda: F.avg_pool2d(x, 2))
    off_on(lambda: x.mean((2, 3)))
    off_on(lambda: A._softmax(x, 1, False))


def test_more_or_fewer_dimensions() -> None:
    off_on(lambda: F.conv1d(rand(2, 3, 20), rand(4, 3, 3)), "_convolution")
    off_on(lambda: F.conv3d(rand(1, 2, 5, 6, 7), rand(3, 2, 2, 2, 2)))
    off_on(lambda: F.conv_transpose2d(rand(2, 4, 5, 5), rand(4, 3, 3, 3), stride=2))
    off_on(lambda: F.conv2d(rand(3, 8, 8), rand(4, 3, 3, 3)))
    off_on(lambda: F.linear(rand(2, 3, 7), rand(4, 7), rand(4)))


def test_offsets_past_two_to_the_31() -> None:
    """Element offsets that do not fit 32 bits: a view into a large, untouched allocation."""
    big = torch.empty_strided((2, 4, 6, 6), (2**31 + 5, 36, 6, 1))
    values = rand(2, 4, 6, 6)
    big.copy_(values)
    w = rand(5, 4, 3, 3, seed=1)
    off_on(lambda: F.conv2d(big, w), "_convolution")
    off_on(lambda: F.max_pool2d(big, 2))
