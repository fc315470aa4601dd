"""Async functions: coroutines in one loop, with the same rules as threads."""

import asyncio
import threading
from typing import Any

import pytest
from support.scheduling import Rows, batches, engine, finished, results

LONG = 3_600


def test_at_most_workers_coroutines_are_open_and_they_overlap() -> None:
    running = peak = 0
    all_there: Any = None

    async def call(row: int) -> int:
        nonlocal running, peak, all_there
        all_there = all_there or asyncio.Event()
        running += 1
        peak = max(peak, running)
        if running == 5:
            all_there.set()
        await all_there.wait()
        running -= 1
        return row

    assert results(call, batches(range(50), 10), workers=5, is_async=True) == list(range(50))
    assert peak == 5


def test_all_coroutines_run_in_one_thread_with_one_loop() -> None:
    async def call(row: int) -> Any:
        return threading.current_thread(), asyncio.get_running_loop()

    assert len(set(results(call, batches(range(50), 10), is_async=True))) == 1


def test_coroutines_that_never_wait_let_others_go_on() -> None:
    """Row 0 waits on its loop; it must get its turn while thousands of rows that never wait are called."""
    seen: list[int] = []

    async def call(row: int) -> int:
        if row == 0:
            for _ in range(3):
                await asyncio.sleep(0)
        seen.append(row)
        return row

    out = results(call, batches(range(5_000), 5_000), workers=2, max_in_flight=5_000, is_async=True)
    assert out == list(range(5_000))
    assert seen.index(0) < 100


def test_order_keys_and_retries_are_as_with_threads() -> None:
    attempts: dict[Any, int] = {}
    running: dict[Any, int] = {}

    async def call(row: tuple[int, int]) -> Any:
        key = row[0]
        assert running.get(key, 0) == 0
        running[key] = 1
        attempts[row] = attempts.get(row, 0) + 1
        await asyncio.sleep(0)
        running[key] = 0
        if row[1] % 7 == 0 and attempts[row] == 1:
            raise ValueError(row)
        return row

    rows = [(number % 3, number) for number in range(200)]
    source = batches(rows, 30, key=lambda row: row[0])
    out = results(call, source, workers=8, is_async=True, per_key=1, retries=1, backoff=0.001, order="key")
    assert sorted(out) == sorted(rows)
    for key in range(3):
        assert [row for row in out if row[0] == key] == [row for row in rows if row[0] == key]


def test_a_coroutine_over_its_time_is_cancelled() -> None:
    cancelled: list[int] = []

    async def call(row: int) -> int:
        try:
            await asyncio.sleep(LONG if row == 1 else 0)
        except asyncio.CancelledError:
            cancelled.append(row)
            raise
        return row

    calls = finished(call, [Rows(range(3))], timeout=2, errors="return", is_async=True)
    assert [call.result for call in calls] == [0, None, 2]
    assert calls[1].error is not None
    assert calls[1].error.type == "TimeoutError"
    assert cancelled == [1]


@pytest.mark.parametrize("way", ["swallows", "raises another"])
def test_a_coroutine_that_takes_its_cancellation_otherwise_has_timed_out_too(way: str) -> None:
    async def call(row: int) -> str:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            if way == "raises another":
                raise ValueError("interrupted") from None
        return "late"

    calls = finished(call, [Rows([0])], timeout=0.1, errors="return", is_async=True)
    assert calls[0].result is None
    assert calls[0].error is not None
    assert calls[0].error.type == "TimeoutError"


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_whatever_a_coroutine_raises_is_a_failure_of_its_row(error: type[BaseException]) -> None:
    async def call(row: int) -> int:
        if row == 3:
            raise error
        return row

    calls = finished(call, batches(range(10), 4), errors="return", is_async=True)
    assert [call.index for call in calls if call.error] == [3]
    assert [call.result for call in calls] == [None if row == 3 else row for row in range(10)]


def test_raise_waits_for_open_coroutines() -> None:
    ended: list[int] = []
    state: dict[str, Any] = {}

    async def call(row: int) -> int:
        event = state.setdefault("failing", asyncio.Event())
        if row == 2:
            event.set()
            raise ValueError("row 2")
        await event.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        ended.append(row)
        return row

    with pytest.raises(ValueError, match="row 2"):
        finished(call, batches(range(50), 50), workers=3, max_in_flight=50, is_async=True)
    assert sorted(ended) == [0, 1]


def test_no_thread_is_left() -> None:
    async def call(row: int) -> int:
        return row

    output = engine(call, is_async=True, batch_rows=2).run(iter(batches(range(100), 10)))
    next(output)
    output.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("manytail-")]
