"""A wrong multi-queue, to show that histories of real threads are recorded and refused.

What else a wrong queue may show is in test_specifications.py and in test_checker.py, by hand.
"""
from contextlib import suppress
from queue import Empty
from typing import Any

from manytail import MultiQueue, ShutDown


class Forgetful(MultiQueue[Any, Any]):
    """Drops an item with each one that it gives."""

    def get_with_key(self, block: bool = True, timeout: float | None = None) -> tuple[Any, Any]:
        taken = super().get_with_key(block, timeout)
        with suppress(Empty, ShutDown):
            super().get_with_key(False)
        return taken
