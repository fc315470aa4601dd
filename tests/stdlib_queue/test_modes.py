"""Locked mode: which queues are in it, what `mutex`, the conditions and `queue` are, and the hooks of subclasses."""
import itertools
import os
import random
import signal
import sys
import threading
from collections import deque
from contextlib import suppress
from functools import partial

import pytest
from support.counts import part
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

from manytail.queue import Empty, Queue, SimpleQueue

from .conftest import Locked

pytestmark = pytest.mark.thread_unsafe(reason="starts threads and looks at their state")


# -------------------------------------------------------------------------------------------- which queues are in it
OF_THE_MUTEX = ("mutex", "not_empty", "not_full", "all_tasks_done", "queue")


@pytest.mark.parametrize("kind", [Queue, type("Mine", (Queue,), {"put": Queue.put, "qsize": Queue.qsize})])
def test_an_ordinary_queue_has_no_mutex(kind):
    q = kind()
    q.put(1)
    for name in OF_THE_MUTEX:
        with pytest.raises(AttributeError, match=rf"{name}: .*queue\.Queue of the standard library"):
            getattr(q, name)
        with pytest.raises(AttributeError, match=rf"{name}: .*queue\.Queue of the standard library"):
            setattr(q, name, deque())
        assert not hasattr(q, name)
    with pytest.raises(AttributeError, match=r"unfinished_tasks .*queue\.Queue of the standard library"):
        q.unfinished_tasks = 0
    assert (q.unfinished_tasks, q.get()) == (1, 1)


@pytest.mark.parametrize("hook", ["_init", "_qsize", "_put", "_get"])
def test_one_hook_is_enough(hook):
    class Mine(Queue):
        pass

    setattr(Mine, hook, lambda self, *arguments: getattr(super(Mine, self), hook)(*arguments))

    class Derived(Mine):
        pass

    q = Derived()
    q.put(1)
    assert (list(q.queue), q.mutex.locked(), q.get(), q.unfinished_tasks) == ([1], False, 1, 1)
    with pytest.raises(AttributeError, match="its _init has not set it"):
        getattr(Locked.__new__(Locked), "queue")  # noqa: B009


def test_a_hook_that_is_defined_later_changes_no_queue():
    class Mine(Queue):
        pass

    q = Mine()
    Mine._put = lambda self, item: None
    q.put(1)
    assert (q.get(), hasattr(q, "mutex"), hasattr(Mine(), "mutex")) == (1, False, True)


# -------------------------------------------------------------------------------------------- the mutex, the conditions
def test_they_are_always_the_same():
    q = Locked()
    for name in OF_THE_MUTEX:
        assert getattr(q, name) is getattr(q, name)
    with q.mutex:
        assert q.not_empty.wait(0) is False
        assert q.mutex.locked()


@pytest.mark.parametrize("hold", ["mutex", "not_empty", "not_full", "all_tasks_done"])
def test_holding_the_mutex_excludes_put_and_get(hold):
    q = Locked()
    q.put(1)
    with Threads() as threads:
        with getattr(q, hold):
            calls = [threads.start(call) for call in (q.get, partial(q.put, 2), q.qsize, q.task_done)]
            wait_asleep(*calls)
            assert all(call.is_alive() for call in calls)
            assert list(q.queue) == [1]
        assert calls[0].result() in (1, 2)
    assert q.qsize() == 1


def test_a_purge_as_programs_do_it():
    q = Locked(3)
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
    q = Locked(1)
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
    q = Locked()
    with q.not_empty:
        with acting_when(lambda: "1 waiting" in repr(q.not_empty), ctrl_c), pytest.raises(KeyboardInterrupt):
            q.not_empty.wait()
        assert q.mutex.locked()
        assert q.not_empty.wait(0) is False
    assert not q.mutex.locked()


@pytest.mark.parametrize("call", ["get", "put"])
def test_ctrl_c_passes_a_wake_up_on(call):
    """The main thread is notified, and interrupted before it has the mutex: the other waiting thread is woken."""
    q = Locked(1)
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


def test_a_queue_whose_mutex_others_hold_loses_nothing():
    """Putters, getters, task_done and join run while another thread takes the mutex at a random moment."""
    luck = random.Random(7)
    with switching_often():
        for _ in range(60):
            q, got, number, each = Locked(luck.choice([0, 1, 7])), [], 2, 150

            def put(first, q=q, each=each):
                for n in range(each):
                    q.put((first, n))

            def get(q=q, got=got, each=each):
                mine = []
                for _ in range(each):
                    mine.append(q.get(timeout=DEADLINE))
                    q.task_done()
                got.append(mine)

            def hold(q=q, calls_before=luck.randrange(200)):
                for _ in range(calls_before):
                    q.qsize()
                with q.mutex:
                    inside = len(q.queue)
                    assert q.unfinished_tasks >= inside
                    assert len(q.queue) == inside, "somebody else was let in"

            run_all(*[partial(put, first) for first in range(number)], *[get] * number, hold, q.join)
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
    q = Locked(1)
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


@pytest.mark.parametrize("look", [1, 2])
def test_a_maxsize_that_is_assigned_while_a_put_looks_is_not_missed(look):
    """Another thread assigns it without the mutex, when the put has read the old one. It would sleep for ever."""
    class Late(Queue):
        looks = 0

        def _qsize(self):
            self.looks += 1
            if self.looks == look:
                run_all(lambda: setattr(self, "maxsize", 2))
            return super()._qsize()

    q = Late(1)
    q._put(0)
    with Threads() as threads:
        threads.start(q.put, 1).result()
    assert list(q.queue) == [0, 1]


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


@pytest.mark.parametrize("base", [Queue, Locked])
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
    q = Locked()
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
LOCKED = """
from manytail.queue import Queue, SimpleQueue
class Locked(Queue):
    def _put(self, item):
        super()._put(item)
"""


@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue", "Locked"])
def test_queues_nested_deep_are_freed(kind):
    assert run_script(LOCKED + f"""
kind = {kind}
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
    run_script(FORKING + LOCKED + script, "-Wignore::DeprecationWarning")


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


@forks
def test_queues_work_after_fork():
    fork("""
class Slow(Queue):
    def _put(self, item):
        if item == "slow":
            stay()
        super()._put(item)
waiting, slow = [Queue(), SimpleQueue(), Locked()], Slow()
ends = [thread(q.get) for q in waiting] + [thread(waiting[0].join), thread(slow.put, "slow")]
inside.wait()
def child():
    for q in (*waiting, slow, Queue(1), Locked(1)):
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
q = Locked()
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


def test_daemons_that_wait_do_not_hold_up_the_end():
    assert run_script(LOCKED + """
import threading
for kind in (Queue, SimpleQueue, Locked):
    threading.Thread(target=kind().get, daemon=True).start()
print("done")
""") == "done\n"


def test_a_recursion_that_is_too_deep_leaves_the_mutex_free():
    def at(depth, then):
        return at(depth - 1, then) if depth else then()

    def held(queue):
        with queue.mutex:
            return 1

    for use in (held, lambda queue: queue.put(1), lambda queue: queue.put_nowait(1), lambda queue: queue.qsize()):
        for depth in range(sys.getrecursionlimit() - 60, sys.getrecursionlimit()):
            queue = Locked()
            with suppress(RecursionError):
                at(depth, partial(use, queue))
            assert not queue.mutex.locked()
