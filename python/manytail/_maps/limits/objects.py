"""Rate, Budget and Concurrency, which keep what was taken of them in this process, and `with limit:`.

A limit has one account or, with per_key, one for each key (`ledger`). All users of one Limit object count against the
same accounts, which change only in steps of `sections.run` and `post`. Once a limit has IDLE_LIMIT
accounts of keys, those that are idle and have no users are dropped. A copy (pickle, copy) starts with nothing taken; so
do all limits in a forked child, because a lock may have been held at the fork.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Hashable
from functools import partial
from inspect import signature
from typing import Any
from weakref import WeakSet

from manytail import _checks
from manytail._lifecycle import after_fork_in_child
from manytail._sync import Held
from manytail._values import initialised_repr

from ..database.shared import Shared
from ..outcomes import BudgetExceeded
from ..results import identity
from .blocks import Block, Enterable, Hold
from .grants import Terms
from .leases import LeasedPermits, LeasedSpending, LeasedTokens
from .ledger import Account, Permits, Spending, Tokens, Waiter
from .sections import begin_section, run

PERIODS = {"second": 1.0, "minute": 60.0, "hour": 3_600.0, "day": 86_400.0}
IDLE_LIMIT = 4_096  # accounts of keys that a limit keeps before it drops idle ones

_limits: WeakSet[Limit] = WeakSet()


class Limit(Enterable):
    """A Rate, a Budget or a Concurrency: it bounds what all calls together may take.

    A call starts when all limits of its map have room for it, and takes its cost from all of them or from none. Maps
    and blocks that wait take turns. Without a map: `with limit:` and `async with limit:` wait for room and use up 1
    unit; `with limit(cost):` uses up `cost` units instead. When the block ends, a Concurrency gets them back. `with
    limit as block` gives the block, and `block.spent(amount)` reports what it really took. Entering a block may wait.
    It raises RuntimeError if it would wait for itself, for a Concurrency that its own caller holds.

    cost: a function that returns the cost of an item, which must be finite and >= 0; None: every item costs 1. With
    `manytail.arrow` and `manytail.spark` it may be a column. per_key: the limit applies to each key separately; idle
    keys are forgotten. name: identifies the limit in `Delivery.spent` and Stats; needed with `shared`.
    """

    name: str | None
    terms: Terms
    _kinds: tuple[Any, Any]  # of accounts: that of this process, and that of a limit with `shared`
    holds = True  # as `Account.holds`
    is_settled = True  # what a call took really counts

    def __init__(self, cost: Any, per_key: bool, per_task: bool, shared: Shared | None, name: str | None) -> None:
        super().__init__()
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
        self._begin()
        _limits.add(self)

    def _begin(self) -> None:
        self.exchange: Any = None
        if self.shared is not None:
            from .exchange import exchange_of  # imports sqlite3

            self.exchange = exchange_of(self.shared)
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

    def refusal(self, cost: float) -> BaseException:
        """The error of a cost for which there will never be room."""
        raise NotImplementedError

    def _arguments(self) -> dict[str, Any]:
        """What it was made with, if that differs from the defaults."""
        given = {one.name: (getattr(self, one.name), one.default) for one in signature(type(self)).parameters.values()}
        return {
            name: value
            for name, (value, default) in given.items()
            if value is not default and (default is None or value != default)
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._arguments()), ()

    @initialised_repr
    def __repr__(self) -> str:
        amount, *others = self._arguments().items()
        shown = [repr(amount[1]), *(f"{name}={value!r}" for name, value in others)]
        return f"{type(self).__name__}({', '.join(shown)})"

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
            run(partial(_use, found))
            if self._accounts.get(key) is found:
                return found
            run(partial(_disuse, found))  # it was dropped meanwhile: look again

    def _forget_idle(self) -> None:
        """Drop the accounts of keys that have no users and stand as new ones would. Amortised constant time per
        account. Meanwhile every account that is still needed is in `_accounts` or in `_older`, for other threads."""
        with Held(self._forgetting, 0) as held:
            if not held:
                return
            self._older, self._accounts = self._accounts, {}
            for account in list(self._older.values()):
                if not run(partial(_is_unused, account, time.monotonic())):
                    self._accounts.setdefault(account.key, account)
            self._older = {}
            self._accounts_limit = max(IDLE_LIMIT, 2 * len(self._accounts))

    # ------------------------------------------------------------------------------------------------ without a map
    def __call__(self, cost: float) -> Block:
        """A block that takes that cost."""
        return Block(self, _checks.amount("cost", cost))

    def _new_hold(self) -> Hold:
        return Hold(self, 1.0)


def _use(account: Account, wakes: list[Waiter]) -> None:
    account.users += 1


def _disuse(account: Account, wakes: list[Waiter]) -> None:
    account.users -= 1


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
        cost: Callable[[Any], float] | Any = None,
        per_key: bool = False,
        per_task: bool = False,
        shared: Shared | None = None,
        name: str | None = None,
    ) -> None:
        self.amount = _checks.amount("amount", amount, positive=True, infinite=True)
        self.per = per
        self.burst = _checks.amount("burst", burst)
        if isinstance(per, str):
            self.seconds = PERIODS[_checks.choice("per", per, PERIODS)]
        else:
            self.seconds = _checks.amount("per", per, positive=True)
        self.interval = self.seconds / self.amount  # per unit of cost
        if math.isinf(self.interval) or math.isinf(self.burst * self.interval):
            raise _checks.bad_value("amount", amount, "a number > 0 that per can be divided by")
        self.terms = Terms(self.amount, self.seconds, self.burst * self.interval)
        super().__init__(cost, per_key, per_task, shared, name)

    holds = Tokens.holds
    _kinds = Tokens, LeasedTokens

    def _account_of(self, key: Any, kind: Any) -> Any:
        return kind(self, self.per_key, key, self.interval, self.burst * self.interval, self.seconds)


class Budget(Limit):
    """The sum of spent and reserved cost stays within `amount`, unless a call costs more than its estimate."""

    def __init__(
        self,
        amount: float,
        *,
        cost: Callable[[Any], float] | Any = None,
        per_task: bool = False,
        shared: Shared | None = None,
        name: str | None = None,
    ) -> None:
        self.amount = _checks.amount("amount", amount, infinite=True)
        self.terms = Terms(self.amount)
        super().__init__(cost, False, per_task, shared, name)

    def used(self) -> float:
        """What ended calls have spent. Progress: a shared Budget asks its database, and waits."""
        if self.exchange is not None:
            self.exchange.report(self._account)
        return float(run(self._settled))  # after the ends of calls that wait for the lock

    def _settled(self, wakes: list[Waiter]) -> float:
        return self._account.settled  # type: ignore[no-any-return]

    _kinds = Spending, LeasedSpending

    def _account_of(self, key: Any, kind: Any) -> Any:
        return kind(self, False, key, self.amount)

    def refusal(self, cost: float) -> BaseException:
        return BudgetExceeded(f"{self}: a cost of {cost:g} does not fit; {self._account.settled:g} is spent already")


class Concurrency(Limit):
    """Costs of calls that run at once are at most `amount`. An item that costs more fails with ValueError."""

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
        self.amount = _checks.amount("amount", amount, positive=True, infinite=True)
        self.lease = _checks.amount("lease", lease, positive=True)
        self.terms = Terms(self.amount, lease=self.lease)
        super().__init__(cost, per_key, per_task, shared, name)

    is_settled = False
    _kinds = Permits, LeasedPermits

    def _account_of(self, key: Any, kind: Any) -> Any:
        return kind(self, self.per_key, key, self.amount)

    def refusal(self, cost: float) -> BaseException:
        return ValueError(f"{self}: a cost of {cost:g} (expected: at most {self.amount:g})")


def _checked_cost(cost: Any) -> Any:
    """A function of an item or, for frames, the name of a column or the column."""
    if cost is None or isinstance(cost, str) or type(cost).__name__ == "Column":
        return cost
    if not callable(cost) or not _checks.accepts(cost, 1):
        raise _checks.bad_type("cost", cost, "a callable that takes the item")
    return cost


def _begin_all() -> None:
    begin_section()
    if (module := sys.modules.get(f"{__package__}.exchange")) is not None:
        module.begin_all()
    for limit in list(_limits):
        limit._begin()


after_fork_in_child(_begin_all)
