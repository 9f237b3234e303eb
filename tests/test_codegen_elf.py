"""Objects loaded without LLVM: the same answers, nothing writable and executable, whatever is odd refused."""

from __future__ import annotations

import ctypes
import platform
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from vlug.codegen import elf, jit
from vlug.codegen.ir import Kernel
from vlug.codegen.isa import ALL, base_isa, isa_for_host
from vlug.codegen.vecmath import exp

pytestmark = pytest.mark.skipif(base_isa().name != "base", reason="this loader reads x86-64 objects")

TEXT = """
@words = internal global [3 x i64] [i64 5, i64 7, i64 11]
@table = global [2 x ptr] [ptr @first, ptr @second]
declare i64 @outside(i64)
declare i64 @labs(i64)
define i64 @first(i64 %i) {
  %p = getelementptr [3 x i64], ptr @words, i64 0, i64 %i
  %v = load i64, ptr %p
  %w = add i64 %v, 1
  store i64 %w, ptr %p
  ret i64 %v
}
define i64 @second(i64 %x) {
  %a = call i64 @outside(i64 %x)
  %b = call i64 @labs(i64 %a)
  ret i64 %b
}
"""
CALL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def exponentials(k: Kernel) -> None:
    n = k.size("n")
    x, y = k.view(n), k.view(n)
    for i in k.parallel(n):
        y[i] = exp(x[i])


def text_object() -> bytes:
    return jit._emit_text(TEXT, base_isa())


def kernel_object() -> bytes:
    isa = isa_for_host()
    return jit.emit(jit.generate(exponentials, isa), isa)


def test_data_tables_and_calls_to_the_outside() -> None:
    outside = CALL(lambda x: -3 * x)
    address = ctypes.cast(outside, ctypes.c_void_p).value or 0
    found = elf.load(text_object(), ["first", "second", "table"], {"outside": address})
    first, second = CALL(found["first"]), CALL(found["second"])
    assert [first(0), first(0), first(2)] == [5, 6, 11]
    assert second(4) == 12  # labs is the process's own
    assert list((ctypes.c_int64 * 2).from_address(found["table"])) == [found["first"], found["second"]]


def test_a_kernel_gives_the_bits_that_it_gives_through_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    obj = kernel_object()
    mine = elf.load(obj, ["vlug_exponentials"], {})["vlug_exponentials"]

    def refuse(*_: Any) -> dict[str, int]:
        raise elf.Unsupported("for the test")

    monkeypatch.setattr(elf, "load", refuse)
    theirs = jit.load(obj, ["vlug_exponentials"])["vlug_exponentials"]
    assert ctypes.string_at(mine, 64)[:16] == ctypes.string_at(theirs, 64)[:16]
    x = np.linspace(-20, 20, 1001, dtype=np.float32)
    results = []
    from vlug.codegen import native

    for address in (mine, theirs):
        y = np.full_like(x, np.nan)
        args = (ctypes.c_int64 * 1)(x.size)
        native.run(native.plan_array([native.Step(address, args, (0, 1))]), [x.ctypes.data, y.ctypes.data])
        results.append(y)
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(results[0], np.exp(x.astype(np.float64)), rtol=1e-6)


def test_nothing_is_writable_and_executable() -> None:
    address = elf.load(kernel_object(), ["vlug_exponentials"], {})["vlug_exponentials"]
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, mode, *_ = line.split()
            low, high = (int(p, 16) for p in span.split("-"))
            if low <= address < high:
                assert mode.startswith("r-x")
                return
    raise AssertionError("the code is in no mapping")


def test_refusals() -> None:
    obj = text_object()
    with pytest.raises(elf.Unsupported, match="nothing defines outside"):
        elf.load(obj, ["first"], {})
    with pytest.raises(elf.Unsupported, match="missing is not defined"):
        elf.load(obj, ["missing"], {"outside": 1})
    foreign = jit._emit_text(TEXT, ALL["avx2" if platform.machine() in ("aarch64", "arm64") else "neon"])
    for bad in (b"", obj[:40], obj[:-200], b"\x7fELF" + bytes(60), foreign):
        with pytest.raises(elf.Unsupported):
            elf.load(bad, ["first"], {"outside": 1})


def test_a_damaged_object_is_refused_or_loaded_but_never_a_crash() -> None:
    """The store's digest keeps damage out; the loader itself must not fall over it either."""
    obj, rng = text_object(), random.Random(1)
    refused = 0
    for _ in range(400):
        bad = bytearray(obj)
        for _ in range(rng.randrange(1, 6)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        try:
            elf.load(bytes(bad), ["first", "second"], {"outside": 1})
        except elf.Unsupported:
            refused += 1
    assert refused > 20


def test_a_second_process_needs_no_llvm() -> None:
    """With a full store a plan runs without LLVM's library in the process."""
    code = (
        "import sys, vlug, numpy as np\n"
        "y = vlug.relu(np.ones((4, 4), np.float32))\n"
        "print(float(y.sum()), 'llvmlite.binding' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    outs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert outs[1].split() == ["16.0", "False"], outs
