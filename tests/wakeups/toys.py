"""A queue that loses wake-ups, to show that the rounds notice."""
import threading
from collections import deque
from queue import Empty
from typing import Any


class LosesWakeUps:
    """A waiter that gives up stays on the list, and the next put wakes only that one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.items: deque[Any] = deque()
        self.waiters: deque[Any] = deque()

    def get(self, timeout: float = -1) -> Any:
        while True:
            with self.lock:
                if self.items:
                    return self.items.popleft()
                posted = threading.Semaphore(0)
                self.waiters.append(posted)
            if not posted.acquire(timeout=None if timeout < 0 else timeout):
                raise Empty

    def put(self, item: Any) -> None:
        with self.lock:
            self.items.append(item)
            waiter = self.waiters.popleft() if self.waiters else None
        if waiter is not None:
            waiter.release()

    def release(self) -> None:
        """Wake all waiters, at the end of a test."""
        with self.lock:
            waiters = list(self.waiters)
            self.items.extend([None] * len(waiters))
        for waiter in waiters:
            waiter.release()
