"""Who uses limits, and the one lock under which their accounts change.

The lock is that of the whole process: a step of the ledger takes a microsecond, and calls may need any set of limits.
No user's code runs under it. Only who needs an answer waits for it (`run`). Everything else is put into the inbox, and
who finds the lock free works that off (`post`): so the end of a call never waits, neither in a signal handler nor in a
finalizer that interrupts the section of its own thread. Wake-ups are delivered when the lock is free: the `wake` of an
owner only tells its own thread or loop to ask again.

This module, `ledger`, `leases` and `blocks` are compiled (setup.py), because Python runs signal handlers between any
two instructions of interpreted code. Compiled code serves them only where it waits, or calls what is interpreted; here
that is the wait for the lock, before anything is taken, and what `deliver` calls.

Invariants
    owner.held       what calls hold. It changes in the steps that change the accounts, so whatever interrupts the user
                     of an owner, `leave` gives everything back
    owner.section    is `_section`, else the owner is one of the process that has forked: it changes nothing
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
from weakref import ref

from . import ledger
from .ledger import LATE, Account, Never, Tokens, Wait, Waiter

Step = Callable[[list[Waiter]], Any]  # what changes accounts; it adds to the wakes
Taken = tuple[Sequence[Account], Sequence[float]]  # the accounts of a call, and its costs

# Who may hold limits in this context: blocks, and maps whose calls run here.
held_here: ContextVar[tuple[ref[Owner], ...]] = ContextVar("manytail: who holds limits here", default=())


class Section:
    """The lock, and what waits for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holder = 0  # the thread that has it
        self.inbox: deque[Step] = deque()

    def do(self, step: Step, wakes: list[Waiter]) -> Any:
        """With the lock, which is released: what is in the inbox, then the step."""
        self.holder = get_ident()
        try:
            while self.inbox:
                self.inbox.popleft()(wakes)
            return step(wakes)
        finally:
            self.holder = 0
            self.lock.release()

    def work(self, asker: Owner | None = None) -> None:
        """Work the inbox off, unless another thread has the lock: it does that then."""
        while self.inbox and self.lock.acquire(False):
            wakes: list[Waiter] = []
            self.do(_nothing, wakes)
            deliver(wakes, asker)


_section = Section()


def begin_section() -> None:
    """In a forked child: the lock may have been held, and all that uses limits is the parent's."""
    global _section
    _section = Section()


def _nothing(wakes: list[Waiter]) -> None:
    """As a step."""


def run(step: Step) -> Any:
    """Call step(wakes) under the lock, after what is in the inbox. Waits for the lock."""
    wakes: list[Waiter] = []
    section = _section
    section.lock.acquire()
    answer = section.do(step, wakes)
    if section.inbox:
        section.work()
    if wakes:
        deliver(wakes, None)
    return answer


def post(step: Step, asker: Owner | None = None) -> None:
    """Have the step done, soon, in this or another thread. Does not wait. asker: as of `deliver`."""
    _section.inbox.append(step)
    _section.work(asker)


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


class Owner:
    """A map, or a block of `with`, that uses these limits. One thread at a time calls it, except `wake`."""

    def __init__(self, limits: Sequence[Any], wake: Callable[[], object], inline: bool = False) -> None:
        """wake: called in any thread when one of `woken` is to ask again. Must not wait. inline: it exchanges with
        databases itself, and starts no thread."""
        self.section = _section
        self.limits = tuple(limits)
        self.wake = wake
        self.loop: Any = None  # in which it waits: if that does not run, none of its owners asks
        self.fail: Callable[[BaseException], object] = _nobody  # the database of a limit is away for too long
        self.inline = inline
        self.held: dict[Any, Taken] = {}  # by call
        self.woken: deque[Waiter] = deque()
        self.waiter = Waiter(self)
        self.keyed = any(limit.per_key for limit in self.limits)
        self.accounts: tuple[Account, ...] = () if self.keyed else self.accounts_of(None)
        self.waiters: tuple[Waiter, ...] = (self.waiter,) * len(self.accounts)
        self.exchanges = tuple({limit.exchange for limit in self.limits if limit.exchange is not None})
        self._callers = held_here.get()
        self._holds = any(limit.holds for limit in self.limits)  # else a call that spent its cost changes nothing
        self._left = False
        self._lanes: dict[Waiter, Sequence[Account]] = {self.waiter: ()}  # what may wait, and its accounts of keys
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
        if self._left:  # meanwhile
            self.drop(waiter)
        return accounts, tuple([waiter if account.of_key else self.waiter for account in accounts])

    def drop(self, waiter: Waiter) -> None:
        """No call of that lane follows."""
        post(partial(_drop, [(waiter, self._lanes.pop(waiter, ()))], time.monotonic()))

    # ------------------------------------------------------------------------------------------------ calls
    def take(
        self,
        call: Any,
        waiters: Sequence[Waiter],
        accounts: Sequence[Account],
        costs: Sequence[float],
        now: float,
        asks: bool = True,
    ) -> float | Wait | Never:
        """Until when the call may start, or why not. Waits for the lock alone. asks: as of `ledger.take`."""
        section = _section
        if section.holder == get_ident():
            return Wait(now + LATE, accounts[0], False)  # a finalizer interrupts a section, and asks again after it
        wakes: list[Waiter] = []
        section.lock.acquire()
        section.holder = get_ident()
        try:
            while section.inbox:
                section.inbox.popleft()(wakes)
            answer = ledger.take(waiters, accounts, costs, now, wakes, asks)
            if not isinstance(answer, (Wait, Never)):
                self.held[call] = accounts, costs
        finally:
            section.holder = 0
            section.lock.release()
        if section.inbox:
            section.work()
        if wakes:
            deliver(wakes, self)
        return answer

    def end(self, call: Any, spent: Sequence[float] | None, now: float) -> None:
        """The call has ended, and who tells it looks at `woken`. spent: what it took really, of each account; None: its
        costs."""
        if not self._holds and spent is None:
            self.held.pop(call, None)
        elif self.section is _section:
            post(partial(_end, self.held, call, spent, now), self)

    def undo(self, call: Any, now: float) -> None:
        """The call does not begin."""
        self.end(call, (0.0,) * len(self.limits), now)

    def pause(self, until: float) -> None:
        """Nothing starts under the Rates of this map before that time."""
        accounts = [limit.account(None) for limit in self.limits if not limit.per_key]
        post(partial(_pause, [each for each in accounts if isinstance(each, Tokens)], until))

    def leave(self) -> None:
        """It waits for nothing, and holds nothing any longer."""
        self._left = True  # first: what `lane` adds from here on it drops itself
        now = time.monotonic()
        for call in list(self.held):
            self.end(call, None, now)
        lanes = []
        while self._lanes:
            lanes.append(self._lanes.popitem())
        if self.section is _section:
            post(partial(_drop, lanes, now))
        for exchange in self.exchanges:
            exchange.leave(self)

    # ------------------------------------------------------------------------------------------------ callers
    def hold(self) -> None:
        """What runs in this context holds the limits, until the calls of this owner have ended."""
        held_here.set((*[one for one in held_here.get() if one() is not None], ref(self)))

    def holds(self, limit: Any) -> int:
        """How often it holds that limit."""
        return self.limits.count(limit) if self.held and self.section is _section else 0

    def waits_for_itself(self, account: Account, cost: float) -> bool:
        """Whether a call that waits for this account waits for its own caller: for a Concurrency that this holds, or
        for a Budget of which nobody else holds anything."""
        if not self._callers:
            return False
        own = sum([owner.holds(account.limit) for one in self._callers if (owner := one()) is not None])
        return own > 0 and account.is_stuck(cost, own, time.monotonic())


def _nobody(error: BaseException) -> None:
    """Nobody is told."""


def _end(held: dict[Any, Taken], call: Any, spent: Sequence[float] | None, now: float, wakes: list[Waiter]) -> None:
    if (taken := held.pop(call, None)) is not None:
        accounts, costs = taken
        ledger.end(accounts, costs, costs if spent is None else spent, now, wakes)


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
