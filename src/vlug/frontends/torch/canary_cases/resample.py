"""What the canary compares: resampling, adaptive pooling, pooling in three dimensions, padding, cat."""

from __future__ import annotations

from typing import Any

from vlug.frontends.torch.canary_cases.base import Case, random

__all__ = ["cases"]


def cases(dtype: Any) -> list[Case]:
    import torch

    A: Any = torch.ops.aten
    make = random(dtype)
    x, deep, line = make(2, 4, 6, 7), make(1, 2, 4, 5, 6), make(2, 3, 9)
    last = x.contiguous(memory_format=torch.channels_last)
    small = make(2, 4, 3, 5)

    def deep_max() -> Any:
        y, index = A.max_pool3d_with_indices(deep, [2], [2], [1])
        return y, index, A.max_pool3d_with_indices_backward(y, deep, [2], [2], [1], [1], False, index)

    def deep_avg() -> Any:
        a = [[2, 2, 3], [1, 2, 1], [0, 1, 1], False]
        y = A.avg_pool3d(deep, *a, False, 3)
        return y, A.avg_pool3d(deep, [2]), A.avg_pool3d_backward(y, deep, *a, False, None)

    def adaptive() -> Any:
        found = [A._adaptive_avg_pool2d(t, [3, 5]) for t in (x, last)]
        found += [A._adaptive_avg_pool2d_backward(small, x), A._adaptive_avg_pool3d(deep, [2, 3, 2])]
        found += [A._adaptive_avg_pool3d_backward(A._adaptive_avg_pool3d(deep, [2, 1, 3]), deep)]
        for t, call, back, size in (
            (x, A.adaptive_max_pool2d, A.adaptive_max_pool2d_backward, [3, 5]),
            (deep, A.adaptive_max_pool3d, A.adaptive_max_pool3d_backward, [2, 2, 3]),
        ):
            y, index = call(t, size)
            found += [y, index, back(y, t, index)]
        return found

    def resampled() -> Any:
        found = []
        for r, t, size, scales in (
            (1, line, [13], [1.5]), (2, x, [9, 14], [1.5, 2.0]), (3, deep, [6, 5, 12], [1.5, 1.0, 2.0]),
        ):  # fmt: skip
            kind = ("linear1d", "bilinear2d", "trilinear3d")[r - 1]
            nearest = (f"upsample_nearest{r}d", f"_upsample_nearest_exact{r}d")
            plain: list[tuple[str, list[bool]]] = [(name, []) for name in nearest]
            smooth = [(f"upsample_{kind}", [c]) for c in (True, False)]
            smooth += [("upsample_bicubic2d", [False])] if r == 2 else []
            for name, corners in plain + smooth:
                for s in ([None] * r, scales) if r != 1 else ([None],):
                    y = getattr(A, name)(t, size, *corners, *s)
                    found += [y, getattr(A, f"{name}_backward")(y, size, list(t.shape), *corners, *s)]
        return found

    def padded() -> Any:
        found = []
        for r, t, pad in ((1, line, [2, 1]), (2, x, [2, 1, 0, 3]), (3, deep, [1, 2, 0, 1, 2, 2])):
            for name in ("reflection", "replication"):
                y = getattr(A, f"{name}_pad{r}d")(t, pad)
                found += [y, getattr(A, f"{name}_pad{r}d_backward")(y, t, pad)]
        return found

    grid = torch.linspace(-1.2, 1.2, 2 * 3 * 5 * 2, dtype=torch.float64).view(2, 3, 5, 2).to(dtype)

    def sampled() -> Any:
        return [A.grid_sampler_2d(x, grid, m, p, c) for m in (0, 1) for p in (0, 1, 2) for c in (False, True)]

    return [
        ("grid_sample", sampled),
        ("max_pool3d", deep_max),
        ("avg_pool3d", deep_avg),
        ("adaptive pooling", adaptive),
        ("upsample", resampled),
        ("pad", padded),
        ("cat", lambda: [torch.cat([x, x[:, :2].contiguous()], 1), A.cat([line])]),
    ]
