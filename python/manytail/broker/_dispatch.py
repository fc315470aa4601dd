"""Lanes: where the callbacks of one channel run, in order and never two at once, on the threads of the connection's executor.

A lane is one of the work pool's dispatcher. It is unbounded: prefetch is what bounds it, and a callback that publishes to a queue that
only its own channel drains must not wait for itself. Items are added inside the broker's monitor, which is what makes their order that of the
deliveries; the executor is told only when the monitor is left, since it may do anything at all in submit().
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from manytail._workpool import Dispatcher
from manytail.broker._monitor import Monitor

__all__ = ["Dispatch", "Lane", "report"]


class _Promise:
    """What stands for the Future of a task that is submitted when the monitor is left. Broken, it is to the dispatcher a cancelled one: no task
    will come, the next item asks for another. Else the lane would stay ready for ever."""

    __slots__ = ("_callback",)

    def add_done_callback(self, callback: Callable[[_Promise], object]) -> None:
        self._callback = callback

    def cancelled(self) -> bool:
        return True

    def broken(self) -> None:
        self._callback(self)


class Dispatch:
    """The lanes of one connection, and the executor that runs them. `refused` is told, once or more, when that takes no more work."""

    def __init__(self, executor: Executor, monitor: Monitor, refused: Callable[[BaseException], object]) -> None:
        self.executor = executor
        self._monitor = monitor
        self._refused = refused
        self.pool: Any = Dispatcher(self, on_error=lambda item, error: report(error))

    def submit(self, task: Callable[[], object]) -> Future[Any] | _Promise:
        """The dispatcher's executor is this object."""
        if not self._monitor.interrupted():
            return self.executor.submit(task)
        promised = _Promise()
        self._monitor.after(self._submit, task, promised)
        return promised

    def _submit(self, task: Callable[[], object], promised: _Promise) -> None:
        try:
            future = self.executor.submit(task)
        except BaseException as error:
            promised.broken()
            if not isinstance(error, RuntimeError):
                raise
            self._refused(error)
        else:
            if hasattr(future, "add_done_callback"):
                future.add_done_callback(partial(self._done, promised))

    def _done(self, promised: _Promise, future: Future[Any]) -> None:
        """A task that the executor cancelled. Pools cancel under the lock that their submit() takes, and the end of this connection may give
        work to another one on the same pool: that is for another thread."""
        if future.cancelled():
            promised.broken()
            error = RuntimeError("the executor cancelled the task that was to run callbacks")
            threading.Thread(target=self._refused, args=(error,), daemon=True).start()

    def inside(self) -> bool:
        """Whether the caller is a callback of this connection. Such a caller waits for no other callback: two could wait for one another."""
        return bool(self.pool.inside)

    def on_executor(self) -> bool:
        """Whether the caller is a thread of the executor, whatever it runs there: waiting for callbacks could take the last one."""
        return self.inside() or threading.current_thread() in getattr(self.executor, "_threads", ())


class Lane:
    """One channel's events, in order. An item begins with whose it is: a consumer, or None."""

    __slots__ = ("_edge", "_run", "_running", "_watchers", "add", "channel")

    def __init__(self, dispatch: Dispatch, run: Callable[[Any], object]) -> None:
        self._run = run
        self._edge = threading.Lock()
        self._running: Any = self  # whose item runs; self: none
        self._watchers: list[threading.Event] = []
        self.channel: Any = dispatch.pool.lane(self._handle)
        self.add: Callable[[Any], object] = self.channel.add

    def _handle(self, item: Any) -> None:
        """A consumer that is gone sees nothing more. Whoever made it so either finds this item running or finds that it has not begun."""
        consumer = item[0]
        with self._edge:
            if consumer is not None:
                if consumer.gone:
                    return
                consumer.seen = item[1].delivery_tag
                if consumer.auto_ack:
                    consumer.buffer.popleft()
            self._running = consumer
        try:
            self._run(item)
        finally:
            with self._edge:
                self._running = self
                watchers, self._watchers = self._watchers, []
            for watcher in watchers:
                watcher.set()

    def seen(self, consumer: Any) -> int:
        """The tag of the last delivery to a consumer that began; of one that is gone, the last ever."""
        with self._edge:
            tag: int = consumer.seen
            return tag

    def wait_for(self, owner: Any) -> None:
        """Until no item of that owner runs; for None: until the item that runs now, of whomever, has ended. Not from inside the lane."""
        while True:
            with self._edge:
                if self._running is self or (owner is not None and self._running is not owner):
                    return
                watcher = threading.Event()
                self._watchers.append(watcher)
            watcher.wait()
            if owner is None:
                return

    def wait_idle(self) -> None:
        """Until nothing runs and nothing is left."""
        self.channel.wait()


def report(error: BaseException) -> None:
    """An exception that nobody waits for."""
    threading.excepthook(
        threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
    )
