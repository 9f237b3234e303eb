"""Layer, group, instance and batch norm of the PyTorch frontend: values, strides and dtypes as stock's."""

from __future__ import annotations

from typing import Any

import pytest

from torch_support import armed, layouts, off_on, torch

pytestmark = pytest.mark.framework
F: Any = torch.nn.functional
A: Any = torch.ops.aten
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
KINDS = [(F32, F32), (BF16, BF16), (BF16, F32), (F16, F16), (F16, F32), (BF16, None), (F32, None)]


def rand(*size: int, seed: int = 0, dtype: Any = F32) -> Any:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def near(kind: Any) -> dict[str, float]:
    return (
        {"rtol": 1e-3, "atol": 1e-3} if kind is F32 else {"rtol": 4e-2, "atol": 0.2}
    )  # stock adds in 16 bits


@pytest.mark.parametrize("kinds", KINDS, ids=str)
@pytest.mark.parametrize("case", [((3, 5, 40), 1), ((2, 3, 4, 5), 2), ((7, 9), 2), ((33, 768), 1)], ids=str)
def test_layer_norm(case: Any, kinds: Any) -> None:
    shape, trailing = case
    kind, of = kinds
    normalized = shape[-trailing:]

    def step() -> Any:
        x = rand(*shape, dtype=kind).requires_grad_()
        given = [x]
        if of is not None:
            given += [rand(*normalized, seed=s, dtype=of).requires_grad_() for s in (1, 2)]
        y = F.layer_norm(x, normalized, *given[1:], eps=1e-3)
        return [y, torch.autograd.grad(y, given, rand(*shape, seed=3, dtype=kind))]

    off_on(step, "native_layer_norm", "native_layer_norm_backward", **near(kind))
    weights = [None, None] if of is None else [rand(*normalized, seed=s, dtype=of) for s in (1, 2)]
    off_on(lambda: A.native_layer_norm(rand(*shape, dtype=kind), normalized, *weights, 1e-3), **near(kind))


@pytest.mark.parametrize("layout", [n for n, _ in layouts(torch.zeros(2, 1, 3, 4))])
def test_layer_norm_layouts(layout: str) -> None:
    for shape in ((4, 6, 5, 7), (2, 1, 3, 4)):
        x = dict(layouts(rand(*shape))).get(layout)
        if x is not None:
            off_on(lambda x=x: A.native_layer_norm(x, x.shape[3:], None, None, 1e-5))
            off_on(lambda x=x: A.native_layer_norm(x, x.shape[1:], None, rand(*x.shape[1:]), 1e-5))


def test_layer_norm_edges() -> None:
    for shape, normalized in (((0, 5), [5]), ((5, 0), [0]), ((4, 5), [4]), ((4, 5), []), ((5,), [5])):
        off_on(lambda s=shape, n=normalized: F.layer_norm(torch.ones(s), n))
    x, w = rand(6, 40), rand(40)
    armed()
    large = F.layer_norm(x * 1e30, [40])  # stock: NaN
    torch.testing.assert_close(large, F.layer_norm(x.double(), [40], eps=0.0).float())
    off_on(lambda: F.layer_norm(x.double(), [40]))
    off_on(lambda: F.layer_norm(x.to(BF16), [40], w.to(F16)))
    off_on(lambda: F.layer_norm(torch.full((3, 40), 1234.5), [40], w, w), "native_layer_norm")
    for mask in ([True, False, False], [False, True, True], [False, False, True], [False, False, False]):
        _, m, v = A.native_layer_norm(x, [40], w, w, 1e-5)
        off_on(lambda k=mask, m=m, v=v: A.native_layer_norm_backward(x * 2, x, [40], m, v, w, w, k))


@pytest.mark.parametrize("kinds", KINDS, ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "case", [((2, 12, 5, 7), 3), ((3, 8, 1, 1), 4), ((4, 6), 2), ((2, 4, 9), 4)], ids=str
)
def test_group_norm(case: Any, last: bool, kinds: Any) -> None:
    shape, groups = case
    kind, of = kinds
    if last and len(shape) != 4:
        pytest.skip("channels last has 4 dimensions")
    memory = torch.channels_last if last else torch.contiguous_format
    x0 = rand(*shape, dtype=kind).contiguous(memory_format=memory)
    dy = rand(*shape, seed=3, dtype=kind).contiguous(memory_format=memory)

    def step() -> Any:
        x = x0.detach().requires_grad_()
        given = [x]
        if of is not None:
            given += [rand(shape[1], seed=s, dtype=of).requires_grad_() for s in (1, 2)]
        y = F.group_norm(x, groups, *given[1:], eps=1e-3)
        return [y, torch.autograd.grad(y, given, dy)]

    off_on(step, "native_group_norm", "native_group_norm_backward", **near(kind))
    weights = [None, None] if of is None else [rand(shape[1], seed=s, dtype=of) for s in (1, 2)]
    area = x0.numel() // shape[0] // shape[1]
    sizes = (*shape[:2], area, groups, 1e-3)
    off_on(lambda: A.native_group_norm(x0, *weights, *sizes), **near(kind))


def test_group_norm_layouts_and_edges() -> None:
    for shape in ((4, 6, 5, 7), (2, 1, 3, 4)):
        for _, x in layouts(rand(*shape)):
            off_on(lambda x=x: F.group_norm(x, 1))
    off_on(lambda: F.group_norm(torch.zeros(0, 6, 3), 2))
    off_on(lambda: F.group_norm(rand(2, 6, 3), 4))
    off_on(lambda: F.group_norm(rand(2, 6, 3, 4, 5), 3), "native_group_norm")
    off_on(lambda: F.group_norm(rand(2, 6, 3, 4).double(), 3))
    x = rand(1, 4, 200, 100)
    off_on(lambda: F.group_norm(x, 1), "native_group_norm")


@pytest.mark.parametrize("kinds", KINDS, ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training: bool, last: bool, kinds: Any) -> None:
    kind, of = kinds
    memory = torch.channels_last if last else torch.contiguous_format
    x0 = rand(4, 6, 5, 7, dtype=kind).contiguous(memory_format=memory)
    dy = rand(4, 6, 5, 7, seed=9, dtype=kind).contiguous(memory_format=memory)

    def step() -> Any:
        x = x0.detach().requires_grad_()
        given = [x]
        if of is not None:
            given += [rand(6, seed=s, dtype=of).requires_grad_() for s in (1, 2)]
        rm, rv = rand(6, seed=3, dtype=of or kind), rand(6, seed=4, dtype=of or kind).abs() + 0.5
        y = F.batch_norm(x, rm, rv, *([None, None] if of is None else given[1:]), training, 0.25, 1e-3)
        return [y, torch.autograd.grad(y, given, dy), rm, rv]

    off_on(step, "native_batch_norm", "native_batch_norm_backward", **near(kind))


def test_batch_norm_without_statistics_and_instance_norm() -> None:
    x, w = rand(4, 6, 5, 7), rand(6)
    off_on(lambda: A._native_batch_norm_legit.no_stats(x, w, None, True, 0.1, 1e-5),
           "_native_batch_norm_legit.no_stats")  # fmt: skip
    off_on(lambda: F.instance_norm(x, weight=w, bias=w), "native_batch_norm")
    off_on(lambda: F.instance_norm(x, w, w.abs() + 1, use_input_stats=False), "native_batch_norm")


def test_batch_norm_of_constant_channels_is_exact() -> None:
    x = torch.full((4, 6, 30, 30), 1234.567)
    for t in (x, x.contiguous(memory_format=torch.channels_last)):
        armed()
        y = F.batch_norm(t, None, None, None, rand(6), True)  # stock's is off by up to 0.01
        assert torch.equal(y, rand(6)[:, None, None].expand(y.shape))


def test_local_response_norm() -> None:
    off_on(lambda: F.local_response_norm(rand(2, 8, 5, 5), 4))
