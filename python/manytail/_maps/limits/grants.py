"""What a database grants to the processes that share its limits. Pure: no thread, clock, lock or I/O.

A process reports what its calls spent, and asks for what its next calls need. `grant` decides all that one process says
at a time, in one transaction (`database/limits.py`). Times come from the database's clock.

    limit         row                              what is granted
    Rate          tat, credit (`ledger.Tokens`)    slots, from `begin` on, which begin within `ahead` seconds
    Budget        settled, and a hold per holder   a part of the amount, reserved for the holder
    Concurrency   a hold per holder                the same, until its lease has run out

A call's needs are granted in all its limits or in none, and its slots begin together: else the first of them might be
over when the last one begins, and the call would ask anew for the one and then the other, for ever. Where all calls got
what they need, as much is added as the process wants ahead.

A report may come twice, because its answer was lost. What a holder reserves is told as a whole. What its calls spent is
told with a number, which the hold keeps, and counts once.

A Concurrency is divided evenly while others wait: `most` tells a holder with more than its part to return the rest.

Invariants
    settled + reserved   of all holders: at most amount, but for what calls spent beyond their costs
    a Budget's hold      whose lease has run out counts as settled: its process died, and may have spent it
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .ledger import NEARLY

WAITING = 3.0  # seconds for which a holder counts as waiting after it has asked
FORGET_AFTER = 3_600.0  # seconds for which a hold of a process that died is kept, in case that it comes back


class Terms(NamedTuple):
    """What a limit is. All that use its name go by the terms that were told last."""

    amount: float
    per: float = math.inf  # seconds of a Rate; infinite: of another limit
    burst: float = 0.0  # seconds of the rate
    lease: float = 30.0  # seconds after which the reservations of a process that died end

    @property
    def interval(self) -> float:
        """Seconds per unit of cost, of a Rate."""
        return self.per / self.amount


class Ask(NamedTuple):
    """What a process says of one limit, or of one key of it."""

    limit: bytes
    group: bytes  # the limit without its key, whose row has the terms
    holder: bytes  # an account of a process
    want: float = 0.0  # how much is of use, with what calls need
    kept: float = 0.0  # what the holder has from here on, used or not
    spent: float = 0.0  # by calls that ended; of a Rate: beyond their costs
    number: int = 0  # of this report, if something was spent
    pause: float = 0.0  # seconds that nothing starts


class Answer(NamedTuple):
    """granted: how much. Of a Rate: the slots from `begin` on. retry_at: when to ask again for what was refused; -inf:
    nothing was; infinite: nobody knows. settled: what is spent of a Budget. most: what this holder may keep of a
    Concurrency."""

    granted: float
    terms: Terms
    begin: float = -math.inf
    credit: float = 0.0  # seconds before now in which a slot may be
    retry_at: float = -math.inf
    settled: float = 0.0
    most: float = math.inf
    paused_until: float = -math.inf


@dataclass
class Row:
    """The state of a limit, or of one key of it."""

    tat: float = 0.0
    credit: float = 0.0
    paused_until: float = 0.0
    settled: float = 0.0


@dataclass
class Hold:
    """What one holder has of a limit."""

    reserved: float = 0.0
    wanted: float = 0.0  # the cost that it waits for
    since: float = 0.0  # when it came to wait; 0: it does not
    number: int = 0  # of its last report that told what calls spent
    expires_at: float = 0.0


Holds = dict[bytes, Hold]


def grant(
    now: float,
    ahead: float,
    terms: Mapping[bytes, Terms],
    rows: Mapping[bytes, Row],
    holds: Mapping[bytes, Holds],
    asks: Sequence[Ask],
    calls: Sequence[Sequence[tuple[int, float]]],
) -> list[Answer]:
    """Decide, and change rows and holds. ahead: seconds that slots may be granted ahead. terms: by group. rows, holds:
    by limit. calls: what each call needs, as places of `asks` and costs."""
    parts = [_Part(ask, terms[ask.group], rows[ask.limit], holds[ask.limit]) for ask in asks]
    for part in parts:
        part.report(now)
    for call in calls:
        needs = [(parts[place], cost) for place, cost in call]
        retry_at = max([part.retry_at(cost, now, ahead) for part, cost in needs], default=-math.inf)
        start = max([part.start(now) for part, cost in needs if cost], default=-math.inf)
        for part, cost in needs:
            part.take(cost, now, start) if retry_at <= now else part.refuse(cost, retry_at, now)
    for part in parts:
        part.take_ahead(now)
    return [part.answer(now) for part in parts]


class _Part:
    """One Ask while it is decided."""

    def __init__(self, ask: Ask, terms: Terms, row: Row, holds: Holds) -> None:
        self.ask, self.terms, self.row, self.holds = ask, terms, row, holds
        self.is_rate = terms.per < math.inf
        self.is_budget = ask.group.startswith(b"budget:")
        self.granted = 0.0
        self.wanted = 0.0  # and refused
        self.begin = self.slack = -math.inf
        self.asked_again_at = -math.inf

    # ------------------------------------------------------------------------------------------------ what it reports
    def report(self, now: float) -> None:
        ask, row = self.ask, self.row
        if ask.pause > 0:
            row.paused_until = max(row.paused_until, now + ask.pause)
        hold = self.holds.get(ask.holder)
        if ask.spent and (hold is None or hold.number != ask.number):
            self._settle(ask.spent, now)
        if ask.kept or ask.spent or (ask.want and not self.is_rate):
            hold = self.holds.setdefault(ask.holder, Hold())
            hold.reserved, hold.number, hold.wanted = ask.kept, ask.number or hold.number, 0.0
            hold.since = hold.since if ask.want else 0.0
            hold.expires_at = now + (self.terms.lease if ask.kept else WAITING)
        elif hold is not None:
            del self.holds[ask.holder]
        for holder, old in list(self.holds.items()):
            if old.expires_at < now - FORGET_AFTER and not (self.is_budget and old.reserved):
                del self.holds[holder]

    def _settle(self, spent: float, now: float) -> None:
        row, terms = self.row, self.terms
        if not self.is_rate:
            row.settled += spent if self.is_budget else 0.0
            return
        row.tat = max(row.tat, now - row.credit) + spent * terms.interval
        row.credit = min(terms.per, max(0.0, now - row.tat))

    # ------------------------------------------------------------------------------------------------ what it gets
    def retry_at(self, cost: float, now: float, ahead: float) -> float:
        """When there is room for that cost, as far as it is known. Not later than now: there is."""
        at = self.row.paused_until - ahead
        if self.is_rate:
            return max(at, self.row.tat - self.terms.burst - ahead)
        return at if cost <= self._free(cost, now) else math.inf

    def _free(self, cost: float, now: float) -> float:
        """What this holder may get more. The first of those that have nothing may get the cost of one call, however
        small its part is."""
        ours = self.holds.get(self.ask.holder, Hold())
        free = self.terms.amount * (1 + NEARLY) - self.row.settled - self._others(now) - ours.reserved
        one = cost if not ours.reserved and self._is_first(ours.since or math.inf, now) else 0.0
        return min(free, max(self._most(now) - ours.reserved, one))

    def _others(self, now: float) -> float:
        """What the other holders have."""
        others = [hold for holder, hold in self.holds.items() if holder != self.ask.holder]
        return sum(hold.reserved for hold in others if self._counts(hold, now))

    def _is_first(self, since: float, now: float) -> bool:
        """Whether no other has waited longer with nothing."""
        waiting = [hold for hold in self.holds.values() if hold.wanted and not hold.reserved and hold.expires_at > now]
        return all(hold.since >= since for hold in waiting)

    def _counts(self, hold: Hold, now: float) -> bool:
        return self.is_budget or hold.expires_at > now

    def _most(self, now: float) -> float:
        """What this holder may have of a Concurrency while others wait, or while more is held than there is, because a
        process could not renew its lease in time."""
        if self.is_rate or self.is_budget:
            return math.inf
        ours = self.holds.get(self.ask.holder, Hold()).reserved
        others = [hold for holder, hold in self.holds.items() if holder != self.ask.holder and hold.expires_at > now]
        amount, held = self.terms.amount, ours + sum(hold.reserved for hold in others)
        if held <= amount * (1 + 3 * NEARLY) and not any(hold.wanted for hold in others):
            return math.inf
        part = amount / (1 + len(others))
        claims = [max(part, hold.wanted) if hold.wanted else min(part, hold.reserved) for hold in others]
        return max(0.0, amount - sum(claims))

    def start(self, now: float) -> float:
        """When the next slot of a Rate begins."""
        if not self.is_rate:
            return -math.inf
        return max(self.row.tat, now - self.row.credit)

    def take(self, cost: float, now: float, start: float = -math.inf) -> None:
        """start: no slot begins before, if it costs something."""
        self.granted += cost
        if not self.is_rate:
            hold = self.holds.setdefault(self.ask.holder, Hold())
            hold.reserved += cost
            hold.since = 0.0
            hold.expires_at = now + self.terms.lease
            return
        row = self.row
        begin = max(self.start(now), start) if cost else self.start(now)
        row.tat = begin + cost * self.terms.interval
        if self.begin == -math.inf:
            self.begin, self.slack = begin, row.credit
        row.credit = min(row.credit, max(0.0, now - row.tat))

    def refuse(self, cost: float, retry_at: float, now: float) -> None:
        self.wanted = max(self.wanted, cost)
        self.asked_again_at = max(self.asked_again_at, retry_at)
        if not self.is_rate and (hold := self.holds.get(self.ask.holder)) is not None:
            hold.wanted = self.wanted
            hold.since = hold.since or now

    def take_ahead(self, now: float) -> None:
        """More than the calls need, which was granted to all of them."""
        more = self.ask.want - self.granted
        if not self.granted or self.wanted or more <= 0:
            return
        free = more if self.is_rate else min(more, self._free(0.0, now))
        if free > 0:
            self.take(free, now)

    def answer(self, now: float) -> Answer:
        settled = self.row.settled
        if self.is_budget:
            settled += sum(hold.reserved for hold in self.holds.values() if hold.expires_at <= now)
        return Answer(
            self.granted, self.terms, self.begin, self.slack, self.asked_again_at, settled, self._most(now),
            self.row.paused_until,
        )  # fmt: skip
