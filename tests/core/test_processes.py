"""What a fork meets inside a call of a multi-queue; subinterpreters, and what an import does. Each test runs a script
in its own interpreter. tests/contract/test_processes.py has forks and exits of every structure.
"""
import sys

import pytest
from support.counts import part_of_races
from support.process import run_script

pytestmark = pytest.mark.thread_unsafe(reason="processes of their own; four of each at a time show nothing more")

needs_fork = pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no os.fork here")

FORK = """
import asyncio, os, signal, sys, threading, time, traceback
from queue import Empty, Full
from manytail import IndexMultiQueue, MultiQueue, ShutDown
from support.forks import in_child, thread
from support.threads import wait_until as until

for new in (MultiQueue, IndexMultiQueue):
    queue = new()
    tail = queue.add("a")
    full = queue.add("full", maxsize=1, enabled=False)
"""


def fork(script: str) -> None:
    body = "\n".join("    " + line for line in script.strip().splitlines())
    assert run_script(FORK + body + "\nprint('done')", "-Wignore::DeprecationWarning").endswith("done\n")


# ------------------------------------------------------------------------------------------------ subinterpreters
INTERPRETERS = """
import sys
INNER = '''
try:
    from manytail import MultiQueue
except ImportError as error:
    assert "interpreter" in str(error), repr(error)     # a clear word, whichever layer says it
else:
    queue = MultiQueue()
    tail = queue.add("a", maxsize=2)
    tail.put_many([1, queue])
    assert queue.get() == 1
    assert queue.get() is queue
    tail.put(queue)
    del queue, tail
    import gc
    gc.collect()
'''
def run_inside():
    if sys.version_info >= (3, 13):
        import _interpreters
        interpreter = _interpreters.create(CONFIG)
        error = _interpreters.exec(interpreter, INNER)
        assert error is None, error.formatted
        _interpreters.destroy(interpreter)
    else:
        import _xxsubinterpreters
        interpreter = _xxsubinterpreters.create(isolated=CONFIG == "isolated")
        _xxsubinterpreters.run_string(interpreter, INNER)
        _xxsubinterpreters.destroy(interpreter)
"""


@pytest.mark.parametrize("config", ["isolated", "legacy"])
@pytest.mark.parametrize("main_first", [True, False])
def test_a_subinterpreter_has_queues_or_a_clear_import_error(config, main_first):
    use_here = """
from manytail import MultiQueue
queue = MultiQueue()
queue.add("a").put(1)
assert queue.get() == 1
"""
    inside = "for _ in range(3):\n    run_inside()\n"
    script = (
        f"CONFIG = {config!r}\n{INTERPRETERS}\n"
        + (use_here + inside if main_first else inside + use_here)
        + use_here
        + "print('done')"
    )
    assert run_script(script) == "done\n"


# ------------------------------------------------------------------------------------------------ import and exit
def test_importing_starts_no_thread_and_imports_nothing_big_until_an_array_is_asked_for():
    pytest.importorskip("numpy")
    assert run_script("""
import sys, threading
from array import array
before = threading.active_count()
import manytail
from manytail import IndexMultiQueue
assert threading.active_count() == before
queue = IndexMultiQueue()
tail = queue.add("a")
tail.put(1)
tail.put_many([1, 2, 3])
tail.put_many(array("q", range(5)))
queue.get()
tail.put_front(4)
assert 3 in tail
assert list(tail)[0] == 4
assert queue.get_many_into(array("q", [0])) == 1
big = {"numpy", "pyarrow", "pyspark", "pandas"} & set(sys.modules)
assert not big, big
taken = queue.get_many(2)
assert "numpy" in sys.modules
assert taken.tolist() == [1, 2]
print("done")
""") == "done\n"


def test_the_free_threaded_build_keeps_its_gil_off():
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        pytest.skip("this build has a GIL")
    script = "import sys, manytail; assert not sys._is_gil_enabled(); print('done')"
    assert run_script(script, "-Werror") == "done\n"


@needs_fork
def test_the_thread_that_forked_is_the_one_that_gets_signals_in_the_child():
    """A signal that comes just before a thread falls asleep does not end its sleep. Only the main thread rechecks."""
    fork("""
class Rang(Exception):
    pass

def ring(*_):
    raise Rang

def child():
    signal.alarm(0)
    signal.signal(signal.SIGALRM, ring)
    for n in range(3000):
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-6 * (2 + n % 40))
            queue.get(timeout=20)
        except Rang:
            continue
        raise AssertionError("it slept through a signal")

assert thread(in_child, child)() is None
""")


ROUNDS = part_of_races(8)
# Hooks that run before a fork run in reverse order of registration. This one is registered before manytail's, so it
# runs after it.
TWO_FORKS = f"""
import os, threading
armed, reached, go = threading.local(), threading.Event(), threading.Event()

def hold():
    if getattr(armed, "on", False):
        reached.set()
        assert go.wait(60)

os.register_at_fork(before=hold)
from manytail import IndexMultiQueue
from support.forks import status_of_child

queue = IndexMultiQueue()
tail = queue.add("rows")
N = 400_000
rows, out = memoryview(bytearray(8 * N)).cast("q"), memoryview(bytearray(8 * N)).cast("q")
for n in range(0, N, 1000):
    rows[n] = n + 1
stop, moved = threading.Event(), threading.Semaphore(0)

def move():
    # bulk calls, detached unless a fork is pending
    while not stop.is_set():
        tail.put_many(rows)
        assert queue.get_many_into(out) == N
        moved.release()

def whole():
    # in the child: the mover may have been between its two calls, but in neither of them
    inside = tail.qsize()
    assert inside in (0, N), inside
    assert len(list(tail)) == inside
    tail.put(7)
    got = 0
    while queue.qsize():
        last = queue.get()
        got += 1
    assert (got, last) == (inside + 1, 7), (got, last)

def fork(hold_it):
    armed.on = hold_it
    results.append(status_of_child(whole))

results = []
mover = threading.Thread(target=move, daemon=True)
mover.start()
for _ in range({ROUNDS}):
    reached.clear(), go.clear()
    slow = threading.Thread(target=fork, args=(True,))
    slow.start()
    assert reached.wait(60)             # it has held off the bulk calls and is about to fork
    fork(False)                         # another fork begins and ends
    for _ in range(3):
        assert moved.acquire(timeout=60)
    go.set()
    slow.join(60)
stop.set()
mover.join(60)
assert results == [0] * {2 * ROUNDS}, results
print("done")
"""


@needs_fork
def test_two_threads_that_fork_at_once_beside_bulk_calls():
    assert run_script(TWO_FORKS, "-Wignore::DeprecationWarning") == "done\n"


FORKING_LOOP = """
import asyncio, os
from array import array
from manytail import IndexMultiQueue
from support.forks import in_child

class Loop(asyncio.SelectorEventLoop):
    forks = 0

    def call_soon_threadsafe(self, *args, **options):
        # what a signal handler may do that comes in here
        self.forks += 1
        in_child(lambda: (tail.clear(), tail.put(1), queue.get()))
        return super().call_soon_threadsafe(*args, **options)

def waits(coroutine):
    task = loop.create_task(coroutine)
    loop.call_soon(loop.stop)
    loop.run_forever()
    return task

queue, loop = IndexMultiQueue(), Loop()
tail = queue.add("a", maxsize=10_000)
getter = waits(queue.aget())
tail.put_many(array("q", range(9_999)))
assert loop.run_until_complete(getter) == 0
tail.put_many([1, 2])
putter = waits(tail.aput(3))
assert queue.get_many_into(array("q", bytes(80_000))) == 10_000
loop.run_until_complete(putter)
assert loop.forks == 2
loop.close()
print("done")
"""


@needs_fork
def test_a_fork_from_the_code_that_a_bulk_call_wakes():
    """A fork waits until no bulk call moves integers, so a bulk call wakes coroutines only after it has moved them."""
    assert run_script(FORKING_LOOP, "-Wignore::DeprecationWarning").endswith("done\n")


@needs_fork
def test_a_wait_whose_signal_handler_forks_goes_on_in_the_child_too():
    """In the child the waiting thread is on no list. It tries again."""
    fork("""
children = []

def fork_in_wait(*_):
    pid = os.fork()
    if pid:
        children.append(pid)
    else:
        signal.alarm(60)
    tail.put(1 if pid else 2)

signal.signal(signal.SIGUSR1, fork_in_wait)
main = threading.get_ident()
waker = thread(lambda: (until(lambda: queue.stats().getters_waiting), signal.pthread_kill(main, signal.SIGUSR1)))
got = queue.get(timeout=60)
if not children:
    os._exit(0 if got == 2 else 1)
assert got == 1
waker()
assert os.waitpid(children.pop(), 0)[1] == 0
""")
