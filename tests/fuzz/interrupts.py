"""A timer whose handler acts in the main thread, only inside certain calls."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType

AGAIN = 0.0003  # seconds until the next signal, if one came outside of these calls


class Interrupt(KeyboardInterrupt):
    """Raised by the handler of a signal."""


class Interrupted:
    """While the block runs, `after` sets the timer. inside: whether a frame belongs to one of these calls. never: code
    in which the handler does not act all the same."""

    def __init__(self, inside: Callable[[FrameType], bool], never: CodeType | None = None) -> None:
        self._inside, self._never = inside, never
        self._delays: Iterator[float] = iter(())
        self._act: Callable[[], None] | None = None

    def after(self, delays: Iterable[float], act: Callable[[], None]) -> None:
        """Act after each of these times in turn, in seconds."""
        self._delays, self._act = iter(delays), act
        self._set()

    def _set(self) -> None:
        delay = next(self._delays, None)
        signal.setitimer(signal.ITIMER_REAL, 0 if delay is None else max(delay, 1e-6))

    def cancel(self) -> None:
        self._act = None
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        while frame is not None and not self._inside(frame):
            frame = None if frame.f_code is self._never else frame.f_back
        act = self._act
        if number == signal.SIGINT:  # a wake-up of a loop puts off what a handler raises in it, and sends this
            if frame is not None:
                raise Interrupt
        elif frame is None and act is not None:
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        elif act is not None:
            self._set()
            act()

    def __enter__(self) -> Interrupted:
        signal.signal(signal.SIGALRM, self._handle)
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()  # a last SIGALRM may still come
        signal.signal(signal.SIGINT, self._before)
