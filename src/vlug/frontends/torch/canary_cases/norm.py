"""What the canary compares: normalisation."""

from __future__ import annotations

from typing import Any

from vlug.frontends.torch.canary_cases.base import Case, random

__all__ = ["cases"]


def cases(dtype: Any) -> list[Case]:
    import torch

    A: Any = torch.ops.aten
    r = random(dtype)
    x = r(2, 4, 9, 8)
    last = x.contiguous(memory_format=torch.channels_last)
    scale, bias, mean, var = r(4), r(4), r(4), r(4).abs()
    now, inv = x.mean((0, 2, 3)), 1 / (x.var((0, 2, 3), unbiased=False) + 0.5).sqrt()

    def forward(call: Any, t: Any, training: bool) -> list[Any]:
        held = [p.clone() for p in (scale, bias, mean, var)]
        return [*call(t, *held, training, 0.25, 0.5), *held]

    def back(mask: list[bool]) -> Any:
        return A.native_batch_norm_backward(x * 2, x, scale, mean, var, now, inv, True, 0.5, mask)

    return [
        ("batch norm", lambda: forward(torch.native_batch_norm, x, True)),
        ("batch norm, evaluation", lambda: forward(torch.native_batch_norm, x, False)),
        ("batch norm, legit", lambda: forward(A._native_batch_norm_legit, last, True)),
        ("batch norm, legit, evaluation", lambda: forward(A._native_batch_norm_legit, last, False)),
        ("batch norm, bare", lambda: A.native_batch_norm(x, None, None, None, None, True, 0.25, 0.5)),
        ("batch norm backward", lambda: back([True, True, True])),
        ("batch norm backward, dscale", lambda: back([False, True, False])),
        ("batch norm backward, dx and dbias", lambda: back([True, False, True])),
    ]
