"""A deadline long before the end of a large input, on the virtual clock: the map ends at once and loses no item."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulation import world
from simulation.code import Code
from simulation.settings import draw
from simulation.world import World

pytestmark = pytest.mark.thread_unsafe(reason="a world has no threads: four at once find no more than one")

ITEMS = 30_000
PLAIN: dict[str, Any] = {
    "items": ITEMS, "workers": 16, "order": "input", "keys": 0, "per_key": 0, "weights": None, "priorities": (),
    "max_in_flight": 0, "timeout": None, "deadline": 30.0, "errors": "return", "buffer": 0, "sized": False,
    "window_limit": 10_000, "hangs": 0.02, "storm": 0.0, "bad_items": 0.0, "pull": 0.0, "batch": 1_000,
    "input_raises": False, "rest": 0.0, "greed": 1_000, "lag": 0.0, "sloth": 0.0, "grain": 0.25, "latency": 1.0,
    "close_at": None, "break_at": None, "idle_limit": 4_096, "breaker": 0, "rate": None, "per_key_rate": None,
    "costs": (),
    "cost_rate": None, "budget": None, "dedup": 0, "group": 1, "linger": 0.0, "coroutines": False,
}  # fmt: skip


@pytest.mark.parametrize(
    "options", [{}, {"rate": 8.0}, {"group": 50, "linger": 1.0}, {"dedup": 10, "identities": 12_000}], ids=str
)
def test_every_item_is_there_two_seconds_after_the_deadline(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "MOST_EVENTS", 1_000_000)
    run = World(replace(draw(1), **{**PLAIN, **options}), Code())
    run.run()  # the model checks that no item is lost, doubled or out of order
    model = run.model
    assert len(model.emitted) == model.popped == ITEMS
    assert model.expired
    assert model.failures > 0.8 * ITEMS
    assert run.last_output <= 32.0
