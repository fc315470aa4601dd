"""Caller: items that come one by one, from many threads."""

import contextvars
import functools
import gc
import inspect
import itertools
import logging
import random
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.counts import LONG, part
from support.event_loops import ASYNCIO
from support.interrupted import each_point
from support.maps import Gate, asynchronous, threads_of_maps
from support.process import run_script
from support.threads import (
    DEADLINE,
    Task,
    Threads,
    TooLate,
    acting_when,
    ctrl_c,
    in_time,
    main_thread_sleeps,
    run_all,
    wait_until,
)
from support.threads import (
    LONG as LONG_WAIT,
)

from manytail import (
    AsyncCaller,
    Batch,
    Breaker,
    Budget,
    BudgetExceeded,
    Caller,
    Concurrency,
    Delivery,
    Rate,
    Retry,
    Shared,
)
from manytail.mapping import _admission, _calls, _threads
from manytail.mapping._calls import FutureCall, WaitedCall
from manytail.mapping._item import Item
from manytail.mapping._options import Options
from manytail.mapping._scheduler import Scheduler

pytestmark = [
    pytest.mark.thread_unsafe(reason="counts the threads of the process, or is sent signals"),
    pytest.mark.usefixtures("no_thread_stays"),
]


MAPPING = [str(path) for path in Path(_admission.__file__).parent.iterdir()]


def double(item: int) -> int:
    return 2 * item


ways = pytest.mark.parametrize("way", [lambda fn: fn, asynchronous], ids=["threads", "loop"])


# ---------------------------------------------------------------------------------------------------- results, errors
@ways
def test_many_threads_get_their_own_results(way: Any) -> None:
    with Caller(way(double), workers=4) as caller:

        def calls(first: int) -> list[int]:
            return [caller(first + number) for number in range(50)]

        done = run_all(*[functools.partial(calls, 100 * number) for number in range(8)])
        assert done == [[2 * (100 * number + one) for one in range(50)] for number in range(8)]
        assert [future.result() for future in [caller.submit(number) for number in range(20)]] == list(range(0, 40, 2))
        stats = caller.stats()
    assert (stats.done, stats.failed, stats.in_flight, stats.workers) == (420, 0, 0, 4)


@ways
def test_what_fn_raises_is_raised_with_the_note_of_maps(way: Any) -> None:
    def fail(item: str) -> None:
        raise KeyError(item)

    with Caller(way(fail), key=str.upper, retry=Retry(2, backoff=0)) as caller:
        for ask in (lambda: caller("a"), lambda: caller.submit("a").result()):
            with pytest.raises(KeyError) as raised:
                ask()
            assert raised.value.__notes__ == ["manytail: 'a': the item with key 'A' failed after 3 attempts"]
        assert caller.stats().failed == 2


def test_fn_and_the_functions_of_an_item_run_in_the_context_of_the_caller() -> None:
    variable = contextvars.ContextVar("variable", default="none")
    seen: list[str] = []

    def key(item: int) -> int:
        seen.append(variable.get())
        return item

    variable.set("made")
    with Caller(lambda item: variable.get(), key=key) as caller:
        variable.set("called")
        assert caller(1) == caller.submit(1).result() == "made"
    assert seen == ["made", "made"]


def test_no_thread_starts_before_the_first_call_nor_more_than_items_are_in_flight() -> None:
    with Caller(double, workers=16):
        assert threads_of_maps() == []
    with Caller(double, workers=16) as caller:
        for number in range(50):
            caller(number)
        assert len(threads_of_maps()) == 1


# ---------------------------------------------------------------------------------------------------- what starts when
def test_as_many_calls_run_at_once_as_there_are_workers() -> None:
    """Calls that go past the scheduler, from threads that begin together."""
    for _ in range(part(100)):
        barrier = threading.Barrier(4)

        def meet(item: int, barrier: threading.Barrier = barrier) -> int:
            barrier.wait(DEADLINE)
            return item

        with Caller(meet, workers=4) as caller, Threads() as threads:
            calls = [threads.start(caller, number) for number in range(8)]
            assert [one.result() for one in calls] == [*range(8)]
            assert len(threads_of_maps()) == 4


@pytest.mark.parametrize("cancel", [True, False])
def test_threads_that_call_while_another_closes_get_a_result_or_are_told(cancel: bool) -> None:
    def call_until_the_end(caller: Caller[int, int], begun: threading.Event) -> int:
        for number in itertools.count():
            try:
                assert caller(number) == 2 * number
            except (RuntimeError, CancelledError):
                return number
            begun.set()
        raise AssertionError

    for _ in range(part(200)):
        caller, begun = Caller(double, workers=2), threading.Event()
        with Threads() as threads:
            calls = [threads.start(call_until_the_end, caller, begun) for _ in range(3)]
            assert begun.wait(DEADLINE)
            caller.close(cancel=cancel)
            done = sum(one.result() for one in calls)
        runner = caller._begun()
        assert (runner.open, runner.direct) == (set(), set())
        assert done <= caller.stats().done <= done + 3


@pytest.mark.parametrize("options", [{}, {"limits": Rate(1e9)}, {"key": str}], ids=["plain", "gate", "key"])
def test_handing_in_waits_while_the_window_is_full(options: Any) -> None:
    gate = Gate()
    with Caller(gate, workers=2, max_in_flight=2, **options) as caller, Threads() as threads:
        first = [caller.submit(number) for number in range(2)]
        gate.wait_for(0, 1)
        waiting = [threads.start(caller.submit, number) for number in (2, 3)] + [threads.start(caller, 4)]
        wait_until(lambda: caller._runner is not None and len(caller._runner._handed) == 3)
        assert caller.stats().in_flight == 2
        gate.opened.set()
        assert [task.result().result() for task in waiting[:2]] == [2, 3]
        assert waiting[2].result() == 4
        assert [future.result() for future in first] == [0, 1]


def test_no_wake_up_of_a_full_window_is_lost() -> None:
    """Each thread waits for the window again and again, and is only served if the one before it was."""
    with Caller(double, workers=2, max_in_flight=2) as caller:

        def submits(first: int) -> int:
            return sum(caller.submit(first + number).result() for number in range(100))

        assert run_all(*[functools.partial(submits, 0) for _ in range(12)]) == [9_900] * 12
        assert caller.stats().in_flight == 0


def test_items_of_many_threads_share_a_batch() -> None:
    batches: list[list[int]] = []

    def fn(items: list[int]) -> list[int]:
        batches.append(items)
        return [2 * item for item in items]

    with Caller(fn, batch=Batch(8, linger=10 * DEADLINE)) as caller:
        assert run_all(*[functools.partial(caller, number) for number in range(8)]) == list(range(0, 16, 2))
        assert [sorted(items) for items in batches] == [list(range(8))]
        lingers = caller.submit(9)
    assert lingers.result() == 18  # the end of the block let no batch linger
    assert batches[1:] == [[9]]


def test_calls_of_a_key_never_overlap_whoever_hands_them_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where lanes of keys that are idle are dropped all the time."""
    monkeypatch.setattr(_admission, "IDLE_LIMIT", 2)
    running: Counter[int] = Counter()

    def fn(item: tuple[int, int]) -> int:
        running[item[0]] += 1
        try:
            assert running[item[0]] == 1
            return item[1]
        finally:
            running[item[0]] -= 1

    with Caller(fn, workers=8, key=lambda item: item[0], per_key=1) as caller:

        def calls(seed: int) -> None:
            chance = random.Random(seed)
            for number in range(200):
                assert caller((chance.randrange(12), number)) == number

        run_all(*[functools.partial(calls, seed) for seed in range(8)])
        lanes = caller._runner.scheduler.admission._all_lanes()  # type: ignore[union-attr]
        assert len({lane.key for lane in lanes}) == len(lanes) <= 12


def test_two_threads_that_bring_a_new_key_at_once_share_its_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    barrier, made = threading.Barrier(2), _admission.SharedAdmission._new_lane

    def together(*arguments: Any) -> Any:
        lane = made(*arguments)
        barrier.wait(DEADLINE)
        return lane

    monkeypatch.setattr(_admission.SharedAdmission, "_new_lane", together)
    with Caller(double, key=lambda item: "one") as caller:
        assert run_all(functools.partial(caller, 1), functools.partial(caller, 2)) == [2, 4]
        lanes = caller._runner.scheduler.admission._all_lanes()  # type: ignore[union-attr]
        assert [lane.assigned for lane in lanes] == [2]


def test_lanes_of_idle_keys_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_admission, "IDLE_LIMIT", 2)
    with Caller(double, key=str) as caller:
        for number in range(50):
            caller(number)
        assert len(caller._runner.scheduler.admission._all_lanes()) <= 3  # type: ignore[union-attr]


def test_keys_are_compared_without_a_lock() -> None:
    """One key's `__eq__` waits for a call that another thread makes meanwhile."""
    compared, served = threading.Event(), threading.Event()

    class Key:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            if threading.current_thread().name == "compares":
                compared.set()
                assert served.wait(DEADLINE)
            return self is other

    keys = [Key(), Key(), Key()]
    with Caller(double, key=keys.__getitem__) as caller, Threads() as threads:
        caller(0)

        def compares() -> int:
            threading.current_thread().name = "compares"
            return caller(1)

        task = threads.start(compares)
        assert compared.wait(DEADLINE)
        assert caller(0) == 0
        assert caller(2) == 4
        served.set()
        assert task.result() == 2


# ---------------------------------------------------------------------------------------------------- options of maps
def test_equal_items_share_one_call() -> None:
    gate = Gate()
    with Caller(gate, workers=4, dedup=10) as caller, Threads() as threads:
        tasks = [threads.start(caller, "a") for _ in range(6)]
        gate.wait_for("a")
        wait_until(lambda: caller.stats().in_flight == 6)
        gate.opened.set()
        assert {task.result() for task in tasks} == {"a"}
        assert gate.begun == ["a"]
        assert caller.stats().remembered == 5


def test_a_cancelled_leader_passes_to_its_next_follower() -> None:
    gate = Gate()
    with Caller(gate, workers=1, dedup=10) as caller:
        caller.submit("first")
        gate.wait_for("first")
        futures = [caller.submit("a") for _ in range(4)]
        assert futures[0].cancel()
        assert futures[1].cancel()
        gate.opened.set()
        assert [futures[2].result(), futures[3].result()] == ["a", "a"]
    assert gate.begun == ["first", "a"]
    assert [future.cancelled() for future in futures] == [True, True, False, False]


def test_results_are_remembered(tmp_path: Path) -> None:
    called: list[int] = []

    def fn(item: int) -> int:
        called.append(item)
        return 2 * item

    shared = Shared(tmp_path / "calls.db", "double")
    for _ in range(2):
        with Caller(fn, remember=shared, max_in_flight=16) as caller:
            assert run_all(*[functools.partial(caller, number) for number in range(20)]) == list(range(0, 40, 2))
    assert sorted(called) == list(range(20))
    assert caller.stats().remembered == 20
    names: list[str] = []
    with Caller(fn, remember=shared) as caller:
        for number in range(20):
            caller.submit(number).add_done_callback(lambda _: names.append(threading.current_thread().name))
    assert len(names) == 20
    assert set(names) <= {"manytail-callbacks", "MainThread"}  # not the database's, on which other items depend


def test_leaving_the_block_waits_for_callbacks_that_the_database_thread_hands_over_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so after the last call has ended, which is what leaving the block waits for first."""
    registered, handed, waited, again = (threading.Event() for _ in range(4))
    join, add, looked_up = _calls._Callbacks.join, _calls._Callbacks.add, _calls.Runner.looked_up

    def found(runner: Any, items: Any) -> None:
        assert registered.wait(LONG_WAIT)
        looked_up(runner, items)

    def joined(callbacks: Any) -> None:
        if waited.is_set():
            again.set()
        join(callbacks)
        waited.set()  # not before: the first join would wait for the callback, which waits for the second one

    def added(callbacks: Any, futures: Any) -> None:
        if threading.current_thread().name == "manytail-shared":
            handed.set()
            assert waited.wait(LONG_WAIT)
        add(callbacks, futures)

    shared = Shared(tmp_path / "calls.db", "double")
    with Caller(double, remember=shared) as caller:
        assert caller(1) == 2
    monkeypatch.setattr(_calls._Callbacks, "join", joined)
    monkeypatch.setattr(_calls._Callbacks, "add", added)
    monkeypatch.setattr(_calls.Runner, "looked_up", found)
    left, seen = False, []
    with Caller(double, remember=shared) as caller:
        caller.submit(1).add_done_callback(lambda _: (again.wait(LONG_WAIT), seen.append(left)))
        registered.set()
        assert handed.wait(LONG_WAIT)
    left = bool(again.set() or True)
    wait_until(lambda: seen)
    assert seen == [False]


def test_nothing_is_settled_under_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the Caller is stopped while a thread handles the last result, and no worker runs."""
    shared = Shared(tmp_path / "calls.db", "double")
    with Caller(double, remember=shared) as caller:
        assert caller(1) == 2
    caller = Caller(double, remember=shared)
    runner, held = caller._begun(), []
    took, settle = runner.scheduler.took, _calls.FutureCall._set

    def taken(number: int) -> None:
        took(number)
        run_all(runner.stop)

    def settled(call: _calls.FutureCall) -> None:
        held.append(runner.held_here())
        settle(call)

    monkeypatch.setattr(runner.scheduler, "took", taken)
    monkeypatch.setattr(_calls.FutureCall, "_set", settled)
    assert caller.submit(1).result(DEADLINE) == 2
    caller.close()
    assert held == [False]


# ---------------------------------------------------------------------------------------------------- cancelled items
@pytest.mark.parametrize("options", [{}, {"limits": Rate(1e9)}], ids=["plain", "gate"])
def test_a_cancelled_item_is_skipped_at_its_turn(options: Any) -> None:
    gate = Gate()
    with Caller(gate, workers=1, **options) as caller:
        futures = [caller.submit(number) for number in range(4)]
        gate.wait_for(0)
        assert [future.cancel() for future in futures] == [False, True, True, True]
        gate.opened.set()
    assert gate.begun == [0]
    assert caller.stats().in_flight == 0


def test_a_batch_goes_without_cancelled_items() -> None:
    calls: list[list[int]] = []

    def fn(items: list[int]) -> list[int]:
        calls.append(items)
        return items

    with Caller(fn, batch=Batch(3, linger=10 * DEADLINE)) as caller:
        futures = [caller.submit(number) for number in range(2)]
        futures[0].cancel()
        assert caller(2) == 2
        assert futures[1].result() == 1
        gone = [caller.submit(number) for number in range(3, 5)]
        for future in gone:
            future.cancel()
    assert calls == [[1, 2]]


def test_an_item_that_is_to_be_called_again_has_started() -> None:
    failed = threading.Event()

    def fn(item: int, delivery: Delivery) -> int:
        if delivery.attempt == 1:
            failed.set()
            raise ValueError
        return item

    with Caller(fn, retry=Retry(1, backoff=0.01)) as caller:
        future = caller.submit(1)
        assert failed.wait(DEADLINE)
        assert not future.cancel()
        assert future.result() == 1


@pytest.mark.parametrize("runs", [False, True], ids=["waits", "runs"])
def test_an_interrupted_call_cancels_its_item_unless_that_runs(runs: bool) -> None:
    gate = Gate()
    with Caller(gate, workers=1) as caller, Threads() as threads:
        other = None if runs else threads.start(caller, "other")
        if not runs:
            gate.wait_for("other")
        with (
            acting_when(lambda: (gate.begun or not runs) and main_thread_sleeps(), ctrl_c),
            pytest.raises(KeyboardInterrupt),
        ):
            caller("interrupted")
        gate.opened.set()
        assert other is None or other.result() == "other"
        assert caller("next") == "next"
    assert gate.begun == (["interrupted", "next"] if runs else ["other", "next"])


def test_an_interrupted_wait_for_the_window_cancels_its_item() -> None:
    gate = Gate()
    with Caller(gate, workers=1, max_in_flight=1) as caller:
        first = caller.submit("first")
        gate.wait_for("first")
        with acting_when(main_thread_sleeps, ctrl_c), pytest.raises(KeyboardInterrupt):
            caller.submit("interrupted")
        gate.opened.set()
        assert first.result() == "first"
        assert caller("next") == "next"
    assert gate.begun == ["first", "next"]


# ---------------------------------------------------------------------------------------------------- callbacks
def test_a_callback_that_waits_holds_up_no_other_result() -> None:
    """All three end in one call: the callback of the first waits for the others."""

    def fn(items: list[int]) -> list[int]:
        return items

    seen: list[Any] = []
    over = threading.Event()
    with Caller(fn, batch=Batch(3, linger=10 * DEADLINE), workers=1) as caller:
        futures = [caller.submit(number) for number in range(2)]

        def waits(future: Future[int]) -> None:
            seen.append((futures[1].result(DEADLINE), threading.current_thread().name))
            over.set()

        futures[0].add_done_callback(waits)
        futures.append(caller.submit(2))
        assert over.wait(DEADLINE)
    assert [value for value, _ in seen] == [1]


def test_callbacks_run_in_a_worker_or_in_a_thread_for_them_and_never_in_one_that_hands_in() -> None:
    gate = Gate()
    names: list[str] = []

    def note(future: Future[Any]) -> None:
        names.append(threading.current_thread().name.rstrip("0123456789"))

    with Caller(gate, workers=2) as caller:
        caller.submit(0).add_done_callback(note)
        gate.opened.set()
        wait_until(lambda: names == ["manytail-worker-"])  # this thread, in `close`, would have another one run it
    with Caller(asynchronous(double)) as caller:  # its loop runs all calls
        futures = [caller.submit(number) for number in range(10)]
        for future in futures:
            future.add_done_callback(note)
        wait(futures)
    assert set(names[1:]) <= {"manytail-callbacks", "MainThread"}  # the latter: it was done already
    names.clear()
    gate = Gate()
    with Caller(gate, workers=1) as caller:
        caller.submit(1)
        waiting = caller.submit(2)
        waiting.add_done_callback(note)
        gate.wait_for(1)
        with Threads() as threads:
            closing = threads.start(caller.close, cancel=True)
            wait_until(waiting.done)
            gate.opened.set()
            closing.result()
    assert names == ["manytail-callbacks"]


def test_what_a_callback_raises_is_logged_and_its_worker_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()

    def stops(future: Future[Any]) -> None:
        raise SystemExit("raised by a callback")

    with caplog.at_level(logging.ERROR), Caller(gate, workers=1) as caller:
        caller.submit(1).add_done_callback(stops)
        gate.opened.set()
        assert caller(2) == 2
    assert "raised by a callback" in caplog.text


def test_callbacks_run_though_the_start_of_their_thread_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(start: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    ran = threading.Event()
    gate = Gate()
    caller = Caller(gate, workers=1)
    caller.submit(0)
    gate.wait_for(0)
    caller.submit(1).add_done_callback(lambda future: ran.set())
    monkeypatch.setattr(_threads, "start_thread", interrupted)
    runner: Any = caller._runner
    with pytest.raises(KeyboardInterrupt):
        runner.stop()
    assert not ran.is_set()
    gate.opened.set()
    caller.close()
    assert ran.is_set()


def test_ctrl_c_in_a_callback_that_cancel_runs_is_raised_there() -> None:
    def interrupt(future: Future[Any]) -> None:
        raise KeyboardInterrupt

    gate = Gate()
    with Caller(gate, workers=1) as caller:
        caller.submit(0)
        waiting = caller.submit(1)
        waiting.add_done_callback(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                waiting.cancel()
        finally:
            gate.opened.set()
        assert waiting.cancelled()


# ---------------------------------------------------------------------------------------------------- calls inside fn
ONE: dict[str, Any] = {"workers": 4, "key": lambda item: "one", "per_key": 1}
# How many calls are inside one another, whether that works, and the options. A limit is made for each run.
NESTED: dict[str, tuple[int, bool, dict[str, Any]]] = {
    "one worker": (0, True, {"workers": 1}),
    "one worker, two calls": (1, False, {"workers": 1}),
    "four workers": (3, True, {"workers": 4}),
    "four workers, five calls": (4, False, {"workers": 4}),
    "one in flight": (1, False, {"workers": 1, "max_in_flight": 1}),
    "two in flight": (1, True, {"workers": 2, "max_in_flight": 2}),
    "per_key": (1, False, ONE),
    "batch": (1, False, {**ONE, "batch": Batch(2, linger=0.001)}),
    "dedup": (1, False, {"workers": 4, "item_id": lambda item: "one", "dedup": 1}),
    "concurrency": (1, False, {"limits": lambda: Concurrency(1)}),
    "budget": (1, False, {"limits": lambda: Budget(2, cost=lambda item: 2 - item)}),
    "others": (2, True, {"workers": 3, "key": str, "per_key": 1, "dedup": 5, "limits": lambda: Concurrency(3)}),
}


def nested_in_threads(depth: int, options: dict[str, Any]) -> None:
    def one(item: int) -> int:
        return item if item == depth else caller(item + 1)

    fn: Any = (lambda items: [one(item) for item in items]) if "batch" in options else one
    with Caller(fn, **options) as caller:
        try:
            assert caller(0) == depth
        finally:
            with suppress(BudgetExceeded):
                assert caller(depth) == depth
            wait_until(lambda: not caller._runner._awaited)  # type: ignore[union-attr]


def nested_in_loop(run: Callable[[Any], Any], depth: int, options: dict[str, Any]) -> None:
    async def main() -> None:
        async def one(item: int) -> int:
            return item if item == depth else await caller(item + 1)

        async def many(items: list[int]) -> list[int]:
            return [await one(item) for item in items]

        fn: Any = many if "batch" in options else one
        async with AsyncCaller(fn, **options) as caller:
            try:
                assert await caller(0) == depth
            finally:
                with suppress(BudgetExceeded):
                    assert await caller(depth) == depth

    run(main())


@pytest.mark.parametrize(("depth", "works", "options"), NESTED.values(), ids=NESTED)
@pytest.mark.parametrize("nested", [nested_in_threads, *[partial(nested_in_loop, run) for run in ASYNCIO.values()]])
def test_a_call_inside_fn_is_refused_that_would_wait_for_itself(
    nested: Any, depth: int, works: bool, options: dict[str, Any]
) -> None:
    options = {name: value() if name == "limits" else value for name, value in options.items()}
    with nullcontext() if works else pytest.raises(RuntimeError, match="would wait for itself"):
        nested(depth, options)


def test_a_call_that_was_abandoned_holds_no_worker() -> None:
    """It waits in a call of its own, and has run out of time: its worker was replaced."""

    def attempt(seconds: float) -> None:
        over = threading.Event()

        def fn(item: int) -> int:
            if item == 0:
                with suppress(CancelledError, TimeoutError):
                    caller(1)
                return 0
            if item == 1:
                assert over.wait(DEADLINE)
                return 1
            return caller(3) if item == 2 else item

        with Caller(fn, workers=2, timeout=seconds) as caller:
            with pytest.raises(TimeoutError):
                caller(0)
            try:
                assert caller(2) == 3
            except TimeoutError as error:
                raise TooLate from error
            finally:
                over.set()

    in_time(attempt, 0.05, 1.0, 10.0)


def test_a_call_inside_an_async_fn_is_refused_because_it_blocks_the_loop() -> None:
    async def fn(item: int) -> int:
        return item or caller(1)

    with Caller(fn, workers=4) as caller, pytest.raises(RuntimeError, match="blocks the loop"):
        caller(0)


@ways
def test_submit_inside_fn_waits_for_no_window(way: Any) -> None:
    def fn(item: int) -> Any:
        return [caller.submit(number) for number in range(1, 5)] if item == 0 else item

    with Caller(way(fn), workers=1, max_in_flight=1) as caller:
        assert [future.result() for future in caller(0)] == [1, 2, 3, 4]


@ways
def test_close_inside_fn_is_refused(way: Any) -> None:
    fn = way(lambda item: caller.close())
    with Caller(fn, workers=1) as caller, pytest.raises(RuntimeError, match="close: called by fn"):
        caller(0)


# ---------------------------------------------------------------------------------------------------- the end
@ways
def test_leaving_the_block_waits_for_all_items_and_then_none_is_taken(way: Any) -> None:
    gate = Gate()
    with Threads() as threads:
        with Caller(way(gate), workers=1) as caller:
            futures = [caller.submit(number) for number in range(5)]
            threads.start(gate.opened.set)
        assert all(future.done() for future in futures)
        for ask in (caller, caller.submit):
            with pytest.raises(RuntimeError, match="the Caller is closed"):
                ask(1)
        caller.close()


def test_a_thread_that_waits_for_the_window_at_the_close_is_served() -> None:
    gate = Gate()
    caller = Caller(gate, workers=1, max_in_flight=1)
    with Threads() as threads:
        caller.submit(0)
        waiting = threads.start(caller, 1)
        wait_until(lambda: caller._runner is not None and len(caller._runner._handed) == 1)
        closing = threads.start(caller.close)
        wait_until(lambda: caller._runner._ending)  # type: ignore[union-attr]
        with pytest.raises(RuntimeError, match="the Caller is closed"):
            caller(2)
        gate.opened.set()
        assert waiting.result() == 1
        closing.result()


@pytest.mark.parametrize("by", ["close", "exception"])
@ways
def test_what_has_not_started_is_cancelled(way: Any, by: str) -> None:
    gate = Gate()
    caller = Caller(way(gate), workers=1, max_in_flight=3)
    futures = [caller.submit(number) for number in range(3)]
    with Threads() as threads:
        gate.wait_for(0)
        waiting = threads.start(caller, 3), threads.start(caller.submit, 4)
        wait_until(lambda: len(caller._runner._handed) == 2)  # type: ignore[union-attr]

        def leave() -> None:
            if by == "close":
                caller.close(cancel=True)
            else:
                with pytest.raises(ZeroDivisionError), caller:
                    1 / 0  # noqa: B018

        closing = threads.start(leave)
        assert isinstance(waiting[0].outcome(), CancelledError)
        wait([waiting[1].result(), *futures[1:]])
        assert waiting[1].result().cancelled()
        assert [future.cancelled() for future in futures] == [False, True, True]
        gate.opened.set()
        closing.result()
    assert futures[0].result() == 0
    assert gate.begun == [0]


@pytest.mark.parametrize("options", [{}, {"limits": Rate(1e9)}], ids=["plain", "gate"])
@pytest.mark.parametrize("hand_in", [Caller.__call__, Caller.submit], ids=["waited", "future"])
def test_what_a_worker_has_taken_and_not_begun_is_cancelled_and_not_called(hand_in: Any, options: Any) -> None:
    called: list[int] = []
    taken, proceed = threading.Event(), threading.Event()
    caller = Caller(called.append, workers=1, **options)
    with Threads() as threads:
        runner: Any = caller._begun()
        skip_late = runner.skip_late

        def skip_later(item: Item) -> bool:
            taken.set()
            assert proceed.wait(DEADLINE)
            return bool(skip_late(item))

        runner.skip_late = skip_later
        handing_in = threads.start(hand_in, caller, 1)
        assert taken.wait(DEADLINE)
        closing = threads.start(caller.close, cancel=True)
        if hand_in is Caller.submit:
            wait([handing_in.result()], DEADLINE)
            assert handing_in.result().cancelled()
        else:
            assert isinstance(handing_in.outcome(), CancelledError)
        proceed.set()
        closing.result()
    assert called == []


def test_an_item_that_waits_for_its_next_attempt_is_not_called_again_at_a_cancelling_close() -> None:
    called = []

    def fn(item: int) -> None:
        called.append(item)
        raise ValueError

    with Caller(fn, retry=Retry(3, backoff=10 * DEADLINE, max_backoff=10 * DEADLINE)) as caller, Threads() as threads:
        future, waiting = caller.submit(1), threads.start(caller, 2)
        wait_until(lambda: caller.stats().retried == 2)
        caller.close(cancel=True)
        assert type(waiting.outcome()) is CancelledError
    with pytest.raises(CancelledError):
        future.result(0)
    assert sorted(called) == [1, 2]


def test_a_call_that_finds_the_queue_of_the_workers_shut_down_is_refused() -> None:
    """The Caller ends between the look whether it has and the step after it."""
    with Caller(double) as caller:
        caller(0)
        runner: Any = caller._runner
        runner.scheduler.ready.shutdown()
        with pytest.raises(RuntimeError, match="the Caller is closed"):
            caller(1)
        assert not runner.direct


def test_a_call_that_arrives_beside_the_failure_of_its_caller_is_refused() -> None:
    def setup() -> None:
        raise OSError("no connection")

    def hand_in_and_drop() -> None:
        """The arrival is not handled: this thread has the lock."""
        tasks.append(threads.start(caller, 2))
        wait_until(lambda: runner.open)
        runner._drop(final=True)

    tasks: list[Any] = []
    with Threads() as threads, Caller(lambda item, resource: item, setup=setup) as caller:
        with pytest.raises(OSError, match="no connection"):
            caller(1)
        runner: Any = caller._runner
        runner.locked(hand_in_and_drop)
        assert str(tasks[0].outcome()) == "the Caller has failed"


@ways
def test_a_setup_that_raises_fails_all_items_and_later_ones(way: Any) -> None:
    def setup() -> None:
        raise OSError("no connection")

    async def afn(item: int, resource: Any) -> None: ...

    def fn(item: int, resource: Any) -> None: ...

    with Caller(afn if way is asynchronous else fn, setup=setup) as caller:
        with pytest.raises(OSError, match="no connection"):
            caller(1)
        with pytest.raises(RuntimeError, match="the Caller has failed") as raised:
            caller(2)
        assert isinstance(raised.value.__cause__, OSError)


@ways
def test_a_dropped_caller_cancels_what_has_not_started_and_leaves_no_thread(way: Any) -> None:
    gate = Gate()
    caller = Caller(way(gate), workers=1, timeout=10 * DEADLINE)
    futures = [caller.submit(number) for number in range(3)]
    called_back: list[str] = []
    futures[2].add_done_callback(lambda _: called_back.append(threading.current_thread().name))
    gate.wait_for(0)
    gone = weakref.ref(caller)
    del caller
    gc.collect()
    assert gone() is None
    wait_until(lambda: [future.cancelled() for future in futures[1:]] == [True, True])
    gate.opened.set()
    with suppress(CancelledError):
        assert futures[0].result(DEADLINE) == 0
    wait_until(lambda: called_back == ["manytail-callbacks"])


def test_a_call_keeps_its_caller_and_an_idle_worker_keeps_no_item() -> None:
    class Large:
        pass

    assert isinstance(Caller(lambda item: Large())(1), Large)
    with Caller(lambda item: item) as caller:
        large = Large()
        gone = weakref.ref(large)
        assert caller(large) is large
        assert caller.submit(large).result() is large
        del large
        wait_until(lambda: gc.collect() is not None and gone() is None)


FORKED = """
import os, sys, threading
from support.forks import in_child
from manytail import Caller, Rate

begun, opened = threading.Event(), threading.Event()

def fn(item):
    if item == "held":
        begun.set()
        opened.wait(60)
    return item, os.getpid()

for options in ({}, {"limits": Rate(1e9), "key": str, "dedup": 5}):
    begun.clear(); opened.clear()
    with Caller(fn, workers=1, **options) as caller:
        held, waits = caller.submit("held"), caller.submit("waits")
        assert begun.wait(60)

        def child():
            with caller:
                assert caller("child") == ("child", os.getpid())
                assert caller.submit("other").result() == ("other", os.getpid())
                assert not held.done() and not waits.done()
            try:
                caller("late")
            except RuntimeError:
                return
            raise AssertionError("the child's Caller is open")

        in_child(child)
        opened.set()
        assert held.result() == ("held", os.getpid())
        assert waits.result() == ("waits", os.getpid())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_child_begins_anew() -> None:
    run_script(FORKED)


# ---------------------------------------------------------------------------------------------------- at any point
@pytest.mark.parametrize("seed", range(part(6)))
def test_whatever_is_cancelled_and_however_it_ends_every_future_is_done(seed: int) -> None:
    chance = random.Random(seed)
    options: dict[str, Any] = {"workers": chance.choice([1, 2, 5]), "max_in_flight": chance.choice([20, None])}
    if chance.random() < 0.5:
        options |= {"key": lambda item: item % 5, "per_key": 1}
    limits = {"limits": [Rate(1e6), Concurrency(3)]}
    options |= chance.choice([{}, {"dedup": 5}, limits, {"breaker": Breaker(3, reset=0.001)}])
    batched = chance.random() < 0.5
    if batched:
        options["batch"] = Batch(4, linger=chance.choice([0, 0.001]))
    options["retry"] = Retry(1, backoff=0)

    def one(item: int) -> int:
        if item % 7 == 0:
            raise ValueError(item)
        return item

    def fn(item: Any) -> Any:
        return [one(each) for each in item] if batched else one(item)

    caller: Caller[int, int] = Caller(asynchronous(fn) if chance.random() < 0.3 else fn, **options)
    futures: list[Future[int]] = []

    def hands_in(seed: int) -> None:
        chance = random.Random(seed)
        with suppress(RuntimeError, CancelledError, ValueError):
            for number in range(100):
                future = caller.submit(chance.randrange(50))
                futures.append(future)
                if chance.random() < 0.2:
                    future.cancel()
                if number % 10 == 0:
                    caller(chance.randrange(50))

    with Threads() as threads:
        for number in range(5):
            threads.start(hands_in, number)
        wait_until(lambda: len(futures) > 100 or all(not task.is_alive() for task in threads.tasks))
        if chance.random() < 0.7:
            caller.close(cancel=chance.random() < 0.5)
    caller.close()
    assert all(future.done() for future in futures)
    runner = caller._runner
    assert runner is not None
    assert not runner.open
    assert runner.scheduler.window.in_flight == 0 or runner.scheduler.halted


@pytest.mark.parametrize("options", [{}, {"limits": Rate(1e9), "dedup": 3}], ids=["plain", "gate"])
@pytest.mark.parametrize("way", ["call", "submit", "close"])
def test_a_call_that_is_interrupted_anywhere_leaves_no_other_one_waiting(way: str, options: Any) -> None:
    """The others end, or the Caller has failed and says so."""
    # The least is less than there are, where another thread handles the arrival.
    for interrupter in each_point(MAPPING, step=1 if LONG else 3):
        with Threads() as threads, Caller(double, workers=2, **options) as caller:
            caller(0)
            others: list[Task] = [threads.start(caller, number) for number in range(3)]
            try:
                with interrupter:
                    if way == "call":
                        caller(5)
                    elif way == "submit":
                        caller.submit(5).result()
                    else:
                        caller.close()
            except (KeyboardInterrupt, RuntimeError):  # the latter: the Caller has failed
                pass
            assert {type(other.outcome()) for other in others} <= {type(None), RuntimeError}


def test_a_call_whose_start_is_interrupted_anywhere_is_put_at_most_once() -> None:
    """Until the Caller or the map has failed, another event may have its calls started."""
    for interrupter in each_point(MAPPING):
        scheduler, items = Scheduler(Options(limits=(Rate(1e9),), workers=2)), [Item(0)]
        scheduler.assign(items)
        scheduler.arrived(items, 0.0)
        with suppress(KeyboardInterrupt), interrupter:
            scheduler.dispatch(0.0)
        with suppress(Exception):  # what was interrupted may be found half done
            scheduler.dispatch(0.0)
        assert scheduler.ready.qsize() <= 1


@pytest.mark.parametrize(
    ("kind", "way"),
    [(WaitedCall, "drop"), (WaitedCall, "settle")] + [(FutureCall, way) for way in ("drop", "settle", "cancelled")],
)
def test_a_call_whose_end_is_interrupted_anywhere_ends(kind: Any, way: str) -> None:
    """It is taken up again, and nobody waits for ever."""
    with Caller(double) as caller:
        caller(0)
        runner: Any = caller._runner
        for interrupter in each_point(MAPPING):
            call = kind(1, None, 0, 0.0)
            if way == "cancelled":
                call.future.cancel()
            left: deque[Any] = deque([(call, ValueError(), False) if way == "drop" else call])
            step = runner._drop_one if way == "drop" else kind.settle
            with suppress(KeyboardInterrupt), interrupter:
                _calls._each(left, step)
            _calls._each(left, step)
            if kind is WaitedCall:
                assert call.wait(False)
            else:
                assert call.future.done()


@pytest.mark.parametrize("state", ["room", "full", "closed"])
@pytest.mark.parametrize("way", ["call", "submit"])
def test_a_call_of_another_thread_whose_arrival_is_interrupted_ends(way: str, state: str) -> None:
    """This thread handles the arrival. The other one gets a result, or that the Caller has failed."""

    def hand_in(caller: Caller[int, int]) -> int:
        return caller(1) if way == "call" else caller.submit(1).result()

    for interrupter in each_point(MAPPING, least=5):
        gate = Gate()
        with Threads() as threads, Caller(gate, workers=1, max_in_flight=1) as caller:
            runner = caller._begun()
            if state == "full":
                caller.submit(0)
            if state == "closed":
                runner.close()
            with runner._lock:
                other = threads.start(hand_in, caller)
                wait_until(partial(bool, runner._events))
                with suppress(KeyboardInterrupt), interrupter:
                    runner._handle()
            runner.settle()
            gate.opened.set()
            assert type(other.outcome()) in (type(None), RuntimeError)


@pytest.mark.parametrize("way", ["hand_in", "submit", "close"])
def test_what_an_interrupted_call_has_left_is_done(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is interrupted where it had what another thread has reported to handle."""

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with Caller(double, max_in_flight=16) as caller, Threads() as threads:  # no call goes past the scheduler
        caller(0)
        runner: Any = caller._runner
        with runner._lock:
            other = threads.start(caller, 1)
            wait_until(lambda: runner._events)
        call = {"hand_in": lambda: caller(2), "submit": lambda: caller.submit(2), "close": caller.close}[way]
        with monkeypatch.context() as patched:
            patched.setattr(runner, way, interrupted)
            with pytest.raises(KeyboardInterrupt):
                call()
        assert other.result() == 2


def test_calls_whose_successes_are_handled_together_all_fail_where_that_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handled: list[int] = []

    def interrupted(items: list[Item]) -> None:
        handled.append(len(items))
        raise KeyboardInterrupt

    gate = Gate()
    with Caller(gate, workers=4) as caller:
        futures = [caller.submit(value) for value in range(3)]
        gate.wait_for(0, 1, 2)
        runner: Any = caller._runner
        with runner._lock, monkeypatch.context() as patched:
            patched.setattr(runner.scheduler, "succeeded_alike", interrupted)
            gate.opened.set()
            wait_until(lambda: len(runner._events) == 3)
            with pytest.raises(KeyboardInterrupt):
                runner._handle()
        runner.settle()
        for future in futures:
            with pytest.raises(RuntimeError, match="a signal handler has raised"):
                future.result(timeout=DEADLINE)
    assert handled == [3]


def test_a_worker_tells_a_thread_that_its_call_came_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it handles that call alone, and its own success was handled by another thread."""
    with Threads() as threads, Caller(double) as caller:
        caller(0)
        runner: Any = caller._runner
        with runner._lock:
            runner._ending = True
            other = threads.start(caller, 1)
            wait_until(lambda: runner._events)
        monkeypatch.setattr(runner.scheduler, "succeeded", lambda item, now: None)
        runner.succeeded(Item(None))
        assert type(other.outcome()) is RuntimeError


class Interrupted(FutureCall):
    """It is interrupted where it is settled, once."""

    __slots__ = ()
    times = 1

    def _set(self) -> None:
        if Interrupted.times:
            Interrupted.times = 0
            raise KeyboardInterrupt
        super()._set()


@pytest.mark.thread_unsafe(reason="is interrupted once in the process")
def test_callbacks_of_what_is_settled_already_run_where_another_call_is_interrupted() -> None:
    with Caller(double) as caller:
        caller(0)
        runner: Any = caller._runner
        calls = [FutureCall(1, None, 0, 0.0), Interrupted(2, None, 0, 0.0)]
        called: list[Future[Any]] = []
        for call in calls:
            call.future.add_done_callback(called.append)
        runner._done.extend(calls)
        with pytest.raises(KeyboardInterrupt):
            runner._deliver()
        wait_until(lambda: called == [calls[0].future])
        runner._deliver()
        wait_until(lambda: called == [call.future for call in calls])


def test_a_call_that_begins_while_it_is_dropped_is_dropped_again_at_the_end() -> None:
    """Its worker has decided, and not noted it yet."""
    with Caller(double) as caller:
        caller(0)
        runner: Any = caller._runner
        call = WaitedCall(1, None, 0, 0.0)
        runner.open.add(call)
        assert call.decide(_calls._BEGIN)
        runner._drop_one((call, ValueError(), False))
        assert runner.open == {call}
        assert call.begin()
        runner._drop_one((call, ValueError(), True))
        assert not runner.open
        assert call.wait(False)


def test_an_index_error_of_a_step_is_not_the_end() -> None:
    with pytest.raises(IndexError):
        _calls._each(deque([[]]), list.pop)


# ---------------------------------------------------------------------------------------------------- options
REFUSED: dict[str, Any] = {
    "order": "input", "errors": "return", "max_failures": 3, "fatal": ValueError, "deadline": 3, "progress": True,
}  # fmt: skip


@pytest.mark.parametrize("kind", [Caller, AsyncCaller])
def test_options_of_maps_alone_are_refused(kind: Any) -> None:
    async def fn(item: int) -> int:
        return item

    for name, value in REFUSED.items():
        assert name not in inspect.signature(kind).parameters
        with pytest.raises(TypeError, match=f"^{name}: not an option of {kind.__name__} "):
            kind(fn, **{name: value})
    with pytest.raises(ValueError, match=r"^max_in_flight: 3"):
        kind(fn, workers=4, max_in_flight=3)
    with pytest.raises(TypeError, match=r"^fn: "):
        kind(lambda: None)
