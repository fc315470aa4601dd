"""The exceptions of manytail. Where the standard library has one it is used, so that `except` clauses for it work."""

from __future__ import annotations

import sys
from queue import Empty, Full

__all__ = ["ClosedError", "Empty", "ExclusiveError", "Full", "Lagged", "ManytailError", "ShutDown"]

if sys.version_info >= (3, 13):
    from queue import ShutDown
else:

    class ShutDown(Exception):
        """Raised by a put after shutdown, and by a get after shutdown once the queue is empty."""

        def __init__(self, *args: object) -> None:  # inspect.signature finds none of Exception
            super().__init__(*args)


class ManytailError(Exception):
    """Base of the errors that the standard library has no class for."""

    def __init__(self, *args: object) -> None:  # inspect.signature finds none of Exception
        super().__init__(*args)


class ExclusiveError(ManytailError):
    """A subscription was refused: another one is exclusive, or the refused one wanted to be."""


class ClosedError(ManytailError, RuntimeError):
    """Use of a closed subscription, channel, connection or executor."""


class Lagged(ManytailError):
    """A slow subscriber missed `missed` messages since the last Lagged. Its next get returns the oldest one kept."""

    def __init__(self, missed: int) -> None:
        super().__init__(missed)
        self.missed = missed

    def __str__(self) -> str:
        return f"{self.missed} messages were dropped before this subscriber took them"
