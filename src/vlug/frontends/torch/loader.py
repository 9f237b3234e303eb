"""The adapters' object: compiled once for every x86-64, loaded with this process's addresses, registered."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from vlug.frontends.torch.control import Block
from vlug.frontends.torch.operators import OPERATORS, Operator
from vlug.frontends.torch.sysv import layout, shapes

__all__ = ["Loaded", "compile_object", "source_digest"]

_TRIPLE = "x86_64-unknown-linux-gnu"


@cache
def source_digest() -> str:
    """Digest of this folder: what determines the adapters and how they are checked."""
    h = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        h.update(path.name.encode() + path.read_bytes())
    return h.hexdigest()


def compile_object(operators: Sequence[Operator] = OPERATORS) -> bytes:
    """Object code of the adapters: plain x86-64, no address of this process in it."""
    import llvmlite.binding as llvm

    from vlug.frontends.torch.adapter_ir import build

    collecting = gc.isenabled()
    gc.disable()  # thousands of small objects and no garbage
    try:
        text = build(operators)
    finally:
        if collecting:
            gc.enable()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(_TRIPLE).create_target_machine(
        cpu="x86-64", opt=1, reloc="pic", codemodel="small"
    )
    module = llvm.parse_assembly(f'target triple = "{_TRIPLE}"\n{text}')
    module.verify()
    return bytes(machine.emit_object(module))


class Loaded:
    """Adapters in this process with their control block; not yet called by anyone."""

    def __init__(self, obj: bytes, operators: Sequence[Operator] = OPERATORS) -> None:
        from vlug import config
        from vlug.codegen import jit, native
        from vlug.frontends.torch import dispatcher
        from vlug.frontends.torch.names import BLOCK, ENTRIES

        self.operators = tuple(operators)
        self.block = Block(operators)
        self.block["undefined"] = dispatcher.undefined_tensor()
        self._set_thread_key()
        self.env = native.torch_env(*dispatcher.pool(), cap=config.THREADS.get())
        self.block["env"] = ctypes.addressof(self.env)
        imports = {**dispatcher.imports(), BLOCK: self.block.address}
        table = jit.load(obj, [ENTRIES], imports)[ENTRIES]
        self._shapes = shapes(self.operators)
        self._entries = (ctypes.c_int64 * (1 + len(self._shapes))).from_address(table)
        self._library: Any = None

    def _set_thread_key(self) -> None:
        """A word for each thread: what it wishes (`vlug.using`), read by the adapters."""
        libc = ctypes.CDLL(None)
        key = ctypes.c_uint32()
        if libc.pthread_key_create(ctypes.byref(key), None):
            raise OSError("no thread-specific key is left")
        self._thread_key = key.value
        self.block["thread_key"] = key.value
        self.block["thread_get"] = ctypes.cast(libc.pthread_getspecific, ctypes.c_void_p).value or 0

    def wish(self, value: int) -> None:
        """This thread's wish: 0 none, 1 stock's kernels, 2 ours."""
        libc = ctypes.CDLL(None)
        libc.pthread_setspecific.argtypes = (ctypes.c_uint32, ctypes.c_void_p)
        libc.pthread_setspecific(self._thread_key, value)

    def register(self) -> list[tuple[Operator, str]]:
        """Put the adapters in the dispatcher, all switched off. Returns what was left out, with reasons.

        There is no way back: PyTorch cannot take a kernel away safely while other threads call it.
        """
        from vlug.frontends.torch import dispatcher

        kernels = dispatcher.stock_kernels(self.operators)
        _spend_override_warning()
        self._library = dispatcher.Library("aten")
        left_out = []
        boxed, *unboxed = self._entries
        adapters = dict(zip(self._shapes, unboxed))
        for op in self.operators:
            kernel = kernels[op]
            if isinstance(kernel, dispatcher.Unfit):
                left_out.append((op, str(kernel)))
                continue
            for name in ("functor", "boxed", "unboxed"):
                self.block.set(op, name, getattr(kernel, name))
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kernel.keep))  # stock's kernel must stay
            functor, adapter = self.block.part(op), adapters[layout(op).shape]
            self._library.register(op.name, functor, boxed, adapter, op.sym)
        return left_out


def _spend_override_warning() -> None:
    """PyTorch warns once in a process that a CPU kernel is replaced; here nobody needs to hear it."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lib = torch.library.Library("aten", "IMPL")
        lib.impl("relu", lambda x: x, "CPU")
        lib._destroy()
