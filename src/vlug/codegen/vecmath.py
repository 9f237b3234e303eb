"""Elementary functions of f32 values (vectors or scalars), each with its largest error over all floats; exp,
log and what is made of them take f64 too.

Errors are in units in the last place against the exact value, found by tests/test_codegen_vecmath.py. Every
polynomial is a minimax fit of the expression named beside it (reweighted least squares on Chebyshev nodes in
double precision, coefficients rounded to f32). Infinities, NaN, signed zeros and denormals come out as from
C's functions.
"""

from __future__ import annotations

import math

from vlug.codegen.types import F64, const
from vlug.codegen.values import Val, absolute, copysign, fma, maximum, round_even, select, sqrt

__all__ = ["erf", "exp", "gelu", "log", "log1p", "rsqrt", "sigmoid", "silu", "softplus", "tanh"]

_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # the sum is ln 2; the first has 9 bits
_INF, _NAN = float("inf"), float("nan")

# (e^r - 1 - r) / r² on |r| ≤ ln 2 / 2
_EXP = (0.00138131448, 0.00836941879, 0.041668456, 0.166665152, 0.49999994)
# (log(1 + f) - f + f²/2) / f³ on 1/√2 ≤ 1 + f ≤ √2
_LOG = (
    0.0673550144,
    -0.116803221,
    0.118954226,
    -0.12405441,
    0.142186329,
    -0.166679665,
    0.20002158,
    -0.250000119,
    0.333333135,
)
# (tanh(x)/x - 1) / x² in x² on |x| ≤ 0.65
_TANH = (-0.00552863209, 0.020483315, -0.0536929667, 0.133308992, -0.333332628)
# erf(x)/x - 1 in x² on |x| ≤ 0.93
_ERF = (8.34522725e-05, -0.000813743798, 0.00520063424, -0.0268592704, 0.112836942, -0.376126349, 0.128379166)
# log(1 - erf(t)) on 0.92 ≤ t ≤ 4
_ERFC = (
    0.000195856628,
    -0.00304242666,
    0.0222237688,
    -0.103925057,
    -0.637189686,
    -1.12767124,
    -0.000196746099,
)


# --- f64: Taylor series, cut where the next term is below half an ulp ---
_LN2_HIGH64 = 2977044471 / 2**32  # 32 bits of ln 2: n times it is exact
_LN2_LOW64 = 1.9082149292705877e-10
_EXP64 = tuple(1 / math.factorial(n) for n in range(13, 1, -1))
_ATANH = tuple(1 / (2 * n + 1) for n in range(10, 0, -1))


def _horner(x: Val, c: tuple[float, ...]) -> Val:
    p = fma(x, c[0], c[1])
    for a in c[2:]:
        p = fma(p, x, a)
    return p


def _half(i: Val) -> Val:
    """i / 2, rounded down."""
    return i.k.zip(lambda a: i.k.op("ashr", a, const(a.type, 1)), i)


def exp(x: Val) -> Val:
    """e^x, within 1 ulp.

    x = n ln 2 + r, |r| ≤ ln 2 / 2; scaled by 2^n in two steps, so that results below 2^-126 lose bits
    gradually and n = 128 does not overflow early.
    """
    if x.type is F64:
        return _exp64(x)
    over, under = x > 88.7228394, x < -104.0
    n = round_even(x * 1.44269504)
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
    y = fma(r * r, _horner(r, _EXP), r) + 1.0
    i = select(over | under | x.isnan(), 0.0, n).to("i32")
    half = _half(i)
    y = y * ((half + 127) << 23).bits("f32") * ((i - half + 127) << 23).bits("f32")
    return select(over, _INF, select(under, 0.0, y))


def log(x: Val) -> Val:
    """Natural logarithm, within 1 ulp; -inf of 0, NaN below."""
    if x.type is F64:
        return _log64(x)
    tiny = x < 1.17549435e-38
    bits = select(tiny, x * 8388608.0, x).bits("i32")  # 2^23: denormals become normal
    # the exponent that leaves a mantissa in [1/√2, √2)
    e = bits - 0x3F3504F3
    n = e.k.zip(lambda a: e.k.op("ashr", a, const(a.type, 23)), e)
    f = (bits - (n << 23)).bits("f32") - 1.0
    n = n.to("f32") - select(tiny, 23.0, 0.0)
    ff = f * f
    y = fma(ff * f, _horner(f, _LOG), n * _LN2_LOW)
    y = fma(n, _LN2_HIGH, f + fma(ff, -0.5, y))
    y = select(x < _INF, y, x)  # inf and NaN stay
    return select(x < 0.0, _NAN, select(x.eq(0.0), -_INF, y))


def _exp64(x: Val) -> Val:
    over, under = x > 709.782712893384, x < -745.1332191019412
    n = round_even(x * (1 / math.log(2)))
    r = fma(n, -_LN2_LOW64, fma(n, -_LN2_HIGH64, x))
    y = fma(r * r, _horner(r, _EXP64), r) + 1.0
    i = select(over | under | x.isnan(), 0.0, n).to("i32")
    half = _half(i)
    for power in (half, i - half):
        y = y * ((power + 1023).to("i64") << 52).bits("f64")
    return select(over, _INF, select(under, 0.0, y))


def _log64(x: Val) -> Val:
    """log(1 + f) = f - (f²/2 - s (f²/2 + R)) with s = f / (2 + f), R = 2 s² (1/3 + s²/5 + …)."""
    tiny = x < 2.0**-1022
    bits = select(tiny, x * 2.0**54, x).bits("i64")
    e = (bits >> 32).to("i32") - 0x3FE6A09E  # the exponent that leaves a mantissa in [1/√2, √2)
    n = e.k.zip(lambda a: e.k.op("ashr", a, const(a.type, 20)), e)
    f = (bits - (n.to("i64") << 52)).bits("f64") - 1.0
    n = n.to("f64")
    n = select(tiny, n - 54.0, n)
    s, half = f / (f + 2.0), f * f * 0.5
    z = s * s
    rest = s * (half + 2.0 * z * _horner(z, _ATANH)) + n * _LN2_LOW64
    y = n * _LN2_HIGH64 - ((half - rest) - f)
    y = select(x < _INF, y, x)
    return select(x < 0.0, _NAN, select(x.eq(0.0), -_INF, y))


def tanh(x: Val) -> Val:
    """Hyperbolic tangent, within 2 ulp."""
    a, s = absolute(x), x * x
    small = fma(x * s, _horner(s, _TANH), x)
    large = 1.0 - 2.0 / (exp(a + a) + 1.0)
    return copysign(select(a < 0.625, small, large), x)


def erf(x: Val) -> Val:
    """Error function, within 2 ulp."""
    a, s = absolute(x), x * x
    small = fma(x, _horner(s, _ERF), x)
    t = select(a > 4.0, 4.0, a)  # 1 from there on; NaN stays
    large = 1.0 - exp(_horner(t, _ERFC))
    return copysign(select(a < 0.93, small, large), x)


def rsqrt(x: Val) -> Val:
    """1 / √x from the processor's square root and division: within 1.5 ulp."""
    return 1.0 / sqrt(x)


def sigmoid(x: Val) -> Val:
    """1 / (1 + e^-x), within 2.5 ulp; below 0 as e^x / (1 + e^x), which does not underflow early."""
    e = exp(-absolute(x))
    return select(x < 0.0, e, 1.0) / (e + 1.0)


def silu(x: Val) -> Val:
    """x · sigmoid(x)."""
    return x * sigmoid(x)


def log1p(x: Val) -> Val:
    """log(1 + x) for 0 ≤ x ≤ 1, within 2 ulp: to the logarithm comes what 1 + x rounded away."""
    u = x + 1.0
    return log(u) + (x - (u - 1.0)) / u


def softplus(x: Val) -> Val:
    """log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), within 2 ulp below 0 too, where it is e^x at last."""
    return maximum(x, 0.0) + log1p(exp(-absolute(x)))


def gelu(x: Val) -> Val:
    """x/2 · (1 + erf(x / √2))."""
    return x * 0.5 * (erf(x * 0.707106781) + 1.0)
