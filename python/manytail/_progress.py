"""Reports of where a map stands, and the line that shows them. `manytail.mapping` has the thread that asks for them."""

from __future__ import annotations

import importlib
import logging
import math
import operator
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

log = logging.getLogger("manytail")

INTERVAL = 0.2  # seconds between two reports
SPAN = 5.0  # seconds that the rate is averaged over


class Meter:
    """Makes reports of where a map stands, which `stats` says but for the rate and the seconds. Any thread may ask for
    one; one thread at a time has them shown."""

    def __init__(
        self, stats: Callable[[], Any], show: Callable[[Any], None] = lambda seen: None, *, begun: bool = True
    ) -> None:
        """begun: whether the map has started. Otherwise it does when `begin` is called."""
        self._stats = stats
        self._show = show
        self._lock = threading.Lock()
        self._begin = math.inf
        self._seen: deque[tuple[float, int]] = deque([(math.inf, 0)])
        if begun:
            self.begin()

    def begin(self) -> None:
        """The map starts."""
        self._begin = time.monotonic()
        self._seen = deque([(self._begin, 0)])

    def seen(self) -> Any:
        stats, now = self._stats(), time.monotonic()
        return stats._replace(rate=self._rate(now, stats.done), seconds=max(0.0, now - self._begin))

    def sample(self) -> None:
        """Note how many items are done. For a map that nobody asks for reports, whose rate is known nevertheless."""
        now = time.monotonic()
        if now - self._seen[-1][0] >= INTERVAL:
            self._rate(now, self._stats().done)

    def _rate(self, now: float, done: int) -> float:
        seen = self._seen
        if self._lock.acquire(False):  # else a signal handler has interrupted this, or another thread asks too
            try:
                if now - seen[-1][0] >= INTERVAL / 2:
                    seen.append((now, done))
                while len(seen) > 2 and seen[1][0] <= now - SPAN:
                    seen.popleft()
            finally:
                self._lock.release()
        since, before = seen[0]
        return (done - before) / (now - since) if now > since else 0.0

    def report(self) -> None:
        try:
            self._show(self.seen())
        except (KeyboardInterrupt, SystemExit):  # they end the map
            raise
        except BaseException:
            with suppress(Exception):  # of a handler, which may write to a standard error that is broken
                log.warning("progress: the function raised", exc_info=True)


def display_of(progress: Any, items: Any) -> Callable[[Any], None] | None:
    """The function that shows reports of a map of `items` for the option `progress`. None: nothing does.

    For True it draws a line: with tqdm if that is installed, otherwise our own if the terminal can rewrite a line."""
    if progress is False:
        return None
    if progress is not True:
        return progress  # type: ignore[no-any-return]
    if not _can_write():
        return None
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        known = "console" if sys.platform == "win32" else "dumb"  # Windows sets no TERM
        return draw if _is_terminal() and os.environ.get("TERM", known) != "dumb" else None
    try:
        bar = tqdm(total=_length(items), unit="item")
    except Exception:  # of standard error
        return None

    def show(seen: Any) -> None:
        with suppress(Exception):
            if _can_write():
                bar.set_postfix(failed=seen.failed, in_flight=seen.in_flight, refresh=False)
                bar.update(seen.done - bar.n)

    return show


def _is_terminal() -> bool:
    try:
        return bool(sys.stderr.isatty())
    except Exception:  # of a stream that somebody has put there
        return False


def _can_write() -> bool:
    """Whether there is a standard error: pythonw and services have none, or a closed one."""
    return sys.stderr is not None and not getattr(sys.stderr, "closed", False)


def _length(items: Any) -> int | None:
    """About how many items there are; None if they do not say. It may be the user's code."""
    try:
        length = operator.length_hint(items, -1)
        return None if length < 0 else length
    except Exception:
        return None


def draw(seen: Any) -> None:
    """Rewrite the line. Spaces end it: a cell of a notebook and the console of Windows know no escape sequences. If
    standard error cannot take it, there is no line: an error of it must not end the map."""
    line = f"{seen.done} done, {seen.failed} failed, {seen.in_flight} in flight, {seen.rate:.1f}/s"
    with suppress(Exception):
        if _can_write():  # not closed meanwhile
            print(f"\r{line:<78}", end="", file=sys.stderr, flush=True)
