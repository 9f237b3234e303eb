"""Eager calls: arithmetic, elementary functions, comparisons, logic, casts.

Of two operands that broadcast one may be a Python number; it takes the other's dtype.
"""

from __future__ import annotations

from typing import Any

from vlug.dtypes import dtype as dtype_of
from vlug.functional.base import Array, arg, integer, one, operands

__all__ = [
    "absolute",
    "add_square",
    "astype",
    "ceil",
    "cos",
    "div",
    "equal",
    "erf",
    "exp",
    "floor",
    "fmod",
    "gen_index",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "ln",
    "logical_and",
    "logical_not",
    "logical_or",
    "maximum",
    "minimum",
    "negative",
    "not_equal",
    "pow",
    "reciprocal",
    "rsqrt",
    "scale",
    "sign",
    "sin",
    "sqrt",
    "sub",
    "tan",
    "where",
]


def sub(a: Any, b: Any, *, out: Any = None) -> Array:
    """a - b with NumPy broadcasting."""
    return _two("sub", a, b, out)


def div(a: Any, b: Any, *, out: Any = None) -> Array:
    """a / b with NumPy broadcasting."""
    return _two("div", a, b, out)


def fmod(a: Any, b: Any, *, out: Any = None) -> Array:
    """The remainder of a / b with the sign of a (C's fmod), with NumPy broadcasting."""
    return _two("mod", a, b, out)


def pow(a: Any, b: Any, *, out: Any = None) -> Array:
    """a ^ b as C's pow, with NumPy broadcasting."""
    return _two("pow", a, b, out)


def add_square(a: Any, b: Any, *, out: Any = None) -> Array:
    """a + b² with NumPy broadcasting."""
    return _two("add_square", a, b, out)


def maximum(a: Any, b: Any, *, out: Any = None) -> Array:
    """The larger of a and b, NaN if either is, with NumPy broadcasting."""
    return _two("max", a, b, out)


def minimum(a: Any, b: Any, *, out: Any = None) -> Array:
    """The smaller of a and b, NaN if either is, with NumPy broadcasting."""
    return _two("min", a, b, out)


def equal(a: Any, b: Any, *, out: Any = None) -> Array:
    """Whether a = b (bool), with NumPy broadcasting."""
    return _two("cmp_eq", a, b, out)


def not_equal(a: Any, b: Any, *, out: Any = None) -> Array:
    """Whether a ≠ b (bool), with NumPy broadcasting."""
    return _two("cmp_neq", a, b, out)


def greater(a: Any, b: Any, *, out: Any = None) -> Array:
    """Whether a > b (bool), with NumPy broadcasting."""
    return _two("cmp_gt", a, b, out)


def greater_equal(a: Any, b: Any, *, out: Any = None) -> Array:
    """Whether a ≥ b (bool), with NumPy broadcasting."""
    return _two("cmp_ge", a, b, out)


def less(a: Any, b: Any, *, out: Any = None) -> Array:
    """Whether a < b (bool), with NumPy broadcasting."""
    return _two("cmp_lt", a, b, out)


def less_equal(a: Any, b: Any, *, out: Any = None) -> Array:
    """Whether a ≤ b (bool), with NumPy broadcasting."""
    return _two("cmp_le", a, b, out)


def logical_and(a: Any, b: Any, *, out: Any = None) -> Array:
    """a and b, of bools, with NumPy broadcasting."""
    return _two("logical_and", a, b, out)


def logical_or(a: Any, b: Any, *, out: Any = None) -> Array:
    """a or b, of bools, with NumPy broadcasting."""
    return _two("logical_or", a, b, out)


def negative(x: Any, *, out: Any = None) -> Array:
    """-x."""
    return _one("neg", x, out)


def absolute(x: Any, *, out: Any = None) -> Array:
    """|x|."""
    return _one("abs", x, out)


def sign(x: Any, *, out: Any = None) -> Array:
    """-1, 0 or 1; NaN of NaN."""
    return _one("sign", x, out)


def reciprocal(x: Any, *, out: Any = None) -> Array:
    """1 / x."""
    return _one("reciprocal", x, out)


def sqrt(x: Any, *, out: Any = None) -> Array:
    """√x; NaN below 0."""
    return _one("sqrt", x, out)


def rsqrt(x: Any, *, out: Any = None) -> Array:
    """1 / √x; NaN below 0."""
    return _one("rsqrt", x, out)


def exp(x: Any, *, out: Any = None) -> Array:
    """e^x."""
    return _one("exp", x, out)


def ln(x: Any, *, out: Any = None) -> Array:
    """The natural logarithm (`vlug.log` is a module); -inf of 0, NaN below."""
    return _one("log", x, out)


def erf(x: Any, *, out: Any = None) -> Array:
    """The error function."""
    return _one("erf", x, out)


def sin(x: Any, *, out: Any = None) -> Array:
    """Sine (radians) of any finite x."""
    return _one("sin", x, out)


def cos(x: Any, *, out: Any = None) -> Array:
    """Cosine (radians) of any finite x."""
    return _one("cos", x, out)


def tan(x: Any, *, out: Any = None) -> Array:
    """Tangent (radians) of any finite x."""
    return _one("tan", x, out)


def ceil(x: Any, *, out: Any = None) -> Array:
    """The least integer not below x."""
    return _one("ceil", x, out)


def floor(x: Any, *, out: Any = None) -> Array:
    """The largest integer not above x."""
    return _one("floor", x, out)


def logical_not(x: Any, *, out: Any = None) -> Array:
    """not x, of bools."""
    return _one("logical_not", x, out)


def where(condition: Any, a: Any, b: Any, *, out: Any = None) -> Array:
    """a where the condition (bool) holds, else b; all three broadcast. One of a and b may be a number."""
    given = {**operands(a=a, b=b), "mask": arg(condition, "condition")}
    return one("binary_select", given, "y", out)


def astype(x: Any, dtype: Any, *, out: Any = None) -> Array:
    """x in another dtype. Floats become integers towards 0, clamped to the range, NaN 0; too large integers
    wrap around; to bool, 0 is false."""
    return one("identity", {"x": arg(x, "x")}, "y", out, dtype=dtype_of(dtype).name)


def scale(x: Any, b: Any, *, axis: int = 1, out: Any = None) -> Array:
    """x · b, b (one dimension) along `axis`."""
    return one("scale", {"x": arg(x, "x"), "b": arg(b, "b", 1)}, "y", out, axis=integer(axis, "axis"))


def gen_index(x: Any, axis: int = 0, *, dtype: Any = "i64", out: Any = None) -> Array:
    """The index along `axis` of each element of x, as i64, i32 or f32."""
    at = {"axis": integer(axis, "axis"), "dtype": dtype_of(dtype).name}
    return one("gen_index", {"x": arg(x, "x")}, "y", out, **at)


def _two(name: str, a: Any, b: Any, out: Any) -> Array:
    return one(name, operands(a=a, b=b), "y", out)


def _one(name: str, x: Any, out: Any) -> Array:
    return one(name, {"x": arg(x, "x")}, "y", out)
