"""Locked mode: what `mutex`, the conditions and `queue` are, how a queue in use enters it, and the hooks of
subclasses."""
import itertools
import os
import random
import signal
import threading
from collections import deque
from functools import partial

import pytest
from support.counts import count_of_races, part
from support.process import run_script
from support.threads import (
    DEADLINE,
    LONG,
    Threads,
    acting_when,
    ctrl_c,
    run_all,
    switching_often,
    wait_asleep,
    wait_until,
)

from manytail.queue import Empty, Full, LifoQueue, Queue, ShutDown, SimpleQueue

from .conftest import locked

pytestmark = pytest.mark.thread_unsafe(reason="starts threads and looks at their state")


# -------------------------------------------------------------------------------------------- the mutex, the conditions
def test_they_are_always_the_same():
    q = Queue()
    for name in ("mutex", "not_empty", "not_full", "all_tasks_done", "queue"):
        assert getattr(q, name) is getattr(q, name)
    with q.mutex:
        assert q.not_empty.wait(0) is False
        assert q.mutex.locked()


@pytest.mark.parametrize("hold", ["mutex", "not_empty", "not_full", "all_tasks_done"])
def test_holding_the_mutex_excludes_put_and_get(hold):
    q = Queue()
    q.put(1)
    with Threads() as threads:
        with getattr(q, hold):
            calls = [threads.start(call) for call in (q.get, partial(q.put, 2), q.qsize, q.task_done)]
            wait_asleep(*calls)
            assert all(call.is_alive() for call in calls)
            assert list(q.queue) == [1]
        assert calls[0].result() in (1, 2)
    assert q.qsize() == 1


def test_threads_that_ask_at_once_get_one_mutex():
    for _ in range(200):
        q = Queue()
        for n in range(5):
            q.put(n)
        mutexes = run_all(*[lambda q=q: (q.mutex, list(q.queue))] * 3)
        assert all(mutex is q.mutex and items == [0, 1, 2, 3, 4] for mutex, items in mutexes)


def test_no_item_or_task_is_missing_while_another_thread_enters_locked_mode():
    """Without the GIL the mutex is there before they are counted."""
    for _ in range(count_of_races(10, 100)):
        q, entered, seen = Queue(), threading.Event(), set()
        for n in range(100_000):
            q.put(n)

        def enter(q=q, entered=entered):
            assert q.mutex
            entered.set()

        def watch(q=q, entered=entered, seen=seen):
            while not entered.is_set():
                seen.update((q.unfinished_tasks, q.qsize()))
            seen.update((q.unfinished_tasks, q.qsize()))

        run_all(enter, watch, watch)
        assert seen == {100_000}


def test_items_and_tasks_stay():
    q = Queue(5)
    for n in range(5):
        q.put(n)
    assert q.get() == 0
    q.task_done()
    assert list(q.queue) == [1, 2, 3, 4]
    assert (q.qsize(), q.unfinished_tasks, q.full()) == (4, 4, False)
    q.put(5)
    with pytest.raises(Full):
        q.put_nowait(6)
    assert [q.get() for _ in range(5)] == [1, 2, 3, 4, 5]
    for _ in range(5):
        q.task_done()
    with pytest.raises(ValueError, match="too many"):
        q.task_done()
    assert q.join()


def test_who_waits_goes_on_waiting_in_locked_mode():
    empty, full, tasks = Queue(), Queue(1), Queue()
    full.put(1)
    tasks.put(1)
    with Threads() as threads:
        getter, putter, joiner = threads.start(empty.get), threads.start(full.put, 2), threads.start(tasks.join)
        wait_asleep(getter, putter, joiner)
        for q in (empty, full, tasks):
            wait_until(lambda mutex=q.mutex: not mutex.locked())    # who waits takes it for a moment when it moves
        wait_asleep(getter, putter, joiner)
        assert all(call.is_alive() for call in (getter, putter, joiner))
        empty.put(3)
        assert getter.result() == 3
        assert full.get() == 1
        putter.result()
        assert full.get(timeout=LONG) == 2
        tasks.task_done()
        assert joiner.result() is True


def test_shutdown_comes_along():
    q = Queue()
    q.put(1)
    q.shutdown()
    assert list(q.queue) == [1]
    with pytest.raises(ShutDown):
        q.put(2)
    assert q.get() == 1
    with pytest.raises(ShutDown):
        q.get()


def test_a_purge_as_programs_do_it():
    q = Queue(3)
    for n in range(3):
        q.put(n)
    with Threads() as threads:
        joiner = threads.start(q.join)
        wait_asleep(joiner)
        with q.mutex:
            q.queue.clear()
            q.unfinished_tasks = 0
            q.all_tasks_done.notify_all()
            q.not_full.notify_all()
        assert joiner.result() is True
        for n in range(3):
            q.put(n)
        putter = threads.start(q.put, 3)
        wait_asleep(putter)
        with q.not_full:
            q.queue.clear()
            q.not_full.notify()
        putter.result()
    assert (q.get(), q.unfinished_tasks) == (3, 4)


def test_waiting_for_a_condition_of_the_queue():
    q = Queue(1)
    with Threads() as threads:
        def wait():
            with q.not_empty:
                return q.not_empty.wait_for(lambda: list(q.queue), timeout=LONG)

        waiter = threads.start(wait)
        wait_asleep(waiter)
        q.put("there")
        assert waiter.result() == ["there"]
    with q.not_full:
        assert q.not_full.wait(timeout=0.001) is False
        assert q.not_full.wait_for(lambda: False, timeout=0.001) is False
    for call in (q.not_full.wait, q.not_full.notify, q.not_full.notify_all):
        with pytest.raises(RuntimeError, match="un-acquired lock"):
            call()


def test_ctrl_c_in_a_condition_leaves_the_mutex_held():
    q = Queue()
    with q.not_empty:
        with acting_when(lambda: "1 waiting" in repr(q.not_empty), ctrl_c), pytest.raises(KeyboardInterrupt):
            q.not_empty.wait()
        assert q.mutex.locked()
        assert q.not_empty.wait(0) is False
    assert not q.mutex.locked()


@pytest.mark.parametrize("call", ["get", "put"])
def test_ctrl_c_passes_a_wake_up_on(call):
    """The main thread is notified, and interrupted before it has the mutex: the other waiting thread is woken."""
    q = locked(1)
    if call == "put":
        q.put(0)
    condition = q.not_empty if call == "get" else q.not_full
    waiting = q.get if call == "get" else partial(q.put, 1)
    handled = threading.Event()

    def handler(number, frame):
        if not handled.is_set():
            handled.set()
            raise KeyboardInterrupt

    def act():
        wait_until(lambda: "1 waiting" in repr(condition))
        other = threads.start(waiting)
        wait_until(lambda: "2 waiting" in repr(condition))
        with q.mutex:
            q.queue.append(1) if call == "get" else q.queue.clear()
            condition.notify()
            wait_until(lambda: ctrl_c() or handled.is_set())     # repeated: a Ctrl-C before it sleeps does not wake it
        return other.result()

    before = signal.signal(signal.SIGINT, handler)
    try:
        with Threads() as threads:
            acting = threads.start(act)
            with pytest.raises(KeyboardInterrupt):
                waiting()
            assert acting.result() == (1 if call == "get" else None)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_queue_in_use_enters_locked_mode_and_loses_nothing():
    """Putters, getters, task_done and join run while another thread asks for the mutex at a random moment."""
    luck = random.Random(7)
    with switching_often():
        for _ in range(60):
            q, got, number, each = Queue(luck.choice([0, 1, 7])), [], 2, 150

            def put(first, q=q, each=each):
                for n in range(each):
                    q.put((first, n))

            def get(q=q, got=got, each=each):
                mine = []
                for _ in range(each):
                    mine.append(q.get(timeout=DEADLINE))
                    q.task_done()
                got.append(mine)

            def enter(q=q, calls_before=luck.randrange(200)):
                for _ in range(calls_before):
                    q.qsize()
                with q.mutex:
                    inside = len(q.queue)
                    assert q.unfinished_tasks >= inside
                    assert len(q.queue) == inside, "somebody else was let in"

            run_all(*[partial(put, first) for first in range(number)], *[get] * number, enter, q.join)
            assert q.join(DEADLINE)
            assert (q.qsize(), q.unfinished_tasks) == (0, 0)
            every = [(first, n) for first in range(number) for n in range(each)]
            assert sorted(itertools.chain.from_iterable(got)) == every
            for mine in got:
                for first in range(number):
                    order = [n for origin, n in mine if origin == first]
                    assert order == sorted(order)


def test_a_maxsize_that_is_assigned_during_a_call():
    """The call looks at one of the two."""
    q = locked(1)
    with Threads() as threads:
        with q.mutex:
            full = threads.start(q.full)
            wait_asleep(full)
            q.maxsize = 0
        assert full.result() is False

    class Unbinds(Queue):
        def _qsize(self):
            self.maxsize = 0
            return super()._qsize()

    q = Unbinds(1)
    q.put_nowait(1)
    assert q.get_nowait() == 1


# ------------------------------------------------------------------------------------------------ hooks
def test_hooks_run_under_one_lock():
    class Watched(Queue):
        inside = 0

        def watched(self, call):
            assert self.mutex.locked()
            assert self.inside == 0, "two hooks at once"
            self.inside += 1
            result = call()
            self.inside -= 1
            return result

        def _qsize(self):
            return self.watched(super()._qsize)

        def _put(self, item):
            self.watched(lambda: super(Watched, self)._put(item))

        def _get(self):
            return self.watched(super()._get)

    q = Watched(3)
    with switching_often():
        put, get = (lambda: [q.put(n) for n in range(300)]), (lambda: [q.get(timeout=DEADLINE) for _ in range(300)])
        got = run_all(put, put, get, get)
    assert sorted(got[2] + got[3]) == sorted([*range(300)] * 2)


class Failing(Queue):
    """A hook raises once after fail() was called for it."""

    failing = None

    def _fail(self, hook):
        if self.failing == hook:
            self.failing = None
            raise LookupError(hook)

    def _put(self, item):
        self._fail("put")
        super()._put(item)

    def _get(self):
        self._fail("get")
        return super()._get()


@pytest.mark.parametrize(("hook", "items"), [("put", 0), ("get", 1)])
def test_what_a_hook_raises_leaves_the_queue_as_it_was(hook, items):
    q = Failing(1)
    if items:
        q.put(1)
    q.failing = hook
    with pytest.raises(LookupError):
        q.get() if items else q.put(1)
    assert (q.qsize(), q.unfinished_tasks, q.mutex.locked()) == (items, items, False)
    if not items:
        q.put(1)
    assert q.get() == 1


def test_a_wake_up_whose_hook_raises_is_passed_on():
    """Two threads wait for one slot, or one item. If the hook of the woken one raises, the other one is woken."""
    for hook in ("put", "get"):
        q = Failing(1)
        if hook == "put":
            q.put(0)
        with Threads() as threads:
            waiting = [threads.start(q.put, n) if hook == "put" else threads.start(q.get) for n in (1, 2)]
            wait_asleep(*waiting)
            q.failing = hook
            if hook == "put":
                q.get()
            else:
                q.put(3)
            wait_until(lambda waiting=waiting: not any(task.is_alive() for task in waiting))
            outcomes = [task.outcome() for task in waiting]
        assert sum(isinstance(outcome, LookupError) for outcome in outcomes) == 1


class FailingAfterwards(Queue):
    """A hook raises once after it has done its work, as by a signal handler."""

    failing = None

    def _fail(self, hook):
        if self.failing == hook:
            self.failing = None
            raise LookupError(hook)

    def _put(self, item):
        super()._put(item)
        self._fail("put")

    def _get(self):
        super()._get()
        self._fail("get")


@pytest.mark.parametrize("hook", ["put", "get"])
def test_who_waits_learns_what_a_hook_has_done_before_it_raised(hook):
    q = FailingAfterwards(1)
    if hook == "get":
        q.put(1)
    with Threads() as threads:
        waiting = threads.start(q.get if hook == "put" else partial(q.put, 2))
        wait_asleep(waiting)
        q.failing = hook
        with pytest.raises(LookupError):
            q.put(1) if hook == "put" else q.get()
        waiting.result()
    assert q.qsize() == (hook == "get")


def test_put_nowait_and_get_nowait_go_through_overridden_put_and_get():
    class Mine(Queue):
        def put(self, item, block=True, timeout=None):
            super().put(("mine", item), block, timeout)

        def get(self, block=True, timeout=None):
            return (*super().get(block, timeout), block)

    q = Mine()
    q.put_nowait(1)
    assert q.get_nowait() == ("mine", 1, False)
    with pytest.raises(Empty):
        q.get_nowait()


@pytest.mark.parametrize("base", [Queue, LifoQueue])
def test_empty_and_full_do_not_go_through_an_overridden_qsize(base):
    class Mine(base):
        def qsize(self):
            return "none" if self.empty() else "full" if self.full() else "some"

    q = Mine(2)
    seen = [q.qsize()]
    for n in range(2):
        q.put(n)
        seen.append(q.qsize())
    assert seen == ["none", "some", "full"]


def test_hooks_may_be_some_of_them():
    class Own(Queue):
        def _init(self, maxsize):
            self.queue = [maxsize]

        def _get(self):
            return self.queue.pop()

    q = Own(3)
    q.put(4)
    assert [q.get(), q.get()] == [4, 3]

    class Without(Queue):
        def _init(self, maxsize):
            """Makes no queue."""

    with pytest.raises(AttributeError, match="its _init has not set it"):
        Without().put(1)


@pytest.mark.parametrize("name", ["maxsize", "queue"])
def test_an_attribute_may_be_assigned_while_others_read_it(name):
    """Without the GIL a reader must not be left with an object that the assignment frees."""
    q = locked()
    first = 10**9
    make, number_of = {"maxsize": (int, int), "queue": (lambda n: deque([n]), lambda items: items[0])}[name]
    setattr(q, name, make(first))

    def write():
        for n in range(50_000):
            setattr(q, name, make(first + n))

    def read():
        for _ in range(50_000):
            assert first <= number_of(getattr(q, name)) < first + 50_000

    run_all(write, write, read, read)


# ------------------------------------------------------------------------------------------------ memory, processes
@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue", "LifoQueue"])
def test_queues_nested_deep_are_freed(kind):
    assert run_script(f"""
from manytail.queue import {kind} as kind
inner = kind()
for _ in range({part(200_000)}):
    outer = kind()
    outer.put(inner)
    inner = outer
del inner, outer
print("done")
""") == "done\n"


def test_a_finalizer_puts_into_the_queue_that_lets_it_go():
    class Puts:
        def __init__(self, q):
            self.q = q

        def __del__(self):
            self.q.put("from the finalizer")

    for kind in (Queue, SimpleQueue):
        q = kind()
        q.put(Puts(q))
        q.get()
        assert q.get(timeout=DEADLINE) == "from the finalizer"
        q.put(Puts(q))
    q = Queue()
    q.put(Puts(q))
    assert len(q.queue) == 1            # entering locked mode drops no item


FORKING = """
import collections, os, sys, threading
from support.forks import in_child, thread
inside, go_on = threading.Event(), threading.Event()
def stay():
    inside.set()
    go_on.wait()
"""


def fork(script):
    """It forks beside threads."""
    run_script(FORKING + script, "-Wignore::DeprecationWarning")


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


@forks
def test_queues_work_after_fork():
    fork("""
from manytail.queue import PriorityQueue, Queue, SimpleQueue
class Slow(Queue):
    def _put(self, item):
        if item == "slow":
            stay()
        super()._put(item)
waiting, slow = [Queue(), SimpleQueue(), PriorityQueue()], Slow()
ends = [thread(q.get) for q in waiting] + [thread(waiting[0].join), thread(slow.put, "slow")]
inside.wait()
def child():
    for q in (*waiting, slow, Queue(1)):
        q.put(1)
        assert q.get(timeout=60) == 1, q
in_child(child)
go_on.set()
for q in waiting:
    q.put(1)
waiting[0].task_done()
for end in ends:
    end()
""")


@forks
def test_a_fork_while_a_queue_is_about_to_enter_locked_mode():
    """The queue is registered for forks before its mutex is set. Another thread may fork in between, or before."""
    fork("""
from manytail import _lifecycle
from manytail.queue import Queue
q, forked, ref = Queue(), [], _lifecycle.ref
def child():
    q.put(1)
    assert q.get(timeout=60) == 1
    assert not q.mutex.locked()
def fork(owner, forget):
    if owner is q:
        _lifecycle.ref = ref
        forked.append(in_child(child))
    return ref(owner, forget)
q._after_fork()
_lifecycle.ref = fork
q.mutex
assert len(forked) == 1
""")


@forks
def test_a_fork_while_another_thread_is_inside_acquire_of_the_mutex():
    """It has the lock and waits for the GIL. Here a lock of Python code waits in its place. What the thread that forks
    holds it still holds in the child."""
    fork("""
Lock = threading.Lock
class Slow:
    def __init__(self):
        self.lock = Lock()
        self.release, self.locked, self._at_fork_reinit = self.lock.release, self.lock.locked, self.lock._at_fork_reinit
    def acquire(self, *arguments):
        taken = self.lock.acquire(*arguments)
        if threading.current_thread() is not threading.main_thread():
            stay()
        return taken
threading.Lock = Slow
from manytail.queue import LifoQueue
q = LifoQueue()
threading.Lock = Lock
def child():
    q.put(2)
    assert q.get(timeout=60) == 2
q.mutex.acquire()
def child_of_the_holder():
    assert q.mutex.locked()
    q.mutex.release()
    child()
in_child(child_of_the_holder)
q.mutex.release()
end = thread(q.put, 1)
inside.wait()
in_child(child)
go_on.set()
end()
""")


@forks
def test_a_fork_while_another_thread_enters_locked_mode():
    """The child completes the move. Without the GIL that thread may wait for a lock when another one forks; here it
    waits in a deque of Python code."""
    fork("""
deque = collections.deque
class Slow(deque):
    def append(self, item):
        if item == "slow":
            stay()
        super().append(item)
collections.deque = Slow
from manytail.queue import Queue
collections.deque = deque
items = [1, "slow", 2]
q = Queue()
for item in items:
    q.put(item)
end = thread(lambda: q.mutex)
inside.wait()
def all_are_there():
    go_on.set()
    assert q.unfinished_tasks == 3
    assert [q.get(timeout=60) for _ in items] == items
in_child(all_are_there)
go_on.set()
end()
all_are_there()
""")


def test_daemons_that_wait_do_not_hold_up_the_end():
    assert run_script("""
import threading
from manytail.queue import PriorityQueue, Queue, SimpleQueue
for kind in (Queue, SimpleQueue, PriorityQueue):
    threading.Thread(target=kind().get, daemon=True).start()
print("done")
""") == "done\n"
