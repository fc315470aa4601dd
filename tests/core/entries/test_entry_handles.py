"""Entries: what a handle shows, and what it keeps. Their transitions are in test_entries_model.py, and those of several
threads in tests/linear."""
import gc
import time
import weakref

import pytest

from manytail import DeadReason, Entry, EntryQueue, EntryState


def filled(n=1, **options):
    queue = EntryQueue("q", **options)
    entries = [queue.put(item) for item in range(n)]
    return queue, entries


# ------------------------------------------------------------------------------------------------ what a handle shows
def test_states_and_reasons_have_these_names_and_values():
    assert {state.name: int(state) for state in EntryState} == {
        "AVAILABLE": 0,
        "HELD": 1,
        "ACQUIRED": 2,
        "DEQUEUED": 3,
        "DELETED": 4,
    }
    assert {str(reason) for reason in DeadReason} == {"rejected", "expired", "max_deliveries", "overflow", "deleted"}
    assert DeadReason.MAX_DELIVERIES == "max_deliveries"


def test_a_handle_shows_what_was_put(keep):
    queue = EntryQueue("q")
    item = object()
    before = time.monotonic()
    put = queue.put(item, headers={"a": 1}, priority=7, ttl=100.0, group="g")
    after = time.monotonic()
    got = keep(queue.subscribe()).get(False)
    for entry in (put, got):
        assert entry.queue is queue
        assert entry.item is item
        assert dict(entry.headers) == {"a": 1}
        assert (entry.priority, entry.group) == (7, "g")
        assert before + 100 <= entry.expires_at <= after + 100
        assert isinstance(entry, Entry)


def test_what_is_not_given_has_its_default():
    _, (entry,) = filled()
    assert dict(entry.headers) == {}
    assert (entry.priority, entry.group, entry.expires_at) == (4, None, None)
    assert entry.queue.put(0, delay=0.0).state is EntryState.AVAILABLE
    assert (entry.deliveries, entry.redelivered, entry.state) == (0, False, EntryState.AVAILABLE)


def test_headers_of_an_entry_do_not_change_with_the_callers_dict():
    queue = EntryQueue()
    headers = {"a": 1}
    entry = queue.put(0, headers=headers)
    headers["a"] = 2
    assert entry.headers["a"] == 1


def test_handles_of_one_place_are_equal_and_hash_alike():
    queue, (put, other) = filled(2)
    subscription = queue.subscribe()
    first = subscription.get(False)
    first.release()
    second = subscription.get(False)
    browsed = next(queue.browse())
    assert put == first == second == browsed
    assert len({put, first, second, browsed}) == 1
    assert put != other
    assert not put == 1  # noqa: SIM201
    assert len({put, other}) == 2
    elsewhere = EntryQueue()
    assert elsewhere.put(0) != put


# ------------------------------------------------------------------------------------------------ transitions


@pytest.mark.parametrize("delay", [-1, -0.001, float("nan")])
def test_release_refuses_a_negative_delay(delay, keep):
    queue, (put,) = filled()
    got = keep(queue.subscribe()).get(False)
    with pytest.raises(ValueError, match="delay"):
        got.release(delay=delay)
    assert put.state is EntryState.ACQUIRED
    assert got.ack()


def test_an_entry_comes_locked_from_every_kind_of_get():
    import asyncio

    queue, _ = filled(4)
    subscription = queue.subscribe()
    gets = [
        subscription.get(False),
        subscription.get_many(1)[0],
        asyncio.run(subscription.aget()),
        next(iter(subscription)),
    ]
    for entry in gets:
        assert entry.unlock() is True  # it was locked
        assert entry.unlock() is False
        assert entry.lock() is True
        assert entry.lock() is True
    assert queue.purge() == 0


# ------------------------------------------------------------------------------------------------ what a handle keeps
def test_a_handle_may_be_read_for_ever(keep):
    queue, (put, _) = filled(2)
    got = keep(queue.subscribe()).get(False)
    got.ack()
    queue.shutdown(immediate=True)
    reference = weakref.ref(queue)
    del queue
    gc.collect()
    assert (got.item, put.item, got.state, put.deliveries) == (0, 0, EntryState.DELETED, 1)
    assert got.queue is reference()


class Item:
    pass


def test_a_handle_keeps_no_other_entry_alive():
    queue = EntryQueue()
    subscription = queue.subscribe()
    items = [weakref.ref(queue.put(Item()).item) for _ in range(50)]
    kept = subscription.get(False)
    for _ in range(49):
        subscription.get(False).ack()
    kept.ack()
    queue.put(None)
    assert subscription.get(False).ack()
    gc.collect()
    assert [reference() is not None for reference in items] == [True] + [False] * 49
    del kept
    gc.collect()
    assert items[0]() is None
