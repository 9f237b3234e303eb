"""How the adapters read an argument of each kind (`operators.py`): from a C++ call, or from boxed values.

`at` finds an argument, `read` gives its values for the key, as int64:
  tensors: the address of an at::Tensor, 0 for none. Lists I, J: values' address, length (-1: none).
  N, E, l: address of the first at::Tensor or value, length, bytes from one to the next.
  a: characters' address, length.
  S, F: tag (-1: none), bits. P, D: whether given, value (0 for none). L, o: value or -1. Others: the value.
Whatever is not as expected branches to `odd`: stock serves it.
"""

from __future__ import annotations

from typing import Any

from vlug.frontends.torch.ir_function import I64, Function

__all__ = ["MAX_LIST", "BoxedArguments", "UnboxedArguments"]

#: Most integers or flags in a list.
MAX_LIST = 8
#: Tags of c10::IValue (checked by the canary): what may lie on the interpreter's stack.
_NONE, _TENSOR, _DOUBLE, _INT, _BOOL, _STRING, _LIST = 0, 1, 3, 5, 10, 12, 14
#: Tags of c10::Scalar.
_SCALAR_DOUBLE, _SCALAR_INT, _SCALAR_BOOL = 0, 1, 4
#: Where a counted object's own members begin, after the vtable and the counts: the std::vector<IValue> of
#: c10::ListImpl, the std::string of c10::ivalue::ConstantString.
_MEMBERS = 2
#: Tag of an at::ITensorListRef that refers to an ArrayRef.
_UNBOXED = 0


class UnboxedArguments:
    """`source` holds the kernel's parameters in order."""

    name = "unboxed"

    def at(self, f: Function, source: Any, number: Any, signature: Any) -> tuple[Any, ...]:
        """An argument's first two words' addresses."""
        return tuple(f.word(source, f.load(signature, i)) for i in (1, 2))

    def length(self, f: Function, mine: Any, source: Any) -> Any:
        """Length of the first argument, a list."""
        return f.load(source, 3)

    def spoil(self, f: Function, source: Any) -> None:
        """Make the call one that stock refuses: its first list is longer than the others."""
        f.store(f.b.add(f.load(source, 3), I64(1)), source, 3)

    def read(self, f: Function, kind: str, argument: tuple[Any, ...], odd: Any) -> tuple[Any, ...]:
        b = f.b
        value = f.load(argument[0])

        def second() -> Any:
            return f.load(argument[1])

        def byte(v: Any, shift: int = 0) -> Any:
            return b.and_(b.lshr(v, I64(shift)) if shift else v, I64(255))

        def there(flag: Any, v: Any, otherwise: int) -> Any:
            return b.select(f.eq(flag, 0), I64(otherwise), v)

        if kind in "OR":  # std::optional<Tensor>: the tensor, then whether it is there
            return (there(byte(f.load(value, 1)), value, 0),)
        if kind == "I":
            return value, second()
        if kind == "J":  # pointer, length, whether it is there
            return value, there(byte(f.load(argument[1], 1)), second(), -1)
        if kind in "PD":
            given = byte(second())
            return given, there(given, value, 0)
        if kind == "s":
            return (f.load(value),)
        if kind in "bxt":
            return (byte(value),)
        if kind in "Lo":  # the value, then whether it is there, in two bytes
            return (there(byte(value, 8), byte(value), -1),)
        if kind == "B":
            return (b.and_(value, I64(0xFFFFFF)),)
        if kind == "C":
            return (b.and_(value, I64(0xFFFF)),)
        if kind == "S":
            return f.load32(value), f.load(value, 2)
        if kind == "F":  # the Scalar (four words), then whether it is there
            given = byte(f.load(value, 4))
            return there(given, f.load32(value), -1), there(given, f.load(value, 2), 0)
        if kind == "a":  # a std::string_view of libstdc++: the length comes first
            return second(), value
        if kind == "N":  # an at::ITensorListRef: pointer, length, tag
            f.go_if(b.icmp_unsigned("!=", f.load32(f.word(value, 2)), I64(_UNBOXED)), odd)
            return f.load(value), f.load(value, 1), I64(8)
        if kind in "El":
            return value, second(), I64(8)
        return (value,)


class BoxedArguments:
    """`source` is the first argument's c10::IValue: a word, and a tag in the next."""

    name = "boxed"

    def at(self, f: Function, source: Any, number: Any, signature: Any) -> tuple[Any, ...]:
        """An argument's address, its tag and its word."""
        where = f.b.add(source, f.b.shl(number, I64(4)))
        return where, f.load32(f.word(where, 1)), f.load(where)

    def length(self, f: Function, mine: Any, source: Any) -> Any:
        """Length of the first argument, 0 if that is no list."""
        b = f.b
        n = f.entry.alloca(I64)
        b.store(I64(0), n)
        with b.if_then(f.eq(f.load32(f.word(source, 1)), _LIST)):
            b.store(_items(f, f.load(source))[1], n)
        return b.load(n)

    def spoil(self, f: Function, source: Any) -> None:
        """Make the call one that stock refuses: its first argument is no list any more."""
        f.store(_NONE, source, 1)

    @staticmethod
    def counted(f: Function, tag: Any) -> Any:
        """Whether a value with this tag, of those we take, holds a reference to release."""
        b = f.b
        return b.or_(b.or_(f.eq(tag, _TENSOR), f.eq(tag, _LIST)), f.eq(tag, _STRING))

    @staticmethod
    def put_tensor(f: Function, tensor: Any, where: Any) -> None:
        f.store(tensor, where)
        f.store(_TENSOR, where, 1)

    def read(self, f: Function, kind: str, argument: tuple[Any, ...], odd: Any) -> tuple[Any, ...]:
        b = f.b
        where, tag, value = argument
        absent = f.eq(tag, _NONE)

        def expect(wanted: int, optional: bool = False) -> None:
            fits = f.eq(tag, wanted)
            f.go_if(b.not_(b.or_(absent, fits) if optional else fits), odd)

        if kind in "TM":
            expect(_TENSOR)
            return (where,)
        if kind in "OR":
            expect(_TENSOR, True)
            return (b.select(absent, I64(0), where),)
        if kind in "ist":
            expect(_INT)
            return (value,)
        if kind in "bx":
            expect(_BOOL)
            return (b.and_(value, I64(255)),)
        if kind in "dv":
            expect(_DOUBLE)
            return (value,)
        if kind == "L":
            expect(_INT, True)
            return (b.select(absent, I64(-1), value),)
        if kind == "o":
            expect(_BOOL, True)
            return (b.select(absent, I64(-1), b.and_(value, I64(255))),)
        if kind in "PD":
            expect(_INT if kind == "P" else _DOUBLE, True)
            return b.select(absent, I64(0), I64(1)), b.select(absent, I64(0), value)
        if kind in "SF":
            is_double, is_bool = f.eq(tag, _DOUBLE), f.eq(tag, _BOOL)
            known = b.or_(b.or_(is_double, f.eq(tag, _INT)), is_bool)
            f.go_if(b.not_(b.or_(known, absent) if kind == "F" else known), odd)
            number = b.select(is_double, I64(_SCALAR_DOUBLE), I64(_SCALAR_INT))
            number = b.select(is_bool, I64(_SCALAR_BOOL), number)
            bits = b.select(is_bool, b.and_(value, I64(255)), value)
            if kind == "F":
                number, bits = b.select(absent, I64(-1), number), b.select(absent, I64(0), bits)
            return number, bits
        if kind == "a":
            expect(_STRING)
            return f.load(value, _MEMBERS), f.load(value, _MEMBERS + 1)
        if kind in "NEl":
            expect(_LIST)
            first, n = _items(f, value)
            self._all_are(f, first, n, _INT if kind == "l" else _TENSOR, odd)
            return first, n, I64(16)
        return self._plain_list(f, kind, tag, value, odd)

    def _all_are(self, f: Function, first: Any, n: Any, tag: int, odd: Any) -> None:
        with f.loop(n) as i:
            item = f.b.add(first, f.b.shl(i, I64(4)))
            f.go_if(f.b.icmp_unsigned("!=", f.load32(f.word(item, 1)), I64(tag)), odd)

    def _plain_list(self, f: Function, kind: str, tag: Any, value: Any, odd: Any) -> tuple[Any, ...]:
        """Integers or flags as plain words; with a symbolic value among them stock serves."""
        b = f.b
        copy, length = f.words(MAX_LIST), f.words(1)
        f.store(-1, length)
        read, done = f.block("read"), f.block("done")
        if kind == "J":
            f.go_if(f.eq(tag, _NONE), done)
        b.branch(read)
        b.position_at_end(read)
        f.go_if(b.icmp_unsigned("!=", tag, I64(_LIST)), odd)
        first, n = _items(f, value)
        f.go_if(b.icmp_unsigned(">", n, I64(MAX_LIST)), odd)
        self._all_are(f, first, n, _BOOL if kind in "BC" else _INT, odd)
        with f.loop(n) as i:
            f.store(f.load(b.add(first, b.shl(i, I64(4)))), copy, i)
        f.store(n, length)
        b.branch(done)
        b.position_at_end(done)
        if kind in "IJ":
            return copy, f.load(length)
        flags = 3 if kind == "B" else 2
        f.go_if(b.icmp_unsigned("!=", f.load(length), I64(flags)), odd)
        packed: Any = I64(0)
        for i in range(flags):
            packed = b.or_(packed, b.shl(b.and_(f.load(copy, i), I64(1)), I64(8 * i)))
        return (packed,)


def _items(f: Function, list_: Any) -> tuple[Any, Any]:
    """First value and length of a c10::List."""
    first = f.load(list_, _MEMBERS)
    return first, f.b.lshr(f.b.sub(f.load(list_, _MEMBERS + 1), first), I64(4))
