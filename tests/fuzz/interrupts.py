"""A timer whose handler acts in the main thread, only at certain places."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FrameType

Stack = FrameType | None  # its innermost frame
AGAIN = 0.0003  # seconds until the next signal, if one came elsewhere


class Interrupt(KeyboardInterrupt):
    """Raised by the handler of a signal."""


def raise_interrupt() -> None:
    raise Interrupt


def inside(code: CodeType, hooks: Sequence[CodeType] = ()) -> Callable[[Stack], bool]:
    """Whether a call of it runs, and none of the hooks. Those run under a mutex of the queue: a handler that used the
    queue there would wait for its own thread, and what it raises there loses the item, as with queue.Queue."""

    def is_inside(frame: Stack) -> bool:
        while frame is not None and frame.f_code is not code:
            if frame.f_code in hooks:
                return False
            frame = frame.f_back
        return frame is not None

    return is_inside


class Interrupted:
    """While the block runs, `after` sets the timer. may_act: whether the handler acts there."""

    def __init__(self, may_act: Callable[[Stack], bool]) -> None:
        self._may_act = may_act
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

    def _handle(self, number: int, frame: Stack) -> None:
        act, may_act = self._act, self._may_act(frame)
        if number == signal.SIGINT:  # a wake-up of a loop puts off what a handler raises in it, and sends this
            if may_act:
                raise Interrupt
        elif not may_act and act is not None:
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
