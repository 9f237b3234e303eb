"""What PyTorch's operators are called with in benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from vlug.graph import Graph
from vlug.tensor import Tensor

__all__ = ["DTYPES", "Call", "Made", "Maker", "Peer", "aten", "empty", "make"]


aten = torch.ops.aten

DTYPES = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f64": torch.float64,
    "i64": torch.int64,
}

Tensors = dict[str, torch.Tensor]

Call = Callable[[], Any]

# Each gives the call, for each of its results the number of the graph's output (None: it has none), and what
# happens before each timed call. A training step changes weights, so they change here too.
Made = tuple[Call, tuple[int | None, ...], Call | None]
Maker = Callable[[Graph, Any, list[Any]], Made]


@dataclass(frozen=True)
class Peer:
    """A call of PyTorch.

    tensors: its tensors by their names in the graph.   before:  called before each timed call.
    results: names in the graph of what it returns, "" for what the graph does not have.
    """

    call: Call
    tensors: Tensors
    results: tuple[str, ...]
    before: Call = lambda: None


def make(t: Tensor, seed: int) -> torch.Tensor:
    """Random values with the tensor's dims, strides and dtype."""
    out = empty(t)
    if t.dtype.is_float:
        dim = [d if s else min(d, 1) for d, s in zip(t.dim, t.stride)]  # repeated ones (stride 0) once
        out.as_strided(dim, t.stride).copy_(torch.randn(dim, generator=torch.Generator().manual_seed(seed)))
    else:
        out.zero_()
    return out


def empty(t: Tensor) -> torch.Tensor:
    return torch.empty_strided(t.dim, t.stride, dtype=DTYPES[t.dtype.name])
