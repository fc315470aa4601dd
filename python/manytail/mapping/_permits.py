"""Limits that hold over several processes: Rates and a Budget with `shared`.

They hold for all maps that use the same name. One thread per map asks the database:

    lease(wanted)   the scheduler's gate wants leases of slots (`_rates`). All that wait go into one statement. The
                    leases come back as an event
    ask(costs)      a worker that has taken a call asks which of its items the budget has room for, and waits. All that
                    wait go into one transaction

A lease has times of the database's clock. They are converted to our clock with the time when the answer came. So a
start is never too early, and late by at most a round trip. How long round trips take is measured: the lead of `_rates`.
While the database is away no lease comes, so no call starts. After `outage_timeout` seconds the map fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from manytail._queue import Event, Held

from ._leasing import LeaseAnswer, LeaseRequest, given_rates, limit_id
from ._rates import Lead
from ._threads import Thread

if TYPE_CHECKING:
    from ._options import Options
    from ._shared import Shared
    from ._shared_store import Store

DROP_AFTER = 60.0  # seconds after which the limit of an idle key is dropped, and between two searches for such keys


class Request(NamedTuple):
    costs: list[float]  # of each item of the call
    answer: Future[list[bool] | None]  # which of them the budget has room for; None: the map ends, nothing was taken


class Permits:
    """Asks the database for leases, and takes costs from the budget, in one thread. The first request starts it."""

    def __init__(self, shared: Shared, rates: dict[bytes, float], budget: float | None) -> None:
        self._shared = shared
        self._rates = rates  # by what names the limit
        self._drops = any(limit.startswith(b"per_key_rate") for limit in rates)
        self._known = False  # whether the rates were stored with the name
        self._lead = Lead()
        self._drop_at = 0.0
        self._budget = budget
        self._lock = threading.RLock()  # guards the other fields; finalizers take it again
        self._changed = Event()  # wakes the thread
        self._wanted: list[LeaseRequest] = []
        self._requests: list[Request] = []
        self._returned = 0.0  # costs to give back to the budget
        self._thread: Thread | None = None
        self._stopped = False
        self._over = False  # the thread ends; a cost that is given back after that starts another
        self._ended: list[Callable[[], object]] = []  # to call when the thread ends
        self._give_up = Event()
        self.leased: Callable[[list[LeaseAnswer]], None]  # the runner's: these leases have come
        self.fail: Callable[[BaseException], None]  # the runner's: the map fails

    @property
    def takes_costs(self) -> bool:
        """Whether a worker has to ask before a call."""
        return self._budget is not None

    # ------------------------------------------------------------------------------------------------ requests
    def lease(self, wanted: list[LeaseRequest]) -> None:
        """Have `leased` called with these leases. Does not wait."""
        with Held(self._lock):
            if not self._stopped:
                self._wanted += wanted
                self._wake()

    def ask(self, costs: list[float]) -> Future[list[bool] | None]:
        """Take the costs of the items of a call from the budget. The result says which of them it had room for. None
        after `stop`."""
        request = Request(costs, Future())
        with Held(self._lock):
            if self._stopped:
                request.answer.set_result(None)
            else:
                self._requests.append(request)
                self._wake()
        return request.answer

    def give_back(self, cost: float) -> None:
        """Return the cost of a call that was deferred or is not made."""
        if self._budget is not None and cost:
            with Held(self._lock):
                self._returned += cost
                self._wake()

    def _wake(self) -> None:
        if self._thread is None or self._over or self._thread.never_runs():
            self._over = False
            self._thread = Thread(self._run, "manytail-limits")
            self._thread.start()
        self._changed.set()

    # ------------------------------------------------------------------------------------------------ the end
    def stop(self) -> None:
        """No further call starts: release the waiting workers. The thread still stores returned costs, and ends."""
        with Held(self._lock):
            self._stopped = True
            self._give_up.set()
            self._changed.set()
            requests, self._requests = self._requests, []
            self._wanted = []
        for request in requests:
            _answer(request, None)

    def flushed(self, then: Callable[[], object]) -> None:
        """After `stop` and the last call: call `then` when all costs that were given back are stored, or cannot be."""
        with Held(self._lock):
            if self._thread is not None and not self._over and not self._thread.never_runs():
                self._ended.append(then)
                return
        then()

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
            with Held(self._lock):
                self._over = True
            self.stop()
        with Held(self._lock):
            ended, self._ended = self._ended, []
        for then in ended:
            then()

    def _work(self, store: Store) -> bool:
        """Wait for requests, and answer all of them. Returns False at the end."""
        while not self._has_work():
            self._changed.wait()
        with Held(self._lock):
            wanted = self._distinct() if len(self._rates) == 1 else self._wanted
            self._wanted = self._wanted if len(self._rates) == 1 else []
            requests, self._requests = self._requests, []
            returned, self._returned = self._returned, 0.0
            self._over = over = self._stopped and not returned
        try:
            if returned:
                store.give_back(returned, self._give_up)
            if requests:
                self._pay(store, requests)
            if wanted:
                self.leased(self._leases(store, wanted))
        except BaseException:
            with Held(self._lock):
                self._requests = requests + self._requests  # `_run` calls `stop`, which releases their workers
            raise
        return not over

    def _has_work(self) -> bool:
        with Held(self._lock):
            self._changed.clear()
            return bool(self._wanted or self._requests or self._returned or self._stopped)

    def _distinct(self) -> list[LeaseRequest]:
        """Take the first request for each limit: a statement must not lease one limit twice. Two lanes may have one
        limit, because keys that are not equal may have equal idempotency keys, as two NaNs do."""
        first = {each.parts[0].limit: each for each in reversed(self._wanted)}
        self._wanted = [each for each in self._wanted if first[each.parts[0].limit] is not each]
        return list(first.values())

    def _pay(self, store: Store, requests: list[Request]) -> None:
        assert self._budget is not None
        taken = iter(store.spend([cost for each in requests for cost in each.costs], self._budget, self._give_up))
        for request in requests:
            _answer(request, [next(taken) for _ in request.costs])

    def _leases(self, store: Store, wanted: list[LeaseRequest]) -> list[LeaseAnswer]:
        begin = time.monotonic()
        if not self._known:
            store.set_rates(self._rates, self._give_up)
            self._known = True
            self._lead.took(time.monotonic() - begin)
            begin = time.monotonic()
        leases = self._granted(store, wanted) if len(self._rates) > 1 else self._of_one_limit(store, wanted)
        now = time.monotonic()
        self._lead.took(now - begin)
        if self._drops and now >= self._drop_at:
            self._drop_at = now + DROP_AFTER
            store.drop_limits(b"key:", DROP_AFTER, self._give_up)
        return leases

    def _of_one_limit(self, store: Store, wanted: list[LeaseRequest]) -> list[LeaseAnswer]:
        leases = store.lease([each.parts[0] for each in wanted], self._give_up)
        ahead = time.monotonic() - max(lease.now for lease in leases)
        return [
            LeaseAnswer(each, lease.start + ahead, lease.rate, lead=self._lead.seconds)
            for each, lease in zip(wanted, leases, strict=True)
        ]

    def _granted(self, store: Store, wanted: list[LeaseRequest]) -> list[LeaseAnswer]:
        answers, now = store.grant([each.parts for each in wanted], self._give_up)
        ahead = time.monotonic() - now
        return [
            LeaseAnswer(each, answer.start + ahead, granted=answer.granted, by_map=answer.by_map)
            for each, answer in zip(wanted, answers, strict=True)
        ]


def permits_of(options: Options) -> Permits | None:
    """The Permits of a map. None: no limit holds over several processes."""
    if options.limits_shared is None:
        return None
    rates = {limit_id(options, name): getattr(options, name) for name in given_rates(options)}
    return Permits(options.limits_shared, rates, options.budget)


def _answer(request: Request, affordable: list[bool] | None) -> None:
    if not request.answer.done() and request.answer.set_running_or_notify_cancel():  # else its coroutine was cancelled
        request.answer.set_result(affordable)
