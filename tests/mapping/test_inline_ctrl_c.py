"""Ctrl-C in an inline map of an `async def`: KeyboardInterrupt, wherever it comes, and asyncio is as it was before."""

import asyncio
import asyncio.base_events
import asyncio.runners
import signal
import sys
from typing import Any

import pytest
from support.interrupted import each_point

from manytail.mapping import _inline_runner, concurrent_map

pytestmark = [
    pytest.mark.thread_unsafe(reason="sends signals to the main thread"),
    # Some of the points are in the end of a generator, or before a coroutine begins.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
NEW = sys.modules.get("manytail._maps.runners.inline_loop")  # where the tests run on the new maps
FILES = {module.__file__ for module in (_inline_runner, NEW, asyncio.runners, asyncio.base_events) if module}


def is_asyncio_well() -> bool:
    if asyncio._get_running_loop() is not None or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    asyncio.run(asyncio.sleep(0))
    return True


@pytest.fixture
def default_handler() -> Any:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    asyncio._set_running_loop(None)
    signal.signal(signal.SIGINT, before)


def test_one_at_any_point_of_the_calls_is_raised(default_handler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[Any] = []  # in the end of a generator, where Python can only report it
    monkeypatch.setattr(sys, "unraisablehook", lost.append)

    async def fn(item: int) -> int:
        await asyncio.sleep(0)
        return item

    ends = []
    for at in each_point(FILES, step=1):
        at.act = lambda: signal.raise_signal(signal.SIGINT)
        lost.clear()
        results = concurrent_map(fn, range(3), workers="inline")
        got = [next(results)]  # the loop is there
        try:
            with at:
                got += [next(results), next(results)]
            ends.append(at.left > 0 or lost != [])
        except KeyboardInterrupt:
            ends.append(True)
        del results
        assert is_asyncio_well(), f"point {len(ends)}"
    missed = [point for point, was_raised in enumerate(ends, 1) if not was_raised]
    assert not missed


def test_a_call_that_it_cancels_is_cleaned_up(default_handler: None) -> None:
    cleaned = []

    async def fn(item: int) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(item)

    with pytest.raises(KeyboardInterrupt):
        list(concurrent_map(fn, range(3), workers="inline"))
    assert cleaned == [0]
    assert is_asyncio_well()


def test_an_error_that_cannot_be_shown_fails_its_item_alone(default_handler: None) -> None:
    class Odd(Exception):
        def __repr__(self) -> str:
            raise RuntimeError("no text")

        __str__ = __repr__

    async def fn(item: int) -> int:
        if item == 2:
            raise Odd
        return item

    outcomes = list(concurrent_map(fn, range(5), workers="inline", errors="return"))
    assert [type(outcome.error) for outcome in outcomes] == [type(None)] * 2 + [Odd] + [type(None)] * 2
    assert is_asyncio_well()
