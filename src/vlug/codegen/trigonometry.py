"""Angles as quarter turns and a rest: for every float, however large."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import llvmlite.ir as ir

from vlug.codegen.types import F64, I1, I64, const
from vlug.codegen.values import Val, absolute, fma, select

if TYPE_CHECKING:
    from vlug.codegen.flow import Flow

__all__ = ["quarter_turns"]

# π/2 as sums of f32 and of f64 numbers
_F32 = tuple(float.fromhex(h) for h in ("0x1.921fb6p+0", "-0x1.777a5cp-25", "-0x1.ee59dap-50"))
_F64 = tuple(
    float.fromhex(h) for h in ("0x1.921fb54442d18p+0", "0x1.1a62633145c07p-54", "-0x1.f1976b7ed8fbcp-110")
)
#: 2/π: 64 zero bits, then its bits behind the point.
_TWO_OVER_PI = (
    0x0000000000000000, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41,
    0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
    0xF0CFBC209AF4361D,
)  # fmt: skip
I128 = ir.IntType(128)


def quarter_turns(x: Val) -> tuple[Val, Val]:
    """(q, r): x = (q + 4 n) π/2 + r with |r| ≤ π/4 (a little more by rounding); NaN of infinities.

    q is an integer of x's width of which the two low bits count. Up to a bound by three multiply-adds; lanes
    beyond it are reduced again with more bits, on a branch that no lane takes as a rule.
    """
    k, double = cast("Flow", x.k), x.type is F64
    parts, turns, bound = (_F64, 6755399441055744.0, 2.0**30) if double else (_F32, 12582912.0, 1e4)
    t = fma(x, 0.6366197723675814, turns)
    n = t - turns
    r = x
    for p in parts:
        r = fma(n, -p, r)
    far = ~(absolute(x) <= bound) & ~x.isnan()
    q_out, r_out = k.var(t.bits("i64" if double else "i32")), k.var(r)
    with k.when(far.any()):
        if double:
            q_far, r_far = _far(x)
        else:
            q_far, r_far = quarter_turns(x.to("f64"))
            q_far, r_far = q_far.to("i32"), r_far.to("f32")
        q_out.set(select(far, q_far, q_out.get()))
        r_out.set(select(far, r_far, r_out.get()))
    return q_out.get(), r_out.get()


def _far(x: Val) -> tuple[Val, Val]:
    """As quarter_turns, of f64 values beyond 2^30, one after the other."""
    k = cast("Flow", x.k)
    qs, rs = [], []
    for v in x.v:
        if not isinstance(v.type, ir.VectorType):
            q, r = _far_one(k, v)
            qs.append(q)
            rs.append(r)
            continue
        q_all = k.var(Val(k, [const(ir.VectorType(I64, v.type.count), 0)]))
        r_all = k.var(Val(k, [const(v.type, 0)]))
        for i in k.range(v.type.count):
            at = k.raw(i)
            q, r = _far_one(k, k.op("extract_element", v, at))
            q_all.set(Val(k, [k.op("insert_element", q_all.v[0], q, at)]))
            r_all.set(Val(k, [k.op("insert_element", r_all.v[0], r, at)]))
        qs += q_all.get().v
        rs += r_all.get().v
    return Val(k, qs), Val(k, rs)


def _far_one(k: Any, x: Any) -> tuple[Any, Any]:
    """One f64 number of 2^30 or more: x = m 2^s, and m · (2/π · 2^s mod 4) with 126 bits behind the point."""

    def wide(v: Any) -> Any:
        return k.op("zext", v, I128)

    def big(n: int) -> Any:
        return I128(n)

    bits = k.op("bitcast", x, I64)
    exponent = k.op("and_", k.op("lshr", bits, I64(52)), I64(2047))
    m = k.op("or_", k.op("and_", bits, I64((1 << 52) - 1)), I64(1 << 52))
    # the integer part mod 4 begins 2 bits before bit s of 2/π; numbers below 2^30 read the table's start
    place = k.op("sub", exponent, I64(1075 + 2 - 64))
    place = k.op("select", k.op("icmp_signed", "<", place, I64(0)), I64(0), place)
    word, shift = k.op("lshr", place, I64(6)), k.op("and_", place, I64(63))
    table = _table(k)

    def load(i: int) -> Any:
        p = k.op("gep", table, [k.op("add", word, I64(i))], source_etype=I64)
        return k.b.load(p, typ=I64, align=8)

    words = [load(i) for i in range(4)]
    windows = []
    for high, low in pairwise(words):
        both = k.op("or_", k.op("shl", wide(high), big(64)), wide(low))
        both = k.op("shl", both, wide(shift))
        windows.append(wide(k.op("trunc", k.op("lshr", both, big(64)), I64)))
    factor = wide(m)
    first, second, third = (k.op("mul", factor, w) for w in windows)
    total = k.op("add", k.op("shl", first, big(64)), k.op("add", second, k.op("lshr", third, big(64))))
    q = k.op("trunc", k.op("lshr", k.op("add", total, big(1 << 125)), big(126)), I64)
    rest = k.op("shl", total, big(2))  # a signed fraction of a quarter turn
    below = k.op("icmp_signed", "<", rest, big(0))
    size = k.op("select", below, k.op("sub", big(0), rest), rest)
    zeros = k.b.call(_function(k, "llvm.ctlz.i128", I128, [I128, I1]), [size, I1(0)])
    top = k.op("trunc", k.op("lshr", k.op("shl", size, k.op("and_", zeros, big(127))), big(64)), I64)
    # top · 2^-(64 + zeros), top having its highest bit set
    scale = k.op("sub", I64(1023 - 64), k.op("trunc", zeros, I64))
    two = k.op("bitcast", k.op("shl", scale, I64(52)), F64)
    r = k.op("fmul", k.op("fmul", k.op("uitofp", top, F64), two), F64(1.5707963267948966))
    negative = k.op("icmp_signed", "<", bits, I64(0))
    flip = k.op("xor", below, negative)
    r = k.op("select", flip, k.op("fneg", r), r)
    q = k.op("select", negative, k.op("sub", I64(0), q), q)
    r = k.op("select", k.op("icmp_signed", "==", exponent, I64(2047)), F64(float("nan")), r)
    return q, r


def _function(k: Any, name: str, ret: Any, args: list[Any]) -> Any:
    found = k.module.globals.get(name)
    return ir.Function(k.module, ir.FunctionType(ret, args), name) if found is None else found


def _table(k: Any) -> Any:
    name = "two_over_pi"
    found = k.module.globals.get(name)
    if found is None:
        words = ir.Constant(ir.ArrayType(I64, len(_TWO_OVER_PI)), [I64(w) for w in _TWO_OVER_PI])
        found = ir.GlobalVariable(k.module, words.type, name)
        found.initializer, found.global_constant, found.linkage, found.align = words, True, "internal", 64
    return found
