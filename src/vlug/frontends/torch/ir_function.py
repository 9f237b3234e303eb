"""A small builder for the adapters' LLVM IR: int64 values, words in memory, loops and early exits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.ir as ir

__all__ = ["F64", "I32", "I64", "VOID", "Function"]

I64, I32, I8, F64, VOID = ir.IntType(64), ir.IntType(32), ir.IntType(8), ir.DoubleType(), ir.VoidType()


class Function:
    """A function under construction: int64 values, words in memory, loops and branches."""

    def __init__(self, module: ir.Module, name: str, types: str, result: Any = I64, internal: bool = True):
        params = [F64 if t == "f" else I64 for t in types]
        self.f = ir.Function(module, ir.FunctionType(result, params), name)
        self.f.attributes.add("uwtable")  # stock's exceptions pass through boxed calls of ours
        if internal:
            self.f.linkage = "internal"
        self.entry = ir.IRBuilder(self.f.append_basic_block("entry"))
        self.b = ir.IRBuilder(self.f.append_basic_block("start"))
        self.args = self.f.args

    def done(self) -> None:
        self.entry.branch(self.f.basic_blocks[1])

    def words(self, n: int) -> Any:
        """Address of `n` words on this function's frame (always made in the entry block)."""
        return self.entry.ptrtoint(self.entry.alloca(ir.ArrayType(I64, n)), I64)

    def pointer(self, address: Any, type_: Any) -> Any:
        return self.b.inttoptr(address, type_.as_pointer())

    def word(self, address: Any, i: Any = 0) -> Any:
        """Address of word i."""
        if isinstance(i, int):
            return address if i == 0 else self.b.add(address, I64(8 * i))
        return self.b.add(address, self.b.shl(i, I64(3)))

    def load(self, address: Any, i: Any = 0) -> Any:
        return self.b.load(self.pointer(self.word(address, i), I64))

    def load32(self, address: Any) -> Any:
        return self.b.zext(self.b.load(self.pointer(address, I32)), I64)

    def load8(self, address: Any) -> Any:
        return self.b.load(self.byte_pointer(address))

    def byte_pointer(self, address: Any) -> Any:
        return self.pointer(address, I8)

    def acquire(self, address: Any, i: Any = 0) -> Any:
        return self.b.load_atomic(self.pointer(self.word(address, i), I64), "acquire", 8)

    def store(self, value: Any, address: Any, i: Any = 0) -> None:
        held = I64(value) if isinstance(value, int) else value
        self.b.store(held, self.pointer(self.word(address, i), I64))

    def count(self, address: Any, i: int) -> None:
        self.b.atomic_rmw("add", self.pointer(self.word(address, i), I64), I64(1), "monotonic")

    def call(self, target: Any, *args: Any, result: Any = I64) -> Any:
        """Call a function of the module, or an address (int64 arguments)."""
        if isinstance(target, Function):
            return self.b.call(target.f, args)
        if not isinstance(target, ir.Function):
            target = self.pointer(target, ir.FunctionType(result, [a.type for a in args]))
        return self.b.call(target, args)

    def eq(self, a: Any, b: int | Any) -> Any:
        return self.b.icmp_unsigned("==", a, I64(b) if isinstance(b, int) else b)

    def block(self, name: str = "") -> Any:
        return self.f.append_basic_block(name)

    @contextmanager
    def loop(self, n: Any) -> Iterator[Any]:
        """Body for i in 0 … n - 1."""
        b, before = self.b, self.b.block
        head, body, end = self.block("head"), self.block("body"), self.block("end")
        b.branch(head)
        b.position_at_end(head)
        i = b.phi(I64)
        i.add_incoming(I64(0), before)
        b.cbranch(b.icmp_signed("<", i, n), body, end)
        b.position_at_end(body)
        yield i
        i.add_incoming(b.add(i, I64(1)), b.block)
        b.branch(head)
        b.position_at_end(end)

    def exit_if(self, condition: Any, value: int | Any) -> None:
        """Return `value` if the condition holds."""
        with self.b.if_then(condition):
            self.b.ret(I64(value) if isinstance(value, int) else value)

    def go_if(self, condition: Any, target: Any) -> None:
        """Branch to a block if the condition holds; go on otherwise."""
        on = self.block()
        self.b.cbranch(condition, target, on)
        self.b.position_at_end(on)
