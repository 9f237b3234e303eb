"""Loading an object file without LLVM: sections into one mapping, relocations applied, then made executable.

LLVM's own loader works too, but importing it costs a process 30 ms and 100 MB of mapped library, which a
process whose kernels all lie in the cache need not pay. What is not plain (an unknown relocation or section,
a symbol that nothing defines) raises Unsupported, and jit.load asks LLVM instead.

Sources: the ELF-64 object file format; System V ABI, AMD64 supplement, relocation types (table 4.9); ELF for
the Arm 64-bit architecture, static relocations (section 5.7).
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Image", "Unsupported", "load"]


class Unsupported(Exception):
    """The object needs more than this loader does."""


_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
_X86_64, _AARCH64, _RELOCATABLE = 62, 183, 1
_PROGBITS, _SYMTAB, _RELA_TYPE, _NOBITS = 1, 2, 4, 8
_WRITE, _ALLOC, _EXEC, _TLS = 1, 2, 4, 0x400
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2
_R_64, _R_PC32, _R_PLT32, _R_GOTPCREL, _R_PC64, _R_GOTPCRELX, _R_REX_GOTPCRELX = 1, 2, 4, 9, 24, 41, 42
_GOT = (_R_GOTPCREL, _R_GOTPCRELX, _R_REX_GOTPCRELX)
_A_ABS64, _A_PREL64, _A_PREL32, _A_PAGE, _A_ADD, _A_JUMP, _A_CALL = 257, 260, 261, 275, 277, 282, 283
_A_GOT_PAGE, _A_GOT_LOAD = 311, 312
_A_LOADS = {278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # type → log2 of what a load's offset counts in
#: Jumps to the address that follows them: jmp *0(%rip); ldr x16, .+8; br x16.
_STUBS = {
    _X86_64: b"\xff\x25\x00\x00\x00\x00",
    _AARCH64: b"\x50\x00\x00\x58\x00\x02\x1f\xd6",
}
_HERE = {"x86_64": _X86_64, "aarch64": _AARCH64, "arm64": _AARCH64}
_PAGE = mmap.PAGESIZE
Memory = mmap.mmap | bytearray


@dataclass
class _Section:
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    at: int = -1  # in the mapping



def load(obj: bytes, exports: Sequence[str], imports: Mapping[str, int]) -> dict[str, int]:
    """Addresses of `exports`; undefined symbols are `imports`, else the process's own. Raises Unsupported."""
    try:
        image = Image(obj, imports)
        if image.machine != _HERE.get(platform.machine()):
            raise Unsupported("an object for another machine")
        return image.place(exports)
    except (struct.error, LookupError, ValueError, OverflowError, OSError, MemoryError) as e:
        raise Unsupported(f"not an object this loader reads: {e}") from None


class Image:
    """An object's sections laid side by side, ready to be linked at an address."""

    def __init__(self, obj: bytes, imports: Mapping[str, int]) -> None:
        self.obj, self.imports = obj, imports
        h = _HEADER.unpack_from(obj)
        if h[0][:7] != b"\x7fELF\x02\x01\x01" or h[1] != _RELOCATABLE or h[2] not in _STUBS:
            raise Unsupported("not a relocatable x86-64 or AArch64 ELF object")
        self.machine = h[2]
        self.stub = _STUBS[h[2]]
        self.sections = []
        for i in range(h[12]):
            _, kind, flags, _, offset, size, link, info, align, _ = _SECTION.unpack_from(
                obj, h[6] + i * h[11]
            )
            if kind != _NOBITS and offset + size > len(obj):
                raise Unsupported("truncated")
            self.sections.append(_Section(kind, flags, offset, size, link, info, max(align, 1)))
        self.symbols = self._symbols()

    def _symbols(self) -> list[tuple[str, int, int]]:
        """(name, section, value) of each symbol."""
        table = next((s for s in self.sections if s.kind == _SYMTAB), None)
        if table is None:
            raise Unsupported("no symbol table")
        names = self.sections[table.link]
        found = []
        for at in range(table.offset, table.offset + table.size, _SYMBOL.size):
            name, _, _, section, value, _ = _SYMBOL.unpack_from(self.obj, at)
            start = names.offset + name
            text = self.obj[start : self.obj.index(b"\0", start)].decode()
            if section == _COMMON:
                raise Unsupported(f"common symbol {text}")
            found.append((text, section, value))
        return found

    def place(self, exports: Sequence[str]) -> dict[str, int]:
        """Link it into memory of its own that stays as long as the process; addresses of `exports`."""
        size = self._lay_out()
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        addresses = self._fill(memory, base, exports)
        if self.machine == _AARCH64:  # code that was written as data is in no instruction cache yet
            _flush(base, size)
        self._protect(base, size)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))  # code outlives even Python
        return addresses

    def linked(self, base: int, exports: Sequence[str]) -> tuple[bytes, dict[str, int]]:
        """The bytes to lie at `base`, on any machine, and the addresses of `exports` there."""
        memory = bytearray(self._lay_out())
        addresses = self._fill(memory, base, exports)
        return bytes(memory), addresses

    def _fill(self, memory: Memory, base: int, exports: Sequence[str]) -> dict[str, int]:
        for s in self.sections:
            if s.at >= 0 and s.kind != _NOBITS:
                memory[s.at : s.at + s.size] = self.obj[s.offset : s.offset + s.size]
        self._relocate(memory, base)
        addresses = {}
        for name, section, value in self.symbols:
            if name in exports and section not in (_UNDEFINED, _ABSOLUTE):
                addresses[name] = base + self.sections[section].at + value
        missing = [n for n in exports if n not in addresses]
        if missing:
            raise Unsupported(f"{', '.join(missing)} is not defined in it")
        return addresses

    def _loaded(self) -> list[_Section]:
        """What goes into memory: code and data, not the unwind tables (nothing of ours throws)."""
        return [
            s for s in self.sections
            if s.flags & _ALLOC and s.size and s.kind in (_PROGBITS, _NOBITS) and not self._unwind(s)
        ]  # fmt: skip

    def _unwind(self, s: _Section) -> bool:
        return s.kind == _PROGBITS and not s.flags & (_WRITE | _EXEC) and self._name(s) == ".eh_frame"

    def _name(self, s: _Section) -> str:
        h = _HEADER.unpack_from(self.obj)
        names = self.sections[h[13]]
        at = _SECTION.unpack_from(self.obj, h[6] + self.sections.index(s) * h[11])[0] + names.offset
        return self.obj[at : self.obj.index(b"\0", at)].decode()

    def _lay_out(self) -> int:
        """Code, constants and stubs on pages that will be read-only, then writable data on its own."""
        chosen = self._loaded()
        if any(s.flags & _TLS for s in chosen):
            raise Unsupported("thread-local data")
        at = 0
        for s in (s for s in chosen if not s.flags & _WRITE):
            at = -(-at // s.align) * s.align
            s.at, at = at, at + s.size
        outside = sum(section == _UNDEFINED for _, section, _ in self.symbols)
        self.tables = -(-at // 16) * 16  # for each symbol a stub and an address
        at = -(-(self.tables + 16 * len(self.symbols) + 16 * outside) // _PAGE) * _PAGE
        self.writable = at
        for s in (s for s in chosen if s.flags & _WRITE):
            at = -(-at // s.align) * s.align
            s.at, at = at, at + s.size
        return max(-(-at // _PAGE) * _PAGE, _PAGE)

    def _address(self, symbol: int, base: int) -> int:
        name, section, value = self.symbols[symbol]
        if section == _ABSOLUTE:
            return value
        if section != _UNDEFINED:
            if self.sections[section].at < 0:
                raise Unsupported(f"{name or 'a symbol'} lies in a section that is not loaded")
            return base + self.sections[section].at + value
        if name in self.imports:
            return self.imports[name]
        try:
            found = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
        except AttributeError:
            found = None
        if not found:
            raise Unsupported(f"nothing defines {name}")
        return found

    def _slot(self, memory: Memory, symbol: int, address: int) -> int:
        """Where in the mapping a stub that jumps to the symbol lies; its address stands behind it."""
        at, word = self.tables + 16 * symbol, self.stub + struct.pack("<Q", address)
        memory[at : at + len(word)] = word
        return at

    def _relocate(self, memory: Memory, base: int) -> None:
        for table in (s for s in self.sections if s.kind == _RELA_TYPE):
            target = self.sections[table.info]
            if target.at < 0:
                continue
            for at in range(table.offset, table.offset + table.size, _RELA.size):
                offset, info, addend = _RELA.unpack_from(self.obj, at)
                kind = info & 0xFFFFFFFF
                wide = (_R_64, _R_PC64) if self.machine == _X86_64 else (_A_ABS64, _A_PREL64)
                if offset + (8 if kind in wide else 4) > target.size:
                    raise Unsupported("a relocation outside its section")
                apply = self._apply if self.machine == _X86_64 else self._apply_arm
                apply(memory, base, target.at + offset, info >> 32, kind, addend)

    def _apply_arm(self, memory: Memory, base: int, at: int, symbol: int, kind: int, addend: int) -> None:
        address, here = self._address(symbol, base) + addend, base + at
        if kind in (_A_ABS64, _A_PREL64):
            value = address if kind == _A_ABS64 else address - here
            memory[at : at + 8] = struct.pack("<Q", value & (1 << 64) - 1)
            return
        (word,) = struct.unpack_from("<I", memory, at)
        if kind in (_A_GOT_PAGE, _A_GOT_LOAD):  # the address of a word that holds the symbol's address
            address = base + self._slot(memory, symbol, address) + len(self.stub)
        if kind in (_A_JUMP, _A_CALL):
            if not -(1 << 27) <= address - here < 1 << 27:
                address = base + self._slot(memory, symbol, address)
            word |= self._signed(symbol, (address - here) >> 2, 26)
        elif kind in (_A_PAGE, _A_GOT_PAGE):
            pages = self._signed(symbol, (address >> 12) - (here >> 12), 21)
            word |= (pages & 3) << 29 | (pages >> 2) << 5
        elif kind == _A_ADD:
            word |= (address & 0xFFF) << 10
        elif kind in _A_LOADS or kind == _A_GOT_LOAD:
            scale = _A_LOADS.get(kind, 3)
            if address & ((1 << scale) - 1):
                raise Unsupported(f"{self.symbols[symbol][0]} is not aligned for its load")
            word |= (address & 0xFFF) >> scale << 10
        elif kind == _A_PREL32:
            word = self._signed(symbol, address - here, 32)
        else:
            raise Unsupported(f"relocation type {kind}")
        memory[at : at + 4] = struct.pack("<I", word)

    def _signed(self, symbol: int, value: int, bits: int) -> int:
        """The field of so many bits that holds a distance."""
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise Unsupported(f"{self.symbols[symbol][0]} is out of reach")
        return value & (1 << bits) - 1

    def _apply(self, memory: Memory, base: int, at: int, symbol: int, kind: int, addend: int) -> None:
        address = self._address(symbol, base)
        if kind == _R_64:
            memory[at : at + 8] = struct.pack("<Q", (address + addend) & (1 << 64) - 1)
            return
        if kind == _R_PC64:
            memory[at : at + 8] = struct.pack("<q", address + addend - (base + at))
            return
        if kind in _GOT:  # the address of a word that holds the symbol's address
            address = base + self._slot(memory, symbol, address) + len(self.stub)
        elif kind == _R_PLT32:
            if not -(1 << 31) <= address + addend - (base + at) < 1 << 31:
                address = base + self._slot(memory, symbol, address)
        elif kind != _R_PC32:
            raise Unsupported(f"relocation type {kind}")
        distance = address + addend - (base + at)
        if not -(1 << 31) <= distance < 1 << 31:
            raise Unsupported(f"{self.symbols[symbol][0]} is out of reach")
        memory[at : at + 4] = struct.pack("<i", distance)

    def _protect(self, base: int, size: int) -> None:
        """Never writable and executable at once."""
        libc = ctypes.CDLL(None, use_errno=True)
        code = mmap.PROT_READ | mmap.PROT_EXEC
        if libc.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(self.writable), code):
            raise Unsupported(f"mprotect: errno {ctypes.get_errno()}")


def _flush(base: int, size: int) -> None:
    """Make the processor see new code (compiler-rt's and libgcc's function; LLVM's library has it)."""
    for library in (None, "libgcc_s.so.1"):
        try:
            clear = ctypes.CDLL(library).__clear_cache
        except (OSError, AttributeError):
            continue
        clear(ctypes.c_void_p(base), ctypes.c_void_p(base + size))
        return
    raise Unsupported("no way to flush the instruction cache is at hand")
