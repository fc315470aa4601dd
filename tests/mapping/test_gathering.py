"""Successes of fast calls are handled some at a time, but none waits while somebody needs it. An item that was read
does not wait for the next one."""

from contextlib import closing
from threading import Event
from typing import Any

import pytest
from support.maps import Gate
from support.threads import DEADLINE, Threads, wait_asleep

from manytail import Concurrency, concurrent_map


def test_fast_calls_are_handled_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one worker, whose window has room for all items, and a consumer that waits for none."""
    last, handled = Event(), []
    options = {"workers": 1, "max_in_flight": 1_000}
    with closing(concurrent_map(lambda item: item == 999 and last.set(), range(1_000), **options)) as results:
        handle = results._runner._handle
        monkeypatch.setattr(results._runner, "_handle", lambda: (handled.append(1), handle()))
        next(results)
        assert last.wait(DEADLINE)
        assert len(handled) < 500


def gated(first: int, second: int) -> tuple[Gate, Gate, Any]:
    """Gates for the calls of two items. The map, with the results of all items but these at once."""
    gates = {first: Gate(), second: Gate()}
    fn = lambda item: gates[item](item) if item in gates else item  # noqa: E731
    return gates[first], gates[second], concurrent_map(fn, range(100), workers=1, max_in_flight=100)


@pytest.mark.parametrize("counts", [False, True])
def test_successes_before_a_slow_call_are_taken_and_counted(counts: bool) -> None:
    first, second, results = gated(1, 5)
    with closing(results):
        assert next(results) == 0
        first.opened.set()
        second.wait_for(5)
        if counts:
            assert results.stats().done == 5
        assert [next(results) for _ in range(4)] == [1, 2, 3, 4]
        second.opened.set()
        assert list(results) == list(range(5, 100))


def test_a_consumer_that_waits_gets_the_next_success_at_once() -> None:
    first, second, results = gated(5, 6)
    with closing(results), Threads() as threads:
        assert next(results) == 0
        first.wait_for(5)
        assert [next(results) for _ in range(4)] == [1, 2, 3, 4]
        task = threads.start(next, results)
        wait_asleep(task)
        first.opened.set()
        assert task.result() == 5
        second.opened.set()


def test_an_interruption_of_stats_ends_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have taken a success that is handled then by nobody: the map must not wait for that."""
    first, second, results = gated(1, 5)

    def interrupted(items: object) -> None:
        raise KeyboardInterrupt

    with closing(results):
        assert next(results) == 0
        first.opened.set()
        second.wait_for(5)
        monkeypatch.setattr(results._scheduler, "succeeded_alike", interrupted)
        with pytest.raises(KeyboardInterrupt):
            results.stats()
        monkeypatch.undo()
        assert list(results) == []
        second.opened.set()


# ---------------------------------------------------------------------------------------------------- items that come
GATES: list[dict[str, Any]] = [{}, {"limits": Concurrency(5)}]


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
