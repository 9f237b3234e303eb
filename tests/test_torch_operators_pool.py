"""Resampling, adaptive pooling, pooling in three dimensions, padding and cat in PyTorch: on against off."""

from __future__ import annotations

from typing import Any

import pytest

from torch_support import armed, layouts, off_on, same, torch
from vlug.frontends import hooks

pytestmark = pytest.mark.framework
A: Any = torch.ops.aten
F: Any = torch.nn.functional
NEAR = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def rand(*size: int, seed: int = 0, dtype: Any = torch.float32) -> Any:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def near(dtype: Any) -> dict[str, float]:
    return {"rtol": NEAR[dtype], "atol": NEAR[dtype]}


@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_three_dimensions(dtype: Any) -> None:
    x = rand(2, 3, 5, 6, 7, dtype=dtype)
    for a in (([2], [2], [0], [1]), ([3, 2, 3], [2, 1, 2], [1, 1, 0], [1, 2, 1])):
        off_on(lambda a=a: A.max_pool3d_with_indices(x, *a, True), "max_pool3d_with_indices", **near(dtype))
        y, index = A.max_pool3d_with_indices(x, *a, True)
        off_on(
            lambda a=a, y=y, i=index: A.max_pool3d_with_indices_backward(y, x, *a, True, i),
            "max_pool3d_with_indices_backward",
            **near(dtype),
        )
    for a in (([2], [2], [0], False, True, None), ([3, 2, 3], [2, 1, 2], [1, 1, 1], True, False, None)):
        off_on(lambda a=a: A.avg_pool3d(x, *a), **near(dtype))
        if dtype.itemsize < 4:  # stock says that it has none
            continue
        y = A.avg_pool3d(x, *a)
        off_on(lambda a=a, y=y: A.avg_pool3d_backward(y, x, *a), "avg_pool3d_backward", **near(dtype))


@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_adaptive(dtype: Any) -> None:
    for x, size in ((rand(2, 3, 7, 9, dtype=dtype), [3, 5]), (rand(1, 2, 4, 5, 6, dtype=dtype), [2, 5, 4])):
        r = x.dim() - 2
        for t in (x, x.contiguous(memory_format=torch.channels_last) if r == 2 else x):
            avg, top = f"_adaptive_avg_pool{r}d", f"adaptive_max_pool{r}d"
            off_on(lambda t=t, n=avg, s=size: getattr(A, n)(t, s), avg, **near(dtype))
            off_on(lambda t=t, n=top, s=size: getattr(A, n)(t, s), top, **near(dtype))
            y, index = getattr(A, top)(t, size)
            back = f"{avg}_backward"
            off_on(lambda t=t, n=back, y=y: getattr(A, n)(y, t), back, **near(dtype))
            back = f"{top}_backward"
            off_on(lambda t=t, n=back, y=y, i=index: getattr(A, n)(y, t, i), back, **near(dtype))


RESAMPLED = [
    (name + back, r, corners)
    for r in (1, 2, 3)
    for name, corners in (
        (f"upsample_nearest{r}d", []),
        (f"_upsample_nearest_exact{r}d", []),
        (f"upsample_{('linear1d', 'bilinear2d', 'trilinear3d')[r - 1]}", [False]),
        (f"upsample_{('linear1d', 'bilinear2d', 'trilinear3d')[r - 1]}", [True]),
        *([("upsample_bicubic2d", [False]), ("upsample_bicubic2d", [True])] if r == 2 else []),
    )
    for back in ("", "_backward")
]


@pytest.mark.parametrize(("name", "rank", "corners"), RESAMPLED, ids=str)
def test_resampled(name: str, rank: int, corners: list[bool]) -> None:
    f = getattr(A, name)
    for size, out, scales in (
        ([5, 7, 9], [8, 7, 20], [None] * 3),
        ([4, 6, 8], [6, 12, 4], [1.5, 2.0, 0.5]),
        ([13, 17, 11], [4, 20, 23], [None] * 3),
    ):
        size, out, scales = size[3 - rank :], out[3 - rank :], scales[3 - rank :]
        for dtype in NEAR if size[-1] == 9 else (torch.float32,):
            at = [*corners, *scales]
            if name.endswith("backward"):
                dy = rand(2, 3, *out, dtype=dtype)
                full = [2, 3, *size]
                off_on(lambda dy=dy, o=out, s=full, a=at: f(dy, o, s, *a), name, **near(dtype))
            else:
                x = rand(2, 3, *size, dtype=dtype)
                off_on(lambda x=x, o=out, a=at: f(x, o, *a), name, **near(dtype))


@pytest.mark.parametrize("layout", [n for n, _ in layouts(torch.zeros(2, 3, 4, 5))])
def test_layouts(layout: str) -> None:
    x, dy = (dict(layouts(rand(2, 3, 4, 5, seed=s)))[layout] for s in (0, 1))
    for mode in ("nearest", "bilinear"):
        name = f"upsample_{mode}2d"
        more = [False] if mode == "bilinear" else []
        off_on(lambda n=name, m=more: getattr(A, n)(x, [7, 11], *m))
        off_on(lambda n=name, m=more: getattr(A, f"{n}_backward")(dy, [4, 5], [2, 3, 8, 3], *m))
    off_on(lambda: A._adaptive_avg_pool2d(x, [2, 3]))
    off_on(lambda: A._adaptive_avg_pool2d_backward(dy, rand(2, 3, 8, 9)))
    off_on(lambda: A.adaptive_max_pool2d(x, [2, 3]))
    off_on(lambda: A.reflection_pad2d(x, [1, 2, 1, 0]))
    off_on(lambda: torch.cat([x, dy], 1))
    off_on(lambda: torch.cat([x, rand(2, 2, 4, 5)], -3))


@pytest.mark.parametrize("name", ["reflection", "replication"])
def test_padding(name: str) -> None:
    for r, size, pad in ((1, [9], [2, 1]), (2, [5, 6], [2, 1, 0, 3]), (3, [4, 5, 6], [1, 2, 0, 1, 2, 2])):
        for dtype in NEAR:
            x = rand(2, 3, *size, dtype=dtype)
            call = f"{name}_pad{r}d"
            off_on(lambda x=x, n=call, p=pad: getattr(A, n)(x, p), call, **near(dtype))
            dy = rand(*getattr(A, call)(x, pad).shape, dtype=dtype, seed=1)
            back = f"{call}_backward"
            if dtype.itemsize >= 4:
                off_on(lambda x=x, n=back, p=pad, dy=dy: getattr(A, n)(dy, x, p), back, **near(dtype))
                continue
            # stock adds in 16 bits and rounds after each term; ours must be what float32 comes to
            armed()
            with hooks.using(False):
                want = getattr(A, back)(dy.float(), x.float(), pad).to(dtype)
            same([want], [getattr(A, back)(dy, x, pad)], **near(dtype))


def test_cat() -> None:
    for dtype in (*NEAR, torch.int64, torch.int32, torch.uint8, torch.bool):
        a, b = (10 * rand(2, 3, 4, seed=1)).to(dtype), (10 * rand(2, 5, 4, seed=2)).to(dtype)
        off_on(lambda a=a, b=b: torch.cat([a, b, a], 1), "cat")
        off_on(lambda a=a: torch.cat([a, a], -1), "cat")
    for odd in (
        lambda: torch.cat([torch.ones(0), torch.ones(2, 3)]),
        lambda: torch.cat([torch.ones(2, 3), torch.ones(2, 4)]),
        lambda: torch.cat([torch.ones(2, 3), torch.ones(2, 3).double()]),
        lambda: torch.cat([torch.ones(2, 3)] * 20),
        lambda: torch.cat([torch.ones(2, 3)], 5),
    ):
        off_on(odd)


def test_wrong_arguments_are_stocks() -> None:
    x = rand(2, 3, 4, 5)
    for call in (
        lambda: A.upsample_nearest2d(x, [0, 3]),
        lambda: A.upsample_nearest2d(x, [3]),
        lambda: A.upsample_nearest2d_backward(x, [4, 6], [2, 3, 8, 8]),
        lambda: A.upsample_bilinear2d(x, [9, 9], False, 7.5, 1.0),
        lambda: A.reflection_pad2d(x, [5, 5, 1, 1]),
        lambda: A.reflection_pad2d(x, [1, 1, -1, 1]),
        lambda: A._adaptive_avg_pool2d(x, [-1, 3]),
        lambda: A._adaptive_avg_pool2d(x[0], [2, 3]),
        lambda: A.max_pool3d_with_indices(x, [9]),
        lambda: F.interpolate(x.to(torch.uint8), scale_factor=2),
        lambda: F.interpolate(x, scale_factor=(2, 1.3), mode="bilinear", antialias=True),
    ):
        off_on(call)


@pytest.mark.parametrize("padding", range(3))
def test_grids(padding: int) -> None:
    for dtype in (torch.float32, torch.float64):
        x = rand(2, 3, 6, 7, dtype=dtype)
        grid = rand(2, 4, 20, 2, seed=1, dtype=dtype)
        for corners in (False, True):
            a = (0, padding, corners)
            for t in (x, x.contiguous(memory_format=torch.channels_last)):
                off_on(lambda t=t, a=a, g=grid: A.grid_sampler_2d(t, g, *a), "grid_sampler_2d", **near(dtype))
    for mode in (1, 2):
        off_on(lambda m=mode: A.grid_sampler_2d(x, grid, m, padding, False))
    odd = grid.clone()
    odd[0, 0, :4, 0] = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30])
    off_on(lambda: A.grid_sampler_2d(x, odd, 0, padding, False))
