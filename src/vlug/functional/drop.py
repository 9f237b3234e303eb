"""Eager calls: numbers of a counter-based generator, dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vlug import dtypes
from vlug.dtypes import DType
from vlug.errors import BadInput
from vlug.functional.base import Array, arg, floats, integer, one
from vlug.runtime import handle

__all__ = ["dropout", "dropout_backward", "rng"]


def rng(
    size: int | Sequence[int],
    *,
    seed: int,
    offset: int = 0,
    distribution: str = "uniform",
    low: float = 0.0,
    high: float = 1.0,
    probability: float = 0.5,
    dtype: DType | str = "f32",
    out: Any = None,
) -> Array:
    """Numbers of Philox 4×32-10: "uniform" in [low, high), or "bernoulli": 1 with `probability`, else 0.

    The same seed and offset give the same numbers. n numbers use ceil(n / 4) of the stream: the next offset
    that shares nothing is offset + ceil(n / 4). dtype: f32, bf16, f16 or f64 (which has 24 random bits like
    the others); a uniform number of bf16 or f16 may be rounded up to `high`.
    """
    dims = tuple(integer(d, "size") for d in (size if isinstance(size, Sequence) else (size,)))
    if any(d < 0 for d in dims):
        raise BadInput(f"size: {dims} must be 0 or more")
    kind = dtypes.dtype(dtype, "dtype").name
    at = floats(low=low, high=high, probability=probability)
    stream = _stream(seed, offset)
    return one("rng", stream, "y", out, size=dims, distribution=str(distribution), dtype=kind, **at)


def dropout(x: Any, p: float = 0.5, *, seed: int, offset: int = 0, out: Any = None) -> Array:
    """y = x · m, m = 0 with probability p, else 1 / (1 - p).

    What is dropped depends on seed, offset and an element's row-major index alone, not on layout, dtype or
    threads. seed and offset are 64-bit integers; a call uses ceil(x.size / 4) of the stream (see `rng`).
    """
    return one("dropout", {"x": arg(x, "x"), **_stream(seed, offset)}, "y", out, **floats(p=p))


def dropout_backward(dy: Any, p: float = 0.5, *, seed: int, offset: int = 0, out: Any = None) -> Array:
    """dx of dropout's dy: the same p, seed and offset make the same m again."""
    return one("dropout_backward", {"dy": arg(dy, "dy"), **_stream(seed, offset)}, "dx", out, **floats(p=p))


def _stream(seed: int, offset: int) -> dict[str, handle.Array]:
    return {n: handle.array(_word(v, n), n) for n, v in (("seed", seed), ("offset", offset))}


def _word(value: Any, argument: str) -> Array:
    """A 64-bit integer, signed or not, as a scalar array."""
    n = integer(value, argument)
    if not -(1 << 63) <= n < 1 << 64:
        raise BadInput(f"{argument}: {n} must fit in 64 bits")
    return np.array(n - (1 << 64) if n >= 1 << 63 else n, np.int64)
