"""Limits: Rate, Budget and Concurrency, which live, and what keeps them together for all that use the same object.

A limit has one account or, with per_key, one for each key (`_ledger`). Who uses limits is an Owner: a map, or a block
of `with limit:`. The owner asks the ledger under the locks of its limits, which are held for that alone; no user's code
runs under them. This module is compiled (setup.py), so no signal handler runs there either.

A finalizer may come in the middle of that, in the same thread. It takes no lock: it leaves its step to the section that
it interrupts (`_inside`), which does it after the release.

Wake-ups are delivered when no lock is held: an owner's `wake` only tells its own thread or loop to ask again.

The accounts of a limit with `shared` take from what a database has granted (`_leased`, `_exchange`).

A copy of a limit (pickle, copy) begins anew, and so do all limits in a forked child. Accounts of keys are forgotten
when they are idle and no map may use them. They are looked up when an item is read, because that runs the user's
`__eq__`.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet, ref

from manytail import _checks
from manytail._lifecycle import after_fork_in_child
from manytail._sync import Event
from manytail._values import initialised_repr

from . import _exchange, _ledger
from ._grants import Terms
from ._idempotency import idempotency_key
from ._leased import Leased, LeasedPermits, LeasedSpending, LeasedTokens
from ._ledger import Account, Never, Permits, Spending, Tokens, Wait, Waiter
from ._loop_event import loop_event
from ._types import BudgetExceeded

if TYPE_CHECKING:
    from ._shared import Shared

PERIODS = {"second": 1.0, "minute": 60.0, "hour": 3_600.0, "day": 86_400.0}
IDLE_LIMIT = 4_096  # accounts of keys that a limit keeps before it looks for idle ones

_limits: WeakSet[Limit] = WeakSet()
# Whose limits this context holds: blocks, and maps whose calls run here.
_held: ContextVar[tuple[Block | Owner, ...]] = ContextVar("manytail: limits that are held", default=())


# ---------------------------------------------------------------------------------------------------- locks
class Guard:
    """The lock of one limit. Locks of several limits are taken in the order of their ids."""

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()


# The threads that are in a section, and what finalizers have left to them.
_inside: dict[int, list[Callable[[], object]]] = {}


def _guarded(guards: Sequence[Guard], asker: Owner | None, step: Callable[..., Any], *arguments: Any) -> Any:
    """`_section`, for a step that counts as done where a signal handler raises: that is raised then."""
    result, interruption = _section(guards, asker, step, arguments)
    if interruption is not None:
        raise interruption
    return result


def _section(
    guards: Sequence[Guard], asker: Owner | None, step: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Any, BaseException | None]:
    """Call step(*arguments, wakes) under these locks, then wake the owners, except for the asker. Returns its result,
    and what a signal handler raised meanwhile. A finalizer that interrupts a section leaves the step to that thread,
    and gets None."""
    here = get_ident()
    left = _inside.get(here)
    if left is not None:
        left.append(partial(_guarded, guards, asker, step, *arguments))
        return None, None
    wakes: list[Waiter] = []
    later: list[Callable[[], object]] = []
    _inside[here] = later
    interruption = None
    try:
        for guard in guards:
            interruption = _first(_acquired(guard.lock), interruption)
        try:
            result = step(*arguments, wakes)
        finally:
            for guard in guards:
                guard.lock.release()
    finally:
        del _inside[here]
    for waiter in wakes:
        waiter.owner.woken.append(waiter)
        if waiter.owner is not asker:  # which looks at `woken` itself
            interruption = _first(_insist(waiter.owner.wake), interruption)
    for call in later:
        interruption = _first(_insist(call), interruption)
    return result, interruption


def _first(raised: BaseException | None, before: BaseException | None) -> BaseException | None:
    """What was raised, else what was raised before: an exception may be false."""
    return before if raised is None else raised


def _guarded_limit(limit: Limit, step: Callable[[list[Waiter]], Any]) -> Any:
    return _guarded([limit._guard], None, step)


def _acquired(lock: threading.Lock) -> BaseException | None:
    """Acquire the lock. Returns what a signal handler raised during the wait."""
    interruption = None
    while True:
        try:
            lock.acquire()
            return interruption
        except BaseException as error:
            interruption = error


def _insist(call: Callable[[], object]) -> BaseException | None:
    """Call it. Returns what it raises, or what a signal handler raises meanwhile."""
    try:
        call()
    except BaseException as error:
        return error
    return None


# ---------------------------------------------------------------------------------------------------- limits
class Limit:
    """The base class of Rate, Budget and Concurrency.

    Maps and `with` blocks of a process that use the same object share the limit, and are served in the order in which
    they began to wait. A call starts when all limits of its map have room for it; until then it takes nothing from any
    of them. While a key waits for its limit, other keys continue. Each attempt counts. A copy (made by pickle or fork)
    starts afresh.

    cost: a function that returns the cost of an item, which must be finite and >= 0; None: every item costs 1. per_key:
    the limit applies to each key separately; idle keys are forgotten. name: identifies the limit in `Delivery.spent`
    and Stats; needed with `shared`.

    `with limit:` and `async with limit:` wait until there is room, and use up 1 unit; `with limit(cost):` uses up
    `cost` units instead. A Concurrency gets them back at the end of the block. The block gets an object with a `spent`
    method, like a Delivery. It may end in a different thread from the one in which it began. Entering a block may wait.
    It raises RuntimeError if it would wait for itself: for a Concurrency that its own caller holds, or for a Budget
    that nobody else holds.
    """

    name: str | None
    per_key = False
    _kind: str  # what it is for a database
    terms: Terms

    def __init__(self, cost: Any, per_key: bool, per_task: bool, shared: Shared | None, name: str | None) -> None:
        from ._shared import Shared

        self.cost = _checked_cost(cost)
        self.per_key = _checks.check_flag("per_key", per_key)
        self.per_task = _checks.check_flag("per_task", per_task)
        if shared is not None and not isinstance(shared, Shared):
            raise _checks.bad_type("shared", shared, "a Shared")
        if shared is not None and per_task:
            raise _checks.bad_value("per_task", per_task, "False with shared: a limit is of a task, or shared")
        if name is not None and not isinstance(name, str):
            raise _checks.bad_type("name", name, "a str of 1 to 100 characters")
        if (name is None and shared is not None) or not (name is None or 1 <= len(name) <= 100):
            raise _checks.bad_value("name", name, "1 to 100 characters; a shared limit needs a name")
        self.shared = shared
        self.name = name
        self._guard = Guard()
        self._open: dict[Block, Block] = {}  # the blocks of `with limit:` that have begun
        self._begin()
        _limits.add(self)

    def _begin(self) -> None:
        self.exchange = None if self.shared is None else _exchange.exchange_of(self.shared, _guarded_limit)
        self._account: Account = self._new_account(None)
        self._accounts: dict[Hashable, Account] = {}
        self._older: dict[Hashable, Account] = {}  # as `_accounts`, until those in use are in that
        self._accounts_limit = IDLE_LIMIT

    def _new_account(self, key: Any) -> Account:
        """TypeError: a shared limit, and a key of a type that has no stable encoding."""
        if self.exchange is None:
            return self._local_account(key)
        account = self._leased_account(key)
        group = limit_id = f"{self._kind}:{self.name}".encode()
        if self.per_key:
            limit_id = b"%b:%b" % (group, bytes.fromhex(idempotency_key(key, "key")))
        account.lease_from(self.exchange.requests, limit_id, group, self.terms)
        return account

    def _local_account(self, key: Any) -> Account:
        raise NotImplementedError

    def _leased_account(self, key: Any) -> Leased:
        raise NotImplementedError

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What makes the same limit."""
        raise NotImplementedError

    def refusal(self, cost: float) -> BaseException:
        """Return the error for a cost that can never fit."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        positional, named = self._arguments()
        return _remake, (type(self), positional, named)

    @initialised_repr
    def __repr__(self) -> str:
        positional, named = self._arguments()
        shown = [*map(repr, positional), *(f"{name}={value!r}" for name, value in named.items())]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _common(self, **more: tuple[Any, Any]) -> dict[str, Any]:
        """Named arguments that differ from their defaults, which are the second of each pair."""
        pairs = {**more, "cost": (self.cost, None), "per_key": (self.per_key, False)}
        pairs |= {"per_task": (self.per_task, False), "shared": (self.shared, None), "name": (self.name, None)}
        return {
            name: value
            for name, (value, default) in pairs.items()
            if value is not default and (default is None or value != default)
        }

    def with_cost(self, column: str | None) -> Any:
        """Return a copy whose cost is the column of that name."""
        positional, named = self._arguments()
        return type(self)(*positional, **{**named, **({} if column is None else {"cost": column})})

    # ------------------------------------------------------------------------------------------------ accounts
    def account(self, key: Hashable, owner: Owner) -> Account:
        """Return the account of a key, for one more use. Runs the user's `__hash__` and `__eq__`: call it while holding
        no lock."""
        if len(self._accounts) >= self._accounts_limit:
            self._forget_idle()
        while True:
            found = self._accounts.get(key)
            if found is None:
                found = self._accounts.setdefault(key, self._older.get(key) or self._new_account(key))
            _guarded([self._guard], None, _use, found, owner)
            if self._accounts.get(key) is found:
                return found
            _guarded([self._guard], None, _release, [found], owner)  # in between the idle ones were forgotten

    def _forget_idle(self) -> None:
        """Drop accounts of keys that are idle and unused: keep the others. Amortised constant time per account. Another
        thread finds an account in one of the two dicts, whenever it looks."""
        self._accounts_limit = max(IDLE_LIMIT, 2 * len(self._accounts))
        self._older, self._accounts = self._accounts, {}
        for account in list(self._older.values()):
            if not _guarded([self._guard], None, _is_idle, account, time.monotonic()):
                self._accounts.setdefault(account.key, account)
        self._older = {}
        self._accounts_limit = max(IDLE_LIMIT, 2 * len(self._accounts))

    # ------------------------------------------------------------------------------------------------ blocks
    def __call__(self, cost: float) -> Block:
        """A block that takes so much."""
        return Block(self, checked_amount("cost", cost))

    def __enter__(self) -> Block:
        block = Block(self, 1.0).__enter__()
        self._open[block] = block
        return block

    def __exit__(self, *error: object) -> None:
        self._innermost().__exit__(*error)

    async def __aenter__(self) -> Block:
        block = await Block(self, 1.0).__aenter__()
        self._open[block] = block
        return block

    async def __aexit__(self, *error: object) -> None:
        self._innermost().__exit__(*error)

    def _innermost(self) -> Block:
        """The block of `with limit:` that ends here: the last one that this context holds; without one, it began in
        another context, as in a generator that another thread closes: then the last one of all."""
        for user in reversed(_held.get()):
            if isinstance(user, Block) and self._open.pop(user, None) is not None:
                return user
        try:
            return self._open.popitem()[0]
        except KeyError:
            raise RuntimeError(f"{self!r}: no block of it has begun") from None


class Rate(Limit):
    """Limits how many calls start, or how much they cost, per unit of time: `amount` per `per`, spread evenly. It is a
    token bucket.

    per: a number of seconds, or "second", "minute", "hour" or "day". burst: how much more may start at once after a
    pause. A call starts when the bucket is not in debt, and then takes its whole cost from it. So all calls that start
    within any t seconds cost at most burst + the largest cost + (t + 0.1) * amount / per, plus what calls gave back
    because they spent less than estimated. The algorithm is the generic cell rate algorithm (ITU-T I.371).

    Raises ValueError or TypeError for a bad argument.
    """

    _kind = "rate"

    def __init__(
        self,
        amount: float,
        per: Any = "second",
        *,
        burst: float = 0.0,
        cost: Callable[[Any], float] | Any = None,
        per_key: bool = False,
        per_task: bool = False,
        shared: Shared | None = None,
        name: str | None = None,
    ) -> None:
        self.amount = checked_amount("amount", amount, positive=True, infinite=True)
        self.per = per
        self.burst = checked_amount("burst", burst)
        if isinstance(per, str):
            self._per = PERIODS[_checks.choice("per", per, PERIODS)]
        else:
            self._per = checked_amount("per", per, positive=True)
        self.interval = self._per / self.amount  # seconds per unit of cost
        if math.isinf(self.interval) or math.isinf(self.burst * self.interval):
            raise _checks.bad_value("amount", amount, "a number > 0 that per can be divided by")
        self.terms = Terms(self.amount, self._per, self.burst * self.interval)
        super().__init__(cost, per_key, per_task, shared, name)

    def _local_account(self, key: Any) -> Account:
        return Tokens(self, self.per_key, key, self.interval, self.burst * self.interval, self._per)

    def _leased_account(self, key: Any) -> Leased:
        return LeasedTokens(self, self.per_key, key, self.interval, self.burst * self.interval, self._per)

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (self.amount, self.per), self._common(burst=(self.burst, 0.0))


class Budget(Limit):
    """Limits the total cost of all calls. The sum of spent and reserved cost stays within `amount`, unless a call
    reports that it spent more than its estimate.

    An item fails with BudgetExceeded if its cost does not fit into what is left. If running calls may still give enough
    back, the item waits. A retry that does not fit fails with the error that fn raised, and a batch that does not fit
    is halved. Raises ValueError or TypeError for a bad argument.
    """

    _kind = "budget"

    def __init__(
        self,
        amount: float,
        *,
        cost: Callable[[Any], float] | Any = None,
        per_task: bool = False,
        shared: Shared | None = None,
        name: str | None = None,
    ) -> None:
        self.amount = checked_amount("amount", amount, infinite=True)
        self.terms = Terms(self.amount)
        super().__init__(cost, False, per_task, shared, name)

    def used(self) -> float:
        """Return what finished calls have spent. A shared Budget waits for the database."""
        account: Any = self._account
        if self.shared is None or self.exchange is None:
            return float(account.settled)
        reported = Event()
        self.exchange.flushed(reported.set)
        reported.wait()
        return self.shared._store().spent(account.limit_id)

    def _local_account(self, key: Any) -> Account:
        return Spending(self, False, key, self.amount)

    def _leased_account(self, key: Any) -> Leased:
        return LeasedSpending(self, False, key, self.amount)

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (self.amount,), self._common()

    def refusal(self, cost: float) -> BaseException:
        account: Any = self._account
        spent = account.settled if self.shared is None else account.known_spent()
        return BudgetExceeded(f"{self}: a cost of {cost:g} does not fit; {spent:g} is spent already")


class Concurrency(Limit):
    """Limits the number of concurrent calls, or their cost, over all maps and `with` blocks that use the object. For a
    single map, use `workers`.

    An item that costs more than `amount` fails with ValueError. With `shared`, a process holds permits and renews them.
    If it dies, they are free again `lease` seconds later. A process that cannot renew its permits starts no calls.
    Raises ValueError or TypeError for a bad argument.
    """

    _kind = "concurrency"

    def __init__(
        self,
        amount: float,
        *,
        cost: Callable[[Any], float] | Any = None,
        per_key: bool = False,
        per_task: bool = False,
        shared: Shared | None = None,
        lease: float = 30.0,
        name: str | None = None,
    ) -> None:
        self.amount = checked_amount("amount", amount, positive=True, infinite=True)
        self.lease = checked_amount("lease", lease, positive=True)
        self.terms = Terms(self.amount, lease=self.lease)
        super().__init__(cost, per_key, per_task, shared, name)

    def _local_account(self, key: Any) -> Account:
        return Permits(self, self.per_key, key, self.amount)

    def _leased_account(self, key: Any) -> Leased:
        return LeasedPermits(self, self.per_key, key, self.amount)

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (self.amount,), self._common(lease=(self.lease, 30.0))

    def refusal(self, cost: float) -> BaseException:
        return ValueError(f"{self}: a cost of {cost:g} (expected: at most {self.amount:g})")


def checked_amount(name: str, value: Any, *, positive: bool = False, infinite: bool = False) -> float:
    """A finite number >= 0; > 0 where `positive`, and perhaps infinite."""
    expected = f"a {'' if infinite else 'finite '}number {'>' if positive else '>='} 0"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _checks.bad_type(name, value, expected)
    try:
        found = float(value)
    except OverflowError:
        raise _checks.bad_value(name, value, expected) from None
    if not (found > 0 if positive else found >= 0) or (math.isinf(found) and not infinite):
        raise _checks.bad_value(name, value, expected)
    return found


def _checked_cost(cost: Any) -> Any:
    """A function of an item or, for frames, the name of a column or the column."""
    if cost is None or isinstance(cost, str) or type(cost).__name__ == "Column":
        return cost
    if not callable(cost) or not _checks.accepts(cost, 1):
        raise _checks.bad_type("cost", cost, "a callable that takes the item")
    return cost


def _remake(kind: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return kind(*positional, **named)


def _use(account: Account, owner: Owner, wakes: list[Waiter]) -> None:
    if not owner.left:
        account.users += 1
        owner.used[account] = owner.used.get(account, 0) + 1


def _is_idle(account: Account, now: float, wakes: list[Waiter]) -> bool:
    return not account.users and account.idle(now)


def _begin_all() -> None:
    """In a forked child: another thread of the parent may have held a lock."""
    _inside.clear()
    _exchange.begin_all()
    for limit in list(_limits):
        limit._guard.lock = threading.Lock()
        limit._begin()


after_fork_in_child(_begin_all)


# ---------------------------------------------------------------------------------------------------- who uses them
class Owner:
    """A map, or a block of `with`, that uses these limits. One thread at a time uses it, except `woken` and `wake`."""

    holds: bool = True  # as Block.holds
    inline: bool = False  # it exchanges with databases itself, and starts no thread

    def __init__(self, limits: Sequence[Limit], wake: Callable[[], object]) -> None:
        """wake: called in any thread when one of `woken` is to ask again; `take` is due. Must not wait."""
        self.limits = tuple(limits)
        self.wake = wake
        self.fail: Callable[[BaseException], object] = _ignore  # called when the database of a limit is away too long
        self.exchanges = tuple({limit.exchange for limit in self.limits if limit.exchange is not None})
        self.woken: deque[Waiter] = deque()
        self.waiter = Waiter(self)
        self.held = [limit for user in _held.get() if user.holds for limit in user.limits]  # by callers of this one
        self.keyed = any(limit.per_key for limit in self.limits)
        self.accounts: tuple[Account, ...] = () if self.keyed else self.accounts_of(None)
        self.waiters = (self.waiter,) * len(self.accounts)
        self._guards = sorted({limit._guard for limit in self.limits}, key=id)
        self._holds = any(limit._account.holds for limit in self.limits)
        self._waiters: dict[Waiter, None] = {self.waiter: None}  # of which some may stand in queues
        self.used: dict[Account, int] = {}  # accounts of keys, and how often; under their guards
        self.taken: dict[Any, None] = {}  # what is to be ended: an interruption between two steps of the map loses none
        self.left = False  # the map has ended
        for exchange in self.exchanges:
            exchange.join(self)

    def accounts_of(self, key: Hashable) -> tuple[Account, ...]:
        """The accounts of a call of that key. Runs the user's `__hash__` and `__eq__`: call it without a lock, in one
        thread. Each call is followed by one of `release`."""
        return tuple([limit.account(key, self) if limit.per_key else limit._account for limit in self.limits])

    def hold(self) -> None:
        """Calls in this context hold these limits while they run."""
        if any(isinstance(limit, (Concurrency, Budget)) for limit in self.limits):
            _held.set((*_held.get(), self))

    def waits_for_itself(self, account: Account, cost: float) -> bool:
        """Whether a call that has to wait for this account waits for its own caller: for a Concurrency that this holds,
        or for a Budget of which nobody else holds anything."""
        limit = account.limit
        if limit not in self.held or isinstance(limit, Concurrency):
            return limit in self.held
        own, now = self.held.count(limit), time.monotonic()
        return isinstance(limit, Budget) and bool(_guarded([limit._guard], None, _is_stuck, account, cost, own, now))

    def release(self, accounts: Sequence[Account], waiters: Sequence[Waiter] | None = None) -> None:
        """This map does not use these accounts of a key, nor its waiters, any longer."""
        for waiter in set(waiters or ()) - {self.waiter}:
            self.leave(waiter, time.monotonic())
            self._waiters.pop(waiter, None)
        _guarded(self._guards, self, _release, accounts, self)

    def take(
        self,
        waiters: Sequence[Waiter],
        accounts: Sequence[Account],
        costs: Sequence[float],
        now: float,
        asks: bool = True,
        start: Any = None,
    ) -> Any:
        """Until when the call may start, or Wait or Never. waiters: for each account that of the map, or of the call's
        key. asks: what shared limits lack is asked for. start: goes into `taken`, if the call may start."""
        left = _inside.get(get_ident())
        if left is not None:  # a finalizer interrupts a section: it is not answered, and this owner asks again
            left.append(partial(self._ask_again, waiters[0]))
            return Wait(math.inf, accounts[0])
        answer, interruption = _section(self._guards, self, _ledger.take, (waiters, accounts, costs, now, asks))
        if interruption is not None:
            if isinstance(answer, float):
                self.end(accounts, costs, (0.0,) * len(costs), now)
            raise interruption
        if start is not None and isinstance(answer, float):
            self.taken[start] = None
        self._exchange()
        return answer

    def _exchange(self) -> None:
        for exchange in self.exchanges:
            exchange.wake(self.inline)

    def _ask_again(self, waiter: Waiter) -> None:
        self.woken.append(waiter)
        self.wake()

    def waiters_of(self, accounts: Sequence[Account], lane: Any) -> tuple[Waiter, ...]:
        """The waiters of the calls of a key."""
        of_lane = Waiter(self, lane)
        self._waiters[of_lane] = None
        return tuple(of_lane if account.of_key else self.waiter for account in accounts)

    def end(
        self,
        accounts: Sequence[Account],
        costs: Sequence[float],
        spent: Sequence[float],
        now: float,
        start: Any = None,
    ) -> None:
        """A call has ended that took these costs. spent: what it took really, of each account. start: as of `take`; no
        effect if it has been ended before."""
        if start is not None:
            if start not in self.taken:
                return
            del self.taken[start]
        if self._holds or spent != costs:
            _guarded(self._guards, self, _ledger.end, accounts, costs, spent, now)
            self._exchange()

    def pause(self, until: float) -> None:
        """Nothing starts under the rates of this map before that time."""
        _guarded(self._guards, None, _pause, [limit._account for limit in self.limits], until)
        self._exchange()

    def leave(self, waiter: Waiter, now: float) -> None:
        """It waits for nothing."""
        _guarded(self._guards, self, _ledger.leave, waiter, now)

    def leave_all(self, now: float) -> None:
        """The map ends: nothing of it waits, and it uses no account of a key."""
        _guarded(self._guards, self, _leave_for_good, self, list(self._waiters), now)
        self._waiters.clear()
        for exchange in self.exchanges:
            exchange.leave(self)


def _ignore(error: BaseException) -> None:
    """The owner waits for nothing."""


def _release(accounts: Sequence[Account], owner: Owner, wakes: list[Waiter]) -> None:
    for account in accounts:
        if account in owner.used:
            account.users -= 1
            owner.used[account] -= 1
            if not owner.used[account]:
                del owner.used[account]


def _is_stuck(account: Any, cost: float, own: int, now: float, wakes: list[Waiter]) -> bool:
    stuck: bool = account.is_stuck(cost, own, now)
    return stuck


def _pause(accounts: Sequence[Account], until: float, wakes: list[Waiter]) -> None:
    for account in accounts:
        if isinstance(account, Tokens):
            account.pause(until)


def _leave_for_good(owner: Owner, waiters: Sequence[Waiter], now: float, wakes: list[Waiter]) -> None:
    owner.left = True
    for waiter in waiters:
        _ledger.leave(waiter, now, wakes)
    for account, times in owner.used.items():
        account.users -= times
    owner.used.clear()


# ---------------------------------------------------------------------------------------------------- without a map
class Block:
    """`with limit(cost):`. One use at a time: RuntimeError for another thread or task meanwhile."""

    def __init__(self, limit: Limit, cost: float) -> None:
        if limit.per_key:
            raise ValueError(f"{limit!r}: with per_key it cannot be used without a map (expected: per_key=False)")
        if limit.per_task:
            raise ValueError(f"{limit!r}: only a map in Spark has tasks (expected: per_task=False)")
        self._limit = limit
        self.limits = (limit,)
        self._cost = cost
        self._spent: float | None = None
        self._error: BaseException | None = None  # the database of the limit is away for too long
        self._free = [None]  # empty from the beginning to the end of a use
        self._owners: list[Owner] = []  # the one that has taken; `pop` of a list is one step in any number of threads

    @property
    def holds(self) -> bool:
        return bool(self._owners)

    def spent(self, amount: float | None = None, /, **amounts: float) -> None:
        """What the block takes really, instead of its cost, as Delivery.spent says it: without a name, or with the
        name of the limit. Another name counts nowhere. RuntimeError: the block has ended."""
        mine = [] if amount is None else [checked_amount("spent", amount)]
        for name, each in amounts.items():
            checked = checked_amount(f"spent: {name}", each)
            mine += [checked] if name == self._limit.name else []
        if mine and isinstance(self._limit, Concurrency):
            raise ValueError("spent: a Concurrency is never settled (expected: a Rate or a Budget)")
        if not self._owners:
            raise RuntimeError("spent: the block has ended, or has not begun")
        if mine:
            self._spent = mine[-1]

    def __enter__(self) -> Self:
        changed = Event()
        owner = self._begin(changed.set)
        try:
            while (timeout := self._ask(owner)) is not None:
                changed.wait(None if timeout == math.inf else min(timeout, threading.TIMEOUT_MAX))
                changed.clear()
        except BaseException:
            self._leave(owner)
            raise
        self._hold(owner)
        return self

    async def __aenter__(self) -> Self:
        loop, changed = asyncio.get_running_loop(), loop_event()
        owner = self._begin(_nobody)
        owner.waiter.home = loop
        owner.wake = partial(_wake_in_loop, ref(owner), loop, changed.set)
        timer = None
        try:
            while (timeout := self._ask(owner)) is not None:
                timer = None if timeout == math.inf else loop.call_later(timeout, changed.set)
                await changed.wait()
                changed.clear()
                if timer is not None:
                    timer.cancel()
        except BaseException:
            if timer is not None:
                timer.cancel()
            self._leave(owner)
            raise
        self._hold(owner)
        return self

    def __exit__(self, *error: object) -> None:
        try:
            owner = self._owners.pop()
        except IndexError:
            raise RuntimeError("the block has ended, or has not begun") from None
        _held.set(tuple(user for user in _held.get() if user is not self))
        if owner.accounts[0] is self._limit._account:  # else it began in the process that this one was forked from
            spent = self._cost if self._spent is None else self._spent
            owner.end(owner.accounts, (self._cost,), (spent,), time.monotonic(), self)
            owner.leave_all(time.monotonic())
        self._free.append(None)

    async def __aexit__(self, *error: object) -> None:
        self.__exit__(*error)

    def _begin(self, wake: Callable[[], object]) -> Owner:
        try:
            self._free.pop()
        except IndexError:
            raise RuntimeError("the block is in use (expected: limit(cost) for each block)") from None
        self._error = None
        owner = Owner((self._limit,), wake)
        owner.fail = partial(self._fail, ref(owner))
        return owner

    def _fail(self, owner: ref[Owner], error: BaseException) -> None:
        self._error, found = error, owner()
        if found is not None:
            found.wake()

    def _leave(self, owner: Owner) -> None:
        """It was interrupted while it waited, or just after it had taken."""
        owner.end(owner.accounts, (self._cost,), (0.0,), time.monotonic(), self)
        owner.leave_all(time.monotonic())
        self._free.append(None)

    def _ask(self, owner: Owner) -> float | None:
        """Seconds to wait before it asks again. None: it has taken."""
        now = time.monotonic()
        error, self._error = self._error, None
        if error is not None:
            raise error
        answer = owner.take((owner.waiter,), owner.accounts, (self._cost,), now, start=self)
        if isinstance(answer, Never):
            raise self._limit.refusal(self._cost)
        if isinstance(answer, float):
            return None
        if owner.waits_for_itself(answer.account, self._cost):
            raise RuntimeError(f"{self._limit!r}: the caller already holds it, and would wait for itself")
        wait: float = answer.at - now
        return max(0.0, wait)

    def _hold(self, owner: Owner) -> None:
        self._spent = None
        self._owners.append(owner)
        _held.set((*(user for user in _held.get() if user.holds), self))  # without those that ended in other contexts


def _nobody() -> None:
    """Wakes nobody."""


def _wake_in_loop(owner: Any, loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """owner: refers to the waiting one."""
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:  # the loop is closed: nobody waits there, and others go first
        if (gone := owner()) is not None:
            now = time.monotonic()
            others = _guarded(gone._guards, None, _ledger.leave_home, gone.accounts[0], loop, now) or ()
            for waiter in (gone.waiter, *others):
                waiter.owner.leave_all(now)
