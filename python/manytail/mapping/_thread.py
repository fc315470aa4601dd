"""Threads whose end can be waited for again after Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable

from manytail._queue import Event


class Thread(threading.Thread):
    """A daemon. `join` may be interrupted and called again. In CPython before 3.13 a thread whose join was interrupted
    counts as ended."""

    def __init__(self, target: Callable[..., object], name: str, *arguments: object) -> None:
        super().__init__(target=target, args=arguments, name=name, daemon=True)
        self._over = Event()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._over.set()

    def join(self, timeout: float | None = None) -> None:
        if self.ident is None or self._over.wait(timeout):
            super().join(timeout)
