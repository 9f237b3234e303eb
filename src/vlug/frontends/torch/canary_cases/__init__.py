"""What the canary compares: calls that between them reach every argument and result of every adapter."""

from __future__ import annotations

from typing import Any

from vlug.frontends.torch.canary_cases import (
    activation,
    conv,
    loss,
    norm,
    optim,
    pointwise,
    pool,
    resample,
    rows,
)
from vlug.frontends.torch.canary_cases.base import Case

__all__ = ["Case", "cases"]

FAMILIES = (
    activation,
    conv,
    loss,
    norm,
    optim,
    pointwise,
    pool,
    resample,
    rows,
)


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
    made = [case for family in FAMILIES for case in family.cases(dtype)]
    made.append(("training", lambda: _train(dtype)))
    tag = str(dtype).removeprefix("torch.")
    return [(f"{name}, {tag}", call) for name, call in made]


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
