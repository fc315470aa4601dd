"""What no map can go on after: a fault of the scheduler, a system without threads, two threads in one iterator."""

import asyncio
import threading
from typing import Any

import pytest
from support.maps import collect, refuse_thread, threads_of_maps
from support.threads import DEADLINE, Threads, wait_until

from manytail._maps import AsyncCaller, Caller, aconcurrent_map, concurrent_map
from manytail._maps.engine.item import Item
from manytail._maps.engine.scheduler import Scheduler

pytestmark = pytest.mark.thread_unsafe(reason="replaces parts of the package, and counts the threads of the process")


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler of every map fails as soon as a call has succeeded, and has forgotten which."""
    step = Scheduler.step

    def fault(scheduler: Scheduler, inbox: Any, now: float) -> Any:
        if any(isinstance(event, Item) for event in list(inbox)):
            inbox.clear()
            raise AssertionError("a fault of the scheduler")
        return step(scheduler, inbox, now)

    monkeypatch.setattr(Scheduler, "step", fault)


async def double(item: int) -> int:
    return 2 * item


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("options", [{}, {"timeout": DEADLINE}], ids=["plain", "timed"])
@pytest.mark.parametrize("fn", [abs, double], ids=["threads", "own loop"])
def test_a_map_whose_scheduler_fails_ends_with_that_error(fn: Any, options: dict[str, Any]) -> None:
    results = concurrent_map(fn, iter(range(100)), workers=3, **options)
    with Threads() as threads, pytest.raises(AssertionError, match="a fault of the scheduler"):
        threads.start(list, results).result()
    wait_until(lambda: threads_of_maps() == [])


@pytest.mark.usefixtures("faulty")
def test_a_map_in_the_callers_loop_whose_scheduler_fails_ends_with_that_error() -> None:
    with pytest.raises(AssertionError, match="a fault of the scheduler"):
        asyncio.run(collect(aconcurrent_map(double, range(100), workers=3)))


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("fn", [abs, double], ids=["threads", "own loop"])
def test_every_item_of_a_caller_whose_scheduler_fails_gets_that_error(fn: Any) -> None:
    caller: Caller[int, int] = Caller(fn, workers=2, timeout=DEADLINE)
    with Threads() as threads:
        with pytest.raises(AssertionError, match="a fault of the scheduler"):
            threads.start(caller, 1).result()
        with pytest.raises(RuntimeError, match="the Caller has failed"):
            threads.start(caller, 2).result()
        threads.start(caller.close).result()
    wait_until(lambda: threads_of_maps() == [])


@pytest.mark.usefixtures("faulty")
def test_every_item_of_a_caller_in_a_loop_whose_scheduler_fails_gets_that_error() -> None:
    async def main() -> None:
        async with AsyncCaller(double, workers=2) as caller:
            with pytest.raises(AssertionError, match="a fault of the scheduler"):
                await caller(1)

    asyncio.run(asyncio.wait_for(main(), DEADLINE))


def test_a_map_that_gets_no_thread_in_the_place_of_an_abandoned_call_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_thread("manytail-worker-2", monkeypatch)
    go_on = threading.Event()
    results = concurrent_map(lambda item: go_on.wait(DEADLINE), range(9), workers=1, timeout=0.01, errors="return")
    with Threads() as threads:
        taking = threads.start(list, results)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            taking.result()
        go_on.set()
    wait_until(lambda: threads_of_maps() == [])


def test_two_threads_that_take_at_once_get_each_result_once_or_an_error() -> None:
    number = 20_000
    results = concurrent_map(abs, range(number), workers=2, max_in_flight=number)
    taken = [next(results)]
    wait_until(lambda: results.stats().done == number, "all results, so that nobody waits")
    refusals = {"generator already executing"}

    def take() -> None:
        while True:
            try:
                taken.append(next(results))
            except StopIteration:
                return
            except ValueError as error:
                refusals.add(str(error))

    with Threads() as threads:
        for taking in [threads.start(take) for _ in range(2)]:
            taking.result()
    assert sorted(taken) == list(range(number))
    assert refusals == {"generator already executing"}
