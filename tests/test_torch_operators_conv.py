"""Convolutions of one and three dimensions, transposed, in fp64: ours on against off."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from torch_support import F, off_on, torch
from vlug.frontends import hooks

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
SIZES = {1: (11,), 2: (7, 6), 3: (5, 4, 6)}


def rand(*shape: int, seed: int = 0, dtype: Any = None) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype or torch.float32)


def last(t: Any) -> Any:
    """Channels last; in one dimension by strides, for which PyTorch has no name."""
    if t.dim() == 3:
        return t.permute(0, 2, 1).contiguous().permute(0, 2, 1)
    return t.contiguous(memory_format=FORMATS[t.dim()])


def spread(t: Any) -> Any:
    return torch.stack([t, t], -1).flatten(-2)[..., ::2]


LAID = {"contiguous": lambda t: t, "last": last, "spread": spread, "turned": lambda t: t.mT.contiguous().mT}


def cases(count: int, seed: int) -> list[Any]:
    r, found = random.Random(seed), []
    kinds = itertools.cycle(itertools.product((False, True), (1, 2, 3)))
    for transposed, rank in itertools.islice(kinds, count):
        groups, stride, dilation = r.choice([1, 1, 2, 4]), r.choice([1, 2, 3]), r.choice([1, 1, 2])
        window = [r.choice([1, 2, 3]) for _ in range(rank)]
        pad = [min(r.choice([0, 1, 2]), (k - 1) * dilation) for k in window]
        more = r.randint(0, stride - 1) if transposed else 0
        laid = r.choice(list(LAID)), r.choice(["contiguous", "contiguous", "last"])
        kind = r.choice(["float32", "float32", "float64"])
        sizes = (r.choice([1, 2, 3]), groups, stride, dilation, tuple(window), tuple(pad), more)
        found.append((transposed, rank, *sizes, *laid, kind))
    return found


def made(case: Any) -> Any:
    transposed, rank, n, groups, stride, dilation, window, pad, more, x_laid, w_laid, kind = case
    dtype = getattr(torch, kind)
    x = LAID[x_laid](rand(n, 4, *SIZES[rank], dtype=dtype))
    shape = (4, 8 // groups) if transposed else (8, 4 // groups)
    w = LAID[w_laid](rand(*shape, *window, seed=1, dtype=dtype))
    b = rand(8, seed=2, dtype=dtype)
    if transposed:
        f, rest = getattr(F, f"conv_transpose{rank}d"), (stride, pad, more, groups, dilation)
    else:
        f, rest = getattr(F, f"conv{rank}d"), (stride, pad, dilation, groups)
    near = 5e-4
    return f, x, w, b, rest, {"rtol": near, "atol": near}


@pytest.mark.parametrize("case", cases(48, 3), ids=str)
def test_forward_and_backward(case: Any) -> None:
    f, x0, w0, b0, rest, near = made(case)
    off_on(lambda: [f(x0, w0, None, *rest), f(x0, w0, b0, *rest)], **near)

    def step() -> Any:
        x, w, b = (t.detach().requires_grad_() for t in (x0, w0, b0))
        y = f(x, w, b, *rest)
        return torch.autograd.grad(y, (x, w, b), rand(*y.shape, seed=3, dtype=y.dtype))

    off_on(step, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("name", ["conv1d", "conv3d", *(f"conv_transpose{n}d" for n in (1, 2, 3))])
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_they_are_taken(name: str, kind: str) -> None:
    rank, dtype = int(name[-2]), getattr(torch, kind)
    x, w = rand(2, 4, *SIZES[rank], dtype=dtype), rand(4, 4, *(3,) * rank, seed=1, dtype=dtype)
    f = getattr(F, name)
    off_on(lambda: f(x, w, rand(4, dtype=dtype), 2, 1), "_convolution")
    v = w.detach().requires_grad_()
    grad = lambda: torch.autograd.grad(f(x, v, None, 2, 1).sum(), v)  # noqa: E731
    off_on(grad, "convolution_backward", rtol=1e-3, atol=1e-3)
    taken = hooks.stats()["torch"]["_convolution"]["taken"]
    assert taken > 0


def test_unbatched_and_modules() -> None:
    off_on(lambda: F.conv1d(rand(3, 20), rand(4, 3, 3)), "_convolution")
    off_on(lambda: F.conv3d(rand(2, 5, 6, 7), rand(3, 2, 2, 2, 2)), "_convolution")
    off_on(lambda: F.conv_transpose2d(rand(4, 5, 5), rand(4, 3, 3, 3), stride=2), "_convolution")
    torch.manual_seed(0)
    up = torch.nn.ConvTranspose2d(4, 3, 3, stride=2)
    off_on(lambda: up(rand(2, 4, 5, 5), output_size=(12, 12)).detach(), "_convolution")
    same = torch.nn.Conv1d(4, 6, 4, padding="same", padding_mode="reflect")
    off_on(lambda: same(rand(2, 4, 9)).detach())
    off_on(lambda: F.conv3d(rand(2, 2, 5, 6, 7), rand(3, 2, 2, 3, 2), padding="same").detach())


@pytest.mark.parametrize("call", [
    lambda: F.conv_transpose2d(rand(2, 4, 5, 5), rand(4, 3, 3, 3), stride=2, output_padding=2),
    lambda: F.conv_transpose2d(rand(2, 4, 5, 5), rand(4, 3, 3, 3), stride=1, output_padding=1, dilation=2),
    lambda: F.conv_transpose2d(rand(2, 4, 5, 5), rand(5, 3, 3, 3)),
    lambda: F.conv_transpose1d(rand(2, 4, 5), rand(4, 3, 3), padding=9),
    lambda: F.conv_transpose1d(rand(2, 4, 5), rand(4, 3, 3), output_padding=-1),
    lambda: F.conv_transpose3d(rand(2, 4, 2, 2, 2), rand(4, 3, 3, 3, 3), rand(4)),
    lambda: F.conv1d(rand(2, 4, 5), rand(4, 4, 7)),
    lambda: F.conv1d(rand(2, 4, 5), rand(4, 4, 3, 1)),
    lambda: F.conv3d(rand(2, 4, 5, 5, 5), rand(6, 4, 3, 3, 3), stride=(1, 2)),
    lambda: F.conv3d(rand(2, 4, 5, 5, 5), rand(6, 2, 3, 3, 3)),
    lambda: F.conv1d(rand(0, 4, 5), rand(6, 4, 3)),
    lambda: F.conv1d(rand(2, 4, 5, dtype=torch.float64), rand(6, 4, 3)),
    lambda: F.conv1d(rand(2, 4, 5, dtype=torch.complex64), rand(6, 4, 3, dtype=torch.complex64)),
])  # fmt: skip
def test_errors_and_oddities_are_stocks(call: Any) -> None:
    off_on(call)
