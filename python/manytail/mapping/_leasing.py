"""Leasing: which leases of slots a map asks for where its rates are shared, and when.

There is no thread, clock, lock or I/O here: the gate asks (`_gate`), the runner passes the requests on to the database
and reports the answers (`_permits`).

No worker waits for a lease: a call that has no slot goes back to the front of its key, and the key, or the map, is at
its limit until the lease has come and its first slot is due.

A lease that no call uses wastes the limit. So one for a key is asked for only when the key's next call is taken out,
and those of at most `workers` keys at a time. The other keys wait for their turn to ask; the more urgent ask first.

A call that needs slots in several shared limits gets them together, as one joint slot of its key (`_rates`).

Invariants
    _asking          keys whose leases are on their way: at most `workers`
    limits.is_to_ask the key is in `_to_ask`: it is disabled in the admission, and kept
    granted          keys that have a joint slot
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from ._admission import Lane
from ._item import Item
from ._options import Options
from ._rates import JointSlots, LeasedSlots, Part

RATES = ("rate", "per_key_rate", "cost_rate")


class LeaseRequest(NamedTuple):
    """A lease to be asked for: of slots of one limit, or of one slot in several limits."""

    parts: tuple[Part, ...]
    lane: Lane | None  # None: of the map


class LeaseAnswer(NamedTuple):
    """The answer to a LeaseRequest: a lease or, of several limits, a slot or the time to ask again."""

    wanted: LeaseRequest
    begin: float  # by our clock; where no slot is granted, when to ask again
    rate: float = 0.0  # of the one limit: what was stored last with the name, by any process
    granted: bool = True
    by_map: bool = False  # refused by a limit of the map
    lead: float = 0.0  # how much earlier the next lease is to be asked for (`_rates`)


def given_rates(options: Options) -> list[str]:
    """The rates among the options of this map."""
    return [name for name in RATES if getattr(options, name) is not None]


def is_joint(options: Options) -> bool:
    """Whether a call needs a slot in several shared limits at the same time."""
    return len(given_rates(options)) > 1


def limit_id(options: Options, option: str) -> bytes:
    """What names this limit in the database: `rate:NAME`."""
    return f"{option}:{options.shared_limits[option].name}".encode()


class Leasing:
    """The leases that one map asks for."""

    def __init__(self, options: Options) -> None:
        self.to_lease: list[LeaseRequest] = []  # an effect: the runner removes them
        self.granted = 0
        self._options = options
        self._given = given_rates(options)
        self._map_due = -math.inf  # joint slots: no request before that time, because a limit of the map refuses it
        self._asking = 0
        self._to_ask: list[tuple[float, int, Lane]] = []  # a heap, by priority and arrival
        self._numbers = count()

    @property
    def map_until(self) -> float:
        """No call starts before that time. A joint slot that was granted is used even while the map refuses others."""
        return -math.inf if self.granted else self._map_due

    def ask_for_map(self, option: str, slots: LeasedSlots) -> None:
        """Ask for a lease of this limit of the map."""
        self._ask(option, slots, None, b"")

    def ask_for_key(self, call: Item, slots: LeasedSlots | JointSlots, cost: float, now: float) -> bool:
        """Ask for the lease that this call of its key needs. Returns False if the key waits for its turn to ask: the
        caller disables it."""
        if self._asking >= self._options.workers:
            self._ask_later(call)
            return False
        if isinstance(slots, JointSlots):
            self._ask_jointly(call.lane, slots, cost, now)
        else:
            self._ask("per_key_rate", slots, call.lane, call.lane.limit_id)
        return True

    def _ask(self, option: str, slots: LeasedSlots, lane: Lane | None, limit_of_key: bytes) -> None:
        self.to_lease.append(LeaseRequest((self._part(option, limit_of_key, slots.to_lease()),), lane))
        self._asking += lane is not None

    def _ask_jointly(self, lane: Lane, slots: JointSlots, cost: float, now: float) -> None:
        self.granted -= slots.granted
        if self._map_due > now:
            slots.leased(self._map_due, False)
            return
        slots.to_lease(cost)
        amounts = {"rate": 1.0, "per_key_rate": 1.0, "cost_rate": cost}
        parts = [self._part(option, lane.limit_id, amounts[option]) for option in self._given]
        self.to_lease.append(LeaseRequest(tuple(part for part in parts if part.amount), lane))
        self._asking += 1

    def _part(self, option: str, limit_of_key: bytes, amount: float) -> Part:
        group = limit_id(self._options, option)
        limit = limit_of_key if option == "per_key_rate" else group
        return Part(limit, group, getattr(self._options, option), amount)

    def _ask_later(self, call: Item) -> None:
        limits = call.lane.limits
        if not limits.is_to_ask:
            limits.is_to_ask = True
            heappush(self._to_ask, (call.priority, next(self._numbers), call.lane))

    def leased(self, answers: Iterable[LeaseAnswer], of_map: Mapping[str, Any]) -> list[Lane]:
        """These leases have come. of_map: the LeasedSlots of the map, by option. Returns the keys that may be able to
        start a call, or to ask."""
        lanes: list[Lane] = []
        for wanted, begin, rate, granted, by_map, lead in answers:
            lane, part = wanted.lane, wanted.parts[0]
            slots: Any = of_map[part.group.decode().partition(":")[0]] if lane is None else lane.limits.slots
            if isinstance(slots, JointSlots):
                slots.leased(begin, granted)
                self.granted += granted
                self._map_due = begin if by_map else self._map_due
            else:
                slots.leased(begin, part.amount, rate, lead)
            if lane is not None:
                self._asking -= 1
                lanes.append(lane)
        for _ in range(min(len(self._to_ask), self._options.workers - self._asking)):
            lane = heappop(self._to_ask)[2]
            lane.limits.is_to_ask = False
            lanes.append(lane)
        return lanes
