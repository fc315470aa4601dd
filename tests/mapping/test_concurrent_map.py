"""`concurrent_map` in real threads and loops: the runners. Promises about time are tested in tests/simulation."""

import asyncio
import gc
import math
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from support.maps import (
    Clock,
    Gate,
    Way,
    collect,
    concurrently,
    everywhere,
    in_each_loop,
    in_loops,
    mapped,
    refuse_thread,
    threads_of_maps,
)
from support.threads import DEADLINE, Threads, TooLate, in_time, wait_until

from manytail import Budget, DeadlineExceeded, Delivery, Retry, RetryLater, aconcurrent_map, concurrent_map
from manytail.mapping import _workers

pytestmark = pytest.mark.thread_unsafe(reason="counts the threads of the process")
Run = Callable[[Any], Any]  # runs a coroutine in a loop


def ended(run: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What the call returns, in a thread: it must end."""
    with Threads() as threads:
        return threads.start(run, *arguments, **options).result()


async def double(item: int) -> int:
    await asyncio.sleep(random.random() / 1_000)
    return 2 * item


# ---------------------------------------------------------------------------------------------------- order
@pytest.mark.parametrize("kind", [list, tuple, iter])
@pytest.mark.parametrize("window", [None, 3])
def test_a_list_is_read_without_a_reader(kind: Any, window: int | None) -> None:
    """By whoever fills the window. An iterator may block, so it has a thread of its own."""
    running, most, readers, lock = 0, 0, [], threading.Lock()

    def call(item: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        readers.append("manytail-reader" in threads_of_maps())
        with lock:
            running -= 1
        return -item

    results = concurrent_map(call, kind(list(range(300))), workers=3, max_in_flight=window)
    assert list(results) == [-item for item in range(300)]
    assert most <= 3
    assert len(readers) == 300
    assert any(readers) == (kind is iter)


def test_threads_that_take_results_one_after_the_other_get_each_once() -> None:
    results, turn = concurrent_map(abs, range(2_000), workers=4, max_in_flight=40), threading.Lock()

    def take() -> list[int]:
        taken = []
        while True:
            with turn:
                result = next(results, None)
            if result is None:
                return taken
            taken.append(result)

    with Threads() as threads:
        tasks = [threads.start(take) for _ in range(4)]
        assert sorted(result for task in tasks for result in task.result()) == list(range(2_000))


def test_the_values_of_an_exhausted_list_are_not_dropped_by_a_worker() -> None:
    """What drops them runs their finalizers, which must not run under the lock of the map."""
    names: list[str] = []

    class Value:
        def __del__(self) -> None:
            names.append(threading.current_thread().name)

    with Threads() as threads:

        def run() -> None:
            for _ in concurrent_map(lambda value: None, [Value() for _ in range(50)], workers=2):
                pass

        task = threads.start(run)
        task.result()
        gc.collect()
    assert len(names) == 50
    assert not [name for name in names if name.startswith("manytail-")]


@pytest.mark.parametrize("order", ["input", "key", "completion"])
@everywhere
def test_every_item_once_in_the_promised_order(mapped: Way, order: Any) -> None:
    fn = double if mapped.is_async else lambda item: 2 * item
    results = mapped(fn, range(500), workers=8, order=order, key=lambda item: item % 7)
    assert sorted(results) == [2 * item for item in range(500)]
    if order == "input":
        assert results == sorted(results)
    if order == "key":
        for key in range(7):
            of_key = [result for result in results if result // 2 % 7 == key]
            assert of_key == sorted(of_key)
    assert threads_of_maps() == []


@pytest.mark.parametrize("timed", [{}, {"timeout": DEADLINE}], ids=["untimed", "timed"])
@everywhere
def test_calls_of_a_key_go_on_whatever_priorities_its_items_have(mapped: Way, timed: dict[str, Any]) -> None:
    options: dict[str, Any] = {"workers": 2, "order": "key", "key": bool, "priority": lambda item: item % 2}
    results = ended(mapped, double if mapped.is_async else lambda item: 2 * item, range(20), **options, **timed)
    assert [result for result in results if result] == [2 * item for item in range(1, 20)]


@pytest.mark.parametrize("awaits", [True, False])
@pytest.mark.parametrize("timed", [{}, {"timeout": DEADLINE}], ids=["untimed", "timed"])
@in_loops
def test_a_coroutine_that_cancels_its_own_task(mapped: Way, timed: dict[str, Any], awaits: bool) -> None:
    async def fn(item: int) -> int:
        task = asyncio.current_task()
        assert task is not None
        if item % 3 == 0:
            task.cancel()
            if awaits:
                await asyncio.sleep(0)
        return item

    results = ended(mapped, fn, range(9), workers=1, errors="return", **timed)
    for item, result in enumerate(results):
        if awaits and item % 3 == 0:
            assert isinstance(result.error, asyncio.CancelledError)
        else:
            assert result.result == item


async def cancels_its_task() -> AsyncIterator[int]:
    yield 1
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def awaits_what_was_cancelled() -> AsyncIterator[int]:
    yield 1
    waited = asyncio.get_running_loop().create_future()
    waited.cancel()
    await waited


@in_each_loop
@pytest.mark.parametrize("items", [cancels_its_task, awaits_what_was_cancelled])
async def test_an_input_that_is_cancelled_fails_the_map(items: Any) -> None:
    results = aconcurrent_map(double, items(), workers=1)
    assert await asyncio.wait_for(anext(results), DEADLINE) == 2
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(anext(results), DEADLINE)


def test_no_worker_starts_after_the_deadline() -> None:
    setups: list[int] = []
    go_on = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        assert go_on.wait(DEADLINE)
        yield from range(1, 10)

    def fn(item: int, resource: None) -> int:
        return item

    results = concurrent_map(fn, items(), setup=lambda: setups.append(1), workers=4, deadline=0.5, errors="return")
    assert next(results) is not None
    passed = time.monotonic() + 0.5
    wait_until(lambda: time.monotonic() > passed)
    go_on.set()
    assert [type(failure.error) for failure in results] == [DeadlineExceeded] * 9
    results.close()  # type: ignore[attr-defined]
    assert setups == [1]


def test_it_is_lazy() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(1_000):
            taken.append(item)
            yield item

    results = concurrent_map(lambda item: item, items(), workers=2, max_in_flight=8)
    assert taken == []
    assert next(results) == 0
    wait_until(lambda: len(taken) >= 9)  # eight in flight behind the one that was emitted
    assert len(taken) <= 9
    results.close()  # type: ignore[attr-defined]
    assert next(results, "end") == "end"


@everywhere
def test_an_exception_of_the_input_comes_after_the_results_before_it(mapped: Way) -> None:
    def items() -> Iterator[int]:
        yield from range(20)
        raise OSError("the input broke")

    seen: list[int] = []

    async def note(item: int) -> int:
        await asyncio.sleep((20 - item) / 1_000)
        seen.append(item)
        return item

    with pytest.raises(OSError, match="the input broke"):
        mapped(note, items(), workers=4)
    assert sorted(seen) == list(range(20))


# ---------------------------------------------------------------------------------------------------- failures
@everywhere
def test_raise_yields_what_comes_before_and_names_key_and_attempts(mapped: Way) -> None:
    began: list[int] = []

    def fail(item: int) -> int:
        if item == 30:
            if len(began) < 30:
                raise RetryLater(0.0)  # after the failure no call starts, and nothing behind a gap is yielded
            raise ValueError("no")
        began.append(item)
        return item

    got: list[int] = []
    with pytest.raises(ValueError, match="no") as caught:
        mapped(fail, range(100), workers=4, key=lambda item: f"k{item % 3}", retry=Retry(2, backoff=0.0), into=got)
    assert got == list(range(30))
    assert caught.value.__notes__ == ["manytail: items[30], 30: the item with key 'k0' failed after 3 attempts"]
    assert threads_of_maps() == []


@pytest.mark.parametrize(
    "kind", [StopIteration, StopAsyncIteration, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]
)
@everywhere
def test_whatever_fn_raises_is_the_failure_of_its_item(mapped: Way, kind: type[BaseException]) -> None:
    def fail(item: int) -> int:
        if item == 3:
            raise kind()
        return item

    if mapped.inline and kind is KeyboardInterrupt:  # it is Ctrl-C, whoever raises it
        with pytest.raises(KeyboardInterrupt):
            mapped(fail, range(6), errors="return")
        return
    results = mapped(fail, range(6), errors="return", workers=2)
    assert [one.result for one in results if one.ok] == [0, 1, 2, 4, 5]
    expected = RuntimeError if mapped.is_async and kind is StopIteration else kind  # no coroutine can raise it
    assert isinstance(results[3].error, expected)
    assert (results[3].item, results[3].attempts, results[3].key) == (3, 1, None)


def test_what_fn_raised_keeps_its_context() -> None:
    def fail_in_handler(item: int) -> None:
        try:
            raise KeyError("root cause")
        except KeyError:
            raise ValueError("no")  # noqa: B904 - the context is what is tested

    with pytest.raises(ValueError, match="no") as caught:
        mapped(fail_in_handler, [1])
    assert isinstance(caught.value.__context__, KeyError)


@everywhere
@pytest.mark.parametrize("option", ["priority", "cost"])
def test_an_item_without_a_priority_or_cost_keeps_its_place_in_its_key(mapped: Way, option: str) -> None:
    def of(item: int) -> int:
        if item == 2:
            raise OSError("no")
        return 1

    given: dict[str, Any] = {"priority": of} if option == "priority" else {"limits": Budget(9, cost=of)}
    options: dict[str, Any] = {"key": bool, **given, "order": "key", "workers": 1, "errors": "return"}
    results = mapped(lambda item: 2 * item, [1, 1, 2, 3], **options)
    assert [one.result for one in results if one.ok] == [2, 2, 6]
    assert isinstance(results[2].error, OSError)
    assert results[2].key is True


class FalseError(Exception):
    """An exception that is false, as a collection of errors without any may be."""

    def __len__(self) -> int:
        return 0


def test_an_exception_that_is_false_fails_the_map_too() -> None:
    def fail(item: int) -> None:
        raise FalseError(item)

    def items() -> Iterator[int]:
        raise FalseError("input")
        yield

    with pytest.raises(FalseError, match="1"):
        mapped(fail, [1])
    with pytest.raises(FalseError, match="input"):
        mapped(str, items())


def test_stop_iteration_of_fn_is_not_the_end_of_the_results() -> None:
    def fail(item: int) -> None:
        raise StopIteration(item)

    with pytest.raises(RuntimeError, match="StopIteration: 1"):
        list(concurrent_map(fail, [1]))


@pytest.mark.parametrize("option", ["key", "priority"])
def test_what_key_and_priority_raise_fails_the_item_alone(option: str) -> None:
    def of(item: int) -> int:
        if item == 2:
            raise LookupError(item)
        return item

    results = mapped(lambda item: item, range(5), errors="return", **{option: of})
    assert [results[index].result for index in (0, 1, 3, 4)] == [0, 1, 3, 4]
    assert isinstance(results[2].error, LookupError)
    assert results[2].attempts == 0


def test_a_key_that_cannot_be_hashed_fails_its_item_alone() -> None:
    results = mapped(
        lambda item: item, range(3), key=lambda item: [] if item == 1 else item, errors="return", order="key"
    )
    assert sorted(one.result for one in results if one.ok) == [0, 2]
    assert [type(one.error) for one in results if not one.ok] == [TypeError]


def test_a_key_whose_eq_waits_for_another_map_is_compared_under_no_lock() -> None:
    class Key:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            asked.set()
            return answered.wait(DEADLINE)

    asked, answered = threading.Event(), threading.Event()
    calls: list[int] = []

    def note(item: int) -> int:
        calls.append(item)
        return item

    with Threads() as threads:
        task = threads.start(lambda: list(concurrent_map(note, range(2), key=lambda item: Key(), workers=1)))
        assert asked.wait(DEADLINE)
        wait_until(lambda: calls == [0])  # its result is reported while the reader compares keys
        answered.set()
        assert task.result() == [0, 1]


@everywhere
def test_retry_later_is_no_attempt_and_no_other_call_starts_before_it(mapped: Way) -> None:
    calls: list[tuple[int, int]] = []

    def busy(item: int, delivery: Delivery) -> int:
        calls.append((item, delivery.attempt))
        if item == 0 and len(calls) < 4:
            raise RetryLater(0.001)
        return item

    assert mapped(busy, range(3), workers=1) == [0, 1, 2]
    assert calls == [(0, 1)] * 4 + [(1, 1), (2, 1)]


# ---------------------------------------------------------------------------------------------------- time
@concurrently
def test_timeout_is_per_attempt(mapped: Way) -> None:
    """The other items have retries enough for a machine on which a call takes longer than the timeout."""
    released = threading.Event()
    calls: list[int] = []

    def hang(item: int) -> int:
        calls.append(item)
        if item == 1 and calls.count(1) == 1:
            released.wait(DEADLINE)
        return item

    async def ahang(item: int) -> int:
        calls.append(item)
        if item == 1 and calls.count(1) == 1:
            await asyncio.Event().wait()
        return item

    options: dict[str, Any] = {"workers": 8, "timeout": 0.1, "retry": Retry(1_000, backoff=0.0)}
    try:
        assert mapped(ahang if mapped.is_async else hang, range(3), **options) == [0, 1, 2]
    finally:
        released.set()
    assert calls.count(1) >= 2
    wait_until(lambda: threads_of_maps() == [])


def test_a_call_over_its_time_fails_its_item_and_another_thread_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many abandoned threads as workers do not fail the map. What their calls return late is dropped."""
    monkeypatch.setattr(_workers, "JOIN_TIMEOUT", 0.01)  # that of an abandoned thread at the end
    gate = Gate()
    results = concurrent_map(
        lambda item: gate(item) if item < 2 else item, range(4), workers=2, timeout=3_600, errors="return"
    )
    clock = Clock(results)
    with Threads() as threads:
        taking = threads.start(list, results)
        gate.wait_for(0, 1)
        clock.pass_an_hour()
        outcomes = taking.result()
        gate.opened.set()
    assert [(one.result, type(one.error)) for one in outcomes[:2]] == [(None, TimeoutError)] * 2
    assert [one.result for one in outcomes[2:]] == [2, 3]
    wait_until(lambda: threads_of_maps() == [])


def test_the_last_results_do_not_wait_for_a_call_that_was_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_workers, "JOIN_TIMEOUT", DEADLINE)
    gate = Gate()
    results = concurrent_map(
        lambda item: gate(item) if item == 0 else item, range(3), workers=2, timeout=3_600, errors="return"
    )
    clock = Clock(results)
    with Threads() as threads:
        first = threads.start(next, results)
        gate.wait_for(0)
        clock.pass_an_hour()
        assert isinstance(first.result().error, TimeoutError)
        assert [next(results).result for _ in range(2)] == [1, 2]
        assert not gate.opened.is_set()
        gate.opened.set()
        assert list(results) == []


def test_abandoned_threads_that_have_ended_are_not_counted() -> None:
    first, second, go_on = Gate(), Gate(), threading.Event()
    workers: list[threading.Thread] = []

    def items() -> Iterator[Any]:
        yield first
        assert go_on.wait(DEADLINE)
        yield second

    def hang(gate: Gate) -> Any:
        workers.append(threading.current_thread())
        return gate(0)

    results = concurrent_map(hang, items(), workers=1, timeout=0.05, errors="return")
    with Threads() as threads:
        taking = threads.start(list, results)
        for gate in (first, second):
            gate.wait_for(0)
            wait_until(lambda gate=gate: results.stats().failed == (1 if gate is first else 2))
            gate.opened.set()
            # A thread leaves the list of `threading` a moment before it has ended.
            wait_until(lambda: not workers[-1].is_alive())
            go_on.set()
        assert [type(one.error) for one in taking.result()] == [TimeoutError] * 2


def test_more_abandoned_calls_than_workers_fail_the_map() -> None:
    released = threading.Event()
    try:
        with pytest.raises(
            RuntimeError, match=r"timeout: 3 calls still run after 0.02 s \(expected: at most workers, 2\)"
        ):
            mapped(lambda item: released.wait(DEADLINE), range(10), workers=2, timeout=0.02, errors="drop")
    finally:
        released.set()
    wait_until(lambda: threads_of_maps() == [])


@concurrently
def test_at_the_deadline_everything_that_is_not_done_fails(mapped: Way) -> None:
    def attempt(deadline: float) -> tuple[list[int], list[Any]]:
        released = threading.Event()
        called: dict[int, float] = {}  # when

        def slow(item: int) -> int:
            called[item] = time.monotonic()
            if item:
                released.wait(DEADLINE)
            return item

        async def aslow(item: int) -> int:
            called[item] = time.monotonic()
            if item:
                await asyncio.Event().wait()
            return item

        options: dict[str, Any] = {"workers": 2, "deadline": deadline, "errors": "return"}
        began = time.monotonic()
        try:
            results = mapped(aslow if mapped.is_async else slow, range(1_000), **options)
        finally:
            released.set()
        if called.get(2, math.inf) >= began + deadline:
            raise TooLate("item 2 was not called before the deadline")
        return list(called), results

    calls, results = in_time(attempt, 0.2, 2, 20)
    assert len(results) == 1_000
    assert results[0].result == 0
    assert all(isinstance(failure.error, DeadlineExceeded) for failure in results[1:])
    assert [failure.attempts for failure in results[1:4]] == [1, 1, 0]
    assert calls == [0, 1, 2]
    wait_until(lambda: threads_of_maps() == [])


@pytest.mark.parametrize("way", ["swallows", "raises another"])
@in_loops
def test_a_coroutine_that_takes_its_cancellation_otherwise_is_awaited_and_fails(mapped: Way, way: str) -> None:
    async def stubborn(item: int) -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if way == "raises another":
                raise ValueError("interrupted") from None
            await asyncio.sleep(0)
        return item

    (failure,) = mapped(stubborn, [1], timeout=0.05, errors="return")
    assert isinstance(failure.error, TimeoutError)
    assert type(failure.error.__cause__) is (ValueError if way == "raises another" else type(None))


# ---------------------------------------------------------------------------------------------------- the end
def test_a_map_in_a_dead_cycle_is_collected_whoever_holds_its_lock() -> None:
    results = concurrent_map(lambda item: item, range(100), workers=3)
    assert next(results) == 0
    runner = results._runner  # type: ignore[attr-defined]
    results.itself = results  # type: ignore[attr-defined]
    del results
    with runner._lock:
        gc.collect()  # its finalizer must not wait for the lock
    runner.settle()
    wait_until(lambda: threads_of_maps() == [])


def test_a_system_without_more_threads_fails_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_thread("manytail-worker-3", monkeypatch)
    with pytest.raises(RuntimeError, match="can't start new thread") as caught:
        mapped(lambda item: item, range(1_000), workers=8)
    assert caught.value.__notes__ == ["manytail: after 2 worker threads (workers=8)"]
    assert threads_of_maps() == []


@pytest.mark.parametrize(("name", "fn"), [("manytail-timer", str), ("manytail-loop", double)])
def test_a_thread_of_the_map_that_cannot_be_started_fails_it(
    name: str, fn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_thread(name, monkeypatch)
    results = concurrent_map(fn, iter(range(10)), timeout=DEADLINE)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        list(results)
    results.close()  # type: ignore[attr-defined]
    assert threads_of_maps() == []


@everywhere
def test_a_setup_that_raises_fails_the_map(mapped: Way) -> None:
    def setup() -> None:
        raise ConnectionError("no server")

    with pytest.raises(ConnectionError, match="no server"):
        mapped(lambda item, resource: item, range(10), setup=setup)


def test_an_on_that_waits_does_not_delay_the_timeouts_of_other_calls() -> None:
    both, go_on = threading.Barrier(2), threading.Event()

    def on(error: BaseException) -> bool:
        both.wait(DEADLINE)
        return False

    options = {"workers": 2, "timeout": 0.05, "retry": Retry(1, on), "errors": "return"}
    out = mapped(lambda item: go_on.wait(DEADLINE), [0, 1], **options)
    go_on.set()
    assert [type(failure.error) for failure in out] == [TimeoutError, TimeoutError]


@dataclass(frozen=True)
class FrozenError(Exception):
    item: int


@everywhere
def test_an_exception_that_refuses_attributes_is_raised_as_it_is(mapped: Way) -> None:
    def fn(item: int) -> None:
        raise FrozenError(item)

    with pytest.raises(FrozenError):
        mapped(fn, [1])


class ClosedLater:
    """A resource that calls `begin` when it is closed, and is closed some turns of the loop later."""

    def __init__(self, begin: Callable[[], object]) -> None:
        self._begin = begin
        self.closed = False

    async def aclose(self) -> None:
        self._begin()
        for _ in range(10):
            await asyncio.sleep(0)
        self.closed = True


async def fail(item: int, resource: object) -> None:
    raise LookupError(item)


def test_ending_a_map_does_not_cancel_the_end_of_its_resource() -> None:
    with Threads() as threads:
        resource = ClosedLater(lambda: threads.start(results.close))  # type: ignore[attr-defined]
        results = concurrent_map(fail, range(3), setup=lambda: resource)
        with suppress(LookupError):  # a map that is closed raises nothing
            list(results)
    assert resource.closed


@in_each_loop
async def test_cancelling_a_map_does_not_cancel_the_end_of_its_resource() -> None:
    resource = ClosedLater(lambda: task.cancel())
    task = asyncio.create_task(collect(aconcurrent_map(fail, range(3), setup=lambda: resource)))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert resource.closed


@pytest.mark.parametrize(
    ("platform", "term", "drawn"),
    [("linux", "xterm", True), ("linux", "dumb", False), ("linux", None, False), ("win32", None, True)],
)
def test_a_terminal_gets_a_line(platform: str, term: str | None, drawn: bool, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.delenv("TERM", raising=False) if term is None else monkeypatch.setenv("TERM", term)
    assert mapped(lambda item: item, range(3), progress=True) == [0, 1, 2]
    assert ("\r3 done, 0 failed, 0 in flight, " in capsys.readouterr().err) == drawn


def test_what_progress_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def show(seen: Any) -> None:
        raise ValueError("no screen")

    assert mapped(lambda item: item, range(3), progress=show) == [0, 1, 2]
    assert "progress: the function raised" in caplog.text


def test_a_plain_function_that_returns_a_coroutine_fails_its_item() -> None:
    (failure,) = mapped(lambda item: double(item), [1], errors="return")
    assert isinstance(failure.error, TypeError)
