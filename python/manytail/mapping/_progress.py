"""`progress=`: what reports the state of a running map, at most five times a second and once at the end."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextvars import Context
from functools import partial

from manytail._progress import INTERVAL, Meter
from manytail._sync import Event

from ._threads import Thread


class Ticker:
    """A thread that has a meter report every INTERVAL seconds until it is stopped, and once then. fail: called with a
    KeyboardInterrupt or SystemExit of the function. context: in which that runs."""

    def __init__(self, meter: Meter, fail: Callable[[BaseException], None], context: Context) -> None:
        self._meter = meter
        self._fail = fail
        self._stopped = Event()
        self._thread = Thread(partial(context.run, self._run), "manytail-progress")

    def start(self) -> None:
        """Begin to report. If it is interrupted, `stop` ends what has begun."""
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(INTERVAL):
                self._meter.report()
            self._meter.report()
        except BaseException as error:
            self._fail(error)

    def stop(self, wait: bool = True) -> None:
        self._stopped.set()
        if wait and self._thread is not threading.current_thread():
            self._thread.join()


class InlineTicker:
    """The same without a thread: `tick` is called again and again, at `at` or later. What the function raises that ends
    the map is raised there."""

    def __init__(self, meter: Meter, context: Context) -> None:
        self._meter = meter
        self._context = context
        self.at = math.inf

    def start(self) -> None:
        self.at = time.monotonic() + INTERVAL

    def tick(self) -> None:
        if self.at <= time.monotonic():
            self.at = time.monotonic() + INTERVAL
            self._context.run(self._meter.report)

    def stop(self, wait: bool = True) -> None:
        """wait: whether there is a last report."""
        is_open, self.at = self.at < math.inf, math.inf
        if is_open and wait:
            self._context.run(self._meter.report)
