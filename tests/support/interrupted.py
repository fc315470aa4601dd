"""A signal handler that raises at any moment of a call in the main thread. The times are swept, so that each moment of
the call has its turn, however fast the machine is."""

import itertools
import signal
import traceback
from collections.abc import Callable
from typing import Any

import pytest

needs_a_timer = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")


class Interrupted(BaseException):
    """What the signal handlers here raise."""


def interrupt(prepare: Callable[[], Callable[[], object]], after: Callable[[], object], wanted: int,
              span: int = 60) -> None:  # fmt: skip
    """Make calls, each returned by `prepare`, until `wanted` of them were interrupted inside. After each: `after`.

    span: the times of the timer go up to that many microseconds."""
    armed = False  # a thread that is not scheduled may get the signal late

    def handler(*_: object) -> None:
        if armed:
            raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    interrupted = 0
    try:
        for step in itertools.count():
            operation = prepare()
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, (1 + step % span) * 1e-6)
                operation()
                armed = False
            except Interrupted as error:
                armed = False
                interrupted += _came_inside(error)
            del operation
            after()
            if interrupted >= wanted:
                return
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _came_inside(error: BaseException) -> bool:
    """Whether a frame is between that of `interrupt` and that of the handler: the operation's."""
    frames: list[Any] = list(traceback.walk_tb(error.__traceback__))
    return len(frames) > 2
