"""What the canary compares: convolution."""

from __future__ import annotations

from typing import Any

from vlug.frontends.torch.canary_cases.base import Case, random

__all__ = ["cases"]


def cases(dtype: Any) -> list[Case]:
    import torch

    A: Any = torch.ops.aten
    F: Any = torch.nn.functional
    r = random(dtype)
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
