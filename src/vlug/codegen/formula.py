"""How a number of bytes follows from a program's arguments: formulas in reverse Polish notation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: Names of arguments, ints and operators: ("N", 4, "*") is 4 N.
Formula = tuple[Any, ...]

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
}


def evaluate(f: Formula, values: Mapping[str, int | float]) -> int:
    """The value of a formula for given arguments."""
    stack: list[int] = []
    for x in f:
        if isinstance(x, int):
            stack.append(x)
        elif x in OPERATORS:
            b, a = stack.pop(), stack.pop()
            stack.append(OPERATORS[x](a, b))
        else:
            stack.append(int(values[x]))
    return stack[0]
