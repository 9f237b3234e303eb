"""Random problem lines: activations and their gradients."""

from __future__ import annotations

import random
from functools import partial

from vlug.ops import OPERATIONS
from vlug.testing_lines.base import Line, dims, shape

__all__ = ["LINES"]

NAMES = (
    "sigmoid", "tanh", "gelu", "gelu_approx_tanh", "swish", "elu", "softplus", "hardswish", "hardsigmoid",
    "mish",
)  # fmt: skip


def _activation(name: str, r: random.Random) -> str:
    op, x = OPERATIONS[name], dims(*shape(r))
    choices = {
        "alpha": [1.0, 0.5, 2.0], "scale": [1.0, 1.05], "input_scale": [1.0, 0.5], "beta": [1.0, 1.702, 0.5],
        "threshold": [20.0, 2.0],
    }  # fmt: skip
    words = [f"{p}={x}" for p in op.inputs] + [f"{f}={r.choice(choices[f])}" for f in op.fields()]
    return f"{name} {' '.join(words)}"


def _prelu(name: str, r: random.Random) -> str:
    dim = shape(r, 1)
    axis, x = r.randrange(len(dim)), dims(*dim)
    w = r.choice([1, dim[axis]])
    return f"{name} {f'dy={x} ' if name != 'prelu' else ''}x={x} w={w} axis={axis}"


LINES: dict[str, Line] = {
    **{n: partial(_activation, n) for f in NAMES for n in (f, f"{f}_backward")},
    **{n: partial(_prelu, n) for n in ("prelu", "prelu_backward")},
}
