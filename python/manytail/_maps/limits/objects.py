"""Rate, Budget and Concurrency, which keep what was taken of them in this process, and `with limit:`.

A limit has one account or, with per_key, one for each key (`ledger`). All users of one Limit object count against the
same accounts, which change only under the lock of the limit's group (`groups.run`). Once a limit has IDLE_LIMIT
accounts of keys, those that are idle and have no users are dropped. A copy (pickle, copy) starts with nothing taken; so
do all limits in a forked child, because a lock may have been held at the fork.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Self
from weakref import WeakSet, ref

from manytail import _checks
from manytail._lifecycle import after_fork_in_child
from manytail._sync import Event, Held

from ..database.shared import Shared
from ..outcomes import BudgetExceeded
from ..results import identity
from .grants import Terms
from .groups import Group, Owner, held_here, run, seconds_until
from .leases import LeasedPermits, LeasedSpending, LeasedTokens
from .ledger import Account, Never, Permits, Spending, Tokens, Wait, Waiter

PERIODS = {"second": 1.0, "minute": 60.0, "hour": 3_600.0, "day": 86_400.0}
IDLE_LIMIT = 4_096  # accounts of keys that a limit keeps before it drops idle ones

_limits: WeakSet[Limit] = WeakSet()


class Limit:
    """A Rate, a Budget or a Concurrency: it bounds what all calls together may take.

    A call starts when all limits of its map have room for it, and takes its cost from all of them or from none. Maps
    and blocks that wait take turns. Without a map: `with limit:` and `async with limit:` wait for room and use up 1
    unit; `with limit(cost):` uses up `cost` units instead. When the block ends, a Concurrency gets them back. `with
    limit as block` gives the block, and `block.spent(amount)` reports what it really took.
    """

    name: str | None
    group: Group
    terms: Terms
    _kinds: tuple[Any, Any]  # of accounts: that of this process, and that of a limit with `shared`
    holds = True  # as `Account.holds`

    def __init__(self, cost: Any, per_key: bool, per_task: bool, shared: Shared | None, name: str | None) -> None:
        self.cost = _checked_cost(cost)
        self.per_key = _checks.check_flag("per_key", per_key)
        self.per_task = _checks.check_flag("per_task", per_task)
        if shared is not None and not isinstance(shared, Shared):
            raise _checks.bad_type("shared", shared, "a Shared")
        if shared is not None and per_task:
            raise _checks.bad_value("per_task", per_task, "False with shared: a limit is either per task or shared")
        if name is not None and not isinstance(name, str):
            raise _checks.bad_type("name", name, "a str of 1 to 100 characters")
        if (name is None and shared is not None) or not (name is None or 1 <= len(name) <= 100):
            raise _checks.bad_value("name", name, "1 to 100 characters; a shared limit needs a name")
        self.shared = shared
        self.name = name
        self._open: list[Block] = []  # the blocks of `with limit:` that have begun
        self._begin()
        _limits.add(self)

    def _begin(self) -> None:
        self.group = Group(self)
        self.exchange: Any = None
        if self.shared is not None:
            from .exchange import exchange_of  # imports sqlite3

            self.exchange = exchange_of(self.shared)
            self.group.exchanges.add(self.exchange)
        self._account = self._new_account(None)
        self._accounts: dict[Hashable, Account] = {}
        self._older: dict[Hashable, Account] = {}  # those of before, while those that are needed move to `_accounts`
        self._accounts_limit = IDLE_LIMIT
        self._forgetting = threading.Lock()  # held by the thread that drops idle accounts; others go on without

    def _new_account(self, key: Any) -> Any:
        """TypeError: a shared limit, and a key of a type that has no stable bytes."""
        if self.exchange is None:
            return self._account_of(key, self._kinds[0])
        account = self._account_of(key, self._kinds[1])
        group = limit_id = f"{type(self).__name__.lower()}:{self.name}".encode()
        if self.per_key:
            limit_id = b"%b:%b" % (group, bytes.fromhex(identity.key(key, "key")))
        account.lease_from(self.exchange.requests, limit_id, group, self.terms)
        return account

    def _account_of(self, key: Any, kind: Any) -> Any:
        """A new account of that kind."""
        raise NotImplementedError

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and named arguments that make the same limit again."""
        raise NotImplementedError

    def refusal(self, cost: float) -> BaseException:
        """The error of a cost for which there will never be room."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (type(self), *self._arguments())

    def __repr__(self) -> str:
        positional, named = self._arguments()
        shown = [*map(repr, positional), *(f"{name}={value!r}" for name, value in named.items())]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _named(self, **more: tuple[Any, Any]) -> dict[str, Any]:
        """Named arguments that differ from their defaults. more: for each name its value and its default."""
        pairs = {**more, "cost": (self.cost, None), "per_key": (self.per_key, False)}
        pairs |= {"per_task": (self.per_task, False), "shared": (self.shared, None), "name": (self.name, None)}
        return {
            name: value
            for name, (value, default) in pairs.items()
            if value is not default and (default is None or value != default)
        }

    # ------------------------------------------------------------------------------------------------ accounts
    def account(self, key: Hashable) -> Account:
        """The limit's account; with per_key that of the key, with one more user. Runs the user's `__hash__` and
        `__eq__`, without a lock."""
        if not self.per_key:
            return self._account  # type: ignore[no-any-return]
        if len(self._accounts) >= self._accounts_limit:
            self._forget_idle()
        while True:
            found = self._accounts.get(key)
            if found is None:
                found = self._accounts.setdefault(key, self._older.get(key) or self._new_account(key))
            run(self, partial(_use, found, 1))
            if self._accounts.get(key) is found:
                return found
            run(self, partial(_use, found, -1))  # it was dropped meanwhile: look again

    def _forget_idle(self) -> None:
        """Drop the accounts of keys that have no users and stand as new ones would. Amortised constant time per
        account. Meanwhile every account that is still needed is in `_accounts` or in `_older`, for other threads."""
        with Held(self._forgetting, 0) as held:
            if not held:
                return
            self._older, self._accounts = self._accounts, {}
            for account in list(self._older.values()):
                if not run(self, partial(_is_unused, account, time.monotonic())):
                    self._accounts.setdefault(account.key, account)
            self._older = {}
            self._accounts_limit = max(IDLE_LIMIT, 2 * len(self._accounts))

    # ------------------------------------------------------------------------------------------------ blocks
    def __call__(self, cost: float) -> Block:
        """A block that takes that cost."""
        return Block(self, checked_amount("cost", cost))

    def __enter__(self) -> Block:
        block = Block(self, 1.0).__enter__()
        self._open.append(block)
        return block

    def __exit__(self, *error: object) -> None:
        self._innermost().__exit__(*error)

    async def __aenter__(self) -> Block:
        block = await Block(self, 1.0).__aenter__()
        self._open.append(block)
        return block

    async def __aexit__(self, *error: object) -> None:
        self._innermost().__exit__(*error)

    def _innermost(self) -> Block:
        """Take out the block of `with limit:` that ends here: the last one that began in this context. If none did, as
        when another thread closes a generator, the last one that began anywhere."""
        block: Block
        for block in reversed(held_here.get()):  # a map is not in `_open`
            if block in self._open:
                self._open.remove(block)
                return block
        try:
            return self._open.pop()
        except IndexError:
            raise RuntimeError(f"{self!r}: no block of it has begun") from None


def _use(account: Account, more: int, wakes: list[Waiter]) -> None:
    account.users += more


def _is_unused(account: Account, now: float, wakes: list[Waiter]) -> bool:
    return not account.users and account.idle(now)


class Rate(Limit):
    """A token bucket: `amount` / `per` on average, spread evenly; after a pause up to `burst` more at once. per: a
    number of seconds, or "second", "minute", "hour" or "day"."""

    def __init__(
        self,
        amount: float,
        per: Any = "second",
        *,
        burst: float = 0.0,
        cost: Callable[[Any], float] | None = None,
        per_key: bool = False,
        per_task: bool = False,
        shared: Shared | None = None,
        name: str | None = None,
    ) -> None:
        self.amount = checked_amount("amount", amount, positive=True, infinite=True)
        self.per = per
        self.burst = checked_amount("burst", burst)
        if isinstance(per, str):
            self.seconds = PERIODS[_checks.choice("per", per, PERIODS)]
        else:
            self.seconds = checked_amount("per", per, positive=True)
        self.interval = self.seconds / self.amount  # per unit of cost
        if math.isinf(self.interval) or math.isinf(self.burst * self.interval):
            raise _checks.bad_value("amount", amount, "a number > 0 that per can be divided by")
        self.terms = Terms(self.amount, self.seconds, self.burst * self.interval)
        super().__init__(cost, per_key, per_task, shared, name)

    holds = Tokens.holds
    _kinds = Tokens, LeasedTokens

    def _account_of(self, key: Any, kind: Any) -> Any:
        return kind(self, self.per_key, key, self.interval, self.burst * self.interval, self.seconds)

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (self.amount, self.per), self._named(burst=(self.burst, 0.0))


class Budget(Limit):
    """The sum of spent and reserved cost stays within `amount`, unless a call costs more than its estimate."""

    def __init__(
        self,
        amount: float,
        *,
        cost: Callable[[Any], float] | None = None,
        per_task: bool = False,
        shared: Shared | None = None,
        name: str | None = None,
    ) -> None:
        self.amount = checked_amount("amount", amount, infinite=True)
        self.terms = Terms(self.amount)
        super().__init__(cost, False, per_task, shared, name)

    def used(self) -> float:
        """What ended calls have spent. Progress: a shared Budget asks its database, and waits."""
        account: Any = self._account
        return float(account.settled) if self.exchange is None else float(self.exchange.spent(account.limit_id))

    _kinds = Spending, LeasedSpending

    def _account_of(self, key: Any, kind: Any) -> Any:
        return kind(self, False, key, self.amount)

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (self.amount,), self._named()

    def refusal(self, cost: float) -> BaseException:
        account: Any = self._account
        spent = account.settled if self.exchange is None else account.known_spent()
        return BudgetExceeded(f"{self}: a cost of {cost:g} does not fit; {spent:g} is spent already")


class Concurrency(Limit):
    """Costs of calls that run at once are at most `amount`. An item that costs more fails with ValueError."""

    def __init__(
        self,
        amount: float,
        *,
        cost: Callable[[Any], float] | None = None,
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

    _kinds = Permits, LeasedPermits

    def _account_of(self, key: Any, kind: Any) -> Any:
        return kind(self, self.per_key, key, self.amount)

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (self.amount,), self._named(lease=(self.lease, 30.0))

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


def _begin_all() -> None:
    if (module := sys.modules.get(f"{__package__}.exchange")) is not None:
        module.begin_all()
    for limit in list(_limits):
        limit._begin()


after_fork_in_child(_begin_all)


# ---------------------------------------------------------------------------------------------------- without a map
class Block:
    """`with limit(cost):`. Entering it again before it has ended raises RuntimeError."""

    def __init__(self, limit: Limit, cost: float) -> None:
        if limit.per_key:
            raise ValueError(f"{limit!r}: with per_key it cannot be used without a map (expected: per_key=False)")
        if limit.per_task:
            raise ValueError(f"{limit!r}: only a map in Spark has tasks (expected: per_task=False)")
        self.limit = limit
        self.limits = (limit,)
        self._cost = cost
        self._spent: float | None = None
        self._error: BaseException | None = None  # the database of the limit is away for too long
        self._free = [None]  # empty while it is in use: only one thread can pop the entry
        self._taken: list[Owner] = []

    @property
    def holds(self) -> bool:
        return bool(self._taken)

    def spent(self, amount: float | None = None, /, **amounts: float) -> None:
        """Report what the block really takes, instead of its cost, without a name or with that of the limit. Amounts of
        other names are ignored. Raises RuntimeError if the block has ended."""
        mine = [] if amount is None else [checked_amount("spent", amount)]
        for name, each in amounts.items():
            checked = checked_amount(f"spent: {name}", each)
            mine += [checked] if name == self.limit.name else []
        if not self._taken:
            raise RuntimeError("spent: the block has ended, or has not begun")
        if mine and isinstance(self.limit, Concurrency):
            raise ValueError("spent: a Concurrency is never settled (expected: a Rate or a Budget)")
        if mine:
            self._spent = mine[-1]

    def __enter__(self) -> Self:
        changed = Event()
        owner = self._begin(changed.set)
        try:
            while (retry_at := self._try_to_take(owner)) is not None:
                changed.wait(seconds_until(retry_at, time.monotonic()))
                changed.clear()
        except BaseException:
            self._leave(owner)
            raise
        self._taken.append(owner)
        held_here.set((*(one for one in held_here.get() if one.holds), self))
        return self

    async def __aenter__(self) -> Self:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        owner = self._begin(_no_wake)
        weak_owner = ref(owner)
        owner.wake = lambda: _wake_in_loop(weak_owner, loop, changed.set)
        timer = None
        try:
            while (retry_at := self._try_to_take(owner)) is not None:
                wait = seconds_until(retry_at, time.monotonic())
                timer = None if wait is None else loop.call_later(wait, changed.set)
                await changed.wait()
                changed.clear()
                if timer is not None:
                    timer.cancel()
        except BaseException:
            if timer is not None:
                timer.cancel()
            self._leave(owner)
            raise
        self._taken.append(owner)
        held_here.set((*(one for one in held_here.get() if one.holds), self))
        return self

    def __exit__(self, *error: object) -> None:
        try:
            owner = self._taken.pop()
        except IndexError:
            raise RuntimeError("the block has ended, or has not begun") from None
        if owner.accounts[0] is self.limit._account:  # a block that began before a fork gives nothing back in the child
            spent = self._cost if self._spent is None else self._spent
            owner.end(owner.accounts, (self._cost,), (spent,), time.monotonic())
            owner.leave()
        self._spent = None
        self._free.append(None)

    async def __aexit__(self, *error: object) -> None:
        self.__exit__(*error)

    def _begin(self, wake: Callable[[], object]) -> Owner:
        try:
            self._free.pop()
        except IndexError:
            raise RuntimeError("the block is in use (expected: limit(cost) for each block)") from None
        self._error = None
        owner = Owner((self.limit,), wake)
        owner.fail = partial(self._fail, ref(owner))
        return owner

    def _fail(self, owner: ref[Owner], error: BaseException) -> None:
        self._error = error
        if (waiting := owner()) is not None:
            waiting.wake()

    def _leave(self, owner: Owner) -> None:
        """The wait was interrupted, or refused: it waits no longer."""
        owner.leave()
        self._free.append(None)

    def _try_to_take(self, owner: Owner) -> float | None:
        """Take the cost. Returns None, or when to try again."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        answer = owner.take(owner.waiters, owner.accounts, (self._cost,), time.monotonic())
        if isinstance(answer, Never):
            raise self.limit.refusal(self._cost)
        if not isinstance(answer, Wait):
            return None
        if owner.waits_for_itself(answer.account, self._cost):
            raise RuntimeError(f"{self.limit!r}: the caller already holds it, and would wait for itself")
        return answer.at


def _no_wake() -> None:
    """Does nothing: before there is a loop to wake."""


def _wake_in_loop(owner: ref[Owner], loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:  # the loop is closed: its waiter leaves the queue to others
        if (waiting := owner()) is not None:
            waiting.leave()
