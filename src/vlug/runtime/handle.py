"""Arrays in and out (NumPy, DLPack, array interface, buffers): pointer, shape, strides, type."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlug.dtypes import BF16, DType, dtype
from vlug.errors import BadInput, DTypeError

__all__ = ["Array", "array", "empty"]

ALIGNMENT = 64


@dataclass(frozen=True)
class Array:
    """Someone's memory on the CPU. Strides count elements; `owner` keeps the memory alive."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    readonly: bool
    owner: Any = field(compare=False, repr=False)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def numpy(self) -> NDArray[np.generic]:
        """The same memory as a NumPy array (bfloat16 through ml_dtypes)."""
        if isinstance(self.owner, np.ndarray) and self.owner.ctypes.data == self.pointer:
            return self.owner
        raw = np.asarray(_Interface(self))
        return raw.view(self.dtype.numpy) if raw.dtype != self.dtype.numpy else raw


class _Interface:
    """The NumPy array interface of an Array."""

    def __init__(self, a: Array):
        self.owner = a
        raw = a.dtype.numpy
        kind = f"<u{a.dtype.itemsize}" if raw.kind == "V" or a.dtype is BF16 else raw.str
        self.__array_interface__ = {
            "version": 3,
            "shape": a.shape,
            "strides": tuple(s * a.dtype.itemsize for s in a.strides),
            "typestr": kind,
            "data": (a.pointer, a.readonly),
        }


def array(x: Any, argument: str = "x", writable: bool = False) -> Array:
    """What lies behind a NumPy array, a CPU tensor with DLPack, or a buffer. No copy is made.

    Raises BadInput (DTypeError for an element type that vlug does not have) naming `argument`.
    """
    if isinstance(x, Array):
        found = x
    elif isinstance(x, np.ma.MaskedArray):
        raise BadInput(f"{argument}: a masked array has elements that do not count; fill it first")
    elif isinstance(x, np.ndarray):
        found = _from_numpy(x, argument)
    elif hasattr(x, "__dlpack__"):
        found = _from_dlpack(x, argument)
    elif hasattr(x, "__array_interface__"):
        try:
            lent = np.asarray(x)
        except (TypeError, ValueError, AttributeError) as e:
            raise BadInput(f"{argument}: {type(x).__name__}'s array interface is not valid: {e}") from e
        found = _from_numpy(lent, argument)
    else:
        try:
            found = _from_numpy(np.asarray(memoryview(x)), argument)
        except (TypeError, ValueError):
            raise BadInput(
                f"{argument}: {type(x).__name__} is no array: allowed are NumPy arrays and what has DLPack, "
                "the array interface or the buffer protocol"
            ) from None
    if writable and found.readonly:
        raise BadInput(f"{argument}: the array is read-only and would be written to")
    return found


_KNOWN: dict[Any, DType] = {}  # element types by NumPy's


def _from_numpy(x: NDArray[Any], argument: str) -> Array:
    if not x.dtype.isnative:
        raise DTypeError(f"{argument}: byte order of {x.dtype} is not the machine's")
    item = x.dtype.itemsize
    kind = _KNOWN.get(x.dtype)
    if kind is None:
        kind = _KNOWN[x.dtype] = dtype(x.dtype, argument)  # several microseconds
    if any(s % item for s, d in zip(x.strides, x.shape, strict=True) if d > 1):
        raise BadInput(f"{argument}: byte strides {x.strides} are not multiples of the element's {item}")
    strides = tuple(s // item for s in x.strides)
    return Array(x.ctypes.data, x.shape, strides, kind, not x.flags.writeable, x)


# --- DLPack (the C structures of dlpack.h) ---
class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_CPU_DEVICES = (1, 3, 11)  # kDLCPU, kDLCUDAHost, kDLROCMHost
_READ_ONLY = 1
_KINDS = {(0, 64): "i64", (0, 32): "i32", (1, 8): "u8", (2, 64): "f64", (2, 32): "f32", (2, 16): "f16",
          (4, 16): "bf16", (6, 8): "bool"}

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


def _from_dlpack(x: Any, argument: str) -> Array:
    try:
        kind, number = map(int, x.__dlpack_device__())
    except Exception as e:  # whatever a stranger's code raises
        raise BadInput(f"{argument}: {type(x).__name__} does not say where it lies: {e}") from e
    if kind not in _CPU_DEVICES:
        raise BadInput(f"{argument}: lies on DLPack device {kind, number}; allowed is the CPU")
    if getattr(x, "is_neg", None) is not None and x.is_neg():
        raise BadInput(f"{argument}: {type(x).__name__} is a view that negates: use resolve_neg()")
    try:
        try:
            capsule = x.__dlpack__(max_version=(1, 0))
        except TypeError:  # made before DLPack 1.0
            capsule = x.__dlpack__()
    except Exception as e:
        raise BadInput(f"{argument}: {type(x).__name__} does not lend its memory: {e}") from e
    if not any(_is_valid(capsule, n) for n in (b"dltensor_versioned", b"dltensor")):
        raise BadInput(f"{argument}: what {type(x).__name__} lends is no DLPack capsule, or was used before")
    # The capsule is read, not consumed: its own destructor gives the memory back when `owner` goes.
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _ManagedVersioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise BadInput(f"{argument}: DLPack version {versioned.major}.{versioned.minor} is not known")
        t, readonly = versioned.tensor, bool(versioned.flags & _READ_ONLY)
    else:
        t, readonly = _Managed.from_address(_pointer(capsule, b"dltensor")).tensor, False
    name = _KINDS.get((t.code, t.bits)) if t.lanes == 1 else None
    if name is None:
        raise DTypeError(
            f"{argument}: DLPack type code {t.code} with {t.bits} bits and {t.lanes} lanes is not one of "
            f"{', '.join(_KINDS.values())}"
        )
    shape = tuple(t.shape[i] for i in range(t.ndim))
    if t.strides:
        strides = tuple(t.strides[i] for i in range(t.ndim))
    else:
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(t.ndim))
    if not t.data and math.prod(shape):
        raise BadInput(f"{argument}: {type(x).__name__} of dims {shape} lends no memory")
    return Array((t.data or 0) + t.byte_offset, shape, strides, dtype(name), readonly, (capsule, x))


def empty(shape: Sequence[int], of: DType, strides: Sequence[int] | None = None) -> NDArray[np.generic]:
    """A fresh array on a 64-byte boundary, not filled; `strides` (in elements) must not overlap."""
    shape = tuple(shape)
    if strides is None:
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    if any(s < 0 for s in strides):
        raise BadInput(f"strides: {tuple(strides)} must not be negative for a new array")
    last = sum((d - 1) * s for d, s in zip(shape, strides, strict=True)) if 0 not in shape else -1
    raw = np.empty((last + 1) * of.itemsize + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    flat = raw[start : start + (last + 1) * of.itemsize].view(of.numpy)
    return np.lib.stride_tricks.as_strided(flat, shape, [s * of.itemsize for s in strides])
