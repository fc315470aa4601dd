"""The exceptions of manytail. Where the standard library has one, it is that one, so that existing `except` clauses work."""

from __future__ import annotations

import sys
from queue import Empty, Full

__all__ = ["ClosedError", "Empty", "ExclusiveError", "Full", "Lagged", "ManytailError", "ShutDown"]

if sys.version_info >= (3, 13):
    from queue import ShutDown
else:

    class ShutDown(Exception):
        """The queue takes no more items, and this call found nothing left to take: drain it or stop."""

        def __init__(self, *args: object) -> None:  # inspect.signature finds none of Exception
            super().__init__(*args)


class ManytailError(Exception):
    """Base of the errors that the standard library has no class for."""

    def __init__(self, *args: object) -> None:  # inspect.signature finds none of Exception
        super().__init__(*args)


class ExclusiveError(ManytailError):
    """A subscription was refused because another one is, or wants to be, exclusive."""


class ClosedError(ManytailError, RuntimeError):
    """Use of a closed subscription, channel, connection or executor."""


class Lagged(ManytailError):
    """A slow subscriber missed messages: `missed` were dropped since it was last told. Its next get goes on behind them."""

    def __init__(self, missed: int) -> None:
        super().__init__(missed)
        self.missed = missed

    def __str__(self) -> str:
        return f"{self.missed} messages were dropped before this subscriber took them"
