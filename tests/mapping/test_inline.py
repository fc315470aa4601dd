"""workers="inline": everything is done in the thread that takes results. What all ways of running share is tested by
the suites that run in each of them (`support.maps.everywhere`)."""

import asyncio
import bdb
import contextvars
import gc
import itertools
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.maps import Way, asynchronous, inline
from support.process import environment, run_script
from support.threads import DEADLINE, Threads, acting_when, ctrl_c, main_thread_sleeps, wait_asleep, wait_until

from manytail import (
    AsyncCaller,
    Budget,
    Caller,
    Concurrency,
    DeadlineExceeded,
    Rate,
    Retry,
    RetryLater,
    Shared,
    aconcurrent_map,
    concurrent_map,
)
from manytail.mapping import _remember

needs_main_thread = pytest.mark.thread_unsafe(reason="is sent signals, or counts the threads of the process")


def run(fn: Callable[..., Any], items: Any, **options: Any) -> Any:
    return concurrent_map(fn, items, workers="inline", **options)


async def double(item: int) -> int:
    await asyncio.sleep(0)
    return 2 * item


# ---------------------------------------------------------------------------------------------------- no thread
NO_THREAD = """
import sys, threading
from manytail import *

started, start = [], threading.Thread.start

def noted(thread):
    started.append(thread.name)
    start(thread)

threading.Thread.start = noted
shared, other = Shared(sys.argv[1], "a"), Shared(sys.argv[1], "b")
kept = [Rate(1e4, shared=other, name="r"), Budget(1e4, shared=other, name="b"), Concurrency(2, shared=other, name="c")]
options = dict(
    key=lambda item: item % 3, per_key=1, retry=Retry(2, backoff=0.001), timeout=60, deadline=60, breaker=9, dedup=10,
    limits=[Rate(1e4), Budget(1e4), Concurrency(1), *kept], progress=lambda stats: None, remember=shared,
    errors="return", setup=list, max_failures=100, priority=lambda item: item,
)

def fn(item, resource):
    if item == 5:
        raise ValueError(item)
    return item

async def coroutine(item, resource):
    return fn(item, resource)

def batched(items, resource):
    return items

for call in fn, coroutine:
    results = list(concurrent_map(call, iter(range(20)), workers="inline", **options))
    assert [one.result for one in results if one.ok] == [item for item in range(20) if item != 5]
list(concurrent_map(batched, range(20), workers="inline", batch=Batch(4, linger=0.001), **options))
for end in "close", "drop":
    results = concurrent_map(fn, range(100), workers="inline", **options | {"remember": Shared(sys.argv[1], end)})
    next(results)
    if end == "close":
        results.close()
    del results
assert not started, started
list(concurrent_map(fn, range(3), **options))
assert started  # what is started is seen
"""


def test_no_thread_is_started_whatever_the_options(tmp_path: Path) -> None:
    run_script(NO_THREAD, arguments=[str(tmp_path / "a.db")])


@inline
def test_fn_runs_in_the_thread_that_takes_results(mapped: Way) -> None:
    assert mapped(lambda item: threading.current_thread(), range(3)) == [threading.current_thread()] * 3


# ---------------------------------------------------------------------------------------------------- debuggers
UNDER_A_DEBUGGER = """\
from manytail import concurrent_map

def fn(item):
    twice = 2 * item
    return twice

for result in concurrent_map(fn, [20, 21], workers="inline"):
    print("result", result)
"""


@pytest.mark.thread_unsafe(reason="starts a process")
def test_pdb_works_in_fn(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNDER_A_DEBUGGER)
    commands = "b 5\nc\np 'stopped', twice\nc\np 'stopped', twice\nup\nc\nq\n"
    debugger = [sys.executable, "-m", "pdb", str(script)]
    ran = subprocess.run(
        debugger, input=commands, env=environment(), capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert re.findall(r"\('stopped', \d+\)|result \d+", ran.stdout) == [
        "('stopped', 40)", "result 40", "('stopped', 42)", "result 42",
    ], ran.stdout + ran.stderr  # fmt: skip


@inline
def test_leaving_a_debugger_ends_the_map(mapped: Way) -> None:
    calls: list[int] = []

    def fn(item: int) -> None:
        calls.append(item)
        raise bdb.BdbQuit

    with pytest.raises(bdb.BdbQuit):
        mapped(fn, range(5), errors="return", retry=3)
    assert calls == [0]


def traced(item: int) -> int:
    if item == 2:
        item += 0
    return item


LINES = {traced.__code__.co_firstlineno + line for line in (1, 2, 3)}


@needs_main_thread
def test_a_trace_function_sees_the_lines_of_fn() -> None:
    """So coverage counts them, without settings for threads."""
    seen: set[int] = set()

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code is not traced.__code__:
            return None
        seen.add(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        list(run(traced, range(3)))
    finally:
        sys.settrace(before)
    assert seen >= LINES


# ---------------------------------------------------------------------------------------------------- order of steps
class Log(list[Any]):
    def fn(self, item: Any) -> Any:
        self.append(("call", item))
        return item

    def source(self, items: Any) -> Iterator[Any]:
        for item in items:
            self.append(("read", item))
            yield item

    def calls(self) -> list[Any]:
        return [item for step, item in self if step == "call"]


def test_an_item_is_read_when_nothing_else_can_be_done() -> None:
    log = Log()
    for result in run(log.fn, log.source("abc")):
        log.append(("taken", result))
    assert log == [(step, item) for item in "abc" for step in ("read", "call", "taken")]


def test_an_input_may_come_from_the_results() -> None:
    links = {"a": ["b", "c"], "b": ["d"]}
    found = ["a"]
    for result in run(lambda page: links.get(page, []), iter(found)):
        found += result
    assert found == ["a", "b", "c", "d"]


CHOICES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "order of the input": ({}, [0, 1, 2, 3, 4, 5]),
    "keys round robin": ({"key": lambda item: item // 2, "max_in_flight": 6}, [0, 2, 4, 1, 3, 5]),
    "weights": ({"key": lambda item: item // 3, "weights": {0: 2}, "max_in_flight": 6}, [0, 1, 3, 2, 4, 5]),
    "priority": ({"priority": lambda item: -item, "max_in_flight": 6}, [5, 4, 3, 2, 1, 0]),
    "batches": ({"batch": 4}, [[0, 1, 2, 3], [4, 5]]),
}


@pytest.mark.parametrize("source", [list, iter], ids=["list", "iterator"])
@pytest.mark.parametrize(("options", "expected"), CHOICES.values(), ids=CHOICES)
def test_calls_start_in_the_same_order_each_time(options: dict[str, Any], expected: list[Any], source: Any) -> None:
    for _ in range(3):
        log = Log()
        assert list(run(log.fn, source(list(range(6))), **options)) == [0, 1, 2, 3, 4, 5]
        assert log.calls() == expected


def test_a_call_waits_inside_next_for_its_retry_and_its_rate() -> None:
    began: list[float] = []

    def fn(item: int) -> int:
        began.append(time.monotonic())
        if len(began) == 1:
            raise RetryLater(0.05)
        return item

    assert list(run(fn, [0, 1], limits=Rate(20))) == [0, 1]
    assert [after - before >= 0.04 for before, after in itertools.pairwise(began)] == [True, True]


# ---------------------------------------------------------------------------------------------------- options
def test_one_worker_counts() -> None:
    results = run(str, [1])
    assert results.stats().workers == 1
    with pytest.raises(ValueError, match=r"max_in_flight: 1 \(expected: .* workers x batch, which is 2\)"):
        run(str, [1], batch=2, max_in_flight=1)


def test_where_items_come_from_a_loop_or_from_threads_it_is_refused() -> None:
    for make in (lambda: aconcurrent_map(double, [1], workers="inline"), lambda: Caller(double, workers="inline"),
                 lambda: AsyncCaller(double, workers="inline")):  # fmt: skip
        with pytest.raises(ValueError, match=r"^workers: 'inline' \(expected: an int >= 1"):
            make()  # type: ignore[no-untyped-call]


def test_a_call_that_took_longer_than_timeout_fails_when_it_returns() -> None:
    calls: list[int] = []

    def fn(item: int) -> int:
        calls.append(item)
        if item == 1:
            time.sleep(0.02)
        return item

    results = list(run(fn, range(3), timeout=0.01, errors="return", retry=Retry(1, backoff=0)))
    assert [(one.result, type(one.error)) for one in results[1:2]] == [(None, TimeoutError)]
    assert str(results[1].error) == "timeout: no result within 0.01 s"
    assert results[1].attempts == 2
    assert calls.count(1) == 2


def test_what_a_late_call_raised_is_the_cause_of_its_timeout() -> None:
    def fn(item: int) -> None:
        time.sleep(0.02)
        raise LookupError(item)

    (failed,) = run(fn, [7], timeout=0.01, errors="return")
    assert isinstance(failed.error, TimeoutError)
    assert repr(failed.error.__cause__) == "LookupError(7)"


def test_the_deadline_fails_the_call_that_passes_it_and_all_items_left() -> None:
    log = Log()

    def fn(item: int) -> int:
        log.fn(item)
        if item == 1:
            time.sleep(1.1)
        return item

    results = list(run(fn, iter(range(50)), deadline=1.0, errors="return"))
    assert log.calls() == [0, 1]
    assert results[0].result == 0
    assert [(type(one.error), one.attempts) for one in results[1:]] == [(DeadlineExceeded, 1)] + 48 * [
        (DeadlineExceeded, 0)
    ]


@pytest.mark.parametrize("option", ["timeout", "deadline"])
def test_a_coroutine_is_cancelled_at_its_time(option: str) -> None:
    ended: list[int] = []

    async def fn(item: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(item)

    (failed,) = run(fn, [1], errors="return", **{option: 0.01})
    assert isinstance(failed.error, TimeoutError if option == "timeout" else DeadlineExceeded)
    assert ended == [1]


def test_progress_is_told_in_this_thread() -> None:
    seen: list[Any] = []

    def show(stats: Any) -> None:
        seen.append((threading.current_thread(), stats.done))

    assert len(list(run(lambda item: time.sleep(0.11), range(4), progress=show))) == 4
    assert {thread for thread, _ in seen} == {threading.current_thread()}
    assert len(seen) >= 2
    assert seen[-1][1] == 4


seen_by_fn: contextvars.ContextVar[str] = contextvars.ContextVar("seen_by_fn", default="unset")


@inline
def test_fn_runs_in_a_copy_of_the_context_in_which_the_map_was_made(mapped: Way) -> None:
    def fn(item: int) -> str:
        value = seen_by_fn.get()
        seen_by_fn.set(f"{value}, call {item}")
        return value

    def in_another() -> Any:
        seen_by_fn.set("made")
        return run(asynchronous(fn) if mapped.is_async else fn, range(2))

    results = contextvars.Context().run(in_another)
    assert list(results) == ["made", "made, call 0"]
    assert seen_by_fn.get() == "unset"


# ---------------------------------------------------------------------------------------------------- async fn
class OfOneTask:
    """A resource that is entered and left by one task."""

    left = False

    async def __aenter__(self) -> "OfOneTask":
        self.task = asyncio.current_task()
        return self

    async def __aexit__(self, *error: object) -> None:
        assert asyncio.current_task() is self.task
        self.left = True


@pytest.mark.parametrize("end", ["exhausted", "closed", "dropped", "failed"])
def test_an_async_fn_has_one_loop_and_its_resource_one_task(end: str) -> None:
    made = OfOneTask()

    async def fn(item: int, resource: OfOneTask) -> asyncio.AbstractEventLoop:
        assert resource is made
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


def test_an_async_fn_inside_a_running_loop_is_refused_before_an_item_is_taken() -> None:
    log = Log()
    results = run(double, log.source([1]))

    async def take() -> Any:
        return next(results)

    with pytest.raises(RuntimeError, match="aconcurrent_map"):
        asyncio.run(take())
    assert log == []


def test_a_plain_fn_may_be_called_inside_a_running_loop() -> None:
    async def take() -> list[str]:
        return list(run(str, range(3)))

    assert asyncio.run(take()) == ["0", "1", "2"]


def test_a_call_leaves_no_timer_in_the_loop_of_the_map() -> None:
    timers: list[int] = []

    async def fn(item: int) -> None:
        timers.append(sum(not one.cancelled() for one in asyncio.get_running_loop()._scheduled))  # type: ignore[attr-defined]

    assert len(list(run(fn, range(50), deadline=10 * DEADLINE))) == 50
    assert max(timers) == 1


def test_a_coroutine_that_is_cancelled_before_it_begins_is_not_called() -> None:
    called: list[int] = []

    async def fn(item: int) -> None:
        called.append(item)

    results = run(fn, range(3))
    next(results)
    runner = results._runner
    runner.stop(cancel=True)
    with pytest.raises(asyncio.CancelledError):
        runner.worker.call(fn, 1)
    assert called == [0]
    results.close()


def test_who_waits_for_the_work_of_another_thread_sleeps() -> None:
    """The event is set late, by a thread that has done the work before."""
    runner = run(str, range(3))._runner
    runner._working, _ = -1, runner._left.set()
    assert not runner._is_mine()
    assert not runner._left.is_set()
    runner._working = 0
    assert runner._is_mine()
    runner._working = 0


def test_a_map_that_ends_in_a_running_loop_says_that_its_resource_stays_open(caplog: pytest.LogCaptureFixture) -> None:
    async def fn(item: int, resource: OfOneTask) -> int:
        return item

    results = run(fn, range(3), setup=OfOneTask)
    next(results)

    async def close(results: Any) -> None:
        results.close()

    asyncio.run(close(results))
    del results
    gc.collect()  # asyncio logs a task that is freed before its end
    assert set(caplog.messages) == {"setup: the resource stays open, because the map has ended where a loop runs"}


# ---------------------------------------------------------------------------------------------------- limits, remember
def test_between_two_calls_of_next_a_map_holds_nothing_of_a_limit() -> None:
    limit = Concurrency(1)
    for _ in run(str, range(3), limits=limit):
        assert list(concurrent_map(str, range(2), limits=limit, workers=1)) == ["0", "1"]


def test_a_call_starts_when_another_thread_gives_a_permit_back() -> None:
    limit = Concurrency(1)
    block = limit(1.0)
    contextvars.Context().run(block.__enter__)  # another context: the map does not wait for its own caller
    with Threads() as threads:
        taking = threads.start(list, run(str, [1], limits=limit))
        wait_asleep(taking)
        contextvars.Context().run(block.__exit__)
        assert taking.result() == ["1"]


def test_what_next_returns_is_recorded_and_reported(tmp_path: Path) -> None:
    shared = Shared(tmp_path / "a.db", "a")
    limits = [
        Budget(10, shared=shared, name="budget"),
        Concurrency(2, shared=shared, name="connections"),
        Rate(1e4, shared=shared, name="rate"),
    ]
    for done, _ in enumerate(run(str, range(3), limits=limits, remember=shared), 1):
        assert shared.remembered() == done
        assert limits[0].used() == done  # type: ignore[attr-defined]
        held = shared._store().run(lambda its, name: its.execute("SELECT sum(reserved) FROM manytail_holds").fetchone())
        assert not held[0]


def test_limits_of_a_database_hold_beside_a_map_in_threads(tmp_path: Path) -> None:
    """Both use the same objects."""
    shared = Shared(tmp_path / "a.db", "a")
    limits = [Concurrency(1, shared=shared, name="connections"), Budget(40, shared=shared, name="budget")]
    running: list[int] = []
    most: list[int] = []

    def fn(item: int) -> int:
        running.append(item)
        most.append(len(running))
        running.remove(item)
        return item

    with Threads() as threads:
        other = threads.start(list, concurrent_map(fn, range(20), workers=4, limits=limits))
        assert list(run(fn, range(100, 120), limits=limits)) == list(range(100, 120))
        assert other.result() == list(range(20))
    assert max(most) == 1
    assert limits[1].used() == 40  # type: ignore[attr-defined]


def test_two_threads_do_not_ask_a_database_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(tmp_path / "a.db", "a")
    budget = Budget(100, shared=shared, name="budget")
    asked, go_on, one = threading.Event(), threading.Event(), threading.Lock()
    exchange = shared._store().exchange

    def alone(*arguments: Any) -> Any:
        assert one.acquire(blocking=False), "two at once"
        try:
            asked.set()
            assert go_on.wait(DEADLINE)
            return exchange(*arguments)
        finally:
            one.release()

    monkeypatch.setattr(shared._store(), "exchange", alone)
    with Threads() as threads:
        first = threads.start(list, run(str, range(5), limits=budget))
        assert asked.wait(DEADLINE)
        second = threads.start(list, run(str, range(5), limits=budget))
        wait_asleep(second)
        go_on.set()
        assert first.result() == second.result() == ["0", "1", "2", "3", "4"]
    assert budget.used() == 10


AT_EXIT = """
import sys
from manytail import Shared, concurrent_map
from manytail.mapping import _shared_store

shared, record = Shared(sys.argv[1], "a"), _shared_store.Store.record

def interrupted(*arguments):
    _shared_store.Store.record = record
    raise KeyboardInterrupt

_shared_store.Store.record = interrupted
results = concurrent_map(str, range(3), workers="inline", remember=shared)
try:
    next(results)
except KeyboardInterrupt:
    del results
assert shared.remembered() == 0
"""


def test_what_an_interrupted_map_has_not_recorded_is_recorded_at_exit(tmp_path: Path) -> None:
    run_script(AT_EXIT, arguments=[str(tmp_path / "a.db")])
    assert Shared(tmp_path / "a.db", "a").remembered() == 1


@pytest.mark.parametrize("ends", ["closed", "dropped"])
def test_what_an_interrupted_map_has_not_recorded_is_recorded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """By close, or at the exit of the interpreter. What waits for that keeps no map alive."""

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    shared = Shared(tmp_path / "a.db", "a")
    with monkeypatch.context() as patched:
        patched.setattr(shared._store(), "record", interrupted)
        results = run(str, range(3), remember=shared)
        with pytest.raises(KeyboardInterrupt):
            next(results)
    if ends == "closed":
        results.close()
    else:
        scheduler = weakref.ref(results._runner.scheduler)
        del results
        gc.collect()
        assert scheduler() is None
        _remember._record_at_exit()
    assert shared.remembered() == 1


# ---------------------------------------------------------------------------------------------------- Ctrl-C
class Resource:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def interrupt_in(place: str) -> dict[str, Any]:
    def interrupted(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    def fails(item: int, resource: Any = None) -> Any:
        raise ValueError(item)

    def interrupted_input() -> Iterator[int]:
        yield 0
        raise KeyboardInterrupt

    if place == "fn":
        return {"fn": lambda item, resource: interrupted(), "items": range(3)}
    if place == "input":
        return {"fn": fails, "items": interrupted_input()}
    if place in ("on", "backoff"):
        return {"fn": fails, "items": range(3), "retry": Retry(1, **{place: interrupted})}
    if place == "fatal":
        return {"fn": fails, "items": range(3), "fatal": interrupted}
    return {"fn": fails, "items": iter(range(3)), place: interrupted}


@pytest.mark.parametrize("place", ["fn", "input", "key", "priority", "item_id", "on", "backoff", "fatal", "progress"])
def test_ctrl_c_ends_next_wherever_it_comes(place: str) -> None:
    options = interrupt_in(place)
    resource = Resource()
    more = {"dedup": 9} if place == "item_id" else {}
    if place == "progress":
        options["fn"] = lambda item, resource: time.sleep(0.21)
    results = run(**options, **more, setup=lambda: resource, errors="return")
    with pytest.raises(KeyboardInterrupt):
        for _ in results:
            pass
    assert list(results) == []
    assert resource.closed == results.stats().calls or place in ("fn", "input", "on", "backoff", "fatal", "progress")
    results.close()
    assert resource.closed <= 1


@needs_main_thread
@pytest.mark.parametrize("kind", ["sleep", "fn", "coroutine", "batch"])
def test_ctrl_c_ends_a_wait_at_once(kind: str) -> None:
    """It would last for ever."""
    begun: list[int] = []
    ended: list[int] = []
    limit, resource = Concurrency(1), Resource()

    def wait(item: int, resource: Any) -> None:
        begun.append(item)
        threading.Event().wait()

    async def wait_in_loop(item: int, resource: Any) -> None:
        begun.append(item)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(item)

    options: dict[str, Any] = {"setup": lambda: resource}
    fn: Any = {"coroutine": wait_in_loop}.get(kind, wait)
    if kind == "batch":
        options["batch"] = 2
    block = limit(1.0)
    if kind == "sleep":
        options["limits"] = limit
        contextvars.Context().run(block.__enter__)
    results = run(fn, range(3), **options)

    def is_waiting() -> bool:
        return bool(begun or kind == "sleep") and main_thread_sleeps()

    with acting_when(is_waiting, ctrl_c), pytest.raises(KeyboardInterrupt):
        next(results)
    assert ended == ([0] if kind == "coroutine" else [])
    assert resource.closed == (0 if kind == "sleep" else 1)
    assert list(results) == []
    results.close()
    if kind == "sleep":
        contextvars.Context().run(block.__exit__)
    with limit:  # nothing holds it, and nobody stands before us
        pass


# ---------------------------------------------------------------------------------------------------- ends
@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("ends", ["stop", "close"])
def test_fn_may_end_its_own_map(ends: str, asynchronous: bool) -> None:
    """close waits for nothing there: the call of next does what is left, also with limits."""
    resource = Resource()

    def fn(item: int, resource: Any) -> int:
        if item == 1:
            getattr(results, ends)()
        return item

    async def afn(item: int, resource: Any) -> int:
        return fn(item, resource)

    limit = Concurrency(1)
    results = run(afn if asynchronous else fn, range(5), setup=lambda: resource, limits=limit)
    assert list(results) == ([0, 1] if ends == "stop" else [0])
    assert resource.closed == 1
    with limit:  # nothing holds it, and nobody stands before us
        pass


@needs_main_thread
@pytest.mark.skipif(sys.platform == "win32", reason="signal.raise_signal of SIGINT only")
def test_close_in_a_signal_handler_that_interrupts_fn_ends_the_map_after_that_call() -> None:
    calls: list[int] = []
    resource = Resource()

    def fn(item: int, resource: Any) -> int:
        calls.append(item)
        if item == 1:
            signal.raise_signal(signal.SIGTERM)
            assert resource.closed == 0
        return item

    results = run(fn, range(5), setup=lambda: resource)
    before = signal.signal(signal.SIGTERM, lambda number, frame: results.close())
    try:
        assert list(results) == [0]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert calls == [0, 1]
    assert resource.closed == 1


@inline
def test_close_from_another_thread_waits_for_the_call(mapped: Way) -> None:
    begun, over = threading.Event(), threading.Event()
    ended: list[str] = []

    def fn(item: int) -> int:
        begun.set()
        assert over.wait(DEADLINE)
        ended.append("call")
        return item

    async def afn(item: int) -> int:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("call")
        return item

    results = run(afn if mapped.is_async else fn, range(3))

    def close() -> None:
        results.close()
        ended.append("close")

    with Threads() as threads:
        taking = threads.start(list, results)
        assert begun.wait(DEADLINE)
        closing = threads.start(close)
        wait_until(lambda: results._runner.stopping)
        over.set()
        closing.result()
        assert taking.result() == []
    assert ended == ["call", "close"]


@inline
def test_a_dropped_map_closes_its_resource_and_gives_its_limits_back(mapped: Way) -> None:
    resource, limit = Resource(), Concurrency(1)

    def fn(item: int, resource: Any) -> int:
        return item

    results = run(asynchronous(fn) if mapped.is_async else fn, iter(range(9)), setup=lambda: resource, limits=limit)
    assert next(results) == 0
    del results
    gc.collect()
    assert resource.closed == 1
    with limit:
        pass


@inline
@pytest.mark.parametrize("fails", ["fn", "key", "backoff"])
def test_an_error_that_is_kept_keeps_no_map_alive(mapped: Way, fails: str) -> None:
    resource = Resource()

    def fail(*arguments: Any) -> Any:
        raise LookupError

    def fn(item: int, resource: Any) -> int:
        return item if item or fails == "key" else fail()

    more: dict[str, Any] = {"key": {"key": lambda item: item or fail()}, "backoff": {"retry": Retry(1, backoff=fail)}}
    call = asynchronous(fn) if mapped.is_async else fn
    results = run(call, iter(range(9)), setup=lambda: resource, errors="return", **more.get(fails, {}))
    first, second = next(results), next(results)
    assert isinstance(first.error, LookupError)
    assert second.ok
    del results
    gc.collect()
    assert resource.closed == 1


def test_next_inside_fn_is_refused() -> None:
    with pytest.raises(ValueError, match="already executing"):
        next(results := run(lambda item: next(results), [1]))


def test_ctrl_c_in_the_input_does_not_wait_for_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyboardInterrupt

    log = Log()
    with pytest.raises(KeyboardInterrupt):
        next(run(log.fn, items(), key=str))
    assert log.calls() == []


def test_ctrl_c_in_an_asynchronous_setup_is_raised_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fn(item: int, resource: object) -> int:
        return item

    async def setup() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run(fn, [1, 2], setup=setup))
    gc.collect()  # asyncio logs an exception that nobody has asked for when its task is freed
    assert caplog.text == ""
