"""Kernel: builds one program from loops, masks and parallel regions over the vocabulary's values."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce as fold
from typing import Any

import llvmlite.ir as ir

from vlug.codegen.formula import OPERATORS, Formula, reckon
from vlug.codegen.isa import ISA
from vlug.codegen.types import (
    BODY,
    COMPUTE,
    F32,
    F64,
    I1,
    I8,
    I32,
    I64,
    MANGLED,
    PARALLEL_FOR,
    PROGRAM,
    PTR,
    VOID,
    const,
    elem,
    scalar,
    slot_bytes,
)
from vlug.codegen.values import Idx, Int, Lanes, Val, Var, combine, convert, from_sizes
from vlug.codegen.view import View

PAGE = 4096


class Kernel:
    """Builds `int32 f(void **tensors, const int64 *args, void *workspace, const Env *env)`.

    Loops and branches are Python generators and context managers, so a kernel is an ordinary function
    that uses `for` and `with`. Never `break` out of a loop of the vocabulary: it would be half emitted.
    """

    def __init__(self, isa: ISA, name: str = "f"):
        self.isa, self.V, self.name = isa, isa.lanes, name
        self.module = ir.Module(name)
        self.module.triple = isa.triple
        self.main = self.fn = ir.Function(self.module, PROGRAM, name)
        self.main_entry = self.entry = ir.IRBuilder(self.main.append_basic_block("entry"))
        self.b = ir.IRBuilder(self.main.append_basic_block("start"))
        self._live: list[weakref.ref[Var]] = []
        self._cache: dict[Any, Any] = {}
        self._cache_block: Any = None
        self._captured: dict[int, Any] = {}
        self._sizes: dict[str, Idx] = {}
        self._scalars: dict[str, Val] = {}
        self.arg_names: list[str] = []
        self.tensors = 0
        self.part: Idx | None = None  # the number of this part, inside a parallel region
        self.shared_bytes: Formula = (0,)  # workspace used by all parts
        self.part_bytes: Formula = (0,)  # workspace of each part: the most that a region takes
        self._region_bytes: Int = 0
        self.streamed = False
        self._broken = ""
        self._error_slot: Any = None
        self._slots: dict[str, Any] = {}

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
        q = self.op("sdiv", self.raw(a), self.raw(b))
        r = self.op("sub", self.raw(a), self.op("mul", q, self.raw(b)))
        less = self.op("zext", self.op("icmp_signed", "<", r, I64(0)), I64)
        return Idx(self, self.op("sub", q, less))

    def is_multiple(self, n: Int, m: Int) -> bool:
        """Whether n is known to be a multiple of m."""
        if not isinstance(m, int):
            return False
        return n % m == 0 if isinstance(n, int) else n.multiple % m == 0 and n.off % m == 0

    # --- control flow; variables alive at a loop's start are carried by it ---
    def _vars(self) -> list[Var]:
        live = [v for r in self._live if (v := r()) is not None]
        self._live = [weakref.ref(v) for v in live]
        return live

    def _phis(self, vs: list[Any], block: Any) -> list[Any]:
        out = [self.b.phi(v.type) for v in vs]
        for phi, v in zip(out, vs):
            phi.add_incoming(self.use(v), block)
        return out

    def _merge(self, live: list[Var], before: list[list[Any]], pre: Any, cur: Any) -> None:
        for x, old in zip(live, before):
            new = x.v
            if new is not old:
                x.v = self._phis(old, pre)
                for phi, v in zip(x.v, new):
                    phi.add_incoming(self.use(v), cur)

    def loop(self, lo: Int, hi: Int, step: Int = 1) -> Iterator[Int]:
        """A loop, tested at its end (and before, where it may be empty)."""
        known = isinstance(lo, int) and isinstance(hi, int)
        if known and isinstance(step, int) and lo + step >= hi:
            if lo < hi:
                yield lo
            return
        b, live = self.b, self._vars()
        lo_v, hi_v = self.raw(lo), self.raw(hi)
        lo_v, hi_v, pre, before = self.use(lo_v), self.use(hi_v), b.block, [x.v for x in live]
        body, end = self.fn.append_basic_block("loop"), self.fn.append_basic_block("end")
        if known:
            b.branch(body)
        else:
            b.cbranch(b.icmp_signed("<", lo_v, hi_v), body, end)
        b.position_at_end(body)
        i = b.phi(I64)
        i.add_incoming(lo_v, pre)
        for x in live:
            x.v = self._phis(x.v, pre)
        carried = [x.v for x in live]
        multiple = step if isinstance(step, int) and self.is_multiple(lo, step) else 1
        done = False
        try:
            yield Idx(self, i, 0, multiple)
            done = True
        finally:
            if not done:
                self._broken = "a loop of the kernel was left by break, return or an exception"
        n, cur = b.add(i, self.use(self.raw(step)), flags=("nsw",)), b.block
        i.add_incoming(n, cur)
        for x, phis in zip(live, carried):
            for phi, v in zip(phis, x.v):
                phi.add_incoming(self.use(v), cur)
        b.cbranch(b.icmp_signed("<", n, hi_v), body, end)
        b.position_at_end(end)
        if not known:
            self._merge(live, before, pre, cur)
        self._live = [weakref.ref(x) for x in live]

    def range(self, lo: Int, hi: Int | None = None, step: Int = 1, unroll: int = 1) -> Iterator[Int]:
        """A loop; with unroll the body is emitted that often, and the rest follows one at a time."""
        lo, hi = (0, lo) if hi is None else (lo, hi)
        if unroll == 1:
            yield from self.loop(lo, hi, step)
            return
        mid = lo + (hi - lo) // (step * unroll) * (step * unroll)
        for i in self.loop(lo, mid, step * unroll):
            for u in range(unroll):
                yield i + step * u
        if not self.is_multiple(hi - lo, step * unroll):
            yield from self.loop(mid, hi, step)

    def vectors(self, lo: Int, hi: Int | None = None, *, by: int = 1, tail: str = "loop") -> Iterator[Lanes]:
        """Vector positions over [lo, hi), `by` vectors at a time. The rest comes masked:
        tail="loop" one vector at a time, "switch" one body for each number of vectors left."""
        if tail not in ("loop", "switch"):
            raise ValueError(f'tail={tail!r}: "loop" or "switch"')
        lo, hi = (0, lo) if hi is None else (lo, hi)
        V, group = self.V, self.V * by
        n = hi - lo
        mid = lo + n // group * group
        for i in self.loop(lo, mid, group):
            yield Lanes(self, i, [None] * by)
        if isinstance(n, int):
            whole, rem = n % group // V, n % V
            if whole or rem:
                yield Lanes(self, mid, [None] * whole + ([self.mask(rem)] if rem else []))
        elif self.is_multiple(n, group):
            return
        elif tail == "loop":
            for i in self.loop(mid, hi, V):
                yield Lanes(self, i, [None if self.is_multiple(n, V) else self.mask(hi - i)])
        else:
            left, exact = hi - mid, self.is_multiple(n, V)
            count = (left + (V - 1)) // V
            for u in range(1, by + (not exact)):
                with self.when(self.compare("==", count, u)):
                    yield Lanes(
                        self, mid, [None] * (u - 1) + [None if exact else self.mask(left - (u - 1) * V)]
                    )

    @contextmanager
    def when(self, cond: Val | bool, sense: bool = True) -> Iterator[None]:
        """What stands inside runs where the condition holds. A known False emits nothing that runs."""
        b, live = self.b, self._vars()
        before, pre = [x.v for x in live], b.block
        if isinstance(cond, bool):
            if cond is sense:
                yield
                return
            b.position_at_end(self.fn.append_basic_block("never"))
            yield
            b.unreachable()
            b.position_at_end(pre)
            for x, v in zip(live, before):
                x.v = v
            self._live = [weakref.ref(x) for x in live]
            return
        then, end = self.fn.append_basic_block("then"), self.fn.append_basic_block("end")
        b.cbranch(self.use(cond.v[0]), *((then, end) if sense else (end, then)))
        b.position_at_end(then)
        yield
        cur = b.block
        b.branch(end)
        b.position_at_end(end)
        self._merge(live, before, pre, cur)
        self._live = [weakref.ref(x) for x in live]

    def unless(self, cond: Val | bool) -> Any:
        """What stands inside runs where the condition does not hold."""
        return self.when(cond, sense=False)

    def either(self, cond: Val | bool) -> Iterator[bool]:
        """Both branches: yields True, then False; `for yes in k.either(c): if yes: … else: …`."""
        with self.when(cond):
            yield True
        with self.unless(cond):
            yield False

    # --- parallel regions ---
    def chunk(self, n: Int) -> Iterator[tuple[Idx, Idx]]:
        """A parallel region: its body runs in every part with a range (begin, end) of the n units."""
        if self.fn is not self.main:
            raise RuntimeError("parallel regions do not nest")
        outer = self.entry, self.b, self._live
        fn = ir.Function(self.module, BODY, f"{self.name}.body{len(self.module.functions)}")
        fn.linkage = "internal"
        self.fn, self._captured, self._live, self.part = fn, {}, [], Idx(self, fn.args[1])
        self._region_bytes, streamed, self.streamed = 0, self.streamed, False
        self.entry = ir.IRBuilder(fn.append_basic_block("entry"))
        self.b = ir.IRBuilder(fn.append_basic_block("start"))
        yield Idx(self, fn.args[2]), Idx(self, fn.args[3])
        if self.streamed:
            self.intrinsic("llvm.x86.sse.sfence", VOID, [], [])
        self.streamed = streamed
        self.b.ret_void()
        self.entry.branch(fn.blocks[1])
        captured, self._captured = self._captured, {}
        self.fn, self.part = self.main, None
        self.entry, self.b, self._live = outer
        self.part_bytes = (*self.part_bytes, *from_sizes(self._region_bytes), "max")
        size = sum(slot_bytes(v.type) for v, _ in captured.values())
        ctx = self.main_entry.alloca(ir.ArrayType(I8, max(8, size)))
        ctx.align, ctx.type = 64, PTR  # llvmlite still gives alloca a typed pointer
        offset = 0
        for v, _ in captured.values():
            self.b.store(v, self.b.gep(ctx, [I64(offset)], source_etype=I8), align=8)
            offset += slot_bytes(v.type)
        env = self.main.args[3]
        callee = self.b.load(env, typ=PARALLEL_FOR.as_pointer())
        body = self.b.bitcast(fn, PTR)
        self.b.call(callee, [env, body, ctx, self.raw(n)])
        if self._error_slot is not None:
            code = self.b.load(self._error_slot, typ=I32)
            self._return_if(self.b.icmp_signed("!=", code, I32(0)), code)

    def parallel(self, n: Int) -> Iterator[Int]:
        """A parallel loop over n units."""
        for begin, end in self.chunk(n):
            yield from self.loop(begin, end)

    def blocks(self, n: Int, size: Int, lo: Int = 0) -> Iterator[tuple[Int, Int]]:
        """[begin, end) pieces of [lo, n)."""
        for i in self.loop(lo, n, size):
            yield i, i + size if self.is_multiple(n - lo, size) else self.min(i + size, n)

    # --- errors ---
    def _return_if(self, cond: Any, code: Any) -> None:
        b = self.b
        fail, on = self.fn.append_basic_block("fail"), self.fn.append_basic_block("on")
        b.cbranch(cond, fail, on)
        b.position_at_end(fail)
        if self.fn is self.main:
            b.ret(code)
        else:
            b.store(code, self.use(self._error_slot), align=4)
            b.ret_void()
        b.position_at_end(on)

    def error_if(self, cond: Val | bool, code: int) -> None:
        """Leave the program with a non-zero code (this part of a region; the program after the region)."""
        if code == 0:
            raise ValueError("code 0 means success")
        if self._error_slot is None:
            slot = self.main_entry.alloca(I32)
            slot.type = PTR
            self.main_entry.store(I32(0), slot, align=4)
            self._error_slot = slot
        self._return_if(self.use(self.condition(cond).v[0]), I32(code))

    # --- the program's surroundings ---
    def _arg(self, name: str, t: Any) -> Any:
        e = self.main_entry
        p = e.gep(self.main.args[1], [I64(len(self.arg_names))], source_etype=I64)
        self.arg_names.append(name)
        return e.load(p, typ=t)

    def size(self, name: str, value: int | None = None, multiple: int = 1) -> Any:
        """A size: the value itself if given, else the next of args; `multiple` promises a divisor."""
        if value is not None:
            return value
        if name not in self._sizes:
            v, f = self._arg(name, I64), (name,)
            if multiple > 1:
                v = self.main_entry.mul(
                    self.main_entry.udiv(v, I64(multiple)), I64(multiple), flags=("nsw", "nuw")
                )
            self._sizes[name] = Idx(self, v, 0, multiple, f)
        return self._sizes[name]

    def scalar(self, name: str, dtype: str = "f32") -> Val:
        """A floating-point scalar from args, which hold the bits of a double."""
        if name not in self._scalars:
            v = self._arg(name, F64)
            self._scalars[name] = Val(self, [self.main_entry.fptrunc(v, F32) if dtype == "f32" else v])
        return self._scalars[name]

    def view(
        self, *dims: Int, strides: Sequence[Int] | None = None, dtype: Any = "f32", at: int | None = None
    ) -> View:
        """The next of the call's tensors, or number `at`."""
        at = self.tensors if at is None else at
        self.tensors = max(self.tensors, at + 1)
        e = self.main_entry
        p = e.load(e.gep(self.main.args[0], [I64(at)], source_etype=PTR), typ=PTR)
        return View(self, p, dims, strides, dtype)

    def _slot(self, name: str) -> Any:
        if name not in self._slots:
            slot = self.main_entry.alloca(I64)
            slot.type = PTR
            self._slots[name] = slot
        return self._slots[name]

    def _bytes(self, dims: Sequence[Int], dtype: Any) -> Int:
        n: Int = 1
        for d in dims:
            n = d * n if isinstance(d, Idx) else n * d
        return (n * elem(dtype).bytes + 127) // 64 * 64

    def scratch(
        self, *dims: Int, strides: Sequence[Int] | None = None, dtype: Any = "f32", size: Int | None = None
    ) -> View:
        """This part's own piece of the workspace: `size` elements, or the product of dims.

        Dims may be run-time sizes (computed from `Kernel.size`). Contents at first are arbitrary.
        """
        if self.part is None:
            raise RuntimeError("scratch belongs to a parallel region; outside of one use Kernel.shared")
        at = self._region_bytes
        self._region_bytes = at + self._bytes(dims if size is None else [size], dtype)
        from_sizes(self._region_bytes)
        per = Idx(self, self.b.load(self.use(self._slot("part")), typ=I64))
        start = Idx(self, self.b.load(self.use(self._slot("shared")), typ=I64))
        offset = start + self.part * per + at
        return View(self, self.gep(self.main.args[2], offset, I8), dims, strides, dtype)

    def shared(
        self, *dims: Int, strides: Sequence[Int] | None = None, dtype: Any = "f32", size: Int | None = None
    ) -> View:
        """A piece of the workspace that all parts see; ask for it outside parallel regions."""
        if self.fn is not self.main:
            raise RuntimeError("shared workspace is asked for outside parallel regions")
        at = self._reckon(self.shared_bytes)
        room = self._bytes(dims if size is None else [size], dtype)
        self.shared_bytes = (*self.shared_bytes, *from_sizes(room), "+")
        return View(self, self.gep(self.main.args[2], at, I8), dims, strides, dtype)

    def _reckon(self, f: Formula) -> Int:
        """The integer that a formula stands for, emitted where the kernel is now."""
        n: Int = reckon(f, self.size, {**OPERATORS, "min": self.min, "max": self.max})
        return n

    def finish(self) -> Kernel:
        """Close the program; it can then be compiled."""
        if self._broken:
            raise RuntimeError(self._broken)
        self.shared_bytes = (*self.shared_bytes, PAGE - 1, "+", PAGE, "//", PAGE, "*")
        # whole pages: a prefetcher must not reach the next part's
        self.part_bytes = (*self.part_bytes, PAGE - 1, "+", PAGE, "//", PAGE, "*")
        outer, self.b = self.b, self.main_entry
        for name, f in (("shared", self.shared_bytes), ("part", self.part_bytes)):
            if name in self._slots:
                self.main_entry.store(self.raw(self._reckon(f)), self._slots[name], align=8)
        self.b = outer
        self.b.ret(I32(0))
        self.main_entry.branch(self.main.blocks[1])
        return self
