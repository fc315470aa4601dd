"""EntryQueue: construction, put, put_many, browse, purge, shutdown, statistics, and conventions of every class."""
import math
import time
from queue import Empty

import pytest
from support.threads import before, in_time, run_all, wait_until

from manytail import (
    ClosedError,
    EntryQueue,
    LastValueQueue,
    PriorityEntryQueue,
    ShutDown,
)


def items_of(entries):
    return [entry.item for entry in entries]


# ------------------------------------------------------------------------------------------------ construction
def test_a_queue_has_a_name_and_a_policy(new):
    assert (new().name, new("orders").name, new("orders").overflow) == ("", "orders", "block")
    assert new("q", overflow="drop_oldest").overflow == "drop_oldest"
    assert new("q", maxsize=3).maxsize == 3


BAD_OPTIONS = [
    *((ValueError, "overflow", value) for value in ("drop_newest", "")),
    (ValueError, "groups", "exclusive"),
    *((ValueError, "ttl", value) for value in (0, -1, math.nan)),
    *((ValueError, "resume_at", value) for value in (math.nan, -0.1)),
    *((TypeError, "maxsize", value) for value in ("3", 1.5)),
    (TypeError, "max_deliveries", "1"),
    (TypeError, "dead_letter", 5),
]
BAD_OF_PUT = [
    *((ValueError, "ttl", value) for value in (0, -1, math.nan)),
    *((ValueError, name, value) for name in ("delay", "timeout") for value in (-1, math.nan)),
    *((TypeError, "priority", value) for value in ("high", 1.5)),
    *((OverflowError, "priority", value) for value in (2**31, -(2**31) - 1, 2**63)),
    (TypeError, "headers", 5),
    (TypeError, "group", []),
]


@pytest.mark.parametrize(("error", "name", "value"), BAD_OPTIONS)
def test_bad_options_are_refused_by_name(new, error, name, value):
    with pytest.raises(error, match=f"(?s){name}.*{value}"):
        new("q", **{name: value})


@pytest.mark.parametrize("maxsize", [0, -1, -(2**31)])
def test_a_maxsize_that_is_not_positive_is_no_bound(new, maxsize):
    queue = new("q", maxsize=maxsize)
    for n in range(100):
        queue.put(n, False)
    assert queue.depth() == 100


# ------------------------------------------------------------------------------------------------ put
@pytest.mark.parametrize(("error", "name", "value"), BAD_OF_PUT)
def test_put_refuses_bad_options(new, error, name, value):
    queue = new("q", groups="shared")
    with pytest.raises(error, match=None if name == "group" else name):
        queue.put(1, **{name: value})
    assert (queue.stats().enqueued, queue.depth()) == (0, 0)


def test_an_infinite_timeout_or_ttl_means_none(new, keep):
    queue = new()
    entry = queue.put(1, timeout=math.inf, ttl=math.inf)
    assert entry.expires_at is None or entry.expires_at == math.inf
    assert keep(queue.subscribe()).get(timeout=math.inf).item == 1


def test_put_refuses_unknown_options(new):
    queue = new()
    for call in (queue.put, queue.put_many):
        with pytest.raises(TypeError, match="colour"):
            call([1], colour="red")
    assert queue.depth() == 0


def test_any_object_is_an_item():
    queue = EntryQueue()
    items = [None, 0, float("nan"), object(), [], queue]
    for item in items:
        queue.put(item)
    subscription = queue.subscribe()
    assert all(subscription.get(False).item is item for item in items)


@pytest.mark.parametrize("shape", [list, iter])
def test_the_options_of_put_many_are_those_of_each_entry(new, shape, keep):
    queue = new()
    assert queue.put_many(shape(range(20)), priority=9, headers={"a": 1}) == 20
    got = keep(queue.subscribe()).get_many(100)
    assert [(entry.item, entry.priority, entry.headers["a"]) for entry in got] == [(n, 9, 1) for n in range(20)]


@pytest.mark.parametrize("shape", [list, tuple])
def test_put_many_of_a_list_is_one_run(shape, keep):
    """No other thread's entry comes in between, and every waiter that there is an entry for is woken."""
    queue, each, times = EntryQueue(), 500, 20
    subscriptions = [keep(queue.subscribe()) for _ in range(3)]
    got = []        # got and not acked
    threads = [lambda sub=sub: got.extend(sub.get() for _ in range(each)) for sub in subscriptions]
    threads += [
        lambda who=who: [queue.put_many(shape([(who, turn)] * each)) for turn in range(times)] for who in range(3)
    ]
    run_all(*threads)
    seen = [entry.item for entry in queue.browse()]
    assert len(seen) == 3 * each * times
    assert all(len(set(seen[n : n + each])) == 1 for n in range(0, len(seen), each))


# ------------------------------------------------------------------------------------------------ browse


def test_browse_is_weakly_consistent(new):
    queue = new()
    queue.put_many(range(10))
    subscription = queue.subscribe()
    seen = []
    for entry in queue.browse():
        seen.append(entry.item)
        if entry.item % 2 == 0:
            for got in subscription.get_many(2):
                got.ack()
        if entry.item == 5:
            queue.put(100)
    assert seen == sorted(set(seen))
    assert seen[0] == 0


@pytest.mark.parametrize("ended", [[0], [5], [1, 2, 3], [0, 1, 2, 3], range(6)], ids=str)
def test_a_traversal_goes_on_from_deleted_entries(new, ended):
    queue = new()
    entries = [queue.put(item) for item in range(6)]
    browsing = queue.browse()
    assert next(browsing) == entries[0]
    subscription = queue.subscribe()
    got = subscription.get_many(6)
    assert all(got[n].ack() for n in ended)
    assert list(browsing) == [entries[n] for n in range(1, 6) if n not in ended]


def test_browse_while_entries_come_and_go():
    queue = EntryQueue()
    subscription = queue.subscribe()

    def churn():
        for n in range(2000):
            queue.put(n)
            subscription.get(False).ack()
        return "churned"

    def look():
        for _ in range(200):
            seen = [entry.seq for entry in queue.browse()]
            assert seen == sorted(set(seen))

    assert run_all(churn, look, look)[0] == "churned"


def test_browse_iterators_do_not_count_as_subscriptions(new):
    queue = new()
    queue.put(1)
    browsing = queue.browse()
    assert next(browsing).item == 1
    assert queue.stats().subscriptions == 0
    queue.subscribe(exclusive=True)


# ------------------------------------------------------------------------------------------------ shutdown


def test_get_does_not_wait_for_what_it_may_not_take(new):
    queue = new()
    queue.put(1, headers={"n": 1})
    queue.put(2, headers={"n": 2}, delay=1000)
    subscription = queue.subscribe(selector=lambda entry: entry.headers["n"] > 2)
    queue.shutdown()
    for block in (True, False):
        with pytest.raises(ShutDown):
            subscription.get(block)


def test_iteration_ends_at_shutdown_and_close(new):
    queue = new()
    queue.put_many(range(3))
    subscription, other = queue.subscribe(), queue.subscribe()
    queue.shutdown()
    assert items_of(subscription) == [0, 1, 2]
    other.close()
    assert list(other) == []


# ------------------------------------------------------------------------------------------------ statistics
def test_statistics_of_a_new_queue_are_zero(new):
    stats = new().stats()
    assert stats._fields == (
        "available", "acquired", "held", "depth", "enqueued", "delivered", "acked", "released", "expired", "rejected",
        "dropped", "purged", "dead_lettered", "selector_errors", "high_water", "subscriptions", "oldest_age",
    )  # fmt: skip
    assert stats[:-1] == (0,) * 16
    assert stats.oldest_age is None


def test_oldest_age_is_that_of_the_first_arrival_that_is_left(keep):
    queue = PriorityEntryQueue()
    queue.put(1, priority=0)
    between = time.monotonic()
    queue.put(2, priority=9)
    wait_until(lambda: queue.stats().oldest_age > 0.01)
    now = time.monotonic()
    assert queue.stats().oldest_age >= now - between - 0.005
    first = keep(queue.subscribe()).get(False)
    assert first.item == 2
    first.ack()
    assert queue.stats().oldest_age > 0.01
    queue.purge()
    assert queue.stats().oldest_age is None


def test_the_oldest_age_advances_when_the_first_is_replaced():
    def attempt(seconds):
        queue = LastValueQueue("q", key=lambda item: item)
        queue.put("a")
        wait_until(lambda: queue.stats().oldest_age > seconds)
        with before(seconds / 2):  # half, because arrivals are taken from a clock that is some milliseconds behind
            queue.put("a")
            assert queue.stats().oldest_age < seconds

    in_time(attempt, 0.1, 2, 20)


def test_a_selector_that_raises_skips_the_entry_for_that_subscription_and_is_counted(new, keep):
    queue = new()
    queue.put_many(range(4))
    subscription = queue.subscribe(selector=lambda entry: 1 // (entry.item % 2) == 1)
    assert subscription.get(False).item == 1
    assert subscription.get(False).item == 3
    with pytest.raises(Empty):
        subscription.get(False)
    assert queue.stats().selector_errors >= 2
    assert items_of(keep(queue.subscribe()).get_many(5)) == [0, 2]


# ------------------------------------------------------------------------------------------------ conventions


def test_context_managers_close(new):
    queue = new()
    queue.put(1)
    with queue.subscribe() as subscription:
        assert subscription.get(False).item == 1
    assert subscription.closed
    with pytest.raises(ClosedError):
        subscription.get()
    assert queue.qsize() == 1
