"""What pointwise operations compute: a formula of values in registers for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vlug.codegen import vecmath
from vlug.codegen.ir import (
    Kernel,
    Val,
    absolute,
    ceil,
    floor,
    fma,
    maximum,
    minimum,
    select,
    sqrt,
)

__all__ = ["Call", "formula"]

@dataclass(frozen=True)
class Call:
    """One operation of a chain: its number in it, whether its numbers have their defaults, the type that its
    operands are computed in (f32, f64, i64, i32, bool) and the dtype of its result."""

    k: Kernel
    at: int
    plain: bool
    kind: str
    to: str

    def scalar(self, name: str) -> Val:
        """A number of the operation, from args."""
        return self.k.scalar(f"{name}{self.at}", self.kind)


Formula = Callable[..., Any]


def formula(op: str, c: Call, xs: Sequence[Val]) -> Any:
    """The result of an operation; of u8 modulo 256."""
    y = FORMULAS[op](c, *xs)
    return y & 255 if c.to == "u8" and op in ("add", "sub", "mul", "neg") else y


# --- arithmetic ---
def _abs(c: Call, x: Val) -> Any:
    return absolute(x) if c.kind in ("f32", "f64") else select(x < 0, -x, x)


def _sign(c: Call, x: Val) -> Any:
    if c.kind in ("f32", "f64"):
        one = c.k.val(1.0, x)
        return select(x > 0.0, one, select(x < 0.0, -one, select(x.isnan(), x, 0.0)))
    return (x > 0).to(c.kind) - (x < 0).to(c.kind)


def _cast(c: Call, x: Val) -> Any:
    if c.to in ("f32", "bf16", "f16", "f64"):
        return x.to("f64" if c.to == "f64" else "f32")
    if c.to == "bool":
        return x.to("bool")
    if c.kind in ("f32", "f64"):
        return _cut(c, x)
    whole = x.to("i64" if c.to == "i64" else "i32")
    return whole & 255 if c.to == "u8" else whole


_BITS = {"i32": 31, "i64": 63}


def _cut(c: Call, x: Val) -> Any:
    """Floats as integers: towards 0, within the range, 0 of NaN."""
    x = select(x.isnan(), 0.0, x)
    if c.to == "u8":
        return minimum(maximum(x, 0.0), 255.0).to("i32")
    top = 2.0 ** _BITS[c.to]
    over = x >= top
    whole = select(over, 0.0, maximum(x, -top)).to(c.to)
    return select(over, 2 ** _BITS[c.to] - 1, whole)


# --- comparisons ---
def _compare(how: Callable[[Any, Any], Any]) -> Formula:
    def compare(c: Call, a: Val, b: Val) -> Any:
        return how(a.to("i32"), b.to("i32")) if c.kind == "bool" else how(a, b)

    return compare


# --- activations ---
def _relu(c: Call, x: Val) -> Any:
    """max(x, 0), or the clipped and leaky form; NaN stays."""
    if c.plain:
        return maximum(x, 0.0)
    slope, low, high = (c.scalar(n) for n in ("slope", "low", "high"))
    below = select(slope.eq(0.0), low, low + slope * (x - low))  # slope 0: low, for -inf too
    return select(x <= low, below, select(x >= high, high, x))


def _relu_backward(c: Call, dy: Val, x: Val) -> Any:
    """dy between the clips, slope · dy below, 0 above; where x is NaN dy, of a leaky one slope · dy."""
    if c.plain:
        return select(x <= 0.0, 0.0, dy)
    slope, low, high = (c.scalar(n) for n in ("slope", "low", "high"))
    below = select(slope.eq(0.0), 0.0, slope * dy)
    clipped = (x >= high) & (high < float("inf"))
    under = (x <= low) | (x.isnan() & slope.ne(0.0))
    return select(under, below, select(clipped, 0.0, dy))


def _swish(c: Call, x: Val) -> Any:
    return vecmath.silu(x) if c.plain else x * vecmath.sigmoid(x * c.scalar("beta"))


def _swish_backward(c: Call, dy: Val, x: Val) -> Any:
    return dy * vecmath.silu_backward(x if c.plain else x * c.scalar("beta"))


def _elu(c: Call, x: Val) -> Any:
    low = minimum(x, 0.0)
    if c.plain:
        return select(x > 0.0, x, vecmath.expm1(low))
    return select(x > 0.0, x * c.scalar("scale"), vecmath.expm1(low * c.scalar("input")) * c.scalar("below"))


def _elu_backward(c: Call, dy: Val, x: Val) -> Any:
    low = minimum(x, 0.0)
    if c.plain:
        return select(x > 0.0, dy, dy * vecmath.exp(low))
    below = dy * c.scalar("slope") * vecmath.exp(low * c.scalar("input"))
    return select(x > 0.0, dy * c.scalar("scale"), below)


def _softplus(c: Call, x: Val) -> Any:
    if c.plain:
        return select(x > 20.0, x, vecmath.softplus(x))
    z = x * c.scalar("beta")
    return select(z > c.scalar("threshold"), x, vecmath.softplus(z) / c.scalar("beta"))


def _softplus_backward(c: Call, dy: Val, x: Val) -> Any:
    if c.plain:
        return select(x > 20.0, dy, dy * vecmath.sigmoid(x))
    z = x * c.scalar("beta")
    return select(z > c.scalar("threshold"), dy, dy * vecmath.sigmoid(z))


def _hardswish_backward(c: Call, dy: Val, x: Val) -> Any:
    middle = dy * fma(x, 1 / 3, 0.5)
    return select(x <= -3.0, 0.0, select(x >= 3.0, dy, middle))


def _of(f: Callable[[Val], Any]) -> Formula:
    """y = f(x)."""
    return lambda c, x: f(x)


def _slope(f: Callable[[Val], Any]) -> Formula:
    """dx = dy · f(x)."""
    return lambda c, dy, x: dy * f(x)


def _six(x: Val) -> Val:
    return minimum(maximum(x + 3.0, 0.0), 6.0)


FORMULAS: dict[str, Formula] = {
    # arithmetic
    "add": lambda c, a, b: a + b,
    "bias": lambda c, x, b: x + b,
    "sub": lambda c, a, b: a - b,
    "mul": lambda c, a, b: a * b,
    "scale": lambda c, x, b: x * b,
    "factor": lambda c, x: x if c.plain else x * c.scalar("factor"),
    "affine": lambda c, x: fma(x, c.scalar("alpha"), c.scalar("beta")),
    "div": lambda c, a, b: a / b,
    "mod": lambda c, a, b: vecmath.fmod(a, b),
    "pow": lambda c, a, b: vecmath.pow(a, b),
    "add_square": lambda c, a, b: fma(b, b, a),
    "max": lambda c, a, b: maximum(a, b),
    "min": lambda c, a, b: minimum(a, b),
    "neg": lambda c, x: -x,
    "abs": _abs,
    "sign": _sign,
    "reciprocal": lambda c, x: 1.0 / x,
    "sqrt": _of(sqrt),
    "rsqrt": _of(vecmath.rsqrt),
    "exp": _of(vecmath.exp),
    "log": _of(vecmath.log),
    "erf": _of(vecmath.erf),
    "sin": _of(vecmath.sin),
    "cos": _of(vecmath.cos),
    "tan": _of(vecmath.tan),
    "ceil": _of(ceil),
    "floor": _of(floor),
    "identity": _cast,
    "gen_index": _cast,
    # logic
    "cmp_eq": _compare(lambda a, b: a.eq(b)),
    "cmp_neq": _compare(lambda a, b: a.ne(b)),
    "cmp_gt": _compare(lambda a, b: a > b),
    "cmp_ge": _compare(lambda a, b: a >= b),
    "cmp_lt": _compare(lambda a, b: a < b),
    "cmp_le": _compare(lambda a, b: a <= b),
    "logical_and": lambda c, a, b: a & b,
    "logical_or": lambda c, a, b: a | b,
    "logical_not": lambda c, x: ~x,
    "binary_select": lambda c, a, b, mask: select(mask, a, b),
    # activations
    "relu": _relu,
    "relu_backward": _relu_backward,
    "prelu": lambda c, x, w: select(x > 0.0, x, w * x),
    "prelu_backward": lambda c, dy, x, w: select(x > 0.0, dy, w * dy),
    "sigmoid": _of(vecmath.sigmoid),
    "sigmoid_backward": lambda c, dy, y: dy * (1.0 - y) * y,
    "tanh": _of(vecmath.tanh),
    "tanh_backward": lambda c, dy, y: dy * fma(-y, y, 1.0),
    "gelu": _of(vecmath.gelu),
    "gelu_backward": _slope(vecmath.gelu_backward),
    "gelu_approx_tanh": _of(vecmath.gelu_tanh),
    "gelu_approx_tanh_backward": _slope(vecmath.gelu_tanh_backward),
    "swish": _swish,
    "swish_backward": _swish_backward,
    "elu": _elu,
    "elu_backward": _elu_backward,
    "softplus": _softplus,
    "softplus_backward": _softplus_backward,
    "hardswish": lambda c, x: x * (_six(x) * (1 / 6)),
    "hardswish_backward": _hardswish_backward,
    "hardsigmoid": lambda c, x: _six(x) * (1 / 6),
    "hardsigmoid_backward": lambda c, dy, x: select((x > -3.0) & (x < 3.0), dy * (1 / 6), 0.0),
    "mish": _of(vecmath.mish),
    "mish_backward": _slope(vecmath.mish_backward),
}
