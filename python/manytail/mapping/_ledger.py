"""The ledger: whether a call may start under its limits now, and if not, when to ask again. Pure: no thread, clock,
lock or I/O; `now` is passed. `_limits` adds locks and delivers wake-ups.

An account stands for a limit, or for a limit and one key. A call takes its cost from all its accounts or from none.

    account       state                          room for cost c at `now`
    Tokens        tat, credit                    tat - burst <= now, in seconds of the rate: the generic cell rate
                                                 algorithm (GCRA, ITU-T I.371), kept as a bucket that may be in debt
    Spending      settled, reserved              settled + reserved + c <= amount; never if settled + c > amount
    Permits       reserved                       reserved + c <= amount; never if c > amount

A start has a slot of each Tokens account: it begins there, or up to LATE seconds later. A timer that rings late loses
nothing: the slot may be up to GRACE seconds ago. What a call gives back, because it spent less than its cost, is kept
as `credit`: seconds of the rate, at most one `per`, in which more may start at once.

Order. What waits for an account stands in its queue, by arrival: a map, or one key of a map. Only the first may take.
Each waiter stands in one queue at a time, that of the account which blocks it longest. Nothing waits while it holds
something, so there is no deadlock. It keeps its arrival when it changes the queue. A first that does not take within
LATE seconds of its turn, or whose next call waits for a key, is passed by: it keeps its place, but holds nobody up
until a call of it waits there again. Those that wait in one event loop are passed by together, and leave together when
it is found closed.

Progress. Who waits asks again at the time that `take` returned, or when it is woken. When there may be room, `take`,
`end` and `leave` add to `wakes` the first of the queue and the second, which passes the first by if it does not take
within LATE seconds. If both are of one event loop, which may be blocked, they add the next that is not. Each of the
others looks LATE seconds after the one before it, where those of another loop count as one.

Invariants, after each call
    reserved                the costs of holds that have not ended
    settled + reserved      at most amount, but for what calls say that they spent beyond their costs
    waiter.account          the account in whose queue it stands, or None
    a queue                 sorted by arrival
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

LATE = 0.1  # seconds that a start may come after its slot
GRACE = LATE / 2  # seconds that a slot may have passed when it is taken; the rest of LATE is for the worker
NEARLY = 1e-9  # of the amount: rounding refuses nothing
FOREVER = 1e15  # seconds; what takes longer counts as that long

_arrival = attrgetter("since")


class Waiter:
    """What waits for limits: a map (lane None), or one key of a map, which waits only for accounts of the key."""

    __slots__ = ("account", "cost", "due", "home", "lane", "owner", "passed", "since")

    def __init__(self, owner: Any, lane: Any = None) -> None:
        self.owner = owner
        self.lane = lane
        self.account: Account | None = None
        self.since = math.inf  # its arrival; infinite: it does not wait
        self.cost = 0.0  # that it wants of `account`
        self.passed = False  # it did not take in its turn, or its next call waits for a key
        self.due = math.inf  # when it asks again unasked, or when it was woken if it has not asked since (then <= now)
        self.home: Any = None  # the event loop that it waits in; None: no loop can hold it up


class Wait(NamedTuple):
    """The call has to wait: ask again at `at`, or when woken."""

    at: float
    account: Account


class Never(NamedTuple):
    """The account has no room for the call, and never will."""

    account: Account


class Account:
    """What all kinds of accounts share: the queue of those that wait."""

    __slots__ = ("key", "limit", "of_key", "paused_until", "queue", "turn", "users")

    holds = True  # the end of a call changes it, also of one that spent its cost

    def __init__(self, limit: Any, of_key: bool = False, key: Any = None) -> None:
        self.limit = limit
        self.of_key = of_key
        self.key = key
        self.queue: list[Waiter] = []
        self.turn = -math.inf  # since when the first of the queue is the first, or there may be room for it
        self.paused_until = -math.inf
        self.users = 0  # maps that may use it; only of an account of a key

    def never(self, cost: float, now: float) -> bool:
        raise NotImplementedError

    def room_at(self, cost: float, now: float) -> float:
        """From when on there is room. Infinite: not before a call ends."""
        raise NotImplementedError

    def take(self, cost: float, since: float, now: float) -> float:
        """There is room. since: when the call came to wait. Returns until when the call may start."""
        raise NotImplementedError

    def end(self, cost: float, spent: float, now: float) -> bool:
        """A call with that cost has ended. Returns whether there may be room earlier than before."""
        raise NotImplementedError

    def lacks(self, cost: float, now: float) -> bool:
        """Whether more has to be asked for: of a shared limit (`_leased`)."""
        return False

    def pause(self, until: float) -> None:
        """Nothing starts before that time."""
        self.paused_until = max(self.paused_until, until)

    def idle(self, now: float) -> bool:
        """Whether a new account would be the same."""
        return not self.queue and self.paused_until <= now

    # ------------------------------------------------------------------------------------------------ the queue
    def comes_before(self, waiter: Waiter, now: float, wakes: list[Waiter]) -> float:
        """From when on the waiter, which may stand elsewhere, may take although those before it have not. -inf: it is
        the first. A first that had its LATE seconds is passed by here, and woken. Those that wait in one event loop
        count as one for the others: if the loop is blocked, none of them takes."""
        ahead, at, passed = 0, -math.inf, False
        homes: set[int] = set()
        for other in self.queue:
            if other is waiter or (waiter.account is not self and other.since > min(waiter.since, now)):
                break
            if other.passed or self.never(other.cost, now):
                continue
            if other.home is not None and other.home is not waiter.home:
                if id(other.home) in homes:
                    continue
                homes.add(id(other.home))
            ahead += 1
            if ahead == 1:
                at = max(self.turn, self.room_at(other.cost, now), min(other.due, now)) + LATE
                if at <= now:
                    self._pass_late(other, waiter)
                    self.turn = at  # not now: the LATE seconds of the next one ran from then, so it may be passed too
                    wakes.append(other)
                    passed, ahead, at = True, 0, -math.inf
        if passed:
            self.call_first(now, wakes)
        return at + (ahead - 1) * LATE if ahead else -math.inf

    def _pass_late(self, late: Waiter, asker: Waiter) -> None:
        """Pass by this one, which did not take in its turn, and all others of its event loop, unless the asker is of
        that loop, which shows that it runs."""
        late.passed = True
        if late.home is not None and late.home is not asker.home:
            for other in self.queue:
                if other.home is late.home:
                    other.passed = True

    def join(self, waiter: Waiter, cost: float, now: float) -> None:
        """Let the waiter wait here."""
        waiter.since = min(waiter.since, now)
        waiter.account, waiter.cost = self, cost
        first = self.queue[0] if self.queue else None
        insort(self.queue, waiter, key=_arrival)
        if self.queue[0] is not first:
            self.turn = now

    def quit(self, waiter: Waiter, now: float, wakes: list[Waiter]) -> None:
        """The waiter waits here no longer."""
        if self._first() in (waiter, None):
            self.turn = now
        self.queue.remove(waiter)
        waiter.account = None
        self.call_first(now, wakes)

    def pass_by(self, waiter: Waiter, now: float, wakes: list[Waiter]) -> None:
        """The waiter keeps its place, and does not take in its turn."""
        if self._first() is waiter:
            self.turn = now
            waiter.passed = True
            self.call_first(now, wakes)
        waiter.passed = True

    def _first(self) -> Waiter | None:
        """Whose turn it is."""
        for waiter in self.queue:
            if not waiter.passed:
                return waiter
        return None

    def call_first(self, now: float, wakes: list[Waiter]) -> None:
        """Wake those that were passed by, the first, and one that is to notice if the first does not take: the second,
        and if both are of one loop, the next that is not. One that waits in a loop is woken again only after it has
        asked: if the loop is blocked, wake-ups pile up."""
        called, home = 0, None  # home: of the first
        for waiter in self.queue:
            if called >= 2 and waiter.home is home:
                continue
            if waiter.home is None or waiter.due > now:
                wakes.append(waiter)
            waiter.due = min(waiter.due, now)
            if not waiter.passed:
                called += 1
                home = waiter.home if called == 1 else home
                if called >= 2 and (home is None or waiter.home is not home):
                    return

    def settle(self, cost: float, spent: float, now: float, wakes: list[Waiter]) -> None:
        """A call with that cost has ended. Wake who waits, if there may be room earlier than before."""
        if not self.queue:
            self.end(cost, spent, now)
            return
        first = self._first()
        was_full = first is not None and self.room_at(first.cost, now) == math.inf
        if self.end(cost, spent, now):
            if was_full and first is not None and self.room_at(first.cost, now) < math.inf:
                self.turn = now
            self.call_first(now, wakes)


class Tokens(Account):
    """The account of a Rate: a token bucket."""

    __slots__ = ("_burst", "_credit", "_interval", "_per", "_tat", "_waited")

    holds = False

    def __init__(self, limit: Any, of_key: bool, key: Any, interval: float, burst: float, per: float) -> None:
        """interval: seconds per unit of cost. burst: seconds of the rate that may be taken ahead."""
        super().__init__(limit, of_key, key)
        self._interval = interval
        self._burst = burst
        self._per = per
        self._tat = -math.inf  # GCRA's theoretical arrival time: until then all is taken
        self._credit = 0.0
        self._waited = (-math.inf, 0.0)  # when the last start that had waited was taken, and since when it had

    def never(self, cost: float, now: float) -> bool:
        return False

    def room_at(self, cost: float, now: float) -> float:
        return max(self._tat - self._burst, self.paused_until)

    def take(self, cost: float, since: float, now: float) -> float:
        if self._waited[0] == now:  # a late timer rang for these starts together
            since = min(since, self._waited[1])
        if since < now:
            self._waited = now, since
        slot = max(self._tat, now - max(self._credit, min(GRACE, now - since)))
        self._tat = slot + min(cost * self._interval, FOREVER)
        if self._credit:
            self._credit = min(self._credit, max(0.0, now - self._tat))
        return max(slot, now - GRACE) + LATE

    def end(self, cost: float, spent: float, now: float) -> bool:
        if spent == cost:
            return False
        change = min(spent * self._interval, FOREVER) - min(cost * self._interval, FOREVER)
        self._tat = max(self._tat, now - self._credit) + change
        self._credit = min(self._per, max(0.0, now - self._tat))
        return spent < cost

    def idle(self, now: float) -> bool:
        return super().idle(now) and self._tat <= now


class Permits(Account):
    """The account of a Concurrency."""

    __slots__ = ("_amount", "_holds", "_reserved")

    def __init__(self, limit: Any, of_key: bool, key: Any, amount: float) -> None:
        super().__init__(limit, of_key, key)
        self._amount = amount * (1 + NEARLY)
        self._reserved = 0.0
        self._holds = 0

    def never(self, cost: float, now: float) -> bool:
        return cost > self._amount

    def room_at(self, cost: float, now: float) -> float:
        return self.paused_until if self._reserved + cost <= self._amount else math.inf

    def take(self, cost: float, since: float, now: float) -> float:
        self._holds += 1
        self._reserved += cost
        return math.inf

    def end(self, cost: float, spent: float, now: float) -> bool:
        self._holds -= 1
        self._reserved = self._reserved - cost if self._holds else 0.0  # without the error of sums
        return True

    def is_stuck(self, cost: float, own: int, now: float) -> bool:
        """Whether that cost waits for the end of a call, and there are no more calls than so many."""
        return self._holds <= own and self.room_at(cost, now) == math.inf

    def idle(self, now: float) -> bool:
        return super().idle(now) and not self._holds


class Spending(Permits):
    """The account of a Budget."""

    __slots__ = ("settled",)

    def __init__(self, limit: Any, of_key: bool, key: Any, amount: float) -> None:
        super().__init__(limit, of_key, key, amount)
        self.settled = 0.0

    def never(self, cost: float, now: float) -> bool:
        return self.settled + cost > self._amount

    def room_at(self, cost: float, now: float) -> float:
        fits = self.settled + self._reserved + cost <= self._amount
        return self.paused_until if fits else math.inf

    def end(self, cost: float, spent: float, now: float) -> bool:
        Permits.end(self, cost, spent, now)
        self.settled += spent
        return True  # also where nothing is given back: who waits may have to hear that there never will be room

    def idle(self, now: float) -> bool:
        return super().idle(now) and not self.settled


# ---------------------------------------------------------------------------------------------------- what maps ask
def take(
    waiters: Sequence[Waiter],
    accounts: Sequence[Account],
    costs: Sequence[float],
    now: float,
    asks: bool,
    wakes: list[Waiter],
) -> float | Wait | Never:
    """Take the costs of a call from all these accounts, or from none. Returns until when the call may start. waiters:
    what waits for each account, which is the map or the key of the call. If the call has to wait, that of the account
    which blocks it longest stands in the queue there. asks: what shared limits lack is asked for."""
    for index, account in enumerate(accounts):
        if account.queue or account.room_at(costs[index], now) > now:
            hindrance = _hindrance(waiters, accounts, costs, now, wakes)
            if hindrance is not None:
                if asks:
                    _ask_for_more(accounts, costs, now)
                return hindrance
            break
    until = math.inf
    for index, account in enumerate(accounts):
        until = min(until, account.take(costs[index], min(waiters[index].since, now), now))
    _leave_all(waiters, now, wakes)
    return until


def _hindrance(
    waiters: Sequence[Waiter], accounts: Sequence[Account], costs: Sequence[float], now: float, wakes: list[Waiter]
) -> Wait | Never | None:
    """Why the call may not start now. If it has to wait, it does from here on."""
    blocking, at = -1, now
    for index, account in enumerate(accounts):
        waiter, cost = waiters[index], costs[index]
        if account.never(cost, now):
            _leave_all(waiters, now, wakes)
            return Never(account)
        ready = account.room_at(cost, now)
        if account.queue:
            ready = max(ready, account.comes_before(waiter, now, wakes))
        if ready > at:
            blocking, at = index, ready
    if blocking < 0:
        return None
    _wait(waiters, blocking, accounts[blocking], costs[blocking], now, wakes)
    waiters[blocking].due = at
    return Wait(at, accounts[blocking])


def _ask_for_more(accounts: Sequence[Any], costs: Sequence[float], now: float) -> None:
    """What shared limits lack is granted together to this call, by each database."""
    needs = [(account, cost) for account, cost in zip(accounts, costs, strict=True) if account.lacks(cost, now)]
    for requests in {account.requests for account, _ in needs}:
        requests.ask([(account, cost) for account, cost in needs if account.requests is requests])


def _wait(
    waiters: Sequence[Waiter], index: int, account: Account, cost: float, now: float, wakes: list[Waiter]
) -> None:
    """That one stands in the queue of the account. A key stands in no other. The map keeps the place that it has in a
    queue, for its other calls, but holds nobody up there."""
    chosen = waiters[index]
    for waiter in waiters:
        if waiter.account is None or (waiter is chosen and waiter.account is account):
            continue
        if waiter is chosen or waiter.lane is not None:
            waiter.account.quit(waiter, now, wakes)  # it keeps its arrival
        else:
            waiter.account.pass_by(waiter, now, wakes)
    if chosen.account is None:
        account.join(chosen, cost, now)
    chosen.cost, chosen.passed = cost, False


def leave(waiter: Waiter, now: float, wakes: list[Waiter]) -> None:
    """It waits for nothing."""
    if waiter.account is not None:
        waiter.account.quit(waiter, now, wakes)
    waiter.since, waiter.passed = math.inf, False


def leave_home(account: Account, home: Any, now: float, wakes: list[Waiter]) -> list[Waiter]:
    """The event loop is closed: who waits there for the account does not. Returns those."""
    gone = [waiter for waiter in account.queue if waiter.home is home]
    called: list[Waiter] = []
    for waiter in gone:
        leave(waiter, now, called)
    # All of them: who is called is marked so by `due`, and is not called again before it has asked.
    wakes += [waiter for waiter in dict.fromkeys(called) if waiter.home is not home]
    return gone


def _leave_all(waiters: Sequence[Waiter], now: float, wakes: list[Waiter]) -> None:
    for waiter in waiters:
        if waiter.since < math.inf:
            leave(waiter, now, wakes)


def end(
    accounts: Sequence[Account], costs: Sequence[float], spent: Sequence[float], now: float, wakes: list[Waiter]
) -> None:
    """A call that took these costs has ended, once for each `take`. spent: what it took really, of each account; 0
    where it did not begin."""
    for index, account in enumerate(accounts):
        if account.holds or spent[index] != costs[index]:
            account.settle(costs[index], spent[index], now, wakes)
