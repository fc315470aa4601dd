"""The pairs of what is not a queue: a mutex, a condition, an event, and the lock of a broker."""
import threading
from collections import deque

from support.threads import DEADLINE, Task

from manytail._sections import Sections
from manytail._sync import Condition, Event, Mutex

from .pairs import Pair, Wait


class OfMutex(Pair):
    """It is held whenever a round begins."""

    has_async = False

    def __init__(self) -> None:
        self.mutex = Mutex()
        self.mutex.acquire()

    def waiting(self) -> Wait:
        return self.mutex.acquire

    def wake(self) -> None:
        self.mutex.release()


class OfCondition(Pair):
    """Its users count tokens."""

    has_async = False

    def __init__(self) -> None:
        self.condition = Condition(Mutex())
        self.tokens = 0

    def waiting(self) -> Wait:
        def wait(timeout: float | None = None) -> bool:
            with self.condition:
                if not self.condition.wait_for(lambda: self.tokens, timeout):
                    return False
                self.tokens -= 1
                return True

        return wait

    def wake(self) -> None:
        with self.condition:
            self.tokens += 1
            self.condition.notify()


class OfEvent(Pair):
    wakes = "all"
    has_async = False

    def __init__(self) -> None:
        self.event = Event()

    def begin(self) -> None:
        self.event = Event()

    def waiting(self) -> Wait:
        return self.event.wait

    def wake(self) -> None:
        self.event.set()


class OfSections(Pair):
    """A thread is in a section whenever a round begins. When it ends that, all waiters get their turns."""

    wakes = "all"
    has_async = False
    has_timeout = False

    def __init__(self) -> None:
        self.sections = Sections(deque(), deque(), [])

    def begin(self) -> None:
        entered, self.leave = threading.Event(), threading.Event()
        self.holder = Task(self.hold, (entered, self.leave), {})
        self.holder.start()
        assert entered.wait(DEADLINE), "the lock stays held"

    def hold(self, entered: threading.Event, leave: threading.Event) -> None:
        with self.sections:
            entered.set()
            leave.wait(DEADLINE)

    def waiting(self) -> Wait:
        acquire: Wait = self.sections.acquire
        return acquire

    def took(self, result: object) -> None:
        self.sections.release()

    def wake(self) -> None:
        self.leave.set()

    def end(self) -> None:
        self.holder.result()


SYNC_PAIRS: dict[str, type[Pair]] = {
    "mutex acquire/release": OfMutex,
    "condition wait_for/notify": OfCondition,
    "event wait/set": OfEvent,
    "section enter/end": OfSections,
}
