"""`progress=`: the thread that reports the state of a running map, at most five times a second and once at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import Context
from functools import partial

from manytail._progress import INTERVAL, Meter
from manytail._queue import Event

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
