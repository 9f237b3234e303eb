"""The vocabulary in one place: what a kernel's source imports."""

from vlug.codegen.kernel import Kernel
from vlug.codegen.values import (
    Idx,
    Int,
    Lanes,
    Val,
    Var,
    absolute,
    ceil,
    copysign,
    floor,
    fma,
    larger,
    maximum,
    minimum,
    reduce,
    round_even,
    select,
    shuffle,
    smaller,
    sqrt,
    transpose,
    truncate,
)
from vlug.codegen.view import View

__all__ = [
    "Idx", "Int", "Kernel", "Lanes", "Val", "Var", "View", "absolute", "ceil", "copysign", "floor", "fma",
    "larger", "maximum", "minimum", "reduce", "round_even", "select", "shuffle", "smaller", "sqrt",
    "transpose", "truncate",
]
