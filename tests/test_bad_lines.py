"""Problem lines that are wrong in one word: a clear error or a problem that runs, never anything else.

Each is a valid random line with one thing changed: a number, a dtype, a layout, an attribute, a word left out
or said twice.
"""

from __future__ import annotations

import os
import random
import re

import pytest

from vlug.engines import engines
from vlug.errors import VlugError
from vlug.graph import Graph
from vlug.ops import OPERATIONS
from vlug.runtime.device import FAKE
from vlug.testing import Mismatch
from vlug.testing_lines import LINES
from vlug.testing_trial import Trial

NUMBERS = ["0", "1", "2", "3", "7", "-1", "-3", "17", "1000", str(2**31), str(2**40), str(2**63), "nan",
           "inf", "1e30", "0.5", "", "x", "1x", "x2", "99999999999999999999"]  # fmt: skip
DTYPES = [":f32", ":bf16", ":f16", ":f64", ":i64", ":i32", ":u8", ":bool", ":f8", ":", ":nhwc", ":f32:nhwc",
          ":s1", ":s0x0x0x0", ":s-1", ":f32:s9999999999999"]  # fmt: skip
#: Lines an operation.
COUNT = int(os.environ.get("VLUG_RANDOM_CASES", "40"))
#: Elements that a problem may have to be run as well as planned.
FEW = 1 << 16


def spoil(r: random.Random, line: str) -> str:
    """The line with one thing changed."""
    kind, found = r.randrange(6), list(re.finditer(r"\d+", line))
    if kind == 0 and found:  # a number
        m = r.choice(found)
        return line[: m.start()] + r.choice(NUMBERS) + line[m.end() :]
    words = line.split()
    at = r.randrange(1, len(words)) if len(words) > 1 else 0
    if kind == 1:  # a type or a layout
        return " ".join([*words[:at], words[at].split(":")[0] + r.choice(DTYPES), *words[at + 1 :]])
    if kind == 2:  # a word left out
        return " ".join(words[:at] + words[at + 1 :])
    if kind == 3:  # one said twice
        return " ".join([*words, words[at]])
    if kind == 4:  # an attribute's value
        key = words[at].split("=")[0]
        return " ".join([*words[:at], f"{key}={r.choice(NUMBERS)}", *words[at + 1 :]])
    i = r.randrange(len(line))  # a character
    return line[:i] + r.choice("=x:;->,!_ 09aZ") + line[i + r.randrange(2) :]


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_one_thing_wrong(operation: str) -> None:
    r = random.Random(operation)
    outcomes = {"refused": 0, "fine": 0}
    for _ in range(COUNT):
        line = spoil(r, LINES[operation](r).strip())
        try:
            g = Graph.parse(line)
            for engine in engines():
                engine.why_not(g, FAKE["avx512"])
            tensors = [t for t in g.tensors.values() if not t.overlaps]
            if all(t.span <= FEW for t in g.tensors.values()) and len(tensors) == len(g.tensors):
                Trial(line).run()
            outcomes["fine"] += 1
        except VlugError as e:
            if isinstance(e, Mismatch) or not 0 < len(str(e).strip()) < 3000:
                raise AssertionError(f"{line}\n{e}") from None
            outcomes["refused"] += 1
        except Exception as e:
            raise AssertionError(f"{line}\n{type(e).__name__}: {e}") from e
    assert outcomes["refused"] > 5
