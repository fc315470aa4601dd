"""Accounts of shared limits: what a database has granted to this process. Pure, as `ledger`; `exchange` does the I/O.

A call takes from what was granted here before, and asks nobody. If that lacks something, `take` of the ledger puts what
the call needs into `Requests.calls`, and the call waits. Each exchange with the database sends a report of each account
that has something to report, and brings grants (`grants`). All of this changes in steps of the ledger alone.

    LeasedTokens     slots in [tat, end) (tat: GCRA's, as in `ledger`), and leases that begin later. Slots that
                     pass unused are lost
    LeasedPermits    `allotted`: what this process holds; of it `reserved` by running calls. What nothing used between
                     two reports is returned. Nothing starts after `valid_until`, unless the lease was renewed
    LeasedSpending   the same of a Budget, without a lease. What calls spend leaves `allotted`, and is reported

How much is asked for ahead follows the demand: it doubles while all is used, and is at most what starts within LEASE
seconds plus the lead, which is the longest of the latest round trips. While calls wait for a Rate, its next lease is
asked for in time: later its first slots would be over when it comes.

Invariants
    asked        a grant is asked for and not answered: no other is asked for
    open         accounts that have something to report at `due`
    reporting    what calls spent, in the report that is on its way or has to be repeated under the same number
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from .grants import Answer, Ask, Terms
from .ledger import GRACE, NEARLY, Account, Permits, Tokens, Waiter

LEASE = 0.1  # seconds of starts that are leased ahead, besides the lead
MOST_LEAD = 1.0  # seconds; what a round trip takes longer, because the database was away, does not count
FADING = 0.9  # a shorter round trip lessens the lead at most by this factor
SETTLE_AFTER = 0.4  # seconds until what calls spent is reported, if nobody waits for it
FIRST_RETRY, LONGEST_RETRY = 0.1, 1.0  # seconds between two tries while others hold what is needed
ROUNDING = 1e-6  # as a fraction of a slot's length; as seconds: of the difference of two large times
KNOWN_FOR = 1.0  # seconds for which it is known that a Budget has too little left


class Requests:
    """What this process has to tell one database about its limits."""

    def __init__(self, process: bytes, poke: Callable[[], bool]) -> None:
        """process: names this one among all. poke: called in a step when something is due before `awaited`. It
        returns whether a thread looks."""
        self._process, self._poke = process, poke
        self._holders = count()
        self.calls: list[tuple[tuple[Any, float], ...]] = []  # accounts and costs of calls that wait together
        self.open: dict[Any, None] = {}
        self.lead = 0.0
        self.awaited = math.inf  # when the next exchange looks what is due

    @property
    def ahead(self) -> float:
        return LEASE + self.lead

    def due(self) -> float:
        """When the next exchange is due. Infinite: there is nothing to say."""
        return -math.inf if self.calls else min([account.due for account in self.open], default=math.inf)

    def begin_wait(self, wakes: list[Waiter]) -> float:
        """As a step: the exchange waits until something is due."""
        self.awaited = self.due()
        return self.awaited

    def is_due(self, at: float) -> None:
        """There is something to ask or to report at that time."""
        if at < self.awaited and self._poke():
            self.awaited = at

    def ask(self, needs: Sequence[tuple[Any, float]]) -> None:
        """A call needs so much of these accounts, which do not have it."""
        for account, _ in needs:
            account.asked = True
        self.calls.append(tuple(needs))
        self.is_due(-math.inf)

    def forget_calls(self, wakes: list[Waiter]) -> None:
        """As a step: nobody needs what the calls that wait have asked for."""
        for call in self.calls:
            for account, _ in call:
                account.asked = False
        self.calls.clear()

    def gather(self, needs: dict[Any, float], calls: list[Any], early: bool, now: float, wakes: list[Waiter]) -> None:
        """As a step: put into `needs` the accounts that have to report, with the largest cost that waits for each (0:
        none), and into `calls` the calls that wait, which are taken out. early: also what is not due yet."""
        self.awaited = math.inf
        calls += self.calls
        self.calls.clear()
        for call in calls:
            for account, cost in call:
                needs[account] = max(cost, needs.get(account, 0.0))
        for account in self.open:
            if early or account.due <= now:
                needs.setdefault(account, 0.0)

    def put_back(self, needs: dict[Any, float], calls: list[Any], now: float, wakes: list[Waiter]) -> None:
        """As a step: the database has not answered: tell all of it again. What no call waits for is not due at once,
        so who exchanges between other work comes to that."""
        self.calls[:0] = calls
        for account in needs:
            account.pause_told = -math.inf
            account.report_by(now + LONGEST_RETRY)

    def took(self, seconds: float) -> None:
        """So long a round trip has taken."""
        self.lead = max(min(seconds, MOST_LEAD), self.lead * FADING)


def places_of(needs: dict[Any, float], calls: list[Any]) -> list[list[tuple[int, float]]]:
    """What each call needs, as places of the accounts and costs."""
    places = {account: place for place, account in enumerate(needs)}
    return [[(places[account], cost) for account, cost in call] for call in calls]


class Leased(Account):
    """What the accounts of shared limits have in common. It has no __slots__: Python cannot derive from two bases that
    have some."""

    def lease_from(self, requests: Requests, limit_id: bytes, group: bytes, terms: Terms) -> None:
        self.requests, self.limit_id, self.group, self.terms = requests, limit_id, group, terms
        self.holder = b"%b%d" % (requests._process, next(requests._holders))  # names it among those of all processes
        self.asked = False
        self.retry_at = -math.inf  # nothing is asked for before
        self.due = math.inf  # when to report
        self.spent = self.reporting = 0.0  # what ended calls spent
        self.number = 0  # of the report
        self.pause_told = -math.inf

    def fits(self, cost: float, now: float) -> bool:
        """Whether what was granted has room for that cost."""
        raise NotImplementedError

    def lacks(self, cost: float, now: float) -> bool:
        return not self.asked and self.retry_at <= now and not self.fits(cost, now)

    def granted_at(self, now: float) -> float:
        """When more may be granted, as far as it is known."""
        return math.inf if self.asked or self.retry_at <= now else self.retry_at

    def report_by(self, at: float) -> None:
        """Report at that time, or before."""
        self.due = min(self.due, at)
        self.requests.open[self] = None
        self.requests.is_due(at)

    def spend(self, amount: float, now: float) -> None:
        if amount:
            self.spent += amount
            self.report_by(now if self.queue else now + SETTLE_AFTER)

    def pause(self, until: float) -> None:
        super().pause(until)
        self.report_by(-math.inf)

    # ------------------------------------------------------------------------------------------------ the exchange
    def report(self, need: float, returns: bool, now: float, wakes: list[Waiter]) -> Ask:
        """What this account tells. need: the largest cost that waits; 0: none. returns: all that running calls do not
        hold is returned."""
        if not self.reporting and self.spent:
            self.number += 1
            self.reporting, self.spent = self.spent, 0.0
        pause = max(0.0, self.paused_until - now) if self.paused_until > self.pause_told else 0.0
        self.pause_told = self.paused_until
        want = self.wanted(need) if need else 0.0
        self.due = math.inf
        number = self.number if self.reporting else 0
        kept = self.kept(returns, now)
        told = (self.limit_id, self.group, self.holder, want, kept, self.reporting, number, pause)
        return tuple.__new__(Ask, told)  # Ask() runs interpreted code

    def wanted(self, need: float) -> float:
        raise NotImplementedError

    def kept(self, returns: bool, now: float) -> float:
        return 0.0

    def answered(self, answer: Answer, need: float, offset: float, now: float, wakes: list[Waiter]) -> None:
        """The database has answered a report."""
        if self.reporting:
            self.reporting, self.retry_at = 0.0, -math.inf
        if need:
            self.asked = False
            self.retry_at = answer.retry_at + offset if answer.retry_at < math.inf else now + self.backoff()
        if answer.paused_until + offset > self.paused_until:  # else a pause may have come after the report
            self.paused_until = self.pause_told = answer.paused_until + offset
        if answer.terms != self.terms:
            self.change(answer.terms)
        self.accept(answer, offset, now)
        if self.open_at(now) < math.inf:
            self.report_by(self.open_at(now))
        elif not self.spent and self.due == math.inf:
            self.requests.open.pop(self, None)
        if need or self.queue:
            self.turn = now
            self.call_first(wakes)

    def backoff(self) -> float:
        return LONGEST_RETRY

    def is_unreported(self) -> bool:
        """Whether something was taken that the database has not heard of."""
        return bool(self.spent or self.reporting)

    def change(self, terms: Terms) -> None:
        self.terms = terms

    def accept(self, answer: Answer, offset: float, now: float) -> None:
        raise NotImplementedError

    def open_at(self, now: float) -> float:
        """When there will be something to report, if nothing happens. Infinite: never."""
        return math.inf


class LeasedTokens(Leased, Tokens):
    """The account of a shared Rate."""

    _end = -math.inf  # of the lease
    _end_told = -math.inf  # the end of the last lease, by the database's clock
    _later: tuple[tuple[float, float, float], ...] = ()  # leases that come after it: begin, end, credit
    _size = 0.0  # what was asked for last

    def fits(self, cost: float, now: float) -> bool:
        """Turns to the next lease if this one has no room."""
        length = cost * self._interval
        nearly = max(NEARLY, ROUNDING * length)
        while length and self._slot(now) + length > self._end + nearly:
            if self._tat + length <= self._end + nearly:
                self._size = 0.0  # slots were lost
            if not self._later:
                return False
            (self._tat, self._end, self._credit), *later = self._later
            self._later = tuple(later)
        return True

    def _slot(self, now: float) -> float:
        return max(self._tat, now - max(self._credit, GRACE))

    def room_at(self, cost: float, now: float) -> float:
        return super().room_at(cost, now) if self.fits(cost, now) else self.granted_at(now)

    def take(self, cost: float, since: float, now: float) -> float:
        until = super().take(cost, since, now)
        is_nearly_used_up = self._end - self._tat < self.requests.lead + GRACE and not self._later
        if cost and is_nearly_used_up and (self.queue or since < now) and not self.asked and self.retry_at <= now:
            self.requests.ask([(self, cost)])
        return until

    def end(self, cost: float, spent: float, now: float) -> bool:
        self.spend(spent - cost, now)
        return False

    def wanted(self, need: float) -> float:
        """Twice as much as was used up last, at most what is used within `ahead` seconds: a multiple of `need`. A lease
        is at least as long as a round trip, else it might be over when it comes."""
        if not self._interval:
            return need
        least, most = self.requests.lead / self._interval, self.requests.ahead / self._interval
        self._size = max(need, least, min(2 * self._size, most))
        return need * max(1.0, math.floor(self._size / need))

    def change(self, terms: Terms) -> None:
        super().change(terms)
        self._interval, self._burst, self._per = terms.per / terms.amount, terms.burst, terms.per

    def accept(self, answer: Answer, offset: float, now: float) -> None:
        if not answer.granted:
            return
        begin, length = answer.begin + offset, answer.granted * self._interval
        # Slots that are over already, because a call had waited for them or has given something back, are valid.
        credit = answer.credit + GRACE if answer.credit else 0.0
        follows = abs(answer.begin - self._end_told) < ROUNDING
        if follows and self._later:
            *others, (first, end, before) = self._later
            self._later = *others, (first, end + length, before)
        elif follows and self._tat <= self._end:
            self._end += length
            self._credit = max(self._credit, credit)
        else:
            self._later += ((begin, begin + length, credit),)
        self._end_told = answer.begin + length

    def idle(self, now: float) -> bool:
        return super().idle(now) and not (self.spent or self.reporting or self.asked) and self._end <= now


class LeasedPermits(Leased, Permits):
    """The account of a shared Concurrency."""

    allotted = 0.0
    valid_until = math.inf
    _most = math.inf  # what this process may keep while others wait
    _peak = 0.0  # the most that was reserved since the last report
    _told_at = -math.inf  # when the last report was made
    _backoff = 0.0

    def fits(self, cost: float, now: float) -> bool:
        most = min(self.allotted, self._most) + self._amount * NEARLY
        return not cost or (self._reserved + cost <= most and now < self.valid_until)

    def room_at(self, cost: float, now: float) -> float:
        return self.paused_until if self.fits(cost, now) else self.granted_at(now)

    def take(self, cost: float, since: float, now: float) -> float:
        super().take(cost, since, now)
        self._peak = max(self._peak, self._reserved)
        return self.valid_until

    def end(self, cost: float, spent: float, now: float) -> bool:
        super().end(cost, spent, now)
        self.report_by(now if self.allotted > self._most else now + self.requests.ahead)
        return True

    def wanted(self, need: float) -> float:
        return max(self._peak, need)  # as much again as it has used

    def kept(self, returns: bool, now: float) -> float:
        """What nothing used since the last report is returned. Where the lease has run out, others may have it."""
        used = self._reserved if returns or now >= self.valid_until else min(self._peak, self._most)
        self.allotted = max(self._reserved, min(self.allotted, used))
        self._peak, self._told_at = self._reserved, now
        return self.allotted

    def change(self, terms: Terms) -> None:
        super().change(terms)
        self._amount = terms.amount * (1 + NEARLY)

    def backoff(self) -> float:
        self._backoff = min(LONGEST_RETRY, max(FIRST_RETRY, 2 * self._backoff))
        return self._backoff

    def accept(self, answer: Answer, offset: float, now: float) -> None:
        self.allotted += answer.granted
        self._most = max(answer.most, answer.granted)  # who has nothing may get more than its part, for one call
        if answer.granted:
            self._backoff = 0.0
        self._renewed()

    def is_unreported(self) -> bool:
        return super().is_unreported() or self.allotted > 0

    def _renewed(self) -> None:
        self.valid_until = self._told_at + self.terms.lease if self.allotted else math.inf

    def open_at(self, now: float) -> float:
        """A lease is renewed after a third of its time, and what nothing uses is returned after a while."""
        if not self.allotted:
            return math.inf
        unused = self.allotted > self._reserved and not self.queue
        return now + (self.requests.ahead if unused else self.terms.lease / 3)

    def idle(self, now: float) -> bool:
        return super().idle(now) and not (self.allotted or self.spent or self.reporting or self.asked)


class LeasedSpending(LeasedPermits):
    """The account of a shared Budget."""

    settled = 0.0  # what ended calls of all processes have spent, as far as this one knows
    _known_until = -math.inf  # how long that holds

    def is_stuck(self, cost: float, own: int, now: float) -> bool:
        return False  # other processes may give something back

    def never(self, cost: float, now: float) -> bool:
        return now < self._known_until and self.settled + cost > self._amount

    def end(self, cost: float, spent: float, now: float) -> bool:
        Permits.end(self, cost, spent, now)
        self.allotted -= spent
        self.settled += spent
        self.spend(spent, now)
        self.report_by(now + self.requests.ahead)
        return True

    def accept(self, answer: Answer, offset: float, now: float) -> None:
        super().accept(answer, offset, now)
        self.settled, self._known_until = answer.settled + self.spent, now + KNOWN_FOR

    def _renewed(self) -> None:
        return  # there is no lease
