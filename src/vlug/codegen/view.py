"""View: a tensor in memory; indexing loads and stores, widening to and rounding from its element type."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import llvmlite.ir as ir

from vlug.codegen.types import (
    COMPUTE,
    F16,
    F32,
    I1,
    I16,
    I32,
    I64,
    MANGLED,
    PTR,
    VOID,
    Elem,
    const,
    elem,
    like,
)
from vlug.codegen.values import Idx, Int, Lanes, Val, convert, shuffle

if TYPE_CHECKING:
    from vlug.codegen.builder import Builder


def contiguous(dims: Sequence[Int]) -> list[Int]:
    """Strides of a dense row-major tensor."""
    strides: list[Int] = [1]
    for d in dims[:0:-1]:
        strides.insert(0, strides[0] * d)
    return strides


class View:
    """Pointer, dims, strides (in elements). `x[n, c, p]` loads and `y[n, c, p] = v` stores.

    A Lanes index, last, means vectors; otherwise one element. bf16, f16 are computed in f32, i8 and u8
    in i32, bool is a mask. Loads of lanes that a mask leaves out give `other` and touch no memory.
    """

    def __init__(
        self,
        k: Builder,
        ptr: Any,
        dims: Sequence[Int],
        strides: Sequence[Int] | None = None,
        dtype: Any = "f32",
    ):
        self.k, self.ptr, self.dims = k, ptr, tuple(dims)
        self.strides = list(contiguous(dims) if strides is None else strides)
        self.elem: Elem = elem(dtype)
        if len(self.strides) != len(self.dims):
            raise ValueError(f"a view of {len(self.dims)} dims got {len(self.strides)} strides")

    # --- addresses ---
    def addr(self, *idx: Int) -> Any:
        """Address of an element: the varying part once in a block, constants as displacements."""
        if len(idx) != len(self.dims):
            raise IndexError(f"{len(idx)} indices for a view of {len(self.dims)} dims")
        k, const_off, late, key = self.k, 0, [], [id(self.ptr), self.elem.bytes]
        parts: list[tuple[Idx, Int]] = []
        for i, s in zip(idx, self.strides):
            if isinstance(s, int) and s == 0:
                continue
            off = i if isinstance(i, int) else i.off
            if not isinstance(i, int):
                parts.append((Idx(k, i.v, 0, i.multiple), s))
                key += [id(i.v), s if isinstance(s, int) else (id(s.v), s.off)]  # type: ignore[list-item]
            if isinstance(s, int):
                const_off += off * s
            elif off:
                late.append(s * off)
        base = k.cached(tuple(key))
        if base is None:
            total: Any = None
            for i, s in parts:
                total = i * s if total is None else total + i * s
            base = k.use(self.ptr) if total is None else k.gep(self.ptr, total, self.elem.storage)
            k.remember(tuple(key), base, (self.ptr, [i.v for i, _ in parts], self.strides))
        for o in late:
            base = k.gep(base, o, self.elem.storage)
        return k.gep(base, const_off, self.elem.storage)

    def at(self, *idx: Int) -> View:
        """The view of the remaining dims at these leading indices."""
        n = len(idx)
        p = self.addr(*idx, *[0] * (len(self.dims) - n))
        return View(self.k, p, self.dims[n:], self.strides[n:], self.elem.name)

    # --- loads ---
    def load(self, *idx: Any, other: float = 0.0, align: int | None = None) -> Val:
        k, last, e = self.k, idx[-1], self.elem
        align = align or e.bytes
        if not isinstance(last, Lanes):
            raw = k.b.load(self.addr(*idx), typ=e.storage, align=align)
            return Val(k, [widen(k, raw, e)])
        step = last.step * self.strides[-1]
        base = self._start(idx, last)
        t = ir.VectorType(e.storage, k.V)
        out = []
        for u, m in enumerate(last.masks):
            p = k.gep(base, step * (u * k.V), e.storage)
            if isinstance(step, int) and step == 0:
                raw = self._repeat(p, m)
            elif isinstance(step, int) and step == 1:
                if m is None:
                    raw = k.b.load(p, typ=t, align=align)
                else:
                    raw = k.intrinsic(
                        "llvm.masked.load", t, [p, I32(align), k.use(m), _storage_const(e, t, 0)], [t, PTR]
                    )
            elif isinstance(step, int) and step == 2 and m is None:
                raw = self._every_second(p, t)
            else:
                raw = self._gather(p, step, m, t)
            v = widen(k, raw, e)
            if m is not None and other != 0:
                v = k.op("select", m, v, const(v.type, other))
            out.append(v)
        return Val(k, out)

    def _start(self, idx: tuple[Any, ...], last: Lanes) -> Any:
        return self.addr(*idx[:-1], last.base)

    def _repeat(self, p: Any, m: Any) -> Any:
        """One element in every lane (stride 0)."""
        k, e = self.k, self.elem
        if m is None:
            return k.splat(Val(k, [k.b.load(p, typ=e.storage, align=e.bytes)])).v[0]
        t = ir.VectorType(e.storage, k.V)
        return self._gather(p, 0, m, t)

    def _every_second(self, p: Any, t: Any) -> Any:
        """Elements 0, 2, 4, …: two loads that end at the last element needed, and a shuffle."""
        k, V, e = self.k, self.k.V, self.elem
        a = k.b.load(p, typ=t, align=e.bytes)
        b = k.b.load(k.gep(p, V - 1, e.storage), typ=t, align=e.bytes)
        picks = [2 * j if 2 * j < V else V + 2 * j - (V - 1) for j in range(V)]
        return shuffle(Val(k, [a]), Val(k, [b]), picks).v[0]

    def _pointers(self, p: Any, step: Int) -> Any:
        k = self.k
        if isinstance(step, int):
            offs = const(ir.VectorType(I64, k.V), 0)
            offs = ir.Constant(ir.VectorType(I64, k.V), [I64(step * j) for j in range(k.V)])
        else:
            iota = ir.Constant(ir.VectorType(I64, k.V), [I64(j) for j in range(k.V)])
            offs = k.op("mul", iota, k.splat(Val(k, [step.raw()])).v[0])
        g = k.op("gep", p, [offs], source_etype=self.elem.storage)
        g.type = ir.VectorType(PTR, k.V)  # llvmlite gives a gep the type of its base
        return g

    def _gather(self, p: Any, step: Int, m: Any, t: Any) -> Any:
        k, e = self.k, self.elem
        mask = k.mask(k.V) if m is None else m
        name = f"llvm.masked.gather.v{k.V}{MANGLED[e.storage]}.v{k.V}p0"
        return k.intrinsic(name, t, [self._pointers(p, step), I32(e.bytes), mask, const(t, 0)], [])

    def gather(self, at: Val, mask: Val | None = None) -> Val:
        """Elements at positions (vectors of i32) of a view of one dimension; 0 where the mask is false."""
        k, e = self.k, self.elem
        (step,) = self.strides
        if step != 1:
            raise ValueError("gather takes elements that lie side by side")
        t, out = ir.VectorType(e.storage, k.V), []
        name = f"llvm.masked.gather.v{k.V}{MANGLED[e.storage]}.v{k.V}p0"
        for u, v in enumerate(at.v):
            p = k.op("gep", k.use(self.ptr), [v], source_etype=e.storage)
            p.type = ir.VectorType(PTR, k.V)
            m = k.mask(k.V) if mask is None else mask.v[u % len(mask.v)]
            out.append(widen(k, k.intrinsic(name, t, [p, I32(e.bytes), m, const(t, 0)], []), e))
        return Val(k, out)

    # --- stores ---
    def store(self, *idx_value: Any, align: int | None = None, stream: bool = False) -> None:
        """Store a value (the last argument); rounds to nearest even.

        stream: past the caches. The address must then be a multiple of the vector's bytes (`Kernel.aligned`
        tells), or the processor faults.
        """
        k, e = self.k, self.elem
        *idx, val = idx_value
        last = idx[-1]
        val = k.val(val, dtype=_compute_name(e))
        if not isinstance(last, Lanes):
            v = narrow(k, k.use(val.v[0]), e)
            k.b.store(v, self.addr(*idx), align=align or e.bytes)
            return
        val = k.splat(val)
        step = last.step * self.strides[-1]
        base = self._start(tuple(idx), last)
        for u, (m, v) in enumerate(
            zip_longest(last.masks, val.v, fillvalue=val.v[0] if len(val.v) == 1 else None)
        ):
            if v is None:
                raise ValueError(f"{len(val.v)} registers stored to {len(last.masks)} vectors")
            p = k.gep(base, step * (u * k.V), e.storage)
            v = narrow(k, k.use(v), e)
            if not (isinstance(step, int) and step == 1):
                name = f"llvm.masked.scatter.v{k.V}{MANGLED[e.storage]}.v{k.V}p0"
                mask = k.mask(k.V) if m is None else m
                k.intrinsic(name, VOID, [v, self._pointers(p, step), I32(e.bytes), mask], [])
            elif m is not None:
                k.intrinsic("llvm.masked.store", VOID, [v, p, I32(align or e.bytes), k.use(m)], [v.type, PTR])
            else:
                st = k.b.store(v, p, align=k.V * e.bytes if stream else align or e.bytes)
                if stream:
                    st.set_metadata("nontemporal", k.module.add_metadata([I32(1)]))
                    k.streamed = True

    def __getitem__(self, idx: Any) -> Val:
        return self.load(*(idx if isinstance(idx, tuple) else (idx,)))

    def __setitem__(self, idx: Any, v: Any) -> None:
        self.store(*(idx if isinstance(idx, tuple) else (idx,)), v)

    def prefetch(self, *idx: Int, write: int = 0, level: int = 3) -> None:
        """Ask for the cache line of an element (level 3: into L1, 2: L2)."""
        self.k.intrinsic("llvm.prefetch", VOID, [self.addr(*idx), I32(write), I32(level), I32(1)], [PTR])


def _compute_name(e: Elem) -> str:
    return next(n for n, t in COMPUTE.items() if t is e.compute)


def _storage_const(e: Elem, t: Any, x: float) -> Any:
    return const(t, x)


def widen(k: Builder, v: Any, e: Elem) -> Any:
    """A value as it lies in memory → as it is computed with."""
    if e.storage is e.compute:
        return v
    if e.name == "bf16":
        wide = k.op("shl", k.op("zext", v, like(I32, v)), const(like(I32, v), 16))
        return k.op("bitcast", wide, like(F32, v))
    if e.name == "f16":
        return k.op("fpext", k.op("bitcast", v, like(F16, v)), like(F32, v))
    if e.name == "bool":
        return k.op("icmp_signed", "!=", v, const(v.type, 0))
    return k.op("sext" if e.name == "i8" else "zext", v, like(I32, v))


def narrow(k: Builder, v: Any, e: Elem) -> Any:
    """A computed value → as it lies in memory; floats to the nearest, ties to even, NaN stays NaN."""
    v = convert(k, v, like(e.compute, v))
    if e.storage is e.compute:
        return v
    if e.name == "bf16":
        # An integer sequence on every ISA: vcvtneps2bf16 flushes denormals, which the others do not.
        t = like(I32, v)
        x = k.op("bitcast", v, t)
        high = k.op("lshr", x, const(t, 16))
        odd = k.op("and_", high, const(t, 1))
        near = k.op("lshr", k.op("add", k.op("add", x, const(t, 0x7FFF)), odd), const(t, 16))
        quiet = k.op("or_", high, const(t, 0x40))
        near = k.op("select", k.op("fcmp_unordered", "uno", v, v), quiet, near)
        return k.op("trunc", near, like(I16, v))
    if e.name == "f16":
        return k.op("bitcast", k.op("fptrunc", v, like(F16, v)), like(I16, v))
    if e.compute is I1:
        return k.op("zext", v, like(e.storage, v))
    return k.op("trunc", v, like(e.storage, v))
