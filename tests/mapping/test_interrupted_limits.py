"""A signal handler that raises in a map's own work loses nothing of its limits: what others use later is there."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.interrupted import each_point

from manytail.mapping import (
    Batch,
    Breaker,
    Budget,
    Caller,
    Concurrency,
    Retry,
    Shared,
    _exchange,
    _gate,
    _inline_runner,
    _runner,
    _scheduler,
    _shared_database,
    _shared_store,
    aconcurrent_map,
    concurrent_map,
)

pytestmark = [
    pytest.mark.thread_unsafe(reason="a profile function acts in the code of maps"),
    # Some of the points are in the end of a generator.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
FILES = {module.__file__ for module in (_gate, _inline_runner, _runner, _scheduler)}


def nothing(*_: Any) -> None:
    """fn, of an item or a batch."""


def each(items: list[int]) -> list[int]:
    return items


def fails_once(failed: set[int]) -> Callable[[int], int]:
    def fn(item: int) -> int:
        if item not in failed:
            failed.add(item)
            raise ValueError("once")
        return item

    return fn


def is_free(limit: Concurrency) -> bool:
    """Whether a map that needs all of it is served; the deadline is for one that is not."""
    (outcome,) = concurrent_map(nothing, [1], limits=limit, workers=1, errors="return", deadline=10)
    return outcome.ok


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: nothing, {}),
        (lambda: each, {"batch": Batch(2)}),
        (lambda: fails_once(set()), {"retry": Retry(1, backoff=0), "breaker": Breaker(9), "key": lambda item: 1}),
    ],
)
def test_an_interruption_at_any_point_of_an_inline_map_loses_no_permit(make: Any, options: Any) -> None:
    limit = Concurrency(1)
    interrupted = 0
    for at in each_point(FILES, step=1 if not options else 3):
        results = concurrent_map(make(), range(3), limits=limit, workers="inline", **options)
        try:
            with at:
                list(results)
        except KeyboardInterrupt:
            interrupted += 1
        del results
        assert is_free(limit), f"a permit was lost at point {interrupted}"
    assert interrupted > 50


def test_an_interrupted_inline_map_leaves_no_reservation_of_a_budget() -> None:
    for at in each_point(FILES, step=2):
        budget = Budget(3)
        results = concurrent_map(nothing, range(2), limits=budget, workers="inline")
        try:
            with at:
                list(results)
        except KeyboardInterrupt:
            pass
        del results
        left = int(3 - budget.used())
        outcomes = list(concurrent_map(nothing, range(4), limits=budget, workers=1, errors="return"))
        assert sum(outcome.ok for outcome in outcomes) == left


def test_an_interruption_of_a_caller_loses_no_permit() -> None:
    limit = Concurrency(1)
    for at in each_point(FILES, step=2):
        caller = Caller(nothing, limits=limit, workers=1)
        try:
            with at:
                caller(1)
                caller.submit(2)
                caller(3)
        except KeyboardInterrupt:
            pass
        except RuntimeError:  # it has failed because of the interruption
            pass
        del caller
        assert is_free(limit)


def block(limit: Concurrency) -> None:
    with limit:
        pass


def inline_map(limit: Concurrency) -> None:
    list(concurrent_map(nothing, range(2), limits=limit, workers="inline"))


@pytest.mark.parametrize("use", [block, inline_map])
def test_an_interruption_loses_no_permit_of_a_database(use: Callable[[Concurrency], None], tmp_path: Path) -> None:
    shared, interrupted = Shared(tmp_path / "limits.db", "interrupted"), 0
    files = {module.__file__ for module in (_exchange, _shared_store, _shared_database)}
    for at in each_point(files | {weakref.WeakSet.add.__code__.co_filename}):
        limit = Concurrency(1, shared=shared, name=f"limit {interrupted}")  # nothing of it was granted before
        try:
            with at:
                use(limit)
        except KeyboardInterrupt:
            interrupted += 1
        assert is_free(limit), f"a permit was lost at point {interrupted}"
    assert interrupted > 5


def test_calls_of_a_loop_that_is_closed_hold_no_permit() -> None:
    """As a second Ctrl-C closes it."""
    limit = Concurrency(1)

    async def fn(item: int) -> None:
        began.set()
        await asyncio.Event().wait()

    loop, began = asyncio.new_event_loop(), asyncio.Event()
    results = aconcurrent_map(fn, [1, 2], limits=limit)
    task = loop.create_task(anext(results))  # type: ignore[arg-type]
    loop.run_until_complete(began.wait())
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    del task, results
    gc.collect()
    assert is_free(limit)
