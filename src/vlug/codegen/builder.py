"""Builder: the function that is being built, its operands, and making values and conditions."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import reduce as fold
from typing import Any

import llvmlite.ir as ir

from vlug.codegen.isa import ISA
from vlug.codegen.types import (
    COMPUTE,
    F32,
    F64,
    I1,
    I8,
    I32,
    I64,
    MANGLED,
    PROGRAM,
    const,
    scalar,
    slot_bytes,
)
from vlug.codegen.values import Idx, Int, Lanes, Val, Var, combine, convert


class Builder:
    """What values and views need of a kernel: operands, constants, conditions."""

    def __init__(self, isa: ISA, name: str = "f"):
        self.isa, self.V, self.name = isa, isa.lanes, name
        self.module = ir.Module(name)
        self.module.triple = isa.triple
        self.main = self.fn = ir.Function(self.module, PROGRAM, name)
        self.main_entry = self.entry = ir.IRBuilder(self.main.append_basic_block("entry"))
        self.b = ir.IRBuilder(self.main.append_basic_block("start"))
        self.streamed = False  # whether stores went past the caches
        self._live: list[weakref.ref[Var]] = []
        self._broken = ""
        self._cache: dict[Any, Any] = {}
        self._cache_block: Any = None
        self._captured: dict[int, Any] = {}

    # --- operands: anything from outside a parallel body is captured through its context ---
    def use(self, v: Any) -> Any:
        """The LLVM value, as seen from the function that is being built."""
        if isinstance(v, ir.Instruction):
            owner = v.function
        elif isinstance(v, ir.Argument):
            owner = v.parent
        else:
            return v
        if owner is self.fn:
            return v
        if owner is not self.main:
            raise RuntimeError("a value made inside a parallel region was used outside of it")
        found = self._captured.get(id(v))
        if found is None:
            offset = sum(slot_bytes(c.type) for c, _ in self._captured.values())
            slot = self.entry.gep(self.fn.args[0], [I64(offset)], source_etype=I8)
            found = self._captured[id(v)] = (v, self.entry.load(slot, typ=v.type, align=8))
        return found[1]

    def op(self, name: str, *xs: Any, **kw: Any) -> Any:
        """One LLVM instruction."""
        return getattr(self.b, name)(*[self.use(x) if isinstance(x, ir.Value) else x for x in xs], **kw)

    def raw(self, i: Int) -> Any:
        return I64(i) if isinstance(i, int) else i.raw()

    def gep(self, p: Any, i: Int, t: Any) -> Any:
        """Address i elements of type t behind p; not `inbounds`: a masked or padded one may lie outside."""
        return (
            self.use(p) if isinstance(i, int) and i == 0 else self.op("gep", p, [self.raw(i)], source_etype=t)
        )

    def cached(self, key: Any) -> Any:
        if self._cache_block is not self.b.block:
            self._cache, self._cache_block = {}, self.b.block
        return self._cache.get(key, (None,))[0]

    def remember(self, key: Any, value: Any, keep: Any) -> None:
        """Keep an address for this block; `keep` holds what the key's ids stand for."""
        self._cache[key] = (value, keep)

    def intrinsic(self, name: str, ret: Any, args: Sequence[Any], overload: Sequence[Any]) -> Any:
        """A call of an LLVM intrinsic, its name completed by the overloaded types."""
        for t in overload:
            s = MANGLED[scalar(t)]
            name += f".v{t.count}{s}" if isinstance(t, ir.VectorType) else "." + s
        f = self.module.globals.get(name)
        if f is None:
            f = ir.Function(self.module, ir.FunctionType(ret, [a.type for a in args]), name)
        return self.b.call(f, [self.use(a) for a in args])

    # --- values ---
    def val(self, x: Any, like: Val | None = None, dtype: str = "f32") -> Val:
        """A bundle; a Python number takes the type of `like`, or `dtype`."""
        if isinstance(x, Val):
            return x
        t = like.v[0].type if like is not None else COMPUTE[dtype]
        if isinstance(x, Idx):
            if scalar(t) in (F32, F64) and like is not None:
                raise TypeError("an index beside floating-point values: use Kernel.to_float")
            s = scalar(t) if like is not None else I64
            return Val(self, [x.raw() if s is I64 else convert(self, x.raw(), s)])
        if isinstance(x, (int, float)):
            return Val(self, [const(t, x)])
        raise TypeError(f"{type(x).__name__} is no value of a kernel")

    def splat(self, x: Val) -> Val:
        """Scalars repeated in every lane."""
        if isinstance(x.v[0].type, ir.VectorType):
            return x
        t = ir.VectorType(x.v[0].type, self.V)
        zero = ir.Constant(ir.VectorType(I32, self.V), None)
        undef = ir.Constant(t, ir.Undefined)
        return Val(
            self,
            [
                ir.Constant(t, [c] * self.V)
                if isinstance(c, ir.Constant)
                else self.op("shuffle_vector", self.op("insert_element", undef, c, I32(0)), undef, zero)
                for c in x.v
            ],
        )

    def zip(self, f: Callable[..., Any], *xs: Any) -> Val:
        """f over the registers of all bundles; scalars become vectors, single registers repeat."""
        first = next(x for x in xs if isinstance(x, Val))
        vals = [x if isinstance(x, Val) else self.val(x, first) for x in xs]
        if any(isinstance(x.v[0].type, ir.VectorType) for x in vals):
            vals = [self.splat(x) for x in vals]
        n = max(len(x.v) for x in vals)
        if any(len(x.v) not in (1, n) for x in vals):
            raise ValueError(f"bundles of {[len(x.v) for x in vals]} registers do not go together")
        return Val(self, [f(*r) for r in zip(*(x.v * n if len(x.v) == 1 else x.v for x in vals))])

    def zeros(self, n: int = 1, dtype: str = "f32") -> Val:
        return Val(self, [const(ir.VectorType(COMPUTE[dtype], self.V), 0)] * n)

    def full(self, x: Any, n: int = 1, dtype: str = "f32") -> Val:
        """n vectors full of a number or scalar."""
        return Val(self, self.splat(self.val(x, dtype=dtype)).v * n)

    def var(self, x: Any, dtype: str = "f32") -> Var:
        """A variable: loops and branches carry it."""
        v = Var(self, self.val(x, dtype="i64" if isinstance(x, Idx) else dtype).v)
        self._live.append(weakref.ref(v))
        return v

    def pack(self, vals: Any) -> Val:
        """Several bundles as one."""
        return Val(self, [v for x in vals for v in x.v])

    def vector(self, at: Int = 0, n: int = 1) -> Lanes:
        """n whole vectors from position `at`."""
        return Lanes(self, at, [None] * n)

    def first(self, at: Int, count: Int) -> Lanes:
        """One vector from position `at`, its first `count` lanes."""
        return Lanes(self, at, [None if isinstance(count, int) and count >= self.V else self.mask(count)])

    def positions(self, p: Lanes, dtype: str = "i64") -> Val:
        """The positions that the lanes stand for, as integers."""
        t = ir.VectorType(COMPUTE[dtype], self.V)
        iota = Val(self, [ir.Constant(t, [t.element(j) for j in range(self.V)])])
        steps = iota if isinstance(p.step, int) and p.step == 1 else iota * self.to_int(p.step, dtype)
        return self.pack(
            steps + self.to_int(p.base + p.step * (u * self.V), dtype) for u in range(len(p.masks))
        )

    def to_float(self, n: Int, dtype: str = "f32") -> Val:
        t = COMPUTE[dtype]
        return Val(self, [const(t, n) if isinstance(n, int) else self.op("sitofp", n.raw(), t)])

    def to_int(self, n: Int, dtype: str = "i64") -> Val:
        t = COMPUTE[dtype]
        return Val(self, [const(t, n) if isinstance(n, int) else convert(self, n.raw(), t)])

    def valid(self, p: Lanes, x: Val, other: float = 0.0) -> Val:
        """x with `other` in the lanes that p leaves out (denormals there would cost 3 to 4 ×)."""
        xs = x.v * len(p.masks) if len(x.v) == 1 else x.v
        return Val(
            self,
            [v if m is None else self.op("select", m, v, const(v.type, other)) for m, v in zip(p.masks, xs)],
        )

    def tile(self, rows: int, p: Lanes) -> list[Var]:
        """Register tile: one variable of zeros a row, as wide as p."""
        return [self.var(self.zeros(len(p.masks))) for _ in range(rows)]

    def mask(self, n: Int) -> Any:
        """LLVM mask of the first n lanes; n may be known only at run time."""
        if isinstance(n, int):
            return ir.Constant(ir.VectorType(I1, self.V), [I1(int(j < n)) for j in range(self.V)])
        count = self.min(self.max(n, 0), self.V)
        assert isinstance(count, Idx)
        if self.isa.mask_registers:  # bits straight to a mask register: a vector of 0, 1, … would occupy one
            bits = self.op("xor", self.op("shl", I64(-1), count.raw()), I64(-1))
            return self.op("bitcast", self.op("trunc", bits, ir.IntType(self.V)), ir.VectorType(I1, self.V))
        iota = ir.Constant(ir.VectorType(I32, self.V), [I32(j) for j in range(self.V)])
        return self.op(
            "icmp_signed", "<", iota, self.splat(Val(self, [self.op("trunc", count.raw(), I32)])).v[0]
        )

    # --- integers and conditions ---
    def compare(self, how: str, a: Int, b: Int) -> Val | bool:
        """A condition; a Python bool where both are known."""
        if isinstance(a, int) and isinstance(b, int):
            return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "==": a == b, "!=": a != b}[how]
        return Val(self, [self.op("icmp_signed", how, self.raw(a), self.raw(b))])

    def condition(self, c: Val | bool) -> Val:
        return Val(self, [I1(int(c))]) if isinstance(c, bool) else c

    def all_zero(self, *xs: Int) -> Val | bool:
        """Whether every integer is zero: a Python bool where known, else a condition."""
        if any(isinstance(x, int) and x for x in xs):
            return False
        tests = [x.eq(0) for x in xs if not isinstance(x, int)]
        return fold(lambda a, b: a & b, tests) if tests else True

    def _choose(self, how: str, name: str, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b) if name == "min" else max(a, b)
        v = self.op("icmp_signed", how, self.raw(a), self.raw(b))
        return Idx(self, self.op("select", v, self.raw(a), self.raw(b)), formula=combine(name, a, b))

    def min(self, a: Int, b: Int) -> Int:
        return self._choose("<", "min", a, b)

    def max(self, a: Int, b: Int) -> Int:
        return self._choose(">", "max", a, b)

    def choose(self, cond: Val | bool, a: Int, b: Int) -> Int:
        """a where the condition holds, else b."""
        if isinstance(cond, bool):
            return a if cond else b
        return Idx(self, self.op("select", cond.v[0], self.raw(a), self.raw(b)))

    def ceil_div(self, a: Int, b: Int) -> Int:
        """ceil(a / b) of integers that are not negative."""
        return (a + b - 1) // b

    def floor_div(self, a: Int, b: Int) -> Int:
        """floor(a / b) of any a and positive b."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        if isinstance(b, int) and b == 1:
            return a
        if isinstance(b, int) and b & (b - 1) == 0:
            return Idx(self, self.op("ashr", self.raw(a), I64(b.bit_length() - 1)))
        by = I64(b) if isinstance(b, int) else b.divisor()
        q = self.op("sdiv", self.raw(a), by)
        r = self.op("sub", self.raw(a), self.op("mul", q, by))
        less = self.op("zext", self.op("icmp_signed", "<", r, I64(0)), I64)
        return Idx(self, self.op("sub", q, less))

    def is_multiple(self, n: Int, m: Int) -> bool:
        """Whether n is known to be a multiple of m."""
        if not isinstance(m, int):
            return False
        return n % m == 0 if isinstance(n, int) else n.multiple % m == 0 and n.off % m == 0
