"""What full() and maxsize say while threads move items and assign bounds.

The wrong answers that these tests look for need an interruption between two steps of one call, so it takes a build with
MANYTAIL_DELAYS=1 (`make stress`) to meet them.
"""

import contextlib
import threading

import pytest
from support.counts import count
from support.threads import Threads

from manytail import MultiQueue
from manytail.queue import Empty, Full, Queue

MOVES = count(3_000, 300_000)
ROUNDS = count(100, 15_000)

pytestmark = pytest.mark.thread_unsafe(reason="starts threads")


def test_a_sub_queue_that_always_has_room_is_never_full():
    queue = MultiQueue()
    tail = queue.add("a", maxsize=2)
    tail.put(0)

    def move():
        for _ in range(MOVES):
            tail.put(queue.get())

    with Threads() as threads:
        mover = threads.start(move)
        seen = {(tail.full(), tail.remaining() > 0) for _ in iter(mover.is_alive, False)}
        mover.result()
    assert seen <= {(False, True)}


def test_of_two_bounds_that_are_assigned_at_once_one_holds():
    queue = Queue()
    phase = threading.Barrier(5)

    def assign(bound):
        for _ in range(ROUNDS):
            phase.wait()
            for _ in range(4):
                queue.maxsize = bound
            phase.wait()

    def keep_busy():
        for _ in range(ROUNDS):
            phase.wait()
            for _ in range(12):
                with contextlib.suppress(Full):
                    queue.put_nowait(None)
                with contextlib.suppress(Empty):
                    queue.get_nowait()
            phase.wait()

    held = set()
    with Threads() as threads:
        for work, *bound in ((assign, 3), (assign, 4), (keep_busy,), (keep_busy,)):
            threads.start(work, *bound)
        for _ in range(ROUNDS):
            phase.wait()
            phase.wait()
            with contextlib.suppress(Full):
                while True:
                    queue.put_nowait(None)
            held.add((queue.maxsize, queue.qsize()))
            while not queue.empty():
                queue.get_nowait()
    assert held <= {(3, 3), (4, 4)}
