"""What the canary compares: means, products and softmax."""

from __future__ import annotations

from typing import Any

from vlug.frontends.torch.canary_cases.base import Case, random

__all__ = ["cases"]


def cases(dtype: Any) -> list[Case]:
    import torch

    A: Any = torch.ops.aten
    F: Any = torch.nn.functional
    r = random(dtype)
    x, m, n, v = r(2, 4, 9, 8), r(5, 7), r(7, 3), r(3)
    soft = x.softmax(1)
    return [
        ("mean", lambda: [x.mean((2, 3)), x.mean((-1,), keepdim=True), A.mean.dim(x, [1])]),
        ("mean of all", lambda: [A.mean.dim(x, None), A.mean.dim(x, [0], True)]),
        ("mm", lambda: [torch.mm(m, n), A.mm(m, n)]),
        ("addmm", lambda: [torch.addmm(v, m, n), A.addmm(v, m, n), F.linear(m, n.t().contiguous(), v)]),
        ("addmm, scaled", lambda: [torch.addmm(v, m, n, beta=2, alpha=0.5), A.addmm(v, m, n, beta=0.5)]),
        ("_softmax", lambda: [A._softmax(x, 1, False), A._softmax(x, -1, False), F.softmax(x, 1)]),
        ("_log_softmax", lambda: [A._log_softmax(x, 1, False), F.log_softmax(x, 3)]),
        ("_softmax_backward", lambda: A._softmax_backward_data(x * 2, soft, 1, dtype)),
        ("_log_softmax_backward", lambda: A._log_softmax_backward_data(x * 2, soft, 1, dtype)),
    ]
