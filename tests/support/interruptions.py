"""Interruptions of the main thread: a handler of SIGALRM that raises at a random time in what it does."""

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Interruption(Exception):
    pass


@contextmanager
def interruptions(seed: int) -> Iterator[Callable[[Callable[[], object], float], bool]]:
    """Yields a function that calls another one, interrupts it once within so many seconds, and returns whether it did.
    The timer fires once: what is raised after the end of the inner `try` is caught by the outer one. A signal that the
    system gave to another thread may come later still, in the test: it raises nothing then."""
    rng = random.Random(seed)
    armed: list[bool] = []

    def raise_it(number: int, frame: object) -> None:
        if armed:
            raise Interruption

    def interrupted(body: Callable[[], object], longest: float) -> bool:
        try:
            try:
                armed.append(True)
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, longest))
                body()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                armed.clear()
        except Interruption:
            armed.clear()
            return True
        return False

    before = signal.signal(signal.SIGALRM, raise_it)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGALRM, before)
