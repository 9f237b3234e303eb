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

    def still(mask: list[bool]) -> Any:
        none = r(0)
        return A.native_batch_norm_backward(x * 2, x, scale, mean, var, none, none, False, 0.5, mask)

    rows, w, b = r(3, 5, 40), r(40), r(40)
    groups = r(2, 6, 5, 7)
    gw, gb = r(6), r(6)

    def layer(mask: list[bool]) -> Any:
        _, m, v = torch.native_layer_norm(rows, [40], w, b, 0.5)
        return A.native_layer_norm_backward(rows * 2, rows, [40], m, v, w, b, mask)

    def group(mask: list[bool]) -> Any:
        _, m, v = torch.native_group_norm(groups, gw, gb, 2, 6, 35, 3, 0.5)
        return A.native_group_norm_backward(groups * 2, groups, m, v, gw, 2, 6, 35, 3, mask)

    return [
        (
            "batch norm without statistics",
            lambda: A._native_batch_norm_legit.no_stats(x, scale, bias, True, 0.25, 0.5),
        ),
        ("batch norm backward, evaluation", lambda: still([True, True, True])),
        ("layer norm", lambda: torch.native_layer_norm(rows, [40], w, b, 0.5)),
        ("layer norm, bare", lambda: torch.native_layer_norm(rows, [5, 40], None, None, 0.5)),
        ("layer norm backward", lambda: layer([True, True, True])),
        ("layer norm backward, dscale", lambda: layer([False, True, False])),
        ("group norm", lambda: torch.native_group_norm(groups, gw, gb, 2, 6, 35, 3, 0.5)),
        ("group norm backward", lambda: group([True, True, True])),
        ("group norm backward, dx", lambda: group([True, False, False])),
        ("batch norm", lambda: forward(torch.native_batch_norm, x, True)),
        ("batch norm, evaluation", lambda: forward(torch.native_batch_norm, x, False)),
        ("batch norm, legit", lambda: forward(A._native_batch_norm_legit, last, True)),
        ("batch norm, legit, evaluation", lambda: forward(A._native_batch_norm_legit, last, False)),
        ("batch norm, bare", lambda: A.native_batch_norm(x, None, None, None, None, True, 0.25, 0.5)),
        ("batch norm backward", lambda: back([True, True, True])),
        ("batch norm backward, dscale", lambda: back([False, True, False])),
        ("batch norm backward, dx and dbias", lambda: back([True, False, True])),
    ]
