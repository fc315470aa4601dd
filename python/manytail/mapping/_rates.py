"""The slots of Rates that hold over several processes. No clock here: the caller passes the time.

The starts of one limit have slots 1/rate apart: the generic cell rate algorithm (GCRA, ITU-T I.371). A start takes a
slot, and happens in the `LATE` seconds from there. So in any t seconds at most 1 + rate * (t + LATE) calls start. One
that would be later than LATE takes a new slot. While no start waits, slots are not saved up.

A limit takes its slots from leases (`LeasedSlots`): intervals that a database gives
to one process each (`_shared_store`, `_permits`). A lease has room for one start, or for the starts of LEASE seconds
and of the lead: the longest of the latest round trips to the database (`Lead`). The next lease is asked for when this
one is used up, but not earlier than LEASE seconds and the lead before its end. So a slow database costs few slots. A
process that dies wastes at most what it has leased, and the limit still holds. Of a lease that comes late the slots
that have passed are lost.

A call under several such limits needs a slot in all of them at the same time. Leases of each limit alone would seldom
have a common slot. So the database grants a slot for each call (`JointSlots`, `grant`), in one transaction, and at most
LEASE seconds ahead. It refuses a call whose key is at its limit while the map is not: with that slot the limit of the
map would be unused until then, although calls of other keys could start.

Invariants of LeasedSlots
    [_begin, _end)   what is leased and not taken, by our clock; empty if _begin >= _end
    asked            a lease is on its way: there is no slot
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

LATE = 0.1  # seconds that a start may come after its slot
LEASE = 0.1  # seconds of starts in a lease
MOST_LEAD = 1.0  # seconds; a round trip in which the database was away says nothing about the next one
_FADING = 0.9  # of the lead that is kept after a shorter round trip
_NEARLY = 1e-9  # seconds of rounding error
_CLOCK = 1e-6  # seconds that a database's clock may be inexact by


class Lead:
    """How many seconds earlier a process asks for its next lease, because the database is slow.

    It is the longest of the latest round trips: it follows a longer one at once, and shorter ones by and by.
    """

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0

    def took(self, seconds: float) -> None:
        """A round trip to the database took that long."""
        self.seconds = max(min(seconds, MOST_LEAD), self.seconds * _FADING)


class LeasedSlots:
    """The slots of a limit that holds over several processes."""

    __slots__ = ("_begin", "_end", "_interval", "_lead", "_wanted", "asked")

    def __init__(self, rate: float) -> None:
        self._interval = 1 / rate
        self._begin = self._end = -math.inf
        self._wanted = 1.0  # what the next start takes, as far as that is known
        self._lead = 0.0
        self.asked = False

    @property
    def next(self) -> float:
        """No start, and no request for a lease, before that time. Infinite while a lease is on its way."""
        if self.asked:
            return math.inf
        return self._begin if self._has(self._begin, self._wanted) else self._end - LEASE - self._lead

    def _has(self, slot: float, amount: float) -> bool:
        """Whether the lease has room for a start with that slot."""
        return slot + amount * self._interval <= self._end + _NEARLY

    def _slot(self, now: float) -> float:
        """The slot of a start at `now`. Those of more than LATE / 2 seconds ago have passed."""
        return max(self._begin, now - LATE / 2)

    def needs_lease(self, now: float) -> bool:
        """Whether a lease is to be asked for: there is no slot at `now`, and the time for it has come."""
        # `fits` may give up the rest of the lease, which changes `next`.
        return self.next <= now and not self.fits(now, self._wanted) and self.next <= now

    def fits(self, now: float, amount: float = 1.0) -> bool:
        """Whether a start at `now`, which is not before `next`, has a slot. If not, what is left of the lease is given
        up, and the next one has room for this start."""
        if self._begin <= now and self._has(self._slot(now), amount):
            return True
        if self._begin <= now:
            self._begin, self._wanted = self._end, amount or 1.0
        return False

    def take(self, now: float, amount: float = 1.0) -> float:
        """The slot of a start at `now`, which fits."""
        slot = self._slot(now)
        self._begin = slot + amount * self._interval
        return slot

    def to_lease(self) -> float:
        """A lease is asked for. Returns of how much."""
        self.asked = True
        return self._wanted * max(1, math.floor((LEASE + self._lead) / self._interval / self._wanted))

    def leased(self, begin: float, amount: float, rate: float, lead: float = 0.0) -> None:
        """The lease has come. rate: that which holds for all processes."""
        self.asked, self._lead = False, lead
        self._interval = 1 / rate
        self._begin, self._end = begin, begin + amount / rate


class JointSlots:
    """The slot of the next call of a key in several limits that hold over several processes."""

    __slots__ = ("_cost", "_next", "asked", "granted")

    def __init__(self) -> None:
        self._next = -math.inf  # the slot, or the time to ask again
        self.granted = False
        self._cost = 0.0  # for which the slot was granted
        self.asked = False

    @property
    def next(self) -> float:
        """No start, and no request, before that time. Infinite while a slot is asked for."""
        return math.inf if self.asked else self._next

    def needs_lease(self, now: float) -> bool:
        """Whether a slot is to be asked for."""
        return self.next <= now

    def fits(self, now: float, cost: float = 1.0) -> bool:
        """Whether a start at `now` has a slot."""
        return self.granted and self._next <= now <= self._next + LATE / 2 and cost <= self._cost

    def take(self, now: float, cost: float = 1.0) -> float:
        """The slot of a start at `now`, which fits."""
        slot, self._next, self.granted = self._next, -math.inf, False
        return slot

    def to_lease(self, cost: float) -> None:
        """A slot is asked for."""
        self.asked, self.granted, self._cost = True, False, cost

    def leased(self, begin: float, granted: bool) -> None:
        """The answer: the slot or, if none is granted, when to ask again."""
        self.asked, self.granted, self._next = False, granted, begin


# ---------------------------------------------------------------------------------------------------- in the database
class Part(NamedTuple):
    """What a call takes of one limit."""

    limit: bytes
    group: bytes  # the option, under which its rate is stored
    rate: float  # if none is stored
    amount: float


class Granted(NamedTuple):
    """The slot of a call in all its limits or, if none is granted, when to ask again."""

    start: float
    granted: bool = True
    by_map: bool = False  # a limit of the map refuses it, so it would refuse any other call


def grant(
    now: float, tats: dict[bytes, float], rates: Mapping[bytes, float], wanted: Iterable[Sequence[Part]]
) -> list[Granted]:
    """Decide which of these calls get a slot, in this order. No clock, no I/O.

    tats: of each limit the time from which on nothing is taken, GCRA's theoretical arrival time. Updated in place.
    rates: those that are stored, by group.
    """
    answers = []
    for parts in wanted:
        lengths = {part.limit: part.amount / rates.get(part.group, part.rate) for part in parts}
        of_key = of_map = now
        idle = LEASE  # seconds that the map may be idle for the key
        for part in parts:
            if part.group.startswith(b"per_key_rate"):
                of_key = max(of_key, tats.get(part.limit, now))
            else:
                of_map, idle = max(of_map, tats.get(part.limit, now)), min(idle, lengths[part.limit])
        if of_map > now + LEASE + _CLOCK:
            answers.append(Granted(of_map - LEASE, False, True))
        elif of_key > of_map + idle + _CLOCK:
            answers.append(Granted(of_key, False))
        else:
            start = max(of_key, of_map)
            tats.update({limit: start + length for limit, length in lengths.items()})
            answers.append(Granted(start))
    return answers
