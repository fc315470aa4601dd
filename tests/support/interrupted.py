"""What interrupts a call. A signal handler that raises at any moment of it in the main thread: the times are swept, so
that each moment has its turn, however fast the machine is. And an act at each point where the interpreter serves
signals, one after the other."""

import gc
import itertools
import signal
import sys
import traceback
from collections.abc import Callable, Container, Iterator
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


def raise_interrupt() -> None:
    raise KeyboardInterrupt


class At:
    """Acts in this thread where the interpreter serves signals in the code of these files: where a function begins, or
    after it has called a built-in one. At the chosen one of these points. Nothing is collected there: a finalizer of an
    earlier test would be interrupted instead."""

    def __init__(self, point: int, files: Container[str]) -> None:
        self.left, self._files = point, files
        self.act: Callable[[], object] = raise_interrupt

    def __enter__(self) -> "At":
        gc.disable()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def _profile(self, frame: Any, event: str, _: Any) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename in self._files:
            self.left -= 1
            if self.left == 0:
                self.act()


def each_point(files: Container[str], least: int = 3, step: int = 1) -> Iterator[At]:
    """One after the other, until there are no more. least: of more than so many."""
    for point in itertools.count(1, step):
        yield (at := At(point, files))
        if at.left > 0:
            break
    assert point > least
