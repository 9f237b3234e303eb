"""Kernel: builds one program; parallel regions, workspace, arguments and tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import llvmlite.ir as ir

from vlug.codegen.flow import Flow
from vlug.codegen.formula import OPERATORS, Formula, reckon
from vlug.codegen.isa import ISA
from vlug.codegen.types import BODY, F32, F64, I8, I32, I64, PARALLEL_FOR, PTR, VOID, elem, slot_bytes
from vlug.codegen.values import Idx, Int, Val, from_sizes
from vlug.codegen.view import View

PAGE = 4096


class Kernel(Flow):
    """Builds `int32 f(void **tensors, const int64 *args, void *workspace, const Env *env)`.

    Loops and branches are Python generators and context managers, so a kernel is an ordinary function
    that uses `for` and `with`. Never `break` out of a loop of the vocabulary: it would be half emitted.
    """

    def __init__(self, isa: ISA, name: str = "f"):
        super().__init__(isa, name)
        self._sizes: dict[str, Idx] = {}
        self._scalars: dict[str, Val] = {}
        self.arg_names: list[str] = []
        #: Set by a build function: no loop strength reduction. A third less compile time; convolutions run
        #: 0 to 4 % slower (measured), kernels bound by memory do not.
        self.quick = False
        self.tensors = 0
        self.part: Idx | None = None  # the number of this part, inside a parallel region
        self.shared_bytes: Formula = (0,)  # workspace used by all parts
        self.part_bytes: Formula = (0,)  # workspace of each part: the most that a region takes
        self._region_bytes: Int = 0
        self.tiled = False  # whether this region has tiles configured, which it must release
        self._error_slot: Any = None
        self._slots: dict[str, Any] = {}

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
        self.tiled = False
        self.entry = ir.IRBuilder(fn.append_basic_block("entry"))
        self.b = ir.IRBuilder(fn.append_basic_block("start"))
        yield Idx(self, fn.args[2]), Idx(self, fn.args[3])
        if self.streamed:
            self.intrinsic("llvm.x86.sse.sfence", VOID, [], [])
        self.streamed = streamed
        self._release_tiles()
        self.tiled = False
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

    def _release_tiles(self) -> None:
        """A thread that keeps tiles configured pays for them at every switch: no exit may leave them."""
        if self.tiled:
            self.intrinsic("llvm.x86.tilerelease", VOID, [], [])

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
            self._release_tiles()
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
