"""Random problem lines: pointwise calls."""

from __future__ import annotations

import random
from functools import partial

from vlug.testing_lines.base import Line, dims, shape

__all__ = ["LINES"]


def _binary(name: str, r: random.Random) -> str:
    dim = shape(r)
    a, b = ([1 if r.random() < 0.3 else d for d in dim[r.randint(0, len(dim)) :]] for _ in "ab")
    return f"{name} a={dims(*a)} b={dims(*b)}"


def _along(name: str, r: random.Random) -> str:
    dim = shape(r, 1)
    axis = r.randrange(len(dim))
    return f"{name} x={dims(*dim)} b={dim[axis]} axis={axis}"


def _relu(name: str, r: random.Random) -> str:
    x = dims(*shape(r))
    tail = r.choice(["", "negative_slope=0.1", "upper_clip=1.5", "lower_clip=-1.0", "negative_slope=-0.5"])
    return f"{name} {f'dy={x} ' if name != 'relu' else ''}x={x} {tail}"


LINES: dict[str, Line] = {
    **{n: partial(_along, n) for n in ("bias", "scale")},
    **{n: partial(_binary, n) for n in ("add", "mul")},
    **{n: partial(_relu, n) for n in ("relu", "relu_backward")},
}
