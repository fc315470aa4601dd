"""Threads for tests: each is joined, each exception in one is raised again in the test, and a hang is a failure that
shows the stack of every thread.

`DEADLINE` only catches hangs: no test may depend on how fast anything happens. `wait_until` is for a state that no
event announces (`stats().getters_waiting`). It never drives the code under test.
"""
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

DEADLINE = float(os.environ.get("MANYTAIL_TEST_DEADLINE", "60"))
LONG = 10 * DEADLINE  # for waits in threads: outlasts DEADLINE, so that a lost wake-up is a Hang, not a late success
GRACE = 2.0  # for the other threads of a test that has failed already


class Hang(AssertionError):
    """A thread or a condition did not finish within DEADLINE."""


class Task(threading.Thread):
    """A thread with a result. It is a daemon: a hang fails the test and does not keep the process alive."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(name=getattr(function, "__name__", repr(function)), daemon=True)
        self._call = (function, args, kwargs)
        self._value: Any = None
        self.error: BaseException | None = None
        self.collected = False

    def run(self) -> None:
        function, args, kwargs = self._call
        try:
            self._value = function(*args, **kwargs)
        except BaseException as error:
            self.error = error
        finally:
            del self._call, function, args, kwargs

    def result(self) -> Any:
        """Wait for the thread. Returns its return value, or raises its exception."""
        self._join(time.monotonic() + DEADLINE)
        self.collected = True
        if self.error is not None:
            raise self.error
        return self._value

    def outcome(self) -> BaseException | None:
        """Wait for the thread. Returns the exception that ended it, or None."""
        self._join(time.monotonic() + DEADLINE)
        self.collected = True
        return self.error

    def _join(self, deadline: float) -> None:
        self.join(max(0.0, deadline - time.monotonic()))
        if self.is_alive():
            faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
            raise Hang(f"thread {self.name} still runs after {DEADLINE} s (stacks on stderr)")


class Threads:
    """A group of threads. Leaving the block joins them all and raises the first exception that no `result` raised.

        with Threads() as threads:
            getter = threads.start(queue.get)
            ...
            assert getter.result() == 1
    """

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def start(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Task:
        task = Task(function, args, kwargs)
        self.tasks.append(task)
        task.start()
        return task

    def __enter__(self) -> "Threads":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: object) -> None:
        if kind is not None:  # the test has failed: show its own error
            for task in self.tasks:
                task.join(GRACE)
            return
        deadline = time.monotonic() + DEADLINE
        for task in self.tasks:
            task._join(deadline)
        for task in self.tasks:
            if task.error is not None and not task.collected:
                raise task.error


def run_all(*functions: Callable[[], Any]) -> list[Any]:
    """Run the functions in threads, from a common start. Returns their results in order."""
    barrier = threading.Barrier(len(functions))

    def run(function: Callable[[], Any]) -> Any:
        barrier.wait(DEADLINE)
        return function()

    with Threads() as threads:
        tasks = [threads.start(run, function) for function in functions]
    return [task.result() for task in tasks]


def wait_until(predicate: Callable[[], Any], what: str = "") -> None:
    """Return once the predicate holds. For states that no event announces."""
    deadline = time.monotonic() + DEADLINE
    while not predicate():
        if time.monotonic() > deadline:
            faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
            raise Hang(f"not within {DEADLINE} s: {what or predicate}")
        time.sleep(0.001)


class TooLate(Exception):
    """A time had passed before a test did what comes before it. That says nothing about the code under test."""


@contextmanager
def before(seconds: float, since: float | None = None) -> Iterator[None]:
    """For what a test must do in so many seconds from now, or since that moment. If the block fails after that time,
    this raises TooLate."""
    began = time.monotonic() if since is None else since
    try:
        yield
    except Exception as error:
        if time.monotonic() - began >= seconds:
            raise TooLate(f"the machine took longer than {seconds} s") from error
        raise


def in_time(attempt: Callable[[float], Any], *spans: float) -> Any:
    """What attempt(seconds) returns, with the first of the spans that was long enough for this machine: with a shorter
    one it raised TooLate."""
    for span in spans[:-1]:
        with suppress(TooLate):
            return attempt(span)
    return attempt(spans[-1])


def wait_getters(queue: Any, n: int) -> None:
    wait_until(lambda: queue.stats().getters_waiting == n, f"{n} waiting getters, {queue.stats()}")


def wait_putters(queue: Any, n: int) -> None:
    wait_until(lambda: queue.stats().putters_waiting == n, f"{n} waiting putters, {queue.stats()}")


def wait_asleep(*tasks: Task) -> None:
    """Return once these threads sleep, as far as the system shows it, so that a test meets a waiter and not a thread
    that is about to wait. The test's assertions must hold in either case: a thread that waits for the GIL looks
    the same."""
    for task in tasks:
        status = f"/proc/self/task/{task.native_id}/stat"
        if os.path.exists(status):
            wait_until(lambda task=task, status=status: not task.is_alive() or _sleeps(status), f"{task.name} to sleep")


def _sleeps(status: str) -> bool:
    for _ in range(3):
        try:
            with open(status, encoding="ascii") as file:
                if file.read().rpartition(")")[2].split()[0] != "S":
                    return False
        except OSError:  # the thread has ended
            return True
        time.sleep(0.0005)  # lets it continue if it was waiting for the GIL
    return True


def ctrl_c() -> None:
    """What Ctrl-C does to a process: SIGINT, taken by the main thread."""
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGINT)
    else:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@contextmanager
def acting_when(predicate: Callable[[], Any], action: Callable[[], Any]) -> Iterator[Task]:
    """While the block waits in the main thread, another thread waits for the predicate and then acts, once. It has
    acted when the block is left, also by KeyboardInterrupt: its own Ctrl-C must not come later."""

    begun = False  # the start of a thread is a wait of the main thread, too

    def act() -> None:
        wait_until(lambda: begun and predicate())
        action()

    with Threads() as threads:
        actor = threads.start(act)
        try:
            begun = True
            yield actor
        except KeyboardInterrupt:
            actor.outcome()
            raise


def main_thread_sleeps() -> bool:
    """Linux says so. Seen several times in a row, it is no wait for the GIL. Elsewhere: True, and what is to happen in
    a wait may come before it."""
    status = Path(f"/proc/self/task/{os.getpid()}/stat")
    return not status.exists() or all(status.read_text().rpartition(")")[2].split()[0] == "S" for _ in range(20))


@contextmanager
def switching_often() -> Iterator[None]:
    """Let a GIL build switch threads as often as it can. A free-threaded build needs no help."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
