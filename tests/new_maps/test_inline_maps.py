"""workers="inline" of the new package: nothing happens between two calls of next, and what a handler raises ends the
map."""

import asyncio
import gc
import threading
import time
from collections import Counter
from contextlib import suppress

import pytest
from support.interruptions import interruptions
from support.threads import DEADLINE, Threads

from manytail._maps import DeadlineExceeded, Retry, RetryLater, Shared, concurrent_map


def run(fn, items, **options):
    return concurrent_map(fn, items, workers="inline", **options)


class Resource:
    def __init__(self):
        self.closed = 0

    def close(self):
        self.closed += 1


def test_reads_and_calls_are_made_in_next_and_in_this_thread():
    log = []

    def items():
        for item in "abc":
            log.append(("read", item))
            yield item

    def fn(item):
        log.append(("call", item))
        return threading.current_thread()

    for thread in run(fn, items()):
        assert thread is threading.current_thread()
        log.append("taken")
    assert log == [step for item in "abc" for step in (("read", item), ("call", item), "taken")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"key": lambda item: item // 2, "max_in_flight": 6}, [0, 2, 4, 1, 3, 5]),
        ({"priority": lambda item: -item, "max_in_flight": 6}, [5, 4, 3, 2, 1, 0]),
    ],
    ids=["key", "priority"],
)
def test_the_window_is_filled_before_a_call_is_chosen(options, expected):
    calls = []
    assert list(run(lambda item: calls.append(item) or item, iter(range(6)), **options)) == list(range(6))
    assert calls == expected


def test_a_wait_for_the_next_attempt_is_a_sleep_in_next():
    began = []

    def fn(item):
        began.append(time.monotonic())
        if len(began) == 1:
            raise RetryLater(0.05)
        if len(began) == 2:
            raise OSError
        return item

    assert list(run(fn, [0], retry=Retry(1, backoff=0.0))) == [0]
    assert began[1] - began[0] >= 0.05


def test_time_limits_act_when_a_call_returns():
    def fn(item):
        if item == 1:
            time.sleep(1.1)
            raise LookupError
        return item

    outcomes = list(run(fn, range(3), timeout=1.0, errors="return"))
    assert [type(one.error) for one in outcomes] == [type(None), TimeoutError, type(None)]
    assert isinstance(outcomes[1].error.__cause__, LookupError)
    outcomes = list(run(fn, range(5), deadline=1.0, errors="return"))
    assert [(type(one.error), one.attempts) for one in outcomes] == [
        (type(None), 1), (DeadlineExceeded, 1), *3 * [(DeadlineExceeded, 0)],
    ]  # fmt: skip


@pytest.mark.parametrize("end", ["stop", "close"])
def test_fn_may_end_its_own_map(end):
    made = Resource()

    def fn(item, resource):
        if item == 1:
            getattr(results, end)()
            assert made.closed == 0
        return item

    results = run(fn, range(5), setup=lambda: made)
    assert list(results) == ([0, 1] if end == "stop" else [0])
    assert made.closed == 1


def test_ctrl_c_in_fn_ends_the_map_and_a_dropped_map_closes_its_resource():
    def fn(item, resource):
        if item == 2:
            raise KeyboardInterrupt
        return item

    for end in ("interrupted", "dropped"):
        made = Resource()
        results = run(fn, range(5), setup=lambda made=made: made, errors="return")
        assert next(results).result == 0
        if end == "interrupted":
            with pytest.raises(KeyboardInterrupt):
                list(results)
        else:
            del results
            gc.collect()
        assert made.closed == 1


# ---------------------------------------------------------------------------------------------------- async fn
class OfOneTask:
    """A resource that is entered and left by one task."""

    left = False

    async def __aenter__(self):
        self.task = asyncio.current_task()
        return self

    async def __aexit__(self, *error):
        assert asyncio.current_task() is self.task
        self.left = True


@pytest.mark.parametrize("end", ["exhausted", "closed", "dropped", "failed"])
def test_an_async_fn_has_one_loop_and_its_resource_one_task(end):
    made = OfOneTask()

    async def fn(item, resource):
        await asyncio.sleep(0)
        if item == 2 and end == "failed":
            raise LookupError
        return asyncio.get_running_loop()

    results = run(fn, range(3), setup=lambda: made)
    loops = [next(results), next(results)]
    assert loops[0] is loops[1]
    if end == "closed":
        results.close()
    elif end == "dropped":
        del results
        gc.collect()
    else:
        with suppress(LookupError):
            list(results)
    assert made.left
    assert loops[0].is_closed()


@pytest.mark.parametrize(("option", "kind"), [("timeout", TimeoutError), ("deadline", DeadlineExceeded)])
def test_a_coroutine_is_cancelled_at_its_time(option, kind):
    ended = []

    async def fn(item):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(item)

    (failed,) = run(fn, [1], errors="return", **{option: 0.01})
    assert isinstance(failed.error, kind)
    assert ended == [1]


def test_an_async_fn_inside_a_running_loop_is_refused_before_an_item_is_taken():
    async def fn(item):
        raise AssertionError

    async def take():
        next(run(fn, read))

    read = iter([1])
    with pytest.raises(RuntimeError, match="aconcurrent_map"):
        asyncio.run(take())
    assert list(read) == [1]


def test_close_by_another_thread_cancels_the_coroutine():
    begun = threading.Event()
    ended = []

    async def fn(item):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("call")

    results = run(fn, range(3), errors="return")
    with Threads() as threads:
        taking = threads.start(list, results)
        assert begun.wait(DEADLINE)
        results.close()
        assert ended == ["call"]
        assert taking.result() == []


def test_a_result_is_recorded_before_next_returns_it(tmp_path):
    shared = Shared(tmp_path / "a.db", "a")
    for done, _ in enumerate(run(str, range(3), remember=shared), 1):
        assert shared.remembered() == done


# The handler also raises in finalizers, which report it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.thread_unsafe(reason="handles signals")
@pytest.mark.parametrize("options", [{}, {"key": lambda item: item % 3, "per_key": 1}], ids=["plain", "per_key"])
def test_what_a_handler_raises_anywhere_ends_the_map(options):
    calls, made = Counter(), Resource()

    def fn(item, resource):
        calls[item] += 1
        return item

    def take():
        for _ in results:
            results.stats()
        results.close()

    with interruptions(7) as interrupted:
        for _ in range(1_000):
            calls.clear()
            made.closed = 0
            results = run(fn, iter(range(50)), setup=lambda: made, **options)
            was = interrupted(take, 2e-3)
            results.close()
            assert list(results) == []
            assert set(calls.values()) <= {1}
            assert len(calls) == 50 or was
            assert made.closed <= 1
