"""What interrupts a structure: Ctrl-C in each of its waits, and signal handlers and finalizers that use it.

Signals go to the main thread, so these tests run in it and not in parallel with others. tests/wakeups/test_handlers.py
has handlers that raise, wait, or wake the very call that they interrupt.
"""
import gc
import itertools
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from queue import Empty

import pytest
from support.counts import count
from support.process import INTERRUPTED_BY_A_LINE, environment, run_script
from support.queues import with_interrupt_pending
from support.threads import DEADLINE, LONG, Threads, acting_when, ctrl_c, main_thread_sleeps, wait_asleep, wait_until

from contract.structures import STRUCTURES
from manytail import Consumer, EntryQueue, Full, MultiQueue, PubSubQueue, ShutDown
from manytail._sync import Event, Mutex
from manytail.queue import Queue

pytestmark = pytest.mark.thread_unsafe(reason="signals go to the main thread")
needs_posix_signals = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers on Windows")

GETS = {
    "get": lambda on, **wait: on.get(**wait),
    "get_many": lambda on, **wait: on.get_many(3, **wait),
    "get of another way out": lambda on, **wait: on.item(on.outs[-1].get(**wait)),
}
PUTS = {
    "put": lambda on, **wait: on.put(9, **wait),
    "put_many": lambda on, **wait: on.put_many([9], **wait),
    "put_many of an iterator": lambda on, **wait: on.put_many(iter([9]), **wait),
}
OF_MULTI_QUEUES = {
    "get_with_key": lambda on, **wait: on.queue.get_with_key(**wait),
    "join": lambda on, **wait: on.queue.join(**wait),
    "put_front": lambda on, **wait: on.into.put_front(9, **wait),
}
WAITS = {
    f"{name}.{wait}": (structure, call, "put" in wait)
    for name, structure in STRUCTURES.items()
    for wait, call in (GETS | PUTS | OF_MULTI_QUEUES if "MultiQueue" in name else GETS | PUTS).items()
}


@pytest.fixture(params=WAITS)
def wait(request):
    """A structure and a call that waits on it."""
    if "Index" in request.param and "many" in request.param:
        pytest.importorskip("numpy")
    structure, call, puts = WAITS[request.param]
    on = structure(maxsize=1)
    if puts or "join" in request.param:
        on.put(1)
        if not puts:
            on.get()
    yield on, call
    on.close()


def still_works(on, before):
    assert on.inside() == before
    assert on.drain() == [1] * before
    on.put(2)
    assert on.get(block=False) == 2


def interrupted(call, *args, **kwargs):
    """The call waits in the main thread until Ctrl-C comes. On a busy machine that may come before the call."""
    begun = threading.Event()

    def run():
        begun.set()
        call(*args, **kwargs)

    with pytest.raises(KeyboardInterrupt), acting_when(lambda: begun.is_set() and main_thread_sleeps(), ctrl_c):
        run()


@pytest.mark.parametrize("timeout", [LONG, None])
def test_ctrl_c_ends_a_wait_and_leaves_all_as_it_was(wait, timeout):
    on, call = wait
    before = on.inside()
    interrupted(call, on, timeout=timeout)
    still_works(on, before)


def test_ctrl_c_that_came_before_a_wait_ends_it_at_once(wait):
    on, call = wait
    before = on.inside()
    with pytest.raises(KeyboardInterrupt):
        with_interrupt_pending(call, on, timeout=DEADLINE)
    still_works(on, before)


def test_ctrl_c_does_not_disturb_the_waits_of_other_threads(structure):
    on = structure()
    with Threads() as threads:
        other = threads.start(on.get)
        wait_asleep(other)
        interrupted(on.get, timeout=DEADLINE)
        on.put(1)
        assert other.result() == 1


@pytest.mark.parametrize("shape", [list, tuple, iter])
def test_an_interrupted_put_of_several_says_how_many_went_in(structure, shape):
    on = structure(maxsize=2)
    with pytest.raises(KeyboardInterrupt) as caught, acting_when(lambda: on.inside() == 2, ctrl_c):
        on.put_many(shape(range(10)))
    assert getattr(caught.value, "count", 2) == 2
    assert on.drain() == [0, 1]


def serve_signals():
    """The interpreter does so at the latest when a Python function begins."""


@pytest.mark.parametrize("shape", [list, iter])
@pytest.mark.parametrize("name", [*STRUCTURES, "sized"])
def test_ctrl_c_beside_a_failure_does_not_lose_its_count(name, shape):
    on, raised = STRUCTURES[name](maxsize=2) if name in STRUCTURES else None, None
    into = on.into if on else MultiQueue().add("a", maxsize=3, sizer=int)
    put_many = getattr(into, "put_many", None) or into.publish_many  # itself: a Python function serves signals
    gc.disable()  # hypothesis has a callback there, Python code that would get the exception
    try:
        try:
            with_interrupt_pending(put_many, shape([1, 2, 3]), block=False)
        except BaseException as error:
            raised = error
        serve_signals()
    except KeyboardInterrupt:
        pass
    finally:
        gc.enable()
        if on:
            on.close()
    assert isinstance(raised, (Full, KeyboardInterrupt))
    assert raised.count == 2


# ------------------------------------------------------------------------------------------------ handlers, finalizers
@contextmanager
def each_millisecond(timer, number, action):
    before = signal.signal(number, lambda *_: action())
    try:
        signal.setitimer(timer, 0.001, 0.001)
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)


@needs_posix_signals
def test_a_timed_wait_keeps_its_deadline_and_its_place_through_signals_that_raise_nothing(structure):
    """After each handler it takes its place again before the one that waits behind it."""
    on, calls = structure(), []

    def wait_behind():
        wait_until(lambda: calls)
        return on.get()

    with Threads() as threads, each_millisecond(signal.ITIMER_REAL, signal.SIGALRM, lambda: calls.append(1)):
        behind = threads.start(wait_behind)
        with pytest.raises(Empty):
            on.get(timeout=0.05)
        on.put(1)
        assert behind.result() == 1
    assert calls


@needs_posix_signals
def test_a_handler_may_use_the_structure_that_it_interrupts_anywhere(structure):
    """Each item that the handler or the interrupted thread put is there once."""
    on, numbers, put, got = structure(), itertools.count(), [], []

    def strike():
        number = next(numbers)  # on a slow build the timer may also fire inside its own handler
        on.put(number)
        put.append(number)

    with each_millisecond(signal.ITIMER_VIRTUAL, signal.SIGVTALRM, strike):
        while len(put) < 40:
            on.put(next(numbers))
            on.put_many([next(numbers), next(numbers)])
            got += [on.get(block=False), *on.get_many(2)]
            on.inside()
    assert sorted(got + on.drain()) == list(range(next(numbers)))


@needs_posix_signals
def test_a_handler_serves_the_wait_that_it_interrupts(structure):
    on = structure()
    with each_millisecond(signal.ITIMER_REAL, signal.SIGALRM, lambda: on.inside() or on.put(7)):
        assert on.get(timeout=LONG) == 7


def test_a_finalizer_may_put_into_the_structure_that_it_interrupts(structure):
    """The collector runs while puts allocate."""
    on, numbers, log = structure(), itertools.count(), []

    class Cycle:
        def __init__(self):
            self.me = self

        def __del__(self):
            log.append(on.put(next(numbers)))

    before = gc.get_threshold()
    gc.set_threshold(5)
    try:
        while len(log) < 50:
            Cycle()
            on.put(next(numbers))
            on.put_many([next(numbers), next(numbers)])
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert sorted(on.drain()) == list(range(next(numbers)))


RELEASES = {
    "get": lambda on: [on.get(block=False) for _ in range(3)].clear(),
    "get_many": lambda on: on.get_many(3).clear(),
    "clear, purge or close": lambda on: (
        getattr(on.into, "clear", None) or getattr(on.queue, "purge", None) or on.close
    )(),
    "immediate shutdown": lambda on: on.shutdown(immediate=True),
}


@pytest.mark.parametrize("name", [name for name in STRUCTURES if name != "IndexMultiQueue"])
@pytest.mark.parametrize("release", RELEASES)
def test_a_finalizer_of_an_item_may_use_its_structure(name, release):
    on, numbers, said = STRUCTURES[name](), itertools.count(), []

    class Last:
        def __init__(self):
            self.number = next(numbers)

        def __int__(self):
            return self.number

        def __del__(self):
            said.append(1)
            on.inside()
            with suppress(ShutDown):
                on.put(next(numbers))

    on.put_many([Last() for _ in range(3)])
    RELEASES[release](on)
    if release.startswith("get"):
        on.put(next(numbers))  # a list keeps its last place until the next one comes
    gc.collect()
    assert len(said) >= 2 + release.startswith("get")
    assert not release.startswith("get") or len(on.drain()) == 4
    on.close()


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


@pytest.mark.parametrize("make", [MultiQueue, EntryQueue, Consumer, PubSubQueue, Queue, Event, Mutex])
def test_no_python_code_runs_when_one_is_dropped(make):
    """There the exception of a signal handler would be lost."""
    made, ran = [make()], []
    if hasattr(made[0], "close"):
        made[0].close()
    sys.setprofile(lambda frame, event, argument: ran.append(frame.f_code) if event == "call" else None)
    try:
        made.clear()
    finally:
        sys.setprofile(None)
    assert ran == []
