"""What the canary compares: pointwise calls."""

from __future__ import annotations

from typing import Any

from vlug.frontends.torch.canary_cases.base import Case, random

__all__ = ["cases"]


def cases(dtype: Any) -> list[Case]:
    import torch

    A: Any = torch.ops.aten
    x = random(dtype)(2, 4, 9, 8)
    return [
        ("relu", lambda: [torch.relu(x), A.relu(x)]),
        ("relu_", lambda: [torch.relu_(x.clone()), A.relu_(x.clone())]),
        ("threshold_backward", lambda: [A.threshold_backward(x * 2, x, t) for t in (0, 0.0, 0.25)]),
    ]
