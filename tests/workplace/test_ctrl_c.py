"""Ctrl-C ends each call that waits in the main thread: maps, limits, the executor, the broker, asyncio's own loop.

tests/contract/test_interrupts.py has the queues. Where a lock's wait does not end with a signal, as on Windows, each
of these calls must look for signals itself. Future.result() of a single Future is the standard library's, and does not.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
from support.maps import collect
from support.threads import DEADLINE, Threads, acting_when, ctrl_c, main_thread_sleeps, wait_until

import manytail.executor
from manytail import Concurrency, MultiQueue, Rate, aconcurrent_map, broker, concurrent_map
from manytail.broker import BlockingConnection
from manytail.executor import KeyedExecutor

pytestmark = pytest.mark.thread_unsafe(reason="signals go to the main thread")

SLOW = 3 * DEADLINE  # of what nothing else ends

Wait = Callable[[threading.Event], Iterator[Callable[[], object]]]


def next_of_a_map(go_on: threading.Event) -> Iterator[Callable[[], object]]:
    results = concurrent_map(abs, range(9), workers=1, limits=Rate(1 / SLOW))
    next(results)
    yield lambda: next(results)
    assert list(results) == []  # it has ended


def next_of_a_map_of_coroutines(go_on: threading.Event) -> Iterator[Callable[[], object]]:
    results = concurrent_map(asyncio.sleep, [SLOW])
    yield lambda: next(results)
    assert list(results) == []


def close_of_a_map(go_on: threading.Event) -> Iterator[Callable[[], object]]:
    results = concurrent_map(lambda item: item and go_on.wait(), [0, 1], workers=2)
    next(results)
    yield results.close
    results.close()


def a_block_of_a_limit(go_on: threading.Event) -> Iterator[Callable[[], object]]:
    limit, held = Concurrency(1), threading.Event()

    def enter(then: Callable[[], object] = int) -> None:
        with limit:
            then()

    with Threads() as threads:
        threads.start(enter, lambda: (held.set(), go_on.wait()))
        assert held.wait(DEADLINE)
        yield enter
        enter()


def submit_to_a_full_lane(go_on: threading.Event) -> Iterator[Callable[[], object]]:
    with KeyedExecutor(1) as executor:
        executor.submit(go_on.wait)
        lane = executor.lane("a", max_pending=1)
        lane.submit(int)
        yield lambda: lane.submit(int)


def map_of_an_executor(go_on: threading.Event) -> Iterator[Callable[[], object]]:
    with KeyedExecutor(1) as executor:
        executor.submit(int).result()  # starts the thread: a start waits, too
        yield lambda: list(executor.map(lambda item: go_on.wait(), range(3)))


def map_where_futures_sleep_on(go_on: threading.Event) -> Iterator[Callable[[], object]]:
    """As on Windows before CPython 3.14."""
    with KeyedExecutor(1) as executor, patch.object(manytail.executor, "_sleeps_through_ctrl_c", True):
        with pytest.raises(TimeoutError):
            list(executor.map(lambda item: go_on.wait(), [0], timeout=0.001))
        yield lambda: list(executor.map(lambda item: go_on.wait(), range(3)))
        assert list(executor.map(abs, range(-3, 0), timeout=SLOW)) == [3, 2, 1]


def map_by_completion(go_on: threading.Event) -> Iterator[Callable[[], object]]:
    with KeyedExecutor(1) as executor:
        executor.submit(int).result()  # starts the thread: a start waits, too
        yield lambda: list(executor.map(lambda item: go_on.wait(), range(3), order="completion"))


def shutdown_of_an_executor(go_on: threading.Event) -> Iterator[Callable[[], object]]:
    executor = KeyedExecutor(1)
    executor.submit(go_on.wait)
    yield executor.shutdown
    executor.shutdown()


def consuming(call: Callable[[Any, Any], object]) -> Wait:
    def wait(go_on: threading.Event) -> Iterator[Callable[[], object]]:
        broker.reset()
        with BlockingConnection() as connection:
            channel = connection.channel()
            channel.queue_declare("q")
            channel.basic_consume("q", print)
            yield lambda: call(connection, channel)
        broker.reset()

    return wait


WAITS: dict[str, Wait] = {
    wait.__name__: wait
    for wait in (
        next_of_a_map, next_of_a_map_of_coroutines, close_of_a_map, a_block_of_a_limit, submit_to_a_full_lane,
        map_of_an_executor, map_where_futures_sleep_on, map_by_completion, shutdown_of_an_executor,
    )
} | {
    "start_consuming": consuming(lambda connection, channel: channel.start_consuming()),
    "process_data_events": consuming(lambda connection, channel: connection.process_data_events(None)),
    "next of consume": consuming(lambda connection, channel: next(channel.consume("q"))),
}  # fmt: skip


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_ctrl_c_ends_a_wait(wait: Wait) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    slept_on: list[bool] = []

    def interrupt() -> None:
        wait_until(lambda: begun.is_set() and main_thread_sleeps())
        ctrl_c()
        slept_on.append(not ended.wait(DEADLINE))
        go_on.set()

    with Threads() as threads:
        threads.start(interrupt)
        calls = wait(go_on)
        call = next(calls)

        def waits() -> None:
            begun.set()
            call()

        with pytest.raises(KeyboardInterrupt):
            waits()
        ended.set()
        assert go_on.wait(2 * DEADLINE)
        assert slept_on == [False]
        assert next(calls, None) is None  # it works afterwards


@pytest.mark.parametrize("of", ["a map", "a queue"])
def test_ctrl_c_ends_what_waits_in_the_loop_of_asyncio_run(of: str) -> None:
    """It comes when the loop runs: one that comes while asyncio makes its loop leaves pieces of that."""
    begun = threading.Event()
    queue: Any = MultiQueue()
    queue.add("a")

    async def main() -> None:
        asyncio.get_running_loop().call_later(0, begun.set)
        await (collect(aconcurrent_map(asyncio.sleep, [SLOW])) if of == "a map" else queue.aget())

    with pytest.raises(KeyboardInterrupt), acting_when(begun.is_set, ctrl_c):
        asyncio.run(main())
