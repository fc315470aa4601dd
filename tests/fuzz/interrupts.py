"""A timer whose handler acts in the main thread, only inside certain calls."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import CodeType, FrameType

AGAIN = 0.0001  # seconds until the next signal, if one came outside of these calls


class Interrupt(KeyboardInterrupt):
    """Raised by the handler of a signal."""


class Interrupted:
    """While the block runs, `after` sets the timer. inside: the function whose frame must be on the stack."""

    def __init__(self, inside: CodeType) -> None:
        self._inside = inside
        self._act: Callable[[], None] | None = None

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self._act = act
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))

    def cancel(self) -> None:
        self._act = None
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not self._inside:
            frame = frame.f_back
        if number == signal.SIGINT:
            if frame is not None:
                raise Interrupt
        elif frame is None:
            if self._act is not None:
                signal.setitimer(signal.ITIMER_REAL, AGAIN)
        else:
            act, self._act = self._act, None
            if act is not None:
                act()

    def __enter__(self) -> None:
        # A wake-up of a loop puts off what a handler raises in it: SIGINT comes later.
        self._before = [(number, signal.signal(number, self._handle)) for number in (signal.SIGALRM, signal.SIGINT)]

    def __exit__(self, *error: object) -> None:
        self.cancel()
        for number, handler in self._before:
            signal.signal(number, handler)
