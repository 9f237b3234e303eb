"""Arming in PyTorch: what is checked first, what is remembered; no fault of ours breaks an import."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from torch_support import ROOT, python, torch, unarmed
from vlug.frontends.torch import dispatcher
from vlug.frontends.torch.keys import read_key
from vlug.frontends.torch.operators import BY_NAME, OPERATORS, denied
from vlug.frontends.torch.sysv import layout

pytestmark = pytest.mark.framework

AUTOLOAD = """
import torch
from vlug.frontends.torch import autoload
autoload()
from vlug.frontends import hooks
y = torch.relu(torch.tensor([-1.0, 2.0]))
assert y.tolist() == [0.0, 2.0]
print("STATUS", hooks.status().get("torch"))
"""


def status(code: str = AUTOLOAD, **env: str) -> tuple[str, str]:
    """(what the hooks say in a fresh process, its stderr)."""
    done = python(code, env)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("STATUS ")[2].strip(), done.stderr


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cache with a verdict in it."""
    path = str(tmp_path_factory.mktemp("warm"))
    found, err = status(VLUG_CACHE_DIR=path)
    if found != "on":
        unarmed(found)
    assert err.count("\n") == 1, err
    assert "first use with PyTorch" in err
    return path


def test_the_second_process_checks_and_compiles_nothing(warm: str) -> None:
    found, err = status(VLUG_CACHE_DIR=warm)
    assert (found, err) == ("on", "")
    refuse = AUTOLOAD.replace(
        "autoload()\n",
        "from vlug.frontends.torch import arm\n"
        "arm._ask_child = lambda: 1 / 0\n"
        "autoload()\n",
        1,
    )
    assert status(refuse, VLUG_CACHE_DIR=warm)[0] == "on"


def test_the_greeting(warm: str) -> None:
    _, err = status(VLUG_CACHE_DIR=warm, VLUG_LOG="info")
    line = err.splitlines()[0]
    assert re.match(r"vlug \d+\.\d+: .+, \d+ threads?; PyTorch 2\.\d+$", line), err
    assert status(VLUG_CACHE_DIR=warm, VLUG_LOG="silent")[1] == ""


def test_switched_off_by_the_environment(warm: str) -> None:
    assert status(VLUG_CACHE_DIR=warm, VLUG_HOOKS="off") == ("VLUG_HOOKS is off", "")
    later = AUTOLOAD + "\nimport sys; hooks.enable(); print(hooks.status()['torch'])"
    done = python(later, {"VLUG_CACHE_DIR": warm, "VLUG_HOOKS": "off"})
    assert done.stdout.split()[-1] == "on", "enable() arms what was not armed at the import"


def test_switched_off_for_good(warm: str) -> None:
    code = "from vlug.frontends import hooks; hooks.set_persistent({})"
    assert python(code.format(False), {"VLUG_CACHE_DIR": warm}).returncode == 0
    try:
        found, err = status(VLUG_CACHE_DIR=warm)
        assert "vlug hooks off" in found
        assert err == ""
    finally:
        python(code.format(True), {"VLUG_CACHE_DIR": warm})
    assert status(VLUG_CACHE_DIR=warm)[0] == "on"


def test_a_bad_setting_does_not_break_the_import(warm: str) -> None:
    found, err = status(VLUG_CACHE_DIR=warm, VLUG_HOOKS="perhaps")
    assert "VLUG_HOOKS='perhaps'" in found
    assert err.count("\n") == 1
    assert "ConfigError" in err


def test_a_version_that_was_not_tested(warm: str) -> None:
    other = AUTOLOAD.replace("autoload()\n", "torch.__version__ = '2.99.0'\nautoload()\n", 1)
    found, err = status(other, VLUG_CACHE_DIR=warm)
    assert "version 2.99.0 was not tested" in found
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "planted",
    [
        "arm._fits = lambda v: 1 / 0",
        "arm.check = lambda: b'not an object'",
        "arm._ask_child = lambda: 1 / 0; arm._key = lambda v: 'no such key'",
        "from vlug.frontends.torch import names; names.IMPORTS += ('aoti_torch_no_such_function',);"
        "dispatcher.IMPORTS = names.IMPORTS",
        "dispatcher.library_path = lambda: __import__('pathlib').Path('/no/such/libtorch_cpu.so')",
        "arm.platform.machine = lambda: 'aarch64'",
        "arm.log.notice = arm.log.once = lambda *a, **k: 1 / 0; arm._fits = lambda v: 1 / 0",
    ],
)
def test_whatever_goes_wrong_stock_runs(warm: str, planted: str) -> None:
    code = AUTOLOAD.replace(
        "autoload()\n", f"from vlug.frontends.torch import arm, dispatcher\n{planted}\nautoload()\n", 1
    )
    found, err = status(code, VLUG_CACHE_DIR=warm)
    assert found != "on"
    lines = [text for text in err.splitlines() if "first use" not in text]
    assert len(lines) <= 1, err
    assert "Traceback" not in err


def test_a_module_of_ours_that_cannot_be_imported(warm: str) -> None:
    code = AUTOLOAD.replace(
        "autoload()\n", "import sys; sys.modules['vlug.frontends.torch.arm'] = None\nautoload()\n", 1
    )
    found, err = status(code, VLUG_CACHE_DIR=warm)
    assert "error of ours" in found
    assert "Traceback" not in err


def test_a_bad_verdict_is_remembered(tmp_path: Path) -> None:
    code = AUTOLOAD.replace(
        "autoload()\n",
        "from vlug.frontends.torch import arm\n"
        "arm._ask_child = lambda: ('relu: it differs from stock', b'')\n"
        "autoload()\n",
        1,
    )
    found, err = status(code, VLUG_CACHE_DIR=str(tmp_path))
    assert found == "its check failed: relu: it differs from stock"
    found, err = status(VLUG_CACHE_DIR=str(tmp_path))
    assert found == "its check failed: relu: it differs from stock"
    assert err.count("\n") == 1, "one line says so, and nothing is checked again"


def test_another_library_file_is_checked_anew(warm: str) -> None:
    from vlug.frontends.torch import arm

    one = arm._key("2.13.0")
    assert str(os.stat(dispatcher.library_path()).st_size) in one
    assert arm._key("2.13.1") != one


@pytest.mark.parametrize("kind", ["read-only", "a file", "writable by others"])
def test_a_cache_that_cannot_be_used(kind: str, tmp_path: Path) -> None:
    where = tmp_path / "cache"
    if kind == "a file":
        where.write_text("")
    else:
        where.mkdir()
        where.chmod(0o555 if kind == "read-only" else 0o777)
        if kind == "writable by others":
            (where / "objects").mkdir()
            (where / "objects").chmod(0o777)
    found, err = status(VLUG_CACHE_DIR=str(where))
    if kind == "read-only":
        where.chmod(0o755)
        assert stat.S_ISDIR(where.stat().st_mode)
    assert found == "on", err
    assert "Traceback" not in err


CHECK = """
import sys, dataclasses
from vlug.frontends.torch import canary, dispatcher, loader, operators
ops = list(operators.OPERATORS)
{}
print("VERDICT", canary.verdict(loader.compile_object(ops), ops) or "agrees", flush=True)
import os; os._exit(0)
"""


def kinds(name: str, new: str) -> str:
    """A wrong signature for an operator."""
    assert BY_NAME[name].kinds != new
    return f"ops = [dataclasses.replace(o, kinds={new!r}) if o.name == {name!r} else o for o in ops]"


FAULTS = {
    "intact": "",
    "lists for a flag": kinds("max_pool2d_with_indices", "TIIIbI"),
    "doubles for a flag": kinds("native_batch_norm", "TOORRddb"),
    "a present list for an optional one": kinds("mean.dim", "TIbL"),
    "a number for a reference": kinds("_convolution", "TTOIIIbIixxxx"),
    "an argument too many": kinds("_softmax", "Tibb"),
    "a mask before a number": kinds("native_batch_norm_backward", "TTOOOOObBd"),
    "fewer results": (
        "ops = [dataclasses.replace(o, results=2) if o.name == 'native_batch_norm' else o for o in ops]"
    ),
    "another layout of a kernel": (
        "import ctypes\n"
        "class Other(ctypes.Structure):\n"
        "    order = (0, 2, 1, 4, 3, 5, 6, 7, 8, 9, 10)\n"
        "    _fields_ = tuple(map(dispatcher._CppFunction._fields_.__getitem__, order))\n"
        "dispatcher._CppFunction = Other"
    ),
    "another number for a dtype": (
        "from vlug.frontends.torch import keys\n"
        "from vlug.dtypes import F32\n"
        "keys._NUMBERS['f32'] = 7"
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_canary_refuses_what_does_not_fit(fault: str) -> None:
    done = python(CHECK.format(FAULTS[fault]), {"VLUG_HOOKS": "off"})
    said = done.stdout.partition("VERDICT ")[2].strip()
    if fault == "intact":
        assert said == "agrees", done.stderr
    else:
        assert done.returncode != 0 or said not in ("", "agrees"), f"{fault} was let through"


def test_the_entry_point_is_declared() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points."torch.backends"]\nvlug = "vlug.frontends.torch:autoload"' in text


def test_importing_vlug_does_not_import_torch() -> None:
    code = (
        "import sys, vlug, vlug.frontends.hooks;"
        "print([m for m in ('torch', 'llvmlite', 'rich') if m in sys.modules])"
    )
    assert python(code).stdout.strip() == "[]"


def test_python_gone_first(warm: str) -> None:
    """Threads that still call while the interpreter ends neither crash nor hang."""
    code = """
import threading, time, torch
from vlug.frontends import hooks
hooks.enable(force=True)
w = torch.randn(1, 1, 3, 3)
def body(fresh):
    i = 0
    while True:
        i += 1
        torch.nn.functional.conv2d(torch.zeros(1, 1, 6, 5 + (i % 3000 if fresh else 0)), w)
for fresh in (True, False):
    threading.Thread(target=body, args=(fresh,), daemon=True).start()
time.sleep(0.5)
"""
    start = time.monotonic()
    done = python(code, {"VLUG_CACHE_DIR": warm}, timeout=60)
    assert time.monotonic() - start < 50
    stock = python(code.replace("hooks.enable(force=True)", ""), timeout=60)
    assert done.returncode in (0, stock.returncode), done.stderr


# --- the tables that adapters are made from ---
def test_signatures_are_torchs() -> None:
    """Kinds and results follow PyTorch's own schemas."""
    letters = {
        "Tensor": "TM", "Tensor?": "OR", "int[]": "Il", "SymInt[]": "I", "int": "i", "SymInt": "is",
        "bool": "bx", "float": "dv", "bool[]": "BC", "Scalar": "S", "int?": "P", "ScalarType?": "L",
        "ScalarType": "t", "MemoryFormat?": "L", "MemoryFormat": "t", "str": "a", "bool?": "o", "float?": "D",
        "int[]?": "J", "SymInt[]?": "J", "Scalar?": "F", "Tensor[]": "NE",
    }  # fmt: skip
    for op in OPERATORS:
        name, _, overload = op.name.partition(".")
        schema = getattr(getattr(torch.ops.aten, name), overload or "default")._schema
        assert len(schema.arguments) == len(op.kinds), op.name
        for a, kind in zip(schema.arguments, op.kinds):
            declared = re.search(rf"(\w+(?:\(.!\))?(?:\[\d*\])?\??) {a.name}(?=[,=)])", str(schema))
            assert declared
            typed = re.sub(r"\[\d\]", "[]", re.sub(r"\(.!?\)", "", declared.group(1)))
            assert kind in letters[typed], f"{op.name} {a.name}: {typed} is not {kind}"
        want = 0 if name.endswith("_") else len(schema.returns)
        assert op.results == want


def test_registers() -> None:
    """Aggregates of two words are never split; later words still fill free registers (System V)."""
    back = layout(BY_NAME["avg_pool2d_backward"])
    # result, functor, keys, dy, self, then ceil in the last register; the lists lie on the stack
    assert back.words[5] == (5,)
    assert back.words[2:5] == ((6, 7), (8, 9), (10, 11))
    pool = layout(BY_NAME["max_pool2d_with_indices"])
    assert pool.words[1] == (4, 5)
    norm = layout(BY_NAME["native_batch_norm"])
    assert [norm.shape.types[i] for (i,) in norm.words[6:]] == ["f", "f"]
    assert layout(BY_NAME["relu_"]).shape.gives == "first"


def test_deny_names() -> None:
    assert denied(frozenset({"conv2d"})) == {"_convolution", "convolution_backward"}
    assert denied(frozenset({"relu_", "aten::mm"})) == {"relu_", "mm"}


def test_reading_a_key() -> None:
    key = [5 << 16, 6 << 8 | 2, 3, 4, 4, 1, 2, 0, 1, 0, -1]
    x, axes, keep, dtype = read_key(BY_NAME["mean.dim"], key)
    assert (x.dim, x.stride, x.number) == ((3, 4), (4, 1), 6)
    assert (axes, keep, dtype) == ((0, 1), False, None)


def test_a_list_of_results_is_json(warm: str) -> None:
    code = AUTOLOAD + "\nimport json\nhooks.enable(force=True); torch.relu(torch.ones(3)); " \
        "print('JSON', json.dumps(hooks.stats()))"  # fmt: skip
    done = python(code, {"VLUG_CACHE_DIR": warm})
    found: Any = json.loads(done.stdout.partition("JSON ")[2])
    assert found["torch"]["relu"]["taken"] + found["torch"]["relu"]["passed"] >= 1
