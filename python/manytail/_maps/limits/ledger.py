"""The ledger: whether a call may start under its limits now, and if not, when to ask again.

Pure: no thread, clock, lock or I/O; `now` is passed. `objects` holds the locks and delivers wake-ups.

An account stands for a limit, or for a limit and one key. A call takes its cost from all its accounts or from none.

    account       state                          room for cost c at `now`
    Tokens        tat, credit                    tat - burst <= now, in seconds of the rate: the generic cell rate
                                                 algorithm (GCRA, ITU-T I.371), kept as a bucket that may be in debt
    Spending      settled, reserved              settled + reserved + c <= amount; never if settled + c > amount
    Permits       reserved                       reserved + c <= amount; never if c > amount

A start has a slot of each Tokens account: it begins there, or up to LATE seconds later. A timer that rings late loses
nothing: the slot may be up to GRACE seconds ago. What a call gives back, because it spent less than its cost, is kept
as `credit`: seconds of the rate, at most one `per`, in which more may start at once.

Turns. What waits stands in the queue of the account that blocks it longest, by arrival, and the first of a queue alone
may take there. Nothing waits while it holds something, so there is no deadlock. Who has taken arrives anew. A call that
was sent from one queue to another MOVES times, because each account is full whenever the other has room, stands from
then on in the queues of all its accounts. The oldest of these comes to be the first in each of its queues, where nobody
else takes: so none waits for ever. A first that has room and does not ask within LATE seconds, because its loop is
blocked, stands nowhere until it asks again.

Progress. Who waits asks again at the time that `take` returned, or when it is in `wakes`: `take`, `end` and `leave` add
the first two of a queue whose first may be able to take. The second looks whether the first does.

Invariants, after each call
    reserved                the costs of holds that have not ended
    settled + reserved      at most amount, but for what calls say that they spent beyond their costs
    account.queue           sorted by arrival; waiter.stands names the accounts in whose queues it is, with its costs
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

LATE = 0.1  # seconds that a start may come after its slot
GRACE = LATE / 2  # seconds that a slot may have passed when it is taken; the rest of LATE is for the worker
MOVES = 3  # queues that a waiter has changed before it stands in all
NEARLY = 1e-9  # of the amount: rounding refuses nothing
FOREVER = 1e15  # seconds; what takes longer counts as that long

_numbers = count()


class Waiter:
    """What waits for limits: a map (lane None), or a lane of a map, which waits only for the accounts of its key."""

    __slots__ = ("arrival", "lane", "moves", "number", "owner", "since", "stands")

    def __init__(self, owner: Any, lane: Any = None) -> None:
        self.owner = owner
        self.lane = lane
        self.number = next(_numbers)
        self.since = math.inf  # when it came to wait; infinite: it does not
        self.arrival = (math.inf, self.number)  # its place in queues: no two are equal
        self.moves = 0  # queues that it came to while it waited
        self.stands: dict[Account, float] = {}

    def ready(self, now: float) -> float:
        """Since when, or from when on, it may take in all queues where it stands. -inf: it will be refused. Infinite:
        it waits for the end of a call, or for others."""
        at = -math.inf
        for account, cost in self.stands.items():
            if account.never(cost, now):
                return -math.inf
            is_first = account.queue[0] is self
            at = max(at, account.turn, account.room_at(cost, now) if is_first else math.inf)
        return at


class Wait(NamedTuple):
    """The call has to wait: ask again at `at`, or when woken. of_lane: only its lane waits."""

    at: float
    account: Account
    of_lane: bool


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

    # ------------------------------------------------------------------------------------------------ by kind
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
        """Whether more has to be asked for: of a shared limit (`leases`)."""
        return False

    def is_stuck(self, cost: float, own: int, now: float) -> bool:
        """That cost has to wait, and callers of the call hold the limit so many times. Whether it waits for their end,
        which waits for it."""
        return False

    def pause(self, until: float) -> None:
        """Nothing starts before that time."""
        self.paused_until = max(self.paused_until, until)

    def idle(self, now: float) -> bool:
        """Whether a new account would be the same."""
        return not self.queue and self.paused_until <= now

    # ------------------------------------------------------------------------------------------------ the queue
    def turn_of(self, waiters: Sequence[Waiter], now: float, wakes: list[Waiter]) -> float:
        """When the call of these waiters may take if those before it do not. -inf: there are none."""
        arrival = min([waiter.arrival if waiter.since < math.inf else (now, waiter.number) for waiter in waiters])
        while self.queue:
            first = self.queue[0]
            if first in waiters or first.arrival > arrival:
                return -math.inf
            ready = first.ready(now)
            if now < ready + LATE:
                return ready + LATE * sum(other.arrival < arrival for other in self.queue)
            pass_by(first, self.queue, now, wakes)
        return -math.inf

    def call_first(self, wakes: list[Waiter]) -> None:
        """Wake who may be able to take, and who is to notice if it does not."""
        for first in self.queue[:1]:
            wakes.append(first)
            for account in first.stands:
                wakes += account.queue[1:2]

    def settle(self, cost: float, spent: float, now: float, wakes: list[Waiter]) -> None:
        """A call with that cost has ended. Wake who waits, if there may be room earlier than before."""
        first = self.queue[0] if self.queue else None
        was_full = first is not None and self.room_at(first.stands[self], now) > now
        if self.end(cost, spent, now) and first is not None:
            if was_full and self.room_at(first.stands[self], now) <= now:
                self.turn = now
            self.call_first(wakes)


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
        return True

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

    def is_stuck(self, cost: float, own: int, now: float) -> bool:
        """Others may give something back."""
        return self._holds <= own and self.room_at(cost, now) == math.inf

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
    wakes: list[Waiter],
    asks: bool = True,
) -> float | Wait | Never:
    """Take the costs of a call from all these accounts, or from none. Returns until when the call may start. waiters:
    what waits for each account: the map, or for the account of a key the call's lane. asks: what shared limits lack is
    asked for."""
    for account, cost in zip(accounts, costs, strict=True):
        if account.queue or account.room_at(cost, now) > now:
            hindrance = _hindrance(waiters, accounts, costs, now, wakes)
            if hindrance is not None:
                if asks:
                    _ask_for_more(accounts, costs, now)
                return hindrance
            break
    until = math.inf
    for waiter, account, cost in zip(waiters, accounts, costs, strict=True):
        until = min(until, account.take(cost, min(waiter.since, now), now))
    for waiter in waiters:
        if waiter.since < math.inf:
            leave(waiter, now, wakes)
    return until


def _hindrance(
    waiters: Sequence[Waiter], accounts: Sequence[Account], costs: Sequence[float], now: float, wakes: list[Waiter]
) -> Wait | Never | None:
    """Why the call may not start now. If it has to wait, it does from here on."""
    blocking, at = -1, now
    for index, account in enumerate(accounts):
        cost = costs[index]
        if account.never(cost, now):
            for each in waiters:
                leave(each, now, wakes)
            return Never(account)
        ready = account.room_at(cost, now)
        if account.queue:
            ready = max(ready, account.turn_of(waiters, now, wakes))
        if ready > at:
            blocking, at = index, ready
    if blocking < 0:
        return None
    waiter, account = waiters[blocking], accounts[blocking]
    everywhere = sum(each.moves for each in dict.fromkeys(waiters)) >= MOVES
    if everywhere:
        waiter = next((each for each in waiters if each.lane is None), waiter)
        _stand(waiter, dict(zip(accounts, costs, strict=True)), waiters, now, wakes)
    else:
        _stand(waiter, {account: costs[blocking]}, waiters, now, wakes)
    return Wait(at, account, waiter.lane is not None)


def _ask_for_more(accounts: Sequence[Any], costs: Sequence[float], now: float) -> None:
    """What shared limits lack is granted to this call together."""
    needs = [(account, cost) for account, cost in zip(accounts, costs, strict=True) if account.lacks(cost, now)]
    for requests in {account.requests for account, _ in needs}:
        requests.ask([(account, cost) for account, cost in needs if account.requests is requests])


def _stand(
    chosen: Waiter, places: dict[Account, float], waiters: Sequence[Waiter], now: float, wakes: list[Waiter]
) -> None:
    """That one waits in the queues of these accounts, with these costs, and the others of the call nowhere."""
    for waiter in dict.fromkeys(waiters):
        for account in list(waiter.stands):
            if waiter is not chosen or account not in places:
                _quit(waiter, account, now, wakes)
    if chosen.since == math.inf:
        chosen.since, chosen.arrival = now, (now, chosen.number)
    for account, cost in places.items():
        if account not in chosen.stands:
            chosen.moves += 1
            first = account.queue[0] if account.queue else None
            insort(account.queue, chosen, key=_arrival)
            if account.queue[0] is not first:
                account.turn = now
        chosen.stands[account] = cost


def _arrival(waiter: Waiter) -> tuple[float, int]:
    return waiter.arrival


def _quit(waiter: Waiter, account: Account, now: float, wakes: list[Waiter]) -> None:
    """The waiter does not stand there any longer."""
    del waiter.stands[account]
    if account.queue[0] is waiter:
        account.turn = now
    account.queue.remove(waiter)
    account.call_first(wakes)


def pass_by(first: Waiter, queue: Sequence[Waiter], now: float, wakes: list[Waiter]) -> None:
    """It stands nowhere until it asks again, which it is to do; its arrival stays. So do those of this queue that wait
    in the same loop: it does not run, and they would hold others up one after the other."""
    loop = first.owner.loop
    for waiter in [first] if loop is None else [one for one in queue if one.owner.loop is loop]:
        for account in list(waiter.stands):
            _quit(waiter, account, now, wakes)
        wakes.append(waiter)


def leave(waiter: Waiter, now: float, wakes: list[Waiter]) -> None:
    """It waits for nothing."""
    for account in list(waiter.stands):
        _quit(waiter, account, now, wakes)
    waiter.since, waiter.moves = math.inf, 0


def end(
    accounts: Sequence[Account], costs: Sequence[float], spent: Sequence[float], now: float, wakes: list[Waiter]
) -> None:
    """A call has ended that took these costs, once for each `take`. spent: what it took really, of each account; 0
    where it did not begin."""
    for account, cost, real in zip(accounts, costs, spent, strict=True):
        if account.holds or real != cost:
            account.settle(cost, real, now, wakes)
