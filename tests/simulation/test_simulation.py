"""Two thousand worlds, and what the simulation itself must keep: a seed replays exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from support.counts import count

from simulation import shared
from simulation.code import Code
from simulation.settings import draw
from simulation.world import World, replay, run

pytestmark = pytest.mark.thread_unsafe(reason="a world has no threads: four at once find no more than one")

SEEDS = count(2_000, 40_000, "MANYTAIL_SEEDS")
SHARED_SEEDS = count(200, 20_000)
PARTS = 8
SITUATIONS = {
    "arrive", "take", "started", "succeeded", "raises", "retry", "defer", "fail",  # calls
    "tick", "abandon", "late end", "in time",  # timeouts, and calls that end at the instant at which they are overdue
    # At a gate.
    "offer", "goes back", "missed", "refuse", "follows", "leads", "answered", "returns", "returned", "split",
    "consume", "took", "input ends", "stop", "map fails", "quiet",
}  # fmt: skip


@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_is_kept_in_every_world(part: int) -> None:
    code = Code()
    for seed in range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS):
        run(seed, code)


@pytest.mark.parametrize("part", range(PARTS))
def test_items_that_come_with_their_results_are_not_called(part: int) -> None:
    """The same worlds, and a database that knows some results: no call, no slot, no cost, and the promised order."""
    code = Code()
    for seed in range(part * SEEDS // PARTS // 8, (part + 1) * SEEDS // PARTS // 8):
        world = World(replace(draw(seed), known=(0.1, 0.5, 0.9)[seed % 3]), code)
        world.run()
        assert world.model.remembered == world.scheduler.remembered


@pytest.mark.parametrize("part", range(PARTS))
def test_shared_limits_hold_over_all_tasks(part: int) -> None:
    """Kills, speculative copies, a database that is slow or away, leases that are lost."""
    code = Code()
    for seed in range(part * SHARED_SEEDS // PARTS, (part + 1) * SHARED_SEEDS // PARTS):
        shared.run(seed, code)


def traces() -> str:
    code = Code()
    return "".join(replay(seed, code) for seed in range(40)) + "".join(shared.replay(seed, code) for seed in range(20))


def test_a_seed_replays_exactly() -> None:
    """In this process, and in one with other hashes and addresses."""
    script = "from simulation.test_simulation import traces\nprint(traces(), end='')"
    environment = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    call = [sys.executable, "-c", script]
    there = subprocess.check_output(call, cwd=Path(__file__).parents[1], env=environment, text=True)
    assert there == traces()


def test_worlds_reach_every_situation() -> None:
    """Shows that every kind of event occurs: a check of an event that never happens checks nothing."""
    code = Code()
    happened: Counter[str] = Counter()
    for seed in range(600):
        lines = [line for line in replay(seed, code).splitlines() if line[:10].strip()[:1].isdigit()]
        happened.update({line[12:22].strip() for line in lines})
        missing = {event for event in SITUATIONS if happened[event] < 5}
        if not missing:
            break
    assert missing == set()


@pytest.mark.parametrize("seed", [10_000, 10_008, 10_017, 10_027])
def test_parts_of_a_batch_with_priorities_in_key_order(seed: int) -> None:
    """A part that lost the slot of its batch begins anew. Otherwise its key waits for it for ever."""
    World(replace(draw(312), seed=seed), Code()).run()
