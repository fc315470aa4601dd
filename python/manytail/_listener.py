"""What Consumer.listen() runs: tasks on an executor. _consumers.pyx makes it, finds its entries and has its waits."""

from __future__ import annotations

import threading
import weakref
from _thread import interrupt_main
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from manytail._sync import Event
from manytail.errors import ClosedError, ShutDown

if TYPE_CHECKING:
    from manytail._entries import Entry

_Call = Callable[..., Any]


class Listener:
    """Consumer.listen(): one task on the executor after the other. Each delivers the entry that the one before found,
    and looks for the next entry. It holds its Consumer weakly.

    state       what it is                                  fields              what ends it
    submitted   the executor has a task that did not begin  found: its entry,   run() begins: running
                                                            or None
    running     a task delivers, or finds the next entry    thread: its id      it found an entry: submitted
                                                                                it found none: waiting
    waiting     no task; nothing is there to take           waiting: the wait   the wait's wake-up: submitted
    stopped     no more tasks                               stopped             nothing

    A wait may end before the task that left it does: the wake-up submits a task, which finds the first one running. It
    sets `again` and ends, and the running task submits another one when it ends. So never two run at once."""

    def __init__(
        self, consumer: Any, callback: _Call, executor: Any, find_or_wait: _Call, end_wait: _Call, report: _Call
    ) -> None:
        self.consumer = weakref.ref(consumer)
        self.callback = callback
        self.executor = executor
        self.find_or_wait = find_or_wait
        self.end_wait = end_wait
        self.report = report
        self.lock = threading.RLock()  # guards stopped, thread, again, waiting; finalizers take it again
        self.not_running = Event()  # set when a task ends, cleared when the next one begins
        self.stopped = False
        self.thread: int | None = None  # of the running task
        self.again = False  # a task began while another ran
        self.waiting: object = None  # the wait that the last task left
        self.points: object = None  # where it waits
        self.found: Entry[Any] | None = None  # the entry for the next task

    def _after_fork(self) -> None:
        """In the child of a fork: a task of another thread never ends, and may have held the lock."""
        self.lock = threading.RLock()
        self.not_running = Event()
        if self.thread != threading.get_ident():
            self.thread = None

    def submit(self) -> None:
        """Submit a task to the executor. This may run in a put of another thread, where an exception of a signal
        handler must not end the listening. So it tries twice; a task too many finds nothing to do."""
        interrupted = False
        problem: BaseException | None = None
        for _ in range(2):
            if self.stopped:
                break
            try:
                self.executor.submit(self.run)
                problem = None
                break
            except KeyboardInterrupt as raised:
                interrupted, problem = True, raised
            except BaseException as raised:
                problem = raised
        # If it was stopped during the submit, the failure is that of an executor that was shut down.
        if problem is not None and not self.stopped:
            found, self.found = self.found, None
            if found is not None:
                found.release()
            self.fail(problem)
        if interrupted:
            interrupt_main()

    def run(self) -> None:
        """A task."""
        with self.lock:
            if self.stopped:
                return
            if self.thread is not None:
                self.again = True
                return
            self.thread = threading.get_ident()
            self.not_running.clear()
        try:
            self.deliver()
            self.find_next()
        except (ShutDown, ClosedError):
            self.stopped = True
        except BaseException as problem:  # nobody reads the executor's future
            self.fail(problem)
        finally:
            with self.lock:
                self.thread = None
                another, self.again = self.again, False
                self.not_running.set()
        if another or self.found is not None:
            self.submit()

    def fail(self, problem: BaseException) -> None:
        """It cannot continue (no memory): report that, and close the consumer, so that others get the entries."""
        self.stopped = True
        self.report(problem, self.callback)
        consumer = self.consumer()
        if consumer is not None:
            consumer.close()

    def deliver(self) -> None:
        found, self.found = self.found, None
        if found is None:
            return
        try:
            self.callback(found)
        except BaseException as problem:
            found.release()
            self.report(problem, self.callback)

    def find_next(self) -> None:
        """Find an entry for the next task, or leave a wait that submits it. Again if that ended before it was left."""
        consumer = self.consumer()
        while consumer is not None and not self.stopped and not self.find_or_wait(consumer, self):
            continue

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            # None: do not wait. A finalizer may call this at the end of `run`, before `not_running` is set.
            elsewhere = self.thread is not None and self.thread != threading.get_ident()
            waiting, self.waiting = self.waiting, None
        if waiting is not None:
            self.end_wait(waiting)
        if elsewhere:
            self.not_running.wait()
