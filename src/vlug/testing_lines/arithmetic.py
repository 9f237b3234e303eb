"""Random problem lines: pointwise arithmetic, elementary functions, comparisons, logic, casts."""

from __future__ import annotations

import random
from functools import partial

from vlug.testing_lines.base import Line, dims, shape

__all__ = ["LINES"]

BINARY = ("sub", "div", "mod", "pow", "add_square", "max", "min")
UNARY = (
    "neg", "abs", "sign", "reciprocal", "sqrt", "rsqrt", "exp", "log", "erf", "sin", "cos", "tan", "ceil",
    "floor",
)  # fmt: skip
COMPARE = ("cmp_eq", "cmp_neq", "cmp_gt", "cmp_ge", "cmp_lt", "cmp_le")
#: Operations that take integers.
WHOLE = ("sub", "max", "min", "neg", "abs", "sign", *COMPARE)
KINDS = ("f32", "f32", "bf16", "f16", "f64", "i32", "i64", "u8", "bool")


def _parts(r: random.Random, n: int) -> list[str]:
    """Dims of n operands that broadcast."""
    dim = shape(r)
    return [dims(*(1 if r.random() < 0.3 else d for d in dim[r.randint(0, len(dim)) :])) for _ in range(n)]


def _kind(name: str, r: random.Random) -> str:
    return r.choice(("f32", "f32", "i32", "i64", "u8")) if name in WHOLE else "f32"


def _binary(name: str, r: random.Random) -> str:
    (a, b), kind = _parts(r, 2), _kind(name, r)
    return f"{name} a={a}:{kind} b={b}:{kind}"


def _unary(name: str, r: random.Random) -> str:
    return f"{name} x={dims(*shape(r))}:{_kind(name, r)}"


def _affine(r: random.Random) -> str:
    return f"affine x={dims(*shape(r))} alpha={r.choice([0.0, 1.0, -2.5])} beta={r.choice([0.0, 1.0, 0.3])}"


def _identity(r: random.Random) -> str:
    x, to = f"{dims(*shape(r))}:{r.choice(KINDS)}", r.choice(("", *KINDS))
    return f"identity x={x} dtype={to}" if to else f"identity x={x}"


def _logical(name: str, r: random.Random) -> str:
    a, b = _parts(r, 2)
    return f"{name} x={a}:bool" if name == "logical_not" else f"{name} a={a}:bool b={b}:bool"


def _select(r: random.Random) -> str:
    (a, b, m), kind = _parts(r, 3), r.choice(KINDS)
    return f"binary_select a={a}:{kind} b={b}:{kind} mask={m}:bool"


def _index(r: random.Random) -> str:
    dim = shape(r, 1)
    return f"gen_index x={dims(*dim)} axis={r.randrange(len(dim))} dtype={r.choice(['i64', 'i32', 'f32'])}"


LINES: dict[str, Line] = {
    **{n: partial(_binary, n) for n in (*BINARY, *COMPARE)},
    **{n: partial(_unary, n) for n in UNARY},
    **{n: partial(_logical, n) for n in ("logical_and", "logical_or", "logical_not")},
    "affine": _affine,
    "binary_select": _select,
    "gen_index": _index,
    "identity": _identity,
}
