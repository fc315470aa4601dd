"""What the scheduler is told, and what it tells the driver to do.

The inbox is a deque. Any thread appends to it; the scheduler takes from it in `step`. The three events that come once
per item have no object of their own:

    an Item       its call has succeeded, item.result is set
    a list        these items were read, and are in flight
    an int        the consumer took so many items of the output

All others are the classes below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from .item import Batch, Call, Item, Lane, Verdict


class InputEnded(NamedTuple):
    """error: what the input raised."""

    error: BaseException | None


class Began(NamedTuple):
    """A call of an item that had not arrived: it counts as read and as handed from here on."""

    call: Item


class Failed(NamedTuple):
    """The call raised, ran out of time, or was cancelled. verdict: of `policies.judge`."""

    call: Call
    verdict: Verdict


class Returned(NamedTuple):
    """The call of a batch ended. verdicts: None for each member with a result, else its verdict."""

    batch: Batch
    verdicts: Sequence[Verdict | None]


class LookedUp(NamedTuple):
    """These items were looked up (`Scheduler.memory`): a recorded result is in item.result, and item.known."""

    items: Sequence[Item]


class Missed(NamedTuple):
    """A worker took the call later than `begin_by`, and did not begin it."""

    call: Call


class Recalled(NamedTuple):
    """The calls that no worker had taken when `Effects.recall` was carried out; perhaps none."""

    calls: Sequence[Call]


class Woken(NamedTuple):
    """A stage may let calls of that lane (None: of the map) start that it had told to wait."""

    lane: Lane | None


class Fail(NamedTuple):
    """The map fails for a reason that is not one item's."""

    error: BaseException


class Stop(NamedTuple):
    """No call starts any more. keeps: what running calls return is emitted; else nothing is."""

    keeps: bool


class Effects:
    """What the driver does after a step, in this order. A step that recalls starts nothing: the next one does."""

    __slots__ = ("cancel", "emit", "ended", "read", "recall", "shows", "start", "wake_at")

    def __init__(self) -> None:
        self.emit: list[Item] = []  # these are next in the output
        self.recall = False  # report as Recalled the calls that no worker has taken
        self.start: list[Call] = []  # workers make these calls, the first one first
        # Cancel or abandon these calls, and report them as failed with that error.
        self.cancel: list[tuple[Call, BaseException]] = []
        self.wake_at = math.inf  # call `step` then
        self.read: float = 0  # so many items may be read from the input, all those counted that were read before
        self.shows = False  # the consumer looks at the output, however many items it waits for
        self.ended = False  # nothing follows but what is in the output, and then `Scheduler.error`

    def __repr__(self) -> str:
        return f"Effects({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"


Event = Any  # one of those above
