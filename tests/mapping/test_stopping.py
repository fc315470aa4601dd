"""stop(), stats() and the block of a map's results."""

import asyncio
import gc
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.maps import Gate, LoopGate, asynchronous, collect, in_each_loop
from support.threads import Threads, ctrl_c, main_thread_sleeps, wait_until

from manytail import Retry, Stats, aconcurrent_map, concurrent_map
from manytail._timings import Timings


@pytest.mark.parametrize("way", [lambda fn: fn, asynchronous], ids=["plain", "async"])
@pytest.mark.parametrize("kind", [list, iter], ids=["list", "iterator"])
def test_stop_yields_the_results_of_running_calls_and_no_others(kind: Any, way: Any) -> None:
    gate = Gate()
    results = concurrent_map(way(gate), kind(range(100)), workers=3)
    with Threads() as threads:
        taking = threads.start(list, results)
        gate.wait_for(0, 1, 2)
        wait_until(lambda: results.stats().in_flight > 3)
        results.stop()
        gate.opened.set()
        assert taking.result() == [0, 1, 2]
    assert sorted(gate.begun) == [0, 1, 2]
    assert list(results) == []


@pytest.mark.parametrize("order", ["input", "key"])
def test_stop_yields_what_is_held_back_behind_an_item_that_never_will_be_done(order: Any) -> None:
    """Item 0 waits for its next attempt."""
    tried: list[int] = []

    def fn(item: int) -> int:
        tried.append(item)
        if item == 0:
            raise OSError
        return item

    key = (lambda item: 0) if order == "key" else None
    results = concurrent_map(fn, range(4), workers=1, retry=Retry(1, backoff=3_600), order=order, key=key)
    with Threads() as threads:
        taking = threads.start(list, results)
        wait_until(lambda: results.stats().done == 3)
        results.stop()
        assert taking.result() == [1, 2, 3]
    assert tried == [0, 1, 2, 3]


def test_a_running_call_that_fails_after_stop_is_raised() -> None:
    gate = Gate()

    def fn(item: int) -> int:
        gate(item)
        if item == 1:
            raise OSError(item)
        return item

    results = concurrent_map(fn, range(9), workers=3)
    with Threads() as threads:
        taking = threads.start(next, results)
        wait_until(lambda: len(gate.begun) == 3)
        results.stop()
        gate.opened.set()
        assert taking.result() == 0
        with pytest.raises(OSError, match="1"):
            next(results)


def test_stop_before_the_first_result_reads_nothing() -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        read.append(1)
        yield 1

    results = concurrent_map(abs, items(), progress=lambda seen: read.append(2))
    results.stop()
    assert list(results) == []
    assert read == []


@pytest.mark.thread_unsafe(reason="is sent a signal")
def test_stop_from_a_signal_handler() -> None:
    gate = Gate()
    results = concurrent_map(gate, range(100), workers=2)

    def handle(*_: Any) -> None:
        results.stop()
        gate.opened.set()

    def act() -> None:
        wait_until(lambda: len(gate.begun) == 2 and main_thread_sleeps())
        ctrl_c()

    before = signal.signal(signal.SIGINT, handle)
    try:
        with Threads() as threads:
            acting = threads.start(act)
            assert list(results) == [0, 1]
            acting.result()
    finally:
        signal.signal(signal.SIGINT, before)


def test_close_from_another_thread_ends_the_waiting_one_after_the_running_calls() -> None:
    gate = Gate()
    results = concurrent_map(gate, range(9), workers=2)
    with Threads() as threads:
        taking = threads.start(list, results)
        wait_until(lambda: len(gate.begun) == 2)
        closing = threads.start(results.close)
        wait_until(lambda: results._runner.stopping)
        gate.opened.set()
        closing.result()
        assert set(taking.result()) <= {0, 1}
    assert sorted(gate.begun) == [0, 1]
    assert list(results) == []


# ---------------------------------------------------------------------------------------------------- figures
def test_stats_count_items_and_calls() -> None:
    tried: list[int] = []

    def fn(item: int, delivery: Any) -> int:
        delivery.spent(tokens=2)
        tried.append(item)
        if item == 3 or (item == 5 and tried.count(5) == 1):
            raise OSError
        return item

    with concurrent_map(fn, range(10), workers=4, retry=Retry(1, backoff=0), errors="return", dedup=5) as results:
        assert results.stats()[:8] == (0, 0, 0, 0, 0, 0, 0, 4)
        assert len(list(results)) == 10
        stats = results.stats()
    assert (stats.done, stats.failed, stats.in_flight, stats.calls, stats.retried) == (10, 1, 0, 12, 2)
    assert (stats.remembered, stats.workers, stats.deferred) == (0, 4, 0)
    assert stats.spent == {"tokens": 24.0}
    assert stats.rate > 0
    assert 0 < stats.ran.p50 <= stats.ran.p95 <= stats.ran.p99 <= stats.ran.max <= stats.seconds
    assert 0 <= stats.waited.p50 <= stats.waited.max <= stats.seconds + 1


def test_an_item_waits_from_being_read_to_the_start_of_its_last_call() -> None:
    def fn(item: int, delivery: Any) -> int:
        return item // (delivery.attempt - 1)

    results = concurrent_map(fn, [1], retry=Retry(1, backoff=lambda attempt, error: 0.05))
    assert list(results) == [1]
    assert results.stats().waited.p50 >= 0.045
    assert results.stats().waited.max >= 0.05


def test_the_item_that_ends_the_map_is_done_too() -> None:
    def fn(item: int) -> int:
        return 1 // item

    results = concurrent_map(fn, [1, 0], workers=1)
    with pytest.raises(ZeroDivisionError):
        list(results)
    assert (results.stats().done, results.stats().failed, results.stats().calls) == (2, 1, 2)


@pytest.mark.parametrize(("batch", "timeout"), [(1, None), (1, 60), (4, None), (4, 60)])
def test_waits_and_calls_are_measured(batch: int, timeout: float | None) -> None:
    def fn(item: Any) -> Any:
        time.sleep(0.02)
        return item

    results = concurrent_map(fn, range(8), workers=1, batch=batch, max_in_flight=8, timeout=timeout)
    assert list(results) == list(range(8))
    stats = results.stats()
    assert stats.calls >= 8 // batch
    assert stats.ran.p50 >= 0.019
    assert stats.waited.max >= 0.019 * (8 // batch - 1)
    assert stats.waited.p50 <= stats.waited.p99 <= stats.waited.max


def test_an_abandoned_call_counts_up_to_its_timeout() -> None:
    gate = Gate()
    results = concurrent_map(gate, [1], timeout=0.05, errors="return")
    assert isinstance(next(results).error, TimeoutError)
    stats = results.stats()
    gate.opened.set()
    results.close()
    assert stats.calls == 1
    assert stats.ran.max >= 0.045


@pytest.mark.parametrize("scale", [1e-9, 1e-7, 1e-3, 1.0, 1e6])
def test_quantiles_are_exact_to_five_percent(scale: float) -> None:
    rng, parts = random.Random(scale), [Timings() for _ in range(3)]
    values = sorted(scale * 16 * rng.lognormvariate(0, 1) for _ in range(10_000))
    for number, value in enumerate(values):
        parts[number % 3].last_began(value, 0.0)
    waited, ran = sum(parts, Timings()).quantiles()
    for found, share in zip(waited, (0.5, 0.95, 0.99), strict=False):
        assert found == pytest.approx(values[int(share * 10_000) - 1], rel=0.05, abs=1e-9)
    assert waited[3] == pytest.approx(values[-1], rel=1e-6, abs=1e-9)
    assert ran == (0.0, 0.0, 0.0, 0.0)


# ------------------------------------------------------------------------------------------------ in the caller's loop
@in_each_loop
async def test_asynchronous_stop_yields_the_results_of_running_calls() -> None:
    gate = LoopGate()
    async with aconcurrent_map(gate, range(100), workers=3) as results:
        assert results.stats() == Stats(workers=3)
        taking = asyncio.ensure_future(collect(results))
        await gate.full(3)
        thread = threading.Thread(target=results.stop)  # from any thread
        thread.start()
        thread.join()
        gate.opened.set()
        taken = await taking
    assert taken == gate.begun
    assert results.stats().done == len(taken) < 100


@in_each_loop
async def test_leaving_the_asynchronous_block_cancels_the_calls() -> None:
    gate = LoopGate()

    async def fn(item: int) -> int:
        return item if item == 0 else await gate(item)

    async with aconcurrent_map(fn, range(9), workers=2) as results:
        assert await anext(results) == 0
        await gate.full(2)
    assert sorted(gate.ended) == sorted(gate.begun) == [1, 2]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    with pytest.raises(StopAsyncIteration):
        await anext(results)
    await results.aclose()  # may be called again


@in_each_loop
async def test_aclose_while_another_task_takes_ends_both() -> None:
    gate = LoopGate()
    results = aconcurrent_map(gate, range(9), workers=2)
    taking = asyncio.ensure_future(collect(results))
    await gate.full(2)
    with pytest.raises(RuntimeError, match="already executing"):
        await anext(results)
    await results.aclose()
    assert await taking == []
    assert sorted(gate.ended) == [0, 1]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    with pytest.raises(StopAsyncIteration):
        await anext(results)


@pytest.mark.thread_unsafe(reason="looks at all that cannot be raised")
def test_a_map_that_nobody_closed_leaves_no_noise_when_its_loop_ends(capfd: Any) -> None:
    kept: list[Any] = []

    async def main() -> None:
        gate = LoopGate()
        results = aconcurrent_map(gate, range(9), workers=2, timeout=3_600)
        taking = asyncio.ensure_future(anext(results))
        await gate.full(2)
        taking.cancel()
        again = aconcurrent_map(gate, range(9), workers=2)
        kept.append(asyncio.ensure_future(anext(again)))
        await gate.full(4)

    asyncio.run(main(), debug=True)
    kept.clear()
    gc.collect()
    assert capfd.readouterr() == ("", "")
