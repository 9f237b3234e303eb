"""The control block and the table that native adapters read: plain words that nothing ever frees.

An adapter looks a call up by its key (operator, dtypes, sizes, strides, attributes) in an open-addressed
table without locks: entries are complete before they are published, never changed in their key and never
freed; when the table grows a new array is published and the old one stays for whoever still reads it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vlug.frontends.torch.operators import KINDS, OPERATORS, Operator
from vlug.frontends.torch.sysv import layout

__all__ = ["CONTROL", "ENTRY", "MAX_KEY", "MAX_OUTER", "OP", "Block", "Entry", "Output", "words"]

#: Words of the control block.
CONTROL = {n: i for i, n in enumerate((
    "table", "alive", "epoch", "thread_key", "thread_get", "miss", "env", "runner", "undefined",
))}  # fmt: skip
#: Words of each operator's part; it follows the control words. It stands as the kernel's OperatorKernel,
#: which PyTorch hands to each call: first its vtable, which nobody uses, and its counts of references, which
#: never come to 0. signature: three words an argument (kind, places of its first two words among the
#: parameters).
OP = {n: i for i, n in enumerate((
    "vtable", "references", "on", "functor", "boxed", "unboxed", "stock_calls", "failed",
    "denied", "number", "arguments", "signature", "results", "gives", "spare", "spare2",
))}  # fmt: skip
GIVES = ("memory", "first", "nothing")
#: One weak reference, and strong ones enough for every copy of a kernel.
_REFERENCES = (1 << 32) | (1 << 30)
#: Words of an entry.
ENTRY = {n: i for i, n in enumerate((
    "hash", "words", "plan", "outputs", "key", "calls", "count", "order", "passed",
))}  # fmt: skip
FIRST_OP = 16
#: Words of a key; tensors of a call and those handed to a plan; scalars and lists that are not in the key,
#: and the most values of such lists.
MAX_KEY = 360
MAX_OUTER = 40
MAX_SCALARS = 8
MAX_LISTS, MAX_VALUES = 2, 256
MAX_RANK = 6
MAX_RESULTS = 4
#: Words an output's description takes: kind, rank, dtype, sizes, strides.
OUTPUT_WORDS = 3 + 2 * MAX_RANK
#: In an entry's order: an output has this added to its number; a tensor that is written, the next bit; a
#: scalar, twice its number (as float64; as float32 one more) and the third; a list of integers the fourth
#: with it.
IS_OUTPUT, IS_WRITTEN, IS_SCALAR, IS_LIST = 64, 128, 256, 512
#: Values of an operator's `on`: bit 0 taken, bit 1 some thread has a wish of its own (`vlug.using`), bit 2 on
#: the deny list (its calls are counted).
ON, ASK_THREAD, DENIED = 1, 2, 4
FULL = 50_000

_libc: Any = ctypes.CDLL(None)
_libc.calloc.restype = ctypes.c_void_p
_libc.calloc.argtypes = (ctypes.c_size_t, ctypes.c_size_t)


def words(count: int, values: Sequence[int] = ()) -> Any:
    """`count` int64 that live as long as the process, even after Python is gone."""
    address = _libc.calloc(max(count, 1), 8)
    if not address:
        raise MemoryError(f"{count * 8} bytes for vlug's table of plans")
    out = (ctypes.c_int64 * max(count, 1)).from_address(address)
    out[: len(values)] = [v - (1 << 64) if v >= 1 << 63 else v for v in values]
    return out


def address(array: Any) -> int:
    return ctypes.addressof(array)


@dataclass(frozen=True)
class Output:
    """A tensor that an adapter allocates: dims, strides in elements, PyTorch's number of the dtype."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: int


@dataclass
class Entry:
    """What was decided for one key. `words` is its native form; `reason` says why stock serves it."""

    op: Operator
    words: Any
    reason: str = ""
    line: str = ""
    keep: Any = field(default=None, repr=False)

    @property
    def calls(self) -> int:
        return int(self.words[ENTRY["calls"]])

    @property
    def taken(self) -> bool:
        return not self.words[ENTRY["passed"]]

    def give_up(self, reason: str) -> None:
        """From now on stock serves it. The plan stays in place: another thread may be about to run it."""
        self.reason = reason
        self.words[ENTRY["passed"]] = 1


class Block:
    """The control block of a set of adapters, its table, and every entry by its key."""

    def __init__(self, operators: Sequence[Operator] = OPERATORS) -> None:
        self.operators = tuple(operators)
        self.words = words(FIRST_OP + len(OP) * len(self.operators))
        self._places = {op: FIRST_OP + len(OP) * i for i, op in enumerate(self.operators)}
        for number, op in enumerate(self.operators):
            self._describe(number, op)
        self.entries: dict[tuple[int, ...], Entry] = {}
        self.lock = threading.RLock()
        self._grow(1024)
        self["alive"] = 1
        _blocks.append(self)

    @property
    def address(self) -> int:
        return address(self.words)

    def __getitem__(self, name: str) -> int:
        return int(self.words[CONTROL[name]])

    def __setitem__(self, name: str, value: int) -> None:
        self.words[CONTROL[name]] = value

    def of(self, op: Operator, name: str) -> int:
        """Word `name` of an operator's part."""
        return int(self.words[self._at(op, name)])

    def set(self, op: Operator, name: str, value: int) -> None:
        self.words[self._at(op, name)] = value

    def _at(self, op: Operator, name: str) -> int:
        return self._places[op] + OP[name]

    def part(self, op: Operator) -> int:
        """Address of an operator's part."""
        return self.address + 8 * self._places[op]

    def _describe(self, number: int, op: Operator) -> None:
        """What the adapters, which serve many operators, must know of this one."""
        signature = [
            word
            for kind, places in zip(op.kinds, layout(op).words)
            for word in (KINDS.index(kind), places[0], places[-1] if len(places) < 3 else places[1])
        ]
        held = {
            "references": _REFERENCES, "number": number, "arguments": len(op.kinds), "results": op.results,
            "signature": address(words(len(signature), signature)), "gives": GIVES.index(op.gives),
        }  # fmt: skip
        for name, value in held.items():
            self.set(op, name, value)

    # --- the table ---
    def _grow(self, size: int) -> None:
        table = words(size + 1, [size - 1])
        for e in self.entries.values():
            _place(table, size, e)
        self.size = size
        self.table = table
        self["table"] = address(table)  # published last

    def insert(
        self,
        op: Operator,
        key: tuple[int, ...],
        hashed: int,
        *,
        plan: int = 0,
        order: Sequence[int] = (),
        outputs: Sequence[Output | None] = (),
        reason: str = "",
        line: str = "",
        keep: Any = None,
    ) -> Entry:
        """Publish what was decided for a key; the first decision for a key stays."""
        if len(order) > MAX_OUTER:
            raise ValueError(f"{op.name}: {len(order)} tensors, an adapter hands over {MAX_OUTER} at most")
        with self.lock:
            found = self.entries.get(key)
            if found is not None:
                return found
            shapes = words(OUTPUT_WORDS * max(1, len(outputs)))
            for i, o in enumerate(outputs):
                if o is not None:
                    at, rank = OUTPUT_WORDS * i, len(o.sizes)
                    shapes[at : at + 3] = [1, rank, o.dtype]
                    shapes[at + 3 : at + 3 + rank] = list(o.sizes)
                    shapes[at + 3 + MAX_RANK : at + 3 + MAX_RANK + rank] = list(o.strides)
            held = {
                "hash": hashed, "words": len(key), "plan": plan, "outputs": address(shapes),
                "key": address(words(len(key), key)), "count": len(order),
                "order": address(words(len(order), order)), "passed": int(not plan),
            }  # fmt: skip
            entry = Entry(op, words(len(ENTRY), [held.get(n, 0) for n in ENTRY]), reason, line, keep)
            self.entries[key] = entry
            if len(self.entries) * 2 > self.size:
                self._grow(self.size * 4)
            else:
                _place(self.table, self.size, entry)
            return entry

    @property
    def full(self) -> bool:
        return len(self.entries) >= FULL

    def reset_counts(self) -> None:
        """Every count back to 0 (a call that is counted at this moment may be missed)."""
        with self.lock:
            for e in self.entries.values():
                e.words[ENTRY["calls"]] = 0
            for op in self.operators:
                self.set(op, "stock_calls", 0)
                self.set(op, "failed", 0)
                self.set(op, "denied", 0)


def _place(table: Any, size: int, entry: Entry) -> None:
    i = int(entry.words[ENTRY["hash"]]) & (size - 1)
    while table[i + 1]:
        i = (i + 1) & (size - 1)
    table[i + 1] = address(entry.words)  # one aligned 8-byte store: on x86-64 it is a release


_blocks: list[Block] = []


def _after_fork() -> None:
    for b in _blocks:
        b.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
