"""Forks beside the timer, dead letters, selectors and listeners; finalizers. For every class: tests/contract."""
import gc
import os
import threading
from queue import Empty

import pytest
from support.process import run_script
from support.threads import DEADLINE

from manytail import ClosedError, EntryQueue, EntryState
from manytail._timer import DeadLetterThread, Timer

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


# ------------------------------------------------------------------------------------------------ fork
def run_forked(body):
    """Run the body with `queue`, `subscription` and a thread that waits in get. `child()` must return in the child."""
    assert run_script(f"""
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")
import manytail
from manytail._timer import Timer
from support.forks import in_child, status_of_child
from support.threads import wait_asleep, Task
class Queue:
    pass
{body}
in_child(child)
parent()
print("done", flush=True)
os._exit(0)
""") == "done\n"


@forks
def test_entries_and_deliveries_of_the_parent_are_there_in_the_child():
    run_forked("""
queue = manytail.PriorityEntryQueue("q", groups="shared", ttl=1000)
for n in range(5):
    queue.put(n, group="g")
subscription = queue.subscribe(prefetch=2)
held = subscription.get(False)
def child():
    assert held.state is manytail.EntryState.ACQUIRED
    assert held.release()
    assert [subscription.get(False).item for _ in range(2)] == [0, 1]
    assert queue.qsize() == 3
    subscription.close()
    assert queue.qsize() == 5
def parent():
    assert held.ack()
    assert queue.depth() == 4
""")


@forks
def test_the_timer_of_the_child_waits_on_nothing_that_the_fork_resets_later():
    """Other events make the reset last, and with it the time in which a thread that has begun might be forgotten."""
    run_forked("""
from manytail._sync import Event
sys.setswitchinterval(1e-6)
events = [Event() for _ in range(20_000)]
queue = manytail.EntryQueue("q", ttl=1000)
queue.put(1, delay=0)
def child():
    queue.put(2, delay=0.1)
    end = time.monotonic() + 30
    while queue.qsize() < 2:
        assert time.monotonic() < end
        time.sleep(0.001)
def parent():
    queue.put(2)
    child()
""")


@forks
def test_the_timer_works_in_the_child():
    run_forked("""
def wait_for(size):
    end = time.monotonic() + 30
    while queue.qsize() < size:
        assert time.monotonic() < end
        time.sleep(0.001)
queue = manytail.EntryQueue("q", ttl=1000)
queue.put(1, delay=0.01)
wait_for(1)     # so the thread runs: a fork in its start leaves a lock of ASan that nobody releases
def child():
    queue.put(2, delay=0.01)
    wait_for(2)
def parent():
    queue.put(2, delay=0.01)
    child()
""")


@forks
def test_a_queue_that_the_timer_thread_serves_during_a_fork_is_served_in_the_child():
    run_forked("""
queue, parent_pid = Queue(), os.getpid()
serving, forked, served_in_child = threading.Event(), threading.Event(), threading.Event()
def serve(queue):
    if os.getpid() != parent_pid:
        served_in_child.set()
    serving.set()
    forked.wait(30)
timer = Timer(serve, print, print)
timer.arm(1, queue)
assert serving.wait(30)
def child():
    forked.set()
    timer.begin_again()
    timer.restart()
    assert served_in_child.wait(30)
def parent():
    forked.set()
""")


@forks
def test_two_requests_for_the_same_time_around_a_fork_are_served_in_the_child():
    run_forked("""
first, last, before, after = Queue(), Queue(), Queue(), Queue()
served, begun, all_served = set(), threading.Event(), threading.Event()
def serve(queue):
    served.add(queue)
    begun.set()
    if served == {first, before, after}:
        all_served.set()
timer = Timer(serve, print, print)
timer.arm(time.monotonic_ns() + 10**12, last)
timer.arm(1, first)
assert begun.wait(30)       # so the thread runs, as above
when = time.monotonic_ns() + 20_000_000
timer.arm(when, before)
def child():
    timer.begin_again()
    timer.restart()
    timer.arm(when, after)
    assert all_served.wait(30)
def parent():
    pass
""")


@forks
def test_a_fork_between_a_put_and_its_request_to_the_timer_leaves_later_puts_served_in_the_child():
    run_forked("""
queue, arm, status = manytail.EntryQueue("q"), Timer.arm, []
def in_between(timer, when, queue):
    Timer.arm = arm
    status.append(status_of_child(later_put))
    arm(timer, when, queue)
def later_put():
    queue.put(2, delay=0.02)
    while queue.stats().held:
        assert time.monotonic() < end
        time.sleep(0.001)
end = time.monotonic() + 30
Timer.arm = in_between
queue.put(1, delay=0.01)
assert status == [0]
def child():
    pass
parent = child
""")


@forks
def test_a_fork_in_the_timer_thread_leaves_one_timer_thread_in_the_child():
    """What reports a problem is user code. It forks and returns in the child too: there its thread serves nothing more,
    and ends."""
    run_forked("""
import signal
first, released, due, later, released_by = Queue(), [Queue()], Queue(), Queue(), []
status, armed, served_in_child, ended = [], threading.Event(), threading.Event(), threading.Event()
def serve(queue):
    if queue is first:
        assert armed.wait(30)   # so the thread reads the next two requests at once, when arm() refers to no queue
    elif queue is not due:
        released.clear()
    elif released_by == [threading.get_ident()]:
        os._exit(3)
    elif released_by:
        served_in_child.set()
        threading.Event().wait()
def release(queue):
    if not released_by:
        released_by.append(threading.get_ident())
        raise ZeroDivisionError
def report(problem, where):
    pid = os.fork()
    if pid:
        released_by.clear()
        status.append(os.waitpid(pid, 0)[1])
        ended.set()
    else:
        signal.alarm(30)
        timer.begin_again()
        timer.restart()
        assert served_in_child.wait(30)
class OneFork(Timer):
    def run(self):
        Timer.run(self)
        os._exit(0)
timer = OneFork(serve, report, release)
timer.arm(time.monotonic_ns() + 10**12, later)
timer.arm(1, first)
timer.arm(2, released[0])
timer.arm(3, due)
armed.set()
assert ended.wait(60)
assert status == [0]
def child():
    pass
parent = child
""")


@pytest.mark.parametrize("service", ["timer", "dead_letters"])
def test_a_request_that_a_service_thread_cannot_serve_for_memory_is_served_after_the_next(service):
    class Queue:
        """What the threads serve can be weakly referenced."""

    failures, problems, served, both = [MemoryError()], [], [], threading.Event()

    def serve(queue):
        served.append(queue)
        if len(served) == 2:
            both.set()

    def fail_once(*args):
        if failures:
            raise failures.pop()

    class FailingTimer(Timer):
        def read(self, request):
            fail_once()
            Timer.read(self, request)

    def serve_or_fail(queue):
        fail_once()
        serve(queue)

    def report(problem, where):
        problems.append(problem)
        request(second)

    first, second = Queue(), Queue()
    if service == "timer":
        timer = FailingTimer(serve, report, print)

        def request(queue):
            timer.arm(1 + len(problems), queue)
    else:
        request = DeadLetterThread(serve_or_fail, report).request
    request(first)
    assert both.wait(DEADLINE)
    assert (served, [type(problem) for problem in problems]) == ([first, second], [MemoryError])


@forks
def test_a_fork_while_a_selector_runs_leaves_no_cursor_on_a_stack_that_is_used_again():
    """With groups, a subscription with a selector searches with a cursor of its own. The child starts threads on the
    stacks of those that it did not inherit."""
    run_forked("""
parent_pid, asked, go_on = os.getpid(), threading.Event(), threading.Event()
def selector(entry):
    if entry.item == 5 and os.getpid() == parent_pid:
        asked.set()
        go_on.wait(60)
    return False
queue = manytail.EntryQueue("q", groups="shared")
queue.put_many(range(20))
filtered = queue.subscribe(selector=selector)
def get():
    try:
        filtered.get(False)
    except manytail.Empty:
        pass
getter = Task(get, (), {})
getter.start()
assert asked.wait(60)
def use_the_stack(depth):
    return depth and use_the_stack(depth - 1) + sorted([2, 1], key=lambda n: -n)[0]
def child():
    started, end = threading.Barrier(9), threading.Event()
    def run():
        use_the_stack(300)
        started.wait(30)
        end.wait(30)
    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    started.wait(30)
    for iterator in [queue.browse() for _ in range(3)]:
        for _ in range(6):
            next(iterator)
    with queue.subscribe() as taking:
        for entry in taking.get_many(20):
            entry.ack()
    end.set()
    assert queue.depth() == 0
def parent():
    go_on.set()
    getter.result()
""")


@forks
def test_a_fork_inside_a_dead_letter_callable_leaves_one_thread_that_calls():
    """The callable of an expired entry forks in the dead-letter thread, and returns in the child too."""
    run_script("""
import os, threading
import manytail
parent_pid, threads, status, done = os.getpid(), [], [], threading.Event()
def dead(entry, reason):
    if os.getpid() != parent_pid:
        threads.append(threading.get_ident())
        if len(threads) == 1:
            both.wait(0.2)
        else:
            both.set()
        if len(threads) == 20:
            os._exit(0 if len(set(threads)) == 1 else 3)
    elif entry.item == "fork":
        for n in range(20):
            queue.put(n, ttl=0.001)
        while queue.depth():
            queue.maintain()
        pid = os.fork()
        if pid:
            status.append(os.waitpid(pid, 0)[1])
            done.set()
both = threading.Event()
queue = manytail.EntryQueue("q", dead_letter=dead)
queue.put("fork", ttl=0.001)
assert done.wait(60)
os._exit(status[0] >> 8 or status[0])
""")


@forks
def test_a_consumer_closes_in_the_child_of_a_fork_while_its_callback_runs():
    run_forked("""
from concurrent.futures import ThreadPoolExecutor
called, go_on = threading.Event(), threading.Event()
def callback(entry):
    called.set()
    go_on.wait(60)
    entry.ack()
queue, consumer = manytail.EntryQueue(), manytail.Consumer()
consumer.subscribe(queue)
executor = ThreadPoolExecutor(1)
consumer.listen(callback, executor=executor)
queue.put(1)
assert called.wait(60)
def child():
    consumer.close()
    assert queue.qsize() == 1
def parent():
    go_on.set()
    consumer.close()
    assert queue.depth() == 0
    executor.shutdown()
""")


def test_the_interpreter_exits_while_daemon_threads_contend_for_the_lock_of_a_finalizer():
    """Without the GIL: a daemon thread that is stopped at exit must not hold the lock."""
    assert run_script("""
import threading
from manytail import EntryQueue
queue = EntryQueue()
subscription = queue.subscribe()        # its finalizer takes the queue's lock
def work():
    while True:
        queue.put(None)
        queue.purge()
for _ in range(8):
    threading.Thread(target=work, daemon=True).start()
while queue.stats().enqueued < 1000:
    queue.put(None)
print("done", flush=True)
""") == "done\n"


# ------------------------------------------------------------------------------------------------ re-entry
@pytest.mark.thread_unsafe(reason="sets the collector's threshold")
def test_the_collector_may_close_a_subscription_in_the_middle_of_a_put(new):
    """Garbage closes itself while another call of the same queue runs."""
    queue = new()

    class Cycle:
        pass

    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for n in range(50):
            cycle = Cycle()
            cycle.me, cycle.subscription = cycle, queue.subscribe()
            queue.put(n)
            cycle.entry = cycle.subscription.get(False)
            del cycle
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert queue.stats().subscriptions == 0
    assert queue.stats().acquired == 0
    assert queue.qsize() == queue.depth() > 0


def test_a_key_function_a_selector_and_a_callback_may_close_what_runs_them():
    queue = EntryQueue("q", dead_letter=lambda entry, reason: subscription.close())
    queue.put_many([1, 2])
    subscription = queue.subscribe()
    assert subscription.get(False).reject()
    assert subscription.closed

    def selector(entry):
        selecting.close()
        return True

    selecting = queue.subscribe(selector=selector)
    with pytest.raises((ClosedError, Empty)):
        selecting.get(False)
    assert next(queue.browse()).state is EntryState.AVAILABLE
    assert threading.active_count()
