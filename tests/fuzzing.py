"""Random trials of every operation: drawn from seeds, run in processes of their own, failures as one line.

A failure prints what follows `vlug run` to see it again. scripts/fuzz runs many, tests/test_fuzz.py a few.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vlug.codegen.isa import runnable
from vlug.engines import engines
from vlug.graph import Graph
from vlug.ops import OPERATIONS
from vlug.runtime.device import ISA_NEEDS, PRODUCT_ISAS, cpu_features, tiles_allowed
from vlug.testing import INEXACT, Case, Mismatch
from vlug.testing_lines import LINES
from vlug.testing_trial import PLAN, VARIANT_NAMES, Trial

__all__ = ["Tally", "chain", "draw", "run"]

ISAS = tuple(i.name for i in runnable()) + tuple(
    i for i in PRODUCT_ISAS if cpu_features().issuperset(ISA_NEEDS[i]) and (i != "amx" or tiles_allowed()))
#: Operations of one input and one result of its dims, that may follow another in a chain.
_FOLLOWERS = ("relu", "relu negative_slope=0.1", "relu upper_clip=2.0", "sigmoid", "tanh", "gelu",
              "gelu_approx_tanh", "swish", "softplus", "hardswish", "hardsigmoid", "mish", "elu")  # fmt: skip
CHAIN = "chain"
#: Engines that are not held to equality, whatever the fill.
_INEXACT = {e.name for e in engines() if e.notes & INEXACT}


def chain(r: random.Random) -> str:
    """An operation followed by up to four pointwise ones, read once or twice: what plans fuse or split."""
    names = sorted(n for n in LINES if OPERATIONS[n].outputs == ("y",) and n != "identity")
    line = LINES[r.choice(names)](r).strip()
    first = Graph.parse(line)
    if len(first.outputs) != 1 or first.outputs[0].dtype.kind != "f":
        return line
    last, steps = "t0", [f"{line} -> t0"]
    y = first.outputs[0]
    for i in range(1, r.randint(2, 5)):
        kind = r.random()
        if kind < 0.5:
            head, *tail = r.choice(_FOLLOWERS).split(maxsplit=1)
            step = f"{head} {last} {' '.join(tail)}".strip()
        elif kind < 0.75 and y.rank >= 2:
            axis = r.randrange(y.rank)
            step = f"bias {last} b:b{i}={y.dim[axis]}:{y.dtype} axis={axis}"
        else:
            other = r.choice([last, "t0"])
            step = f"{r.choice(['add', 'mul'])} {last} {other}"
        steps.append(f"{step} -> t{i}")
        last = f"t{i}"
    return "; ".join(steps)


def draw(operation: str, seed: int) -> Iterator[Trial]:
    """The trials of a seed: one problem on every engine that might take it, and as a plan."""
    r = random.Random(f"{operation} {seed}")
    line = (chain if operation == CHAIN else LINES[operation])(r).strip()
    graph = Graph.parse(line)
    allowed = [d.name for d in graph.nodes[0].op.dtypes if d.kind == "f"] or [""]
    said = any(t.dtype.kind == "f" and t.dtype.name != "f32" for t in graph.tensors.values())
    if said or (operation == CHAIN and " dtype=" in line):
        allowed = [""]  # the line says which types go together
    trial = Trial(
        line,
        fill=r.choice(["exact", "exact", "real", "real", "edge"]),
        seed=r.randrange(1 << 16),
        dtype=r.choice(["f32", *allowed] if "f32" in allowed else allowed),
        variant=r.choice(VARIANT_NAMES),
        isa=r.choice(ISAS) if ISAS else "",
        threads=r.choice([1, 1, 2, 3]),
        at=r.choice(["start", "end"]),
    )
    yield replace(trial, engine=PLAN)
    if operation != CHAIN:
        yield from (replace(trial, engine=e.name) for e in engines() if e.name != "reference")


@dataclass
class Tally:
    """ran: (operation, dtype, ISA) → trials; refused: problems no engine took; failed: words and why."""

    ran: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.ran.values())


def run(
    operation: str,
    seeds: Sequence[int],
    tally: Tally,
    before: Callable[[int, Trial], None] = lambda seed, trial: None,
) -> None:
    """Run the trials of some seeds; `before` is told of each before it runs (a crash would not return)."""
    began = time.monotonic()
    for seed in seeds:
        try:
            trials = list(draw(operation, seed))
        except Exception as e:  # a random line that is none
            tally.failed.append((f"({operation}, seed {seed})", f"{type(e).__name__}: {e}"))
            continue
        case: Case | None = None  # the numbers and what is right, for all engines alike
        for trial in trials:
            before(seed, trial)
            try:
                case = case or Case.of(trial.graph, trial.fill, trial.seed)
                why = trial.run(case if trial.engine not in _INEXACT else None)
            except Mismatch as e:
                tally.failed.append((trial.words, str(e)))
                why = None
            except Exception as e:  # whatever it is, it is a finding: the line is valid
                tally.failed.append((trial.words, f"{type(e).__name__}: {e}"))
                why = None
            if why is None:
                tally.ran[operation, trial.dtype, trial.isa] += 1
            elif trial.engine == PLAN:
                tally.refused[operation] += 1
    tally.seconds += time.monotonic() - began


def _chunk(operation: str, first: int, count: int, note: Path) -> dict[str, Any]:
    """One process's share, as JSON values; the trial under way stands in `note`."""
    tally = Tally()
    with note.open("wb", buffering=0) as f:

        def before(seed: int, trial: Trial) -> None:
            f.seek(0)
            f.truncate()
            f.write(f"{seed} {trial.words}".encode())

        run(operation, range(first, first + count), tally, before)
    return {
        "ran": [[*key, n] for key, n in tally.ran.items()],
        "refused": dict(tally.refused),
        "failed": tally.failed,
    }


if __name__ == "__main__":
    name, first, count, note = sys.argv[1:]
    print(json.dumps(_chunk(name, int(first), int(count), Path(note))))
