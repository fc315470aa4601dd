"""Time to live, delay, maintain() and the shared timer."""
import _thread
import time
import weakref

import pytest
from support.process import run_script
from support.threads import DEADLINE, Threads, before, in_time, wait_asleep, wait_until

from manytail import EntryQueue, EntryState, ShutDown


def pass_time(moment):
    """Return when the queue's clock is past that moment."""
    wait_until(lambda: time.monotonic() > moment)


def recording():
    dead = []
    return dead, lambda entry, reason: dead.append((entry.item, str(reason)))


def got_before_it_expires(new, keep):
    """A queue with one entry, which was got before its time is over: (dead letters, queue, entry, subscription,
    delivery)."""
    def attempt(ttl):
        dead, letter = recording()
        queue = new("q", dead_letter=letter)
        subscription = keep(queue.subscribe())
        with before(ttl):
            entry = queue.put(1, ttl=ttl)
            got = subscription.get(False)
        return dead, queue, entry, subscription, got

    return in_time(attempt, 0.02, 1, 60)


# ------------------------------------------------------------------------------------------------ the end of a wait
@pytest.mark.parametrize("times", [{"delay": 0.2}, {"delay": 3600, "ttl": 0.2}], ids=["becomes available", "expires"])
@pytest.mark.parametrize("claim", ["priority", "group"])
def test_a_get_after_shutdown_ends_with_the_last_delayed_entry_when_others_have_a_claim_to_the_rest(keep, claim, times):
    by_group = claim == "group"
    queue = EntryQueue("q", groups="assigned" if by_group else None)
    other = keep(queue.subscribe(priority=0 if by_group else 1))
    subscription = keep(queue.subscribe())
    if by_group:
        queue.put("owns the group", group="g")
        assert other.get(False)
    queue.put("for the other", group="g" if by_group else None)
    queue.put("delayed", group="g" if by_group else None, **times)
    with Threads() as threads:
        getter = threads.start(subscription.get)
        wait_asleep(getter)
        queue.shutdown()
        with pytest.raises(ShutDown):
            getter.result()
    with pytest.raises(ShutDown):
        subscription.get(False)


def test_after_shutdown_a_delayed_entry_keeps_nobody_waiting_who_does_not_want_it(keep):
    queue = EntryQueue("q")
    subscription = keep(queue.subscribe(selector="n > 4"))
    keep(queue.subscribe(priority=1))
    queue.put(1, headers={"n": 1}, delay=3600)
    queue.shutdown()
    with pytest.raises(ShutDown):
        subscription.get(False)


@pytest.mark.parametrize("after", ["a delay", "a release"])
def test_a_browser_that_waits_gets_what_becomes_available(keep, after):
    queue = EntryQueue("q")
    browser = keep(queue.subscribe(browse=True))
    with Threads() as threads:
        browsing = threads.start(browser.get)
        wait_asleep(browsing)
        if after == "a delay":
            queue.put(1, delay=0.05)
        else:
            getting = threads.start(keep(queue.subscribe()).get)
            wait_asleep(getting)
            assert queue.put(1, immediate=True)
            assert getting.result().release()
        assert browsing.result().item == 1


# ------------------------------------------------------------------------------------------------ ttl
def test_an_expired_entry_is_not_delivered(new, keep):
    dead, letter = recording()
    queue = new("q", dead_letter=letter)
    entry = queue.put(1, ttl=0.001)
    queue.put(2)
    pass_time(entry.expires_at)
    assert keep(queue.subscribe()).get(False).item == 2
    assert entry.state is EntryState.DELETED
    wait_until(lambda: dead == [(1, "expired")])            # this thread or the timer's delivers the dead letter
    assert (queue.stats().expired, queue.stats().dead_lettered) == (1, 1)


@pytest.mark.parametrize(
    ("of_queue", "of_put", "effective"),
    [(100, None, 100), (None, 50, 50), (100, 50, 50), (50, 100, 50), (None, None, None)],
)
def test_the_shorter_of_both_ttls_wins(new, of_queue, of_put, effective):
    queue = new("q", ttl=of_queue)
    before = time.monotonic()
    entry = queue.put(1, ttl=of_put)
    after = time.monotonic()
    if effective is None:
        assert entry.expires_at is None
    else:
        assert before + effective <= entry.expires_at <= after + effective


def test_ttl_counts_from_put_also_of_one_that_waited(new):
    queue = new("q", maxsize=1)
    queue.put(1)
    with Threads() as threads:
        before = time.monotonic()
        putter = threads.start(queue.put, 2, ttl=1000)
        wait_asleep(putter)
        queue.purge()
        entry = putter.result()
    assert before + 1000 <= entry.expires_at <= time.monotonic() + 1000


def test_a_locked_entry_does_not_expire_and_does_when_it_comes_back(new, keep):
    dead, queue, entry, _, got = got_before_it_expires(new, keep)
    pass_time(entry.expires_at)
    queue.maintain()
    assert (entry.state, dead) == (EntryState.ACQUIRED, [])
    assert got.release()
    queue.maintain()
    assert entry.state is EntryState.DELETED
    wait_until(lambda: dead == [(1, "expired")])            # as above


@pytest.mark.parametrize("unlocked", ["before", "after"])
def test_an_unlocked_entry_is_stolen_by_expiry(new, keep, unlocked):
    dead, queue, entry, subscription, got = got_before_it_expires(new, keep)
    if unlocked == "before":
        got.unlock()
    pass_time(entry.expires_at)
    if unlocked == "after":
        assert got.unlock()
    queue.maintain()
    wait_until(lambda: dead == [(1, "expired")])            # as above
    assert got.ack() is False
    assert subscription.unacked == 0
    assert (queue.stats().expired, queue.stats().acked) == (1, 0)


def test_unlocked_entries_expire_however_often_they_were_locked(new, keep):
    """The timer of an acquired entry stays set, and an unlock allocates nothing that could be missing."""
    queue = new()
    ends = [queue.put(n, ttl=0.01).expires_at for n in range(4)]    # as many as the heap of timers has slots at first
    for got in keep(queue.subscribe()).get_many(4, False) if queue.qsize() else []:
        got.unlock()
        got.lock()
        queue.maintain()
        got.unlock()
    pass_time(ends[-1])
    queue.maintain()
    wait_until(lambda: queue.stats().expired == 4)
    assert queue.depth() == 0


def test_a_held_entry_expires(new):
    queue = new()
    entry = queue.put(1, ttl=0.001, delay=1000)
    pass_time(entry.expires_at)
    queue.maintain()
    assert entry.state is EntryState.DELETED
    assert queue.stats().held == 0


def test_figures_do_not_look_at_the_clock():
    """Until a call looks at the clock: the shared timer does so soon, so only the order of the figures is tested."""
    queue = EntryQueue()
    entry = queue.put(1, ttl=0.001)
    pass_time(entry.expires_at)
    stats = queue.stats()
    assert stats.available + stats.expired == 1
    queue.maintain()
    assert (queue.qsize(), queue.depth(), queue.stats().expired) == (0, 0, 1)


def test_ack_of_an_expired_but_locked_entry_counts_as_ack(new, keep):
    _, queue, entry, _, got = got_before_it_expires(new, keep)
    pass_time(entry.expires_at)
    assert got.ack() is True
    assert (queue.stats().acked, queue.stats().expired) == (1, 0)


# ------------------------------------------------------------------------------------------------ delay


def test_an_unheld_entry_is_treated_as_released(new):
    """A subscription that is past its place goes back for it."""
    def pass_it(delay):
        queue = new()
        with before(delay):
            held = queue.put(1, delay=delay)
            queue.put_many([2, 3])
            subscription = queue.subscribe()
            assert subscription.get(False).item == 2
        pass_time(time.monotonic() + delay)
        return queue, held, subscription

    queue, held, subscription = in_time(pass_it, 0.02, 1, 60)
    queue.maintain()
    assert subscription.get(False).item == 1
    assert held.redelivered is False
    assert subscription.get(False).item == 3


# ------------------------------------------------------------------------------------------------ waiting and the timer
def test_the_shared_timer_expires_without_anybody_looking(new):
    dead, letter = recording()
    queue = new("q", dead_letter=letter)
    queue.put(1, ttl=0.01)
    wait_until(lambda: dead == [(1, "expired")])
    assert queue.depth() == 0


def test_the_timer_does_not_sleep_on_a_get_with_a_timeout():
    """CPython's SimpleQueue.get sleeps for ever if its time is over when it begins to wait, once in some thousand times
    under load. The one planted here always does."""
    script = """
import queue, time
class Oversleeps(queue.SimpleQueue):
    def get(self, block=True, timeout=None):
        return super().get(block)
queue.SimpleQueue = Oversleeps
import manytail
held = manytail.EntryQueue()
held.put(1, delay=0.01)
end = time.monotonic() + 40
while not held.qsize():
    assert time.monotonic() < end, "the timer sleeps"
    time.sleep(0.001)
print("done")
"""
    assert run_script(script) == "done\n"


def test_waiters_react_within_50_ms_of_a_due_time_and_not_before(new, keep):
    """One of many measurements is enough: the machine may be busy."""
    def lateness():
        queue = new()
        due = time.monotonic() + 0.02
        queue.put(1, delay=0.02)
        keep(queue.subscribe()).get(timeout=DEADLINE)
        late = time.monotonic() - due
        assert late >= 0
        return late

    wait_until(lambda: lateness() < 0.05)


def test_the_timer_runs_only_while_a_queue_needs_it():
    """No thread of ours after import, or with queues without times. It ends with the last entry that has a time, and
    with the last queue that has such entries."""
    script = """
import _thread, gc, time
import manytail
others = _thread._count         # threading does not know the timer
def wait(predicate):
    end = time.monotonic() + 60
    while not predicate():
        assert time.monotonic() < end, others()
        time.sleep(0.001)
plain = manytail.EntryQueue()
plain.put(1); plain.subscribe().get().ack()
assert others() == 0
queue = manytail.EntryQueue()
queue.put(1, ttl=0.005)
queue.put(2, ttl=0.005, delay=0.001)
wait(lambda: queue.depth() == 0)
queue.put(3, ttl=1000)          # of two times to live the shorter holds, so the queue has none of its own
wait(lambda: others() == 1)
queue.purge()
wait(lambda: others() == 0)
queue.put(4, ttl=1000)
wait(lambda: others() == 1)
del queue
gc.collect()
wait(lambda: others() == 0)
again = manytail.EntryQueue()
again.put(1, delay=0.005)
wait(lambda: again.qsize() == 1)
print("done")
"""
    assert run_script(script, "-W", "ignore") == "done\n"


def test_short_times_beside_a_long_one_do_not_pile_up():
    """Each request to the timer thread has a weak reference to the queue."""
    queue = EntryQueue()
    queue.put("late", delay=1000)
    with queue.subscribe() as subscription:
        for n in range(300):
            queue.put(n, delay=0.0005)
            subscription.get(timeout=DEADLINE).ack()
    assert weakref.getweakrefcount(queue) < 100


@pytest.mark.thread_unsafe(reason="counts the threads of the process")
def test_many_queues_share_one_timer():
    before = _thread._count()
    queues = [EntryQueue(ttl=1000) for _ in range(20)]
    for queue in queues:
        queue.put(1)
    assert _thread._count() <= before + 1
