"""The key of a call, as an adapter makes it, read back: what each argument is."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlug.dtypes import BF16, BOOL, F16, F32, F64, I32, I64, U8, DType
from vlug.frontends.torch.operators import TENSOR_KINDS, Operator
from vlug.tensor import Tensor, channels_last_strides, contiguous_strides

__all__ = ["Arg", "Pass", "Varying", "VaryingList", "read_key", "torch_dtype"]

#: PyTorch's numbers of the element types that we take (c10::ScalarType).
_DTYPES = {0: U8, 3: I32, 4: I64, 5: F16, 6: F32, 7: F64, 11: BOOL, 15: BF16}
_NAMES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
    8: "complex32", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16",
}  # fmt: skip
_NUMBERS = {d.name: n for n, d in _DTYPES.items()}


class Pass(Exception):
    """The call is stock's; the message is the reason, as `vlug.stats()` shows it."""


def torch_dtype(d: DType) -> int:
    """PyTorch's number of an element type."""
    return _NUMBERS[d.name]


@dataclass(frozen=True)
class Arg:
    """A tensor argument: PyTorch's number of its dtype, dims and strides in elements, its place among the
    tensor arguments."""

    number: int
    dim: tuple[int, ...]
    stride: tuple[int, ...]
    place: int

    @property
    def dtype(self) -> DType:
        """Raises Pass for an element type that no operation takes."""
        found = _DTYPES.get(self.number)
        if found is None:
            raise Pass(f"dtype {_NAMES.get(self.number, self.number)}")
        return found

    @property
    def rank(self) -> int:
        return len(self.dim)

    def tensor(self, name: str) -> Tensor:
        """What a graph knows of it."""
        return Tensor(self.dim, self.stride, self.dtype, name).normalised.renamed(name)

    @property
    def is_contiguous(self) -> bool:
        return self._has(contiguous_strides(self.dim))

    @property
    def is_channels_last(self) -> bool:
        return self.rank == 4 and self._has(channels_last_strides(self.dim))

    def _has(self, strides: Sequence[int]) -> bool:
        return 0 in self.dim or all(d == 1 or s == w for d, s, w in zip(self.dim, self.stride, strides))

    @property
    def is_dense(self) -> bool:
        """Whether the elements fill a stretch of memory, each once."""
        reach = 1
        for s, d in sorted((s, d) for d, s in zip(self.dim, self.stride) if d > 1):
            if s != reach:
                return False
            reach *= d
        return True

    @property
    def suggests_channels_last(self) -> bool:
        """PyTorch's guess of the memory format from strides (c10 `is_channels_last_strides_2d`): where C is
        1 or planes are 1×1 several formats fit, and this says which one its kernels give their results."""
        if self.rank != 4 or self.stride[1] == 0:
            return False
        least = 0
        for d in (1, 3, 2, 0):
            if self.dim[d] == 0 or self.stride[d] < least:
                return False
            if d == 0 and least == self.stride[1]:
                return False
            least = self.stride[d] * max(self.dim[d], 1)
        return True


@dataclass(frozen=True)
class Varying:
    """A number that is not in the key: it comes with each call. Its place among those."""

    place: int


@dataclass(frozen=True)
class VaryingList:
    """Integers that are not in the key, but for how many: they come with each call. Place as Varying's."""

    place: int
    length: int


def read_key(op: Operator, key: Sequence[int]) -> list[Any]:
    """The arguments of a call: Arg or None, tuples of Arg or of int, int, bool, float, str, Varying…"""
    at = 1
    places = scalars = 0
    out: list[Any] = []

    def word() -> int:
        nonlocal at
        at += 1
        return key[at - 1]

    def ints(n: int) -> tuple[int, ...]:
        return tuple(word() for _ in range(n))

    def tensor() -> Arg | None:
        nonlocal places
        head = word()
        places += 1
        if head == -1:
            return None
        rank = head & 255
        return Arg(head >> 8, ints(rank), ints(rank), places - 1)

    for kind in op.kinds:
        if kind in TENSOR_KINDS:
            out.append(tensor())
        elif kind == "N":
            out.append(tuple(tensor() for _ in range(word())))
        elif kind in "IJ":
            n = word()
            out.append(None if n == -1 else ints(n))
        elif kind == "x":
            out.append(None)
        elif kind == "v":
            out.append(Varying(scalars))
            scalars += 1
        elif kind == "l":
            out.append(VaryingList(scalars, word()))
            scalars += 1
        elif kind == "b":
            out.append(bool(word()))
        elif kind == "d":
            out.append(_double(word()))
        elif kind in "BC":
            mask = word()
            out.append(tuple(bool(mask >> 8 * i & 255) for i in range(3 if kind == "B" else 2)))
        elif kind in "SF":
            tag, bits = ints(2)
            out.append(_double(bits) if tag == 0 else bits if tag in (1, 4) else None)
        elif kind in "PD":
            given, value = ints(2)
            out.append(None if not given else value if kind == "P" else _double(value))
        elif kind in "Lo":
            number = word()
            out.append(None if number == -1 else bool(number) if kind == "o" else number)
        elif kind == "a":
            n = word()
            text = struct.pack(f"{-(-n // 8)}q", *ints(-(-n // 8)))
            out.append(text[:n].decode(errors="replace"))
        else:
            out.append(word())
    return out


def _double(bits: int) -> float:
    value: float = struct.unpack("d", struct.pack("q", bits))[0]
    return value
