"""What fills are made with: numbers, and a problem's inputs that can be replaced to fit each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlug.dtypes import DType
from vlug.graph import Graph
from vlug.tensor import Tensor

__all__ = ["Array", "Fit", "Inputs", "held", "numbers", "strew"]

Array = NDArray[Any]


@dataclass
class Inputs:
    """The values of one operation's inputs, of which those that come from outside can be replaced.

    kind: the fill. values: by tensor name. ports: port name → tensor name. rng: for further numbers.
    """

    graph: Graph
    op: Any
    kind: str
    ports: Mapping[str, str | None]
    values: dict[str, Array]
    rng: np.random.Generator

    def get(self, port: str) -> Array | None:
        """The values of a port that is there and comes from outside."""
        return self.values.get(self.ports.get(port) or "")

    def tensor(self, port: str) -> Tensor:
        return self.graph.tensors[self.ports[port] or ""]

    def put(self, port: str, value: Any) -> None:
        """Replace the values of a port; nothing happens if it is left out or made by another operation."""
        at = self.ports.get(port)
        if at is not None and at in self.values:
            self.values[at] = np.asarray(value).reshape(self.graph.tensors[at].dim)


#: Replaces inputs of one operation that must fit the others.
Fit = Callable[[Inputs], None]


def numbers(t: Tensor, kind: str, rng: np.random.Generator) -> Array:
    if kind == "exact":
        values = rng.choice(np.array([-2.0, -1.0, 1.0, 2.0, 3.0]), t.dim)
        return np.asarray(np.where(rng.random(t.dim) < 0.02, 0.0, values))
    return rng.standard_normal(t.dim)


def held(a: Array, d: DType) -> Array:
    """Float64 values rounded to what `d` holds."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(a.astype(d.numpy).astype(np.float64))


def strew(a: Array, rng: np.random.Generator) -> None:
    """Write inf, NaN, -0 and denormals over a few elements, so few that most results stay finite."""
    if a.size == 0:
        return
    flat = a.reshape(-1)
    special = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-40, -1e-40])
    at = rng.permutation(flat.size)[: max(1, min(7, flat.size // 8))]
    flat[at] = special[rng.permutation(7)[: at.size]]
    a[...] = flat.reshape(a.shape)  # reshape may have copied
