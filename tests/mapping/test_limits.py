"""Breakers, rates, costs and budgets in real threads and loops. Promises about time are tested in tests/simulation."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from functools import partial
from itertools import islice
from time import sleep
from typing import Any

import pytest
from support.maps import Way, asynchronous, everywhere, mapped
from support.threads import DEADLINE, Threads, wait_until

from manytail import (
    AsyncCaller,
    Batch,
    Breaker,
    BreakerOpen,
    Budget,
    BudgetExceeded,
    Caller,
    Concurrency,
    Delivery,
    Rate,
    Retry,
    concurrent_map,
)
from manytail.mapping._item import Item, ItemBatch
from manytail.mapping._limits import _held
from manytail.mapping._options import Options
from manytail.mapping._scheduler import Scheduler

pytestmark = pytest.mark.thread_unsafe(reason="counts the threads of the process")


# ---------------------------------------------------------------------------------------------------- breaker
@everywhere
def test_a_breaker_that_fails_its_key_lets_other_keys_go_on(mapped: Way) -> None:
    def fn(item: int) -> int:
        if item % 2:
            raise OSError(item)
        return item

    results = mapped(
        fn,
        range(100),
        key=lambda item: item % 2,
        workers=2,
        breaker=Breaker(3, reset=3_600, when_open="fail"),
        errors="return",
    )
    assert [one.result for one in results[::2]] == list(range(0, 100, 2))
    errors = [failure.error for failure in results[1::2]]
    raised = [error for error in errors if isinstance(error, OSError)]
    assert 3 <= len(raised) <= 4  # another call may have been running at the third failure
    assert len(raised) + sum(isinstance(error, BreakerOpen) for error in errors) == 50
    assert "3 calls in a row failed, key 1" in str(errors[-1])


@everywhere
def test_a_key_that_cannot_be_shown_fails_no_map(mapped: Way) -> None:
    class Key:
        def __repr__(self) -> str:
            raise OSError("repr")

    def fn(item: int) -> int:
        raise OSError(item)

    key = Key()
    results = mapped(
        fn, range(9), key=lambda item: key, workers=1, breaker=Breaker(3, reset=3_600, when_open="fail"),
        errors="return",
    )  # fmt: skip
    assert [type(failure.error) for failure in results] == [OSError] * 3 + [BreakerOpen] * 6
    assert "a key of type" in str(results[-1].error)


# ---------------------------------------------------------------------------------------------------- cost and budget
@everywhere
def test_a_budget_is_never_exceeded_and_others_go_on(mapped: Way) -> None:
    spent: list[int] = []

    def fn(item: int) -> int:
        spent.append(item)
        return item

    items = [3] * 400 + [1]
    results = mapped(fn, items, limits=Budget(1_000, cost=lambda item: item), errors="return", workers=8)
    assert sum(spent) == 1_000  # 333 of 3, and the one of 1
    assert results[-1].result == 1
    refused = [one.error for one in results if not one.ok]
    assert len(refused) == 67
    assert {type(error) for error in refused} == {BudgetExceeded}


@pytest.mark.parametrize("options", [{}, {"keyed": True, "per_key": 2}, {"batch": Batch(8)}], ids=["", "keys", "batch"])
def test_near_the_end_of_a_budget_the_work_for_an_item_does_not_grow_with_their_number(options: dict[str, Any]) -> None:
    few, many = calls_for_an_item(200, options), calls_for_an_item(2_000, options)
    assert many < 1.2 * few


def calls_for_an_item(items: int, options: dict[str, Any]) -> float:
    """How many functions the scheduler calls for an item, of which every second one fits the Budget. All of them are in
    flight from the beginning."""
    budget = Budget(items, cost=float)
    given = {"workers": 4, "max_in_flight": items + 32, "errors": "return", "limits": (budget,), **options}
    scheduler = Scheduler(Options(**given))
    made = [Item(number, number % 7) for number in range(items)]
    for item in made:
        item.costs = (1.0 + item.value % 3,)
    scheduler.assign(made)
    called = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal called
        called += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        scheduler.arrived(made, 0.0)
        scheduler.dispatch(0.0)
        while not scheduler.ready.empty():
            call = scheduler.ready.get_nowait()
            if isinstance(call, ItemBatch):
                call.result = call.items
                scheduler.returned(call, scheduler.judge_results(call, 0.0), 0.0)
            else:
                scheduler.succeeded(call, 0.0)
            scheduler.dispatch(0.0)
    finally:
        sys.setprofile(before)
    assert len(scheduler.output) == items
    assert items / 4 < scheduler.failures < items
    return called / items


@pytest.mark.parametrize("cost", [-1, float("inf"), float("nan"), "1", None, True])
def test_a_bad_cost_fails_its_item_alone(cost: Any) -> None:
    results = mapped(str, [1, 2], limits=Rate(1e9, cost=lambda item: cost if item == 1 else 1.0), errors="return")
    assert results[1].result == "2"
    assert isinstance(results[0].error, ValueError)
    assert str(results[0].error).startswith("cost: ")
    assert results[0].attempts == 0


HUGE = 1e308  # a float; the sum of two is none


def cost_of(item: int) -> float:
    return HUGE if item else 1.0


KINDS_OF_LIMITS: dict[str, Callable[..., Any]] = {
    "rate": partial(Rate, 5),
    "budget": partial(Budget, HUGE),
    "concurrency": partial(Concurrency, HUGE),
    "of a key": partial(Concurrency, HUGE, per_key=True),
}


@everywhere
@pytest.mark.parametrize("kind", KINDS_OF_LIMITS.values(), ids=KINDS_OF_LIMITS)
def test_items_of_a_batch_whose_costs_have_no_sum_fail(mapped: Way, kind: Callable[..., Any]) -> None:
    def fn(items: list[int]) -> list[int]:
        return items

    limit = kind(cost=cost_of)
    options: dict[str, Any] = {"key": lambda item: item == 0} if limit.per_key else {}
    outcomes = mapped(fn, [1, 2, 0, 0], limits=limit, batch=Batch(2, linger=3_600), errors="return", **options)
    assert [(one.item, one.result, one.attempts) for one in outcomes] == [
        (1, None, 0), (2, None, 0), (0, 0, 1), (0, 0, 1),
    ]  # fmt: skip
    first, second = outcomes[0].error, outcomes[1].error
    assert first is not second
    for error in (first, second):
        assert type(error) is ValueError
        assert str(error) == "cost: the sum for a batch of 2 items is no float (expected: a finite number)"


def test_a_batch_whose_costs_grow_beyond_all_floats_while_it_waits_fails() -> None:
    limit = Concurrency(HUGE, cost=cost_of)
    begun, proceed = threading.Event(), threading.Event()

    def fn(items: list[int]) -> list[int]:
        begun.set()
        assert proceed.wait(DEADLINE)
        return items

    with Caller(fn, workers=3, limits=limit, batch=Batch(2)) as caller:
        first = caller.submit(1)
        assert begun.wait(DEADLINE)
        waiting = [caller.submit(2), caller.submit(3)]  # together: the first of them waits for room
        proceed.set()
        assert first.result(DEADLINE) == 1
        assert [type(future.exception(DEADLINE)) for future in waiting] == [ValueError, ValueError]
    assert mapped(lambda items: items, [4, 5], limits=limit, batch=Batch(1)) == [4, 5]  # nothing stands in the queue


def test_callers_fail_the_items_of_a_batch_whose_costs_have_no_sum_and_go_on() -> None:
    options: dict[str, Any] = {"limits": Budget(9, cost=cost_of), "batch": Batch(2, linger=3_600)}

    def fn(items: list[int]) -> list[int]:
        return items

    with Caller(fn, **options) as caller:
        futures = [caller.submit(item) for item in (1, 2, 0, 0)]
        waited: list[Any] = [future.exception(DEADLINE) or future.result() for future in futures]

    async def ask() -> list[Any]:
        async with AsyncCaller(asynchronous(fn), **options) as caller:
            return await asyncio.gather(*map(caller, (1, 2, 0, 0)), return_exceptions=True)

    for got in (waited, asyncio.run(ask())):
        assert [type(one) for one in got] == [ValueError, ValueError, int, int]


# ---------------------------------------------------------------------------------------------------- rates
def test_a_wake_up_that_comes_while_the_timer_looks_is_not_lost() -> None:
    """The limit has room again when the timer's thread has looked, and before it waits."""
    limit = Concurrency(1)
    block = limit(1.0)
    Context().run(block.__enter__)
    results = concurrent_map(str, [1], limits=limit, workers=1)
    runner: Any = results._runner
    look = runner.do_due

    def look_and_release() -> Any:
        found = look()
        if block.holds:
            Context().run(block.__exit__)
        return found

    with Threads() as threads:
        task = threads.start(list, results)
        wait_until(lambda: runner.scheduler.ended and runner.owner.waiter.account is not None)
        runner.do_due = look_and_release
        runner.poke()
        assert task.result() == ["1"]


# ---------------------------------------------------------------------------------------------------- ends
@pytest.mark.parametrize("end", ["exhausted", "closed", "failed", "stopped"])
@pytest.mark.parametrize("timeout", [None, 0.02])
def test_a_map_that_has_ended_holds_nothing(end: str, timeout: float | None) -> None:
    """Also for calls that were abandoned, whose ends come late."""
    slots, money, calls = Concurrency(2), Budget(1_000, cost=lambda item: 2.0), Rate(1e5, per_key=True)

    def fn(item: int) -> int:
        sleep(0.1 if item in (0, 3) else 0.001)
        return 1 // (item - 5 if end == "failed" else 1)

    limits = [slots, money, calls]
    with concurrent_map(
        fn, range(12), workers=4, timeout=timeout, limits=limits, key=str, retry=Retry(1, backoff=0),
        errors="raise" if end == "failed" else "return",
    ) as results:  # fmt: skip
        if end == "failed":
            with pytest.raises((ZeroDivisionError, TimeoutError)):
                list(results)
        elif end != "closed":
            taken = list(islice(results, 3 if end == "stopped" else None))
            if end == "stopped":
                results.stop()
                list(results)
            assert taken
    with slots(2):  # it waits until the last running call has ended
        assert money._account.never(1_000.0 - money.used(), 0.0) is False  # type: ignore[attr-defined]
    with money(1_000.0 - money.used()):
        assert not slots._account.queue


def test_two_maps_keep_a_concurrency_together() -> None:
    slots, lock, running, most = Concurrency(3), threading.Lock(), 0, 0

    def fn(item: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        sleep(0.002)
        with lock:
            running -= 1
        return item

    with Threads() as threads:
        tasks = [threads.start(mapped, fn, range(40), workers=4, limits=slots) for _ in range(3)]
        assert [task.result() for task in tasks] == [list(range(40))] * 3
    assert most <= 3


def test_the_last_word_counts_with_the_name_of_the_limit_or_without() -> None:
    def fn(item: int, delivery: Delivery) -> None:
        delivery.spent(3)
        delivery.spent(money=5)
        if item:
            delivery.spent(7)

    money = Budget(100, cost=lambda item: 10, name="money")
    results = concurrent_map(fn, [0, 1], workers=1, limits=money)
    assert list(results) == [None, None]
    assert money.used() == results.stats().spent["money"] == 12


def test_what_calls_say_that_they_spent_counts() -> None:
    money = Budget(100.0, cost=lambda item: 10.0, name="money")

    def fn(item: int, delivery: Delivery) -> int:
        delivery.spent(5.0, tokens=item)
        return item

    results = concurrent_map(fn, range(15), workers=1, limits=[money, Rate(1e6, name="calls")])
    assert list(results) == list(range(15))
    assert money.used() == 75.0
    assert results.stats().spent == {"money": 75.0, "tokens": 105.0, "calls": 15.0}


@pytest.mark.parametrize("workers", [4, "inline"])
def test_a_map_that_waits_for_its_own_caller_is_refused(workers: Any) -> None:
    slots = Concurrency(1)

    def nested(item: int) -> list[str]:
        return list(concurrent_map(str, range(3), limits=slots, workers=workers))

    with slots, pytest.raises(RuntimeError, match="the caller already holds it"):
        nested(0)
    with pytest.raises(RuntimeError, match="the caller already holds it"):
        list(concurrent_map(nested, range(2), limits=slots))


# ---------------------------------------------------------------------------------------------------- blocks
def test_a_block_may_end_in_another_thread_or_context() -> None:
    """As that of a generator does which another thread closes."""
    slots = Concurrency(2)

    def block() -> Iterator[None]:
        with slots:
            yield

    open_blocks = [block(), block()]
    with Threads() as threads:
        for each in open_blocks:
            threads.start(next, each).result()
    assert slots._account._reserved == 2  # type: ignore[attr-defined]
    for number, each in enumerate(open_blocks):
        copy_context().run(each.close)
        assert slots._account._reserved == 1 - number  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="no block of it has begun"):
        slots.__exit__()


def test_a_block_that_ended_elsewhere_is_no_caller_that_holds() -> None:
    slots = Concurrency(1)
    for _ in range(3):
        block = slots(1)
        block.__enter__()
        with Threads() as threads:
            threads.start(block.__exit__)
    with slots:
        assert slots._account._reserved == 1  # type: ignore[attr-defined]
    assert len(_held.get()) <= 1  # blocks that ended elsewhere are dropped with the next one


def test_a_block_of_a_caller_is_the_one_that_ends_there() -> None:
    money = Budget(100)

    def block() -> Iterator[Any]:
        with money as one:
            one.spent(5)
            yield

    elsewhere = block()
    with Threads() as threads:
        threads.start(next, elsewhere).result()
        with money as mine:
            mine.spent(7)
        assert money.used() == 7
        elsewhere.close()
    assert money.used() == 12


def test_a_block_is_told_what_it_spent_as_a_call_tells_it() -> None:
    money = Budget(100, name="money")
    for said, used in (({"money": 5, "tokens": 9}, 5), ({"tokens": 9, "": 9}, 6), ({}, 7)):
        with money as one:
            one.spent(**said)
        assert money.used() == used
    with money as one:
        one.spent(2, money=3)
        one.spent(money=4)
        with pytest.raises(ValueError, match=r"spent: money: -1 \(expected: a finite number >= 0\)"):
            one.spent(money=-1)
    assert money.used() == 11
    with Concurrency(1, name="slots") as slot:
        slot.spent(tokens=9)
        with pytest.raises(ValueError, match="never settled"):
            slot.spent(slots=1)


def test_a_block_is_for_one_use_at_a_time() -> None:
    """A second thread is refused, also while the first one waits. Nothing is lost."""
    slots = Concurrency(1)
    block = slots(1)
    with Threads() as threads:
        with slots:
            first = threads.start(block.__enter__)
            wait_until(lambda: slots._account.queue)
            with pytest.raises(RuntimeError, match="the block is in use"):
                block.__enter__()
        assert first.result() is block
        ends = [threads.start(block.__exit__) for _ in range(4)]
        errors = [str(end.outcome()) for end in ends]
    assert errors.count("None") == 1
    assert errors.count("the block has ended, or has not begun") == 3
    with block:  # it may be used again
        assert slots._account._reserved == 1  # type: ignore[attr-defined]
    assert slots._account._reserved == 0  # type: ignore[attr-defined]


def test_a_block_whose_wait_was_cancelled_may_be_used_again() -> None:
    slots = Concurrency(1)
    block = slots(1)

    async def wait() -> None:
        async with block:
            raise AssertionError("there is no room")

    async def main() -> None:
        async with slots:
            waiting = asyncio.create_task(wait(), context=Context())  # where nobody holds anything
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        async with block:
            assert not slots._account.queue

    asyncio.run(main())


def test_a_waiter_whose_loop_was_closed_is_freed_at_the_next_wake_up() -> None:
    slots = Concurrency(1)
    left = []  # the coroutine lives on, so nothing else ends its wait

    async def wait() -> None:
        async with slots:
            raise AssertionError("there is no room")

    def close() -> None:
        """In a thread of its own: the caller's context holds the limit."""
        loop = asyncio.new_event_loop()
        left.append(loop.create_task(wait()))
        loop.run_until_complete(_when(lambda: slots._account.queue))
        loop.close()

    with Threads() as threads:
        with slots:
            threads.start(close).result()
            assert len(slots._account.queue) == 1
        assert not slots._account.queue
    left[0]._log_destroy_pending = False  # type: ignore[attr-defined]


def test_waiters_of_another_loop_come_after_those_of_a_closed_one() -> None:
    slots = Concurrency(1)
    left: list[Any] = []  # the coroutines live on, so nothing else ends their waits

    async def wait() -> None:
        async with slots:
            pass

    async def leave() -> None:
        left.extend(asyncio.create_task(wait()) for _ in range(2))
        await _when(lambda: len(slots._account.queue) == 2)

    def close() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(leave())
        loop.close()

    async def others() -> None:
        async with asyncio.timeout(DEADLINE):
            await asyncio.gather(*(wait() for _ in range(2)))

    with Threads() as threads:
        with slots:
            threads.start(close).result()
            running = threads.start(asyncio.run, others())
            wait_until(lambda: len(slots._account.queue) == 4, "two waiters behind the two")
        running.result()
    for task in left:
        task._log_destroy_pending = False


@pytest.mark.parametrize("loop", ["closed", "blocked"])
@pytest.mark.parametrize("limit", [Rate(100), Concurrency(1)], ids=["Rate", "Concurrency"])
def test_the_waiters_of_a_loop_that_does_not_run_hold_others_up_once_and_not_each(
    limit: Rate | Concurrency, loop: str
) -> None:
    """If each of them did, 400 would hold them up for longer than the deadline."""
    queue = limit._account.queue
    waiting, others = threading.Event(), threading.Event()
    left: list[Any] = []  # the coroutines live on, so nothing else ends their waits

    async def wait() -> None:
        async with limit:
            pass

    async def main() -> None:
        async with limit:
            left.extend(asyncio.create_task(wait(), context=Context()) for _ in range(400))  # which hold nothing
            await asyncio.sleep(0)
        if loop == "blocked":
            waiting.set()
            assert others.wait(2 * DEADLINE)
            for task in left[:30]:
                await task
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def run_others() -> None:
        for _ in range(5):
            with limit:
                pass
        assert sorted(concurrent_map(abs, range(5), workers=2, limits=limit)) == [0, 1, 2, 3, 4]

    def run() -> None:
        runs = asyncio.new_event_loop()
        runs.run_until_complete(main())
        runs.close()
        waiting.set()
        for task in left:
            task._log_destroy_pending = False

    with Threads() as threads:
        running = threads.start(run)
        assert waiting.wait(DEADLINE)
        try:
            threads.start(run_others).result()
        finally:
            others.set()
        running.result()
    assert not queue


async def _when(true: Any) -> None:
    while not true():
        await asyncio.sleep(0)


@pytest.mark.parametrize("limited", ["block", "map", "block in a map"])
def test_a_budget_that_waits_for_its_own_caller_is_refused(limited: str) -> None:
    money = Budget(10, cost=lambda item: 6)

    def spend(item: int) -> None:
        with money(4):  # there is room for this
            pass
        with money(6):
            pass

    def wait() -> None:
        if limited == "block in a map":
            list(concurrent_map(spend, [1], limits=money))
        with money(6):
            spend(1) if limited == "block" else list(concurrent_map(str, [1], limits=money))

    with Threads() as threads, pytest.raises(RuntimeError, match="the caller already holds it"):
        threads.start(wait).result()
    with money(0):
        assert money._account._reserved == 0  # type: ignore[attr-defined]


def test_a_budget_of_which_others_hold_something_is_waited_for() -> None:
    money, begun, end = Budget(10), threading.Event(), threading.Event()

    def hold() -> None:
        with money(4) as block:
            block.spent(0)
            begun.set()
            assert end.wait(DEADLINE)

    def nested() -> None:
        with money(5), money(4):  # fits when the other one gives back what it did not spend
            pass

    with Threads() as threads:
        threads.start(hold)
        assert begun.wait(DEADLINE)
        waiting = threads.start(nested)
        wait_until(lambda: money._account.queue)
        end.set()
        waiting.result()
    assert money.used() == 9
