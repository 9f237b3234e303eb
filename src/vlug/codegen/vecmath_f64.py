"""Elementary functions of f64 values, each with its largest error in ulp over dense sweeps (tests).

Polynomials interpolate the expression named beside them at Chebyshev nodes (computed with 80 digits), which
is within a factor of two of minimax. Speed is no aim here; nothing is looked up in tables but 2/π.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from vlug.codegen.trigonometry import quarter_turns
from vlug.codegen.types import F64, const
from vlug.codegen.values import (
    Val,
    absolute,
    copysign,
    floor,
    fma,
    maximum,
    minimum,
    round_even,
    select,
)

if TYPE_CHECKING:
    from vlug.codegen.flow import Flow

__all__ = ["cos", "erf", "exp", "expm1", "fmod", "log", "normal", "pow", "power", "sin", "tan", "tanh"]

_INF, _NAN = float("inf"), float("nan")
_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42fefa3800p-1"), float.fromhex("0x1.ef35793c76730p-45")
_TURNS = 6755399441055744.0  # 1.5 · 2^52: adding it rounds to an integer, which stands in the low bits
_ONE = 0x3FF0000000000000

# (e^r - 1 - r) / r² on |r| ≤ ln 2 / 2
_EXP = (2.091475532527879e-09, 2.5105312729622103e-08, 2.7557273478720615e-07, 2.755725517000089e-06,
        2.480158732567746e-05, 0.0001984126987500228, 0.0013888888888883711, 0.008333333333326084,
        0.04166666666666667, 0.1666666666666667, 0.5)
# (log((1+s)/(1-s))/s - 2) / s² in s² on |s| ≤ (√2-1)/(√2+1)
_LOG = (0.13088034850927555, 0.13268638369266825, 0.15386244737621665, 0.18181795547521137,
        0.22222222392581045, 0.28571428570799784, 0.40000000000000885, 0.6666666666666666)
# the same, less 2/3, over s²
_LOG4 = (0.11724327060846747, 0.11706126464563398, 0.1333480879881234, 0.1538459488700718,
         0.18181818336099848, 0.22222222221652765, 0.2857142857142937, 0.4)
_TWO_THIRDS_LOW = float.fromhex("0x1.5555555555555p-55")
# erf(x)/x - 1 in x² on x² ≤ 0.87
_ERF = (-4.4903786663998574e-12, 8.860630863760262e-11, -1.220373810573476e-09, 1.4798296290939176e-08,
        -1.6365214090440942e-07, 1.6462082874289147e-06, -1.4925649247835285e-05, 0.0001205533295445298,
        -0.0008548327022993616, 0.005223977625437229, -0.02686617064513093, 0.11283791670955125,
        -0.37612638903183754, 0.1283791670955126)
# e^(t²) erfc(t) in (t-2)/(t+2) on 0.9 ≤ t ≤ 6.2
_ERFC = (-1.951806996766004e-08, 8.558291752995378e-08, 9.086447604921725e-08, -1.4998373460298864e-07,
         -5.085042159688541e-07, -4.0906501947158753e-07, 1.193934588857612e-06, 3.7490498362654724e-06,
         1.3935793091491073e-06, -1.3961428425372468e-05, -2.7580426797853712e-05, 2.7524858150402097e-05,
         0.00017436123098428744, 4.3555636241445514e-05, -0.0009819770300633032, -0.0008471432519787948,
         0.006997461739289784, 0.0037328924043446153, -0.07897858101573309, 0.24165819424246635,
         -0.4271858474139584, 0.25539567631050575)
# (sin(r)/r - 1) / r² and (cos(r) - 1 + r²/2) / r⁴ in r² on |r| ≤ π/4
_SIN = (-7.586576588171073e-13, 1.6058529572267877e-10, -2.5052106219521895e-08, 2.755731921930192e-06,
        -0.00019841269841265017, 0.008333333333333331, -0.16666666666666666)
_COS = (4.745804889760674e-14, -1.1470459749675607e-11, 2.087675578389404e-09, -2.7557319221382114e-07,
        2.4801587301584618e-05, -0.0013888888888888887, 0.041666666666666664)


def _horner(x: Val, c: tuple[float, ...]) -> Val:
    p = fma(x, c[0], c[1])
    for a in c[2:]:
        p = fma(p, x, a)
    return p


def _power_of_two(n: Val) -> Val:
    """2^n of a whole n from -1022 to 1023."""
    return (((n + _TURNS).bits("i64") << 52) + _ONE).bits("f64")


def _reduced(x: Val) -> tuple[Val, Val]:
    """(n, r): x = n ln 2 + r."""
    n = round_even(x * 1.4426950408889634)
    return n, fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))


def exp(x: Val) -> Val:
    """e^x, within 1 ulp."""
    over, under = x > 709.782712893384, x < -745.2
    n, r = _reduced(minimum(maximum(x, -746.0), 710.0))
    y = fma(r * r, _horner(r, _EXP), r) + 1.0
    half = round_even(n * 0.5)
    y = y * _power_of_two(half) * _power_of_two(n - half)
    return select(over, _INF, select(under, 0.0, y))


def expm1(x: Val) -> Val:
    """e^x - 1, within 2 ulp."""
    n, r = _reduced(minimum(maximum(x, -50.0), 709.9))
    p = fma(r * r, _horner(r, _EXP), r)
    scale = _power_of_two(n - 1.0)  # so that 2^1024 may be reached
    y = fma(p, scale, scale - 0.5)
    return select(n.eq(0.0), p, y + y)


def _split(x: Val) -> tuple[Val, Val]:
    """(n, f): x = 2^n (1 + f), 1/√2 ≤ 1 + f ≤ √2, of positive finite x."""
    tiny = x < 2.2250738585072014e-308
    bits = select(tiny, x * 18014398509481984.0, x).bits("i64")
    e = bits - 0x3FE6A09E667F3BCD
    n = e.k.zip(lambda a: e.k.op("ashr", a, const(a.type, 52)), e)
    f = (bits - (n << 52)).bits("f64") - 1.0
    # a small integer in the low bits of 1.5 · 2^52
    whole = (n + 0x4338000000000000).bits("f64") - _TURNS
    return select(tiny, whole - 54.0, whole), f


def _log_edges(x: Val, y: Val) -> Val:
    y = select(x < _INF, y, x)  # inf and NaN stay
    return select(x < 0.0, _NAN, select(x.eq(0.0), -_INF, y))


def log(x: Val) -> Val:
    """Natural logarithm, within 1 ulp; -inf of 0, NaN below.

    log(1 + f) = f - s (f - R), s = f / (2 + f), R = s² (2/3 + …).
    """
    n, f = _split(x)
    s = f / (f + 2.0)
    z = s * s
    y = fma(n, _LN2_LOW, -(s * fma(-z, _horner(z, _LOG), f)))
    return _log_edges(x, fma(n, _LN2_HIGH, f + y))


def _two_sum(a: Val | float, b: Val) -> tuple[Val, Val]:
    """a + b and what rounding lost; |a| ≥ |b|."""
    s = b + a
    return s, b - (s - a)


def _two_product(a: Val, b: Val) -> tuple[Val, Val]:
    p = a * b
    return p, fma(a, b, -p)


def _log_pair(x: Val) -> tuple[Val, Val]:
    """log x of positive finite x as a sum of two numbers, to about 2^-65."""
    n, f = _split(x)
    d, d_low = _two_sum(2.0, f)
    s = f / d
    s_low = (fma(-s, d, f) - s * d_low) / d
    z, z_low = _two_product(s, s)
    z_low = fma(s + s, s_low, z_low)
    # log(1 + f) = 2s + s z (2/3 + z (…))
    c = z * _horner(z, _LOG4)
    t, t_low = _two_sum(2 / 3, c)
    t_low = t_low + _TWO_THIRDS_LOW
    u, u_low = _two_product(s, z)
    u_low = u_low + fma(s, z_low, s_low * z)
    v, v_low = _two_product(u, t)
    v_low = v_low + fma(u, t_low, u_low * t)
    high, low = _two_sum(s + s, v)
    low = low + (v_low + (s_low + s_low))
    whole = n * _LN2_HIGH  # exact: the constant has 42 bits
    top, rest = _two_sum(whole, high)
    zero = n.eq(0.0)
    top, rest = select(zero, high, top), select(zero, 0.0, rest)
    return top, rest + fma(n, _LN2_LOW, low)


def power(x: Val, y: Val, exact: bool = True) -> Val:
    """x ^ y as C's pow: within 2 ulp, or, not exact, with the error of y · log x in f64."""
    a = absolute(x)
    plain = y * log(a)
    if exact:
        high, low = _log_pair(a)
        p, p_low = _two_product(y, high)
        p_low = fma(y, low, p_low)
        usual = absolute(plain) < 800.0
        e = exp(select(usual, p, plain))
        r = select(usual & (e < _INF) & (a > 0.0), fma(e, select(usual, p_low, 0.0), e), e)
    else:
        r = exp(plain)
    r = select(y.eq(0.0) | a.eq(1.0), 1.0, r)
    half = y * 0.5
    whole = floor(y).eq(y)
    odd = whole & floor(half).ne(half)
    negative = x.bits("i64").k.zip(
        lambda v: x.k.op("icmp_signed", "<", v, const(v.type, 0)), x.bits("i64")
    )
    r = select(negative & odd, -r, r)
    r = select((x < 0.0) & (x > -_INF) & ~whole, _NAN, r)
    one = x.eq(1.0) | y.eq(0.0)
    return select(one, 1.0, select(x.isnan() | y.isnan(), _NAN, r))


def pow(x: Val, y: Val) -> Val:
    """x ^ y as C's pow, within 2 ulp."""
    return power(x, y)


def tanh(x: Val) -> Val:
    """Hyperbolic tangent, within 3 ulp: -t / (t + 2), t = e^(-2|x|) - 1."""
    a = absolute(x)
    t = expm1(a * -2.0)
    return copysign(-t / (t + 2.0), x)


def erf(x: Val) -> Val:
    """Error function, within 2 ulp."""
    a, s = absolute(x), x * x
    small = fma(x, _horner(s, _ERF), x)
    t = minimum(a, 6.2)  # 1 from there on; NaN stays
    large = 1.0 - exp(-(t * t)) * _horner((t - 2.0) / (t + 2.0), _ERFC)
    return copysign(select(a < 0.93, small, large), x)


def normal(x: Val) -> tuple[Val, Val]:
    """(Φ(x), e^(-x²/2)): the normal distribution, within 3 ulp of 1, and its density but for 1/√(2π)."""
    return fma(erf(x * 0.7071067811865476), 0.5, 0.5), exp(x * x * -0.5)


def _sin_cos(r: Val) -> tuple[Val, Val]:
    s = r * r
    return fma(r * s, _horner(s, _SIN), r), fma(s * s, _horner(s, _COS), fma(s, -0.5, 1.0))


def _odd(q: Val) -> Val:
    return (q & 1).ne(0)


def _negated(q: Val, bit: int, y: Val) -> Val:
    return (y.bits("i64") ^ ((q >> bit) << 63)).bits("f64")


def sin(x: Val) -> Val:
    """Sine, within 1.5 ulp for every number."""
    q, r = quarter_turns(x)
    s, c = _sin_cos(r)
    return _negated(q, 1, select(_odd(q), c, s))


def cos(x: Val) -> Val:
    """Cosine, within 1.5 ulp for every number."""
    q, r = quarter_turns(x)
    s, c = _sin_cos(r)
    return _negated(q + 1, 1, select(_odd(q), s, c))


def tan(x: Val) -> Val:
    """Tangent, within 3 ulp for every number."""
    q, r = quarter_turns(x)
    s, c = _sin_cos(r)
    odd = _odd(q)
    return _negated(q, 0, select(odd, c, s) / select(odd, s, c))


def fmod(x: Val, y: Val) -> Val:
    """x - y · trunc(x / y), exactly (f32 or f64): the sign of x; NaN where y is 0, x infinite or either NaN.

    The quotient is taken a mantissa's worth of bits at a time, from the top; each partial remainder is exact.
    Denormals count by their highest bit, else a step's quotient had more bits than a mantissa.
    """
    k, double = cast("Flow", x.k), x.type is F64
    kind, mantissa = ("i64", 52) if double else ("i32", 23)
    bias, step = (1023, 45) if double else (127, 18)
    normal = 2.0 ** (1 - bias)
    usual = (absolute(x) < _INF) & (absolute(y) > 0.0)
    bounded = usual & (absolute(y) < _INF)
    a = select(bounded, absolute(x), 0.0)
    b = select(bounded, absolute(y), 1.0)

    def exponent(v: Val) -> Val:
        """Of v ≥ 0, from 0 for the least denormal on."""
        above = v.bits(kind) + (mantissa << mantissa)
        return select(v < normal, (v * 2.0**mantissa).bits(kind), above) >> mantissa

    def two_to(n: Val) -> Val:
        return ((n + bias) << mantissa).bits("f64" if double else "f32")

    least = exponent(b)
    spread = (exponent(a) - least).max().idx()
    trips = k.max(k.floor_div(spread, step - 1), 0) + 2
    r = k.var(a)
    for _ in k.range(trips):
        ahead = maximum(exponent(r) - least - step, 0)
        quarter = ahead >> 2
        scale = two_to(quarter)
        unit = b * scale * scale * scale * two_to(ahead - quarter * 3)
        rest = fma(-floor(r / unit), unit, r)
        rest = select(rest < 0.0, rest + unit, rest)
        r.set(select(rest >= unit, rest - unit, rest))
    out = copysign(select(bounded, r.get(), absolute(x)), x)
    return select(usual & y.eq(y), out, _NAN)
