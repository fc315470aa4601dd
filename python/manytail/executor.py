"""KeyedExecutor: a concurrent.futures executor whose work queue is a MultiQueue.

What it has and ThreadPoolExecutor lacks: fairness between keys, order inside a key, priorities, limits with
back-pressure, pausing a key. The work pool (docs/design/workpool.md) queues the calls, selects the next one and waits.
This file starts and ends the threads. As the standard library's pool does, it starts a thread when a call is submitted
and no thread is idle. The threads run what was submitted. They end with the executor (after shutdown, or when nothing
refers to it) or with the interpreter.

Invariants
- References: executor -> lanes that were given options -> _Lifetime -> _Workers -> WorkPool -> lanes that have calls.
  Worker threads refer to _Workers. Nothing refers back to the executor, so an executor without references ends at
  once. A lane that is referred to, or that has calls, keeps the threads.
- A lane is in `_lanes` as long as something refers to it. The pool does while the lane has calls. The executor does
  (`_kept`) if the lane was given options or is paused, until the lane is shut down.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import sys
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
from manytail._lanes import LaneTable
from manytail._lifecycle import after_fork_in_child, begin, refuse_copy
from manytail._sync import Event, start_thread
from manytail._values import initialised_repr
from manytail._workpool import UNSET, WorkPool, disown

__all__ = ["KeyedExecutor", "Lane"]

_T = TypeVar("_T")
_P = ParamSpec("_P")
_Order = Literal["input", "completion"]

_LOGGER = logging.getLogger("concurrent.futures")  # where the standard library's executors report
_executor_number = itertools.count()

# Before CPython 3.14 Ctrl-C does not end a wait for a lock on Windows, nor one of a Future, which has such a lock.
_sleeps_through_ctrl_c = sys.platform == "win32" and sys.version_info < (3, 14)


class KeyedExecutor(Executor):
    """An executor with a lane for each key: lanes take turns, and the calls of a lane can run in order.

    max_workers: the number of threads, as in ThreadPoolExecutor (None: the number of processors + 4, but at most 32).
    per_key: the maximum number of concurrent calls of each lane without a max_running of its own. 1 runs the calls of
    each key in order; 0, the default, means no limit. max_pending: how many calls may wait in all lanes together; 0,
    the default, means no limit. If that many are waiting, `submit` blocks, except in a worker of this executor.
    thread_name_prefix, initializer, initargs: as in ThreadPoolExecutor; if the initializer raises, pending and later
    calls fail with BrokenThreadPool.

    In each round, every lane of the same priority starts `weight` calls, however many calls are waiting in the others.
    It returns futures of concurrent.futures; cancelling one frees its slot at once. After a fork, the executor is
    idle in the child; pending and running calls belong to the parent. It works with loop.run_in_executor, but
    loop.set_default_executor accepts only the standard library's ThreadPoolExecutor. Raises ValueError or TypeError for
    a bad argument. Blocking.

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
        if not hasattr(max_workers, "__index__"):
            raise TypeError(f"max_workers: {max_workers!r} (expected: an int > 0 or None)")
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

    @initialised_repr
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
        """Return the lane of a key; it is created on first use, with priority 0, weight 1 and no limits except per_key.
        The options that you pass are set on the lane (if one of them is invalid, none is) and stay until the lane is
        shut down. The executor's own `submit` uses lane(None).

        priority: lanes with lower numbers are served first. weight: calls per round. max_running: the maximum number of
        concurrent calls of the lane; 1 runs them in submission order, 0 means no limit. max_pending: how many calls may
        wait in the lane; 0: no limit. If the lane is full, `submit` blocks, except in a worker of this executor. A lane
        with options, or one that is paused, is kept; any other is dropped when it is idle and nothing refers to it.
        No lock is held while keys are compared. Raises ValueError if weight < 1, and TypeError if an option is not an
        int or the key is not hashable.
        """
        lane = self._lanes.get(key, self._make_lane)
        if any(option is not UNSET for option in (priority, weight, max_pending, max_running)):
            lane._give(priority=priority, weight=weight, max_pending=max_pending, max_running=max_running)
        return lane

    def _make_lane(self, key: Hashable) -> Lane:
        return Lane(self._workers.pool, self, key)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Schedule fn(*args, **kwargs) in the lane of the key None. Waits and raises like Lane.submit."""
        while True:
            lane = self._no_key
            if lane.closed:
                lane = self._no_key = self.lane(None)
            try:
                return lane.submit(fn, *args, **kwargs)
            except RuntimeError:
                if not lane.closed or self._workers.pool.ended:
                    raise
            # Another thread has shut the lane down, and the key may be used again.

    def map(
        self,
        fn: Callable[..., _T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        order: _Order = "input",
        buffersize: int | None = None,
    ) -> Iterator[_T]:
        """Return an iterator over fn(*items) for the items of the iterables, until the shortest one ends.

        buffersize: how many calls it submits ahead; None: 4 x max_workers. Each result that you take lets it submit one
        more call. order="completion": results come as calls finish. timeout: the seconds, from the call of map, within
        which all results must come; then TimeoutError is raised. If a call raises an exception, the iterator raises it.
        The iterator then cancels the calls that it submitted. It also does so if you close it, unless you close it
        before its first result. If an iterable raises an exception, it is raised after the results of the items before
        it. chunksize is ignored.
        """
        return _map(self, self._workers.max_workers, fn, iterables, timeout, order, buffersize)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls: submit raises RuntimeError, and so does a submit that is already waiting. Paused lanes
        are resumed. Pending calls still run; with cancel_futures=True they are cancelled. wait=True waits until all
        calls and threads have ended; in one of these threads it raises RuntimeError."""
        self._workers.end(cancel_futures)
        if wait:
            if self._workers.pool.serves():  # not `threads`: that does not have the thread of a first call yet
                raise RuntimeError("cannot join current thread")
            self._workers.join()

    # CPython's own tests of thread pools read these.
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
    """The calls of one key in a KeyedExecutor. It is an executor too. Create it with KeyedExecutor.lane().

    priority, weight and max_running may be assigned at any time. Like the executor, it is blocking.
    """

    __slots__ = ("_lifetime",)  # not in __dict__: without the GIL only the thread that made a __dict__ frees it

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
        """Lanes with lower numbers are served first. A new priority moves the lane to the end of its round robin."""
        return super().priority

    @priority.setter
    def priority(self, value: int) -> None:
        self._give(priority=value)

    @property
    def weight(self) -> int:
        """Calls per round. A new weight applies from the lane's next round on."""
        return super().weight

    @weight.setter
    def weight(self, value: int) -> None:
        self._give(weight=value)

    @property
    def max_running(self) -> int:
        """The maximum number of concurrent calls of this lane; 0 or less: no limit."""
        return super().max_running

    @max_running.setter
    def max_running(self, value: int) -> None:
        self._give(max_running=value)

    def _give(self, **options: int) -> None:
        """Set options. The executor then keeps the lane."""
        self._configure(**options)
        self._given = True
        self._keep()

    def _keep(self) -> None:
        """Make the executor refer to this lane, unless it has been shut down."""
        executor = self._executor()
        if executor is not None:
            executor._kept.add(self)
            if self.closed:
                executor._kept.discard(self)

    def pause(self) -> None:
        """Start no more calls until resume(). Running calls continue. Raises RuntimeError if the lane was shut down."""
        super().pause()
        self._keep()

    def resume(self) -> None:
        """Start calls again."""
        super().resume()
        executor = self._executor()
        if executor is not None and not self._given:
            executor._kept.discard(self)
            if self._given or self.state == "paused":  # another thread did that before the discard
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
        """Like KeyedExecutor.map, but in this lane."""
        return _map(self, self._max_workers, fn, iterables, timeout, order, buffersize)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down this lane only: submit raises RuntimeError, and executor.lane(key) creates a new lane. A paused
        lane is resumed. wait=True waits until its calls have run; in a call of this lane it raises RuntimeError."""
        self._end(resume=not cancel_futures)
        executor = self._executor()
        if executor is not None:
            executor._kept.discard(self)
        if cancel_futures:
            self._cancel()
            self._end()
        if wait:
            if self._called_from:
                raise RuntimeError("cannot wait for a lane in one of its own calls; shutdown(wait=False) does not wait")
            self._wait_idle()


def _processors() -> int:
    """The processors that this process may use, where Python knows."""
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
        self._names = map("{}_{}".format, itertools.repeat(prefix), itertools.count())
        self._initializer = initializer
        self._initargs = initargs
        number = id(self)
        _living[number] = weakref.ref(self, lambda _: _living.pop(number, None))
        if _exiting:
            self.end()

    def start(self) -> BaseException | None:
        """Start one more thread. Returns what a signal handler raised after the thread had started, or None.
        RuntimeError: the system has no more threads, or the interpreter ends."""
        if self.broken:
            raise self.refusal()
        claim = [True]  # popped by the thread, which then works, or by this one: then the thread must not work
        thread = threading.Thread(target=self._work, args=(claim,), name=next(self._names))
        try:
            with self.lock:
                start_thread(thread.start)
                self.threads.add(thread)
        except BaseException as error:
            if _popped(claim):
                raise
            self.threads.add(thread)  # it works, whatever has interrupted this one
            return error
        return None

    def _work(self, claim: list[bool]) -> None:
        if not _popped(claim):
            return
        try:
            if self._initializer is not None:
                self.pool.enter()
                self._initializer(*self._initargs)
        except BaseException:
            try:
                _LOGGER.critical("Exception in initializer:", exc_info=True)
            finally:  # a handler or a filter of the log may raise
                self._break("A thread initializer failed, the thread pool is not usable anymore")
            return
        try:
            self.pool.work()
        except BaseException:
            _LOGGER.critical("Exception in worker", exc_info=True)

    def _break(self, reason: str) -> None:
        """The initializer failed: no call runs any more, and pending ones get BrokenThreadPool."""
        self.broken = reason
        self.pool.end()
        for call in self.pool.drop():
            try:
                if call.set_running_or_notify_cancel():
                    call.set_exception(self.refusal())
            except BaseException:  # of a callback: the other calls end too
                _LOGGER.critical("Exception in a callback", exc_info=True)

    def refusal(self) -> RuntimeError:
        """What submit raises at the end."""
        if self.broken:
            return BrokenThreadPool(self.broken)
        return RuntimeError(f"cannot schedule new futures after {'interpreter ' if _exiting else ''}shutdown")

    def end(self, cancel_futures: bool = False) -> None:
        """Take no more calls, and let the threads end when none is left."""
        if cancel_futures:
            self.pool.end(resume=False)
            self.pool.cancel()
        try:
            self.pool.end()
        except RuntimeError:
            # Paused lanes have calls, no thread is there, and none can be started: run the calls in this one.
            self.pool.work()

    def join(self) -> None:
        """After end(): wait until all calls and threads have ended."""
        self.pool.wait_idle()  # a submit that came before the end may still be about to start the thread of its call
        with self.lock:
            threads = list(self.threads)
        for thread in threads:
            thread.join()

    def forget_threads(self) -> None:
        """In the child of a fork: the threads are the parent's, and the lock may be held."""
        self.threads = set()
        self.lock = threading.RLock()


def _popped(one: list[bool]) -> bool:
    """Pop the element, if no other thread has."""
    try:
        return one.pop()
    except IndexError:
        return False


class _Lifetime:
    """Ends the threads when it is freed: when the executor and all its lanes are, because only they refer to it."""

    def __init__(self, workers: _Workers) -> None:
        disown(self)  # any thread may free it: its maker may be waiting when a worker frees the last lane
        self._workers = workers

    def __del__(self) -> None:
        self._workers.end()


_living: dict[int, weakref.ref[_Workers]] = {}
_exiting = False


def _living_workers() -> list[_Workers]:
    living = [reference() for reference in list(_living.copy().values())]
    return [workers for workers in living if workers is not None]


def _end_with_interpreter() -> None:
    """Runs before threads are joined at exit: submitted calls run to their end, and idle threads end."""
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


# Not atexit: that runs after threads are joined, and idle threads of ours end only on request. The standard library's
# pool does the same.
threading._register_atexit(_end_with_interpreter)  # type: ignore[attr-defined]
after_fork_in_child(_after_fork_in_child)


# ------------------------------------------------------------------------------------------------------------------ map
class _Supply:
    """Submits the calls of a map, one per `next`. It refers to the executor only while items are left, so that a map
    whose items are all submitted keeps no executor alive."""

    def __init__(self, executor: Executor, fn: Callable[..., Any], iterables: tuple[Iterable[Any], ...]) -> None:
        self._executor: Executor | None = executor
        self._fn = fn
        self._items = zip(*iterables, strict=False)
        self.failure: Exception | None = None  # what ended the supply: an error of an iterable, or of submit
        self.refused = False  # whether `failure` is an error of submit

    def next(self) -> Future[Any] | None:
        """The Future of the next item. None: there is no item, or `failure` says why it was not submitted."""
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
        raise ValueError(f"order: {order!r} (expected: 'input' or 'completion')")
    if timeout is not None:
        _check_seconds(timeout)
    if buffersize is None:
        buffersize = 4 * max_workers
    elif not isinstance(buffersize, int):
        # Both messages begin as those of Executor.map in Python 3.14 and later: its tests look at them.
        raise TypeError(f"buffersize must be an integer or None, not {buffersize!r}")
    elif buffersize < 1:
        raise ValueError(f"buffersize must be None or > 0, not {buffersize!r}; None is 4 x max_workers")
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
        raise TypeError(f"timeout: {timeout!r} of type {kind} (expected: a number of seconds or None)") from None
    if not number:
        raise ValueError(f"timeout: {timeout!r} (expected: a number of seconds, or None to wait for ever)")


def _results(supply: _Supply, window: _InInputOrder | _AsCompleted, deadline: float | None) -> Iterator[Any]:
    try:
        while window:
            # In a list that is emptied by the yield: a suspended generator must not keep the result alive.
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
    """The submitted calls of a map whose results are taken in the order of submission."""

    def __init__(self) -> None:
        self._futures: deque[Future[Any]] = deque()

    def __len__(self) -> int:
        return len(self._futures)

    def add(self, future: Future[Any]) -> None:
        self._futures.append(future)

    def take(self, timeout: float | None) -> Any:
        future = self._futures[0]
        try:
            if _sleeps_through_ctrl_c and not future.done():
                over = Event()
                future.add_done_callback(lambda _: over.set())
                timeout = None if over.wait(timeout) else 0
            result = future.result(timeout if timeout is None else min(timeout, threading.TIMEOUT_MAX))
            self._futures.popleft()  # only after success: a call that is left here is cancelled with the others
            return result
        finally:
            del future

    def cancel(self) -> None:
        for future in self._futures:
            future.cancel()


class _AsCompleted:
    """The submitted calls of a map whose results are taken as calls end."""

    def __init__(self) -> None:
        self._futures: set[Future[Any]] = set()
        # Not the standard library's SimpleQueue: its get may sleep past its timeout (docs/design/entryqueue.md, Time).
        self._done: MultiQueue[None, Future[Any]] = MultiQueue()
        self._sub_queue = self._done.add(None)

    def __len__(self) -> int:
        return len(self._futures)

    def add(self, future: Future[Any]) -> None:
        self._futures.add(future)
        future.add_done_callback(self._sub_queue.put)

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
