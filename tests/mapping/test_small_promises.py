"""What users met in the small: names of options, partials, standard error, inputs that are left, the end."""

import asyncio
import copy
import gc
import io
import json
import logging
import pickle
import re
import sys
import urllib.error
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from email.message import Message
from functools import partial
from typing import Any

import pytest
import trio
from support.process import run_script
from support.threads import DEADLINE, wait_until

from manytail import (
    AsyncCaller,
    Budget,
    Caller,
    Concurrency,
    Delivery,
    Rate,
    Retry,
    RetryLater,
    Stats,
    aconcurrent_map,
    concurrent_map,
)


async def double(item: int) -> int:
    await asyncio.sleep(0)
    return 2 * item


# ---------------------------------------------------------------------------------------------------- names of options
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("max_workers", "workers"), ("concurrency", "workers"), ("n_jobs", "workers"), ("retries", "retry"),
        ("rate", 'limits=Rate(10, "second")'), ("max_attempts", "retry"), ("chunksize", "batch"),
        ("return_exceptions", 'errors="return"'),
        ("buffersize", "max_in_flight"), ("initializer", "setup"), ("cache", "remember"), ("time_out", "timeout"),
    ],
)  # fmt: skip
def test_what_other_libraries_call_an_option_is_answered_with_ours(theirs, ours):
    with pytest.raises(TypeError, match=rf"^{theirs}: not an option of .* \(expected: {re.escape(ours)}\?\)$"):
        concurrent_map(str, [1], **{theirs: 1})


def test_an_option_that_only_maps_have_is_not_suggested_for_a_caller():
    with pytest.raises(TypeError, match=r"^return_exceptions: not an option of Caller \(expected: one of workers, "):
        Caller(str, return_exceptions=True)


@pytest.mark.parametrize("far", ["frobnicate", "x", "session", "url"])
def test_a_name_that_is_near_to_none_suggests_none(far):
    with pytest.raises(TypeError, match=rf"^{far}: not an option of .* \(expected: one of workers, .*timeout"):
        concurrent_map(str, [1], **{far: 1})


def test_a_period_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"^per: 'seconds' \(expected: 'second' or 'minute' or 'hour' or 'day'\)$"):
        Rate(90, "seconds")


# ---------------------------------------------------------------------------------------------------- what fn gets
@pytest.mark.parametrize("wrap", [partial, lambda fn, **named: partial(partial(fn, **named))])
def test_a_partial_keeps_the_delivery_and_resource_that_it_fills(wrap):
    def fn(item: Any, delivery: Any = None, resource: Any = None) -> Any:
        return delivery, resource

    def setup() -> str:
        return "made"

    (got,) = concurrent_map(wrap(fn, delivery="mine", resource="own"), [1], setup=setup)
    assert got == ("mine", "own")
    (got,) = concurrent_map(wrap(fn, resource="own"), [1], setup=setup)
    assert (type(got[0]), got[1]) == (Delivery, "own")
    (got,) = concurrent_map(wrap(fn, delivery="mine"), [1], setup=setup)
    assert got == ("mine", "made")


def test_an_async_partial_and_a_caller_keep_theirs():
    async def fn(item: Any, delivery: Any = None, resource: Any = None) -> Any:
        return delivery, resource

    async def main() -> Any:
        async with AsyncCaller(partial(fn, delivery="mine", resource="own"), setup=object) as call:
            return await call(1)

    assert asyncio.run(main()) == ("mine", "own")
    with Caller(partial(fn, delivery="mine", resource="own"), setup=object) as call:
        assert call(1) == ("mine", "own")


@pytest.mark.parametrize("arguments", [(1.0,), (True,), (-1,)])
def test_spent_after_the_end_of_the_call_says_so_whatever_it_is_given(arguments):
    kept: list[Delivery] = []
    list(concurrent_map(lambda item, delivery: kept.append(delivery), [1]))
    with pytest.raises(RuntimeError, match=r"^spent: the call has ended"):
        kept[0].spent(*arguments)
    with pytest.raises(RuntimeError, match=r"^spent: the call has ended"):
        kept[0].spent(tokens=-1)


# ---------------------------------------------------------------------------------------------------- the end
@pytest.mark.parametrize("options", [{}, {"workers": "inline"}, {"key": str}], ids=str)
def test_nothing_is_in_flight_when_all_results_were_taken(options):
    """By zip, which does not ask for another one."""
    items = list(range(100))
    with concurrent_map(str, items, **options) as results:
        assert [text for _, text in zip(items, results, strict=False)] == list(map(str, items))
        wait_until(lambda: results.stats().in_flight == 0)  # a worker may still be freeing the slots of the last ones
        assert results.stats().done == 100


def test_nothing_is_in_flight_when_all_asynchronous_results_were_taken():
    async def main() -> tuple[int, int]:
        async with aconcurrent_map(double, range(100)) as results:
            for _ in range(100):
                await anext(results)
            return results.stats().in_flight, results.stats().done

    assert asyncio.run(main()) == (0, 100)


@pytest.mark.parametrize("broken", ["none", "closed"])
@pytest.mark.parametrize("workers", [2, "inline"])
@pytest.mark.thread_unsafe(reason="replaces standard error")
def test_progress_without_a_standard_error_shows_nothing(monkeypatch, broken, workers):
    stream = None if broken == "none" else io.StringIO()
    if stream is not None:
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(concurrent_map(str, [1, 2], progress=True, workers=workers)) == ["1", "2"]


class Odd(io.StringIO):
    """A standard error of a terminal, one of whose methods raises."""

    def __init__(self, method: str, error: Exception) -> None:
        super().__init__()
        self._error = error
        setattr(self, method, self._fail)

    def isatty(self) -> bool:
        return True

    def _fail(self, *text: str) -> None:
        raise self._error


@pytest.mark.parametrize("method", ["write", "flush", "isatty"])
@pytest.mark.parametrize(
    "error",
    [OSError("gone"), ValueError("closed"), UnicodeEncodeError("ascii", "x", 0, 1, "no"), RuntimeError("odd")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("workers", [2, "inline"])
@pytest.mark.thread_unsafe(reason="replaces standard error")
def test_a_standard_error_that_fails_does_not_end_a_map_with_progress(monkeypatch, caplog, method, error, workers):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setenv("TERM", "xterm")
    stream = Odd(method, error)
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(concurrent_map(str, [1, 2], progress=True, workers=workers)) == ["1", "2"]
    assert not caplog.records  # where nothing else is set up, the log goes to standard error, and fails, too


@pytest.mark.parametrize("workers", [2, "inline"])
@pytest.mark.thread_unsafe(reason="replaces standard error")
def test_progress_with_a_standard_error_that_is_no_stream_shows_nothing(monkeypatch, workers):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr(sys, "stderr", object())
    assert list(concurrent_map(str, [1, 2], progress=True, workers=workers)) == ["1", "2"]


class FailsToLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise ValueError("I/O operation on closed file")


@pytest.mark.parametrize("workers", [2, "inline"])
@pytest.mark.thread_unsafe(reason="adds a handler")
def test_progress_that_raises_where_no_log_can_be_written_does_not_end_the_map(workers):
    def show(seen: Any) -> None:
        raise OSError("no screen")

    log, handler = logging.getLogger("manytail"), FailsToLog()
    log.addHandler(handler)
    try:
        assert list(concurrent_map(str, [1, 2], progress=show, workers=workers)) == ["1", "2"]
    finally:
        log.removeHandler(handler)


# ---------------------------------------------------------------------------------------------------- numbers, loops
HUGE = 10**5000  # Python refuses to write it out


def give_huge(*item: Any) -> int:
    return HUGE


def fail(item: Any) -> None:
    raise OSError(item)


def spend(item: Any, delivery: Delivery) -> None:
    delivery.spent(HUGE)


def spend_by_name(item: Any, delivery: Delivery) -> None:
    delivery.spent(tokens=HUGE)


def defer(item: Any) -> None:
    raise RetryLater(HUGE)


@pytest.mark.parametrize(
    ("fn", "options", "named"),
    [
        (str, lambda: {"limits": Budget(3, cost=give_huge)}, "cost"),
        (fail, lambda: {"retry": Retry(2, backoff=give_huge)}, "backoff: for attempt 1"),
        (defer, dict, "RetryLater.after"),
        (spend, lambda: {"limits": Budget(3, cost=float)}, "spent"),
        (spend_by_name, dict, "spent: tokens"),
    ],
    ids=["cost", "backoff", "RetryLater", "spent", "spent by name"],
)
def test_a_number_too_large_to_be_written_is_refused_with_the_name_of_what_gave_it(fn, options, named):
    (outcome,) = concurrent_map(fn, [1], errors="return", **options())
    assert type(outcome.error) is ValueError
    assert str(outcome.error).startswith(f"{named}: an int of 16610 bits (expected: ")


def test_a_policy_with_a_number_too_large_to_be_written_has_a_repr():
    assert repr(Retry(10**5000)) == "Retry(an int of 16610 bits)"


def test_a_value_whose_repr_raises_is_refused_with_its_type():
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("odd")

    with pytest.raises(TypeError, match=r"^timeout: <.*Odd> of type .*Odd \(expected: seconds, a number > 0\)$"):
        concurrent_map(str, [1], timeout=Odd())


NEEDS_ASYNCIO = r"^no event loop of asyncio is running \(expected: asyncio, or anyio on asyncio\)$"


def test_on_trio_a_map_and_a_caller_say_that_they_need_asyncio():
    async def run_map() -> None:
        async with aconcurrent_map(double, [1]) as results:
            await anext(results)

    async def call() -> None:
        async with AsyncCaller(double) as caller:
            await caller(1)

    for coroutine in (run_map, call):
        with pytest.raises(RuntimeError, match=NEEDS_ASYNCIO):
            trio.run(coroutine)


def test_a_map_that_is_closed_in_another_loop_refuses_that_and_goes_on():
    results = aconcurrent_map(double, range(3))

    async def take() -> int:
        return await anext(results)

    with closing(asyncio.new_event_loop()) as loop:
        assert loop.run_until_complete(take()) == 0
        with pytest.raises(RuntimeError, match=r"^the map was first called in another loop"):
            asyncio.run(asyncio.wait_for(results.aclose(), DEADLINE))
        assert [loop.run_until_complete(take()) for _ in range(2)] == [2, 4]
        loop.run_until_complete(results.aclose())


class Numbers:
    """Its iterator is an asynchronous generator."""

    def __init__(self, length: int = 10**6) -> None:
        self.length = length
        self.closed = 0

    async def __aiter__(self) -> AsyncIterator[int]:
        try:
            for number in range(self.length):
                yield number
        finally:
            await asyncio.sleep(0)
            self.closed += 1


@pytest.mark.parametrize("way", ["leave", "raise", "cancel"])
@pytest.mark.parametrize("nested", [False, True], ids=["generator", "map"])
def test_an_asynchronous_input_is_closed_where_the_consumer_leaves(way, nested):
    numbers = Numbers()

    async def take() -> None:
        items: Any = aconcurrent_map(double, numbers) if nested else aiter(numbers)
        async with aconcurrent_map(double, items, max_in_flight=32) as results:
            await anext(results)
            for _ in range(100):
                await asyncio.sleep(0)  # the window is full: nobody waits inside of the input
            if way == "raise":
                raise ZeroDivisionError
            if way == "cancel":
                asyncio.current_task().cancel()  # type: ignore[union-attr]
                await anext(results)

    async def main() -> None:
        (error,) = await asyncio.gather(asyncio.ensure_future(take()), return_exceptions=True)
        assert type(error) is {"leave": type(None), "raise": ZeroDivisionError, "cancel": asyncio.CancelledError}[way]
        assert numbers.closed == 1

    asyncio.run(asyncio.wait_for(main(), DEADLINE))


def test_an_asynchronous_input_that_ends_is_closed_once():
    numbers = Numbers(100)

    async def main() -> list[int]:
        return [result async for result in aconcurrent_map(double, numbers, max_in_flight=32)]

    assert asyncio.run(main()) == [2 * number for number in range(100)]
    assert numbers.closed == 1


@pytest.mark.parametrize("way", ["cancel", "close"])
def test_anext_after_a_cancelled_one_does_not_end_as_if_all_were_taken(way):
    async def main() -> None:
        gate = asyncio.Event()

        async def fn(item: int) -> int:
            if item:
                await gate.wait()
            return item

        results = aconcurrent_map(fn, range(3))
        assert await anext(results) == 0
        taking = asyncio.ensure_future(anext(results))
        await asyncio.sleep(0)
        if way == "cancel":
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
            with pytest.raises(RuntimeError, match="results are missing"):
                await anext(results)
        await results.aclose()
        if way == "close":
            with pytest.raises(StopAsyncIteration):
                await taking
        with pytest.raises(RuntimeError if way == "cancel" else StopAsyncIteration):
            await anext(results)

    asyncio.run(main())


# ---------------------------------------------------------------------------------------------------- no money left
class SdkError(Exception):
    """As openai's."""

    def __init__(self, status: int, body: Any, code: Any = None, headers: Any = None) -> None:
        super().__init__("429")
        self.status_code, self.body, self.code = status, body, code
        self.response = type("Response", (), {"headers": headers or {}, "status_code": status})()


class ClientError(Exception):
    """As that of httpx and requests."""

    def __init__(self, content: bytes | bool) -> None:
        super().__init__("429")
        self.response = type("Response", (), {"headers": {}, "status_code": 429, "_content": content})()


SPENT = {"error": {"message": "You exceeded your quota", "type": "insufficient_quota", "code": "insufficient_quota"}}


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (SdkError(429, SPENT["error"], "insufficient_quota"), 1),
        (SdkError(429, SPENT), 1),
        (SdkError(429, None, "insufficient_quota"), 1),
        (ClientError(json.dumps(SPENT).encode()), 1),
        (SdkError(429, {"code": "rate_limit_exceeded", "type": "requests"}), 3),
        (SdkError(503, SPENT["error"], "insufficient_quota"), 3),
        (ClientError(b"[1"), 3),
        (ClientError(b'["insufficient_quota"]'), 3),
        (ClientError(False), 3),
        (urllib.error.HTTPError("u", 429, "m", Message(), None), 3),
    ],
)
def test_a_quota_that_is_spent_is_not_asked_again(error, calls):
    (outcome,) = concurrent_map(raising(error), [1], retry=Retry.http(2, backoff=0), errors="return")
    assert outcome.attempts == calls


def raising(error: BaseException) -> Any:
    def fn(item: Any) -> Any:
        raise error

    return fn


def test_a_quota_with_a_retry_after_is_asked_again_then():
    error = SdkError(429, SPENT["error"], "insufficient_quota", {"Retry-After": "7"})
    answer = Retry.http().answer(error)
    assert answer.after == 7.0  # type: ignore[union-attr]


# ---------------------------------------------------------------------------------------------------- elsewhere
@pytest.mark.parametrize("kind", [Rate, Budget, Concurrency])
def test_a_limit_of_a_task_is_refused_outside_of_spark(kind):
    def make() -> Any:
        return kind(9, per_task=True)

    refused = r"^limits: .*per_task=True\) \(expected: per_task=False: only Spark has tasks\)$"
    for use in (concurrent_map, lambda fn, items, **options: Caller(fn, **options)):
        with pytest.raises(ValueError, match=refused):
            use(str, [1], limits=make())
    with pytest.raises(ValueError, match="per_task=False"), make():
        pass
    with pytest.raises(ValueError, match="per_task=False"):
        aconcurrent_map(double, [1], limits=[make()])


FORKED = """
import threading
from support.forks import in_child
from support.threads import Task, wait_asleep
from manytail import concurrent_map

begun, opened = threading.Event(), threading.Event()

def fn(item):
    if item:
        begun.set()
        assert opened.wait(60)
    return item

def child():
    for use in (results.__next__, results.stats):
        try:
            use()
        except RuntimeError as error:
            assert "parent process" in str(error), error
        else:
            raise AssertionError("it was used")
    results.stop()
    results.close()
    assert list(concurrent_map(str, [1])) == ["1"]

with concurrent_map(fn, range(5), workers=2) as results:
    assert next(results) == 0
    assert begun.wait(60)
    in_child(child)
    taker = Task(list, (results,), {})  # it is inside of next at the second fork
    taker.start()
    wait_asleep(taker)
    in_child(child)
    opened.set()
    assert taker.result() == [1, 2, 3, 4]

with concurrent_map(str, range(5), workers="inline") as results:
    assert next(results) == "0"
    in_child(lambda: list(results) == list("1234") or 1 / 0)
    assert list(results) == list("1234")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_results_in_a_forked_child_are_the_parents():
    run_script(FORKED)


@pytest.mark.parametrize("ask", [Caller.__call__, lambda call, item: call.submit(item).result(DEADLINE)])
def test_a_map_inside_fn_that_would_wait_for_fn_is_refused(ask):
    """The calls of the map are made in threads of their own, for the only worker of the Caller."""

    def fn(item: int) -> Any:
        if not item:
            return "inner"
        with concurrent_map(lambda _: call(0), [1, 2], workers=2) as results:
            return list(results)

    with Caller(fn, workers=1) as call:
        with pytest.raises(RuntimeError, match="would wait for itself"):
            ask(call, 1)
        assert call(0) == "inner"


def test_a_map_inside_fn_may_use_the_other_workers():
    def fn(item: int) -> Any:
        return list(concurrent_map(call, [0, 0], workers=2)) if item else "inner"

    with Caller(fn, workers=2) as call:
        assert call(1) == ["inner", "inner"]


# ---------------------------------------------------------------------------------------------------- copies
COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": pickle.dumps}
every_copy = pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)


@every_copy
@pytest.mark.parametrize("workers", [2, "inline"])
def test_results_refuse_copies_and_go_on(copied: Callable[[object], object], workers: Any) -> None:
    results = concurrent_map(str, range(50), workers=workers)
    assert next(results) == "0"
    message = "cannot copy or pickle 'Results' object: a map runs once, in this process; pass on a list of its results"
    with pytest.raises(TypeError, match=rf"^{re.escape(message)} instead$"):
        copied(results)
    gc.collect()  # a copy that was dropped would end the map
    assert list(results) == [str(item) for item in range(1, 50)]


@every_copy
def test_asynchronous_results_refuse_copies_and_go_on(copied: Callable[[object], object]) -> None:
    async def main() -> list[int]:
        results = aconcurrent_map(double, range(50), workers=2)
        taken = [await anext(results)]
        with pytest.raises(TypeError, match=r"^cannot copy or pickle 'AsyncResults' object: a map runs once"):
            copied(results)
        gc.collect()
        return taken + [result async for result in results]

    assert asyncio.run(main()) == [2 * item for item in range(50)]


@every_copy
def test_callers_refuse_copies_and_go_on(copied: Callable[[object], object]) -> None:
    with Caller(str) as caller:
        assert caller(1) == "1"
        with pytest.raises(TypeError, match=r"^cannot copy or pickle 'Caller' object: .* share it between threads, "):
            copied(caller)
        gc.collect()
        assert caller(2) == "2"

    async def main() -> int:
        async with AsyncCaller(double) as caller:
            await caller(1)
            with pytest.raises(TypeError, match=r"^cannot copy or pickle 'AsyncCaller' object: .* between tasks, "):
                copied(caller)
            gc.collect()
            return await caller(2)

    assert asyncio.run(main()) == 4


def pickled(made: Any) -> Any:
    return pickle.loads(pickle.dumps(made))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled], ids=["copy", "deepcopy", "pickle"])
def test_stats_have_copies(copied: Callable[[Any], Any]) -> None:
    def fn(item: int, delivery: Delivery) -> int:
        delivery.spent(tokens=item)
        return item

    results = concurrent_map(fn, [1, 2])
    assert list(results) == [1, 2]
    for stats in (results.stats(), Stats()):
        other = copied(stats)
        assert (other, type(other), type(other.spent)) == (stats, Stats, type(stats.spent))
    assert copied(results.stats()).spent == {"tokens": 3.0}
