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
    "//": lambda a, b: a // (b or 1),
    "%": lambda a, b: a % (b or 1),
    "min": min,
    "max": max,
}


def reckon(
    f: Formula, value: Callable[[str], Any], operators: Mapping[str, Callable[[Any, Any], Any]] = OPERATORS
) -> Any:
    """What a formula comes to, with `value` of each argument: a number, or code that computes it."""
    stack: list[Any] = []
    for x in f:
        if isinstance(x, int):
            stack.append(x)
        elif x in operators:
            b, a = stack.pop(), stack.pop()
            stack.append(operators[x](a, b))
        else:
            stack.append(value(x))
    return stack[0]


def evaluate(f: Formula, values: Mapping[str, int | float]) -> int:
    """The value of a formula for given arguments."""
    return int(reckon(f, lambda name: int(values[name])))
