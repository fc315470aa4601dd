"""PubSubQueues across os.fork, in finalizers at exit, and under Ctrl-C and signal handlers."""
import os
import signal
import threading
import time

import pytest
from support.process import run_script
from support.threads import DEADLINE, acting_when, ctrl_c

from manytail import PubSubQueue

pytestmark = pytest.mark.thread_unsafe(reason="signals go to the main thread; processes of their own")

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork here")
needs_posix_signals = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers on Windows")

FORK = """
import asyncio, os, signal, sys, threading, time, traceback
from manytail import ClosedError, Full, Empty, PubSubQueue, ShutDown
from support.forks import in_child, thread

queue = PubSubQueue(maxsize=3)
a, b = queue.subscribe(), queue.subscribe()
"""


def fork(script: str) -> None:
    assert run_script(FORK + script + "\na.close(); b.close()\nprint('done')", "-Wignore::DeprecationWarning").endswith(
        "done\n"
    )


@needs_fork
def test_a_child_has_its_own_copy():
    fork("""
queue.publish_many([1, 2, 3])
a.get()
def child():
    assert a.get_many(9) == [2, 3] and b.get_many(9) == [1, 2, 3]
    with queue.subscribe() as c:
        assert queue.publish(4) == 3
        assert a.get() == b.get() == c.get() == 4
    queue.shutdown()
    assert list(a) == []
in_child(child)
assert a.get_many(9) == [2, 3] and b.get_many(9) == [1, 2, 3]
assert queue.publish("mine") == 3
assert a.get() == b.get() == "mine"
""")


@needs_fork
def test_a_child_forgets_the_waiters_of_other_threads():
    fork("""
full = PubSubQueue(maxsize=1)
stuck = full.subscribe()
full.publish(0)
getters = [thread(a.get) for _ in range(2)]
putter = thread(full.publish, 9)
time.sleep(0.2)     # so that they wait, mostly; right if they do not
def child():
    queue.publish(1)
    assert a.get() == b.get() == 1     # it went to nobody else
    assert stuck.get() == 0
    assert full.publish(5) == 1 and stuck.get() == 5
    getter = thread(a.get)
    queue.publish(2)
    assert getter() == 2
in_child(child)
queue.publish_many([1, 2])
assert sorted(getter() for getter in getters) == [1, 2]
stuck.get()
assert putter() == 1
stuck.close()
""")


@needs_fork
def test_forking_while_threads_publish_and_take():
    fork("""
import itertools
stop = threading.Event()
busy = PubSubQueue(maxsize=8)
readers = [busy.subscribe() for _ in range(2)]
def publish():
    try:
        for number in itertools.count():
            busy.publish([number])
    except ShutDown:
        return "down"
def read(subscriber):
    return sum(1 for _ in subscriber)
threads = [thread(publish), thread(publish), *(thread(read, reader) for reader in readers)]
def child():
    for reader in readers:
        while reader.lag:
            reader.get()
    assert busy.qsize() == 0
    busy.publish("still works")
    assert [reader.get() for reader in readers] == ["still works"] * 2
    for reader in readers:
        reader.close()
for _ in range(10):
    in_child(child)
busy.shutdown()
assert [threads[0](), threads[1]()] == ["down", "down"]
assert threads[2]() == threads[3]() == busy.stats().published
for reader in readers:
    reader.close()
""")


@needs_fork
def test_a_coroutine_of_the_forking_thread_goes_on_in_the_child():
    fork("""
loop = asyncio.new_event_loop()
waiting = loop.create_task(a.aget())
loop.run_until_complete(asyncio.sleep(0))
def child():
    queue.publish("in the child")
    assert loop.run_until_complete(waiting) == "in the child"
in_child(child)
queue.publish("in the parent")
assert loop.run_until_complete(waiting) == "in the parent"
loop.close()
b.get()
""")


def test_queues_left_over_at_exit_do_no_harm():
    assert run_script("""
import threading
from manytail import PubSubQueue
queue = PubSubQueue(maxsize=1)
subscriber = queue.subscribe()
class Late:
    def __del__(self):
        queue and queue.publish("late", False)
queue.publish(Late())
threading.Thread(target=lambda: queue.publish(1), daemon=True).start()
threading.Thread(target=queue.subscribe().get_many, args=(5,), daemon=True).start()
print("done")
""", "-Wignore").endswith("done\n")


# ------------------------------------------------------------------------------------------------ Ctrl-C
WAITS = {
    "get": lambda queue, empty, **kw: empty.get(**kw),
    "get_many": lambda queue, empty, **kw: empty.get_many(3, **kw),
    "iteration": lambda queue, empty, timeout: next(iter(empty)),
    "publish": lambda queue, empty, **kw: queue.publish(9, **kw),
    "publish_many": lambda queue, empty, **kw: queue.publish_many([9], **kw),
    "publish_many of an iterator": lambda queue, empty, **kw: queue.publish_many(iter([9]), **kw),
}


@pytest.mark.parametrize("timeout", [DEADLINE, None])
@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_wait_and_leaves_the_queue_as_it_was(wait, timeout):
    queue = PubSubQueue(maxsize=2)
    with queue.subscribe() as slow, queue.subscribe() as empty:
        queue.publish_many([1, 2])
        empty.get_many(2)
        before = queue.stats()
        moment = time.monotonic() + 0.03    # mostly during the wait; the test holds at any moment
        with pytest.raises(KeyboardInterrupt), acting_when(lambda: time.monotonic() > moment, ctrl_c):
            WAITS[wait](queue, empty, timeout=timeout)
        assert queue.stats() == before
        assert slow.get_many(5) == [1, 2]
        queue.publish(3)
        assert slow.get() == empty.get() == 3


def test_an_interrupted_publish_many_says_how_many_went_in():
    queue = PubSubQueue(maxsize=2)
    with queue.subscribe() as slow:
        with pytest.raises(KeyboardInterrupt) as caught, acting_when(lambda: queue.qsize() == 2, ctrl_c):
            queue.publish_many(list(range(10)))
        assert getattr(caught.value, "count", 2) == 2
        assert slow.get_many(5) == [0, 1]


@needs_posix_signals
def test_a_handler_may_use_the_queue_that_it_interrupts():
    queue = PubSubQueue()
    seen = []

    def handler(*_):
        with queue.subscribe() as mine:
            queue.publish("from the handler")
            seen.append(mine.get())

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with queue.subscribe() as subscriber:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            assert subscriber.get(timeout=DEADLINE) == "from the handler"
            signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
            expected = []
            while len(seen) < 200:
                queue.publish(len(expected))
                expected.append(len(expected))
            signal.setitimer(signal.ITIMER_REAL, 0)
            got = subscriber.get_many(10**7)
            assert [message for message in got if message != "from the handler"] == expected
            assert len(seen) - 1 == len(got) - len(expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_waiting_worker_does_not_disturb_ctrl_c_in_the_main_thread():
    queue = PubSubQueue()
    with queue.subscribe() as subscriber, queue.subscribe() as mine:
        waiting = threading.Thread(target=lambda: list(subscriber), daemon=True)
        waiting.start()
        moment = time.monotonic() + 0.02
        with pytest.raises(KeyboardInterrupt), acting_when(lambda: time.monotonic() > moment, ctrl_c):
            mine.get(timeout=DEADLINE)
        queue.shutdown()
        waiting.join(DEADLINE)
        assert not waiting.is_alive()
