"""Who uses limits, and the lock that it uses them under.

Limits that some map names together are a Group: one lock, held for a step of the ledger alone. No user's code runs
under it. Only who needs an answer waits for it (`run`). Everything else is put into the group's inbox, and who finds
the lock free works that off: so `end` never waits, also in a signal handler, and in a finalizer that interrupts the
section of its own thread. When a map names limits of two groups, one group is merged into the other.

Wake-ups are delivered when no lock is held: an owner's `wake` only tells its own thread or loop to ask again.

This module and `ledger` are to be compiled, as today's are: then no signal handler runs inside a section, because their
only wait is the one for the lock, before anything was taken.

Invariants
    limit.group       the group of a limit changes only under the locks of the old and the new one
    group.merged      what its inbox gets goes to that group
"""

from __future__ import annotations

import math
import threading
import time
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any
from weakref import WeakSet

from manytail._sync import Held

from . import ledger
from .ledger import LATE, Account, Never, Tokens, Wait, Waiter

# Who holds limits in this context: blocks, and maps whose calls run here. Each has `holds` and `limits`.
held_here: ContextVar[tuple[Any, ...]] = ContextVar("manytail: who holds limits here", default=())

Step = Callable[[list[Waiter]], object]  # what changes accounts; it adds to the wakes


class Group:
    """Limits that share a lock."""

    def __init__(self, limit: Any) -> None:
        self.lock = threading.Lock()
        self.holder = 0  # the thread that has it
        self.inbox: deque[Step] = deque()
        self.limits: WeakSet[Any] = WeakSet([limit])
        self.merged: Group | None = None
        self.exchanges: set[Any] = set()  # of limits with `shared`

    def post(self, step: Step) -> None:
        """Have the step done, soon, in this or another thread. Does not wait, and raises nothing of the step's."""
        self.inbox.append(step)
        self.work()

    def work(self) -> None:
        """Work the inbox off, unless another thread has the lock: it does that then."""
        while self.inbox:
            if self.merged is not None:
                _pass_on(self, self.merged)
                return self.merged.work()
            wakes: list[Waiter] = []
            with Held(self.lock, 0) as held:
                if not held:
                    return None
                self.section(_nothing, wakes)
            deliver(wakes, None)
            self.tell()
        return None

    def tell(self) -> None:
        """What a step has changed may have to be asked or reported."""
        for exchange in self.exchanges:
            exchange.tell()

    def section(self, step: Callable[[list[Waiter]], Any], wakes: list[Waiter]) -> Any:
        """Under the lock: what is in the inbox, then the step. Returns its answer."""
        self.holder = get_ident()
        try:
            self.drain(wakes)
            return step(wakes)
        finally:
            self.holder = 0

    def drain(self, wakes: list[Waiter]) -> None:
        """Under the lock."""
        while self.merged is None and self.inbox:
            self.inbox.popleft()(wakes)


def _nothing(wakes: list[Waiter]) -> None:
    """As a step."""


def run(limit: Any, step: Callable[[list[Waiter]], Any], asker: Owner | None = None) -> Any:
    """Call step(wakes) under the lock of the limit's group, after what waits in its inbox."""
    wakes: list[Waiter] = []
    while True:
        group: Group = limit.group
        with Held(group.lock):
            if group.merged is None:
                answer = group.section(step, wakes)
                break
    group.work()
    if wakes:
        deliver(wakes, asker)
    if group.exchanges:
        group.tell()
    return answer


def _pass_on(old: Group, new: Group) -> None:
    """What is in the inbox of the old group goes to the new one. Several threads may do it."""
    while old.inbox:
        try:
            new.inbox.append(old.inbox.popleft())
        except IndexError:
            return


def deliver(wakes: list[Waiter], asker: Owner | None) -> None:
    """asker: it looks at `woken` itself. What a `wake` raises does not keep it from the others."""
    error = None
    for waiter in wakes:
        owner = waiter.owner
        owner.woken.append(waiter)
        if owner is not asker:
            try:
                owner.wake()
            except BaseException as raised:
                error = raised
    if error is not None:
        raise error


def together(limits: Sequence[Any]) -> None:
    """Let these limits be of one group."""
    for limit in limits[1:]:
        while (one := limits[0].group) is not (other := limit.group):
            first, second = sorted((one, other), key=id)
            with Held(first.lock), Held(second.lock):
                if limits[0].group is one and limit.group is other:
                    one.limits |= other.limits
                    one.exchanges = one.exchanges | other.exchanges
                    for each in list(other.limits):
                        each.group = one
                    other.merged = one
                    _pass_on(other, one)
            other.work()
            one.work()


class Owner:
    """A map, or a block of `with`, that uses these limits. One thread at a time calls it, except `wake`."""

    def __init__(self, limits: Sequence[Any], wake: Callable[[], object], inline: bool = False) -> None:
        """wake: called in any thread when one of `woken` is to ask again. Must not wait. inline: it exchanges with
        databases itself, and starts no thread."""
        self.inline = inline
        self.limits = tuple(limits)
        self.wake = wake
        self.fail: Callable[[BaseException], object] = _nobody  # the database of a limit is away for too long
        self.exchanges = tuple({limit.exchange for limit in self.limits if limit.exchange is not None})
        self.woken: deque[Waiter] = deque()
        self.waiter = Waiter(self)
        self.holds = True  # its calls may run
        self.held = [limit for one in held_here.get() if one.holds for limit in one.limits]  # by callers of this one
        self.keyed = any(limit.per_key for limit in self.limits)
        self.accounts: tuple[Account, ...] = () if self.keyed else self.accounts_of(None)
        self.waiters: tuple[Waiter, ...] = (self.waiter,) * len(self.accounts)
        self._holds = any(limit.holds for limit in self.limits)  # else a call that spent its cost changes nothing
        self._lanes: dict[Waiter, Sequence[Account]] = {self.waiter: ()}  # what may wait, and the accounts that it uses
        together(self.limits)
        for exchange in self.exchanges:
            exchange.join(self)

    # ------------------------------------------------------------------------------------------------ keys
    def accounts_of(self, key: Any) -> tuple[Account, ...]:
        """The accounts of a call of that key. Runs the user's `__hash__` and `__eq__`."""
        return tuple([limit.account(key) for limit in self.limits])

    def lane(self, key: Any, lane: Any) -> tuple[tuple[Account, ...], tuple[Waiter, ...]]:
        """The accounts and waiters of the calls of a key, until `drop`."""
        accounts, waiter = self.accounts_of(key), Waiter(self, lane)
        self._lanes[waiter] = [account for account in accounts if account.of_key]
        if not self.holds:  # it has left meanwhile
            self.drop(waiter)
        return accounts, tuple([waiter if account.of_key else self.waiter for account in accounts])

    def drop(self, waiter: Waiter) -> None:
        """No call of that lane follows."""
        self.limits[0].group.post(partial(_drop, [(waiter, self._lanes.pop(waiter, ()))], time.monotonic()))

    # ------------------------------------------------------------------------------------------------ calls
    def take(
        self,
        waiters: Sequence[Waiter],
        accounts: Sequence[Account],
        costs: Sequence[float],
        now: float,
        asks: bool = True,
    ) -> float | Wait | Never:
        """Until when the call may start, or why not. Waits for the lock alone. asks: as of `ledger.take`."""
        if self.limits[0].group.holder == get_ident():
            return Wait(now + LATE, accounts[0], False)  # a finalizer interrupts a section, and asks again after it
        step = partial(_take, waiters, accounts, costs, now, asks)
        answer: float | Wait | Never = run(self.limits[0], step, self)
        return answer

    def end(self, accounts: Sequence[Account], costs: Sequence[float], spent: Sequence[float], now: float) -> None:
        """A call has ended that took these costs. spent: what it took really, of each account; 0: it did not begin."""
        if self._holds or spent != costs:
            self.limits[0].group.post(partial(ledger.end, accounts, costs, spent, now))

    def pause(self, until: float) -> None:
        """Nothing starts under the Rates of this map before that time."""
        accounts = [limit.account(None) for limit in self.limits if not limit.per_key]
        self.limits[0].group.post(partial(_pause, [each for each in accounts if isinstance(each, Tokens)], until))

    def stop_waiting(self) -> None:
        """It waits for nothing."""
        lanes: list[tuple[Waiter, Sequence[Account]]] = [(waiter, ()) for waiter in self._lanes.copy()]
        self.limits[0].group.post(partial(_drop, lanes, time.monotonic()))

    def leave(self) -> None:
        """It waits for nothing, and uses no account of a key any longer."""
        self.holds = False  # first: what `lane` adds from here on it drops itself
        lanes = []
        while self._lanes:
            lanes.append(self._lanes.popitem())
        self.limits[0].group.post(partial(_drop, lanes, time.monotonic()))
        for exchange in self.exchanges:
            exchange.leave(self)

    # ------------------------------------------------------------------------------------------------ callers
    def hold(self) -> None:
        """Calls that run in this context hold the limits."""
        if self._holds:
            held_here.set((*held_here.get(), self))

    def waits_for_itself(self, account: Account, cost: float) -> bool:
        """Whether a call that waits for this account waits for its own caller: for a Concurrency that this holds, or
        for a Budget of which nobody else holds anything."""
        own = self.held.count(account.limit)
        return own > 0 and account.is_stuck(cost, own, time.monotonic())


def _take(
    waiters: Sequence[Waiter],
    accounts: Sequence[Account],
    costs: Sequence[float],
    now: float,
    asks: bool,
    wakes: list[Waiter],
) -> float | Wait | Never:
    return ledger.take(waiters, accounts, costs, now, wakes, asks)


def _nobody(error: BaseException) -> None:
    """Nobody is told."""


def _drop(lanes: Sequence[tuple[Waiter, Sequence[Account]]], now: float, wakes: list[Waiter]) -> None:
    for waiter, accounts in lanes:
        ledger.leave(waiter, now, wakes)
        for account in accounts:
            account.users -= 1


def _pause(accounts: Sequence[Account], until: float, wakes: list[Waiter]) -> None:
    for account in accounts:
        account.pause(until)


def seconds_until(at: float, now: float) -> float | None:
    """For a wait that ends at that time. None: it does not."""
    return None if at == math.inf else min(max(0.0, at - now), threading.TIMEOUT_MAX)
