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
    The timer fires once: what is raised after the end of the inner `try` is caught by the outer one."""
    rng = random.Random(seed)

    def raise_it(number: int, frame: object) -> None:
        raise Interruption

    def interrupted(body: Callable[[], object], longest: float) -> bool:
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, longest))
                body()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interruption:
            return True
        return False

    before = signal.signal(signal.SIGALRM, raise_it)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGALRM, before)
