"""A trial: one problem, in one layout, dtype and fill, held to its definition on one engine and ISA.

Fuzzing draws trials, `vlug run --strict` repeats one, and tests/regressions.txt keeps those that once failed,
all as the same words: `--strict edge --seed 3 --dtype bf16 --variant spaced relu x=2x3`.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from vlug import config, testing
from vlug.dtypes import dtype
from vlug.engines.base import Engine, EngineConfig, HostProgram, Program
from vlug.errors import BadInput, NotSupported
from vlug.graph import Graph
from vlug.plan import ExecutionPlan, plan
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["PLAN", "VARIANT_NAMES", "Trial", "trials_of"]

#: Stands for whatever engines a plan chooses, and for the plan's own splitting and workspace.
PLAN = "plan"
_MIX = "mix"
VARIANT_NAMES = (*testing.VARIANTS, _MIX)


@dataclass(frozen=True)
class Trial:
    """What `testing.check` is asked. variant: a name of testing.VARIANTS, or mix (every tensor its own, drawn
    from the seed); dtype: replaces the first input's; isa: the highest to use, "" for the machine's own;
    threads: the result must have the same bits with one and with so many."""

    line: str
    engine: str = PLAN
    fill: str = "real"
    seed: int = 0
    dtype: str = ""
    variant: str = "plain"
    isa: str = ""
    threads: int = 1
    at: str = "end"

    def __post_init__(self) -> None:
        if self.variant not in VARIANT_NAMES:
            raise BadInput(f"variant: {self.variant!r} is not one of {', '.join(VARIANT_NAMES)}")
        if self.fill not in testing.FILLS:
            raise BadInput(f"fill: {self.fill!r} is not one of {', '.join(testing.FILLS)}")

    @property
    def graph(self) -> Graph:
        """The problem in its dtype and layout."""
        g = Graph.parse(self.line)
        if self.dtype:
            g = testing.of_dtype(g, dtype(self.dtype))
        if self.variant == _MIX:
            return testing.derive(g, self._mixed, self._mixed_result)
        v = testing.VARIANTS[self.variant]
        return testing.derive(g, v.inputs, v.outputs)

    def _mixed(self, t: Tensor) -> Tensor:
        """A layout of its own for each tensor; a result never one that overlaps itself."""
        v = random.Random(f"{self.seed} {t.name}").choice(tuple(testing.VARIANTS.values()))
        return v.inputs(t)

    def _mixed_result(self, t: Tensor) -> Tensor:
        laid = self._mixed(t)
        return t if laid.overlaps else laid

    def run(self, problem: Graph | testing.Case | None = None) -> str | None:
        """None if the result is right, the engine's reason if it refuses; raises testing.Mismatch.

        problem: what `graph` and its case came to, where the same problem is tried on several engines.
        """
        from vlug.runtime.device import host

        problem = problem or self.graph
        shift = testing.VARIANTS[self.variant].shift if self.variant != _MIX else self.seed % 2
        with config.ISA.using(self.isa or config.ISA.get()), config.THREADS.using(self.threads):
            engine: Engine | str = self.engine
            if self.engine == PLAN:
                g = problem.graph if isinstance(problem, testing.Case) else problem
                halves = any(t.dtype.name == "bf16" for t in g.tensors.values())
                engine = _PlannedProducts() if halves and host().products else _Planned()
            settings = None
            if isinstance(engine, str) and "/" in engine:
                settings = EngineConfig.parse(engine)
                engine = settings.engine
            return testing.check(
                problem, engine, self.fill, sorted({1, self.threads}), device=host(), settings=settings,
                seed=self.seed, at=self.at, shift=shift,
            )  # fmt: skip

    # --- text ---
    _OPTIONS: ClassVar[dict[str, str]] = {
        "strict": "fill", "seed": "seed", "dtype": "dtype", "variant": "variant", "isa": "isa",
        "engine": "engine", "threads": "threads", "at": "at",
    }  # fmt: skip

    @property
    def words(self) -> str:
        """What follows `vlug run` to repeat it."""
        out = [f"--strict {self.fill}"]
        plain = Trial("")
        for option, name in self._OPTIONS.items():
            value = getattr(self, name)
            if option != "strict" and value != getattr(plain, name):
                out.append(f"--{option} {value}")
        return f"{' '.join(out)} {shlex.quote(self.line)}"

    @classmethod
    def parse(cls, words: str) -> Trial:
        """The trial of such words."""
        given: dict[str, Any] = {}
        rest = shlex.split(words)
        while rest and rest[0].startswith("--"):
            option, value, *rest = rest
            name = cls._OPTIONS.get(option.removeprefix("--"))
            if name is None:
                raise BadInput(f"trial: {option} is not one of {', '.join(f'--{o}' for o in cls._OPTIONS)}")
            given[name] = value
        given |= {n: int(given[n]) for n in ("seed", "threads") if n in given}
        return replace(cls(" ".join(rest)), **given)


class _PlannedProgram(HostProgram):
    def __init__(self, made: ExecutionPlan) -> None:
        self.made = made

    def run(self, arrays: Mapping[str, Any]) -> None:
        self.made.execute(arrays)


class _Planned(Engine):
    """The plan of a graph, as if it were an engine; the reference engine does not count."""

    name = PLAN

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        try:
            plan(graph, device, allow_reference=False)
        except NotSupported as e:
            return str(e)
        return None

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        return _PlannedProgram(plan(graph, device, allow_reference=False))


class _PlannedProducts(_Planned):
    """The same where the plan may have the processor's bf16 products, which know no denormals."""

    notes = frozenset({"deterministic", "denormals_are_zero"})


def trials_of(lines: Sequence[str]) -> list[Trial]:
    """The trials of a file's lines, comments and empty ones aside."""
    return [Trial.parse(t) for t in lines if t.strip() and not t.lstrip().startswith("#")]
