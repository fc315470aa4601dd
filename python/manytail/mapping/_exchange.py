"""The exchange with a database of what calls take of shared limits: one thread per process and Shared.

It waits until an account has something to ask or to report (`_leased.Requests`), sends all of it in one transaction
(`_shared_store.Store.exchange`), and wakes who waits for what was granted. It runs while owners use these limits, and
until all is reported; once the last has left or is freed, it waits no longer for a database that is away. An owner that
is `inline` starts no thread, but calls `work`. While the database is away nothing is granted, so no call starts. After
`outage_timeout` seconds all maps that use the limits fail.

Locks. The accounts are changed under the guards of their limits, as by owners (`_limits`). Of the locks here one is for
the thread's life alone, and is taken last. The other is held during an exchange, by the thread or by who calls `work`.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet, WeakValueDictionary, ref

from manytail._sync import Event, Held

from . import _logs
from ._exit import steps
from ._leased import Requests, places_of
from ._threads import Thread
from ._types import SharedUnavailable

if TYPE_CHECKING:
    from ._shared import Shared
    from ._shared_store import Store

DROP_AFTER = 60.0  # seconds after which the row of an idle key is dropped, and between two searches for such rows
EXIT_TIMEOUT = 5.0  # seconds that the interpreter's exit waits for the last report

Guarded = Callable[[Any, Callable[..., Any]], Any]  # call a step under the guard of a limit, with a list of wakes

class Owner(Protocol):
    """Who uses the limits (`_limits.Owner`)."""

    inline: bool
    fail: Callable[[BaseException], object]


class Exchange:
    """What a process and one Shared tell one another about limits."""

    def __init__(self, shared: Shared, guarded: Guarded) -> None:
        self.requests = Requests(os.urandom(12))
        self._shared = shared
        self._guarded = guarded
        self._owners: dict[ref[Owner], None] = {}
        self._lock = threading.RLock()  # guards the thread; finalizers take it again
        self._working = threading.Lock()  # one exchange at a time
        self._changed = Event()  # wakes the thread
        self._thread: Thread | None = None
        self._flushes: list[Callable[[], object]] = []  # to call when all is reported
        self.give_up = Event()  # nobody waits for a database that is away, or only what has to be told
        self._grace: Any = None
        self._drop_at = 0.0
        self._returning = False  # the last owner has left: all that nothing uses is returned
        self._had_inline = False  # an owner without a thread has used it

    # ------------------------------------------------------------------------------------------------ from owners
    def join(self, owner: Owner) -> None:
        """The owner uses these limits."""
        with Held(self._lock):
            self._owners[ref(owner, self._lose)] = None
            self.give_up.clear()
            self._grace, self._returning = None, False

    def leave(self, owner: Owner) -> None:
        """It does not any longer. What this process holds and nobody uses is returned."""
        with Held(self._lock):
            self._lose(ref(owner))
        self.wake(owner.inline)

    def _lose(self, owner: ref[Owner]) -> None:
        """It has left, or is freed. The thread ends after the last one."""
        with Held(self._lock):
            if self._owners.pop(owner, self) is None and not self._owners:
                self.give_up.set()
                self.requests.forget_calls()
                self._returning = self.requests.is_due_sooner = True
                self._changed.set()

    def wake(self, inline: bool = False) -> None:
        """There may be something to ask or to report. Does not wait. inline: who says so starts no thread."""
        if not self.requests.is_due_sooner or not (self.requests.calls or self.requests.open):
            return
        with Held(self._lock):
            self._had_inline = self._had_inline or inline
            _running.add(self)
            if not inline and not self._has_thread():
                self._thread = Thread(self._run, "manytail-limits")
                self._thread.start_soon(self._break)
        self._changed.set()

    def _has_thread(self) -> bool:
        return self._thread is not None and not self._thread.never_runs()

    # ------------------------------------------------------------------------------------------------ without a thread
    def due_in(self) -> float:
        """Seconds until `work` has something to do. Infinite: it has not, or there is a thread."""
        return math.inf if self._has_thread() else max(0.0, self.requests.due() - time.monotonic())

    def work(self, early: bool = False, patience: Any = None) -> None:
        """Exchange what is due, in this thread. early: what is not due yet too, and all that no running call holds is
        returned: no thread will. patience: once it is set, nothing waits for a database that is away."""
        with Held(self._lock):
            if self._has_thread():
                return
            returns, self._returning = self._returning or early, False
        try:
            self._exchange(self._shared._store(), early, returns, patience)
        except Exception as error:
            if not (isinstance(error, SharedUnavailable) and patience is not None and patience.is_set()):
                self._break(error)

    def flushed(self, then: Callable[[], object]) -> None:
        """Call `then` when all that calls have spent and returned by now is reported, or cannot be."""
        with Held(self._lock):
            if self._has_thread():
                self._flushes.append(then)
                self._changed.set()
                return
        if self._had_inline:
            self.work(early=True)
        then()

    # ------------------------------------------------------------------------------------------------ the thread
    def _run(self) -> None:
        try:
            store = self._shared._store()
            while self._work(store):
                continue
        except BaseException as error:
            self._break(error)

    def _work(self, store: Store) -> bool:
        """Wait until something is due, and exchange it. False: nothing is left to do, and the thread ends."""
        self._changed.clear()
        due = self.requests.begin_wait()
        if not (due <= time.monotonic() or self._flushes or self._returning or self._is_over()):
            wait = due - time.monotonic()
            self._changed.wait(None if wait > threading.TIMEOUT_MAX else max(0.0, wait))
            return True
        with Held(self._lock):
            flushes, self._flushes = self._flushes, []
            returns, self._returning = self._returning, False
            if not flushes and self._is_over():
                self._thread = None
                return False
        try:
            self._exchange(store, bool(flushes), returns)
        finally:
            for then in flushes:
                then()
        return True

    def _is_over(self) -> bool:
        return not (self._owners or self.requests.calls or self.requests.open)

    def _exchange(self, store: Store, early: bool, returns: bool, patience: Any = None) -> None:
        """early: report also what is not due yet. returns: that too, and keep only what running calls hold. patience:
        as of `work`."""
        from ._shared_store import Grace

        with Held(self._working):
            if patience is None:
                patience = self._grace = self._grace or Grace(self.give_up)
            else:
                patience = Grace(patience)
            self._exchange_once(store, early, returns, patience)

    def _exchange_once(self, store: Store, early: bool, returns: bool, patience: Any) -> None:
        requests, now = self.requests, time.monotonic()
        needs: dict[Any, float] = {}
        calls: list[Any] = []
        try:  # without a thread of its own, a signal handler may raise anywhere
            requests.gather(needs, calls, early or returns, now)
            if not needs:
                return
            keyed = any(account.of_key for account in needs)
            reports = [partial(account.report, need, returns, now) for account, need in needs.items()]
            asks = [self._guarded(account.limit, report) for account, report in zip(needs, reports, strict=True)]
            terms = {account.group: account.limit.terms for account in needs}
            sent = time.monotonic()
            answers, at = store.exchange(requests.ahead, terms, asks, places_of(needs, calls), patience)
            errors = self._answer(needs, answers, sent, at)
            calls.clear()
        except BaseException:
            requests.put_back(needs, calls, now)
            raise
        if errors:
            raise errors[0]
        if keyed and now >= self._drop_at:
            self._drop_at = now + DROP_AFTER
            store.drop_limits(DROP_AFTER, patience)

    def _answer(self, needs: dict[Any, float], answers: list[Any], sent: float, at: float) -> list[BaseException]:
        """Tell the accounts their answers, and take them out of `needs`. Returns errors of who was woken: the others
        hear of their answers all the same."""
        now = time.monotonic()
        offset = self.requests.took(sent, now, at)
        told = zip(needs.items(), answers, strict=True)
        steps = [(account, partial(account.answered, answer, need, offset, now)) for (account, need), answer in told]
        errors: list[BaseException] = []
        for account, step in steps:
            try:
                self._guarded(account.limit, step)
            except BaseException as error:
                errors.append(error)
            del needs[account]
        return errors

    def _break(self, error: BaseException) -> None:
        """All that use these limits fail."""
        with Held(self._lock):
            self.requests.forget_calls()  # of owners in this list: who comes later asks a new thread
            owners, self._thread = [owner for each in list(self._owners) if (owner := each()) is not None], None
            flushes, self._flushes = self._flushes, []
        for owner in owners:
            owner.fail(error)
        is_lost = not owners and any(account.is_unreported() for account in list(self.requests.open))
        for then in flushes:
            then()
        if is_lost:
            _logs.error("shared: what calls took of limits is not reported, and may stay reserved: %s", error)


_exchanges: WeakValueDictionary[Any, Exchange] = WeakValueDictionary()
_running: WeakSet[Exchange] = WeakSet()


def exchange_of(shared: Shared, guarded: Guarded) -> Exchange:
    """That of this process."""
    where = shared._where
    key = where if isinstance(where, str) else id(where), shared.name
    found = _exchanges.get(key)
    return found if found is not None else _exchanges.setdefault(key, Exchange(shared, guarded))


def begin_all() -> None:
    """In a forked child: the threads are the parent's, and so is what it holds."""
    for exchange in list(_exchanges.values()):
        exchange._lock, exchange._working, exchange._thread = threading.RLock(), threading.Lock(), None
    _exchanges.clear()
    _running.clear()


def _report_at_exit() -> None:
    """Report what calls of maps that were not closed have spent, for instance after Ctrl-C."""
    for exchange in list(_running):
        reported = Event()
        exchange._returning = True
        exchange.flushed(reported.set)
        reported.wait(EXIT_TIMEOUT)


steps.report = _report_at_exit
