"""What needs its own interpreter: its exit, fork, Ctrl-C, executors without references."""
import os
import sys

import pytest
from support.process import run_script

SETUP = """
import gc, os, signal, sys, threading, time
from manytail.executor import KeyedExecutor
from support.forks import in_child
from support.threads import DEADLINE, Threads, ctrl_c, wait_until
def say(word):
    sys.stdout.write(word + "\\n")      # in one piece, whoever else speaks
    sys.stdout.flush()
"""


def script(text, *options):
    return run_script(SETUP + text, *options).split()


def fork(text):
    return script(text, "-Wignore::DeprecationWarning")  # that threads and fork do not mix is what is tested


def test_paused_lanes_resume_at_exit():
    """Both with and without a thread in the executor."""
    assert sorted(script("""
executor, busy = KeyedExecutor(1), KeyedExecutor(1)
busy.submit(int)
for each in (executor, busy):
    lane = each.lane("a")
    lane.pause()
    lane.submit(say, "ran")
    lane.submit(say, "too")
""")) == ["ran", "ran", "too", "too"]


def test_after_the_end_of_threads_submit_raises():
    assert script("""
import atexit
executor = KeyedExecutor(1)
@atexit.register
def late():
    for submit in (executor.submit, KeyedExecutor(1).submit, executor.lane("a").submit):
        try:
            submit(int)
        except RuntimeError as error:
            print(str(error).replace(" ", "_"))
executor.submit(int)
""") == ["cannot_schedule_new_futures_after_interpreter_shutdown"] * 3


def test_a_submit_that_waits_at_exit_is_let_go():
    """It waits in another thread, which the interpreter joins at exit."""
    assert script("""
executor = KeyedExecutor(1)
lane = executor.lane("a", max_pending=1)
lane.pause()
lane.submit(say, "ran")
def waits():
    try:
        lane.submit(int)
    except RuntimeError:
        say("refused")
threading.Thread(target=waits, daemon=True).start()
wait_until(lambda: executor._workers.pool.submitters_waiting == 1)
""")[0:1] in (["ran"], ["refused"])


def test_a_lane_keeps_its_executor_alive():
    assert script("""
lane = KeyedExecutor(1).lane("a")
gc.collect()
print(lane.submit(pow, 2, 3).result(DEADLINE))
""") == ["8"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.parametrize("busy", [False, True])
def test_the_child_of_a_fork_has_an_idle_executor(busy):
    """The child has no workers. What was pending or running, full or paused, stays with the parent."""
    assert fork(f"""
go_on = threading.Event()
executor = KeyedExecutor(2, max_pending=3)
lane = executor.lane("a", max_running=1, max_pending=1)
executor.submit(int).result(DEADLINE)
ran = []
if {busy}:
    running = [lane.submit(go_on.wait), executor.submit(go_on.wait)]
    wait_until(lambda: all(call.running() for call in running))
    pending = [lane.submit(ran.append, 1), executor.submit(ran.append, 2)]
def child():
    assert executor._threads == set() and executor._workers.pool.pending == 0
    assert lane.submit(pow, 2, 3).result(DEADLINE) == 8
    assert [call.result(DEADLINE) for call in [executor.submit(pow, 2, n) for n in range(3)]] == [1, 2, 4]
    executor.shutdown()
    assert ran == []
in_child(child)
go_on.set()
executor.shutdown()
print(sorted(ran) == ([1, 2] if {busy} else []))
""") == ["True"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_fork_inside_a_call():
    """The forking thread is the child's main thread."""
    assert fork("""
executor = KeyedExecutor(2)
lane = executor.lane("a", max_running=1)
def child():
    assert lane.submit(pow, 2, 3).result(DEADLINE) == 8
lane.submit(in_child, child).result(DEADLINE)
executor.shutdown()
print("done")
""") == ["done"]


def test_an_exception_anywhere_in_the_start_of_a_thread_leaves_the_executor_whole():
    """Raised where a signal handler may: as a function of `threading` begins, and after a call that it makes."""
    assert script("""
class Interrupted(BaseException):
    pass

def is_reached(number):
    # Raise at this point of a submit.
    left = number
    def look(frame, event, argument):
        nonlocal left
        if event in ("call", "return", "c_return") and frame.f_code.co_filename == threading.__file__:
            left -= 1
            if left == 0:
                raise Interrupted       # CPython takes away a profile function that has raised
    try:
        sys.setprofile(look)
        executor.submit(int)
    except Interrupted:
        assert left == 0
    finally:
        sys.setprofile(None)
    return left <= 0

number, reached = 0, True
while reached:
    number += 1
    executor = KeyedExecutor(1)
    reached = is_reached(number)
    assert executor.submit(pow, 2, 3).result(DEADLINE) == 8
    executor.shutdown()
print(number > 10)
""") == ["True"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_signal_handler_may_submit_and_cancel_at_any_time():
    assert script("""
executor = KeyedExecutor(2)
lane = executor.lane("a", max_running=1)
ran, handled = [], []
def handler(number, frame):
    handled.append(lane.submit(ran.append, "handler"))
    executor.submit(int).cancel()
    executor.lane("of the handler").submit(int)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
calls = []
deadline = time.monotonic() + DEADLINE
while len(handled) < 50 and time.monotonic() < deadline:
    calls.append(lane.submit(ran.append, "main"))
    executor.submit(int).cancel()
signal.setitimer(signal.ITIMER_REAL, 0)
executor.shutdown()
print(len(handled) >= 50, ran.count("main") == len(calls), ran.count("handler") == len(handled))
""") == ["True", "True", "True"]
