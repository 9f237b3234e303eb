"""Native adapters: what PyTorch's dispatcher calls in place of its own CPU kernels, as LLVM IR.

An operator gets two functions. `unboxed` has the C++ signature of stock's kernel; `boxed` takes the
interpreter's stack (TorchScript, `torch.ops`, dispatch modes). Both flatten the call into words, make its
key, look it up (`control.py`) and, where there is a plan, allocate the outputs and run it: no Python, no
GIL. In every other case they tail-call stock's kernel with the very words that came: errors, dtypes and
layouts that we do not take are stock's to answer, and nothing of ours is left on the call stack.

All addresses come as symbols when the object is loaded, so the object can be stored. Values are int64; an
address is one too, and `load(a, i)` reads word i behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.ir as ir

from vlug.frontends.torch.control import (
    ASK_THREAD,
    CONTROL,
    DENIED,
    ENTRY,
    FIRST_OP,
    IS_OUTPUT,
    IS_WRITTEN,
    MAX_KEY,
    MAX_OUTER,
    MAX_RANK,
    ON,
    OP,
    OUTPUT_WORDS,
)
from vlug.frontends.torch.ir_function import I32, I64, VOID, Function
from vlug.frontends.torch.names import BLOCK, ENTRIES
from vlug.frontends.torch.operators import OPERATORS, TENSOR_KINDS, Operator
from vlug.frontends.torch.sysv import layout

__all__ = ["build"]

#: A key that cannot be made (too long, an undefined tensor): stock serves.
_OVER = 1 << 20
_MAX_LIST = 8
#: Tags of c10::IValue (checked by the canary): what may lie on the interpreter's stack.
_NONE, _TENSOR, _DOUBLE, _INT, _BOOL, _LIST = 0, 1, 3, 5, 10, 14
#: Tags of c10::Scalar.
_SCALAR_DOUBLE, _SCALAR_INT, _SCALAR_BOOL = 0, 1, 4
#: std::vector<IValue> inside c10::ListImpl, after the vtable and the reference counts.
_LIST_BEGIN = 2


class _Adapters:
    """The module: shared functions, then each operator's three."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.m = ir.Module("vlug_torch")
        self.block = ir.GlobalVariable(self.m, I64, BLOCK)
        self.block.linkage = "external"
        self.shims: dict[str, ir.Function] = {}
        self.key_tensor = self._key_tensor()
        self.key_list = self._key_list()
        self.find = self._find()
        self.serve = self._serve()
        self.wanted = self._wanted()
        self.drop = self._drop()
        entries = []
        for number, op in enumerate(operators):
            core = self._core(op, number)
            entries += [self._unboxed(op, number, core), self._boxed(op, number, core)]
        pointer = ir.IntType(8).as_pointer()
        table = ir.ArrayType(pointer, len(entries))
        g = ir.GlobalVariable(self.m, table, ENTRIES)
        g.initializer = ir.Constant(table, [f.f.bitcast(pointer) for f in entries])

    def function(self, name: str, types: str, **options: Any) -> Function:
        return Function(self.m, name, types, **options)

    def shim(self, name: str, types: str, result: Any = I32) -> ir.Function:
        """One of PyTorch's C functions; "w" in types is an int32."""
        if name not in self.shims:
            params = [I32 if t == "w" else I64 for t in types]
            self.shims[name] = ir.Function(self.m, ir.FunctionType(result, params), name)
        return self.shims[name]

    def control(self, f: Function, name: str) -> Any:
        return f.load(f.b.ptrtoint(self.block, I64), CONTROL[name])

    def operator_words(self, f: Function, number: int) -> Any:
        return f.word(f.b.ptrtoint(self.block, I64), FIRST_OP + len(OP) * number)

    # --- keys ---
    def _key_tensor(self) -> Function:
        """(tensor, key, at) → at after the tensor's dtype and rank, sizes, strides; _OVER if it is odd."""
        f = self.function("key_tensor", "iii")
        tensor, key, at = f.args
        tmp = f.words(1)
        f.exit_if(f.eq(f.load(tensor), self.control(f, "undefined")), _OVER)
        f.store(0, tmp)
        f.call(self.shim("aoti_torch_get_dtype", "ii"), tensor, tmp)
        dtype = f.load32(tmp)
        f.call(self.shim("aoti_torch_get_dim", "ii"), tensor, tmp)
        rank = f.load(tmp)
        room = f.b.add(at, f.b.shl(rank, I64(1)))
        odd = f.b.or_(
            f.b.icmp_unsigned(">", rank, I64(MAX_RANK)), f.b.icmp_unsigned(">=", room, I64(MAX_KEY))
        )
        f.exit_if(odd, _OVER)
        f.store(f.b.or_(f.b.shl(dtype, I64(8)), rank), key, at)
        at = f.b.add(at, I64(1))
        for shim in ("aoti_torch_get_sizes", "aoti_torch_get_strides"):
            f.call(self.shim(shim, "ii"), tensor, tmp)
            values = f.load(tmp)
            with f.loop(rank) as i:
                f.store(f.load(values, i), key, f.b.add(at, i))
            at = f.b.add(at, rank)
        f.b.ret(at)
        f.done()
        return f

    def _key_list(self) -> Function:
        """(values, length, key, at) → at after the length and the values."""
        f = self.function("key_list", "iiii")
        values, n, key, at = f.args
        odd = f.b.or_(
            f.b.icmp_unsigned(">", n, I64(_MAX_LIST)),
            f.b.icmp_unsigned(">=", f.b.add(at, n), I64(MAX_KEY)),
        )
        f.exit_if(odd, _OVER)
        f.store(n, key, at)
        at = f.b.add(at, I64(1))
        with f.loop(n) as i:
            f.store(f.load(values, i), key, f.b.add(at, i))
        f.b.ret(f.b.add(at, n))
        f.done()
        return f

    def _find(self) -> Function:
        """(operator's number, key, words) → its entry; a new key is asked of Python; 0: stock."""
        f = self.function("find", "iii")
        number, key, n = f.args
        b = f.b
        multiplier = I64(-7046029254386353131)
        h = f.entry.alloca(I64)
        b.store(n, h)
        with f.loop(n) as i:
            mixed = b.mul(b.xor(b.load(h), f.load(key, i)), multiplier)
            b.store(b.xor(mixed, b.lshr(mixed, I64(29))), h)
        hashed = b.load(h)
        table = f.acquire(b.ptrtoint(self.block, I64), CONTROL["table"])
        mask = f.load(table)
        probe, check, same, equal, following, miss = (
            f.block(x) for x in ("probe", "check", "same", "equal", "following", "miss")
        )
        first, before = b.and_(hashed, mask), b.block
        b.branch(probe)
        b.position_at_end(probe)
        at = b.phi(I64)
        at.add_incoming(first, before)
        entry = f.acquire(table, b.add(at, I64(1)))
        b.cbranch(f.eq(entry, 0), miss, check)
        b.position_at_end(check)
        alike = b.and_(
            f.eq(f.load(entry, ENTRY["hash"]), hashed), f.eq(f.load(entry, ENTRY["words"]), n)
        )
        b.cbranch(alike, same, following)
        b.position_at_end(same)
        differ = f.entry.alloca(I64)
        b.store(I64(0), differ)
        theirs = f.load(entry, ENTRY["key"])
        with f.loop(n) as i:
            b.store(b.or_(b.load(differ), b.xor(f.load(key, i), f.load(theirs, i))), differ)
        b.cbranch(f.eq(b.load(differ), 0), equal, following)
        b.position_at_end(equal)
        b.ret(entry)
        b.position_at_end(following)
        at.add_incoming(b.and_(b.add(at, I64(1)), mask), following)
        b.branch(probe)
        b.position_at_end(miss)
        f.exit_if(f.eq(self.control(f, "alive"), 0), 0)
        b.ret(f.call(self.control(f, "miss"), number, key, n, hashed))
        f.done()
        return f

    # --- running a plan ---
    def _serve(self) -> Function:
        """(entry, tensors, outs, results) → 1: done, outs holds the TensorImpls; 0: nothing was done."""
        f = self.function("serve", "iiii")
        entry, tensors, outs, results = f.args
        b = f.b
        undefined = self.control(f, "undefined")
        delete = self.shim("aoti_torch_delete_tensor_object", "i")
        mutable = self.shim("torch_get_mutable_data_ptr", "ii")
        data, tmp, made = f.words(4), f.words(1), f.words(1)
        outer = f.words(MAX_OUTER)
        fail, ready = f.block("fail"), f.block("ready")
        f.store(0, made)
        shapes = f.load(entry, ENTRY["outputs"])
        for r in range(3):
            b_next = f.block()
            f.go_if(b.icmp_unsigned("<=", results, I64(r)), ready)
            shape = f.word(shapes, OUTPUT_WORDS * r)
            f.store(undefined, outs, r)
            f.store(r + 1, made)
            f.go_if(f.eq(f.load(shape), 0), b_next)
            code = f.call(
                self.shim("aoti_torch_empty_strided", "iiiwwwi"), f.load(shape, 1), f.word(shape, 3),
                f.word(shape, 3 + MAX_RANK), b.trunc(f.load(shape, 2), I32), I32(0), I32(0), tmp,
            )  # fmt: skip
            f.go_if(b.icmp_unsigned("!=", code, I32(0)), fail)
            handle = f.load(tmp)
            f.store(f.load(handle), outs, r)
            code = f.call(mutable, handle, f.word(data, r))
            f.store(undefined, handle)  # the handle goes, the tensor stays
            f.call(delete, handle)
            f.go_if(b.icmp_unsigned("!=", code, I32(0)), fail)
            b.branch(b_next)
            b.position_at_end(b_next)
        b.branch(ready)
        b.position_at_end(ready)
        order = f.load(entry, ENTRY["order"])
        with f.loop(f.load(entry, ENTRY["count"])) as i:
            code = f.load(order, i)
            which = b.and_(code, I64(IS_OUTPUT - 1))
            slot = f.word(outer, i)
            with b.if_else(b.icmp_unsigned("!=", b.and_(code, I64(IS_OUTPUT)), I64(0))) as (new, old):
                with new:
                    f.store(f.load(data, which), slot)
                with old:
                    tensor = f.load(tensors, which)
                    written = b.icmp_unsigned("!=", b.and_(code, I64(IS_WRITTEN)), I64(0))
                    rc = f.entry.alloca(I32)
                    with b.if_else(written) as (w, c):
                        with w:
                            b.store(f.call(mutable, tensor, slot), rc)
                        with c:
                            b.store(f.call(self.shim("torch_get_const_data_ptr", "ii"), tensor, slot), rc)
                    f.go_if(b.icmp_unsigned("!=", b.load(rc), I32(0)), fail)
        run, plan = self.control(f, "runner"), f.load(entry, ENTRY["plan"])
        code = f.call(run, plan, outer, self.control(f, "env"))
        f.go_if(b.icmp_unsigned("!=", code, I64(0)), fail)
        b.ret(I64(1))
        b.position_at_end(fail)
        with f.loop(f.load(made)) as r:
            f.call(self._drop_one(), f.load(outs, r))
        b.ret(I64(0))
        f.done()
        return f

    def _drop_one(self) -> ir.Function:
        """Release one reference to a counted object (a tensor, a list): as at::Tensor's destructor does."""
        for f in self.m.functions:
            if f.name == "release":
                return f
        f = self.function("release", "i", result=VOID)
        handle = f.words(1)
        f.call(self.shim("aoti_torch_new_uninitialized_tensor", "i"), handle)
        f.store(f.args[0], f.load(handle))
        f.call(self.shim("aoti_torch_delete_tensor_object", "i"), f.load(handle))
        f.b.ret_void()
        f.done()
        return f.f

    def _drop(self) -> Function:
        """(first value, how many): release what values of the interpreter's stack hold."""
        f = self.function("drop", "ii", result=VOID)
        first, n = f.args
        with f.loop(n) as i:
            value = f.b.add(first, f.b.shl(i, I64(4)))
            tag = f.load32(f.word(value, 1))
            with f.b.if_then(f.b.or_(f.eq(tag, _TENSOR), f.eq(tag, _LIST))):
                f.call(self._drop_one(), f.load(value), result=VOID)
        f.b.ret_void()
        f.done()
        return f

    def _wanted(self) -> Function:
        """(operator's words) → whether this thread wants vlug: for operators with a wish pending."""
        f = self.function("wanted", "i")
        on = f.load(f.args[0], OP["on"])
        wish = f.call(self.control(f, "thread_get"), f.b.trunc(self.control(f, "thread_key"), I32))
        f.exit_if(f.eq(wish, 1), 0)
        with f.b.if_then(f.b.icmp_unsigned("!=", f.b.and_(on, I64(DENIED)), I64(0)), likely=False):
            f.count(f.args[0], OP["denied"])
            f.b.ret(I64(0))
        f.exit_if(f.eq(wish, 2), 1)
        f.b.ret(f.b.and_(on, I64(ON)))
        f.done()
        return f

    # --- one operator ---
    def _core(self, op: Operator, number: int) -> Function:
        """(flat arguments, outs) → 1: a plan was run, 0: stock by decision, 2: stock, no entry counts it."""
        f = self.function(f"core_{op.symbol}", "ii")
        slots, outs = f.args
        b = f.b
        key, tensors = f.words(MAX_KEY + 2), f.words(max(1, op.tensors))
        tmp = f.words(2)
        epoch = self.control(f, "epoch")
        f.store(b.or_(b.shl(epoch, I64(16)), I64(number)), key)
        at: Any = I64(1)

        def push(value: Any) -> None:
            nonlocal at
            one = f.words(1)
            f.store(value, one)
            f.store(f.load(one), key, b.select(b.icmp_unsigned("<", at, I64(MAX_KEY)), at, I64(MAX_KEY)))
            at = b.add(at, I64(1))

        def either(condition: Any, then: Callable[[Any], Any]) -> None:
            """`then` makes the next key position from this; where the condition fails, one word -1 stands."""
            nonlocal at
            start = at
            f.store(-1, key, b.select(b.icmp_unsigned("<", at, I64(MAX_KEY)), at, I64(MAX_KEY)))
            f.store(b.add(at, I64(1)), tmp)
            with b.if_then(condition):
                f.store(then(start), tmp)
            at = f.load(tmp)

        tensor = 0
        for kind, word in zip(op.kinds, op.offsets):
            value = f.load(slots, word)
            if kind in "TM":
                f.store(value, tensors, tensor)
                at = f.call(self.key_tensor, value, key, at)
            elif kind in "OR":
                f.store(0, tensors, tensor)
                here = f.word(tensors, tensor)

                def present(start: Any, value: Any = value, here: Any = here) -> Any:
                    f.store(value, here)
                    return f.call(self.key_tensor, value, key, start)

                given = f.call(self._defined(), value)
                either(b.icmp_unsigned("!=", given, I64(0)), present)
            elif kind == "I":
                at = f.call(self.key_list, value, f.load(slots, word + 1), key, at)
            elif kind == "J":
                n = f.load(slots, word + 1)

                def listed(start: Any, value: Any = value, n: Any = n) -> Any:
                    return f.call(self.key_list, value, n, key, start)

                either(b.icmp_signed(">=", n, I64(0)), listed)
            elif kind in "SP":
                push(value)
                push(f.load(slots, word + 1))
            elif kind != "x":
                push(value)
            tensor += kind in TENSOR_KINDS
        f.exit_if(b.icmp_unsigned(">=", at, I64(MAX_KEY)), 2)
        entry = f.call(self.find, I64(number), key, at)
        f.exit_if(f.eq(entry, 0), 2)
        f.count(entry, ENTRY["calls"])
        f.exit_if(b.icmp_unsigned("!=", f.load(entry, ENTRY["passed"]), I64(0)), 0)
        ok = f.call(self.serve, entry, tensors, outs, I64(op.results))
        with b.if_then(f.eq(ok, 0), likely=False):
            f.count(self.operator_words(f, number), OP["failed"])
        b.ret(ok)
        f.done()
        return f

    def _defined(self) -> ir.Function:
        """(tensor or 0) → 1 if it is there and defined."""
        for g in self.m.functions:
            if g.name == "defined":
                return g
        f = self.function("defined", "i")
        f.exit_if(f.eq(f.args[0], 0), 0)
        same = f.eq(f.load(f.args[0]), self.control(f, "undefined"))
        f.b.ret(f.b.select(same, I64(0), I64(1)))
        f.done()
        return f.f

    def _gate(self, f: Function, number: int, stock: Any) -> None:
        """Go to stock at once where this operator is off; a few nanoseconds."""
        mine = self.operator_words(f, number)
        on = f.load(mine, OP["on"])
        f.go_if(f.eq(on, 0), stock)
        with f.b.if_then(f.b.icmp_unsigned(">=", on, I64(ASK_THREAD)), likely=False):
            f.go_if(f.eq(f.call(self.wanted, mine), 0), stock)

    def _settle(self, f: Function, number: int, code: Any, taken: Any, stock: Any) -> None:
        """After the core: taken, or to stock (counted where no entry counts it)."""
        other = f.block("other")
        f.b.cbranch(f.eq(code, 1), taken, other)
        f.b.position_at_end(other)
        with f.b.if_then(f.eq(code, 2), likely=False):
            f.count(self.operator_words(f, number), OP["stock_calls"])
        f.b.branch(stock)

    def _unboxed(self, op: Operator, number: int, core: Function) -> Function:
        """The C++ signature of stock's kernel."""
        at = layout(op)
        f = self.function(f"unboxed_{op.symbol}", at.types)
        b, args = f.b, f.args
        stock, taken = f.block("stock"), f.block("taken")
        self._gate(f, number, stock)
        slots, outs = f.words(op.offsets[-1]), f.words(4)
        for kind, word, places in zip(op.kinds, op.offsets, at.words):
            value = args[places[0]]
            if kind in "OR":  # std::optional<Tensor>: the tensor, then whether it is there
                given = b.and_(f.load(value, 1), I64(255))
                value = b.select(f.eq(given, 0), I64(0), value)
            elif kind == "I":
                f.store(args[places[1]], slots, word + 1)
            elif kind == "J":  # pointer, length, whether it is there
                given = b.and_(args[places[2]], I64(255))
                f.store(b.select(f.eq(given, 0), I64(-1), args[places[1]]), slots, word + 1)
            elif kind == "P":
                given = b.and_(args[places[1]], I64(255))
                f.store(b.select(f.eq(given, 0), I64(0), value), slots, word + 1)
                value = given
            elif kind == "s":
                value = f.load(value)
            elif kind in "bx" or kind == "t":
                value = b.and_(value, I64(255))
            elif kind == "L":
                given = b.and_(b.lshr(value, I64(8)), I64(255))
                value = b.select(f.eq(given, 0), I64(-1), b.and_(value, I64(255)))
            elif kind == "B":
                value = b.and_(value, I64(0xFFFFFF))
            elif kind == "d":
                value = b.bitcast(value, I64)
            elif kind == "S":
                f.store(f.load(value, 2), slots, word + 1)
                value = f.load32(value)
            f.store(value, slots, word)
        self._settle(f, number, f.call(core, slots, outs), taken, stock)
        b.position_at_end(taken)
        if op.results:  # a std::tuple of libstdc++ lies last element first
            for r in range(op.results):
                f.store(f.load(outs, r), args[at.result], op.results - 1 - r)
            b.ret(args[at.result])
        else:
            b.ret(args[at.words[0][0]])
        b.position_at_end(stock)
        mine = self.operator_words(f, number)
        words = list(args)
        words[at.functor] = f.load(mine, OP["functor"])
        target = f.pointer(f.load(mine, OP["unboxed"]), f.f.function_type)
        b.ret(b.call(target, words, tail="musttail"))
        f.done()
        return f

    def _boxed(self, op: Operator, number: int, core: Function) -> Function:
        """void (OperatorKernel*, const OperatorHandle&, DispatchKeySet, std::vector<IValue>*)"""
        f = self.function(f"boxed_{op.symbol}", "iiii", result=VOID)
        b, args = f.b, f.args
        stack = args[3]
        stock, taken = f.block("stock"), f.block("taken")
        self._gate(f, number, stock)
        slots, outs = f.words(op.offsets[-1]), f.words(4)
        end = f.load(stack, 1)
        base = b.sub(end, I64(16 * len(op.kinds)))

        def expect(tag: Any, wanted: int) -> None:
            f.go_if(b.icmp_unsigned("!=", tag, I64(wanted)), stock)

        for i, (kind, word) in enumerate(zip(op.kinds, op.offsets)):
            where = f.word(base, 2 * i)
            tag, value = f.load32(f.word(where, 1)), f.load(where)
            absent = f.eq(tag, _NONE)
            if kind in "TM":
                expect(tag, _TENSOR)
                value = where
            elif kind in "OR":
                f.go_if(b.icmp_unsigned(">", tag, I64(_TENSOR)), stock)
                value = b.select(absent, I64(0), where)
            elif kind in "ist":
                expect(tag, _INT)
            elif kind in "bx":
                expect(tag, _BOOL)
                value = b.and_(value, I64(255))
            elif kind == "d":
                expect(tag, _DOUBLE)
            elif kind == "L":
                f.go_if(b.and_(b.not_(absent), b.icmp_unsigned("!=", tag, I64(_INT))), stock)
                value = b.select(absent, I64(-1), value)
            elif kind == "P":
                f.go_if(b.and_(b.not_(absent), b.icmp_unsigned("!=", tag, I64(_INT))), stock)
                f.store(b.select(absent, I64(0), value), slots, word + 1)
                value = b.select(absent, I64(0), I64(1))
            elif kind == "S":
                known = b.or_(b.or_(f.eq(tag, _DOUBLE), f.eq(tag, _INT)), f.eq(tag, _BOOL))
                f.go_if(b.not_(known), stock)
                flag = f.eq(tag, _BOOL)
                f.store(b.select(flag, b.and_(value, I64(255)), value), slots, word + 1)
                number_tag = b.select(f.eq(tag, _DOUBLE), I64(_SCALAR_DOUBLE), I64(_SCALAR_INT))
                value = b.select(flag, I64(_SCALAR_BOOL), number_tag)
            else:
                value = self._boxed_list(f, kind, tag, value, slots, word, stock)
            f.store(value, slots, word)
        self._settle(f, number, f.call(core, slots, outs), taken, stock)
        b.position_at_end(taken)
        if op.results:  # one that changes its first argument leaves it on the stack as the result
            f.call(self.drop, base, I64(len(op.kinds)))
            for r in range(op.results):
                f.store(f.load(outs, r), base, 2 * r)
                f.store(_TENSOR, base, 2 * r + 1)
            f.store(f.word(base, 2 * op.results), stack, 1)
        b.ret_void()
        b.position_at_end(stock)
        mine = self.operator_words(f, number)
        target = f.pointer(f.load(mine, OP["boxed"]), f.f.function_type)
        b.call(target, [f.load(mine, OP["functor"]), *args[1:]], tail="musttail")
        b.ret_void()
        f.done()
        return f

    def _boxed_list(
        self, f: Function, kind: str, tag: Any, value: Any, slots: Any, word: int, stock: Any
    ) -> Any:
        """A list on the interpreter's stack as plain words; with a symbolic value in it stock serves."""
        b = f.b
        copy, length = f.words(_MAX_LIST), f.words(1)
        f.store(-1, length)
        read, done = f.block("read"), f.block("done")
        if kind == "J":
            f.go_if(f.eq(tag, _NONE), done)
        b.branch(read)
        b.position_at_end(read)
        f.go_if(b.icmp_unsigned("!=", tag, I64(_LIST)), stock)
        first = f.load(value, _LIST_BEGIN)
        n = b.lshr(b.sub(f.load(value, _LIST_BEGIN + 1), first), I64(4))
        f.go_if(b.icmp_unsigned(">", n, I64(_MAX_LIST)), stock)
        wanted = _BOOL if kind == "B" else _INT
        with f.loop(n) as i:
            item = b.add(first, b.shl(i, I64(4)))
            f.go_if(b.icmp_unsigned("!=", f.load32(f.word(item, 1)), I64(wanted)), stock)
            f.store(f.load(item), copy, i)
        f.store(n, length)
        b.branch(done)
        b.position_at_end(done)
        if kind != "B":
            f.store(f.load(length), slots, word + 1)
            return copy
        f.go_if(b.icmp_unsigned("!=", f.load(length), I64(3)), stock)
        packed: Any = I64(0)
        for i in range(3):
            packed = b.or_(packed, b.shl(b.and_(f.load(copy, i), I64(1)), I64(8 * i)))
        return packed


def build(operators: Sequence[Operator] = OPERATORS) -> str:
    """The module's text."""
    return str(_Adapters(operators).m)
