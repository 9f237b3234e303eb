"""A share of PyTorch's own samples (OpInfo) of what reaches our operators; `scripts/opinfo` runs them all."""

from __future__ import annotations

import json
import os
import random

import pytest

from torch_support import ROOT, armed, torch

pytest.importorskip("expecttest", reason="PyTorch's samples need it")

pytestmark = pytest.mark.framework
#: The last whole sweep: which of PyTorch's operators reach ours, and with how many samples.
SWEEP = json.loads((ROOT / "results" / "opinfo.json").read_text())
SEED = int(os.environ.get("VLUG_RANDOM_SEED", "0"))
DTYPES = ("float32", "bfloat16", "float16", "float64")


def test_the_last_whole_sweep_found_nothing() -> None:
    assert SWEEP["total"]["samples"] > 1000
    assert SWEEP["differing"] == []


def test_samples() -> None:
    """A sample of every eighth of these operators in each dtype, drawn from a seed."""
    from torch_opinfo import Sweep, op_infos

    frontend, infos = armed(), op_infos()
    found: list[str] = []
    samples = taken = 0
    names = sorted(SWEEP["opinfos"])
    drawn = random.Random(SEED).sample(names, len(names) // 8)
    for i, name in enumerate(drawn):
        if name in infos:  # another PyTorch may have others
            s = Sweep(frontend, seed=SEED + i, most=1)
            for dtype in DTYPES:
                s.op(name, infos[name], getattr(torch, dtype))
            found += s.differing
            samples += s.samples
            taken += s.taken
    assert not found, "\n".join([f"{len(found)} of {samples}", *found[:12]])
    assert samples > 2 * len(drawn)
    assert taken > samples // 10


def test_a_difference_is_seen() -> None:
    """The judge: wrong values, strides, dtypes, warnings and errors are each told."""
    from torch_opinfo import Outcome, differ

    x = torch.randn(4, 5)
    stock = Outcome([x])
    assert not differ(stock, Outcome([x * (1 + 1e-7)]), stock)
    small = x * torch.tensor(
        [1.0, 1e-6, 1, 1, 1]
    )  # a small number among large ones is measured by its own size
    off = small + torch.tensor([0, 1e-12, 0, 0, 0])
    assert differ(Outcome([small]), Outcome([off]), Outcome([small.double()]))
    for wrong in (
        Outcome([x * (1 + 1e-6)]), Outcome([x.t().contiguous().t()]), Outcome([x.double()]), Outcome([]),
        Outcome([x], warnings=["UserWarning: x"]), Outcome(error="RuntimeError: x"),
        Outcome([torch.where(x > 0, torch.nan, x)]), Outcome([x.detach().requires_grad_()]),
    ):  # fmt: skip
        assert differ(stock, wrong, stock)
