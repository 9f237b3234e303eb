"""Values of the vocabulary: integers (Idx), vector positions (Lanes), bundles of registers (Val, Var)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Union

import llvmlite.ir as ir

from vlug.codegen.formula import Formula
from vlug.codegen.types import COMPUTE, F32, I1, I32, I64, const, is_float, like, scalar

if TYPE_CHECKING:
    from vlug.codegen.builder import Builder

#: An integer: what is known stays a Python int and folds.
Int = Union[int, "Idx"]


def formula(x: Int) -> Formula | None:
    """The formula of an integer, None where it does not follow from sizes alone."""
    return (x,) if isinstance(x, int) else x.formula


def combine(op: str, a: Int, b: Int) -> Formula | None:
    return joined(formula(a), formula(b), op)


def joined(a: Formula | None, b: Formula | None, op: str) -> Formula | None:
    return None if a is None or b is None else (*a, *b, op)


class Idx:
    """An integer known at run time: an i64 plus a Python constant, which becomes an address displacement.

    `//` and `%` are for operands that are not negative; `Kernel.floor_div` takes any. A divisor of 0 (an
    empty tensor's size) counts as 1: a trap would end the process.
    """

    __slots__ = ("base_formula", "k", "multiple", "off", "v")

    def __init__(self, k: Builder, v: Any, off: int = 0, multiple: int = 1, formula: Formula | None = None):
        self.k, self.v, self.off, self.multiple = k, v, off, multiple  # v is a multiple of `multiple`
        self.base_formula = formula  # of v, without off

    @property
    def formula(self) -> Formula | None:
        f = self.base_formula
        return f if f is None or self.off == 0 else (*f, self.off, "+")

    def raw(self) -> Any:
        return self.k.op("add", self.v, I64(self.off), flags=("nsw",)) if self.off else self.k.use(self.v)

    def _new(self, name: str, sign: str, o: Int, **kw: Any) -> Idx:
        return Idx(self.k, self.k.op(name, self.raw(), self.k.raw(o), **kw), formula=combine(sign, self, o))

    def __add__(self, o: Any) -> Any:
        if isinstance(o, int):
            return Idx(self.k, self.v, self.off + o, self.multiple, self.base_formula)
        if not isinstance(o, Idx):
            return NotImplemented
        f = joined(self.base_formula, o.base_formula, "+")
        return Idx(self.k, self.k.op("add", self.v, o.v, flags=("nsw",)), self.off + o.off, formula=f)

    def __sub__(self, o: Int) -> Int:
        if isinstance(o, int):
            return self + -o  # type: ignore[no-any-return]
        if o.v is self.v:
            return self.off - o.off
        f = joined(self.base_formula, o.base_formula, "-")
        return Idx(self.k, self.k.op("sub", self.v, o.v, flags=("nsw",)), self.off - o.off, formula=f)

    def __rsub__(self, o: int) -> Idx:
        v = self.k.op("sub", I64(o), self.raw(), flags=("nsw",))
        return Idx(self.k, v, formula=combine("-", o, self))

    def __neg__(self) -> Idx:
        return 0 - self

    def __mul__(self, o: Any) -> Any:
        if isinstance(o, int):
            if o in (0, 1):
                return self if o else 0
            v = self.k.op("mul", self.v, I64(o), flags=("nsw",))
            return Idx(self.k, v, self.off * o, self.multiple * o, joined(self.base_formula, (o,), "*"))
        return self._new("mul", "*", o, flags=("nsw",)) if isinstance(o, Idx) else NotImplemented

    def divisor(self) -> Any:
        """The LLVM value to divide by."""
        v = self.raw()
        return self.k.op("select", self.k.op("icmp_signed", "==", v, I64(0)), I64(1), v)

    def _divide(self, name: str, sign: str, a: Int, b: Int) -> Idx:
        by = I64(b) if isinstance(b, int) else b.divisor()
        return Idx(self.k, self.k.op(name, self.k.raw(a), by), formula=combine(sign, a, b))

    def __floordiv__(self, o: Int) -> Idx:
        return self if isinstance(o, int) and o == 1 else self._divide("udiv", "//", self, o)

    def __rfloordiv__(self, o: int) -> Idx:
        return self._divide("udiv", "//", o, self)

    def __mod__(self, o: Int) -> Int:
        return 0 if isinstance(o, int) and o == 1 else self._divide("urem", "%", self, o)

    def __rmod__(self, o: int) -> Idx:
        return self._divide("urem", "%", o, self)

    def __lt__(self, o: Int) -> Any: return self.k.compare("<", self, o)
    def __le__(self, o: Int) -> Any: return self.k.compare("<=", self, o)
    def __gt__(self, o: Int) -> Any: return self.k.compare(">", self, o)
    def __ge__(self, o: Int) -> Any: return self.k.compare(">=", self, o)

    def eq(self, o: Int) -> Any:
        """Whether the two are equal (a condition; `==` keeps Python's meaning)."""
        return self.k.compare("==", self, o)

    def ne(self, o: Int) -> Any: return self.k.compare("!=", self, o)

    __radd__, __rmul__ = __add__, __mul__


class Lanes:
    """Positions of vectors: first + (0, 1, …) · step, and a mask for each vector (None: all lanes)."""

    __slots__ = ("base", "k", "masks", "step")

    def __init__(self, k: Builder, base: Int, masks: Sequence[Any], step: Int = 1):
        self.k, self.base, self.masks, self.step = k, base, list(masks), step

    def __add__(self, o: Int) -> Lanes:
        return Lanes(self.k, self.base + o, self.masks, self.step)

    def __sub__(self, o: Int) -> Lanes:
        return Lanes(self.k, self.base - o, self.masks, self.step)

    def __mul__(self, o: Int) -> Lanes:
        """Every `o`-th element: reads by shuffles or gathers."""
        return Lanes(self.k, self.base * o, self.masks, self.step * o)

    __radd__, __rmul__ = __add__, __mul__

    def local(self) -> Lanes:
        """The same lanes counted from 0: for a scratch row that holds only them."""
        return Lanes(self.k, 0, self.masks, self.step)

    def part(self, j: int) -> Lanes:
        """The j-th vector alone."""
        return Lanes(self.k, self.base + self.step * (j * self.k.V), [self.masks[j]], self.step)

    def where(self, cond: Any) -> Lanes:
        """The same lanes; none where a scalar condition is false, only those where a mask is true."""
        k, masks = self.k, []
        cond = k.condition(cond)
        for u, m in enumerate(self.masks):
            c = cond.v[u % len(cond.v)]
            if isinstance(c.type, ir.VectorType):
                masks.append(k.use(c) if m is None else k.op("and_", c, m))
            else:
                masks.append(k.op("select", c, k.mask(k.V) if m is None else m, k.mask(0)))
        return Lanes(k, self.base, masks, self.step)


class Val:
    """A bundle of registers (scalars, vectors or masks); operators work on all of them.

    A bundle of one register repeats where the other operand has more; a scalar becomes a vector
    beside vectors; a Python number takes the other operand's type. Comparisons with NaN are false,
    but `ne`, as in C.
    """

    __slots__ = ("__weakref__", "k", "v")

    def __init__(self, k: Builder, v: Iterable[Any]):
        self.k, self.v = k, list(v)

    @property
    def type(self) -> Any:
        """LLVM element type of the registers."""
        return scalar(self.v[0].type)

    def _bin(self, o: Any, f: str | None, i: str | None = None) -> Val:
        k = self.k

        def both(a: Any, b: Any) -> Any:
            if is_float(a.type):
                if f is None:
                    raise TypeError("this operator is for integers and masks")
                return k.op(f, a, b, flags=("contract",))
            if i is None:
                raise TypeError("this operator is for floating-point values")
            return k.op(i, a, b)

        return k.zip(both, self, o)

    def _cmp(self, o: Any, how: str) -> Val:
        k = self.k

        def both(a: Any, b: Any) -> Any:
            if is_float(a.type):
                return k.op("fcmp_unordered" if how == "!=" else "fcmp_ordered", how, a, b)
            return k.op("icmp_signed", how, a, b)

        return k.zip(both, self, o)

    def __add__(self, o: Any) -> Val: return self._bin(o, "fadd", "add")
    def __sub__(self, o: Any) -> Val: return self._bin(o, "fsub", "sub")
    def __rsub__(self, o: Any) -> Val: return self.k.val(o, self)._bin(self, "fsub", "sub")
    def __mul__(self, o: Any) -> Val: return self._bin(o, "fmul", "mul")
    def __truediv__(self, o: Any) -> Val: return self._bin(o, "fdiv")
    def __rtruediv__(self, o: Any) -> Val: return self.k.val(o, self)._bin(self, "fdiv")
    def __and__(self, o: Any) -> Val: return self._bin(o, None, "and_")
    def __or__(self, o: Any) -> Val: return self._bin(o, None, "or_")
    def __xor__(self, o: Any) -> Val: return self._bin(o, None, "xor")
    def __lshift__(self, o: Any) -> Val: return self._bin(o, None, "shl")

    def __rshift__(self, o: Any) -> Val:
        """Shift that fills with zeros (of the unsigned value)."""
        return self._bin(o, None, "lshr")

    def __neg__(self) -> Val:
        return self.k.zip(lambda a: self.k.op("fneg" if is_float(a.type) else "neg", a), self)

    def __invert__(self) -> Val:
        k = self.k
        return k.zip(lambda a: k.op("xor", a, const(a.type, 1 if scalar(a.type) is I1 else -1)), self)

    def __lt__(self, o: Any) -> Val: return self._cmp(o, "<")
    def __le__(self, o: Any) -> Val: return self._cmp(o, "<=")
    def __gt__(self, o: Any) -> Val: return self._cmp(o, ">")
    def __ge__(self, o: Any) -> Val: return self._cmp(o, ">=")

    def eq(self, o: Any) -> Val:
        """Equal, lane by lane (false with NaN; `==` keeps Python's meaning)."""
        return self._cmp(o, "==")

    def ne(self, o: Any) -> Val:
        """Not equal, lane by lane (true with NaN)."""
        return self._cmp(o, "!=")

    def isnan(self) -> Val:
        return self.k.zip(lambda a: self.k.op("fcmp_unordered", "uno", a, a), self)

    __radd__, __rmul__, __rand__, __ror__ = __add__, __mul__, __and__, __or__

    def part(self, j: int, n: int = 1) -> Val:
        """Registers j … j+n-1."""
        return Val(self.k, self.v[j : j + n])

    def bits(self, dtype: str) -> Val:
        """The same bits as another type of that width ("i32", "f32")."""
        t = COMPUTE[dtype]
        return self.k.zip(lambda a: self.k.op("bitcast", a, like(t, a)), self)

    def to(self, dtype: str) -> Val:
        """Converted to f32, f64, i64, i32 or bool; floats to integers by truncation, masks to 0 and 1."""
        t = COMPUTE[dtype]
        return self.k.zip(lambda a: convert(self.k, a, like(t, a)), self)

    def idx(self) -> Idx:
        """A scalar integer as an index."""
        v = self.v[0]
        if len(self.v) != 1 or isinstance(v.type, ir.VectorType) or is_float(v.type):
            raise TypeError("only one scalar integer can be an index")
        return Idx(self.k, v if v.type is I64 else self.k.op("sext", v, I64))

    def lane(self, j: Int) -> Val:
        """Lane j of every register, as scalars."""
        i = I64(j) if isinstance(j, int) else j.raw()
        return Val(self.k, [self.k.op("extract_element", a, i) for a in self.v])

    def sum(self) -> Val:
        """Sum over all lanes of all registers, in an order fixed by their number."""
        return reduce(self, lambda a, b: a + b)

    def max(self) -> Val:
        """Largest over all lanes of all registers; NaN if there is one."""
        return reduce(self, maximum)

    def min(self) -> Val:
        return reduce(self, minimum)

    def any(self) -> Val:
        """Whether a mask is true in any lane (a scalar condition)."""
        return reduce(self, lambda a, b: a | b)

    def all(self) -> Val:
        return reduce(self, lambda a, b: a & b)


class Var(Val):
    """A Val that loops carry: `s += x` inside a loop becomes a phi.

    It belongs to the loop, branch or parallel region that made it, and can be set only there.
    """

    __slots__ = ("scope",)

    def __init__(self, k: Builder, v: Iterable[Any]):
        super().__init__(k, v)
        self.scope: Any = k.fn  # the function that carries it; None once its loop or branch has ended

    def set(self, o: Any) -> None:
        """New value; a value of fewer registers (a tail) replaces the first ones."""
        if self.scope is not self.k.fn:
            raise RuntimeError("a variable was set outside the loop, branch or parallel region that made it")
        o = self.k.val(o, self)
        if isinstance(self.v[0].type, ir.VectorType):
            o = self.k.splat(o)
        if o.v[0].type != self.v[0].type:
            raise TypeError(f"a variable of {self.v[0].type} cannot become {o.v[0].type}")
        self.v = o.v + self.v[len(o.v) :]

    def _head(self, o: Any) -> Val:
        n = len(o.v) if isinstance(o, Val) else len(self.v)
        return Val(self.k, self.v[:n])

    def __iadd__(self, o: Any) -> Var:
        self.set(self._head(o) + o)
        return self

    def __isub__(self, o: Any) -> Var:
        self.set(self._head(o) - o)
        return self

    def __imul__(self, o: Any) -> Var:
        self.set(self._head(o) * o)
        return self

    def imax(self, o: Any) -> None:
        """The larger of the two; NaN from either stays."""
        self.set(maximum(self._head(o), o))

    def imin(self, o: Any) -> None:
        self.set(minimum(self._head(o), o))

    def get(self) -> Val:
        """The value now, which later changes of the variable leave alone."""
        return Val(self.k, self.v)


# --- functions on values ---
def convert(k: Builder, a: Any, t: Any) -> Any:
    """LLVM value a converted to type t of the same shape."""
    src, dst = scalar(a.type), scalar(t)
    if src is dst:
        return a
    if is_float(src):
        if is_float(dst):
            return k.op("fpext" if src is F32 else "fptrunc", a, t)
        return k.op("fcmp_unordered", "!=", a, const(a.type, 0)) if dst is I1 else k.op("fptosi", a, t)
    if is_float(dst):
        return k.op("uitofp" if src is I1 else "sitofp", a, t)
    if dst is I1:
        return k.op("icmp_signed", "!=", a, const(a.type, 0))
    if src.width > dst.width:
        return k.op("trunc", a, t)
    return k.op("zext" if src is I1 else "sext", a, t)


def select(m: Any, a: Any, b: Any) -> Val:
    """a where the mask is true, else b; a plain value where the mask is a Python bool."""
    if isinstance(m, bool):
        known: Val = a if m else b
        return known
    k: Builder = m.k
    first = a if isinstance(a, Val) else b if isinstance(b, Val) else None
    return k.zip(lambda x, y, c: k.op("select", c, x, y), k.val(a, first), k.val(b, first), m)


def maximum(a: Any, b: Any) -> Val:
    """The larger; NaN from either stays (torch.maximum, relu). A constant b costs one instruction."""
    return _extreme(a, b, ">")


def minimum(a: Any, b: Any) -> Val:
    """The smaller; NaN from either stays."""
    return _extreme(a, b, "<")


def _extreme(a: Any, b: Any, how: str) -> Val:
    if not isinstance(a, Val):
        a, b = b, a
    k: Builder = a.k

    def both(x: Any, y: Any) -> Any:
        if not is_float(x.type):
            return k.op("select", k.op("icmp_signed", how, y, x), y, x)
        m = k.op("select", k.op("fcmp_ordered", how, y, x), y, x)  # NaN in x stays: one vmaxps
        if isinstance(y, ir.Constant):
            return m
        return k.op("select", k.op("fcmp_unordered", "uno", y, y), y, m)

    return k.zip(both, a, b)


def larger(a: Val, b: Any) -> Val:
    """The larger in one instruction; where either is NaN the result is b."""
    return a.k.zip(lambda x, y: a.k.op("select", a.k.op("fcmp_ordered", ">", x, y), x, y), a, b)


def smaller(a: Val, b: Any) -> Val:
    """The smaller in one instruction; where either is NaN the result is b."""
    return a.k.zip(lambda x, y: a.k.op("select", a.k.op("fcmp_ordered", "<", x, y), x, y), a, b)


def unary(name: str) -> Callable[[Val], Val]:
    return lambda a: a.k.zip(lambda x: a.k.intrinsic(name, x.type, [x], [x.type]), a)


sqrt, round_even, floor, absolute = (unary(f"llvm.{n}") for n in ("sqrt", "rint", "floor", "fabs"))
ceil, truncate = unary("llvm.ceil"), unary("llvm.trunc")


def fma(a: Val, b: Any, c: Any) -> Val:
    """a * b + c with one rounding."""
    k = a.k
    return k.zip(lambda x, y, z: k.intrinsic("llvm.fma", x.type, [x, y, z], [x.type]), a, b, c)


def copysign(a: Val, b: Val) -> Val:
    k = a.k
    return k.zip(lambda x, y: k.intrinsic("llvm.copysign", x.type, [x, y], [x.type]), a, b)


def shuffle(a: Val, b: Val, lanes: Sequence[int]) -> Val:
    """Lanes picked from the registers of a (0 … V-1) and of b (V … 2V-1)."""
    k, picks = a.k, ir.Constant(ir.VectorType(I32, len(lanes)), [I32(i) for i in lanes])
    return Val(k, [k.op("shuffle_vector", x, y, picks) for x, y in zip(a.v, b.v)])


def reduce(x: Val, f: Callable[[Val, Val], Val]) -> Val:
    """f over all lanes of all registers, by halves: a scalar."""
    k = x.k
    rows = [Val(k, [v]) for v in x.v]
    while len(rows) > 1:
        rows = [f(a, b) for a, b in zip(rows[::2], rows[1::2])] + (rows[-1:] if len(rows) % 2 else [])
    r = rows[0]
    while isinstance(r.v[0].type, ir.VectorType):
        n = r.v[0].type.count
        if n == 1:
            return r.lane(0)
        if n == 2:
            return f(r.lane(0), r.lane(1))
        r = f(shuffle(r, r, range(n // 2)), shuffle(r, r, range(n // 2, n)))
    return r


def transpose(rows: Sequence[Val]) -> list[Val]:
    """A square of V registers, transposed in log2(V) steps of shuffles."""
    k = rows[0].k
    V = len(rows)
    v, s = [Val(k, [r.v[0]]) for r in rows], V // 2
    while s:
        lo = [l if not l & s else V + (l ^ s) for l in range(V)]
        hi = [l | s if not l & s else V + l for l in range(V)]
        new = list(v)
        for i in range(V):
            if not i & s:
                new[i], new[i | s] = shuffle(v[i], v[i | s], lo), shuffle(v[i], v[i | s], hi)
        v, s = new, s // 2
    return v


def from_sizes(n: Int) -> Formula:
    f = formula(n)
    if f is None:
        raise ValueError("dims of workspace must follow from sizes (Kernel.size) alone")
    return f
