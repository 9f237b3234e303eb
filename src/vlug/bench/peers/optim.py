"""PyTorch's own operators: fused steps of optimisers."""

from __future__ import annotations

from typing import Any

import torch

from vlug.bench.peers.base import Made, Maker, aten
from vlug.graph import Graph

__all__ = ["MAKERS"]


def _scalars(ins: list[Any], names: tuple[str, ...], values: dict[str, float]) -> dict[str, float]:
    """Fill the scalars with what an optimiser has, and give them as numbers."""
    for name, t in zip(names, ins):
        t.fill_(values[name])
    return {n: values[n] for n in names}


def _adam(g: Graph, op: Any, ins: list[Any]) -> Made:
    p, grad, m, v, vmax, *scalars = ins
    v.abs_()
    values = {"step": 5.0, "lr": 1e-9, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
    numbers = _scalars(scalars, op.inputs[5:], values)
    step = torch.tensor(numbers.pop("step"))
    top = [] if vmax is None else [vmax.abs_()]
    call = aten._fused_adamw_ if op.decoupled else aten._fused_adam_
    lists = ([p], [grad], [m], [v], top, [step])
    flags = {"amsgrad": bool(top), "maximize": op.maximize}
    return lambda: call(*lists, **numbers, **flags), (), None


def _sgd(g: Graph, op: Any, ins: list[Any]) -> Made:
    p, grad, buf, *scalars = ins
    values = {"lr": 1e-9, "momentum": 0.0 if buf is None else 0.9, "dampening": 0.0, "weight_decay": 0.0}
    numbers = _scalars(scalars, op.inputs[3:], values)
    lists = ([p], [grad], [] if buf is None else [buf])
    flags = {"nesterov": op.nesterov, "maximize": op.maximize, "is_first_step": op.first}
    return lambda: aten._fused_sgd_(*lists, **numbers, **flags), (), None


MAKERS: dict[str, Maker] = {"adam_step": _adam, "sgd_step": _sgd}
