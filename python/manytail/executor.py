"""KeyedExecutor: a concurrent.futures executor whose work queue is a MultiQueue.

For what ThreadPoolExecutor lacks: fairness between keys, order inside a key, priorities, bounds with back-pressure,
pausing a key. Algorithm: the work pool (docs/design/workpool.md), which does the queueing, the turns and the waiting.
This file has the threads: when they start and end. As the standard library's pool, it starts a thread when a call is
submitted and no thread is idle, and its threads end with the executor (shutdown, or nobody refers to it), or with the
interpreter, after they have run what was submitted.

Invariants
- References: executor -> lanes that were given options -> _Lifetime -> _Workers -> WorkPool -> lanes that have calls.
  Worker threads refer to _Workers. Nothing refers back to the executor, so an executor that nobody refers to ends at
  once; a lane that somebody refers to, or that has calls, keeps the threads.
- A lane is in `_lanes` as long as anybody refers to it. The pool does while it has calls. The executor does (`_kept`)
  if it was given options or is paused, until it is shut down.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures.thread import BrokenThreadPool
from queue import Empty
from typing import Any, Literal, NoReturn, ParamSpec, TypeVar

from manytail import MultiQueue, _workpool
from manytail._lifecycle import begin, refuse_copy
from manytail._workpool import UNSET, LaneTable, WorkPool, disown

__all__ = ["KeyedExecutor", "Lane"]

_T = TypeVar("_T")
_P = ParamSpec("_P")
_Order = Literal["input", "completion"]

_LOGGER = logging.getLogger("concurrent.futures")  # where the standard library's executors report
_executor_number = itertools.count()


class KeyedExecutor(Executor):
    """Runs calls in up to max_workers threads, the lanes of its keys in turn.

    max_workers: as of ThreadPoolExecutor (None: the processors + 4, at most 32). per_key: how many calls of a lane may
    run at a time, for each lane that has no max_running of its own (1: the calls of every key in order; 0: no limit).
    max_pending: how many calls may wait in all lanes together; then `submit` waits for a place, except in a worker of
    this executor (0: no bound). thread_name_prefix, initializer, initargs: as of ThreadPoolExecutor; if the initializer
    raises, pending and later calls get BrokenThreadPool.

    Fair: of the lanes of one priority each has `weight` calls started per turn, whatever the backlog of the others.
    Futures are those of concurrent.futures; cancel() frees the place at once. After fork the child has an idle
    executor: what was pending or running is the parent's. Progress: blocking. ValueError, TypeError: an argument is out
    of range, or of another type.

    >>> with KeyedExecutor(4, per_key=1) as executor:               # the calls of a key run one at a time, in order
    ...     orders = executor.lane("customer 7")
    ...     [orders.submit(pow, 2, n).result() for n in range(4)]
    [1, 2, 4, 8]
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        per_key: int = 0,
        max_pending: int = 0,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        begin(self)
        if max_workers is None:
            max_workers = min(32, _processors() + 4)
        if max_workers <= 0:
            raise ValueError(f"max_workers must be greater than 0, not {max_workers!r}")
        if initializer is not None and not callable(initializer):
            raise TypeError(f"initializer={initializer!r}: initializer must be a callable")
        prefix = thread_name_prefix or f"KeyedExecutor-{next(_executor_number)}"
        self._workers = _Workers(max_workers, per_key, max_pending, prefix, initializer, initargs)
        self._lifetime = _Lifetime(self._workers)
        self._lanes = LaneTable()
        self._kept: set[Lane] = set()
        self._no_key = self.lane(None)

    def __reduce__(self) -> NoReturn:
        refuse_copy(
            self, "it owns threads of this process", "share it between threads, and make another one in another process"
        )

    def __repr__(self) -> str:
        pool = self._workers.pool
        state = "shut down" if pool.ended else f"{pool.pending} pending"
        return f"<{type(self).__name__} of {self._workers.max_workers} workers, {state}>"

    def lane(
        self,
        key: Hashable,
        *,
        priority: int = UNSET,
        weight: int = UNSET,
        max_pending: int = UNSET,
        max_running: int = UNSET,
    ) -> Lane:
        """The lane of that key, made on first use (priority 0, weight 1, no limits but per_key); options passed
        explicitly are set on the lane, all of them or none, and stay until it is shut down. lane(None) is the lane of
        no key, that of `submit`.

        priority: lower first. weight: calls per turn. max_running: how many of its calls may run at a time (0: no
        limit); with 1 they run one at a time, in submission order. max_pending: how many may wait (0: no bound); a full
        lane makes `submit` wait, except from a worker of this executor, which never waits. A lane that was given
        options, or is paused, is never forgotten; another one is when it is idle and nobody refers to it. `==` of keys
        runs with no lock held. ValueError: weight < 1. TypeError: an option is no int, or the key cannot be hashed."""
        lane = self._lanes.get(key, self._make_lane)
        if not (priority is weight is max_pending is max_running is UNSET):
            lane._give(priority=priority, weight=weight, max_pending=max_pending, max_running=max_running)
        return lane

    def _make_lane(self, key: Hashable) -> Lane:
        return Lane(self._workers.pool, self, key)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Schedule fn(*args, **kwargs) in the lane of no key. Waits and raises as Lane.submit does."""
        if self._no_key.closed:
            self._no_key = self.lane(None)
        return self._no_key.submit(fn, *args, **kwargs)

    def map(
        self,
        fn: Callable[..., _T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        order: _Order = "input",
        buffersize: int | None = None,
    ) -> Iterator[_T]:
        """An iterator over fn(*items) for the items of the iterables, as far as the shortest goes.

        Submits at once up to buffersize calls (None: 4 x max_workers); later items are pulled, one for each, as results
        are taken. order="completion": results come as calls end. timeout: seconds from the call of map, for all;
        TimeoutError after that. What a call raises is raised by the iterator, which then, as when it is closed, cancels
        what it had submitted. An exception of an iterable comes in its place: after the results of what was pulled
        before it. chunksize is ignored."""
        return _map(self, self._workers.max_workers, fn, iterables, timeout, order, buffersize)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls: submit raises RuntimeError, also where it waits. Paused lanes resume, and what is pending
        runs, unless cancel_futures cancels it. wait: until all calls and threads have ended. RuntimeError: wait in one
        of these threads."""
        self._workers.end(cancel_futures)
        if wait:
            self._workers.join()

    # What CPython's own tests of thread pools look at.
    @property
    def _max_workers(self) -> int:
        return self._workers.max_workers

    @property
    def _threads(self) -> set[threading.Thread]:
        return self._workers.threads

    @property
    def _broken(self) -> str | bool:
        return self._workers.broken


class Lane(_workpool.Lane, Executor):
    """The lane of a key of a KeyedExecutor: its calls, and itself an executor. KeyedExecutor.lane() makes them.

    priority, weight and max_running may be assigned at any time. Progress: blocking, as the executor's."""

    __slots__ = ("_lifetime",)  # not in the __dict__, an object of its own that only the thread that made it frees

    def __init__(self, pool: WorkPool, executor: KeyedExecutor, key: Hashable) -> None:
        self._key = key
        self._max_workers = executor._workers.max_workers
        self._lifetime = executor._lifetime
        self._executor = weakref.ref(executor)  # weak: the executor refers to the lanes that it keeps
        self._given = False  # whether it was given options

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key!r}, {self.pending} pending, {self.running} running, {self.state}>"

    @property
    def priority(self) -> int:
        """Lower goes first. A new one moves the lane to the end of that turn."""
        return super().priority

    @priority.setter
    def priority(self, value: int) -> None:
        self._give(priority=value)

    @property
    def weight(self) -> int:
        """Calls per turn. A new one counts from the lane's next turn."""
        return super().weight

    @weight.setter
    def weight(self, value: int) -> None:
        self._give(weight=value)

    @property
    def max_running(self) -> int:
        """Calls of this lane that may run at a time; 0 or less: no limit."""
        return super().max_running

    @max_running.setter
    def max_running(self, value: int) -> None:
        self._give(max_running=value)

    def _give(self, **options: int) -> None:
        self._configure(**options)
        self._given = True
        self._keep()

    def _keep(self) -> None:
        """The executor refers to it from now on. One that was shut down meanwhile is not kept."""
        executor = self._executor()
        if executor is not None:
            executor._kept.add(self)
            if self.closed:
                executor._kept.discard(self)

    def pause(self) -> None:
        """Calls wait until resume(); those that run go on. The lane is not forgotten before that. RuntimeError: it was
        shut down."""
        super().pause()
        self._keep()

    def resume(self) -> None:
        """Calls run again."""
        super().resume()
        executor = self._executor()
        if executor is not None and not self._given:
            executor._kept.discard(self)
            if self._given or self.state == "paused":  # by another thread, before the discard
                self._keep()

    def map(
        self,
        fn: Callable[..., _T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        order: _Order = "input",
        buffersize: int | None = None,
    ) -> Iterator[_T]:
        """As KeyedExecutor.map, in this lane."""
        return _map(self, self._max_workers, fn, iterables, timeout, order, buffersize)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End this lane only: submit to it raises RuntimeError, and the key may be used again, as another lane without
        options. If it is paused it resumes. wait: until its calls have run. RuntimeError: wait in a call of this
        lane."""
        self._end(resume=not cancel_futures)
        executor = self._executor()
        if executor is not None:
            executor._kept.discard(self)
        if cancel_futures:
            for call in self._drop():
                call._drop_out()
            self._end()
        if wait:
            if self._called_from:
                raise RuntimeError("cannot wait for a lane in one of its own calls; shutdown(wait=False) does not wait")
            self._wait_idle()


def _processors() -> int:
    """Those this process may use, where Python can tell."""
    count: Callable[[], int | None] = getattr(os, "process_cpu_count", os.cpu_count)
    return count() or 1


# -------------------------------------------------------------------------------------------------------------- threads
class _Workers:
    """The worker threads of an executor."""

    def __init__(
        self,
        max_workers: int,
        per_key: int,
        max_pending: int,
        prefix: str,
        initializer: Callable[..., object] | None,
        initargs: tuple[Any, ...],
    ) -> None:
        self.max_workers = max_workers
        self.pool = WorkPool(self.start, max_workers, max_pending, self.refusal, per_key)
        self.threads: set[threading.Thread] = set()
        # Re-entrant: a signal handler or a finalizer may submit while this thread starts one.
        self.lock = threading.RLock()
        self.broken: str | bool = False
        self._names = map(f"{prefix}_{{}}".format, itertools.count())
        self._initializer = initializer
        self._initargs = initargs
        number = id(self)
        _living[number] = weakref.ref(self, lambda _: _living.pop(number, None))
        if _exiting:
            self.end()

    def start(self) -> BaseException | None:
        """One more thread. RuntimeError: the system, or an interpreter that ends, has none. Returned is what a signal
        handler raised when there was one already."""
        if self.broken:
            raise self.refusal()
        interruption = None
        with self.lock:
            thread = threading.Thread(target=self._work, name=next(self._names))
            try:
                thread.start()
            except BaseException as error:
                if thread.ident is None:
                    raise
                interruption = error
            self.threads.add(thread)
        return interruption

    def _work(self) -> None:
        try:
            if self._initializer is not None:
                self._initializer(*self._initargs)
        except BaseException:
            _LOGGER.critical("Exception in initializer:", exc_info=True)
            self._break("A thread initializer failed, the thread pool is not usable anymore")
            return
        try:
            self.pool.work()
        except BaseException:
            _LOGGER.critical("Exception in worker", exc_info=True)

    def _break(self, reason: str) -> None:
        self.broken = reason
        self.pool.end()
        for call in self.pool.drop():
            if call.set_running_or_notify_cancel():
                call.set_exception(self.refusal())

    def refusal(self) -> RuntimeError:
        """What submit raises at the end."""
        if self.broken:
            return BrokenThreadPool(self.broken)
        return RuntimeError(f"cannot schedule new futures after {'interpreter ' if _exiting else ''}shutdown")

    def end(self, cancel_futures: bool = False) -> None:
        """Take no more calls, and let the threads end when none is left."""
        if cancel_futures:
            self.pool.end(resume=False)
            for call in self.pool.drop():
                call._drop_out()
        try:
            self.pool.end()
        except RuntimeError:
            # Paused lanes have calls, there is no thread, and none can be started any more: this one is as good.
            self.pool.work()

    def join(self) -> None:
        with self.lock:
            threads = list(self.threads)
        for thread in threads:
            thread.join()

    def forget_threads(self) -> None:
        """In the child of a fork."""
        self.threads = set()
        self.lock = threading.RLock()


class _Lifetime:
    """Lets the threads end when the executor and all its lanes are gone. They alone refer to it."""

    def __init__(self, workers: _Workers) -> None:
        disown(self)  # a worker that frees the last lane ends it, whatever the thread that made the executor waits for
        self._workers = workers

    def __del__(self) -> None:
        self._workers.end()


_living: dict[int, weakref.ref[_Workers]] = {}
_exiting = False


def _living_workers() -> list[_Workers]:
    return [workers for reference in _living.copy().values() if (workers := reference()) is not None]


def _end_with_interpreter() -> None:
    """Before threads are waited for at exit: what was submitted runs to its end, and idle threads end."""
    global _exiting
    _exiting = True
    every = _living_workers()
    for workers in every:
        workers.end()
    for workers in every:
        workers.join()


def _after_fork_in_child() -> None:
    for workers in _living_workers():
        workers.forget_threads()


# Not atexit: that runs after threads are waited for, and idle ones of ours end only when they are told to. The standard
# library's pool does the same.
threading._register_atexit(_end_with_interpreter)  # type: ignore[attr-defined]
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


# ------------------------------------------------------------------------------------------------------------------ map
class _Supply:
    """The calls of a map, one for each time that it is asked. Refers to the executor only while items are left, so that
    a map whose items are all submitted keeps no executor alive."""

    def __init__(self, executor: Executor, fn: Callable[..., Any], iterables: tuple[Iterable[Any], ...]) -> None:
        self._executor: Executor | None = executor
        self._fn = fn
        self._items = zip(*iterables, strict=False)
        self.failure: Exception | None = None  # what ended the supply: an error of the iterables, or of submit
        self.refused = False  # whether it is that of submit

    def next(self) -> Future[Any] | None:
        """The Future of the next item; None: there is none, or `failure` says why it could not be had."""
        if self._executor is None:
            return None
        try:
            for args in self._items:
                self.refused = True
                future = self._executor.submit(self._fn, *args)
                self.refused = False
                return future
        except Exception as error:
            self.failure = error
        self._executor = None
        return None


def _map(
    executor: Executor,
    max_workers: int,
    fn: Callable[..., _T],
    iterables: tuple[Iterable[Any], ...],
    timeout: float | None,
    order: _Order,
    buffersize: int | None,
) -> Iterator[_T]:
    if order not in ("input", "completion"):
        raise ValueError(f"order={order!r}: expected 'input' or 'completion'")
    if timeout is not None:
        _check_seconds(timeout)
    if buffersize is None:
        buffersize = 4 * max_workers
    elif not isinstance(buffersize, int):
        raise TypeError(f"buffersize={buffersize!r}: expected an int >= 1 or None, not {type(buffersize).__name__}")
    elif buffersize < 1:
        raise ValueError(f"buffersize={buffersize!r}: expected an int >= 1, or None for 4 x max_workers")
    deadline = None if timeout is None else time.monotonic() + timeout
    supply = _Supply(executor, fn, iterables)
    window = _InInputOrder() if order == "input" else _AsCompleted()
    try:
        while len(window) < buffersize and (future := supply.next()) is not None:
            window.add(future)
        if supply.refused and supply.failure is not None:
            raise supply.failure
    except BaseException:
        window.cancel()
        raise
    return _results(supply, window, deadline)


def _check_seconds(timeout: float) -> None:
    try:
        number = not math.isnan(timeout)
    except TypeError:
        kind = type(timeout).__name__
        raise TypeError(f"timeout={timeout!r}: expected a number of seconds or None, not {kind}") from None
    if not number:
        raise ValueError(f"timeout={timeout!r}: expected a number of seconds, or None to wait for ever")


def _results(supply: _Supply, window: _InInputOrder | _AsCompleted, deadline: float | None) -> Iterator[Any]:
    try:
        while window:
            # In a list, from which it is taken as it is yielded: a suspended generator must not keep the result alive.
            result = [window.take(None if deadline is None else deadline - time.monotonic())]
            future = supply.next()
            if future is not None:
                window.add(future)
            del future
            yield result.pop()
        if supply.failure is not None:
            raise supply.failure
    finally:
        window.cancel()


class _InInputOrder:
    """Calls of a map whose results are taken in the order of submission."""

    def __init__(self) -> None:
        self._futures: deque[Future[Any]] = deque()

    def __len__(self) -> int:
        return len(self._futures)

    def add(self, future: Future[Any]) -> None:
        self._futures.append(future)

    def take(self, timeout: float | None) -> Any:
        future = self._futures[0]
        try:
            result = future.result(timeout)
            self._futures.popleft()  # else it is cancelled with the others
            return result
        finally:
            del future

    def cancel(self) -> None:
        for future in self._futures:
            future.cancel()


class _AsCompleted:
    """Calls of a map whose results are taken as calls end."""

    def __init__(self) -> None:
        self._futures: set[Future[Any]] = set()
        # The standard library's SimpleQueue.get may sleep past its timeout: docs/design/entryqueue.md, Time.
        self._done: MultiQueue[None, Future[Any]] = MultiQueue()
        self._tail = self._done.add(None)

    def __len__(self) -> int:
        return len(self._futures)

    def add(self, future: Future[Any]) -> None:
        self._futures.add(future)
        future.add_done_callback(self._tail.put)

    def take(self, timeout: float | None) -> Any:
        try:
            future = self._done.get(timeout=None if timeout is None else max(0.0, timeout))
        except Empty:
            raise TimeoutError(f"{len(self._futures)} calls did not end in time") from None
        try:
            self._futures.discard(future)
            return future.result()
        finally:
            del future

    def cancel(self) -> None:
        for future in self._futures:
            future.cancel()
