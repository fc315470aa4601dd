"""What interrupts a queue: Ctrl-C in a wait, signal handlers and finalizers that use the queue they interrupt.

Signals go to the main thread, so these tests run in it and not in parallel with others.
"""
import gc
import itertools
import signal
import subprocess
import sys
import threading
import weakref
from queue import Empty

import pytest
from support.counts import count
from support.process import INTERRUPTED_BY_A_LINE, environment, run_script
from support.queues import drain, with_interrupt_pending
from support.threads import DEADLINE, LONG, Threads, acting_when, ctrl_c, wait_getters, wait_putters

from manytail import MultiQueue

pytestmark = pytest.mark.thread_unsafe(reason="signals go to the main thread")
needs_posix_signals = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="no SIGUSR1 and no interval timers on Windows"
)

WAITS = {
    "get": (lambda queue, tail, **kw: queue.get(**kw), "getters_waiting"),
    "get_with_key": (lambda queue, tail, **kw: queue.get_with_key(**kw), "getters_waiting"),
    "get_many": (lambda queue, tail, **kw: queue.get_many(3, **kw), "getters_waiting"),
    "put": (lambda queue, tail, **kw: tail.put(9, **kw), "putters_waiting"),
    "put_front": (lambda queue, tail, **kw: tail.put_front(9, **kw), "putters_waiting"),
    "put_many": (lambda queue, tail, **kw: tail.put_many([9], **kw), "putters_waiting"),
    "put_many of an iterator": (lambda queue, tail, **kw: tail.put_many(iter([9]), **kw), "putters_waiting"),
}


@pytest.fixture(params=WAITS)
def wait(request):
    return WAITS[request.param]


def stuck(new):
    """A full, disabled tail: every get and put blocks."""
    queue = new()
    tail = queue.add("a", maxsize=2, enabled=False)
    tail.put_many([1, 2])
    return queue, tail


# ------------------------------------------------------------------------------------------------ Ctrl-C
@pytest.mark.parametrize("timeout", [DEADLINE, None])
def test_ctrl_c_ends_a_wait_and_leaves_the_queue_as_it_was(new_bulk, wait, timeout):
    call, counter = wait
    queue, tail = stuck(new_bulk)
    before = queue.stats()
    with acting_when(lambda: getattr(queue.stats(), counter) == 1, ctrl_c), pytest.raises(KeyboardInterrupt):
        call(queue, tail, timeout=timeout)
    assert queue.stats() == before
    assert list(tail) == [1, 2]
    tail.enabled = True
    assert drain(queue) == [1, 2]
    tail.put(3)
    assert queue.get(timeout=DEADLINE) == 3


def test_ctrl_c_that_came_before_the_wait_ends_it_at_once(new_bulk, wait):
    call, _ = wait
    queue, tail = stuck(new_bulk)
    before = queue.stats()
    with pytest.raises(KeyboardInterrupt):
        with_interrupt_pending(call, queue, tail, timeout=DEADLINE)
    assert queue.stats() == before


def in_join():
    """Whether this thread is inside a call of `join`. No figure counts those who join."""
    me = sys._getframe(1)
    line = me.f_lineno
    calls = iter(range(5))  # the line stays at `queue.join` for several samples, because C code does not change it
    return lambda: me.f_lineno > line and next(calls, None) is None


def test_ctrl_c_ends_a_join(new):
    queue = new()
    queue.add("a").put(1)

    with acting_when(in_join(), ctrl_c), pytest.raises(KeyboardInterrupt):
        queue.join(DEADLINE)
    queue.task_done()
    assert queue.join(0) is True


def test_ctrl_c_does_not_disturb_the_waits_of_other_threads(new):
    queue = new()
    tail = queue.add("a")
    full = queue.add("full", maxsize=1, enabled=False)
    full.put(0)
    with Threads() as threads:
        getters = [threads.start(queue.get) for _ in range(2)]
        putter = threads.start(full.put, 1)
        wait_getters(queue, 2)
        wait_putters(queue, 1)
        with acting_when(lambda: queue.stats().getters_waiting == 3, ctrl_c), pytest.raises(KeyboardInterrupt):
            queue.get(timeout=DEADLINE)
        wait_getters(queue, 2)
        tail.put_many([1, 2])
        assert sorted(getter.result() for getter in getters) == [1, 2]
        full.clear()
        putter.result()


def test_ctrl_c_passes_a_wake_up_on(new):
    """The main thread is woken for an item and interrupted at once. It or the other getter gets the item."""
    queue = new()
    tail = queue.add("a")
    for item in range(30):
        with Threads() as threads:
            other = threads.start(queue.get)
            wait_getters(queue, 1)

            def wake_and_interrupt(item=item):
                tail.put(item)
                ctrl_c()

            mine = None
            try:
                with acting_when(lambda: queue.stats().getters_waiting == 2, wake_and_interrupt):
                    mine = queue.get(timeout=DEADLINE)
            except KeyboardInterrupt:
                pass
            if mine is None and not queue.stats().getters_waiting:
                assert other.result() == item
                continue
            tail.put(-1)
            assert {other.result(), mine} <= {item, -1, None}
        assert queue.empty() or drain(queue) == [-1]


def test_a_timed_wait_keeps_its_deadline_through_signals_that_raise_nothing(new):
    """A handler that returns neither ends nor prolongs the wait: that ends by its own timeout, with Empty."""
    if not hasattr(signal, "setitimer"):
        pytest.skip("no interval timers on Windows")
    queue = new()
    calls = []
    before = signal.signal(signal.SIGALRM, lambda *_: calls.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        with pytest.raises(Empty):
            queue.get(timeout=0.1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert calls
    assert queue.stats().getters_waiting == 0


# ------------------------------------------------------------------------------------------ handlers that use the queue
class Handler:
    """SIGUSR1 runs `action` in the main thread during the block."""

    def __init__(self, action):
        self.action = action

    def __enter__(self):
        self.before = signal.signal(signal.SIGUSR1, lambda *_: self.action())

    def __exit__(self, *_):
        signal.signal(signal.SIGUSR1, self.before)


def send_usr1():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)


@needs_posix_signals
def test_a_handler_that_puts_serves_the_get_that_it_interrupts(new_bulk):
    queue = new_bulk()
    tail = queue.add("a")
    with Handler(lambda: tail.put(7)), acting_when(lambda: queue.stats().getters_waiting == 1, send_usr1):
        assert queue.get(timeout=LONG) == 7
    with Handler(lambda: tail.put_many([8, 9])), acting_when(lambda: queue.stats().getters_waiting == 1, send_usr1):
        assert list(queue.get_many(5, timeout=LONG)) == [8, 9]


@needs_posix_signals
def test_a_handler_that_gets_makes_room_for_the_put_that_it_interrupts(new):
    queue = new()
    tail = queue.add("a", maxsize=1)
    tail.put(1)
    taken = []
    with (
        Handler(lambda: taken.append(queue.get_nowait())),
        acting_when(lambda: queue.stats().putters_waiting == 1, send_usr1),
    ):
        tail.put(2, timeout=LONG)
    assert taken == [1]
    assert drain(queue) == [2]


@needs_posix_signals
def test_a_handler_that_raises_ends_the_wait_with_its_own_exception(new_bulk, wait):
    call, counter = wait
    queue, tail = stuck(new_bulk)

    def fail():
        raise LookupError("handler")

    interrupting = acting_when(lambda: getattr(queue.stats(), counter) == 1, send_usr1)
    with Handler(fail), interrupting, pytest.raises(LookupError, match="handler"):
        call(queue, tail, timeout=LONG)
    assert list(tail) == [1, 2]
    assert getattr(queue.stats(), counter) == 0


@needs_posix_signals
@pytest.mark.parametrize("main_first", [True, False])
def test_a_get_that_is_woken_and_interrupted_at_once_passes_the_item_on(new, main_first):
    """The handler puts, which wakes the get that it interrupts, and raises. The item must reach the other getter."""
    queue = new()
    tail = queue.add("a")

    def put_and_raise():
        tail.put(1)
        raise LookupError("handler")

    with Threads() as threads:
        others = [] if main_first else [threads.start(queue.get)]
        wait_getters(queue, len(others))

        def interrupt():
            wait_getters(queue, len(others) + 1)
            if main_first:
                others.append(threads.start(queue.get))
                wait_getters(queue, 2)
            send_usr1()

        threads.start(interrupt)
        with Handler(put_and_raise), pytest.raises(LookupError, match="handler"):
            queue.get(timeout=LONG)
        assert others[0].result() == 1
    assert queue.empty()


@needs_posix_signals
@pytest.mark.parametrize("main_first", [True, False])
def test_a_put_that_is_woken_and_interrupted_at_once_passes_the_room_on(new, main_first):
    queue = new()
    tail = queue.add("a", maxsize=1)
    tail.put(0)

    def get_and_raise():
        assert queue.get_nowait() == 0
        raise LookupError("handler")

    with Threads() as threads:
        others = [] if main_first else [threads.start(tail.put, 1)]
        wait_putters(queue, len(others))

        def interrupt():
            wait_putters(queue, len(others) + 1)
            if main_first:
                others.append(threads.start(tail.put, 1))
                wait_putters(queue, 2)
            send_usr1()

        threads.start(interrupt)
        with Handler(get_and_raise), pytest.raises(LookupError, match="handler"):
            tail.put(2, timeout=LONG)
        others[0].result()
    assert drain(queue) == [1]


@needs_posix_signals
def test_a_handler_may_shut_down_the_queue_that_it_interrupts(new):
    from manytail import ShutDown

    queue = new()
    with (
        Handler(queue.shutdown),
        acting_when(lambda: queue.stats().getters_waiting == 1, send_usr1),
        pytest.raises(ShutDown),
    ):
        queue.get(timeout=LONG)


@needs_posix_signals
def test_a_handler_that_puts_into_the_queue_it_interrupts_anywhere(new):
    """A timer fires during puts, gets, discards and iteration. Each item that the handler put is there once."""
    queue = new()
    tail, mine = queue.add("a"), queue.add("handler", priority=1)
    numbers, struck = itertools.count(), []

    def strike():
        number = next(numbers)          # on a slow build the timer may also fire inside its own handler
        mine.put(number)
        struck.append(number)
        tail.put(-1)
        tail.discard(-1)
        queue.qsize()

    before = signal.signal(signal.SIGVTALRM, lambda *_: strike())
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.001, 0.001)
        step = 0
        while len(struck) < 50:
            tail.put(step)
            tail.put_many([step + 1, step + 2])
            assert step + 1 in tail
            assert tail.discard(step + 1)
            assert [queue.get(), queue.get()] == [step, step + 2]
            step += 3
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert sorted(drain(queue)) == list(range(len(struck)))


# ------------------------------------------------------------------------------------------------ finalizers
def test_a_finalizer_that_puts_into_the_queue_it_interrupts():
    """The collector runs while puts allocate. Finalizers of its garbage put into the same tail."""
    queue = MultiQueue()
    tail = queue.add("a")
    log = []

    class Cycle:
        def __init__(self):
            self.me = self

        def __del__(self):
            log.append(1)
            tail.put("finalizer")

    before = gc.get_threshold()
    gc.set_threshold(5)
    try:
        rounds = 0
        while len(log) < 100:
            Cycle()
            tail.put([rounds])
            tail.put_many([[rounds], (rounds, [])])
            rounds += 1
    finally:
        gc.set_threshold(*before)
    gc.collect()
    items = drain(queue)
    assert items.count("finalizer") == len(log) == rounds
    assert len(items) == rounds * 4


def test_a_finalizer_of_an_item_that_uses_its_queue():
    queue = MultiQueue()
    tail = queue.add("a")
    log = queue.add("log", enabled=False)

    class Item:
        def __del__(self):
            log.put(tail.qsize())
            tail.put("more")

    for release in (
        queue.get,
        tail.clear,
        lambda: tail.discard(next(iter(tail))),
        lambda: queue.get_many(1),
        queue.get_with_key,
    ):
        tail.put(Item())
        release()
        assert (log.qsize(), tail.qsize()) == (1, 1)
        log.clear()
        tail.clear()


def test_a_weakref_callback_that_uses_the_queue():
    queue = MultiQueue()
    tail = queue.add("a")

    class Item:
        pass

    item = Item()
    ref = weakref.ref(item, lambda _: tail.put("gone"))
    tail.put(item)
    del item
    queue.get()
    assert ref() is None
    assert drain(queue) == ["gone"]


def test_a_finalizer_of_the_queues_own_cycle_may_use_it():
    """The collector finds an item in a cycle with its queue. The item's finalizer still has a working queue."""
    log = []

    class Item:
        def __init__(self, queue, tail):
            self.queue, self.tail = queue, tail

        def __del__(self):
            self.tail.put("last")
            log.append(self.queue.qsize())

    queue = MultiQueue()
    tail = queue.add("a")
    tail.put(Item(queue, tail))
    del queue, tail
    gc.collect()
    gc.collect()
    assert log == [2]


def test_a_process_that_waits_dies_of_ctrl_c():
    """A script that blocks in get ends with KeyboardInterrupt."""
    script = INTERRUPTED_BY_A_LINE + "from manytail import MultiQueue; print('waiting', flush=True); MultiQueue().get()"
    piped = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", script], env=environment(), **piped, text=True) as child:
        assert child.stdout.readline() == "waiting\n"
        _, err = child.communicate("\n", timeout=DEADLINE)
    assert "KeyboardInterrupt" in err
    assert child.returncode != 0


SIGNALS = count(5_000, 300_000)
STEP = 37 if SIGNALS > 2_000 else 149        # in ns: the numbers pass over 60 us at least three times


@needs_posix_signals
def test_a_signal_that_comes_shortly_after_another_is_handled_in_a_wait():
    """Not when another signal happens to come: the second one may come when the first has just been handled."""
    assert run_script(f"""
import os, select, signal, time
from manytail import MultiQueue
handled, handler = os.pipe()
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.signal(signal.SIGUSR2, lambda *_: os.write(handler, b"x"))
waiting = os.getpid()
if os.fork() == 0:
    for number in range({SIGNALS}):
        os.kill(waiting, signal.SIGUSR1)
        until = time.perf_counter_ns() + number * {STEP} % 60_000
        while time.perf_counter_ns() < until:
            continue
        os.kill(waiting, signal.SIGUSR2)
        if not select.select([handled], [], [], {DEADLINE})[0]:
            os.kill(waiting, signal.SIGKILL)
        os.read(handled, 1)
    os.kill(waiting, signal.SIGINT)
    os._exit(0)
queue = MultiQueue()
queue.add("a")
try:
    queue.get()
except KeyboardInterrupt:
    print("done")
""") == "done\n"
