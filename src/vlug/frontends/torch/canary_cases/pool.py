"""What the canary compares: pooling."""

from __future__ import annotations

from typing import Any

from vlug.frontends.torch.canary_cases.base import Case, random

__all__ = ["cases"]


def cases(dtype: Any) -> list[Case]:
    import torch

    A: Any = torch.ops.aten
    F: Any = torch.nn.functional
    x = random(dtype)(2, 4, 9, 8)
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
