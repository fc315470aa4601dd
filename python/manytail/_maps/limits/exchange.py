"""The exchange with a database of what calls take of shared limits: one thread per process and Shared.

It waits until an account has something to ask or to report (`leases.Requests`), sends all of it in one transaction
(`database/limits.py`), and wakes who waits for what was granted. It runs while owners use these limits, and until all
is reported. While the database is away nothing is granted, so no call starts. After `outage_timeout` seconds all owners
fail. Once the last one has left or is freed, it returns what no running call holds, and waits only GRACE seconds more
for a database that is away.

An owner that is `inline` starts no thread: it calls `work` when something is due.

The thread's life. `poke` starts a thread where none serves; of several the first takes `_serving`, and the others end.
A thread that has released it looks once more whether there is something to do: who poked it meanwhile saw it held.
Nothing is kept about a thread, so nothing can be wrong with it after an interruption or a fork.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakSet, WeakValueDictionary, ref

from manytail._lifecycle import start_daemon
from manytail._sync import Event, Held

from ..database import connection  # noqa: F401  its exit handler has to be registered before the one here: it runs last
from ..database.limits import LimitStore
from ..outcomes import SharedUnavailable
from .leases import Requests, places_of
from .sections import Owner, post, run, seconds_until

GRACE = 2.0  # seconds that what has to be told still waits for a database that is away, when nobody else does
DROP_AFTER = 60.0  # seconds after which the row of an idle key is dropped, and between two searches for such rows
EXIT_TIMEOUT = 5.0  # seconds that the interpreter's exit waits for the last report

_log = logging.getLogger("manytail")


class Patience:
    """Is set from a time on, as an Event is: then nothing waits any longer for a database that is away."""

    def __init__(self, over_at: float = math.inf) -> None:
        self.over_at = over_at
        self.changed = Event()

    def is_set(self) -> bool:
        return time.monotonic() >= self.over_at

    def wait(self, timeout: float) -> object:
        return self.changed.wait(min(timeout, max(0.0, self.over_at - time.monotonic())))


class Exchange:
    """What this process and one Shared tell one another about limits."""

    def __init__(self, shared: Any) -> None:
        self.requests = Requests(os.urandom(12), self.poke)
        self._store = LimitStore(shared.store())
        self._owners: dict[ref[Owner], bool] = {}  # whether it is inline
        self._patience = Patience()  # of the thread
        self._serving = threading.Lock()  # of the thread that serves
        self._working = threading.Lock()  # one exchange at a time
        self._changed = Event()  # wakes the thread
        self._drop_at = 0.0

    # ------------------------------------------------------------------------------------------------ from owners
    def join(self, owner: Owner) -> None:
        """The owner uses these limits."""
        self._owners[ref(owner, self._lose)] = owner.inline
        self._patience.over_at = math.inf
        self._patience.changed.clear()
        _used.add(self)

    def leave(self, owner: Owner) -> None:
        """It does not any longer. What this process holds and nobody uses is returned after the last one."""
        self._lose(ref(owner))

    def _lose(self, owner: ref[Owner]) -> None:
        """It has left, or is freed. Also in a finalizer."""
        inline = self._owners.pop(owner, None)
        if inline is not None and not self._owners:
            self._patience.over_at = time.monotonic() + GRACE
            self._patience.changed.set()
            post(self.requests.forget_calls)
            if not inline:
                post(self._return_all)

    def _return_all(self, wakes: list[Any]) -> None:
        """As a step: everything is due."""
        for account in list(self.requests.open):
            account.report_by(-math.inf)
        self._changed.set()

    def poke(self) -> bool:
        """Have the thread look what is due. Does not wait. False: only owners that have no thread use the limits."""
        if self._owners and all(self._owners.copy().values()):
            return False
        self._changed.set()
        if not self._serving.locked():
            start_daemon(self._start)
        return True

    # ------------------------------------------------------------------------------------------------ without a thread
    def due_at(self) -> float:
        """When `work` has something to do. Infinite: it has not, or there is a thread."""
        return math.inf if self._serving.locked() else self.requests.due()

    def work(self, patience: Any, early: bool = False) -> None:
        """Exchange what is due, in this thread, unless there is one for that. early: what is not due yet too, and all
        that no running call holds is returned. patience: once it is set, nothing waits for a database that is away."""
        if self._serving.locked():
            return
        try:
            self._exchange(early, early, patience)
        except Exception as error:
            if not (isinstance(error, SharedUnavailable) and patience.is_set()):
                self._break(error)
            else:  # no call starts any more
                post(self.requests.forget_calls)
        finally:
            self._changed.set()  # a thread that began meanwhile may wait for an answer that came here

    def report(self, account: Any) -> None:
        """Tell the database of that account, and hear what it says."""
        run(partial(_open, account))
        try:
            self._exchange(True, not self._owners, self._patience)
        finally:
            self._changed.set()  # as in `work`

    # ------------------------------------------------------------------------------------------------ the thread
    def _start(self) -> None:
        threading.Thread(target=self._run, name="manytail-limits", daemon=True).start()

    def _run(self) -> None:
        while self._serving.acquire(blocking=False):
            error: BaseException | None = None
            try:
                self._serve()
            except BaseException as raised:
                error = raised
            finally:
                self._serving.release()
            if error is not None:
                self._break(error)
            is_over = self._is_over() if error is None else not self.requests.calls
            del error
            if is_over:
                return

    def _serve(self) -> None:
        while True:
            self._changed.clear()
            due, now = run(self.requests.begin_wait), time.monotonic()
            if due <= now:
                self._exchange(False, not self._owners, self._patience)
            elif self._is_over():
                return
            else:
                self._changed.wait(seconds_until(due, now))

    def _is_over(self) -> bool:
        return not (self._owners or self.requests.calls or self.requests.open)

    def _exchange(self, early: bool, returns: bool, patience: Any) -> None:
        """early: report also what is not due yet. returns: keep only what running calls hold."""
        with Held(self._working):
            now = time.monotonic()
            needs: dict[Any, float] = {}
            calls: list[Any] = []
            try:  # without a thread of its own, a signal handler may raise anywhere
                run(partial(self.requests.gather, needs, calls, early, now))
                if needs:
                    self._exchange_once(needs, calls, returns, patience, now)
            except BaseException:
                run(partial(self.requests.put_back, needs, calls, now))
                raise

    def _exchange_once(
        self, needs: dict[Any, float], calls: list[Any], returns: bool, patience: Any, now: float
    ) -> None:
        """What was told and answered is taken out of `needs` and `calls`."""
        requests = self.requests
        keyed = any(account.of_key for account in needs)
        asks = [run(partial(account.report, need, returns, now)) for account, need in needs.items()]
        terms = {account.group: account.limit.terms for account in needs}
        sent = time.monotonic()
        answers, at = self._store.exchange(requests.ahead, terms, asks, places_of(needs, calls), patience)
        arrived = time.monotonic()
        requests.took(arrived - sent)
        calls.clear()
        # Our clock less the database's: at most a round trip too large, so that nothing starts too early.
        offset = arrived - at
        for (account, need), answer in zip(list(needs.items()), answers, strict=True):
            del needs[account]
            run(partial(account.answered, answer, need, offset, arrived))
        if keyed and now >= self._drop_at:
            self._drop_at = now + DROP_AFTER
            self._store.drop_idle(DROP_AFTER, patience)

    def _break(self, error: BaseException) -> None:
        """All that use these limits fail."""
        post(self.requests.forget_calls)
        owners = [owner for each in list(self._owners.copy()) if (owner := each()) is not None]
        for owner in owners:
            owner.fail(error)
        if not owners and any(account.is_unreported() for account in list(self.requests.open)):
            with suppress(Exception):  # of a handler of the user
                text = "shared: what calls took of limits is not reported, and may stay reserved: %s"
                _log.error(text, error, stacklevel=2)


def _open(account: Any, wakes: list[Any]) -> None:
    account.requests.open[account] = None


_exchanges: WeakValueDictionary[Any, Exchange] = WeakValueDictionary()
_used: WeakSet[Exchange] = WeakSet()  # by this process
_making = threading.Lock()


def exchange_of(shared: Any) -> Exchange:
    """That of this process."""
    key = os.getpid(), shared.where_key(), shared.name
    with Held(_making):
        found = _exchanges.get(key)
        if found is None:
            found = _exchanges[key] = Exchange(shared)
        return found


def begin_all() -> None:
    """In a forked child: the exchanges are the parent's."""
    global _making
    _making = threading.Lock()
    _exchanges.clear()
    _used.clear()


@atexit.register
def _report_all() -> None:
    """Report what calls of maps that were not closed have spent, for instance after Ctrl-C."""
    patience = Patience(time.monotonic() + EXIT_TIMEOUT)
    for exchange in list(_used):
        with Held(exchange._working, EXIT_TIMEOUT) as held:
            is_free = held
        if is_free and exchange.requests.open:
            with suppress(Exception):
                exchange._exchange(True, True, patience)
