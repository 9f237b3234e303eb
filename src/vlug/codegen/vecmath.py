"""Elementary functions over vector values, each with its largest error."""

from __future__ import annotations

from vlug.codegen.values import Val, fma, round_even, select


def exp(x: Val) -> Val:
    """e^x, at most 1.5 ulp over all floats: 0 from -inf, inf from +inf, NaN from NaN, gradual underflow.

    x = n ln 2 + r, |r| ≤ ln 2 / 2; p(r) of degree 6 (coefficients as in Cephes expf), scaled by 2^n in two
    steps so that results below 2^-126 round once and n = 128 does not overflow early.
    """
    over, under = x > 88.7228394, x < -104.0
    n = round_even(x * 1.44269504)
    r = fma(n, -0.693359375, x)
    r = fma(n, 2.12194440e-4, r)
    p = x.k.full(1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(p, r, c)
    y = fma(r * r, p, r) + 1.0
    i = select(over | under | x.isnan(), 0.0, n).to("i32")
    half = _ashr1(i)
    y = y * ((half + 127) << 23).bits("f32") * ((i - half + 127) << 23).bits("f32")
    result: Val = select(over, float("inf"), select(under, 0.0, y))
    return result


def _ashr1(i: Val) -> Val:
    k = i.k
    from vlug.codegen.types import const

    return k.zip(lambda a: k.op("ashr", a, const(a.type, 1)), i)


def sigmoid(x: Val) -> Val:
    """1 / (1 + e^-x)."""
    return 1.0 / (exp(-x) + 1.0)
