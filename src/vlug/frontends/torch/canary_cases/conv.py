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

    line, one = r(2, 4, 11), r(6, 2, 3)
    volume, three, kernel = r(2, 4, 5, 4, 6), r(6, 4, 2, 3, 2), r(4, 3, 3, 2, 2)
    turned: Any = ([2, 1, 2], [1, 0, 1], [1, 2, 1], True, [1, 0, 1], 2)
    up = A._convolution(volume, kernel, None, *turned, *flags)

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
        ("conv of one dimension", lambda: F.conv1d(line, one, b, 2, 1, 1, 2)),
        ("conv of three", lambda: F.conv3d(volume, three, b, (1, 2, 1), 1)),
        ("transposed", lambda: A._convolution(volume, kernel, b, *turned, *flags)),
        (
            "transposed, backward",
            lambda: A.convolution_backward(up, volume, kernel, [6], *turned, [True, True, True]),
        ),
    ]
