"""Where the System V x86-64 calling convention puts the arguments of PyTorch's unboxed kernels.

`Result (*)(OperatorKernel*, DispatchKeySet, arguments…)`: tensors come as pointers, results (not trivially
copyable) through a pointer in the first register. Every word that crosses is an int64 or a double here, in
registers or on the stack, so that an adapter can hand exactly the same words to stock's kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlug.frontends.torch.operators import Operator

__all__ = ["Layout", "layout"]

#: How each kind travels: g one general word, gg an aggregate of two words (never split between registers and
#: stack), mmm an aggregate of three words (always on the stack), f a floating-point register.
_CLASS = {
    "T": "g", "M": "g", "O": "g", "R": "g", "I": "gg", "J": "mmm", "i": "g", "s": "g", "b": "g", "x": "g",
    "d": "f", "B": "g", "S": "g", "P": "gg", "L": "g", "t": "g",
}  # fmt: skip
_REGISTERS, _FLOATS = 6, 8


@dataclass(frozen=True)
class Layout:
    """The physical parameters of one operator's kernel, as LLVM assigns them in this very order.

    types:  "i" (int64) or "f" (double) for each parameter: general registers, floating ones, then the stack.
    words:  the parameters that hold each argument.
    result: parameter of the result's address, -1 if the result comes back in a register.
    functor, keys: parameters of the OperatorKernel* and of the DispatchKeySet.
    """

    types: str
    words: tuple[tuple[int, ...], ...]
    result: int
    functor: int
    keys: int


def layout(op: Operator) -> Layout:
    """Where each argument of an operator's kernel lies."""
    head = ["g"] * (3 if op.results else 2)
    registers: list[tuple[int, int]] = []
    floats: list[tuple[int, int]] = []
    stack: list[tuple[int, int]] = []
    for at, kind in enumerate([*head, *(_CLASS[k] for k in op.kinds)]):
        if kind == "f":
            (floats if len(floats) < _FLOATS else stack).append((at, 0))
            continue
        fits = kind[0] == "g" and len(registers) + len(kind) <= _REGISTERS
        (registers if fits else stack).extend((at, i) for i in range(len(kind)))
    order = [*registers, *floats, *stack]
    types = "".join("f" if p in floats else "i" for p in order)
    place = {p: i for i, p in enumerate(order)}
    words = tuple(
        tuple(place[at + len(head), i] for i in range(len(_CLASS[k]))) for at, k in enumerate(op.kinds)
    )
    first = len(head) - 2
    return Layout(types, words, place[0, 0] if op.results else -1, place[first, 0], place[first + 1, 0])

