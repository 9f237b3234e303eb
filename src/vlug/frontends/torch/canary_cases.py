"""What the canary compares: calls that between them reach every argument and result of every adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Case", "cases"]

Case = tuple[str, Callable[[], Any]]


def cases() -> list[Case]:
    """Name and call of everything that the adapters must give as stock does; some raise."""
    import torch

    A: Any = torch.ops.aten
    F: Any = torch.nn.functional
    x, w = torch.ones(1, 2, 4, 4), torch.ones(4, 3, 3, 3)
    plain: Any = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, True, True)
    return [
        # of f32 ours take most, of f64 none: both ways are walked with every argument
        *_of_dtype(torch.float32),
        *_of_dtype(torch.float64),
        ("wrong channels", lambda: F.conv2d(x, w)),
        ("wrong channels, boxed", lambda: A._convolution(x, w, None, *plain)),
        ("integers", lambda: F.relu(torch.arange(-3, 3))),
        ("wrong window", lambda: A.max_pool2d_with_indices(x, [5, 5])),
    ]


def _of_dtype(dtype: Any) -> list[Case]:
    made = [*_convolutions(dtype), *_pointwise(dtype), *_pools(dtype), *_rows(dtype), *_norms(dtype)]
    made.append(("training", lambda: _train(dtype)))
    tag = str(dtype).removeprefix("torch.")
    return [(f"{name}, {tag}", call) for name, call in made]


def _random(dtype: Any) -> Callable[..., Any]:
    import torch

    g = torch.Generator().manual_seed(1)
    return lambda *size: torch.randn(*size, generator=g).to(dtype)


def _convolutions(dtype: Any) -> list[Case]:
    import torch

    A: Any = torch.ops.aten
    F: Any = torch.nn.functional
    r = _random(dtype)
    x, w, b, dy = r(2, 4, 9, 8), r(6, 2, 3, 2), r(6), r(2, 6, 5, 6)
    last = x.contiguous(memory_format=torch.channels_last)
    at: Any = ([2, 1], [1, 0], [1, 2], False, [0, 0], 2)
    flags = (False, False, True, True)

    def back(sizes: Any, mask: list[bool]) -> Any:
        return A.convolution_backward(dy, x, w, sizes, *at, mask)

    return [
        ("conv", lambda: F.conv2d(x, w, None, (2, 1), (1, 0), (1, 2), 2)),
        ("conv with bias", lambda: F.conv2d(x, w, b, (2, 1), (1, 0), (1, 2), 2)),
        ("_convolution", lambda: A._convolution(last, w, None, *at, *flags)),
        ("_convolution with bias", lambda: A._convolution(last, w, b, *at, *flags)),
        ("convolution_backward", lambda: back([6], [True, True, True])),
        ("convolution_backward, dw", lambda: back(None, [False, True, False])),
        ("convolution_backward, dx", lambda: back(None, [True, False, False])),
    ]


def _pointwise(dtype: Any) -> list[Case]:
    import torch

    A: Any = torch.ops.aten
    x = _random(dtype)(2, 4, 9, 8)
    return [
        ("relu", lambda: [torch.relu(x), A.relu(x)]),
        ("relu_", lambda: [torch.relu_(x.clone()), A.relu_(x.clone())]),
        ("threshold_backward", lambda: [A.threshold_backward(x * 2, x, t) for t in (0, 0.0, 0.25)]),
    ]


def _pools(dtype: Any) -> list[Case]:
    import torch

    A: Any = torch.ops.aten
    F: Any = torch.nn.functional
    x = _random(dtype)(2, 4, 9, 8)
    last = x.contiguous(memory_format=torch.channels_last)
    half = x[:, :, ::2, ::2]

    def back(counted: bool, divisor: int | None) -> Any:
        return A.avg_pool2d_backward(half, x, [1], [2], [0], False, counted, divisor)

    return [
        ("max_pool", lambda: F.max_pool2d(x, (2, 3), (1, 2), (1, 0), 1, True, True)),
        ("max_pool, defaults", lambda: F.max_pool2d(x, 3)),
        ("max_pool, boxed", lambda: A.max_pool2d_with_indices(last, [3], [2], [1])),
        ("avg_pool", lambda: F.avg_pool2d(x, (2, 3), (1, 2), (1, 0), True, False)),
        ("avg_pool, defaults", lambda: F.avg_pool2d(x, 3)),
        (
            "avg_pool, boxed",
            lambda: [A.avg_pool2d(x, [2, 3], [1, 2], [1, 1], False, True, d) for d in (None, 5)],
        ),
        ("avg_pool_backward", lambda: [back(c, d) for c in (True, False) for d in (None, 3)]),
    ]


def _rows(dtype: Any) -> list[Case]:
    import torch

    A: Any = torch.ops.aten
    F: Any = torch.nn.functional
    r = _random(dtype)
    x, m, n, v = r(2, 4, 9, 8), r(5, 7), r(7, 3), r(3)
    soft = x.softmax(1)
    return [
        ("mean", lambda: [x.mean((2, 3)), x.mean((-1,), keepdim=True), A.mean.dim(x, [1])]),
        ("mean of all", lambda: [A.mean.dim(x, None), A.mean.dim(x, [0], True)]),
        ("mm", lambda: [torch.mm(m, n), A.mm(m, n)]),
        ("addmm", lambda: [torch.addmm(v, m, n), A.addmm(v, m, n), F.linear(m, n.t().contiguous(), v)]),
        ("addmm, scaled", lambda: [torch.addmm(v, m, n, beta=2, alpha=0.5), A.addmm(v, m, n, beta=0.5)]),
        ("_softmax", lambda: [A._softmax(x, 1, False), A._softmax(x, -1, False), F.softmax(x, 1)]),
        ("_log_softmax", lambda: [A._log_softmax(x, 1, False), F.log_softmax(x, 3)]),
        ("_softmax_backward", lambda: A._softmax_backward_data(x * 2, soft, 1, dtype)),
        ("_log_softmax_backward", lambda: A._log_softmax_backward_data(x * 2, soft, 1, dtype)),
    ]


def _norms(dtype: Any) -> list[Case]:
    import torch

    A: Any = torch.ops.aten
    r = _random(dtype)
    x = r(2, 4, 9, 8)
    last = x.contiguous(memory_format=torch.channels_last)
    scale, bias, mean, var = r(4), r(4), r(4), r(4).abs()
    now, inv = x.mean((0, 2, 3)), 1 / (x.var((0, 2, 3), unbiased=False) + 0.5).sqrt()

    def forward(call: Any, t: Any, training: bool) -> list[Any]:
        held = [p.clone() for p in (scale, bias, mean, var)]
        return [*call(t, *held, training, 0.25, 0.5), *held]

    def back(mask: list[bool]) -> Any:
        return A.native_batch_norm_backward(x * 2, x, scale, mean, var, now, inv, True, 0.5, mask)

    return [
        ("batch norm", lambda: forward(torch.native_batch_norm, x, True)),
        ("batch norm, evaluation", lambda: forward(torch.native_batch_norm, x, False)),
        ("batch norm, legit", lambda: forward(A._native_batch_norm_legit, last, True)),
        ("batch norm, legit, evaluation", lambda: forward(A._native_batch_norm_legit, last, False)),
        ("batch norm, bare", lambda: A.native_batch_norm(x, None, None, None, None, True, 0.25, 0.5)),
        ("batch norm backward", lambda: back([True, True, True])),
        ("batch norm backward, dscale", lambda: back([False, True, False])),
        ("batch norm backward, dx and dbias", lambda: back([True, False, True])),
    ]


def _train(dtype: Any) -> list[Any]:
    """A step of a small network: the C++ entries of the backward operators."""
    import torch

    nn = torch.nn
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 1, bias=False), nn.ReLU(inplace=True), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(6 * 4, 5),
    ).to(dtype)  # fmt: skip
    x = torch.randn(3, 3, 17, 16, dtype=dtype).requires_grad_()
    y = nn.functional.softmax(model(x), 1).log() + nn.functional.log_softmax(model(x), 1)
    y.square().mean((0, 1)).backward()
    return [y, x.grad, *(p.grad for p in model.parameters()), *model.buffers()]
