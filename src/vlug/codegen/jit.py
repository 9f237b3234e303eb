"""Kernel → verified module → object bytes → loaded address; what was compiled once is found again."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from vlug import log
from vlug.codegen import elf, objects
from vlug.codegen.formula import Formula, evaluate
from vlug.codegen.isa import ISA
from vlug.errors import NotSupported
from vlug.runtime.device import cpu_features, tiles_allowed

#: What makes a kernel: `build(k, **constants)` fills a Kernel.
Build = Callable[..., Any]

PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)


@dataclass(frozen=True)
class Compiled:
    """A loaded program: its address and what a caller must hand over."""

    name: str
    address: int
    arg_names: tuple[str, ...]
    tensors: int
    shared: Formula  # formula of the shared workspace's bytes
    part: Formula  # formula of each part's
    function: Any = field(repr=False, compare=False, default=None)
    object: bytes = field(repr=False, compare=False, default=b"")  # where it is not loaded: its code

    def args(self, values: Mapping[str, int | float]) -> Any:
        """The int64 array of arguments; floats go as the bits of a double."""
        missing = [n for n in self.arg_names if n not in values]
        if missing:
            raise KeyError(f"{self.name} needs the arguments {', '.join(missing)}")
        return (ctypes.c_int64 * max(1, len(self.arg_names)))(*[bits(values[n]) for n in self.arg_names])

    def shared_bytes(self, values: Mapping[str, int | float]) -> int:
        """Workspace bytes shared by all parts, for these arguments."""
        return evaluate(self.shared, values)

    def part_bytes(self, values: Mapping[str, int | float]) -> int:
        """Workspace bytes of each part, for these arguments."""
        return evaluate(self.part, values)

    def workspace_bytes(self, values: Mapping[str, int | float], threads: int) -> int:
        return self.shared_bytes(values) + threads * self.part_bytes(values)


def bits(x: int | float) -> int:
    """An argument as an int64."""
    if isinstance(x, float):
        return ctypes.c_int64.from_buffer_copy(ctypes.c_double(x)).value
    return int(x)


_lock = threading.RLock()
_loaded: dict[Any, Compiled] = {}
_texts: dict[Any, dict[str, int]] = {}
_machines: dict[str, Any] = {}
_jit: list[Any] = []  # the LLJIT, then every loaded library: code lives as long as the process
_sources: dict[str, str] = {}


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()


# LLVM is never in the middle of something when a fork copies it.
os.register_at_fork(
    before=lambda: _lock.acquire(), after_in_parent=lambda: _lock.release(), after_in_child=_after_fork
)


def _machine(isa: ISA) -> Any:
    import llvmlite.binding as llvm

    if isa.name not in _machines:
        if not _machines:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple(isa.triple)
        # Level 1 gives code as fast as 2 or 3; passes gain nothing on what the vocabulary emits (measured).
        _machines[isa.name] = target.create_target_machine(
            cpu=isa.cpu, features=isa.features, opt=1, reloc="pic", codemodel="small"
        )
    return _machines[isa.name]


def generate(build: Build, isa: ISA, **constants: Any) -> Any:
    """The finished Kernel of a build function."""
    from vlug.codegen.kernel import Kernel

    with _no_collection():
        k = Kernel(isa, _symbol(build))
        build(k, **constants)
        return k.finish()


@contextmanager
def _no_collection() -> Iterator[None]:
    """A kernel is thousands of small objects and no garbage: collections would be a third of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _symbol(build: Build) -> str:
    return "vlug_" + re.sub(r"\W", "_", build.__name__)


def emit(kernel: Any, isa: ISA) -> bytes:
    """Object code of a finished kernel, for any ISA on any host."""
    with _generating(kernel, isa) as (machine, module):
        return bytes(machine.emit_object(module))


@contextmanager
def _generating(kernel: Any, isa: ISA) -> Iterator[tuple[Any, Any]]:
    """The target machine and the verified module of a kernel, LLVM's options as the kernel wants them."""
    import llvmlite.binding as llvm

    with _lock:
        machine = _machine(isa)
        with _no_collection():
            text = str(kernel.module)
        module = llvm.parse_assembly(text)
        module.verify()
        if not kernel.quick:
            yield machine, module
            return
        llvm.set_option("vlug", "-disable-lsr=true")  # the process's, so only for the moment
        try:
            yield machine, module
        finally:
            llvm.set_option("vlug", "-disable-lsr=false")


def assembly(kernel: Any, isa: ISA) -> str:
    """Assembly text of a finished kernel."""
    with _generating(kernel, isa) as (machine, module):
        return str(machine.emit_assembly(module))


def spills(kernel: Any, isa: ISA) -> tuple[int, int]:
    """(multiply-adds, vector spills) of the block with most multiply-adds: inner loops stay in registers."""
    blocks = re.split(r"\n(?=\.LBB)", assembly(kernel, isa))
    counts = [len(re.findall(r"vfn?m(?:add|sub)|fml[as]", b)) for b in blocks]
    best = max(range(len(blocks)), key=counts.__getitem__)
    spilt = re.findall(r"\(%rsp\).*[xyz]mm|[xyz]mm.*\(%rsp\)|\bq\d+.*\[sp", blocks[best])
    return counts[best], len(spilt)


def load(obj: bytes, exports: Sequence[str], imports: Mapping[str, int] | None = None) -> dict[str, int]:
    """Object bytes → addresses of functions in it, which stay valid as long as the process."""
    try:
        return elf.load(obj, exports, imports or {})
    except elf.Unsupported as e:
        log.debug("loaded by LLVM", why=str(e))
    import llvmlite.binding as llvm

    with _lock:
        if not _jit:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            # JITLink lays the sections of an object side by side. RuntimeDyld asks for each on its own, and
            # aborts the process where a big mapping has come between them (offsets have 32 bits).
            _jit.append(llvm.create_lljit_compiler(use_jit_link=True))
        b = llvm.JITLibraryBuilder().add_object_img(obj).add_current_process()
        for name in exports:
            b.export_symbol(name)
        for name, address in (imports or {}).items():
            b.import_symbol(name, address)
        lib = b.link(_jit[0], f"vlug{len(_jit)}")
        _jit.append(lib)
        return {name: int(lib[name]) for name in exports}


def compiled_text(text: str, isa: ISA, exports: Sequence[str],
                  imports: Mapping[str, int] | None = None) -> dict[str, int]:
    """Addresses of functions in a module written as LLVM text; `imports` are symbols at given addresses."""
    memo = (text, isa.name, tuple(sorted((imports or {}).items())))
    with _lock:
        found = _texts.get(memo)
        if found is None:
            key = f"text {hashlib.sha256(text.encode()).hexdigest()} {_target_key(isa)}"
            _, obj = _stored(key, isa, lambda: ({}, _emit_text(text, isa)))
            found = _texts[memo] = load(obj, exports, imports)
    return found


def _emit_text(text: str, isa: ISA) -> bytes:
    import llvmlite.binding as llvm

    machine = _machine(isa)
    module = llvm.parse_assembly(f'target triple = "{isa.triple}"\n{text}')
    module.verify()
    return bytes(machine.emit_object(module))


#: A description and an object.
_Object = tuple[dict[str, Any], bytes]


_emitting: ContextVar[bool] = ContextVar("emitting", default=False)


@contextmanager
def emitting() -> Iterator[None]:
    """Programs made inside are not loaded, whatever their ISA: `Compiled.object` holds their code."""
    token = _emitting.set(True)
    try:
        yield
    finally:
        _emitting.reset(token)


def _stored(key: str, isa: ISA, make: Callable[[], _Object]) -> _Object:
    """An object and its description, from the cache directory or made now and kept there."""
    missing = sorted(set(isa.needs) - cpu_features())
    if missing and not _emitting.get():
        raise NotSupported(f"this machine cannot run {isa.name} code: it lacks {', '.join(missing)}")
    if isa.has("amx") and not _emitting.get() and not tiles_allowed():
        raise NotSupported(f"this process cannot run {isa.name} code: the system does not allow AMX's tiles")
    found = objects.load(key)
    if found is not None and found[0].get("needs") == list(isa.needs):
        counts["loaded"] += 1
        return found
    start = time.perf_counter()
    meta, obj = make()
    meta = json.loads(json.dumps({**meta, "needs": isa.needs}))  # as it would come back
    seconds = time.perf_counter() - start
    counts["compiled"] += 1
    log.info("compiled", kernel=key.partition(" source=")[0], ms=round(seconds * 1e3, 1), bytes=len(obj))
    objects.save(key, meta, obj)
    return meta, obj


#: Objects of this process: made by the compiler, and found in the cache directory.
counts = {"compiled": 0, "loaded": 0}


def _source_digest(build: Build) -> str:
    """Digest of every source file that can shape a kernel: codegen's and those beside the build function."""
    path = Path(getattr(sys.modules[build.__module__], "__file__", None) or __file__).resolve()
    own = Path(__file__).resolve().parent
    inside = own.parent in path.parents
    key = str(path.parent if inside else path)
    if key not in _sources:
        files = sorted(own.glob("*.py")) + (sorted(path.parent.glob("*.py")) if inside else [path])
        h = hashlib.sha256()
        for f in files:
            h.update(f.name.encode() + b"\0" + f.read_bytes())
        _sources[key] = h.hexdigest()
    return _sources[key]


def object_key(build: Build, isa: ISA, constants: Mapping[str, Any]) -> str:
    """All that determines an object, as text; no sizes in it unless a build takes them as constants."""
    parts = [f"{build.__module__}.{build.__qualname__}"]
    for n, v in sorted(constants.items()):
        if not _plain(v):
            raise TypeError(
                f"constant {n}={v!r} of {build.__name__}: a plain value or a tuple of them"
            )
        parts.append(f"{n}={v!r}")
    parts.append(_target_key(isa))
    parts.append("source=" + _source_digest(build))
    return " ".join(parts)


def _target_key(isa: ISA) -> str:
    return f"isa={isa.name}:{isa.cpu}:{isa.features}:{','.join(isa.needs)} llvmlite={_llvmlite_version()}"


@cache
def _llvmlite_version() -> str:
    """The release that brings LLVM, without importing it."""
    return metadata.version("llvmlite")


def _plain(v: Any) -> bool:
    return (
        v is None or isinstance(v, (int, float, str, bool)) or (isinstance(v, tuple) and all(map(_plain, v)))
    )


def compiled(build: Build, isa: ISA, **constants: Any) -> Compiled:
    """The loaded program of `build(k, **constants)`: from memory, the cache directory, or compiled now.

    `build` is a module-level function; constants are plain values, and whatever shapes the code must be among
    them or in the source files beside it.
    """
    key = (build, isa.name, tuple(sorted(constants.items())), _emitting.get())
    found = _loaded.get(key)
    if found is not None:
        return found
    with _lock:
        found = _loaded.get(key)
        if found is None:
            found = _loaded[key] = _make(build, isa, constants)
    return found


def _make(build: Build, isa: ISA, constants: Mapping[str, Any]) -> Compiled:
    def make() -> tuple[dict[str, Any], bytes]:
        k = generate(build, isa, **constants)
        meta = {"args": k.arg_names, "tensors": k.tensors, "shared": k.shared_bytes, "part": k.part_bytes}
        return meta, emit(k, isa)

    name = _symbol(build)
    meta, obj = _stored(object_key(build, isa, constants), isa, make)
    if _emitting.get():
        formulas = tuple(meta["shared"]), tuple(meta["part"])
        return Compiled(name, 0, tuple(meta["args"]), meta["tensors"], *formulas, None, obj)
    address = load(obj, [name])[name]
    return Compiled(name, address, tuple(meta["args"]), meta["tensors"], tuple(meta["shared"]),
                    tuple(meta["part"]), PROTOTYPE(address))
