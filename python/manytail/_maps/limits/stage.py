"""The stage of `limits=`: the last one, because it takes what a call costs: of all limits of the map, or of none.

A call that has to wait keeps its turn. If an account of its key has no room, its lane waits; otherwise the map does.
The ledger says when to ask again, and wakes who may be able to take (`Owner.woken`). Where as many lanes as there are
workers wait for an answer of a database, the map waits until one of them has it. A call that is undone, because its
worker came too late or the map took it back, gives everything back. What a call that ended took is what it said
(`Delivery.spent`), or else its costs; if the server said "not now", a Budget gets its cost back.

Accounts of keys are looked up when a lane is made: that runs `__hash__` and `__eq__` of the user's keys, which no step
of the scheduler does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..engine.item import Call, Ended, Kind, Lane, said_by
from ..engine.stages import GO, Decision, Refuse, Released, Stage, Wait
from . import ledger
from .groups import Owner
from .ledger import Account, Never
from .objects import Budget, Limit

Taken = tuple[Sequence[Account], Sequence[float]]  # the accounts of a call, and its costs


class LimitsStage(Stage):
    __slots__ = (
        "_asking", "_counts", "_fail", "_held_up", "_keyed", "_limits", "_most_asking", "_names", "_open", "_unit",
        "owner", "spent",
    )  # fmt: skip

    paces = True

    def __init__(
        self,
        limits: Sequence[Limit],
        settled: Limit | None,
        spent: dict[str, float],
        *,
        keyed: bool = False,
        says: bool = False,
        workers: int = 1,
        inline: bool = False,
    ) -> None:
        """settled: the limit that `Delivery.spent` means without a name. spent: it counts what calls took, by the names
        of limits, unless they said it themselves. keyed: the map has keys. says: calls may say what they took.
        inline: as of Owner."""
        super().__init__()
        self.owner = Owner(limits, self._pass_wakes_on, inline)
        self._asking: set[Lane] = set()
        self._most_asking = workers
        self._held_up = False  # the map waits because as many lanes ask
        self._limits = tuple(limits)
        # By which names calls say what they took of each limit.
        self._names: list[Any] = [(["", limit.name] if limit is settled else [limit.name]) for limit in limits]
        self._counts = says or any(limit.name is not None for limit in limits)
        self._keyed = keyed
        self._unit = (1.0,) * len(limits)
        self._open: dict[Call, Taken] = {}  # of calls that may start, or run
        self._fail: Callable[[BaseException], None]
        self.spent = spent

    def connect(self, wake: Callable[[Any], None], fail: Callable[[BaseException], None]) -> None:
        super().connect(wake, fail)
        self._fail = self.owner.fail = fail

    def _pass_wakes_on(self) -> None:
        """In any thread."""
        woken = self.owner.woken
        while woken:
            try:
                waiter = woken.popleft()
            except IndexError:  # another thread was faster
                return
            self._wake(waiter.lane)
            if waiter.lane in self._asking:
                self._asking.discard(waiter.lane)
                if self._held_up:
                    self._held_up = False
                    self._wake(None)

    # ------------------------------------------------------------------------------------------------ the reader's
    def prepare(self, lane: Lane) -> None:
        """A new lane. TypeError: a shared limit, and a key of a type that has no stable bytes."""
        lane.accounts, lane.waiters = self.owner.lane(lane.key, lane)

    def forget(self, lane: Lane) -> None:
        """No call of the lane follows."""
        for waiter in set(lane.waiters) - {self.owner.waiter}:
            self.owner.drop(waiter)

    def hold(self) -> None:
        self.owner.hold()

    # ------------------------------------------------------------------------------------------------ the scheduler's
    def before(self, call: Call, now: float) -> Decision:
        owner = self.owner
        if owner.keyed:
            accounts, waiters = call.lane.accounts, call.lane.waiters
        else:
            accounts, waiters = owner.accounts, owner.waiters
        costs, asks = self._costs(call), self._may_ask(call.lane)
        answer = owner.take(waiters, accounts, costs, now, asks)
        waits_for_grant = _waits_for_grant(answer)
        if asks and not waits_for_grant:
            self._asking.discard(call.lane)
        if owner.woken:
            self._pass_wakes_on()
        if not isinstance(answer, (ledger.Wait, Never)):
            call.begin_by = min(call.begin_by, answer)
            self._open[call] = accounts, costs
            return GO
        limit, cost = answer.account.limit, costs[accounts.index(answer.account)]
        if isinstance(answer, Never):
            return self._refused(call, limit, cost)
        if owner.waits_for_itself(answer.account, cost):
            self._fail(RuntimeError(f"{limit!r}: the caller already holds it, and would wait for itself"))
        if waits_for_grant and not asks:
            return Wait()
        return Wait(answer.at, answer.of_lane)

    def _may_ask(self, lane: Lane) -> bool:
        """Whether the lane may ask a database for more: what it is granted and does not use is wasted, so at most as
        many ask at a time as calls may start. It counts from here on: the answer may come at once."""
        if not (self.owner.keyed and self.owner.exchanges):
            return True
        if len(self._asking) >= self._most_asking and lane not in self._asking:
            self._held_up = True  # first: a lane that is answered from here on wakes the map
            if len(self._asking) >= self._most_asking:
                return False
        self._asking.add(lane)
        return True

    def _costs(self, call: Call) -> Sequence[float]:
        """What the call takes of each limit: the sum of its items' costs."""
        items = call.items()
        if len(items) == 1:
            return items[0].costs or self._unit
        return tuple([math.fsum(each) for each in zip(*(item.costs or self._unit for item in items), strict=True)])

    def _refused(self, call: Call, limit: Limit, cost: float) -> Refuse:
        """An error of fn says more than that no further attempt fits a Budget."""
        items = call.items()
        last = items[0].last_error if isinstance(limit, Budget) else None
        return Refuse(limit.refusal(cost) if last is None else last, halves=len(items) > 1)

    def undo(self, call: Call, now: float) -> None:
        accounts, costs = self._open.pop(call)
        self.owner.end(accounts, costs, (0.0,) * len(costs), now)

    def after(self, call: Call, ended: Ended, now: float) -> Iterable[Released]:
        accounts, costs = self._open.pop(call)
        verdicts = getattr(call, "verdicts", ())
        free = ended is Ended.DEFERRED or any(one is not None and one.kind is Kind.DEFER for one in verdicts)
        spent = self._spent(call, costs, ended) if self._counts or free else costs
        self.owner.end(accounts, costs, spent, now)
        return ()

    def _paid(self, call: Call, costs: Sequence[float], ended: Ended) -> Sequence[float]:
        """What a Budget counts: nothing for items that the server has deferred."""
        verdicts = getattr(call, "verdicts", ())
        if not verdicts:
            return (0.0,) * len(costs) if ended is Ended.DEFERRED else costs
        pairs = zip(call.items(), verdicts, strict=True)
        some = [item.costs or self._unit for item, one in pairs if one is None or one.kind is not Kind.DEFER]
        return [math.fsum(each[place] for each in some) for place in range(len(costs))]

    def _spent(self, call: Call, costs: Sequence[float], ended: Ended) -> Sequence[float]:
        """What the call took really."""
        paid = self._paid(call, costs, ended)
        said = said_by(call)
        amounts = []
        for limit, names, cost, rest in zip(self._limits, self._names, costs, paid, strict=True):
            amount = next((said[name] for name in names if name in said), None)
            if amount is None:
                amount = rest if isinstance(limit, Budget) else cost
                if limit.name is not None:
                    self.spent[limit.name] = self.spent.get(limit.name, 0.0) + amount
            amounts.append(amount)
        return tuple(amounts)

    def paused(self, call: Call, until: float, now: float) -> None:
        """Without keys the Rates pause, for all that use them."""
        if not self._keyed:
            self.owner.pause(until)

    def due_at(self) -> float:
        return min([exchange.due_at() for exchange in self.owner.exchanges], default=math.inf)

    def work(self, patience: Any, early: bool = False) -> None:
        for exchange in self.owner.exchanges:
            exchange.work(patience, early)

    def kept(self) -> list[Any]:
        """The deadline has passed: nothing waits."""
        self.owner.stop_waiting()
        return []

    def leave(self, now: float) -> None:
        self.owner.leave()


def _waits_for_grant(answer: float | ledger.Wait | Never) -> bool:
    """Whether a lane waits for what its key is granted of a shared limit."""
    waits = isinstance(answer, ledger.Wait) and answer.of_lane and answer.at == math.inf
    return waits and answer.account.limit.shared is not None  # type: ignore[union-attr]
