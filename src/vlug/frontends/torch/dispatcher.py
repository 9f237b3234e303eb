"""PyTorch's dispatcher from outside: stock's kernels, and the registration of ours.

Read and written here by offset (c10::KernelFunction, torch::CppFunction; PyTorch's C++ headers), so it serves
only versions on the tested list, on x86-64 Linux, after the canary in a child process agreed with stock.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vlug.frontends.torch.names import IMPORTS, POOL
from vlug.frontends.torch.operators import Operator

__all__ = [
    "Library", "Stock", "Unfit", "imports", "library_path", "pool", "stock_kernels", "undefined_tensor",
]  # fmt: skip

_REGISTER = "_ZNR5torch7Library5_implEPKcONS_11CppFunctionENS_17_RegisterOrVerifyE"
_UNDEFINED = "_ZN3c1019UndefinedTensorImpl10_singletonE"
_OPEN = "aoti_torch_library_init_impl"
_V = ctypes.c_void_p


class Unfit(Exception):
    """This PyTorch cannot be hooked natively; the message says why, for the user."""


@cache
def library_path() -> Path:
    import torch

    return Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"


@cache
def _libraries() -> tuple[Any, Any]:
    try:
        lib = library_path()
        return ctypes.CDLL(str(lib)), ctypes.CDLL(str(lib.with_name("libc10.so")))
    except OSError as e:
        raise Unfit(f"its libraries cannot be opened: {e}") from None


def _address(library: Any, name: str) -> int:
    try:
        return ctypes.cast(getattr(library, name), _V).value or 0
    except AttributeError:
        raise Unfit(f"it has no symbol {name}") from None


def imports() -> dict[str, int]:
    """Addresses of the C functions that the adapters call."""
    cpu, _ = _libraries()
    return {name: _address(cpu, name) for name in IMPORTS}


def pool() -> tuple[int, int]:
    """Addresses of torch_parallel_for and torch_get_num_threads."""
    parallel_for, get_num_threads = (_address(_libraries()[0], n) for n in POOL)
    return parallel_for, get_num_threads


def undefined_tensor() -> int:
    """Address of the one TensorImpl that stands for "no tensor"."""
    return _address(_libraries()[1], _UNDEFINED)


def _code_of_torch() -> list[tuple[int, int]]:
    """Address ranges of libtorch_cpu's code (dladdr would take a millisecond for each question)."""
    want = os.path.realpath(library_path())
    ranges = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            where, mode, *_, path = [*line.split(maxsplit=5), ""][:6]
            if "x" in mode and path.rstrip("\n") == want:
                first, _, last = where.partition("-")
                ranges.append((int(first, 16), int(last, 16)))
    return ranges


@dataclass(frozen=True)
class Stock:
    """A kernel of PyTorch's own, as it stands in the dispatcher: where a call goes that we do not take."""

    functor: int
    boxed: int
    unboxed: int
    keep: Any


def stock_kernels(operators: Sequence[Operator]) -> dict[Operator, Stock | Unfit]:
    """The kernels in the CPU slots; Unfit for one that is not PyTorch's own or not of the form we know."""
    code = _code_of_torch()
    found: dict[Operator, Stock | Unfit] = {}
    for op in operators:
        try:
            found[op] = _stock_kernel(op, code)
        except Unfit as e:
            found[op] = e
    return found


def _stock_kernel(op: Operator, code: Sequence[tuple[int, int]]) -> Stock:
    import torch

    held = torch.library.get_kernel(f"aten::{op.name}", "CPU")
    # pybind11: the object's header (16 bytes), then the address of the c10::SafeKernelFunction, which begins
    # with a c10::KernelFunction: functor, boxed function, unboxed function, the same taking SymInts.
    (kernel,) = (ctypes.c_int64 * 1).from_address(id(held) + object.__basicsize__)
    functor, boxed, plain, sym = (ctypes.c_int64 * 4).from_address(kernel)
    unboxed, other = (sym, plain) if op.sym else (plain, sym)
    if not unboxed or other or not boxed:
        raise Unfit(f"{op.name}: its kernel is not called as in the versions that were tested")
    if not all(any(a <= f < b for a, b in code) for f in (unboxed, boxed)):
        raise Unfit(f"{op.name}: another library's kernel is in its place")
    return Stock(functor, boxed, unboxed, held)


class _CppFunction(ctypes.Structure):
    """torch::CppFunction: no dispatch key, the kernel, no signature, no schema, a string for people."""

    _fields_ = (
        ("dispatch_key", ctypes.c_int64),
        ("functor", _V), ("boxed", _V), ("unboxed", _V), ("sym_unboxed", _V), ("tokens", _V),
        ("signature", ctypes.c_int64 * 2),
        ("schema", _V),
        ("text", _V), ("length", ctypes.c_int64), ("small", ctypes.c_char * 16),
    )  # fmt: skip


class Library:
    """A registration of kernels for the CPU in one namespace; it lasts as long as the process."""

    def __init__(self, namespace: str) -> None:
        cpu, _ = _libraries()
        self._register = ctypes.CFUNCTYPE(_V, _V, ctypes.c_char_p, _V, ctypes.c_int)(
            _address(cpu, _REGISTER)
        )
        self._handle = _V()
        opened = ctypes.CFUNCTYPE(
            ctypes.c_int32, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint32, _V
        )(_address(cpu, _OPEN))
        self._names = namespace.encode()  # PyTorch keeps the pointer
        if opened(self._names, b"CPU", b"vlug", 1, ctypes.byref(self._handle)):
            raise Unfit(f"namespace {namespace} could not be opened")

    def register(self, name: str, functor: int, boxed: int, unboxed: int, sym: bool) -> None:
        """Put a kernel in the CPU slot of an operator; it is called with `functor`, which is never freed."""
        f = _CppFunction(functor=functor, boxed=boxed, **{"sym_unboxed" if sym else "unboxed": unboxed})
        f.text = ctypes.addressof(f) + _CppFunction.small.offset
        # It is moved from; what is left holds nothing.
        self._register(self._handle, name.encode(), ctypes.addressof(f), 0)
