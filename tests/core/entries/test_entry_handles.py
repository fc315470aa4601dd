"""Entries: one handle for one delivery, every transition by one compare-and-swap, the loser changes nothing."""
import gc
import pickle
import time
import weakref
from queue import Empty

import pytest
from support.threads import run_all

from manytail import ClosedError, DeadReason, Entry, EntryQueue, EntryState, ShutDown

ENDS = ["ack", "release", "reject", "lock", "unlock"]


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
    assert (entry.deliveries, entry.redelivered, entry.state) == (0, False, EntryState.AVAILABLE)


def test_headers_of_an_entry_do_not_change_with_the_callers_dict():
    queue = EntryQueue()
    headers = {"a": 1}
    entry = queue.put(0, headers=headers)
    headers["a"] = 2
    assert entry.headers["a"] == 1


def test_seq_is_the_arrival_number():
    queue, entries = filled(3)
    numbers = [entry.seq for entry in entries]
    assert numbers == sorted(set(numbers))
    subscription = queue.subscribe()
    first = subscription.get(False)
    assert first.seq == numbers[0]
    assert first.release()
    assert subscription.get(False).seq == numbers[0]


def test_seq_is_unique_whoever_puts():
    queue = EntryQueue()
    numbers = run_all(*[lambda: [queue.put(n).seq for n in range(300)]] * 4)
    assert len({number for some in numbers for number in some}) == 1200
    assert all(some == sorted(some) for some in numbers)


def test_deliveries_count_hand_overs_to_acquiring_subscriptions_only():
    queue, (entry,) = filled()
    subscription, browser = queue.subscribe(), queue.subscribe(browse=True)
    assert browser.get(False).deliveries == 0
    for n in range(1, 4):
        got = subscription.get(False)
        assert (got.deliveries, entry.deliveries) == (n, n)
        assert got.release()


def test_redelivered_from_the_first_release_on():
    queue, (entry,) = filled()
    subscription = queue.subscribe()
    got = subscription.get(False)
    assert not got.redelivered
    got.release()
    assert entry.redelivered
    again = subscription.get(False)
    assert again.redelivered
    again.ack()
    assert entry.redelivered


def test_state_is_that_of_the_place_now(keep):
    queue, (put,) = filled()
    held = queue.put(1, delay=1000)
    assert (put.state, held.state) == (EntryState.AVAILABLE, EntryState.HELD)
    got = keep(queue.subscribe()).get(False)
    assert put.state is got.state is EntryState.ACQUIRED
    got.ack()
    assert put.state is got.state is EntryState.DELETED


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
def test_ack_ends_it(keep):
    queue, (put,) = filled()
    got = keep(queue.subscribe()).get(False)
    assert got.ack() is True
    assert put.state is EntryState.DELETED
    assert (queue.depth(), queue.stats().acked) == (0, 1)


def test_release_brings_it_back_to_its_place():
    queue, _ = filled(3)
    subscription = queue.subscribe()
    first, second = subscription.get(False), subscription.get(False)
    assert second.release() is True
    assert first.release() is True
    assert [subscription.get(False).item for _ in range(3)] == [0, 1, 2]


def test_release_with_a_delay_holds_it():
    queue, (put,) = filled()
    subscription = queue.subscribe()
    assert subscription.get(False).release(delay=1000) is True
    assert put.state is EntryState.HELD
    assert (queue.qsize(), queue.depth(), queue.stats().held) == (0, 1, 1)
    with pytest.raises(Empty):
        subscription.get(False)


@pytest.mark.parametrize("delay", [-1, -0.001, float("nan")])
def test_release_refuses_a_negative_delay(delay, keep):
    queue, (put,) = filled()
    got = keep(queue.subscribe()).get(False)
    with pytest.raises(ValueError, match="delay"):
        got.release(delay=delay)
    assert put.state is EntryState.ACQUIRED
    assert got.ack()


def test_reject_without_dead_letter_is_the_end(keep):
    queue, (put,) = filled()
    got = keep(queue.subscribe()).get(False)
    assert got.reject() is True
    assert put.state is EntryState.DELETED
    assert (queue.stats().rejected, queue.stats().dead_lettered, queue.depth()) == (1, 0, 0)


@pytest.mark.parametrize("end", ["ack", "release", "reject"])
def test_a_handle_that_is_over_changes_nothing(end, keep):
    queue, _ = filled()
    got = keep(queue.subscribe()).get(False)
    assert getattr(got, end)() is True
    before = queue.stats()
    for again in ENDS:
        assert getattr(got, again)() is False
    assert queue.stats()._replace(oldest_age=None) == before._replace(oldest_age=None)


def test_a_handle_that_is_over_changes_nothing_even_if_another_holds_the_entry():
    queue, (put,) = filled()
    one, two = queue.subscribe(), queue.subscribe()
    for taker in (two, one):  # another subscription, and the same one again
        old = one.get(False)
        assert old.release()
        new = taker.get(False)
        for end in ENDS:
            assert getattr(old, end)() is False
        assert put.state is EntryState.ACQUIRED
        assert new.release() is True


def test_handles_from_put_and_browse_never_act(keep):
    queue, (put,) = filled()
    browsed, sighted = next(queue.browse()), keep(queue.subscribe(browse=True)).get(False)
    got = keep(queue.subscribe()).get(False)
    for handle in (put, browsed, sighted):
        for end in ENDS:
            assert getattr(handle, end)() is False
    assert got.ack() is True


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


def test_an_unlocked_entry_may_be_stolen_and_the_holder_loses(keep):
    queue, (put,) = filled()
    got = keep(queue.subscribe()).get(False)
    got.unlock()
    assert queue.purge() == 1
    assert put.state is EntryState.DELETED
    for end in ENDS:
        assert getattr(got, end)() is False
    assert queue.stats().acked == 0


def test_a_relocked_entry_may_not_be_stolen(keep):
    queue, _ = filled()
    got = keep(queue.subscribe()).get(False)
    got.unlock()
    assert got.lock() is True
    assert queue.purge() == 0
    assert got.ack() is True


def test_an_unlocked_entry_can_still_be_acked_released_and_rejected():
    queue, _ = filled(3)
    subscription = queue.subscribe()
    for end in ("release", "ack", "reject"):
        got = subscription.get(False)
        got.unlock()
        assert getattr(got, end)() is True


def test_closing_the_subscription_ends_its_deliveries():
    queue, (put,) = filled()
    subscription = queue.subscribe()
    got = subscription.get(False)
    subscription.close()
    for end in ENDS:
        assert getattr(got, end)() is False
    assert put.state is EntryState.AVAILABLE


@pytest.mark.parametrize("ends", [("ack", "ack"), ("ack", "release"), ("release", "reject"), ("reject", "ack")])
def test_one_of_two_racing_ends_wins(ends):
    queue = EntryQueue()
    subscription = queue.subscribe()
    for n in range(300):
        queue.put(n)
        got = subscription.get(False)
        assert sum(run_all(*[getattr(got, end) for end in ends])) == 1 if n < 30 else got.ack()
        if queue.qsize():
            assert subscription.get(False).ack()
    stats = queue.stats()
    assert stats.depth == 0
    assert stats.acked + stats.rejected == 300


def test_a_steal_and_an_ack_race():
    queue = EntryQueue()
    subscription = queue.subscribe()
    for n in range(60):
        queue.put(n)
        got = subscription.get(False)
        got.unlock()
        acked, purged = run_all(got.ack, queue.purge)
        assert acked + purged == 1
    assert queue.stats().acked + queue.stats().purged == 60


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


def test_an_entry_can_be_weakly_referenced_and_not_pickled():
    _, (entry,) = filled()
    assert weakref.ref(entry)() is entry
    with pytest.raises(TypeError, match="item"):
        pickle.dumps(entry)
    assert Entry[int] is not None


def test_a_closed_subscription_raises_and_a_shut_queue_too():
    queue, _ = filled()
    subscription = queue.subscribe()
    subscription.get(False).ack()
    queue.shutdown()
    with pytest.raises(ShutDown):
        subscription.get(False)
    subscription.close()
    with pytest.raises(ClosedError):
        subscription.get(False)
