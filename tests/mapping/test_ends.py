"""How maps end: stopped, interrupted, closed, dropped, their loop closed. Nothing of a map stays, and close() may be
interrupted and called again."""

import asyncio
import contextvars
import gc
import itertools
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.counts import LONG
from support.interrupted import At, each_point
from support.maps import (
    Way,
    asynchronous,
    collect,
    concurrently,
    endless,
    in_callers_loops,
    in_each_loop,
)
from support.process import run_script
from support.threads import DEADLINE, Threads, acting_when, ctrl_c, main_thread_sleeps, wait_until

from manytail import Budget, Delivery, Rate, Retry, Shared, aconcurrent_map, concurrent_map
from manytail.mapping import _runner, _threads, _workers

pytestmark = [
    pytest.mark.thread_unsafe(reason="counts the threads of the process, or is sent signals"),
    pytest.mark.usefixtures("no_thread_stays"),
]


def interrupt(call: Callable[[], Any]) -> None:
    """Call it, and interrupt it by Ctrl-C as soon as it sleeps."""
    called: list[bool] = []

    def noted() -> None:
        called.append(True)
        call()

    with acting_when(lambda: called and main_thread_sleeps(), ctrl_c), pytest.raises(KeyboardInterrupt):
        noted()


class Large:
    """A result whose life can be watched."""


class LargeInput(Large):
    def __iter__(self) -> "LargeInput":
        return self

    def __next__(self) -> int:
        raise AssertionError("a map that did not begin has read it")


def test_a_dropped_map_cancels_its_coroutines() -> None:
    endless_fn, begun, ended = endless()

    async def fn(item: int) -> None:
        if item:
            await endless_fn(item)

    results = concurrent_map(fn, range(4), workers=2)
    next(results)
    assert begun.wait(DEADLINE)
    del results
    gc.collect()
    assert ended.wait(DEADLINE)


def test_close_from_inside_fn_is_an_error() -> None:
    def fn(item: int) -> None:
        results.close()

    results = concurrent_map(fn, range(3), workers=1, errors="return")
    assert [str(failure.error).partition(":")[0] for failure in results] == ["close"] * 3

    async def fn_async(item: int) -> None:
        again.close()

    again = concurrent_map(fn_async, range(3), workers=1, errors="return")
    assert [type(failure.error) for failure in again] == [RuntimeError] * 3


def test_close_from_inside_fatal_is_an_error() -> None:
    def fatal(error: BaseException) -> bool:
        results.close()
        return False

    results = concurrent_map(lambda item: 1 // 0, range(3), errors="return", fatal=fatal)
    assert [str(failure.error).partition(":")[0] for failure in results] == ["close"] * 3


@pytest.mark.parametrize("remembers", [False, True])
def test_a_signal_handler_that_closes_the_map_under_its_locks_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, remembers: bool
) -> None:
    options: dict[str, Any] = {"remember": tmp_path / "run.db"} if remembers else {}
    results = concurrent_map(abs, itertools.count(), workers=2, **options)
    memory = results._runner.memory
    go_on = _runner.Runner.go_on

    def interrupted(runner: Any) -> None:
        go_on(runner)
        begun = memory is None or memory._thread is not None
        if threading.current_thread() is consumer and begun and not runner.stopping:
            assert runner.held_here()
            with memory._lock if memory is not None else nullcontext():
                results.close()  # as a handler would, here

    def consume() -> None:
        nonlocal consumer
        consumer = threading.current_thread()
        for _ in results:
            pass

    consumer: threading.Thread | None = None
    monkeypatch.setattr(_runner.Runner, "go_on", interrupted)
    with Threads() as threads:
        threads.start(consume).result()


def test_close_frees_what_nobody_took_and_an_input_that_nobody_read() -> None:
    def fn(item: int) -> Large:
        result = Large()
        made.append(weakref.ref(result))
        return result

    made: list[weakref.ref[Large]] = []
    results = concurrent_map(fn, range(4), workers=2)
    next(results)
    wait_until(lambda: len(made) == 4)
    results.close()
    values = [Large() for _ in range(100)]
    made += map(weakref.ref, values)
    some = concurrent_map(id, values, workers=1, max_in_flight=2)
    next(some)
    del values
    some.close()
    items = LargeInput()
    made.append(weakref.ref(items))
    unread = concurrent_map(abs, items)
    del items
    unread.close()
    gc.collect()
    assert [one() for one in made] == [None] * 105


def test_another_thread_meanwhile_in_next_gets_an_error_and_the_map_goes_on() -> None:
    begun, over = threading.Event(), threading.Event()

    def fn(item: int) -> int:
        begun.set()
        over.wait(DEADLINE)
        return item

    results = concurrent_map(fn, range(50), workers=2)
    with Threads() as threads:
        taking = threads.start(list, results)
        assert begun.wait(DEADLINE)  # so the other thread is in next, and waits there
        with pytest.raises(ValueError, match="another thread"):
            next(results)
        over.set()
        assert taking.result() == list(range(50))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_progress_callback_that_ends_the_program_ends_the_map(kind: type[BaseException]) -> None:
    def show(seen: Any) -> None:
        raise kind

    with pytest.raises(kind):
        list(concurrent_map(time.sleep, [0.01] * 10**6, progress=show))


def test_what_the_reader_dies_of_is_raised_even_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    results = concurrent_map(abs, iter(range(10)), workers=2)

    def fail(*arguments: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(_runner.Runner, "items_read", fail)
    monkeypatch.setattr(_runner.Runner, "report", fail)
    with pytest.raises(MemoryError):
        next(results)
    monkeypatch.undo()
    results.close()


def without_memory(call: Callable[..., Any], failures: Iterator[Any]) -> Callable[..., Any]:
    """The call. In a worker thread, or to start one, it raises MemoryError while there are `failures`."""

    def failing(*arguments: Any) -> Any:
        thread = next((it for it in arguments if isinstance(it, threading.Thread)), threading.current_thread())
        if thread.name.startswith("manytail-worker") and next(failures, None) is not None:
            raise MemoryError
        return call(*arguments)

    return failing


@pytest.mark.parametrize("timeout", [None, 60], ids=["untimed", "timed"])
@pytest.mark.parametrize("where", [(threading.Thread, "start"), (_workers, "ExitStack")], ids=["start", "setup"])
def test_a_worker_that_cannot_begin_without_memory_ends_the_map(
    monkeypatch: pytest.MonkeyPatch, where: tuple[Any, str], timeout: float | None
) -> None:
    results = concurrent_map(abs, iter(range(10)), workers=2, timeout=timeout)
    monkeypatch.setattr(*where, without_memory(getattr(*where), iter(range(3))))
    with pytest.raises(MemoryError):
        list(results)


@pytest.mark.parametrize("timeout", [None, 60], ids=["untimed", "timed"])
def test_a_worker_leaves_however_often_it_finds_no_memory(timeout: float | None) -> None:
    class Lock:
        def acquire(self) -> None:
            (failing if sys._getframe(1).f_code.co_name == "_leave" else lock.acquire)()

        def release(self) -> None:
            lock.release()

        def _is_owned(self) -> bool:
            return bool(lock._is_owned())

    results = concurrent_map(abs, iter(range(10)), workers=2, timeout=timeout)
    workers: Any = results._runner.workers
    lock, workers._lock = workers._lock, Lock()
    failing = without_memory(lock.acquire, iter(range(3)))
    assert list(results) == list(range(10))


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("step", ["_set_ident", "_set_native_id"])
def test_threads_that_threading_has_no_memory_to_set_up_do_their_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str, asynchronous: bool
) -> None:
    def set_up_or_fail(thread: threading.Thread) -> None:
        if thread.name.startswith("manytail-"):
            failed.append(thread)
            raise MemoryError
        set_up(thread)

    async def coroutine(item: int) -> int:
        return abs(item)

    def consume() -> list[int]:
        fn: Any = coroutine if asynchronous else abs
        shared = Shared(tmp_path / "run.db", "results")
        options: dict[str, Any] = {"timeout": 60, "progress": lambda seen: None, "remember": shared}
        with concurrent_map(fn, iter(range(10)), workers=2, **options) as results:
            return sorted(results)

    failed: list[threading.Thread] = []
    reports: list[Any] = []
    set_up = getattr(threading.Thread, step)
    monkeypatch.setattr(threading.Thread, step, set_up_or_fail)
    monkeypatch.setattr(threading, "_limbo", {})  # lists them for ever
    monkeypatch.setattr(sys, "unraisablehook", reports.append)
    with Threads() as threads:
        assert threads.start(consume).result() == list(range(10))
    names = {thread.name.removesuffix("-1").removesuffix("-2") for thread in failed}
    assert {"manytail-reader", "manytail-timer", "manytail-progress"} < names
    assert names & {"manytail-worker", "manytail-loop"}
    wait_until(lambda: len(reports) == len(failed), "the end of each")


# ---------------------------------------------------------------------------------------------------- contexts, inputs
var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="unset")


@pytest.mark.parametrize("kind", [list, iter], ids=["list", "iterator"])
@concurrently
def test_all_functions_see_the_context_in_which_the_map_was_made(mapped: Way, kind: Callable[[Any], Any]) -> None:
    """It is consumed in another one."""
    seen: dict[str, str] = {}

    def note(name: str, result: Any) -> Callable[..., Any]:
        def function(*arguments: Any) -> Any:
            seen[name] = var.get()
            return result

        return function

    def fn(item: int, resource: Any, delivery: Delivery) -> int:
        seen["fn"] = var.get()
        assert delivery.idempotency_key
        if delivery.attempt == 1:
            raise ValueError
        return item

    def items() -> Iterator[int]:
        seen["input"] = var.get()
        yield from range(4)

    async def items_of_a_loop() -> AsyncIterator[int]:
        for item in items():
            yield item

    source: Any = list(range(4)) if kind is list else items() if mapped.run is None else items_of_a_loop()
    token = var.set("mine")
    results: Any = (concurrent_map if mapped.run is None else aconcurrent_map)(
        asynchronous(fn) if mapped.is_async else fn, source,
        workers=2, key=note("key", 0), priority=note("priority", 0), item_id=note("item_id", 0),
        limits=Budget(100, cost=note("cost", 1)), fatal=note("fatal", False),
        setup=note("setup", None), retry=Retry(1, note("on", True), backoff=note("backoff", 0)),
    )  # fmt: skip
    var.reset(token)
    assert (list(results) if mapped.run is None else mapped.run(collect(results))) == list(range(4))
    names = {"fn", "key", "priority", "item_id", "cost", "fatal", "setup", "on", "backoff"}
    assert seen == dict.fromkeys(names if kind is list else names | {"input"}, "mine")


class Unsized:
    """Its len() must not be asked: it may load everything."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))

    def __len__(self) -> int:
        raise TypeError("not asked")


def test_the_length_of_the_input_is_not_asked() -> None:
    assert list(concurrent_map(abs, Unsized())) == [0, 1, 2]
    assert list(concurrent_map(abs, Unsized(), progress=True)) == [0, 1, 2]
    results = concurrent_map(abs, range(10**20), progress=True)
    assert next(results) == 0
    results.close()


# ------------------------------------------------------------------------------------------------ in the caller's loop
Run = Callable[[Any], Any]  # runs a coroutine in a loop


def collected(*arguments: Any, **options: Any) -> Any:
    return collect(aconcurrent_map(*arguments, **options))


@in_callers_loops
def test_fn_and_setup_run_under_no_lock_in_any_loop(run: Run) -> None:
    """An eager task begins at once, where it is made."""
    held: list[bool] = []

    def noting() -> None:
        runners = [one for one in gc.get_objects() if isinstance(one, _runner.Runner)]
        held.append(any(one._lock.locked() for one in runners))

    async def fn(item: int, resource: Any) -> int:
        noting()
        return item

    async def setup() -> object:
        noting()
        return object()

    assert run(collected(fn, range(5), workers=2, setup=setup)) == list(range(5))
    assert held == [False] * 6


@in_each_loop
async def test_aclose_frees_what_nobody_took_and_an_input_that_nobody_read() -> None:
    async def fn(item: int) -> Large:
        result = Large()
        made.append(weakref.ref(result))
        return result

    made: list[weakref.ref[Large]] = []
    results = aconcurrent_map(fn, range(4), workers=2)
    await anext(results)
    while len(made) < 4:
        await asyncio.sleep(0)
    await results.aclose()
    items = LargeInput()
    made.append(weakref.ref(items))
    unread = aconcurrent_map(fn, items)
    del items
    await unread.aclose()
    gc.collect()
    assert [one() for one in made] == [None] * 5


@in_callers_loops
def test_few_items_start_few_coroutines(run: Run) -> None:
    async def main() -> int:
        most = 0

        async def fn(item: int) -> None:
            nonlocal most
            most = max(most, len(asyncio.all_tasks()))

        await collected(fn, range(10), workers=100_000)
        return most

    assert run(main()) <= 14


def test_a_handler_that_interrupts_the_join_of_a_thread_anywhere_may_join_it_too() -> None:
    for handler in each_point((threading.__file__, _threads.__file__), least=5):
        thread = _threads.Thread(list, "joined twice")
        handler.act = thread.join

        def join(thread: _threads.Thread = thread, handler: At = handler) -> None:
            thread.start()
            with handler:
                thread.join()

        with Threads() as threads:
            threads.start(join).result()


@pytest.mark.parametrize("recorded", [False, True])
def test_a_handler_that_interrupts_close_anywhere_may_close_too(recorded: bool, tmp_path: Path) -> None:
    """Whatever lock the interrupted close holds, threads of the map that need it end."""
    mapping = [str(path) for path in Path(_runner.__file__).parent.iterdir()]

    def close_twice(handler: At, path: Path) -> None:
        """The second close is called at that point of the first."""
        begun, proceed = threading.Semaphore(0), threading.Event()

        def fn(item: int) -> None:
            begun.release()
            proceed.wait(0.01)

        def close() -> None:
            proceed.set()
            results.close()

        store = Shared(path, "a")
        options = {"remember": store, "limits": Rate(1e6, shared=store, name="a")} if recorded else {}
        results: Any = concurrent_map(fn, range(9), workers=2, **options)
        next(results)
        assert all(begun.acquire(timeout=DEADLINE) for _ in range(3))
        handler.act = close
        with handler:
            results.close()

    for handler in each_point(mapping, least=30, step=1 if LONG else 5):
        with Threads() as threads:
            threads.start(close_twice, handler, tmp_path / f"{handler.left}.db").result()


def test_the_exception_group_of_an_async_setup_is_raised_whole() -> None:
    def setup() -> None:
        raise ExceptionGroup("both", [ValueError(1), TypeError(2)])

    async def fn(item: int, resource: Any) -> None:
        raise AssertionError

    with pytest.raises(ExceptionGroup, match="both"):
        list(concurrent_map(fn, range(3), setup=setup))
    with pytest.raises(ExceptionGroup, match="both"):
        asyncio.run(collected(fn, range(3), setup=setup))


def test_a_loop_that_is_closed_in_mid_flight_leaves_no_noise() -> None:
    run_script("""
import asyncio, gc, sys
from manytail import aconcurrent_map

noise = []
sys.unraisablehook = noise.append

async def main():
    async def fn(item):
        await asyncio.sleep(1000)
    kept.append(aconcurrent_map(fn, range(10), workers=3, timeout=500))
    asyncio.get_running_loop().create_task(anext(kept[0]))
    for _ in range(20):
        await asyncio.sleep(0)

kept = []
loop = asyncio.new_event_loop()
loop.set_exception_handler(lambda *_: None)  # "Task was destroyed but it is pending!"
loop.run_until_complete(main())
loop.close()
kept.clear()
del loop
gc.collect()
assert not noise, noise
""")


@in_each_loop
async def test_a_cancellation_of_aclose_is_raised_when_all_calls_have_ended() -> None:
    begun, seen, proceed, ended = (asyncio.Event() for _ in range(4))

    async def fn(item: int) -> int:
        if item:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                seen.set()
                await proceed.wait()
                ended.set()
        return item

    results = aconcurrent_map(fn, [0, 1], workers=2)
    assert await anext(results) == 0
    await begun.wait()
    closing = asyncio.create_task(results.aclose())
    await seen.wait()
    closing.cancel()
    await asyncio.sleep(0)
    proceed.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert ended.is_set()
