"""Runs programs made for AArch64 on any machine: linked into an image of their own, executed by qemu-user.

The image holds the code at fixed addresses, every tensor and the workspace in segments with unmapped pages
before and behind (a stray access ends the process), and a few words of code that call the program and write
the segments to standard output.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from vlug.codegen import elf, jit
from vlug.codegen.isa import ALL
from vlug.engines.base import Engine, EngineConfig, NativeProgram
from vlug.errors import ExecutionError
from vlug.graph import Graph
from vlug.runtime.device import FAKE
from vlug.testing import Case, Mismatch, compare

__all__ = ["available", "check"]

NEON = ALL["neon"]
#: Processors to pass for: the least that AArch64 is, and one with later extensions.
CPUS = ("cortex-a53", "max")
PAGE = 1 << 16  # no AArch64 system has larger pages
SYSTEM, CODE, KERNEL, CONTROL, FIRST = 0x200000, 0x400000, 0x800000, 0x8000000, 0x10000000

#: sys3(n, a, b, c), the system call n: mov x8, x0; mov x0, x1; mov x1, x2; mov x2, x3; svc 0; ret.
CALL = struct.pack("<6I", 0xAA0003E8, 0xAA0103E0, 0xAA0203E1, 0xAA0303E2, 0xD4000001, 0xD65F03C0)

# Words at CONTROL: the program, tensors, args, workspace, environment; the result; how many pieces to write,
# then (address, bytes) of each.
START = f"""
declare i64 @sys3(i64, i64, i64, i64)
define void @parallel_for(ptr %env, ptr %body, ptr %ctx, i64 %n) {{
entry:
  %tp = getelementptr i64, ptr %env, i64 1
  %threads = load i64, ptr %tp
  %few = icmp slt i64 %n, %threads
  %t = select i1 %few, i64 %n, i64 %threads
  %none = icmp slt i64 %t, 1
  br i1 %none, label %out, label %loop
loop:
  %left = phi i64 [ %t, %entry ], [ %i, %loop ]
  %i = sub i64 %left, 1
  %b0 = mul i64 %i, %n
  %begin = sdiv i64 %b0, %t
  %e0 = mul i64 %left, %n
  %end = sdiv i64 %e0, %t
  call void %body(ptr %ctx, i64 %i, i64 %begin, i64 %end)
  %more = icmp sgt i64 %i, 0
  br i1 %more, label %loop, label %out
out:
  ret void
}}
define void @start() {{
entry:
  %c = inttoptr i64 {CONTROL} to ptr
  %f = load ptr, ptr %c
  %p1 = getelementptr i64, ptr %c, i64 1
  %tensors = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %c, i64 2
  %args = load ptr, ptr %p2
  %p3 = getelementptr i64, ptr %c, i64 3
  %ws = load ptr, ptr %p3
  %p4 = getelementptr i64, ptr %c, i64 4
  %env = load ptr, ptr %p4
  %code = call i32 %f(ptr %tensors, ptr %args, ptr %ws, ptr %env)
  %p6 = getelementptr i64, ptr %c, i64 6
  %pieces = load i64, ptr %p6
  br label %piece
piece:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  %done = icmp eq i64 %k, %pieces
  br i1 %done, label %over, label %take
take:
  %o0 = mul i64 %k, 2
  %o1 = add i64 %o0, 7
  %o2 = add i64 %o0, 8
  %pa = getelementptr i64, ptr %c, i64 %o1
  %pb = getelementptr i64, ptr %c, i64 %o2
  %address = load i64, ptr %pa
  %bytes = load i64, ptr %pb
  br label %write
write:
  %at = phi i64 [ 0, %take ], [ %at1, %write ]
  %where = add i64 %address, %at
  %rest = sub i64 %bytes, %at
  %wrote = call i64 @sys3(i64 64, i64 1, i64 %where, i64 %rest)
  %at1 = add i64 %at, %wrote
  %all = icmp sge i64 %at1, %bytes
  br i1 %all, label %next, label %write
next:
  %k1 = add i64 %k, 1
  br label %piece
over:
  %wide = sext i32 %code to i64
  %gone = call i64 @sys3(i64 93, i64 %wide, i64 0, i64 0)
  ret void
}}
"""


@cache
def available() -> str:
    """Path of qemu's user emulation of AArch64, "" where there is none."""
    own = Path(__file__).resolve().parent.parent / ".venv/qemu/usr/bin/qemu-aarch64-static"
    found = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    return found or (str(own) if own.exists() else "")


@cache
def _starter() -> tuple[bytes, dict[str, int]]:
    obj = jit._emit_text(START, NEON)
    return elf.Image(obj, {"sys3": SYSTEM}).linked(CODE, ["start", "parallel_for"])


class _File:
    """An executable made of segments at fixed addresses."""

    def __init__(self, entry: int) -> None:
        self.entry, self.segments = entry, []

    def add(self, address: int, data: bytes, code: bool = False) -> None:
        self.segments.append((address, data, 5 if code else 6))

    def bytes(self) -> bytes:
        head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 183, 1, self.entry, 64, 0, 0,
                           64, 56, len(self.segments), 0, 0, 0)  # fmt: skip
        at = -(-(64 + 56 * len(self.segments)) // PAGE) * PAGE
        table, body = b"", b""
        for address, data, flags in self.segments:
            at += address % PAGE
            body += b"\0" * (address % PAGE) + data
            table += struct.pack("<IIQQQQQQ", 1, flags, at, address, address, len(data), len(data), PAGE)
            room = -(at + len(data)) % PAGE
            body += b"\0" * room
            at += len(data) + room
        return (head + table).ljust(-(-(64 + 56 * len(self.segments)) // PAGE) * PAGE, b"\0") + body


def execute(
    program: NativeProgram, memory: Mapping[str, tuple[int, bytes]], threads: int, at_end: bool, cpu: str
) -> dict[str, bytes]:
    """Run a program on the bytes of tensors; memory: name → (offset of the first element, bytes)."""
    starter, symbols = _starter()
    compiled = program.keep
    code, own = elf.Image(compiled.object, {}).linked(KERNEL, [compiled.name])
    f = _File(symbols["start"])
    f.add(SYSTEM, CALL, True)
    f.add(CODE, starter, True)
    f.add(KERNEL, code, True)
    next_page = FIRST
    where, pieces = {}, []

    def lay(data: bytes) -> int:
        """A segment with unmapped pages on both sides, its bytes against one of them."""
        nonlocal next_page
        room = max(-(-len(data) // PAGE) * PAGE, PAGE)
        address = next_page + (room - len(data) if at_end else 0)
        f.add(address, data)
        next_page += room + 2 * PAGE
        return address

    for name, (first, data) in memory.items():
        if data:
            start = lay(data)
            where[name] = start + first
            pieces.append((name, start, len(data)))
        else:
            where[name] = next_page
    bytes_of_workspace = max(program.workspace_size(threads), 64)
    at_end, kept = True, at_end
    workspace = lay(b"\xff" * (-(-bytes_of_workspace // 64) * 64))
    at_end = kept
    tensors = [0 if n is None else where[n] for n in program.operands]
    env = struct.pack("<8q", symbols["parallel_for"], threads, *[0] * 6)
    head = 7 + 2 * len(pieces)
    tensors_at = CONTROL + 8 * head
    args_at = tensors_at + 8 * max(len(tensors), 1)
    env_at = args_at + 8 * max(len(program.args), 1)
    words = [own[compiled.name], tensors_at, args_at, workspace, env_at, 0, len(pieces)]
    for _, start, size in pieces:
        words += [start, size]
    words += tensors or [0]
    words += program.args or (0,)
    f.add(CONTROL, struct.pack(f"<{len(words)}q", *words) + env)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program"
        path.write_bytes(f.bytes())
        path.chmod(0o755)
        done = subprocess.run([available(), "-cpu", cpu, str(path)], capture_output=True, timeout=300)
    if done.returncode < 0 or done.returncode > 100:
        raise ExecutionError(f"it died with {done.returncode} on {cpu}: {done.stderr.decode()[-300:]}")
    if done.returncode:
        raise ExecutionError(f"the program reported code {done.returncode}")
    out, at = {}, 0
    for name, _, size in pieces:
        out[name] = done.stdout[at : at + size]
        at += size
    return out


def check(graph: Graph, engine: Engine, fill: str, threads: int, at: str, cpu: str) -> str | None:
    """As vlug.testing.check, on NEON: None, or why the engine refuses; raises Mismatch."""
    device = FAKE["neon"]
    why = engine.why_not(graph, device)
    if why is not None:
        return why
    config: EngineConfig = engine.default(graph, device)
    case = Case.of(graph, "real" if fill == "exact" and "winograd" in engine.notes else fill)
    what = f"{graph.line}\n  on {config}, neon ({cpu}), {fill} fill, {threads} threads, arrays at the {at}"
    with jit.emitting():
        program = engine.compile(graph, config, device)
    memory = {}
    for t in (*graph.inputs, *graph.outputs):
        flat = np.full(t.span if t.numel else 0, -1, f"i{t.dtype.itemsize}").view(t.dtype.numpy)
        if t.name in case.inputs and t.numel:
            stride = [s * flat.itemsize for s in t.normalised.stride]
            np.lib.stride_tricks.as_strided(flat, t.dim, stride)[...] = case.inputs[t.name]
        memory[t.name] = (0, flat.tobytes())
    try:
        after = execute(program, memory, threads, at == "end", cpu)
    except ExecutionError as e:
        raise Mismatch(f"{what}\n  {e}") from None
    got = {}
    for t in graph.outputs:
        raw = np.frombuffer(after.get(t.name, b""), t.dtype.numpy)
        stride = [s * t.dtype.itemsize for s in t.normalised.stride]
        got[t.name] = np.lib.stride_tricks.as_strided(raw, t.dim, stride) if t.numel else np.empty(t.dim)
        written = np.zeros(raw.size, bool)
        if t.numel:
            np.lib.stride_tricks.as_strided(written, t.dim, t.normalised.stride)[...] = True
            untouched = raw.view(f"i{t.dtype.itemsize}")[~written]
            if np.any(untouched != -1):
                raise Mismatch(f"{what}\n  {t.name}: memory between its elements was written to")
    for t in graph.inputs:
        if t.numel and after[t.name] != memory[t.name][1]:
            raise Mismatch(f"{what}\n  {t.name}: an input was written to")
    compare(graph, got, case.expected, case.allowed, what)
    return None


