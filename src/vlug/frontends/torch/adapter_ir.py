"""Native adapters: what PyTorch's dispatcher calls in place of its own CPU kernels, as LLVM IR.

There is one `unboxed` adapter for each shape of C++ signatures (`sysv.py`) and one `boxed` for the
interpreter's stack (TorchScript, `torch.ops`, dispatch modes). The dispatcher hands each the address of its
operator's part of the control block, which says what the arguments are. They make the call's key, look it up
(`control.py`) and, where there is a plan, allocate the outputs and run it: no Python, no GIL. In every other
case they tail-call stock's kernel with the very words that came: errors, dtypes and layouts that we do not
take are stock's to answer, and nothing of ours is left on the call stack.

All addresses come as symbols when the object is loaded, so the object can be stored. Values are int64; an
address is one too, and `load(a, i)` reads word i behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.ir as ir

from vlug.frontends.torch.adapter_arguments import MAX_LIST, BoxedArguments, UnboxedArguments
from vlug.frontends.torch.control import (
    ASK_THREAD,
    CONTROL,
    DENIED,
    ENTRY,
    GIVES,
    IS_LIST,
    IS_OUTPUT,
    IS_SCALAR,
    IS_WRITTEN,
    MAX_KEY,
    MAX_LISTS,
    MAX_OUTER,
    MAX_RANK,
    MAX_RESULTS,
    MAX_SCALARS,
    MAX_VALUES,
    ON,
    OP,
    OUTPUT_WORDS,
)
from vlug.frontends.torch.ir_function import F64, I32, I64, VOID, Function
from vlug.frontends.torch.names import BLOCK, ENTRIES
from vlug.frontends.torch.operators import KINDS, OPERATORS, Operator
from vlug.frontends.torch.sysv import Shape, shapes

__all__ = ["build"]

#: A key that cannot be made (too long, an undefined tensor): stock serves.
_OVER = 1 << 20
#: What a call comes to: a plan was run; stock serves by decision; stock serves and no entry counts it.
_STOCK, _TAKEN, _UNCOUNTED = 0, 1, 2
#: A call's frame, in words: its key, its tensors, its scalars (of lists their addresses) that are not in the
#: key, the values of those lists.
_TENSORS = MAX_KEY + 8
_SCALARS = _TENSORS + MAX_OUTER
_LISTS = _SCALARS + 2 * MAX_SCALARS
_FRAME = _LISTS + MAX_LISTS * MAX_VALUES
#: Most tensors in a list that is taken one at a time.
_MAX_EACH = 1 << 14


class _Adapters:
    """The module: what all calls share, then the adapters."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.m = ir.Module("vlug_torch")
        self.block = ir.GlobalVariable(self.m, I64, BLOCK)
        self.block.linkage = "external"
        self.shims: dict[str, ir.Function] = {}
        self.release = self._release()
        self.drop = self._drop()
        self.key_tensor = self._key_tensor()
        self.key_list = self._key_list()
        self.find = self._find()
        self.serve = self._serve()
        self.wanted = self._wanted()
        entries = [self._boxed(self._call(BoxedArguments()))]
        call = self._call(UnboxedArguments())
        entries += [self._unboxed(shape, i, call) for i, shape in enumerate(shapes(operators))]
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
            f.b.icmp_unsigned(">", n, I64(MAX_LIST)),
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
        """(entry, frame, outs, results) → 1: done, outs holds the TensorImpls; 0: nothing was done."""
        f = self.function("serve", "iiii")
        entry, frame, outs, results = f.args
        tensors, scalars = f.word(frame, _TENSORS), f.word(frame, _SCALARS)
        b = f.b
        undefined = self.control(f, "undefined")
        delete = self.shim("aoti_torch_delete_tensor_object", "i")
        mutable = self.shim("torch_get_mutable_data_ptr", "ii")
        const = self.shim("torch_get_const_data_ptr", "ii")
        data, tmp, made = f.words(MAX_RESULTS), f.words(1), f.words(1)
        outer = f.words(MAX_OUTER)
        fail, ready = f.block("fail"), f.block("ready")
        f.store(0, made)
        shapes = f.load(entry, ENTRY["outputs"])
        for r in range(MAX_RESULTS):
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
                    known = b.icmp_unsigned("!=", b.and_(code, I64(IS_SCALAR)), I64(0))
                    rc = f.entry.alloca(I32)
                    with b.if_else(known) as (number, tensor):
                        with number:
                            place = f.word(scalars, which)
                            listed = b.icmp_unsigned("!=", b.and_(code, I64(IS_LIST)), I64(0))
                            f.store(b.select(listed, f.load(place), place), slot)
                            b.store(I32(0), rc)
                        with tensor:
                            written = b.icmp_unsigned("!=", b.and_(code, I64(IS_WRITTEN)), I64(0))
                            given = f.load(tensors, which)
                            with b.if_else(written) as (w, c):
                                with w:
                                    b.store(f.call(mutable, given, slot), rc)
                                with c:
                                    b.store(f.call(const, given, slot), rc)
                    f.go_if(b.icmp_unsigned("!=", b.load(rc), I32(0)), fail)
        run, plan = self.control(f, "runner"), f.load(entry, ENTRY["plan"])
        code = f.call(run, plan, outer, self.control(f, "env"))
        f.go_if(b.icmp_unsigned("!=", code, I64(0)), fail)
        b.ret(I64(1))
        b.position_at_end(fail)
        with f.loop(f.load(made)) as r:
            f.call(self.release, f.load(outs, r))
        b.ret(I64(0))
        f.done()
        return f

    def _release(self) -> Function:
        """Release one reference to a counted object (a tensor, a list): as at::Tensor's destructor does."""
        f = self.function("release", "i", result=VOID)
        handle = f.words(1)
        f.call(self.shim("aoti_torch_new_uninitialized_tensor", "i"), handle)
        f.store(f.args[0], f.load(handle))
        f.call(self.shim("aoti_torch_delete_tensor_object", "i"), f.load(handle))
        f.b.ret_void()
        f.done()
        return f

    def _drop(self) -> Function:
        """(first value, how many): release what values of the interpreter's stack hold."""
        f = self.function("drop", "ii", result=VOID)
        first, n = f.args
        with f.loop(n) as i:
            value = f.b.add(first, f.b.shl(i, I64(4)))
            with f.b.if_then(BoxedArguments.counted(f, f.load32(f.word(value, 1)))):
                f.call(self.release, f.load(value))
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

    # --- a call ---
    def _call(self, arguments: UnboxedArguments | BoxedArguments) -> Function:
        """(operator's part, where the arguments are, outs) → what it came to."""
        make = self._make(arguments)
        one = self._one(arguments, make)
        every = self._every(arguments, make)
        f = self.function(f"call_{arguments.name}", "iii")
        mine, source, outs = f.args
        b = f.b
        result = f.entry.alloca(I64)
        lists = f.eq(f.load(mine, OP["gives"]), GIVES.index("nothing"))
        with b.if_else(lists) as (many, single):
            with many:
                b.store(f.call(every, mine, source), result)
            with single:
                b.store(f.call(one, mine, source, outs), result)
        code = b.load(result)
        with b.if_then(f.eq(code, _UNCOUNTED), likely=False):
            f.count(mine, OP["stock_calls"])
        b.ret(code)
        f.done()
        return f

    def _one(self, arguments: UnboxedArguments | BoxedArguments, make: Function) -> Function:
        """A call that is one problem."""
        f = self.function(f"one_{arguments.name}", "iii")
        mine, source, outs = f.args
        b = f.b
        frame = f.words(_FRAME)
        n = f.call(make, mine, source, I64(0), frame)
        f.exit_if(b.icmp_unsigned(">=", n, I64(MAX_KEY)), _UNCOUNTED)
        entry = f.call(self.find, f.load(mine, OP["number"]), frame, n)
        f.exit_if(f.eq(entry, 0), _UNCOUNTED)
        f.count(entry, ENTRY["calls"])
        f.exit_if(b.icmp_unsigned("!=", f.load(entry, ENTRY["passed"]), I64(0)), _STOCK)
        ok = f.call(self.serve, entry, frame, outs, f.load(mine, OP["results"]))
        with b.if_then(f.eq(ok, 0), likely=False):
            f.count(mine, OP["failed"])
        b.ret(ok)
        f.done()
        return f

    def _every(self, arguments: UnboxedArguments | BoxedArguments, make: Function) -> Function:
        """A call that is a problem for each place in its lists: all are taken, or stock serves the call.

        `decide` takes care that no plan can fail; should one do so after others have written, a call of
        stock's that must raise is all that is left.
        """
        f = self.function(f"every_{arguments.name}", "ii")
        mine, source = f.args
        b = f.b
        frame, outs = f.words(_FRAME), f.words(MAX_RESULTS)
        length = arguments.length(f, mine, source)
        f.exit_if(b.icmp_unsigned(">", b.sub(length, I64(1)), I64(_MAX_EACH - 1)), _UNCOUNTED)
        entries = b.ptrtoint(b.alloca(I64, length), I64)
        number = f.load(mine, OP["number"])
        with f.loop(length) as i:
            n = f.call(make, mine, source, i, frame)
            f.exit_if(b.icmp_unsigned(">=", n, I64(MAX_KEY)), _UNCOUNTED)
            entry = f.call(self.find, number, frame, n)
            f.exit_if(f.eq(entry, 0), _UNCOUNTED)
            with b.if_then(b.icmp_unsigned("!=", f.load(entry, ENTRY["passed"]), I64(0))):
                f.count(entry, ENTRY["calls"])
                b.ret(I64(_STOCK))
            f.store(entry, entries, i)
        f.count(f.load(entries), ENTRY["calls"])  # a call counts once, at the first tensors
        with f.loop(length) as i:
            f.call(make, mine, source, i, frame)
            ok = f.call(self.serve, f.load(entries, i), frame, outs, I64(0))
            with b.if_then(f.eq(ok, 0), likely=False):
                f.count(mine, OP["failed"])
                with b.if_then(b.icmp_unsigned(">", i, I64(0))):
                    arguments.spoil(f, source)
                b.ret(I64(_STOCK))
        b.ret(I64(_TAKEN))
        f.done()
        return f

    def _make(self, arguments: UnboxedArguments | BoxedArguments) -> Function:
        """(operator's part, where the arguments are, place in lists, frame) → words of the key, which stands
        in the frame with the tensors and scalars; MAX_KEY or more if stock must serve."""
        f = self.function(f"make_{arguments.name}", "iiii")
        mine, source, place, key = f.args
        b = f.b
        tensors, scalars = f.word(key, _TENSORS), f.word(key, _SCALARS)
        at, tensor, scalar, listed = (f.entry.alloca(I64) for _ in range(4))
        b.store(I64(1), at)
        b.store(I64(0), tensor)
        b.store(I64(0), scalar)
        b.store(I64(0), listed)
        odd, following = f.block("odd"), f.block("following")
        f.store(b.or_(b.shl(self.control(f, "epoch"), I64(16)), f.load(mine, OP["number"])), key)

        def push(*values: Any) -> None:
            start = b.load(at)
            for i, value in enumerate(values):
                f.store(value, key, b.add(start, I64(i)))
            b.store(b.add(start, I64(len(values))), at)

        def add_tensor(value: Any) -> None:
            """A tensor that is there: in the key, and the next of the call's."""
            n = b.load(tensor)
            f.go_if(b.icmp_unsigned(">=", n, I64(MAX_OUTER)), odd)
            f.store(value, tensors, n)
            b.store(b.add(n, I64(1)), tensor)
            b.store(f.call(self.key_tensor, value, key, b.load(at)), at)

        def add_optional(value: Any) -> None:
            given = f.block("given")
            absent = f.block("absent")
            f.go_if(f.eq(value, 0), absent)
            b.cbranch(f.eq(f.load(value), self.control(f, "undefined")), absent, given)
            b.position_at_end(absent)
            push(I64(-1))
            f.store(0, tensors, b.load(tensor))
            b.store(b.add(b.load(tensor), I64(1)), tensor)
            b.branch(following)
            b.position_at_end(given)
            add_tensor(value)

        with f.loop(f.load(mine, OP["arguments"])) as a:
            signature = b.add(f.load(mine, OP["signature"]), b.mul(a, I64(24)))
            f.go_if(b.icmp_unsigned(">=", b.load(at), I64(MAX_KEY)), odd)
            argument = arguments.at(f, source, a, signature)
            chosen = b.switch(f.load(signature), odd)
            for kind in KINDS:
                block = f.block(f"kind_{kind}")
                chosen.add_case(I64(KINDS.index(kind)), block)
                b.position_at_end(block)
                values = arguments.read(f, kind, argument, odd)
                if kind in "TM":
                    add_tensor(values[0])
                elif kind in "OR":
                    add_optional(values[0])
                elif kind == "N":
                    first, n, step = values
                    push(n)
                    f.go_if(b.icmp_unsigned(">", n, I64(MAX_OUTER)), odd)
                    with f.loop(n) as i:
                        f.go_if(b.icmp_unsigned(">=", b.load(at), I64(MAX_KEY)), odd)
                        add_tensor(b.add(first, b.mul(i, step)))
                elif kind == "E":
                    first, n, step = values
                    length = arguments.length(f, mine, source)
                    fits = b.or_(f.eq(n, 0), f.eq(n, length))
                    f.go_if(b.not_(fits), odd)
                    here = b.add(first, b.mul(place, step))
                    add_optional(b.select(f.eq(n, 0), I64(0), here))
                elif kind in "IJ":
                    values_at, n = values
                    with b.if_else(b.icmp_signed("<", n, I64(0))) as (none, some):
                        with none:
                            push(I64(-1))
                        with some:
                            b.store(f.call(self.key_list, values_at, n, key, b.load(at)), at)
                elif kind == "a":
                    first, n = values
                    f.go_if(b.icmp_unsigned(">", n, I64(24)), odd)
                    text = f.words(3)
                    for i in range(3):
                        f.store(0, text, i)
                    with f.loop(n) as i:
                        b.store(f.load8(b.add(first, i)), f.byte_pointer(b.add(text, i)))
                    push(n)
                    with f.loop(b.lshr(b.add(n, I64(7)), I64(3))) as i:
                        push(f.load(text, i))
                elif kind == "v":
                    n = b.load(scalar)
                    f.go_if(b.icmp_unsigned(">=", n, I64(MAX_SCALARS)), odd)
                    f.store(values[0], scalars, b.shl(n, I64(1)))
                    narrow = b.fptrunc(b.bitcast(values[0], F64), ir.FloatType())
                    single = b.zext(b.bitcast(narrow, I32), I64)
                    f.store(single, scalars, b.add(b.shl(n, I64(1)), I64(1)))
                    b.store(b.add(n, I64(1)), scalar)
                elif kind == "l":
                    first, n, step = values
                    place, lists = b.load(scalar), b.load(listed)
                    f.go_if(b.icmp_unsigned(">", n, I64(MAX_VALUES)), odd)
                    f.go_if(b.icmp_unsigned(">=", place, I64(MAX_SCALARS)), odd)
                    f.go_if(b.icmp_unsigned(">=", lists, I64(MAX_LISTS)), odd)
                    copy = f.word(f.word(key, _LISTS), b.mul(lists, I64(MAX_VALUES)))
                    with f.loop(n) as i:
                        f.store(f.load(b.add(first, b.mul(i, step))), copy, i)
                    f.store(copy, scalars, b.shl(place, I64(1)))
                    b.store(b.add(place, I64(1)), scalar)
                    b.store(b.add(lists, I64(1)), listed)
                    push(n)
                elif kind != "x":
                    push(*values)
                b.branch(following)
            b.position_at_end(following)
        b.ret(b.load(at))
        b.position_at_end(odd)
        b.ret(I64(_OVER))
        f.done()
        return f

    # --- the adapters ---
    def _gate(self, f: Function, mine: Any, stock: Any) -> None:
        """Go to stock at once where this operator is off; a few nanoseconds."""
        on = f.load(mine, OP["on"])
        f.go_if(f.eq(on, 0), stock)
        with f.b.if_then(f.b.icmp_unsigned(">=", on, I64(ASK_THREAD)), likely=False):
            f.go_if(f.eq(f.call(self.wanted, mine), 0), stock)

    def _unboxed(self, shape: Shape, number: int, call: Function) -> Function:
        """The C++ signature of stock's kernel."""
        result = VOID if shape.gives == "nothing" else I64
        f = self.function(f"unboxed_{number}", shape.types, result=result)
        b, args = f.b, f.args
        mine = args[shape.functor]
        stock, taken, left = f.block("stock"), f.block("taken"), f.block("left")
        self._gate(f, mine, stock)
        source, outs = f.words(len(args)), f.words(MAX_RESULTS)
        for i, (value, type_) in enumerate(zip(args, shape.types)):
            if i >= shape.first:
                f.store(b.bitcast(value, I64) if type_ == "f" else value, source, i)
        b.cbranch(f.eq(f.call(call, mine, source, outs), _TAKEN), taken, left)
        b.position_at_end(taken)
        if shape.gives == "memory":  # a std::tuple of libstdc++ lies last element first
            n = f.load(mine, OP["results"])
            with f.loop(n) as r:
                f.store(f.load(outs, r), args[0], b.sub(b.sub(n, I64(1)), r))
            b.ret(args[0])
        elif shape.gives == "first":
            b.ret(args[shape.first])
        else:
            b.ret_void()

        def hand_on(words: list[Any]) -> None:
            words[shape.functor] = f.load(mine, OP["functor"])
            target = f.pointer(f.load(mine, OP["unboxed"]), f.f.function_type)
            code = b.call(target, words, tail="musttail")
            if shape.gives == "nothing":
                b.ret_void()
            else:
                b.ret(code)

        b.position_at_end(left)
        if shape.gives == "nothing":  # its words may have been spoilt
            hand_on([
                value if i < shape.first or t == "f" else f.load(source, i)
                for i, (value, t) in enumerate(zip(args, shape.types))
            ])  # fmt: skip
        else:
            b.branch(stock)
        b.position_at_end(stock)
        hand_on(list(args))
        f.done()
        return f

    def _boxed(self, call: Function) -> Function:
        """void (OperatorKernel*, const OperatorHandle&, DispatchKeySet, std::vector<IValue>*)"""
        f = self.function("boxed", "iiii", result=VOID)
        b, args = f.b, f.args
        mine, stack = args[0], args[3]
        stock, taken = f.block("stock"), f.block("taken")
        self._gate(f, mine, stock)
        outs = f.words(MAX_RESULTS)
        n, results = f.load(mine, OP["arguments"]), f.load(mine, OP["results"])
        base = b.sub(f.load(stack, 1), b.shl(n, I64(4)))
        end = b.add(base, b.shl(results, I64(4)))
        f.go_if(b.icmp_unsigned(">", end, f.load(stack, 2)), stock)  # the vector would have to grow
        b.cbranch(f.eq(f.call(call, mine, base, outs), _TAKEN), taken, stock)
        b.position_at_end(taken)
        # one that changes its first argument leaves it on the stack as the result
        stays = f.eq(f.load(mine, OP["gives"]), GIVES.index("first"))
        kept = b.select(stays, I64(1), I64(0))
        f.call(self.drop, b.add(base, b.shl(kept, I64(4))), b.sub(n, kept))
        with f.loop(results) as r:
            BoxedArguments.put_tensor(f, f.load(outs, r), b.add(base, b.shl(r, I64(4))))
        f.store(b.add(base, b.shl(b.add(results, kept), I64(4))), stack, 1)
        b.ret_void()
        b.position_at_end(stock)
        target = f.pointer(f.load(mine, OP["boxed"]), f.f.function_type)
        b.call(target, [f.load(mine, OP["functor"]), *args[1:]], tail="musttail")
        b.ret_void()
        f.done()
        return f


def build(operators: Sequence[Operator] = OPERATORS) -> str:
    """The module's text."""
    return str(_Adapters(operators).m)
