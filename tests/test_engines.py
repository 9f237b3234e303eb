"""Every engine against the operations' definitions, and proof that the harness catches a broken one.

One test an engine and a problem line. The lines of an operation share its layout variants, dtypes and
instruction sets of the host: each line has the next few, and all of them meet every variant.
Fill and guard page are drawn by a seed from the line; 1, 2 and 3 threads must give the same bits.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faulty import Relu
from vlug import config
from vlug.dtypes import dtype
from vlug.engines import engines
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS
from vlug.runtime.device import FAKE, KERNEL_ISAS, best_isa, cpu_features, host
from vlug.testing import VARIANTS, Mismatch, allocate, check, derive, of_dtype

SAMPLES = [line for name in sorted(OPERATIONS) for line in OPERATIONS[name].samples()]
CHAINS = [
    "conv_fprop x=2x17x9x13 w=19x17x3x3 pad=1 -> a; bias a b=19 -> y",
    "conv_fprop x=2x17x9x13 w=19x17x3x3 pad=1 -> a; relu a -> y",
    "conv_fprop x=2x8x14x14 w=24x8x1x1 stride=2 -> a; bias a b=24 -> c; relu c -> y",
    "conv_fprop x=2x24x12x10 w=24x1x3x3 pad=1 groups=24 -> a; bias a b=24 -> c; relu c -> y",
    "conv_fprop x=0x3x5x5 w=4x3x3x3 -> a; bias a b=4 -> c; relu c -> y",
    "conv_fprop x=2x0x5x5 w=4x0x3x3 -> a; bias a b=4 -> y",
    "matmul a=33x40 b=70x40 transpose_b=1 -> c; bias c b=70 -> y",
    "matmul a=33x40 b=70x40 transpose_b=1 -> c; bias c b=70 -> d; relu d -> y",
    "add a=3x35x6x5 b=3x35x6x5 -> c; relu c -> y",
    "batchnorm_inference x=3x35x6x5 mean=35 var=35 scale=35 bias=35 -> a; relu a -> y",
    "batchnorm_inference x=3x35x6x5 mean=35 var=35 -> a; add a b=3x35x6x5 -> c; relu c -> y",
]
DTYPES = ("f32", "bf16", "f16", "f64")
BEST = best_isa(cpu_features())
ISAS = KERNEL_ISAS[: KERNEL_ISAS.index(BEST) + 1] if BEST in KERNEL_ISAS else ()


def taken() -> Iterator[Any]:
    """(engine, line, first, count) wherever an engine takes a line, row-major or channels last, on a made-up
    device; first and count: which trials of those of the engine and operation are this line's.
    """
    lines: dict[tuple[str, str], list[str]] = {}
    for line in [*SAMPLES, *CHAINS]:
        layouts = (VARIANTS[label] for label in ("plain", "nhwc"))
        graphs = [derive(Graph.parse(line), v.inputs, v.outputs) for v in layouts]
        for engine in engines():
            takes = any(engine.why_not(g, FAKE["avx512"]) is None for g in graphs)
            if takes and engine.name != "reference":
                lines.setdefault((engine.name, line.split()[0]), []).append(line)
    for (name, _), of_operation in lines.items():
        count = -(-len(VARIANTS) // len(of_operation))  # rounded up: together they meet every variant
        for i, line in enumerate(of_operation):
            yield pytest.param(name, line, i * count, count, id=f"{name}-{line}")


@pytest.mark.isa
@pytest.mark.skipif(not ISAS, reason="the host runs no kernels of ours")
@pytest.mark.parametrize(("engine", "line", "first", "count"), list(taken()))
def test_engine_gives_what_the_operation_means(engine: str, line: str, first: int, count: int) -> None:
    rng = np.random.default_rng(int(hashlib.sha256(f"{engine} {line}".encode()).hexdigest()[:15], 16))
    graph, labels, done = Graph.parse(line), list(VARIANTS), 0
    for i in range(first, first + len(labels)):
        variant = VARIANTS[labels[i % len(labels)]]
        fill, at = str(rng.choice(["exact", "real", "real", "edge"])), str(rng.choice(["end", "start"]))
        for kind in (DTYPES[i % len(DTYPES)], "f32"):  # f32 where the engine does not know the other
            g = derive(of_dtype(graph, dtype(kind)), variant.inputs, variant.outputs)
            with config.ISA.using(ISAS[i // len(DTYPES) % len(ISAS)]):
                refused = check(g, engine, fill, (1, 2, 3), device=host(), seed=i, shift=variant.shift, at=at)
            if refused is None:
                done += 1
                break
        if done == count:
            return
    assert done, f"{engine} takes it in no layout"


@pytest.mark.parametrize("line", [*SAMPLES[::3], *CHAINS])
def test_reference_engine_runs_every_problem(line: str) -> None:
    for label in ("plain", "nhwc", "padded"):
        v = VARIANTS[label]
        assert check(derive(Graph.parse(line), v.inputs, v.outputs), "reference", "real") is None


# --- the harness itself ---
DENSE, SPACED = "relu x=37", "relu x=37:f32:s2 -> y=37:f32:s2"


def test_the_harness_passes_a_right_engine() -> None:
    for line, kind in itertools.product((DENSE, SPACED), ("exact", "real", "edge")):
        assert check(line, Relu(), kind, (1, 2, 3), device=FAKE["avx2"]) is None
    assert check("matmul a=2x2 b=2x2", Relu(), device=FAKE["avx2"]) == "only relu"


@pytest.mark.parametrize(
    ("fault", "line", "kind", "message"),
    [
        ("unwritten", DENSE, "exact", "y\\[36\\] is .*nan"),
        ("unwritten", DENSE, "real", "y\\[36\\] is .*nan"),
        ("value", DENSE, "exact", "1 of 37 elements are wrong"),
        ("ulp", "relu x=37 lower_clip=-9.0", "real", "may be off"),
        ("stride", SPACED, "exact", "elements are wrong|memory between"),
        ("mask", SPACED, "exact", "memory between its elements was written to"),
        ("input", DENSE, "exact", "x: an input was written to"),
        ("threads", DENSE, "real", "not the same bits as with 1 threads|elements are wrong"),
        ("code", DENSE, "exact", "code 3"),
    ],
)
def test_the_harness_catches(fault: str, line: str, kind: str, message: str) -> None:
    with pytest.raises(Mismatch, match=message) as caught:
        check(line, Relu(fault), kind, (1, 2, 3), device=FAKE["avx2"])
    assert Graph.parse(line).line in str(caught.value)


@pytest.mark.parametrize("fault", ["past", "workspace"])
def test_a_stray_write_hits_a_forbidden_page(fault: str) -> None:
    code = (
        "from faulty import Relu; from vlug.runtime.device import FAKE; from vlug.testing import check\n"
        f"check({DENSE!r}, Relu({fault!r}), device=FAKE['avx2'])"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == -signal.SIGSEGV, done.stdout + done.stderr


def test_allocations_have_the_strides_asked_for() -> None:
    for label, v in VARIANTS.items():
        g = derive(Graph.parse("add a=3x5x4x2 b=3x5x4x2"), v.inputs, v.outputs)
        for t in (*g.inputs, *g.outputs):
            a, _ = allocate(t, "end", v.shift)
            assert a.shape == t.dim
            assert t.has_strides([s // a.itemsize for s in a.strides]), label
            assert np.isnan(a).all()


# --- what is supported, drawn for made-up devices ---
GOLDEN = Path(__file__).parent / "golden" / "support.txt"


def support() -> str:
    """A line for each operation, dtype and engine that takes any of a few samples: how many in rows and in
    channels-last layout, and on which devices.
    """
    lines = []
    for name, kind in itertools.product(sorted(OPERATIONS), DTYPES):
        graphs = {
            layout: [
                derive(
                    of_dtype(Graph.parse(line), dtype(kind)),
                    VARIANTS[layout].inputs,
                    VARIANTS[layout].outputs,
                )
                for line in list(OPERATIONS[name].samples())[::4]
            ]
            for layout in ("plain", "nhwc")
        }
        for engine in engines():
            taken = {
                k: [g for g in gs if engine.why_not(g, FAKE["avx512"]) is None] for k, gs in graphs.items()
            }
            first = next((g for gs in taken.values() for g in gs), None)
            if first is None or engine.name == "reference":
                continue
            counts = " ".join(f"{k} {len(gs)}/{len(graphs[k])}" for k, gs in taken.items())
            where = " ".join(d for d in ("avx2", "avx512", "neon") if engine.why_not(first, FAKE[d]) is None)
            lines.append(f"{name:30}{kind:6}{engine.name:18}{counts:22}{where}")
    return "\n".join(lines) + "\n"


def test_support_is_what_it_was() -> None:
    """Lost (or won) support shows in review: VLUG_UPDATE_GOLDEN=1 writes the file anew."""
    now = support()
    if os.environ.get("VLUG_UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(now, encoding="utf-8")
    assert now.splitlines() == GOLDEN.read_text(encoding="utf-8").splitlines()
