"""`progress=`: a look at a running map, at most five times a second and once at the end."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ._scheduler import Scheduler
from ._types import Progress

log = logging.getLogger("manytail")

INTERVAL = 0.2  # seconds between two looks
SPAN = 5.0  # seconds that the rate is taken over


class Meter:
    """Looks at a scheduler, and shows what it sees. Reads counters that another thread changes: each of them is right, all together may not be."""

    def __init__(self, scheduler: Scheduler, show: Callable[[Progress], None]) -> None:
        self._scheduler = scheduler
        self._show = show
        self._begin = time.monotonic()
        self._seen: deque[tuple[float, int]] = deque([(self._begin, 0)])

    def look(self) -> None:
        scheduler, now = self._scheduler, time.monotonic()
        done = scheduler.finished
        self._seen.append((now, done))
        while len(self._seen) > 2 and self._seen[1][0] <= now - SPAN:
            self._seen.popleft()
        since, before = self._seen[0]
        rate = (done - before) / (now - since) if now > since else 0.0
        seen = Progress(
            done=done,
            failed=scheduler.failures,
            in_flight=scheduler.in_flight,
            retried=scheduler.retried,
            deferred=scheduler.deferred,
            remembered=scheduler.remembered,
            rate=rate,
            seconds=now - self._begin,
        )
        try:
            self._show(seen)
        except BaseException:
            log.warning("progress: the function raised", exc_info=True)


class Ticker:
    """A thread that lets a meter look, until it is stopped."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="manytail-progress", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL):
            self._meter.look()
        self._meter.look()

    def stop(self, wait: bool = True) -> None:
        self._stopped.set()
        if wait and self._thread is not threading.current_thread():
            self._thread.join()


def shower(progress: Any, total: int | None) -> Callable[[Progress], None] | None:
    """What shows it: the caller's function, or for True a line: tqdm's if it is installed, else one of our own on a terminal that can."""
    if progress is False:
        return None
    if progress is not True:
        return progress  # type: ignore[no-any-return]
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return _draw if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb" else None
    bar = tqdm(total=total, unit="item")

    def show(seen: Progress) -> None:
        bar.set_postfix(failed=seen.failed, in_flight=seen.in_flight, refresh=False)
        bar.update(seen.done - bar.n)

    return show


def _draw(seen: Progress) -> None:
    print(f"\r{seen.done} done, {seen.failed} failed, {seen.in_flight} in flight, {seen.rate:.1f}/s \x1b[K", end="", file=sys.stderr, flush=True)
