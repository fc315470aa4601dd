"""The exceptions of manytail. Where the standard library has one it is used, so that `except` clauses for it work."""

from __future__ import annotations

import sys
from queue import Empty, Full

__all__ = ["ClosedError", "Empty", "ExclusiveError", "Full", "Lagged", "ManytailError", "ShutDown"]

if sys.version_info >= (3, 13):
    from queue import ShutDown
else:

    class ShutDown(Exception):
        """The queue is shut down: put raises it at once, get when the queue is empty."""

        def __init__(self, *args: object) -> None:  # inspect.signature finds none of Exception
            super().__init__(*args)


class ManytailError(Exception):
    """The base class of the errors for which the standard library has no class."""

    def __init__(self, *args: object) -> None:  # inspect.signature finds none of Exception
        super().__init__(*args)


class ExclusiveError(ManytailError):
    """subscribe() was refused, because this or another open subscription is exclusive."""


class ClosedError(ManytailError, RuntimeError):
    """The subscription, channel, connection or executor is closed."""


class Lagged(ManytailError):
    """The subscriber was too slow and lost `missed` messages. Its next get returns the oldest message that is left."""

    def __init__(self, missed: int) -> None:
        super().__init__(missed)
        self.missed = missed

    def __str__(self) -> str:
        return f"{self.missed} messages were dropped before this subscriber took them"
