"""How items come to the gate from the reader, and calls from the gate to a worker, without a lock or a queue."""

from __future__ import annotations

from contextlib import closing
from threading import Event
from typing import Any

import pytest

from manytail import Concurrency, concurrent_map
from manytail.mapping._item import Item
from manytail.mapping._options import Options
from manytail.mapping._scheduler import Scheduler

GATES: list[dict[str, Any]] = [{}, {"limits": Concurrency(5)}]


def end(scheduler: Scheduler, item: Item, now: float) -> None:
    """A worker reports the end of the call, and asks for the next one."""
    assert scheduler.gate is not None
    assert not scheduler.gate.late(item, now)
    scheduler.gate.hands_over = True
    scheduler.succeeded(item, now)
    scheduler.dispatch(now)


def test_a_call_is_handed_over_only_where_none_waits_before_it() -> None:
    scheduler = Scheduler(Options(limits=(Concurrency(9),), workers=2))
    gate, items = scheduler.gate, [Item(value) for value in range(6)]
    assert gate is not None
    scheduler.assign(items)
    scheduler.arrived(items, 1.0)
    scheduler.dispatch(1.0)
    end(scheduler, scheduler.ready.get_nowait(), 1.0)
    assert gate.handed is None, "item 1 is in the queue, and starts before item 2"
    first, second = scheduler.ready.get_nowait(), scheduler.ready.get_nowait()
    assert [first, second] == items[1:3]
    end(scheduler, first, 1.0)
    assert gate.handed is items[3]
    assert scheduler.ready.empty()


def test_of_several_calls_that_start_the_first_is_handed_over() -> None:
    scheduler = Scheduler(Options(limits=(Concurrency(9),), workers=2))
    gate, items = scheduler.gate, [Item(value) for value in range(4)]
    assert gate is not None
    scheduler.assign(items)
    scheduler.arrived(items, 1.0)
    scheduler.dispatch(1.0)
    first, second = scheduler.ready.get_nowait(), scheduler.ready.get_nowait()
    assert not gate.late(first, 1.0)
    scheduler.succeeded(first, 1.0)
    end(scheduler, second, 1.0)
    assert gate.handed is items[2]
    assert scheduler.ready.get_nowait() is items[3]


@pytest.mark.parametrize("options", GATES, ids=["no gate", "gate"])
def test_an_item_that_was_read_does_not_wait_for_the_next_one(options: dict[str, Any]) -> None:
    """Nor for the consumer."""
    first_taken, begun = Event(), Event()

    def call(value: int) -> int:
        if value == 1:
            begun.set()
        return value

    def key(value: int) -> int:
        if value > 0:
            (first_taken if value == 1 else begun).wait()
        return value

    with closing(concurrent_map(call, [0, 1, 2], key=key, workers=2, **options)) as results:
        assert next(results) == 0
        first_taken.set()
        begun.wait()
        assert list(results) == [1, 2]


@pytest.mark.parametrize("options", GATES, ids=["no gate", "gate"])
def test_an_item_that_was_read_while_all_workers_ran_starts_with_the_end_of_a_call(options: dict[str, Any]) -> None:
    last_is_read, taken = Event(), Event()

    def call(value: int) -> int:
        if value == 0:
            last_is_read.wait()
        return value

    def key(value: int) -> int:
        if value == 2:
            last_is_read.set()
            taken.wait()
        return value

    with closing(concurrent_map(call, [0, 1, 2], key=key, workers=1, **options)) as results:
        assert [next(results), next(results)] == [0, 1]
        taken.set()
        assert list(results) == [2]
