"""No wake-up is lost: each pair of pairs.py, with a patient waiter of each kind and a restless one of each kind.

MANYTAIL_ROUNDS says how many rounds of each pair, divided evenly among its kinds of waiters (default 360, a few
seconds; the long run is MANYTAIL_ROUNDS=100000, `make wakeups`). A build with MANYTAIL_DELAYS=1 stretches the steps
between which a wake-up could be lost (`make stress`). Mutants of tests/mutants.toml show that the rounds notice one.
"""
import asyncio
import itertools
import random
import signal
import threading
import time
from concurrent.futures import wait
from queue import SimpleQueue

import pytest
from support.counts import count
from support.threads import DEADLINE, Threads, switching_often

from manytail import Consumer, EntryQueue, PubSubQueue, ShutDown
from manytail.executor import KeyedExecutor

from .entry_pairs import ENTRY_PAIRS
from .pairs import PAIRS
from .pubsub_pairs import PUBSUB_PAIRS
from .queue_pairs import QUEUE_PAIRS
from .race import QUICKLY, Interrupted, awaited, expect, handling, race
from .sync_pairs import OfSections

ROUNDS = count(360, 10_000, "MANYTAIL_ROUNDS")

pytestmark = pytest.mark.thread_unsafe(reason="signals, the switch interval, threads")


@pytest.fixture(autouse=True)
def often():
    with switching_often():
        yield


def waiters(pair):
    """The kinds of patient and restless waiters that the pair has calls for."""
    patient = ["thread", "coroutine"] if pair.has_async else ["thread"]
    restless = ["time-outs"] * pair.has_timeout + ["cancellations"] * pair.has_async + ["signals"]
    return list(itertools.product(patient, restless))


def races_of_all_pairs():
    sections = {"section enter/end": OfSections}
    for name, pair in {**PAIRS, **PUBSUB_PAIRS, **ENTRY_PAIRS, **QUEUE_PAIRS, **sections}.items():
        for patient, restless in waiters(pair):
            rounds = -(-ROUNDS // len(waiters(pair)))
            yield pytest.param(pair, patient, restless, rounds, id=f"{name}: {patient}, {restless}")


@pytest.mark.parametrize(("pair", "patient", "restless", "rounds"), list(races_of_all_pairs()))
def test_no_wake_up_is_lost(pair, patient, restless, rounds):
    if restless == "signals" and not hasattr(signal, "setitimer"):
        pytest.skip("no interval timers on this platform")
    one = pair()
    ended = race(one, rounds, patient, restless)
    one.close()
    assert sum(ended.woken.values()) >= rounds


@pytest.mark.parametrize("what_frees_it", ["submit", "resume", "limit", "finish"])
def test_no_call_is_left_lying_while_workers_sleep(what_frees_it):
    """The other blocking pair of an executor: workers that wait for work. A call becomes ready when the workers have
    just gone to sleep, are about to, or have not yet. Each case frees the call in one way."""
    with KeyedExecutor(2) as executor:
        lane = executor.lane("a", max_running=1)
        for _ in range(ROUNDS // 2):
            if what_frees_it == "submit":
                calls = [lane.submit(int)]
            elif what_frees_it == "resume":
                lane.pause()
                calls = [lane.submit(int), lane.submit(int)]
                lane.resume()
            elif what_frees_it == "limit":
                executor.lane("a", max_running=1)
                calls = [lane.submit(time.sleep, random.random() * QUICKLY), lane.submit(int)]
                executor.lane("a", max_running=2)
            else:
                calls = [lane.submit(int) for _ in range(3)] + [executor.submit(int)]
            done, _ = wait(calls, DEADLINE)
            assert len(done) == len(calls), "a call was left lying"
            if random.random() < 0.5:
                time.sleep(random.random() * QUICKLY)      # waits for nothing: varies the state that the workers are in


@pytest.mark.parametrize("immediate", [False, True])
def test_a_shutdown_wakes_who_subscribes_beside_it(immediate):
    """A subscriber that the shutdown did not see waits for its first message. The wait ends."""
    for _ in range(ROUNDS // 2):
        queue = PubSubQueue()
        start = threading.Barrier(2)
        with Threads() as threads:
            threads.start(subscribe_and_get, queue, start)
            start.wait(DEADLINE)
            queue.shutdown(immediate)


def subscribe_and_get(queue, start):
    start.wait(DEADLINE)
    with queue.subscribe() as subscriber, pytest.raises(ShutDown):
        subscriber.get()


@pytest.mark.parametrize("what_frees_it", ["put", "release", "ack", "resume", "due"])
def test_no_entry_is_left_lying_while_a_listener_sleeps(what_frees_it):
    """Push: a listener over two queues waits for one entry. It comes when the listener has just begun to wait, is about
    to, or has not yet."""
    queues, called = [EntryQueue("a"), EntryQueue("b")], SimpleQueue()
    with KeyedExecutor(2) as executor, Consumer(prefetch=1) as consumer:
        for queue in queues:
            consumer.subscribe(queue)
        consumer.listen(called.put, executor=executor)
        random.choice(queues).put(1)
        entry = expect(called, "called the listener")
        for _ in range(ROUNDS // 2):
            queue = random.choice(queues)
            if what_frees_it == "put":
                assert entry.ack()
                queue.put(1)
            elif what_frees_it == "release":
                assert entry.release()
            elif what_frees_it == "ack":
                queue.put(1)
                assert entry.ack()
            elif what_frees_it == "resume":
                consumer.suspend()
                assert entry.ack()
                queue.put(1)
                consumer.resume()
            else:
                assert entry.release(delay=random.random() * QUICKLY)
            entry = expect(called, "called the listener")
            if random.random() < 0.5:
                time.sleep(random.random() * QUICKLY)      # waits for nothing: varies the state that the listener is in
        assert entry.ack()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers on this platform")
@pytest.mark.parametrize("name", [
    "get/put", "put/get", "get/publish", "publish/get", "entry get/put", "entry get/put immediate", "entry put/ack",
    "consumer get/put",
])  # fmt: skip
def test_a_wake_up_goes_on_to_a_coroutine_when_a_signal_handler_raises(name):
    """The handler wakes the thread that it interrupts, and raises. The thread gets the exception, and the coroutine
    that waits behind it gets the wake-up."""
    one = {**PAIRS, **PUBSUB_PAIRS, **ENTRY_PAIRS}[name]()
    one.begin()
    waits, woken = SimpleQueue(), SimpleQueue()

    async def behind():
        task = asyncio.ensure_future(awaited(one))
        await asyncio.sleep(0)      # it runs until it waits
        waits.put(None)
        one.took(await task)
        woken.put(None)

    def handler(number, frame):
        threads.start(asyncio.run, behind())
        expect(waits, "began to wait")
        one.wake()
        raise Interrupted

    with Threads() as threads:
        waiting = one.waiting()
        with handling(signal.SIGALRM, handler), pytest.raises(Interrupted):  # noqa: PT012 - the signal may come early
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            waiting()
        expect(woken, "was let go")
    one.end()
    one.close()
