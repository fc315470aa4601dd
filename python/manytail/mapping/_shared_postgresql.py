"""A connection of psycopg that does not wait for ever. A module of its own because it imports psycopg.

A server that is stopped, or hangs, keeps its connections: neither its own timeouts nor those of TCP end a wait for its
answer. psycopg waits in turns of 0.1 s, so that Ctrl-C acts, and tells each statement after every turn that there was
no answer. Here that is counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from typing import Any

import psycopg

from ._shared_database import Away, Patience


class Connection(psycopg.Connection[Any]):
    """`patience`, `answer_wait` and `answers` are set for each transaction."""

    patience: Patience | None = None
    answer_wait = math.inf  # seconds without an answer
    answers: Callable[[], bool] | None = None  # whether the server answers at all: then the wait begins again

    def wait(self, gen: Any, *arguments: Any, **named: Any) -> Any:
        """Wait for an answer. Raises Away when `patience` is set, or after `answer_wait` seconds without one, unless
        `answers`."""
        return super().wait(self._limited(gen), *arguments, **named)

    def _limited(self, waiting: Any) -> Generator[Any, Any, Any]:
        last = time.monotonic()
        try:
            state = next(waiting)
            while True:
                ready = yield state
                now = time.monotonic()
                is_late = not ready and now - last >= self.answer_wait
                gives_up = not ready and self.patience is not None and self.patience.is_set()
                if gives_up or (is_late and not (self.answers is not None and self.answers())):
                    raise Away(f"no answer for {now - last:.1f} s")
                if ready or is_late:
                    last = time.monotonic()
                state = waiting.send(ready)
        except StopIteration as end:
            return end.value
