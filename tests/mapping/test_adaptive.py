"""`workers=(least, most)` in real threads and loops. What it does over time is in tests/simulation."""

import asyncio
import pickle
import threading
from collections import deque
from typing import Any

import pytest
from support.maps import Way, in_loops
from support.threads import LONG, Threads, wait_until

from manytail import AsyncCaller, Caller, Rate, Retry, RetryLater, concurrent_map
from manytail.mapping._options import check

pytestmark = pytest.mark.thread_unsafe(reason="counts the threads of the process")


class Held:
    """A function whose calls run until the test ends them."""

    def __init__(self) -> None:
        self.running: deque[tuple[threading.Event, list[BaseException]]] = deque()
        self.begun = 0
        self.is_open = False

    def __call__(self, item: int) -> int:
        ended, errors = held = threading.Event(), []
        self.running.append(held)
        self.begun += 1
        if not self.is_open:
            assert ended.wait(LONG)
        if errors:
            raise errors[0]
        return item

    def end(self, error: BaseException | None = None) -> None:
        """End the call that has run for longest."""
        ended, errors = self.running.popleft()
        if error is not None:
            errors.append(error)
        ended.set()

    def open(self) -> None:
        self.is_open = True
        for ended, _ in list(self.running):
            ended.set()

    def raise_number(self, stats: Any, number: int) -> int:
        """End calls until so many run at once. Returns how many."""
        ends = 0
        while stats().workers < number:
            self._replace_one(stats)
            ends += 1
        wait_until(lambda: len(self.running) == number)
        return ends

    def _replace_one(self, stats: Any) -> None:
        """End a call while all run that may, and wait until another one has begun."""
        calls, workers = stats().calls, stats().workers
        wait_until(lambda: len(self.running) == workers)
        self.end()
        wait_until(lambda: stats().calls > calls and len(self.running) >= workers)


class Counted:
    """A coroutine function that counts how many of its calls run at once, and refuses those beyond `borne`."""

    def __init__(self, borne: int | None = None) -> None:
        self._borne = borne
        self._running = self.most = self.refused = 0

    async def fn(self, item: Any) -> Any:
        self.most = max(self.most, self._running + 1)
        if self._running == self._borne:
            self.refused += 1
            raise RetryLater(0)
        self._running += 1
        for _ in range(3):
            await asyncio.sleep(0)
        self._running -= 1
        return item


def workers_alive() -> int:
    return sum(thread.name.startswith("manytail-worker") for thread in threading.enumerate())


def test_a_number_is_found_and_halved_and_threads_are_started_for_it() -> None:
    held, before = Held(), workers_alive()
    results = concurrent_map(held, range(1_000), workers=(2, 7), order="completion")
    assert results.stats().workers == 2
    with Threads() as threads, results:
        taken = threads.start(list, results)
        try:
            assert held.raise_number(results.stats, 2) == 0
            assert workers_alive() - before == 2
            assert held.raise_number(results.stats, 4) >= 2  # doubled
            assert workers_alive() - before == 4
            assert held.raise_number(results.stats, 7) >= 4  # at most
            for _ in range(20):
                held.end()
                wait_until(lambda: len(held.running) == 7)
            assert results.stats().workers == 7
            held.end(RetryLater(0))
            wait_until(lambda: results.stats().workers == 3)
            held.end(RetryLater(0))
            wait_until(lambda: results.stats().deferred == 2)
            assert results.stats().workers == 3
            assert workers_alive() - before == 7  # four of them are idle
        finally:
            held.open()
        assert sorted(taken.result()) == list(range(1_000))


OPTIONS: list[dict[str, Any]] = [
    {}, {"key": lambda item: item % 10, "per_key": 4}, {"limits": Rate(1e9)}, {"timeout": LONG}, {"dedup": 5},
    {"retry": 2}, {"batch": 3}, {"errors": "return"}, {"order": "completion", "priority": lambda item: item % 2},
]  # fmt: skip


@in_loops
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ", ".join(options))
def test_a_number_is_found_in_a_loop(mapped: Way, options: dict[str, Any]) -> None:
    call = Counted()
    items = range(3_000 if "batch" in options else 600)
    assert len(mapped(call.fn, items, workers=(1, 6), **options)) == len(items)
    assert call.most == 6


@in_loops
def test_a_number_follows_what_the_other_side_bears(mapped: Way) -> None:
    call = Counted(borne=3)
    retry = Retry(0, backoff=0)  # a refusal pauses the map
    assert mapped(call.fn, range(2_000), workers=(1, 50), retry=retry) == list(range(2_000))
    assert call.most == 4
    assert 0 < call.refused <= 80


# ---------------------------------------------------------------------------------------------------- Callers
def test_an_async_caller_finds_a_number() -> None:
    call = Counted()

    async def main() -> list[int]:
        async with AsyncCaller(call.fn, workers=(1, 6)) as caller:
            assert caller.stats().workers == 1
            results = await asyncio.gather(*map(caller, range(600)))
            assert caller.stats().workers == 6
            return results

    assert asyncio.run(main()) == list(range(600))
    assert call.most == 6


def test_a_call_from_inside_fn_may_count_on_the_least_alone() -> None:
    """More may be allowed now, and fewer before the call has ended."""

    def outer(item: int) -> int:
        return caller(item - 1) + 1 if item else 0

    with Threads() as threads, Caller(outer, workers=(2, 8)) as caller:
        assert [threads.start(caller, 1).result() for _ in range(20)] == [1] * 20
        assert caller.stats().workers >= 2
        with pytest.raises(RuntimeError, match="would wait for itself"):
            threads.start(caller, 2).result()


# ---------------------------------------------------------------------------------------------------- the option
@pytest.mark.parametrize(("workers", "first"), [((2, 5), 2), ((2, 3, 5), 3)])
def test_the_numbers_travel(workers: Any, first: int) -> None:
    options = pickle.loads(pickle.dumps(check(str, {"workers": workers})))
    assert (options.least, options.begins_with, options.workers) == (2, first, 5)


@pytest.mark.parametrize("workers", [(3, 3), (3, 3, 3)])
def test_equal_numbers_are_one_number(workers: Any) -> None:
    options = check(str, {"workers": workers})
    assert (options.least, options.workers, options.gated) == (0, 3, False)
