"""Element types: one short name each (f32, bf16, …), its size, and what others call it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from vlug.errors import DTypeError

__all__ = ["BF16", "BOOL", "F16", "F32", "F64", "I32", "I64", "U8", "DType", "dtype"]


@dataclass(frozen=True)
class DType:
    """An element type. `name` is what stands in problem lines; `kind` is f (float), i, u or b."""

    name: str
    long_name: str
    kind: str
    itemsize: int
    mantissa: int = 0

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type (bfloat16 through ml_dtypes)."""
        return _numpy(self.name)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def eps(self) -> float:
        """Distance from 1 to the next larger number (floating types)."""
        return 2.0**-self.mantissa

    def __str__(self) -> str:
        return self.name


F64 = DType("f64", "float64", "f", 8, 52)
F32 = DType("f32", "float32", "f", 4, 23)
F16 = DType("f16", "float16", "f", 2, 10)
BF16 = DType("bf16", "bfloat16", "f", 2, 7)
I64 = DType("i64", "int64", "i", 8)
I32 = DType("i32", "int32", "i", 4)
U8 = DType("u8", "uint8", "u", 1)
BOOL = DType("bool", "bool", "b", 1)

_ALL = (F64, F32, F16, BF16, I64, I32, U8, BOOL)
_NAMES = {n: d for d in _ALL for n in (d.name, d.long_name)}


@cache
def _numpy(name: str) -> np.dtype[Any]:
    if name == "bf16":
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    else:
        found = np.dtype(_NAMES[name].long_name)
    return found


def dtype(of: Any, argument: str = "dtype") -> DType:
    """The DType of a DType, a name ("f32", "float32") or a dtype or type of NumPy's.

    Raises DTypeError naming `argument` for a type that vlug does not have.
    """
    if isinstance(of, DType):
        return of
    name = of if isinstance(of, str) else getattr(of, "name", None)
    if not isinstance(name, str) or (name not in _NAMES and not isinstance(of, str)):
        try:
            name = np.dtype(of).name
        except TypeError:
            name = repr(of)
    found = _NAMES.get(name)
    if found is None:
        raise DTypeError(f"{argument}: {name} is not one of {', '.join(d.name for d in _ALL)}")
    return found
