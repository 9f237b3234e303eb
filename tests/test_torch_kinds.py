"""Every kind of argument that adapters read, as C++ and as the interpreter calls; wrong kinds are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_support import ROOT
from vlug.frontends.torch.operators import KINDS, OPERATORS, Operator
from vlug.frontends.torch.sysv import layout

pytestmark = pytest.mark.framework

#: Signatures that this PyTorch's kernels do not have.
WRONG = (
    "gelu=TI", "clamp=TSS", "cat=Ei", "cat=NT", "upsample_nearest2d=TIPP", "upsample_nearest2d=TIdd",
    "native_layer_norm=TJOOd", "native_group_norm=TOOiiiid", "elu_backward=TSSSTb", "smooth_l1_loss=TTii",
    "_batch_norm_with_update=TOOMMdv", "_fused_adam_=EEEEEEdvdddbbOO", "_fused_sgd_=EEEdddvbbbOO",
)  # fmt: skip


def test_every_kind_agrees_and_wrong_ones_are_refused() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
           "VLUG_HOOKS": "off"}  # fmt: skip
    program = [sys.executable, str(Path(__file__).with_name("torch_kinds.py")), *WRONG]
    done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=300, check=False)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert list(said) == ["=", *WRONG], done.stderr
    assert said.pop("=") == "agrees"
    assert not [w for w, verdict in said.items() if verdict == "agrees"]


def test_probes_use_every_kind_that_operators_do() -> None:
    from torch_kinds import PROBES

    used = {k for op in (*PROBES, *OPERATORS) for k in op.kinds}
    assert used == set(KINDS)


def test_registers_of_aggregates() -> None:
    """A double and its flag travel together; a register that a list was too wide for stays empty."""
    up = layout(Operator("upsample_nearest2d", "TIDD", 1, ""))
    # result, functor, keys, x; the list in the last two general registers: no room for the flags
    assert up.words == ((3,), (4, 5), (6, 7), (8, 9))
    assert up.shape.types == "i" * 10
    back = layout(Operator("x", "TDD", 0, ""))
    assert back.shape.types == "iiiiiff"
    assert back.words == ((2,), (5, 3), (6, 4))
    wide = layout(Operator("x", "TTTI", 0, ""))
    assert wide.words[3] == (6, 7), "five general registers are taken; the sixth holds nothing"
    assert wide.shape.types == "i" * 8
    adam = layout(Operator("_fused_adam_", "EEEEEEvddddbbOO", 0, ""))
    assert adam.shape.types == "i" * 6 + "f" * 5 + "i" * 12
    assert adam.shape.gives == "nothing"
    assert adam.words[1:3] == ((4, 5), (11, 12))
