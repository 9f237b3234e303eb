"""PyTorch's bf16 convolutions and products reach the bf16 engines, also by autocast, and agree with stock."""

from __future__ import annotations

from typing import Any

import pytest

from torch_support import F, off_on, torch
from vlug import plan as planner
from vlug.graph import Graph
from vlug.runtime.device import host

pytestmark = [
    pytest.mark.framework, pytest.mark.isa,
    pytest.mark.skipif(not host().products, reason="this machine has no products of bf16"),
]
BF16 = torch.bfloat16


def made(*dims: int, seed: int = 0) -> Any:
    return torch.randn(*dims, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("line", [
    "conv_fprop x=4x64x28x28:bf16{0} w=64x64x3x3:bf16{0} pad=1",
    "conv_fprop x=4x64x28x28:bf16{0} w=128x64x1x1:bf16{0} stride=2 -> a; bias a b=128:bf16 -> y",
    "conv_dgrad dy=4x64x28x28:bf16{0} w=64x64x3x3:bf16{0} pad=1 size=28x28",
    "matmul a=128x256:bf16 b=96x256:bf16 transpose_b=1 -> c; bias c b:d=96:bf16 axis=1 -> y",
])
@pytest.mark.parametrize("layout", ["", ":nhwc"])
def test_plans_choose_them(line: str, layout: str) -> None:
    chosen = planner.plan(Graph.parse(line.format(layout)))
    assert "bf16" in str(chosen.steps[0].config), [str(s.config) for s in chosen.steps]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("window", "options"), [(3, {"padding": 1}), (1, {}), (1, {"stride": 2}),
                                                 (3, {"stride": 2, "padding": 1}), (5, {"dilation": 2})])
def test_convolution_under_autocast(window: int, options: dict[str, int], last: bool) -> None:
    def run() -> Any:
        x = made(2, 33, 14, 15).requires_grad_()
        w = (made(20, 33, window, window, seed=1) * 0.1).requires_grad_()
        layout = torch.channels_last if last else torch.contiguous_format
        b = made(20, seed=2).requires_grad_()
        with torch.autocast("cpu", BF16):
            y = F.conv2d(x.contiguous(memory_format=layout), w, b, **options)
        y.float().square().sum().backward()
        return [y, x.grad]

    off_on(run, "_convolution", "convolution_backward", rtol=0.03, atol=0.6)


def test_linear_and_products_under_autocast() -> None:
    def run() -> Any:
        x, w = made(37, 70).requires_grad_(), (made(50, 70, seed=1) * 0.1).requires_grad_()
        b = made(50, seed=2)
        with torch.autocast("cpu", BF16):
            y, z = F.linear(x, w, b), x @ w.t()
        (y.float().square().sum() + z.float().sum()).backward()
        return [y, z, x.grad, w.grad]

    off_on(run, "addmm", "mm", rtol=0.03, atol=0.6)


def test_exact_products() -> None:
    """Small integers: equal to stock's, bit for bit."""
    a = torch.randint(-3, 4, (65, 70), generator=torch.Generator().manual_seed(0)).to(BF16)
    b = torch.randint(-3, 4, (70, 33), generator=torch.Generator().manual_seed(1)).to(BF16)
    off_on(lambda: [a @ b, b.t() @ a.t(), (a.t() @ a)], "mm", rtol=0, atol=0)
