"""With a GIL, a getter that was notified and has not tried yet is enough: no other is notified until then.

A thread keeps the GIL while the switch interval lasts, so these tests say which threads have tried.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.process import run_script
from support.threads import LONG, Task, Threads, wait_getters

from manytail import MultiQueue, SubQueue

pytestmark = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="no thread can be kept from running"
)


@contextmanager
def keeping_the_gil() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(2 * LONG)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def waiting(number: int) -> Iterator[tuple[MultiQueue, SubQueue, list[Task]]]:
    """A queue, its sub-queue, and that many threads that wait in get."""
    queue = MultiQueue()
    tail = queue.add("a")
    with Threads() as threads:
        getters = [threads.start(queue.get) for _ in range(number)]
        wait_getters(queue, number)
        yield queue, tail, getters


def test_a_thread_that_takes_items_wakes_one_other_and_not_one_for_each_item():
    with waiting(4) as (queue, tail, getters):
        with keeping_the_gil():
            tail.put_many(range(8))
            assert [queue.get() for _ in range(4)] == [0, 1, 2, 3]
            assert queue.stats().getters_waiting == 3
        assert sorted(getter.result() for getter in getters) == [4, 5, 6, 7]


def test_the_notified_thread_is_to_take_what_is_put_again_after_the_items_are_gone():
    with waiting(3) as (queue, tail, getters):
        with keeping_the_gil():
            tail.put_many([1, 2])
            assert [queue.get(), queue.get()] == [1, 2]
            tail.put(3)
            assert queue.stats().getters_waiting == 2
        wait_getters(queue, 2)
        tail.put_many([4, 5])
        assert sorted(getter.result() for getter in getters) == [3, 4, 5]


CHILD = """
import sys
from manytail import MultiQueue
from support.forks import in_child
from support.threads import LONG, Threads, wait_getters

queue = MultiQueue()
tail = queue.add("a")

def child():
    sys.setswitchinterval(0.005)
    if queue.qsize():  # else the thread has tried: a fork under ASan waits until all threads sleep
        assert queue.get() == 1
    with Threads() as threads:
        getter = threads.start(queue.get)
        wait_getters(queue, 1)
        tail.put(2)
        assert getter.result() == 2

with Threads() as threads:
    getter = threads.start(queue.get)
    wait_getters(queue, 1)
    sys.setswitchinterval(2 * LONG)
    tail.put(1)
    in_child(child)
    assert getter.result() == 1
print("done")
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no os.fork here")
def test_in_a_child_nobody_waits_for_a_thread_of_the_parent_that_was_notified():
    assert run_script(CHILD, "-Wignore::DeprecationWarning") == "done\n"
