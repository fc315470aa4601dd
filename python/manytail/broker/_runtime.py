"""What runs a broker: its lock, its timers, and the lanes in which callbacks run on the threads of an executor.

A section is the code under the lock, `with runtime`. Every call of a channel is atomic: it changes the state in one
section. At the end of a section the effects that the state has left are carried out in order: deliveries enter their
lanes, timers are set. No user code runs in a section: callbacks run in lanes; executors are called, and bodies are
freed, after the lock is released.

Only a signal handler, or a finalizer that the garbage collector runs, can interrupt a section in its own thread. A call
from there must neither see a half-made change nor wait for itself. So a publish, ack, nack or reject takes effect when
the interrupted section has ended (`after`), and a call that has to answer raises ReentrancyError.
"""

from __future__ import annotations

import itertools
import threading
import time
from _thread import get_ident
from bisect import bisect_left, insort
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, NoReturn, Self

from manytail._lifecycle import refuse_copy, start_daemon
from manytail._sections import RunningItem, Sections
from manytail._sync import Condition, Event
from manytail._workpool import Dispatcher, serves_a_lane
from manytail.broker._state import Delivery, VirtualHost
from manytail.broker.exceptions import ReentrancyError

_Call = tuple[Callable[..., object], tuple[Any, ...], bool]  # with its arguments; trusted: it runs no user code
_INERT = (bytes, str, int, float, type(None))  # bodies that run no code when they are freed


def report(error: BaseException) -> None:
    """Report an exception that no caller gets."""
    thread = threading.current_thread()
    threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))


# ------------------------------------------------------------------------------------------------------------- the lock
class Runtime(Sections):
    """The lock of one broker, and what happens at the end of its sections."""

    __slots__ = ("_queue_timers", "host", "timers")

    def __init__(self) -> None:
        self._queue_timers: dict[Any, Timer] = {}
        host = self.host = VirtualHost(self._set_queue_timer)
        super().__init__(host.effects, host.dead_letters, host.dropped)
        self.timers = Timers(self)

    def _after_fork(self) -> None:
        super()._after_fork()
        self.timers.forget_thread()

    # `Sections` (_sections.pyx) calls these three.
    def _reentered(self) -> ReentrancyError:
        who = "a signal handler or a finalizer"
        return ReentrancyError(f"the call interrupted another call of its broker in the same thread ({who})")

    def _publish_dead_letters(self) -> None:
        self.host.publish_dead_letters(time.monotonic(), time.time())

    def _after_section(self, calls: list[_Call] | None, dropped: list[Any] | None) -> None:
        """Make the calls of `after`. Bodies are freed with `dropped`."""
        if get_ident() == self.timers.ident:
            _off_the_timer_thread(calls or [], dropped or [])
        elif calls is not None:
            _run_all(calls)

    def condition(self) -> Condition:
        """To wait is to end the section with its effects, and to begin another one."""
        return Condition(self)

    def _set_queue_timer(self, effect: Any) -> None:
        """Carry out the effect (queue,): set the one timer of the queue to `queue.due`."""
        (queue,) = effect
        timer = self._queue_timers.pop(queue, None)
        if timer is not None:
            timer.cancel()
        if queue.due is not None:
            try:
                self._queue_timers[queue] = self.timers.at(queue.due, partial(self._tick, queue))
            except BaseException:
                queue.due = None  # the next use of the queue tries again
                raise

    def _tick(self, queue: Any, now: float) -> None:
        del self._queue_timers[queue]
        queue.tick(now)


def _run_all(calls: list[_Call]) -> None:
    """Make every call, whatever the others raise. Raises the first exception at the end."""
    failure: BaseException | None = None
    for call, arguments, _ in calls:
        try:
            call(*arguments)
        except BaseException as error:
            failure = error if failure is None else failure  # which may be false
    if failure is not None:
        raise failure


def _off_the_timer_thread(after: list[_Call], dropped: list[Any]) -> None:
    """On the timer thread: make the calls and free the bodies. If they may run user code, in a new thread, because that
    must not delay timers. If no thread can start, here."""
    if all(map(_is_inert, dropped)) and all(trusted for _, _, trusted in after):
        _run_all(after)
        return
    try:
        arguments = (after, dropped)
        threading.Thread(target=_run_and_drop, args=arguments, name="manytail-broker-effects", daemon=True).start()
    except Exception:
        _run_and_drop(after, dropped)


def _is_inert(dropped: Any) -> bool:
    """Whether to free it runs no user code."""
    if type(dropped) is not Delivery or type(dropped.message.body) not in _INERT:
        return False
    properties = dropped.message.properties
    return properties is None or all(type(value) in _INERT for value in vars(properties).values())


def _run_and_drop(after: list[_Call], dropped: list[Any]) -> None:
    dropped.clear()
    _run_all(after)


# --------------------------------------------------------------------------------------------------------------- timers
class Timer:
    """A call at a certain time."""

    __slots__ = ("_timers", "action", "due", "number")

    def __init__(self, timers: TimerList, due: float, number: int, action: Callable[[float], object]) -> None:
        self._timers = timers
        self.due = due
        self.number = number
        self.action = action

    def __lt__(self, other: Timer) -> bool:
        return (self.due, self.number) < (other.due, other.number)

    def cancel(self) -> None:
        """Only in a section."""
        self._timers.drop(self)


class TimerList:
    """Timers, sorted, so that a cancelled one is found and removed at once. Only in sections."""

    def __init__(self) -> None:
        self._pending: list[Timer] = []
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def due(self) -> float | None:
        """The time of the first one."""
        return self._pending[0].due if self._pending else None

    def at(self, due: float, action: Callable[[float], object]) -> Timer:
        timer = Timer(self, due, next(self._numbers), action)
        insort(self._pending, timer)
        return timer

    def drop(self, timer: Timer) -> None:
        index = bisect_left(self._pending, timer)
        if index < len(self._pending) and self._pending[index] is timer:
            del self._pending[index]

    def call_due(self, now: float) -> None:
        """Make the calls that are due, in a thread that may run signal handlers (Mailbox)."""
        while self._pending and self._pending[0].due <= now:
            timer = self._pending[0]
            timer.action(now)  # before it is dropped: a handler may raise in between
            self.drop(timer)


class Timers(TimerList):
    """One thread that makes calls when they are due, each in a section: times to live, queues that expire, call_later.
    It starts with the first timer. It ends when the broker closes, or when there is still no timer after IDLE_GRACE
    seconds of waiting for one. While it sleeps until the time of a timer, it does not notice that this is cancelled.

    It is no threading.Thread, because start() of that waits: signal handlers would run in a section."""

    IDLE_GRACE = 5.0

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._changed = runtime.condition()
        self._ended: Event | None = None  # set at the end of the thread; None: there is none, or it is ending
        self._closed = False
        self.ident = 0  # of the thread; 0: there is none

    def at(self, due: float, action: Callable[[float], object]) -> Timer:
        """Only in a section. Calls action(now) on the timer thread, in a section, once time.monotonic() has reached
        `due`. After close: never."""
        if self._closed:
            return Timer(self, due, 0, action)
        if self._ended is None:
            ended = Event()
            start_daemon(self._run, ended)  # may raise: then there is neither a thread nor this timer
            self._ended = ended
        timer = super().at(due, action)
        if self._pending[0] is timer:
            self._changed.notify()
        return timer

    def close(self) -> None:
        """Drop all timers, and wait for the thread to end."""
        with self._runtime:
            self._closed = True
            self._pending.clear()
            self._changed.notify_all()
            ended = self._ended
        if ended is not None and self.ident != get_ident():
            ended.wait()

    def forget_thread(self) -> None:
        """This process is a forked child, which has no such thread. The next timer starts one."""
        self._ended = None
        self.ident = 0

    def _run(self, ended: Event) -> None:
        try:
            with self._runtime:
                self.ident = get_ident()
            self._serve()
            with self._runtime:
                if self.ident == get_ident():  # else a newer timer thread has set its own
                    self.ident = 0  # a later thread may get the same number
        finally:
            ended.set()

    def _serve(self) -> None:
        going_on = True
        while going_on:
            try:
                with self._runtime:
                    going_on = self._wait_and_call()
            except Exception as error:
                report(error)

    def _wait_and_call(self) -> bool:
        """Wait for the first timer and make its call. False: the thread ends."""
        if self._closed:
            return False
        idle = not self._pending
        wait = self.IDLE_GRACE if idle else min(self._pending[0].due - time.monotonic(), threading.TIMEOUT_MAX)
        if wait > 0:
            self._changed.wait(wait)
        if self._pending and self._pending[0].due <= (now := time.monotonic()):
            self._pending.pop(0).action(now)
        going_on = not self._closed and (bool(self._pending) or not idle)
        if not going_on:
            self._ended = None
        return going_on


# ---------------------------------------------------------------------------------------------------------------- lanes
# A lane with items has a task of the executor. Its dispatcher gets it by `Pool.submit`:
#
#   asked                              the executor           what follows
#   by a task that has served a        takes the task         -
#   block of items: no section         raises RuntimeError    the connection closes, and the dispatcher gets the error
#                                      raises another error   the dispatcher gets it: that task serves all ready lanes
#   in a section, where an item        is asked afterwards    until then a _PendingTask stands for the future
#   was added                          raises RuntimeError    the lane has no task; the connection closes
#                                      raises another error   the lane has no task; who ended the section gets the error
#   either                             cancels it later       the lane has no task; the connection closes
#
# The next item of a lane without a task asks for one. Why a RuntimeError closes the connection: else the task that gets
# it would serve on while any lane has items, and could keep the interpreter from ending.
class _PendingTask:
    """Stands for the future of a task that is submitted after the section. The dispatcher is told of an error of submit
    as of a cancelled task."""

    __slots__ = ("_callback",)

    def add_done_callback(self, callback: Callable[[_PendingTask], object]) -> None:
        self._callback = callback

    def cancelled(self) -> bool:
        return True

    def fail(self) -> None:
        self._callback(self)

    def on_done(self, future: Future[Any]) -> None:
        if future.cancelled():
            self.fail()


class Changes:
    """What threads wait for at one channel or connection."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._condition = runtime.condition()

    def notify(self) -> None:
        """Something has changed. In a section."""
        self._condition.notify_all()

    def wait_until(self, done: Callable[[], object], timeout: float | None = None) -> bool:
        """Wait until `done()`, at most `timeout` seconds. Returns whether it is."""
        with self._runtime:
            return bool(self._condition.wait_for(done, timeout))


class Pool:
    """The lanes of one connection, and the executor that runs them. `executor_failed` is called, once or more, when
    that takes no more tasks. `owned`: the executor is the connection's own."""

    in_caller = False  # no caller is there to get an exception of a callback

    def __init__(
        self, executor: Executor, owned: bool, runtime: Runtime, executor_failed: Callable[[BaseException], object]
    ) -> None:
        self.executor = executor
        self._owned = owned
        self._runtime = runtime
        self._executor_failed = executor_failed
        self._pool: Any = Dispatcher(self, on_error=lambda item, error: report(error))

    def lane(self, run: Callable[[Any], object], first: bool = False) -> Lane:  # first: as Mailbox.lane; not needed
        return PoolLane(self._pool, run)

    def changes(self) -> Changes:
        return Changes(self._runtime)

    def at(self, due: float, action: Callable[[float], object]) -> Timer:
        return self._runtime.timers.at(due, action)

    def run_ready(self) -> None:
        """Nothing: callbacks do not need the caller's thread."""

    def end(self) -> None:
        """The connection is closed. In a section."""
        if self._owned:
            self._runtime.after(partial(self.executor.shutdown, wait=False), trusted=True)

    def submit(self, task: Callable[[], object]) -> Future[Any] | _PendingTask | None:
        """This object is the dispatcher's executor. None: the task will not be cancelled."""
        if not self._runtime.interrupted():
            return self._submit(task)
        pending = _PendingTask()
        self._runtime.after(self._submit, task, pending, trusted=self._owned)
        return pending

    def _submit(self, task: Callable[[], object], pending: _PendingTask | None = None) -> Future[Any] | None:
        try:
            future = self.executor.submit(task)
        except BaseException as error:
            if pending is not None:
                pending.fail()
            if isinstance(error, RuntimeError):
                self._executor_failed(error)
            if pending is None or not isinstance(error, RuntimeError):
                raise
            return None
        # Our own executor cancels nothing. And if a signal handler raises inside a Future, its lock stays held.
        if self._owned or not hasattr(future, "add_done_callback"):
            return None
        future.add_done_callback(self._on_done)
        if pending is not None:
            future.add_done_callback(pending.on_done)
        return future

    def _on_done(self, future: Future[Any]) -> None:
        """Handle a task that the executor cancelled. Pools cancel under the lock that their submit() takes, and the end
        of this connection may submit a task of another one to the same pool. So `executor_failed` runs in a thread."""
        if future.cancelled():
            error = RuntimeError("the executor cancelled the task that was to run callbacks")
            threading.Thread(target=self._executor_failed, args=(error,), daemon=True).start()

    def inside(self) -> bool:
        """Whether the caller is a thread of the executor. Such a one must not wait for callbacks: it may be the only
        thread that could run them."""
        return bool(self._pool.inside) or threading.current_thread() in getattr(self.executor, "_threads", ())


class _Here(threading.local):
    in_a_callback = False  # of a connection that the thread serves; serves_a_lane() tells of those of pools


here = _Here()


def in_a_callback() -> bool:
    """Whether the caller is a callback, of any connection. It must not wait for another callback: two could wait for
    one another."""
    return serves_a_lane() or here.in_a_callback


class Closable:
    """What channels and connections share: they are open until `_closing_reason` is set."""

    wrong_state: type[Exception]
    _closing_reason: Exception | None

    def close(self) -> None:
        raise NotImplementedError

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it belongs to a broker of this process", "make another one there")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: object, value: object, traceback: object) -> None:
        if self.is_open:
            self.close()

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self._closing_reason is None

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, by the program or by the broker."""
        return self._closing_reason is not None

    def _check_open(self) -> None:
        if self._closing_reason is not None:
            raise self.wrong_state(f"{type(self).__name__} is closed.") from self._closing_reason


class Addressee:
    """The first element of an item of a lane: what the item is for. A consumer may stand there too. It is no
    Addressee, but has these attributes."""

    gone = False  # if true, items that have not begun are dropped
    auto_ack = False  # if true, items that have not begun are in its `buffer` too
    seen = 0  # the number of the last item that began


class Lane:
    """The callbacks of one channel: in order, one at a time. An item is an effect of the state, or any tuple that
    begins with an Addressee and a number. It does not begin once its addressee is gone: the call that ends a consumer
    either finds the item running, or the item does not begin.

    Unbounded: prefetch bounds it, and a callback that publishes to a queue that only its own channel drains must not
    wait for itself. Items are added inside sections, so their order is that of the deliveries."""

    __slots__ = ("_run", "_running", "add", "runs", "seen")
    add: Callable[[Any], object]

    def __init__(self, run: Callable[[Any], object]) -> None:
        self._run = run
        self._running = RunningItem()
        self.runs: Callable[[], bool] = self._running.runs
        self.seen: Callable[[Any], int] = self._running.seen  # both: see RunningItem

    def drop(self, addressee: Any, dropped: list[Any]) -> None:
        """Items of an addressee that is gone (None: all) may be let go of: to `dropped`. In a section."""

    def wait_idle(self) -> None:
        """Wait until nothing runs and nothing is queued that can run without the caller."""
        raise NotImplementedError

    def wait_for(self, addressee: Any) -> None:
        """Wait until no item of that addressee runs. None: until the item that runs has ended, whoever it is for. Not
        from inside the lane."""
        while True:
            watcher = Event()
            if not self._running.watch(addressee, watcher):
                return
            watcher.wait()
            if addressee is None:
                return


class PoolLane(Lane):
    """A lane whose items run on the executor of its connection."""

    __slots__ = ("_items",)

    def __init__(self, pool: Any, run: Callable[[Any], object]) -> None:
        super().__init__(run)
        self._items: Any = pool.lane(self._handle)
        self.add: Callable[[Any], object] = self._items.add

    def _handle(self, item: Any) -> None:
        try:
            if self._running.begin(item):
                self._run(item)
        finally:
            self._running.end()

    def wait_idle(self) -> None:
        self._items.wait()
