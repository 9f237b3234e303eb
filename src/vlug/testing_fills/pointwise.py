"""Fills of pointwise operations: integers and bools, operands where the result is a number."""

from __future__ import annotations

import numpy as np

from vlug.ops.activation import Sigmoid, Tanh
from vlug.ops.base import OPERATIONS
from vlug.testing_fills.base import Fit, Inputs

__all__ = ["FITS"]

_TOP = {"u8": 255, "i32": 1 << 20, "i64": 1 << 40}


def _whole(at: Inputs) -> None:
    """Integers of every size (small ones in the exact fill), bools of both kinds."""
    for port in at.ports:
        if at.get(port) is None:
            continue
        t = at.tensor(port)
        if t.dtype.kind == "b":
            at.put(port, at.rng.integers(0, 2, t.dim))
        elif t.dtype.kind in "iu":
            top = 3 if at.kind == "exact" else _TOP[t.dtype.name]
            at.put(port, at.rng.integers(0 if t.dtype.kind == "u" else -top, top + 1, t.dim))


def _positive(at: Inputs) -> None:
    """Operands of which most have a logarithm, a root, a power."""
    x = at.get(at.op.port(0))
    if x is not None and at.kind != "edge":
        at.put(at.op.port(0), np.abs(x))


def _wide(at: Inputs) -> None:
    """Angles of many turns, numbers that are no fractions: a few of any size."""
    x = at.get("x")
    if x is not None and x.size and at.kind == "real":
        some = at.rng.random(x.shape) < 0.1
        top = 4.0 if at.tensor("x").dtype.name == "f16" else 9.0
        at.put("x", np.where(some, x * 10.0 ** at.rng.uniform(0, top, x.shape), x * 3))


def _of_result(at: Inputs) -> None:
    """y of sigmoid or tanh."""
    y = at.get("y")
    if y is not None and at.kind != "exact":
        f = Sigmoid() if at.op.name.startswith("sigmoid") else Tanh()
        at.put("y", f.reference(y)[0])


_INTEGERS = [n for n, op in OPERATIONS.items() if {"i64", "bool"} & {d.name for d in op.dtypes}]
FITS: dict[str, Fit] = {
    **dict.fromkeys(_INTEGERS, _whole),
    **dict.fromkeys(("log", "sqrt", "rsqrt", "pow"), _positive),
    **dict.fromkeys(("sin", "cos", "tan", "ceil", "floor"), _wide),
    **dict.fromkeys(("sigmoid_backward", "tanh_backward"), _of_result),
}
