"""`rate` and `budget` of a map that has `shared`: they hold for all that use the same name, in any process.

A worker that has taken an item asks for a permit before its call. One thread per map answers all waiting workers at
once. The budget is taken in one transaction. Slots of the rate are leased in database time, LEASE seconds of them at a
time, and the next ones when the time of the last ones has come. So no lease is for more than 2 x LEASE ahead; a process
that dies wastes its lease and frees nothing. Database time is converted to our clock by the time when the answer came:
never too early, and late by a round trip.

A call starts at its slot or at most LATE seconds after it; a worker that missed its slot asks for another one. So in
any t seconds at most 1 + rate * (t + LATE) calls start, in all processes together.
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
    """The answer: not affordable, or a slot by our clock."""

    affordable: bool
    slot: float


class Request(NamedTuple):
    cost: float | None  # to be taken from the budget; None: nothing
    answer: Future[Permit]


class Permits:
    """The thread of one map that asks for permits. The first request starts it."""

    def __init__(self, shared: Shared, rate: float | None, budget: float | None) -> None:
        self._shared = shared
        self._rate = rate
        self._budget = budget
        self._changed = threading.Condition()
        self._requests: list[Request] = []
        self._returned = 0.0  # costs to give back to the budget
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._give_up = threading.Event()
        self._begin = self._end = -math.inf  # of the leased slots, by our clock
        self._interval = 0.0
        self._left = 0  # leased slots that are unused
        self._known = False  # whether the rate is stored with the name
        self.stopping: Future[None] = Future()  # done when no worker may wait for a slot
        self.fail: Callable[[BaseException], None]  # the runner's: fails the map

    # ------------------------------------------------------------------------------------------------ from workers
    def ask(self, cost: float, again: bool = False) -> Future[Permit]:
        """again: the slot was missed; the cost is paid already."""
        request = Request(cost if self._budget is not None and not again else None, Future())
        with self._changed:
            if self._stopped:
                request.answer.set_result(Permit(True, -math.inf))
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
        return time.monotonic() > permit.slot + LATE > -math.inf

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
            _answer(request, Permit(True, -math.inf))

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
            for request in self._pay(store, requests):
                _answer(request, Permit(True, self._slot(store)))
        except BaseException:
            with self._changed:
                self._requests = requests + self._requests  # `stop` releases them
            raise
        return not over

    def _pay(self, store: Store, requests: list[Request]) -> list[Request]:
        """The requests that the budget has room for. The others are answered."""
        costs = [request.cost for request in requests if request.cost is not None]
        if not costs or self._budget is None:
            return requests
        taken = iter(store.spend(costs, self._budget, self._give_up))
        paid = []
        for request in requests:
            if request.cost is None or next(taken):
                paid.append(request)
            else:
                _answer(request, Permit(False, -math.inf))
        return paid

    def _slot(self, store: Store) -> float:
        """The next slot of the rate. Leases slots if none is left."""
        if self._rate is None or self._stopped:
            return -math.inf
        past = time.monotonic() - LATE / 2 - self._begin
        if self._left and past > 0:  # after a rest: skip slots that have passed
            missed = min(self._left, math.ceil(past / self._interval))
            self._left -= missed
            self._begin += missed * self._interval
        if not self._left:
            self._lease(store, self._rate)
        self._left -= 1
        slot = self._begin
        self._begin += self._interval
        return slot

    def _lease(self, store: Store, rate: float) -> None:
        from ._shared_store import Limit

        with self._changed:  # the last lease has begun before the next one is asked for
            self._changed.wait_for(lambda: self._stopped, max(0.0, self._end - LEASE - time.monotonic()))
        if not self._known:
            store.set_rates({b"rate": rate})
            self._known = True
        number = max(1, math.floor(LEASE * rate))
        (lease,) = store.lease([Limit(b"rate", b"rate", rate, number)], self._give_up)
        self._interval, self._left = 1 / lease.rate, number
        self._begin = time.monotonic() + lease.start - lease.now
        self._end = self._begin + number * self._interval


def permits_of(options: Options) -> Permits | None:
    """What is asked before each call, where limits hold for several processes."""
    if options.shared is None or (options.rate is None and options.budget is None):
        return None
    return Permits(options.shared, options.rate, options.budget)


def own_limits(options: Options) -> Options:
    """The options without those limits: for the scheduler."""
    return options if options.shared is None else replace(options, rate=None, budget=None)


def _answer(request: Request, permit: Permit) -> None:
    if not request.answer.done() and request.answer.set_running_or_notify_cancel():  # else its coroutine was cancelled
        request.answer.set_result(permit)
