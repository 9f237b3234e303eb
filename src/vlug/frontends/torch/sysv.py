"""Where the System V x86-64 calling convention puts the arguments of PyTorch's unboxed kernels.

`Result (*)(OperatorKernel*, DispatchKeySet, arguments…)`: tensors come as pointers, results (not trivially
copyable) through a pointer in the first register. Every word that crosses is an int64 or a double here, in
registers or on the stack, so that an adapter can hand exactly the same words to stock's kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from vlug.frontends.torch.operators import Operator

__all__ = ["Layout", "Shape", "layout", "shapes"]

#: How each kind travels: g a general word, f a floating-point register; an aggregate of two words goes as a
#: whole, in registers or on the stack (gg both general, fg a double and its flag); mmm an aggregate of three
#: words, always on the stack.
_CLASS = {
    "T": "g", "M": "g", "O": "g", "R": "g", "I": "gg", "J": "mmm", "i": "g", "s": "g", "b": "g", "x": "g",
    "d": "f", "D": "fg", "S": "g", "B": "g", "C": "g", "F": "g", "P": "gg", "o": "g", "a": "gg", "L": "g",
    "t": "g", "N": "g", "E": "gg", "v": "f", "l": "gg",
}  # fmt: skip
_REGISTERS, _FLOATS = 6, 8


@dataclass(frozen=True)
class Shape:
    """The machine's view of a kernel; operators of one shape share an adapter.

    types: "i" (int64) or "f" (double) for each parameter, as LLVM assigns them in this very order: general
           registers, floating ones, then the stack.
    gives: how it returns, as `Operator.gives`.
    each:  whether lists are taken a tensor at a time.
    """

    types: str
    gives: str
    each: bool

    @property
    def functor(self) -> int:
        """The parameter of the OperatorKernel*; the result's address, where there is one, comes first."""
        return 1 if self.gives == "memory" else 0

    @property
    def first(self) -> int:
        """The parameter of the first argument."""
        return self.functor + 2


@dataclass(frozen=True)
class Layout:
    """A kernel's shape, and the parameters that hold each argument's words."""

    shape: Shape
    words: tuple[tuple[int, ...], ...]


@cache
def layout(op: Operator) -> Layout:
    """Where each argument of an operator's kernel lies."""
    head = ["g"] * (3 if op.gives == "memory" else 2)
    registers: list[tuple[int, int]] = []
    floats: list[tuple[int, int]] = []
    stack: list[tuple[int, int]] = []
    for at, kind in enumerate([*head, *(_CLASS[k] for k in op.kinds)]):
        general, floating = kind.count("g"), kind.count("f")
        room = len(registers) + general <= _REGISTERS and len(floats) + floating <= _FLOATS
        fits = room and "m" not in kind
        for i, c in enumerate(kind):
            (stack if not fits else floats if c == "f" else registers).append((at, i))
    if stack:  # a register that an aggregate was too wide for: else the stack's first word would go there
        registers += [(-1, i) for i in range(_REGISTERS - len(registers))]
    order = [*registers, *floats, *stack]
    place = {p: i for i, p in enumerate(order)}
    words = tuple(
        tuple(place[at + len(head), i] for i in range(len(_CLASS[k]))) for at, k in enumerate(op.kinds)
    )
    types = "i" * len(registers) + "f" * len(floats) + "i" * len(stack)
    return Layout(Shape(types, op.gives, op.each), words)


def shapes(operators: Sequence[Operator]) -> tuple[Shape, ...]:
    """The shapes of operators, each once."""
    return tuple(dict.fromkeys(layout(op).shape for op in operators))
