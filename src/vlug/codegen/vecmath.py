"""Elementary functions of f32 values (vectors or scalars), each with its largest error over all floats.

Each takes f64 values too: `vecmath_f64` has those that differ, and their errors. Errors are in units in the
last place against the exact value, found by tests/test_codegen_vecmath.py. Every polynomial is a minimax fit
of the expression named beside it (reweighted least squares or interpolation on Chebyshev nodes, coefficients
rounded to f32). Infinities, NaN, signed zeros and denormals come out as from C's functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from vlug.codegen import vecmath_f64
from vlug.codegen.trigonometry import quarter_turns
from vlug.codegen.types import F64, const
from vlug.codegen.values import Val, absolute, copysign, fma, maximum, minimum, round_even, select, sqrt

__all__ = [
    "cos", "erf", "exp", "expm1", "fmod", "gelu", "gelu_backward", "gelu_tanh", "gelu_tanh_backward", "log",
    "log1p", "mish", "mish_backward", "pow", "rsqrt", "sigmoid", "silu",
    "silu_backward", "sin", "softplus", "tan", "tanh",
]  # fmt: skip

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
# e^(a²/2) · (1 - Φ(a)) on 0 ≤ a ≤ 6 in a/3 - 1, Φ the normal distribution
_TAIL = (-0.000430896383, 0.000860392873, 3.4958477e-05, -0.000185973026, -0.00220832578, 0.00401286129,
         -0.00479137991, 0.00782076176, -0.0134440083, 0.0209239647, -0.0311857369, 0.0450359806,
         -0.062383648, 0.0824077204, -0.1032013, 0.12151394)
# (sin(r)/r - 1) / r² and (cos(r) - 1 + r²/2) / r⁴ in r² on |r| ≤ π/4
_SIN = (2.72493139e-06, -0.000198400827, 0.00833333191, -0.166666672)
_COS = (2.45474366e-05, -0.00138883002, 0.0416666642)
_TURNS = 12582912.0  # 1.5 · 2^23: adding it rounds to an integer, which stands in the low bits


def _typed(f: Callable[..., Val]) -> Callable[..., Val]:
    """The function of vecmath_f64 of that name where the first value is f64."""
    wide: Callable[..., Val] = getattr(vecmath_f64, f.__name__)

    @wraps(f)
    def either(x: Val, *rest: Any) -> Val:
        return wide(x, *rest) if x.type is F64 else f(x, *rest)

    return either


def _horner(x: Val, c: tuple[float, ...]) -> Val:
    p = fma(x, c[0], c[1])
    for a in c[2:]:
        p = fma(p, x, a)
    return p


def _half(i: Val) -> Val:
    """i / 2, rounded down."""
    return i.k.zip(lambda a: i.k.op("ashr", a, const(a.type, 1)), i)


@_typed
def exp(x: Val) -> Val:
    """e^x, within 1 ulp.

    x = n ln 2 + r, |r| ≤ ln 2 / 2; scaled by 2^n in two steps, so that results below 2^-126 lose bits
    gradually and n = 128 does not overflow early.
    """
    over, under = x > 88.7228394, x < -104.0
    n = round_even(x * 1.44269504)
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
    y = fma(r * r, _horner(r, _EXP), r) + 1.0
    i = select(over | under | x.isnan(), 0.0, n).to("i32")
    half = _half(i)
    y = y * ((half + 127) << 23).bits("f32") * ((i - half + 127) << 23).bits("f32")
    return select(over, _INF, select(under, 0.0, y))


@_typed
def log(x: Val) -> Val:
    """Natural logarithm, within 1 ulp; -inf of 0, NaN below."""
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


@_typed
def tanh(x: Val) -> Val:
    """Hyperbolic tangent, within 2 ulp."""
    a, s = absolute(x), x * x
    small = fma(x * s, _horner(s, _TANH), x)
    large = 1.0 - 2.0 / (_exp_between(minimum(a + a, 20.0)) + 1.0)  # 1 from there on
    return copysign(select(a >= 0.625, large, small), x)  # NaN is small's


@_typed
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


def _exp_below(x: Val) -> Val:
    """e^x of x ≤ 0, within 1 ulp; scaled by 2^(n + 64), then by 2^-64, so that bits are lost gradually."""
    return _exp_between(maximum(x, -110.0), 64) * 2.0**-64


def _exp_between(x: Val, up: int = 0) -> Val:
    """2^up · e^x where that is a normal number, within 1 ulp: neither over- nor underflow to look out for.
    Of NaN it is anything."""
    t = fma(x, 1.44269504, _TURNS)
    n = t - _TURNS
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
    y = fma(r * r, _horner(r, _EXP), r) + 1.0
    scale = t.bits("i32") << 23
    return (y.bits("i32") + (scale + (up << 23) if up else scale)).bits("f32")


@_typed
def expm1(x: Val) -> Val:
    """e^x - 1, within 2 ulp."""
    z = minimum(maximum(x, -30.0), 89.0)
    n = round_even(z * 1.44269504)
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, z))
    p = fma(r * r, _horner(r, _EXP), r)
    half = (((n - 1.0) + _TURNS).bits("i32") << 23) + 0x3F800000  # 2^(n-1), so that 2^128 may be reached
    scale = half.bits("f32")
    y = fma(p, scale, scale - 0.5)
    return select(n.eq(0.0), p, y + y)


def log1p(x: Val) -> Val:
    """log(1 + x), within 2 ulp: log of 1 + x as rounded, and what the rounding lost over it."""
    u = x + 1.0
    lost = (x - (u - 1.0)) / u
    y = log(u)
    return select((x > -1.0) & (x < _INF), y + lost, y)


def _sin_cos(r: Val) -> tuple[Val, Val]:
    s = r * r
    return fma(r * s, _horner(s, _SIN), r), fma(s * s, _horner(s, _COS), fma(s, -0.5, 1.0))


def _odd(q: Val) -> Val:
    return (q & 1).ne(0)


def _negated(q: Val, bit: int, y: Val) -> Val:
    """-y where a bit of q is set."""
    return (y.bits("i32") ^ ((q >> bit) << 31)).bits("f32")


@_typed
def sin(x: Val) -> Val:
    """Sine, within 1.5 ulp for every float."""
    q, r = quarter_turns(x)
    s, c = _sin_cos(r)
    return _negated(q, 1, select(_odd(q), c, s))


@_typed
def cos(x: Val) -> Val:
    """Cosine, within 1.5 ulp for every float."""
    q, r = quarter_turns(x)
    s, c = _sin_cos(r)
    return _negated(q + 1, 1, select(_odd(q), s, c))


@_typed
def tan(x: Val) -> Val:
    """Tangent, within 3 ulp for every float."""
    q, r = quarter_turns(x)
    s, c = _sin_cos(r)
    odd = _odd(q)
    return _negated(q, 0, select(odd, c, s) / select(odd, s, c))


@_typed
def pow(x: Val, y: Val) -> Val:
    """x ^ y as C's pow, within 1 ulp: e^(y log x) in f64."""
    return vecmath_f64.power(x.to("f64"), y.to("f64"), exact=False).to("f32")


fmod = vecmath_f64.fmod


def silu(x: Val) -> Val:
    """x · sigmoid(x), within 4 ulp."""
    e = _exp_down(x)
    return x * select(x < 0.0, e, 1.0) / (e + 1.0)


def silu_backward(x: Val) -> Val:
    """The derivative of silu, s (1 + x (1 - s)), s = sigmoid(x), within 4e-7."""
    e = _exp_down(x)
    inverse, below = 1.0 / (e + 1.0), x < 0.0
    return select(below, e, 1.0) * inverse * fma(x, select(below, 1.0, e) * inverse, 1.0)


def _exp_down(x: Val) -> Val:
    """e^-|x|."""
    return exp(-absolute(x)) if x.type is F64 else _exp_below(-absolute(x))


def softplus(x: Val) -> Val:
    """log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), within 3 ulp below 0 too, where it is e^x at last."""
    return maximum(x, 0.0) + log1p(exp(-absolute(x)))


def _normal(x: Val) -> tuple[Val, Val]:
    """(Φ(x), e^(-x²/2)): below 0 with a small relative error, from one exponential."""
    if x.type is F64:
        return vecmath_f64.normal(x)
    a = absolute(x)
    e = _exp_below(a * a * -0.5)
    tail = e * _horner(fma(minimum(a, 6.0), 1 / 3, -1.0), _TAIL)
    return select(x < 0.0, tail, 1.0 - tail), e


def gelu(x: Val) -> Val:
    """x · Φ(x) = x/2 · (1 + erf(x / √2)), within 2e-7 · |x|."""
    return x * _normal(x)[0]


def gelu_backward(x: Val) -> Val:
    """The derivative of gelu, Φ(x) + x φ(x), within 3e-7."""
    below, e = _normal(x)
    return fma(x * 0.3989422804014327, e, below)


_ROOT, _CUBE = 0.7978845608028654, 0.044715  # √(2/π)


def gelu_tanh(x: Val) -> Val:
    """x/2 · (1 + tanh u) = x · sigmoid(2u), u = √(2/π) (x + 0.044715 x³), within 3e-7 · |x|."""
    z = x * fma(x * x, 2 * _ROOT * _CUBE, 2 * _ROOT)
    e = _exp_down(z)
    return x * select(z < 0.0, e, 1.0) / (e + 1.0)


def gelu_tanh_backward(x: Val) -> Val:
    """The derivative of gelu_tanh: s + x s (1 - s) 2u', s = sigmoid(2u)."""
    xx = minimum(x * x, 1e4)  # so that the slope stays finite, where s (1 - s) is 0
    z = x * fma(xx, 2 * _ROOT * _CUBE, 2 * _ROOT)
    e = _exp_down(z)
    inverse = 1.0 / (e + 1.0)
    s = select(z < 0.0, e, 1.0) * inverse
    slope = fma(xx, 6 * _ROOT * _CUBE, 2 * _ROOT)
    return fma(x, slope * (e * inverse * inverse), s)


def mish(x: Val) -> Val:
    """x · tanh(log(1 + e^x)) = x · w / (w + 2), w = e^x (e^x + 2), within 4 ulp."""
    e = exp(minimum(x, 30.0))
    w = e * (e + 2.0)
    return x * (w / (w + 2.0))


def mish_backward(x: Val) -> Val:
    """The derivative of mish: t + 4 x e (1 + e) / (w + 2)², t = w / (w + 2), e = e^x, w = e (e + 2)."""
    e = exp(minimum(x, 30.0))
    w = e * (e + 2.0)
    inverse = 1.0 / (w + 2.0)
    slope = e * (e + 1.0) * inverse * inverse * 4.0
    return fma(x, select(x > 30.0, 0.0, slope), w * inverse)
