"""`rate`, `cost_rate` and `budget` of a map with `shared`: they hold for all that use the same name, in any process.

A worker that has taken a call asks for a permit before it makes it. One thread per map answers all that wait at once.
The budget is taken in one transaction, for each item of a batch by itself. Slots of a rate are leased in database time,
LEASE seconds of them at a time, the next ones when the time of the last ones has come: so nothing is leased for more
than 2 x LEASE ahead, a single call that costs more aside, and a process that dies wastes that and frees nothing.
Database time becomes our clock's with the time when the answer came: never too early, and late by a round trip.

A call starts at its slot or at most LATE seconds after it; a worker that missed its slot asks for another one. So in
any t seconds at most 1 + rate * (t + LATE) calls start, all processes together; the same in cost.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ._rates import LATE

if TYPE_CHECKING:
    from ._options import Options
    from ._shared import Shared
    from ._shared_store import Store

LEASE = 0.1  # seconds of starts in a lease


class Permit(NamedTuple):
    """The answer, by our clock: which items are affordable, and when the call may start."""

    affordable: list[bool]
    slot: float = -math.inf  # no start before
    until: float = math.inf  # later it is too late for the slot


class Request(NamedTuple):
    costs: list[float]  # of each item of the call
    pays: bool  # they are to be taken from the budget
    answer: Future[Permit]


class Slots:
    """The leased slots of one rate."""

    def __init__(self, name: str, rate: float) -> None:
        self.name = name.encode()
        self.rate = rate
        self.begin = self.end = -math.inf  # of what is leased and not taken
        self.interval = 0.0

    def has(self, amount: float, at: float) -> bool:
        """Whether a start at that time, which takes `amount` / rate seconds, fits into what is leased."""
        return self.begin <= at and at + amount * self.interval <= self.end + 1e-9

    def to_lease(self, amount: float) -> float:
        """How much, for starts of that amount."""
        return amount * max(1, math.floor(LEASE * self.rate / amount))


class Permits:
    """The thread of one map that asks for permits. The first request starts it."""

    def __init__(self, shared: Shared, rates: dict[str, float], budget: float | None) -> None:
        self._shared = shared
        self._rates = [Slots(name, rate) for name, rate in rates.items()]
        self._known = False  # the rates are stored with the name
        self._budget = budget
        self._changed = threading.Condition()
        self._requests: list[Request] = []
        self._returned = 0.0  # costs to give back to the budget
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._give_up = threading.Event()
        self.stopping: Future[None] = Future()  # done when no worker may wait for a slot
        self.fail: Callable[[BaseException], None]  # the runner's: the map fails

    # ------------------------------------------------------------------------------------------------ from workers
    def ask(self, costs: list[float], again: bool = False) -> Future[Permit]:
        """costs: of each item of the call. again: the slot was missed, the costs are paid."""
        request = Request(costs, self._budget is not None and not again, Future())
        with self._changed:
            if self._stopped:
                request.answer.set_result(_free(request))
            else:
                self._requests.append(request)
                self._wake()
        return request.answer

    def give_back(self, cost: float) -> None:
        """A call was deferred: it costs nothing."""
        if self._budget is not None:
            with self._changed:
                self._returned += cost
                self._wake()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="manytail-limits", daemon=True)
            self._thread.start()
        self._changed.notify()

    @staticmethod
    def is_late(permit: Permit) -> bool:
        return time.monotonic() > permit.until

    # ------------------------------------------------------------------------------------------------ the end
    def stop(self) -> None:
        """No further call starts: release the waiting workers. Costs that were given back are still stored."""
        with self._changed:
            self._stopped = True
            self._give_up.set()
            self._changed.notify()
            requests, self._requests = self._requests, []
            if not self.stopping.done():
                self.stopping.set_result(None)
        for request in requests:
            _answer(request, _free(request))

    def join(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # ------------------------------------------------------------------------------------------------ the thread
    def _run(self) -> None:
        try:
            store = self._shared._store()
            while self._work(store):
                continue
        except BaseException as error:
            if not self._stopped:
                self.fail(error)
            self.stop()

    def _work(self, store: Store) -> bool:
        with self._changed:
            while not (self._requests or self._returned or self._stopped):
                self._changed.wait()
            requests, self._requests = self._requests, []
            returned, self._returned = self._returned, 0.0
            over = self._stopped and not returned
        try:
            if returned:
                store.give_back(returned, self._give_up)
            for request, affordable in self._pay(store, requests):
                _answer(request, self._permit(store, request, affordable))
        except BaseException:
            with self._changed:
                self._requests = requests + self._requests  # `stop` releases them
            raise
        return not over

    def _pay(self, store: Store, requests: list[Request]) -> list[tuple[Request, list[bool]]]:
        """Which items of each request the budget has room for."""
        costs = [cost for request in requests if request.pays for cost in request.costs]
        taken = iter(store.spend(costs, self._budget, self._give_up) if costs and self._budget is not None else ())
        return [(request, [next(taken) if request.pays else True for _ in request.costs]) for request in requests]

    def _permit(self, store: Store, request: Request, affordable: list[bool]) -> Permit:
        """With a slot in all rates. A call that is not made needs none; what costs nothing needs none of cost_rate."""
        cost = math.fsum(cost for cost, fits in zip(request.costs, affordable, strict=True) if fits)
        amounts = {one: cost if one.name == b"cost_rate" else 1.0 for one in self._rates} if any(affordable) else {}
        amounts = {one: amount for one, amount in amounts.items() if amount > 0}
        if not amounts:
            return Permit(affordable)
        while not self._stopped:
            slot = max(time.monotonic() - LATE / 2, *[one.begin for one in amounts])
            if all(one.has(amount, slot) for one, amount in amounts.items()):
                for one, amount in amounts.items():
                    one.begin = slot + amount * one.interval
                return Permit(affordable, slot, slot + LATE)
            self._lease(store, amounts)
        return _free(request)

    def _lease(self, store: Store, amounts: dict[Slots, float]) -> None:
        """The next slots, of all these rates from the same time on."""
        from ._shared_store import Limit

        due = max(one.begin if one.begin > -math.inf else 0.0 for one in amounts) - LEASE
        with self._changed:  # the last lease has begun before the next one is asked for
            self._changed.wait_for(lambda: self._stopped, max(0.0, due - time.monotonic()))
        if self._stopped:
            return
        if not self._known:
            store.set_rates({one.name: one.rate for one in self._rates})
            self._known = True
        limits = [Limit(one.name, one.name, one.rate, one.to_lease(amount)) for one, amount in amounts.items()]
        leases = store.lease(limits, self._give_up, together=True)
        begin = time.monotonic() + leases[0].start - leases[-1].now
        for one, limit, lease in zip(amounts, limits, leases, strict=True):
            one.interval = 1 / lease.rate
            one.begin, one.end = begin, begin + limit.number * one.interval


def _free(request: Request) -> Permit:
    """No call starts any more."""
    return Permit([True] * len(request.costs))


def permits_of(options: Options) -> Permits | None:
    """Who is asked before each call, where limits hold over several processes."""
    if options.shared is None:
        return None
    rates = {name: rate for name in ("rate", "cost_rate") if (rate := getattr(options, name)) is not None}
    return Permits(options.shared, rates, options.budget) if rates or options.budget is not None else None


def own_limits(options: Options) -> Options:
    """The options without those limits: for the scheduler."""
    return options if options.shared is None else replace(options, rate=None, cost_rate=None, budget=None)


def _answer(request: Request, permit: Permit) -> None:
    if not request.answer.done() and request.answer.set_running_or_notify_cancel():  # else its coroutine was cancelled
        request.answer.set_result(permit)
