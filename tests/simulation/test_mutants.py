"""The simulation finds each planted fault."""

from __future__ import annotations

from itertools import chain

import pytest
from support.counts import LONG

from simulation import shared
from simulation.code import Code
from simulation.mutants import MUTANTS, Mutant, first_seed

pytestmark = pytest.mark.thread_unsafe(reason="a world has no threads: four at once find no more than one")

WITHIN = 1_000
ENDLESS = 30_000  # events; the seeds of the list need fewer where nothing is planted, which each test checks


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    known = () if LONG and mutant.seed < WITHIN else (mutant.seed,)  # a long run searches from seed 0
    if known:
        monkeypatch.setattr(shared, "MOST_EVENTS", ENDLESS)
    seed = first_seed(mutant, chain(known, range(WITHIN)))
    assert seed is not None
    if mutant.shared:
        shared.run(seed, Code())


def test_a_text_that_is_not_there_once_is_refused() -> None:
    for old in ("no such text", "self"):
        with pytest.raises(LookupError, match="expected: once"):
            Mutant("out of date", "scheduler", old, "", 0).world()
