"""The stage of `limits=`: the last one, because it takes what a call costs: of all limits of the map, or of none.

A call that has to wait keeps its turn. If an account of its key has no room, its lane waits; otherwise the map does.
The ledger says when to ask again, and wakes who may be able to take (`Owner.woken`). A call that is undone, because its
worker came too late or the map took it back, gives everything back. What a call that ended took is what it said
(`Delivery.spent`), or else its costs; if the server said "not now", a Budget gets its cost back.

Lanes whose keys wait for an answer of a database are `asking`. What is granted and not used is wasted, so at most as
many ask at a time as calls may start; then the map waits until one of them has its answer.

Accounts of keys are looked up when a lane is made: that runs `__hash__` and `__eq__` of the user's keys, which no step
of the scheduler does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..engine.item import Batch, Call, Ended, Item, Kind, Lane, said_by
from ..engine.stages import GO, Decision, Refuse, Released, Stage, Wait
from . import ledger
from .ledger import Never
from .objects import Budget, Limit
from .sections import Owner


class LimitsStage(Stage):
    __slots__ = (
        "_asking", "_counts", "_fail", "_keyed", "_limits", "_names", "_unit", "_waits_for_wake", "_workers", "owner",
        "spent",
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
        self._workers = workers
        self._limits = tuple(limits)
        # By which names calls say what they took of each limit.
        named = [[] if limit.name is None else [limit.name] for limit in limits]
        self._names: list[Any] = [[None, *names] if limits[at] is settled else names for at, names in enumerate(named)]
        self._counts = says or any(limit.name is not None for limit in limits)
        self._keyed = keyed
        self._waits_for_wake = False  # the map, without a time
        self._unit = (1.0,) * len(limits)
        self._fail: Callable[[BaseException], None]
        self.spent = spent

    def connect(self, wake: Callable[[Any], None], fail: Callable[[BaseException], None]) -> None:
        super().connect(wake, fail)
        self._fail = self.owner.fail = fail

    def _pass_wakes_on(self, asks_anyway: bool = False) -> None:
        """In any thread. asks_anyway: the map asks again in this step."""
        woken = self.owner.woken
        while woken:
            try:
                waiter = woken.popleft()
            except IndexError:  # another thread was faster
                return
            if waiter.lane is not None or not asks_anyway:
                self._wake(waiter.lane)
            if waiter.lane in self._asking:
                self._asking.discard(waiter.lane)
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
        owner, lane = self.owner, call.lane
        if owner.keyed:
            accounts, waiters = lane.accounts, lane.waiters
        else:
            accounts, waiters = owner.accounts, owner.waiters
        costs = self._sums(call.items()) if isinstance(call, Batch) else call.costs or self._unit
        if math.inf in costs:
            text = f"cost: the sum for a batch of {len(call.items())} items is no float (expected: a finite number)"
            return Refuse(ValueError(text))
        asks = not (owner.keyed and owner.exchanges) or lane in self._asking or len(self._asking) < self._workers
        answer = owner.take(call, waiters, accounts, costs, now, asks)
        if owner.woken:
            self._pass_wakes_on()
        if not isinstance(answer, (ledger.Wait, Never)):
            call.begin_by = min(call.begin_by, answer)
            return GO
        limit, cost = answer.account.limit, costs[accounts.index(answer.account)]
        if isinstance(answer, Never):
            return self._refused(call.items(), limit, cost)
        if owner.waits_for_itself(answer.account, cost):
            self._fail(RuntimeError(f"{limit!r}: the caller already holds it, and would wait for itself"))
        return self._wait(answer, lane, asks)

    def _wait(self, answer: ledger.Wait, lane: Lane, asks: bool) -> Wait:
        if answer.of_lane and answer.at == math.inf and answer.account.limit.shared is not None:
            if not asks:
                self._waits_for_wake = True
                return Wait()
            self._asking.add(lane)
        if not answer.of_lane:
            self._waits_for_wake = answer.at == math.inf
        return Wait(answer.at, answer.of_lane)

    def _sums(self, items: Sequence[Item]) -> Sequence[float]:
        """What these items of one call cost of each limit. Infinite: no float can hold it."""
        places = range(len(self._limits))
        if len(items) == 1:
            return items[0].costs or self._unit
        return [_sum([1.0 if item.costs is None else item.costs[place] for item in items]) for place in places]

    def _refused(self, items: Sequence[Item], limit: Limit, cost: float) -> Refuse:
        """An error of fn says more than that no further attempt fits a Budget."""
        last = items[0].last_error if isinstance(limit, Budget) else None
        return Refuse(limit.refusal(cost) if last is None else last, halves=len(items) > 1)

    def undo(self, call: Call, now: float) -> None:
        self.owner.undo(call, now)
        if self.owner.woken:
            self._pass_wakes_on()

    def after(self, call: Call, ended: Ended, now: float) -> Iterable[Released]:
        counts = self._counts or ended is Ended.DEFERRED or isinstance(call, Batch)
        self.owner.end(call, self._spent(call, ended) if counts else None, now)
        if self.owner.woken:
            # When a call has ended the scheduler asks again if the map waits for a wake; otherwise it has a timer.
            self._pass_wakes_on(self._waits_for_wake)
        return ()

    def _spent(self, call: Call, ended: Ended) -> Sequence[float]:
        """What the call took really: of a Budget nothing for items that the server has deferred."""
        items, said = call.items(), said_by(call)
        costs, paid = self._sums(items), [] if ended is Ended.DEFERRED else items
        if isinstance(call, Batch) and call.verdicts:
            pairs = zip(items, call.verdicts, strict=True)
            paid = [item for item, verdict in pairs if verdict is None or verdict.kind is not Kind.DEFER]
        amounts = []
        for limit, names, cost, rest in zip(self._limits, self._names, costs, self._sums(paid), strict=True):
            amount = next((said[name] for name in names if name in said), None)
            if amount is None:
                amount = rest if isinstance(limit, Budget) else cost
                if limit.name is not None:
                    self.spent[limit.name] = self.spent.get(limit.name, 0.0) + amount
            amounts.append(amount)
        return amounts

    def paused(self, call: Call, until: float, now: float) -> None:
        """Without keys the Rates pause, for all that use them."""
        if not self._keyed:
            self.owner.pause(until)

    def due_at(self) -> float:
        return min([exchange.due_at() for exchange in self.owner.exchanges], default=math.inf)

    def work(self, patience: Any, early: bool = False) -> None:
        for exchange in self.owner.exchanges:
            exchange.work(patience, early)

    def leave(self, now: float) -> None:
        self.owner.leave()


def _sum(costs: Sequence[float]) -> float:
    try:
        return math.fsum(costs)
    except OverflowError:
        return math.inf
