"""A seeded share of the fuzzing, and every trial that once failed (regressions.txt)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzing import CHAIN, Tally, run
from vlug.ops import OPERATIONS
from vlug.testing_lines import LINES
from vlug.testing_trial import Trial, trials_of

REGRESSIONS = trials_of((Path(__file__).parent / "regressions.txt").read_text(encoding="utf-8").splitlines())
#: Seeds of `make fuzz` begin at 0; these are others, so that the two walk different problems.
FIRST, COUNT = 1_000_000, 12


@pytest.mark.parametrize("operation", [*sorted(OPERATIONS), CHAIN])
def test_random_problems(operation: str) -> None:
    tally = Tally()
    run(operation, range(FIRST, FIRST + COUNT), tally)
    assert not tally.failed, "\n\n".join(f"vlug run {words}\n{why}" for words, why in tally.failed[:3])
    assert tally.total


def test_every_operation_has_random_problems() -> None:
    assert set(LINES) == set(OPERATIONS)


@pytest.mark.parametrize("trial", REGRESSIONS, ids=lambda t: t.words)
def test_what_once_failed(trial: Trial) -> None:
    trial.run()


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_words_repeat_a_trial(operation: str) -> None:
    from fuzzing import draw

    for trial in draw(operation, 3):
        again = Trial.parse(trial.words)
        assert again == trial
        assert again.graph.line == trial.graph.line
