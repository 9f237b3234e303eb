"""What the canary compares: fused steps of optimisers."""

from __future__ import annotations

from typing import Any

from vlug.frontends.torch.canary_cases.base import Case, random

__all__ = ["cases"]


def cases(dtype: Any) -> list[Case]:
    import torch

    A: Any = torch.ops.aten
    r = random(dtype)
    lists = [[r(5, 7), r(130)] for _ in range(5)]
    numbers: dict[str, Any] = {"lr": 0.125, "weight_decay": 0.25, "maximize": True}

    def adam(call: Any, amsgrad: bool, **given: Any) -> list[Any]:
        p, g, m, v, vmax = ([t.clone() for t in held] for held in lists)
        v, vmax = [t.abs() for t in v], [t.abs() for t in vmax]
        steps = [torch.tensor(3.0), torch.tensor(4.0)]
        options = {**numbers, "beta1": 0.75, "beta2": 0.875, "eps": 0.5, "amsgrad": amsgrad, **given}
        call(p, g, m, v, vmax if amsgrad else [], steps, **options)
        return [*p, *g, *m, *v, *vmax, *steps]

    def sgd(call: Any, momentum: float, **given: Any) -> list[Any]:
        p, g, b = ([t.clone() for t in held] for held in lists[:3])
        options = {**numbers, "dampening": 0.125, "nesterov": False, "is_first_step": False, **given}
        call(p, g, b if momentum else [], momentum=momentum, **options)
        return [*p, *g, *b]

    rate = torch.tensor(0.25)
    return [
        ("adam", lambda: adam(A._fused_adam_, False)),
        ("adam, amsgrad", lambda: adam(A._fused_adam_, True, maximize=False)),
        ("adam, tensor rate", lambda: adam(A._fused_adam_.tensor_lr, False, lr=rate)),
        ("adamw", lambda: adam(A._fused_adamw_, False)),
        ("adamw, amsgrad, tensor rate", lambda: adam(A._fused_adamw_.tensor_lr, True, lr=rate)),
        ("sgd", lambda: sgd(A._fused_sgd_, 0.0, dampening=0.0)),
        ("sgd, momentum", lambda: sgd(A._fused_sgd_, 0.5)),
        ("sgd, nesterov, tensor rate", lambda: sgd(A._fused_sgd_.tensor_lr, 0.5, lr=rate, nesterov=True)),
        ("sgd, first step", lambda: sgd(A._fused_sgd_, 0.5, is_first_step=True, maximize=False)),
    ]
