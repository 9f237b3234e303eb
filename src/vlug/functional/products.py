"""Eager calls: products of matrices, and the linear layer."""

from __future__ import annotations

import math
from typing import Any

from vlug.errors import ShapeError
from vlug.functional.base import (
    Array,
    Step,
    arg,
    chain,
    one,
)
from vlug.runtime import handle

__all__ = ["linear", "linear_backward", "matmul"]


def matmul(a: Any, b: Any, *, transpose_a: bool = False, transpose_b: bool = False, out: Any = None) -> Array:
    """c (…, M, N) of a (…, M, K) and b (…, K, N); leading dimensions broadcast."""
    arrays = {"a": arg(a, "a"), "b": arg(b, "b")}
    return one("matmul", arrays, "c", out, transpose_a=transpose_a, transpose_b=transpose_b)


def linear(x: Any, w: Any, bias: Any = None, *, out: Any = None) -> Array:
    """y (…, K) of x (…, C) and w (K, C), plus bias (K) if given."""
    a, weight = arg(x, "x"), arg(w, "w", 2)
    if len(a.shape) < 2:
        raise ShapeError(f"linear: x {a.shape} must have 2 dimensions or more")
    steps: list[Step] = [("matmul", ("x", "w"), {"transpose_b": True})]
    arrays = {"x": a, "w": weight}
    if bias is not None:
        arrays["bias"] = arg(bias, "bias", 1)
        steps.append(("bias", ("", "bias"), {"axis": len(a.shape) - 1}))
    return chain(steps, arrays, {"y": out})[0]


def linear_backward(dy: Any, x: Any, w: Any) -> tuple[Array, Array, Array]:
    """dx, dw and dbias of linear's dy."""
    g, a, weight = arg(dy, "dy"), arg(x, "x"), arg(w, "w", 2)
    if g.shape[:-1] != a.shape[:-1] or len(g.shape) < 2:
        raise ShapeError(
            f"linear_backward: dy {g.shape} and x {a.shape} may differ in the last dimension only"
        )
    dx = one("matmul", {"a": g, "b": weight}, "c", None)
    rows = math.prod(g.shape[:-1])
    flat = [handle.array(t.numpy().reshape(rows, t.shape[-1]), n) for n, t in (("dy", g), ("x", a))]
    dw = one("matmul", {"a": flat[0], "b": flat[1]}, "c", None, transpose_a=True)
    return dx, dw, one("reduction", {"x": flat[0]}, "y", None, axes=(0,))
