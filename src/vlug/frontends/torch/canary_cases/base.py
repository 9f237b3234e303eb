"""What canary cases are made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Case", "random"]

Case = tuple[str, Callable[[], Any]]


def random(dtype: Any) -> Callable[..., Any]:
    import torch

    g = torch.Generator().manual_seed(1)
    return lambda *size: torch.randn(*size, generator=g).to(dtype)
