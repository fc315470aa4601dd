"""KeyedExecutor under threads that submit, cancel, pause, bound and shut down at once. Every call runs once or is
cancelled, in its lane's order and within its lane's limit; nothing is left over."""
import random
import threading
import time
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from itertools import chain

import pytest
from support.threads import DEADLINE, run_all, switching_often

from manytail.executor import KeyedExecutor

SEED = random.randrange(2**32)


class Watched:
    """A lane with a limit, and what its calls saw."""

    def __init__(self, limit):
        self.limit = limit
        self.lock = threading.Lock()
        self.running = 0
        self.peak = 0
        self.ran = []

    def call(self, mark):
        with self.lock:
            self.running += 1
            self.peak = max(self.peak, self.running)
            self.ran.append(mark)
        time.sleep(0)
        with self.lock:
            self.running -= 1
        return mark


@pytest.fixture(autouse=True)
def often():
    with switching_often():
        yield


@pytest.mark.parametrize("max_pending", [0, 5])
def test_each_call_runs_once_or_is_cancelled_in_order_and_within_limits(max_pending):
    lanes = {key: Watched(limit) for key, limit in enumerate([1, 1, 2, 3, 0])}
    rng = random.Random(SEED)
    seeds = [rng.random() for _ in range(3)]
    with KeyedExecutor(4, max_pending=max_pending) as executor:

        def produce(producer):
            mine = random.Random(seeds[producer])
            calls = []
            for n in range(1000):
                key = mine.randrange(len(lanes))
                watched = lanes[key]
                lane = executor.lane(key, max_running=watched.limit, max_pending=mine.choice([0, 3]))
                calls.append((key, n, lane.submit(watched.call, (producer, n))))
                if mine.random() < 0.2:
                    mine.choice(calls)[2].cancel()
                if mine.random() < 0.05:
                    lane.pause()
                    lane.priority = mine.randrange(2)
                    lane.weight = mine.randrange(1, 4)
                    lane.resume()
            return calls

        submitted = run_all(*[partial(produce, producer) for producer in range(3)])
        everything = [call for calls in submitted for _, _, call in calls]
        rest = wait(everything, DEADLINE).not_done
        assert not rest, f"seed {SEED}: {len(rest)} calls never ended"
        pool = executor._workers.pool
        assert (pool.pending, pool.submitters_waiting) == (0, 0)
    for producer, calls in enumerate(submitted):
        for key, watched in lanes.items():
            expected = [(producer, n) for which, n, call in calls if which == key and not call.cancelled()]
            ran = [mark for mark in watched.ran if mark[0] == producer]
            assert sorted(ran) == expected, f"seed {SEED}: lane {key} ran other calls than were not cancelled"
            if watched.limit == 1:
                assert ran == expected, f"seed {SEED}: lane {key} out of order"
    for watched in lanes.values():
        assert watched.limit == 0 or watched.peak <= watched.limit


@pytest.mark.parametrize("cancel_futures", [False, True])
def test_shutdown_among_submits_loses_no_accepted_call(cancel_futures):
    for _ in range(30):
        executor = KeyedExecutor(3, max_pending=4)
        ran = []

        def produce(start, executor=executor, ran=ran):
            calls = []
            lane = executor.lane(start % 2, max_running=1)
            with suppress(RuntimeError):
                # Calls before the refusal are in the list.
                calls.extend((n, lane.submit(ran.append, n)) for n in range(start, 300, 3))
            return calls

        def shut(executor=executor):
            time.sleep(random.random() * 0.002)         # waits for nothing: varies the moment among the submits
            executor.shutdown(cancel_futures=cancel_futures)
            return []

        accepted = list(chain(*run_all(*[partial(produce, start) for start in range(3)], shut)))
        assert all(call.done() for _, call in accepted)
        assert sorted(ran) == sorted(n for n, call in accepted if not call.cancelled())
        assert cancel_futures or not any(call.cancelled() for _, call in accepted)


def test_lanes_come_and_go_while_their_keys_are_used():
    """Idle lanes are dropped, and ended ones replaced, while other threads use the same key. A key has one lane at a
    time, so its calls with max_running=1 never overlap."""
    busy = [threading.Lock() for _ in range(3)]

    def call(key):
        assert busy[key].acquire(blocking=False), "two lanes of one key at once"
        busy[key].release()

    with KeyedExecutor(4) as executor:

        def use():
            calls = []
            for n in range(1000):
                key = n % 3
                calls.append(executor.lane(key, max_running=1).submit(call, key))
                if n % 7 == 0:
                    wait(calls, DEADLINE)
                    calls.clear()
            return wait(calls, DEADLINE).not_done

        assert run_all(use, use, use) == [set()] * 3
