"""Every structure across os.fork, and in an interpreter that ends. Each test runs a script in its own interpreter."""
import os

import pytest
from support.process import run_script

from contract.structures import STRUCTURES

pytestmark = pytest.mark.thread_unsafe(reason="processes of their own; four of each at a time show nothing more")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork here")

BEGIN = """
import asyncio, threading
from queue import Empty, Full
from contract.structures import ENDED, STRUCTURES
from support.forks import in_child
from support.threads import Task, wait_asleep

def thread(function, *args):
    task = Task(function, args, {{}})
    task.start()
    wait_asleep(task)
    return task

for name in {names}:
    new = STRUCTURES[name]
    on, full = new(), new(maxsize=1)
    full.put(0)
"""


def script(body: str, *options: str) -> None:
    """The body for each structure."""
    body = "\n".join("    " + line for line in [*body.strip().splitlines(), "on.close(); full.close()"])
    said = run_script(BEGIN.format(names=list(STRUCTURES)) + body + "\nprint('done')", *options)
    assert said.endswith("done\n")


def fork(body: str) -> None:
    script(body, "-Wignore::DeprecationWarning")


@needs_fork
def test_a_child_has_its_own_copy():
    fork("""
on.put_many([1, 2, 3])
def child():
    assert on.drain() == [1, 2, 3]
    on.put(4)
    assert on.get(timeout=60) == 4
    on.shutdown()
in_child(child)
assert on.drain() == [1, 2, 3]
on.put(5)
assert on.get() == 5
""")


@needs_fork
@pytest.mark.parametrize("by", ["the main thread", "a thread"])
def test_a_child_forgets_who_waits_in_other_threads_and_has_waiters_of_its_own(by):
    fork(f"""
getters = [thread(on.get) for _ in range(2)]
putter = thread(full.put, 9)
def child():
    on.put(1)
    on.put(2)
    assert [on.get(timeout=60), on.get(timeout=60)] == [1, 2]       # nobody else took them
    assert full.get() == 0
    full.put(5, timeout=60)
    mine = thread(full.put, 6)
    assert [full.get(timeout=60), full.get(timeout=60)] == [5, 6]
    mine.result()
    mine = thread(on.get)
    on.put(7)
    assert mine.result() == 7
    feeder = thread(on.put, 8)
    assert on.get(timeout=60) == 8
    on.put(9)
    assert on.item(asyncio.run(on.aget())) == 9
    last = thread(on.get)
    on.shutdown()
    assert isinstance(last.outcome(), ENDED)
in_child(child) if {by == "the main thread"} else thread(in_child, child).result()
on.put_many([1, 2])
assert sorted(getter.result() for getter in getters) == [1, 2]
assert full.get() == 0
putter.result()
""")


@needs_fork
def test_forking_again_and_again_while_others_put_and_get():
    fork("""
stop, busy = threading.Event(), new(maxsize=3)
numbers = iter(range(10**9))
def put_all():
    while not stop.is_set():
        try:
            busy.put(next(numbers), timeout=0.01)
        except (Full, ValueError):      # of the iterator that threads share
            pass
def get_all():
    while not stop.is_set():
        try:
            busy.get(timeout=0.01)
        except Empty:
            pass
workers = [Task(work, (), {}) for work in (put_all, get_all) * 2]
for worker in workers:
    worker.start()
def child():
    busy.drain()
    for number in range(10**9, 10**9 + 30):
        busy.put(number, timeout=30)
        assert busy.get(timeout=30) == number
    own = new()
    waiting = thread(own.get)
    own.put(2)
    assert waiting.result() == 2
    own.close()
    in_child(lambda: (busy.put(1), busy.get()))
for _ in range(5):
    in_child(child)
stop.set()
for worker in workers:
    worker.result()
busy.close()
""")


@needs_fork
def test_a_coroutine_of_the_forking_thread_goes_on_in_the_child_and_another_threads_wait_does_not():
    fork("""
loop = asyncio.new_event_loop()
task = loop.create_task(on.aget())
loop.run_until_complete(asyncio.sleep(0))
other = thread(on.get)
def child():
    on.put_many([1, 2])
    taken = [on.get()]
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    taken.append(on.get() if task.cancelled() else on.item(task.result()))
    assert sorted(taken) == [1, 2], taken
in_child(child)
on.put_many([3, 4])
assert sorted([on.item(loop.run_until_complete(task)), other.result()]) == [3, 4]
loop.close()
""")


EXITS = {
    "daemon getters": "for _ in range(3): threading.Thread(target=on.get, daemon=True).start()",
    "daemon putters": "for _ in range(3): threading.Thread(target=full.put, args=(1,), daemon=True).start()",
    "busy daemons": "def busy(on=on):\n    while True:\n        on.put(1); on.get()\n"
                    "threading.Thread(target=busy, daemon=True).start()",
    "items left": "on.put_many(range(100)); left = getattr(on, 'left', []); left.append([on, full])\nkept = on",
    "finalizers at exit": "import builtins\n"
                          "class Late:\n    on = on\n    def __del__(self):\n        self.on.put(1); self.on.get()\n"
                          "setattr(builtins, name, Late())",
}


@pytest.mark.parametrize("leave", EXITS.values(), ids=EXITS)
def test_the_interpreter_exits_with_structures_in_use(leave):
    script(leave + "\ncontinue", "-Wignore")


def test_any_number_of_coroutines_of_a_closed_loop_are_skipped():
    """They are skipped in a loop, not recursively: recursion would overflow the stack, which is small here."""
    script("""
def leave(make):
    # many coroutines wait in a loop that is closed
    loop = asyncio.new_event_loop()
    asyncio._set_running_loop(loop)
    coroutines = [make() for _ in range(5_000)]
    for coroutine in coroutines:
        while coroutine.send(None) is None:     # it lets the loop run
            pass
    asyncio._set_running_loop(None)
    loop.close()
    return coroutines

def wake():
    on.put(1)
    assert on.get(timeout=60) == 1
    assert full.get() == 0
    full.put(3, timeout=60)
    assert full.get() == 3

kept = leave(on.aget) + leave(lambda: full.aput(2))
threading.stack_size(256 * 1024)
thread(wake).result()
for coroutine in kept:
    coroutine.close()
""")


STARTS = {
    "timer": "EntryQueue(ttl=3600.0).put(1)",
    "broker": "Broker().connect().call_later(3600.0, int)",
    "map": "Thread(int, 'a worker').start()",
}


@pytest.mark.parametrize("start", STARTS)
def test_the_interpreter_exits_when_the_threads_that_were_started_have_begun(start):
    """CPython 3.13 crashes in a thread that begins beside the end of the exit."""
    said = run_script(f"""
import time
from manytail import EntryQueue, _lifecycle
from manytail.broker import Broker
from manytail.mapping._threads import Thread

start, bootstrap = _lifecycle.start_new_thread, Thread._bootstrap

def begin(function, *args):
    time.sleep(0.2)
    print("begins", flush=True)
    function(*args)

Thread._bootstrap = lambda thread: begin(bootstrap, thread)
if {start!r} != "map":  # a map's thread is started by another one
    _lifecycle.start_new_thread = lambda function, args: start(begin, (function, *args))
{STARTS[start]}
""")
    assert said == "begins\n"


@needs_fork
def test_a_child_does_not_wait_for_a_thread_that_its_parent_has_started():
    run_script("""
import os, _thread
from manytail import _lifecycle
begun = _thread.allocate_lock()
begun.acquire()
start = _lifecycle.start_new_thread
_lifecycle.start_new_thread = lambda function, args: start(lambda: begun.acquire() and function(*args), ())
_lifecycle.start_daemon(int)
pid = os.fork()
if not pid:
    raise SystemExit
begun.release()
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
""", "-Wignore::DeprecationWarning")


@needs_fork
def test_in_a_child_the_timer_thread_of_a_broker_is_woken_though_that_of_its_parent_waited():
    """It begins in the child, and an earlier timer comes while it waits for a later one."""
    run_script("""
import threading, time
from support.forks import in_child
from support.threads import wait_until
from manytail.broker._runtime import Runtime

runtime = Runtime()

def call_at(seconds, call):
    with runtime:
        runtime.timers.at(time.monotonic() + seconds, call)

def waiting(n):
    return f" {n} waiting" in repr(runtime.timers._changed)

def child():
    done = threading.Event()
    assert waiting(0)
    call_at(7200.0, int)
    wait_until(lambda: waiting(1))
    call_at(0.0, lambda now: done.set())
    assert done.wait(60)

call_at(3600.0, int)
wait_until(lambda: waiting(1))
in_child(child)
""", "-Wignore::DeprecationWarning")
