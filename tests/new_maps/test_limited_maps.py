"""Maps with limits, in threads: what they take, wait for and give back; pauses; who would wait for itself."""

import threading
import time
from itertools import islice

import pytest
from support.threads import DEADLINE, Threads, wait_until

from manytail._maps import (
    Batch,
    Budget,
    BudgetExceeded,
    Concurrency,
    Delivery,
    Rate,
    Retry,
    RetryLater,
    concurrent_map,
)
from manytail._maps.limits.ledger import LATE

from .accounts import reserved, waiting

pytestmark = pytest.mark.thread_unsafe(reason="counts what runs at once in the process")


def test_several_limits_hold_at_once():
    slots, lock, running, most = Concurrency(3), threading.Lock(), 0, 0
    per_host = Concurrency(1, per_key=True)
    hosts: list[int] = []

    def fn(item: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            assert item % 5 not in hosts
            hosts.append(item % 5)
        time.sleep(0.001)
        with lock:
            running -= 1
            hosts.remove(item % 5)
        return item

    limits = [slots, per_host, Rate(1e6), Budget(1_000)]
    with Threads() as threads:
        tasks = [
            threads.start(list, concurrent_map(fn, range(60), workers=8, limits=limits, key=lambda item: item % 5))
            for _ in range(2)
        ]
        assert [task.result() for task in tasks] == [list(range(60))] * 2
    assert 2 <= most <= 3
    assert limits[3].used() == 120  # type: ignore[attr-defined]


def test_a_key_at_its_limit_lets_other_keys_go_first():
    opened, begun = threading.Event(), []

    def fn(item: str) -> str:
        begun.append(item)
        assert item != "a1" or opened.wait(DEADLINE)
        return item

    limit = Concurrency(1, per_key=True)
    items = ["a1", "a2", "b1", "b2"]
    results = concurrent_map(fn, items, workers=3, limits=limit, key=lambda item: item[0], order="completion")
    assert list(islice(results, 2)) == ["b1", "b2"]
    assert begun == ["a1", "b1", "b2"]
    opened.set()
    assert list(results) == ["a1", "a2"]


def test_a_rate_spaces_starts_and_a_burst_lets_some_start_at_once():
    begun = []
    results = concurrent_map(
        lambda item: begun.append(time.monotonic()), range(21), workers=8, limits=Rate(50, burst=10)
    )
    assert list(results) == [None] * 21
    # 10 beyond the first may start at once; the others come one each 20 ms, up to LATE late.
    assert begun[-1] - begun[0] >= 10 / 50 - LATE / 2
    assert begun[10] - begun[0] < 10 / 50 + LATE


def test_the_costs_of_items_count():
    money = Budget(10.0, cost=float)
    results = concurrent_map(str, [4, 5, 3, 1], workers=1, limits=money, errors="return")
    shown = [one.result if one.ok else type(one.error) for one in results]
    assert shown == ["4", "5", BudgetExceeded, "1"]
    assert money.used() == 10.0


def test_a_cost_that_raises_names_the_option_and_fails_its_item_alone():
    results = concurrent_map(str, [1, "2"], limits=Rate(1e9, cost=lambda item: item.length), errors="return")
    errors = [one.error for one in results]
    assert [type(error) for error in errors] == [AttributeError] * 2
    assert errors[0] is not None
    assert errors[0].__notes__ == ["manytail: raised by the function of the option cost"]


def test_an_item_that_costs_more_than_a_concurrency_has_fails():
    results = concurrent_map(str, [1, 3], limits=Concurrency(2, cost=float), errors="return")
    assert [type(one.error) for one in results] == [type(None), ValueError]


def test_an_item_waits_while_running_calls_may_give_enough_of_a_budget_back():
    opened = threading.Event()

    def fn(item: int, delivery: Delivery) -> int:
        if not item:
            assert opened.wait(DEADLINE)
            delivery.spent(1)
        return item

    money = Budget(10.0, cost=lambda item: 9.0)
    results = concurrent_map(fn, [0, 1], workers=2, limits=money)
    with Threads() as threads:
        task = threads.start(list, results)
        wait_until(lambda: waiting(money), "the second item to wait")
        opened.set()
        assert task.result() == [0, 1]
    assert money.used() == 10.0


def test_a_retry_that_does_not_fit_a_budget_fails_with_the_error_of_fn():
    def fn(item: int) -> int:
        raise OSError(item)

    (outcome,) = concurrent_map(fn, [1], limits=Budget(1), retry=Retry(3, backoff=0), errors="return")
    assert type(outcome.error) is OSError
    assert outcome.attempts == 1


def test_a_deferred_call_costs_a_budget_nothing_unless_it_says_so_and_a_rate_its_start():
    money, calls = Budget(10, cost=lambda item: 2.0, name="money"), Rate(1e6, name="calls")
    said = iter([None, 0.5, None])

    def fn(item: int, delivery: Delivery) -> int:
        if (amount := next(said, 0)) != 0:
            if amount is not None:
                delivery.spent(money=amount)
            raise RetryLater(0)
        return item

    results = concurrent_map(fn, [1], limits=[money, calls])
    assert list(results) == [1]
    assert money.used() == results.stats().spent["money"] == 2.5
    assert results.stats().spent["calls"] == 4


def test_without_keys_a_deferral_pauses_the_rates_for_all_that_use_them():
    rate, deferred, begun = Rate(1e6), threading.Event(), []

    def fn(item: int) -> int:
        if not deferred.is_set():
            deferred.set()
            raise RetryLater(0.3)
        return item

    with Threads() as threads:
        at = time.monotonic()
        first = threads.start(list, concurrent_map(fn, [1], limits=rate))
        wait_until(lambda: rate._account.paused_until > 0, "the pause")
        assert list(concurrent_map(lambda item: begun.append(time.monotonic()), [1], limits=rate)) == [None]
        assert first.result() == [1]
    assert begun[0] - at >= 0.3


def test_with_keys_a_deferral_pauses_its_key_and_no_rate():
    rate = Rate(1e6)

    def fn(item: int, delivery: Delivery) -> int:
        if item == 0 and delivery.error is None and not said:
            said.append(item)
            raise RetryLater(0.2)
        return item

    said: list[int] = []
    results = concurrent_map(fn, range(4), key=lambda item: item % 2, limits=rate, order="completion", workers=1)
    assert list(results) in ([1, 3, 0, 2], [1, 3, 2, 0])
    assert rate._account.paused_until < 0


def test_what_a_server_asks_for_in_days_pauses_no_rate():
    rate = Rate(1e6)

    def fn(item: int) -> int:
        raise RetryLater(1_382_400)

    (outcome,) = concurrent_map(fn, [1], limits=rate, errors="return")
    assert type(outcome.error) is RetryLater
    assert rate._account.paused_until < 0


def test_a_worker_that_comes_too_late_for_its_slot_takes_a_new_one():
    """The worker is busy with a slow `setup` when the first call is handed to it."""
    begun = []

    def setup() -> object:
        time.sleep(3 * LATE)
        return object()

    def fn(item: int, resource: object) -> None:
        begun.append(time.monotonic())

    list(concurrent_map(fn, range(3), workers=1, limits=Rate(20), setup=setup))
    assert len(begun) == 3
    assert begun[1] - begun[0] > 0.05 - LATE / 2
    assert begun[2] - begun[0] > 0.1 - LATE / 2


def test_an_abandoned_call_frees_its_permit_and_what_it_says_later_is_refused():
    opened, late, slots = threading.Event(), [], Concurrency(1)
    money = Budget(10, cost=lambda item: 5.0)

    def fn(item: int, delivery: Delivery) -> int:
        if item == 0:
            delivery.spent(2.0)
            assert opened.wait(DEADLINE)
            try:
                delivery.spent(9.0)
            except RuntimeError as error:
                late.append(str(error))
        return item

    results = concurrent_map(fn, [0, 1], workers=2, timeout=0.05, limits=[slots, money], errors="return")
    assert [type(one.error) for one in results] == [TimeoutError, type(None)]
    assert money.used() == 7.0
    opened.set()
    wait_until(lambda: late, "the abandoned call to end")
    assert late == ["spent: the call has ended (expected: a call that is running)"]


@pytest.mark.parametrize("end", ["exhausted", "closed", "failed", "stopped", "dropped", "deadline"])
def test_a_map_that_has_ended_holds_nothing(end):
    slots, money, calls = Concurrency(2), Budget(1_000, cost=lambda item: 2.0), Rate(1e5, per_key=True)

    def fn(item: int) -> int:
        time.sleep(0.002)
        return 1 // (item - 5 if end == "failed" else 1)

    deadline = 0.01 if end == "deadline" else None
    results = concurrent_map(
        fn, range(40), workers=4, limits=[slots, money, calls], key=str, deadline=deadline,
        errors="raise" if end == "failed" else "return",
    )  # fmt: skip
    if end == "failed":
        with pytest.raises(ZeroDivisionError):
            list(results)
    elif end in ("exhausted", "deadline"):
        list(results)
    else:
        assert next(results)
        if end == "stopped":
            results.stop()
            list(results)
        elif end == "closed":
            results.close()
        del results
    with slots(2):  # waits for the end of the last call
        assert not waiting(slots)
        assert not reserved(money)
        assert money.used() % 2 == 0
    wait_until(lambda: not any(account.users for account in calls._accounts.values()), "its keys to be free")


def test_a_map_that_is_closed_while_it_waits_leaves_the_queue_to_others():
    slots = Concurrency(1)
    results = concurrent_map(str, [1], limits=slots)  # not by one who holds it
    with slots:
        with Threads() as threads:
            threads.start(list, results)
            wait_until(lambda: waiting(slots), "the map to wait")
            results.close()
        assert not waiting(slots)


def test_a_map_that_waits_for_its_own_caller_is_refused():
    slots, money = Concurrency(1), Budget(10)

    def nested(item: int) -> list[str]:
        return list(concurrent_map(str, range(3), limits=slots))

    with slots, pytest.raises(RuntimeError, match="the caller already holds it"):
        nested(0)
    with pytest.raises(RuntimeError, match="the caller already holds it"):
        list(concurrent_map(nested, range(2), limits=slots))
    with money(8), pytest.raises(RuntimeError, match="the caller already holds it"):
        list(concurrent_map(str, range(3), limits=money))
    assert list(concurrent_map(str, [1], limits=slots)) == ["1"]


def test_blocks_and_maps_take_turns():
    slots, order = Concurrency(1), []

    def fn(item: int) -> None:
        time.sleep(0.001)

    with Threads() as threads:
        task = threads.start(list, concurrent_map(fn, range(200), workers=2, limits=slots))
        wait_until(lambda: waiting(slots), "the map to wait")
        for number in range(20):
            with slots:
                order.append(number)
        task.result()
    assert order == list(range(20))


@pytest.mark.parametrize("make", [lambda: Rate(5, cost=float), lambda: Concurrency(1e308, cost=float)])
def test_items_of_a_batch_whose_costs_no_float_can_hold_fail_each_with_its_own_error(make):
    items, together = [1e308, 1.1e308, 0.0, 0.0], Batch(2, linger=3_600)
    outcomes = list(concurrent_map(lambda some: some, items, batch=together, limits=make(), errors="return"))
    assert [one.ok for one in outcomes] == [False, False, True, True]
    assert str(outcomes[0].error) == "cost: the sum for a batch of 2 items is no float (expected: a finite number)"
    assert outcomes[0].error is not outcomes[1].error


def test_a_batch_fn_that_changes_its_list_changes_no_cost():
    money, slots = Budget(100, cost=float), Concurrency(50, cost=float)

    def fn(some: list[int]) -> list[int]:
        results = list(some)
        some.clear()
        return results

    assert list(concurrent_map(fn, range(10), batch=3, limits=[money, slots])) == list(range(10))
    assert money.used() == 45
    assert reserved(slots) == 0


def test_an_empty_name_is_that_of_no_limit():
    money = Budget(100, cost=float)

    def fn(item: int, delivery: Delivery) -> int:
        delivery.spent(**{"": 9})
        return item

    results = concurrent_map(fn, [1, 2], limits=money)
    assert list(results) == [1, 2]
    assert money.used() == 3
    assert results.stats().spent == {"": 18.0}
