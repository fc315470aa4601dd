"""Every pair of a call that waits and a call that ends the wait, in a form that can be repeated in rounds.

A pair of kind `one` wakes exactly one waiter per round; a pair of kind `all` wakes all. A waiter calls a C callable, so
that its result is known even if a signal handler raises right after it (race.py).
"""
import functools
import threading
from collections.abc import Callable
from importlib.util import find_spec
from queue import SimpleQueue
from typing import Any

from support.threads import DEADLINE

from manytail import IndexMultiQueue, MultiQueue
from manytail.executor import KeyedExecutor

Wait = Callable[..., Any]
LINGER = 0.0002  # seconds; about as long as a restless waiter stays


class Pair:
    """The waiting side and the waking side of one queue; a new round begins where the last one ended."""

    wakes = "one"
    has_async = True  # waiting_async() is implemented
    has_timeout = True  # what waiting() returns takes `timeout`
    wake_waits = False  # wake() waits until somebody waits

    def __init__(self) -> None:
        self.queue: Any = MultiQueue()
        self.tail: Any = self.queue.add("a", maxsize=1)

    def begin(self) -> None:
        """Make the wait block again. No waiter has arrived yet, except those that an earlier round left waiting."""

    def waiting(self) -> Wait:
        """The call that waits; takes `timeout`. Valid for this round; for kind `one` also for later rounds."""
        raise NotImplementedError

    def waiting_async(self) -> Callable[[], Any]:
        """The same for a coroutine."""
        raise NotImplementedError

    def took(self, result: Any) -> None:
        """A waiter was woken with this result, and has not reported it yet."""

    def wake(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """All waiters that had to be woken have been woken."""

    def close(self) -> None:
        """After the last round: release everything."""


# ------------------------------------------------------------------------------------------------ who waits for an item
class Get(Pair):
    def waiting(self) -> Wait:
        return self.queue.get

    def waiting_async(self) -> Callable[[], Any]:
        return self.queue.aget

    def wake(self) -> None:
        self.tail.put(1)


class GetWithKey(Get):
    def waiting(self) -> Wait:
        return self.queue.get_with_key

    def waiting_async(self) -> Callable[[], Any]:
        return self.queue.aget_with_key


class GetManyPutMany(Get):
    def waiting(self) -> Wait:
        return functools.partial(self.queue.get_many, 5)

    def waiting_async(self) -> Callable[[], Any]:
        return functools.partial(self.queue.aget_many, 5)

    def wake(self) -> None:
        self.tail.put_many([1])


class GetManyLinger(GetManyPutMany):
    """The wait for more ends in the middle too: what was taken must then reach another waiter."""

    def waiting(self) -> Wait:
        return functools.partial(self.queue.get_many, 5, linger=LINGER)

    def waiting_async(self) -> Callable[[], Any]:
        return functools.partial(self.queue.aget_many, 5, linger=LINGER)


class GetPutFront(Get):
    def wake(self) -> None:
        self.tail.put_front(1)


class GetEnable(Get):
    """A put fills a disabled sub-queue; enabling that wakes."""

    def begin(self) -> None:
        self.tail.enabled = False
        self.tail.put(1)

    def wake(self) -> None:
        self.tail.enabled = True


class GetAddPut(Get):
    """A sub-queue that is added after the wait began."""

    def wake(self) -> None:
        self.queue.add("new").put(1)

    def end(self) -> None:
        self.queue.remove("new")


# -------------------------------------------------------------------------------------------- who waits for a free slot
class Put(Pair):
    """The sub-queue of one slot is full whenever a round begins."""

    def __init__(self) -> None:
        super().__init__()
        self.tail.put(1)

    def waiting(self) -> Wait:
        return functools.partial(self.tail.put, 1)

    def waiting_async(self) -> Callable[[], Any]:
        return functools.partial(self.tail.aput, 1)

    def wake(self) -> None:
        self.queue.get()


class PutSized(Put):
    """Two sizes wait: what one leaves is too little for another of its kind, so nobody may be passed over who fits."""

    def __init__(self) -> None:
        self.queue = MultiQueue()
        self.tail = self.queue.add("a", maxsize=3, sizer=int)
        self.tail.put(2)

    def waiting(self) -> Wait:
        return functools.partial(self.tail.put, 2)

    def waiting_async(self) -> Callable[[], Any]:
        return functools.partial(self.tail.aput, 2)


class PutFront(Put):
    has_async = False

    def waiting(self) -> Wait:
        return functools.partial(self.tail.put_front, 1)


class PutManyGetMany(Put):
    has_async = False

    def waiting(self) -> Wait:
        return functools.partial(self.tail.put_many, [1])

    def wake(self) -> None:
        self.queue.get_many(5)


class PutClear(Put):
    def wake(self) -> None:
        self.tail.clear()


class PutDiscard(Put):
    def wake(self) -> None:
        self.tail.discard(1)


class PutSizedDiscard(PutSized):
    def wake(self) -> None:
        self.tail.discard(2)


class PutMaxsize(Put):
    def wake(self) -> None:
        self.tail.maxsize = 2

    def end(self) -> None:
        self.tail.maxsize = 1
        self.queue.get()


# ------------------------------------------------------------------------------------------------- integers, stored raw
class IndexGet(Get):
    def __init__(self) -> None:
        self.queue = IndexMultiQueue()
        self.tail = self.queue.add("a", maxsize=1)


class IndexGetMany(IndexGet, GetManyPutMany):
    """Arrays of integers, which need numpy."""


class IndexGetManyLinger(IndexGet, GetManyLinger):
    """Arrays of integers, which are given back if the call does not return."""


class IndexPut(Put):
    def __init__(self) -> None:
        self.queue = IndexMultiQueue()
        self.tail = self.queue.add("a", maxsize=1)
        self.tail.put(1)


# ----------------------------------------------------------------------------------------------- what wakes all waiters
class PutRemove(Pair):
    wakes = "all"

    def begin(self) -> None:
        self.tail = self.queue.add("full", maxsize=1)
        self.tail.put(1)

    def waiting(self) -> Wait:
        return functools.partial(self.tail.put, 1)

    def waiting_async(self) -> Callable[[], Any]:
        return functools.partial(self.tail.aput, 1)

    def wake(self) -> None:
        self.queue.remove("full")


class Shutdown(Pair):
    wakes = "all"
    rounds = 0

    def begin(self) -> None:
        self.__init__()
        self.rounds += 1

    def wake(self) -> None:
        self.queue.shutdown(immediate=self.rounds % 2 == 0)


class GetShutdown(Shutdown):
    def waiting(self) -> Wait:
        return self.queue.get

    def waiting_async(self) -> Callable[[], Any]:
        return self.queue.aget


class PutShutdown(Shutdown):
    def begin(self) -> None:
        super().begin()
        self.tail.put(1)

    def waiting(self) -> Wait:
        return functools.partial(self.tail.put, 1)

    def waiting_async(self) -> Callable[[], Any]:
        return functools.partial(self.tail.aput, 1)


class Join(Pair):
    wakes = "all"

    def begin(self) -> None:
        self.tail.put(1)
        self.queue.get()

    def waiting(self) -> Wait:
        return self.queue.join

    def waiting_async(self) -> Callable[[], Any]:
        return self.queue.ajoin

    def wake(self) -> None:
        self.queue.task_done()


class JoinClear(Join):
    def begin(self) -> None:
        self.tail.put(1)

    def wake(self) -> None:
        self.tail.clear()


class JoinRemove(Join):
    def begin(self) -> None:
        self.queue.add("going").put(1)

    def wake(self) -> None:
        self.queue.remove("going")


# ---------------------------------------------------------------------------------- who waits for a free slot in a lane
class Submit(Pair):
    """A full lane. Each of its calls waits for a signal. At a signal one ends, the next begins and frees its slot."""

    has_async = False
    has_timeout = False

    def __init__(self) -> None:
        self.words: SimpleQueue[None] = SimpleQueue()
        self.executor = KeyedExecutor(1)
        self.lane = self.executor.lane("a", max_pending=1)
        self.fill()

    def fill(self) -> None:
        began = threading.Event()
        self.lane.submit(lambda: (began.set(), self.words.get()))
        assert began.wait(DEADLINE)
        self.lane.submit(self.words.get)

    def waiting(self) -> Wait:
        return functools.partial(self.lane.submit, self.words.get)

    def wake(self) -> None:
        self.words.put(None)

    def close(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)
        self.words.put(None)
        self.executor.shutdown()


class SubmitOfAnotherLane(Submit):
    """The executor is full, the lane is not: the slot usually becomes free in another lane."""

    def __init__(self) -> None:
        self.words: SimpleQueue[None] = SimpleQueue()
        self.executor = KeyedExecutor(1, max_pending=1)
        self.lane, self.other = self.executor.lane("a"), self.executor.lane("b")
        self.fill()

    def begin(self) -> None:
        self.lane, self.other = self.other, self.lane


class SubmitCancel(Submit):
    """Nothing runs. The pending call is cancelled, and the waiting submit takes its slot."""

    def fill(self) -> None:
        self.lane.pause()
        self.call = self.lane.submit(int)

    def waiting(self) -> Wait:
        return functools.partial(self.lane.submit, int)

    def took(self, result: Any) -> None:
        self.call = result

    def wake(self) -> None:
        assert self.call.cancel()

    def close(self) -> None:
        self.executor.shutdown()


class SubmitShutdown(SubmitCancel):
    """Shutdown of the lane, or of the executor."""

    wakes = "all"
    rounds = 0

    def begin(self) -> None:
        self.rounds += 1
        self.executor.shutdown()
        # Kept: a waiter must not free it, because a signal would interrupt that.
        self.old = [*getattr(self, "old", []), (self.executor, self.lane)]
        self.executor = KeyedExecutor(1)
        self.lane = self.executor.lane("a", max_pending=1)
        self.fill()

    def wake(self) -> None:
        (self.lane if self.rounds % 2 else self.executor).shutdown(wait=False)


PAIRS = {
    "get/put": Get,
    "get_with_key/put": GetWithKey,
    "get_many/put_many": GetManyPutMany,
    "lingering get_many/put_many": GetManyLinger,
    "get/put_front": GetPutFront,
    "get/enable": GetEnable,
    "get/add+put": GetAddPut,
    "put/get": Put,
    "put_front/get": PutFront,
    "put_many/get_many": PutManyGetMany,
    "put/clear": PutClear,
    "put/discard": PutDiscard,
    "sized put/get": PutSized,
    "sized put/discard": PutSizedDiscard,
    "put/maxsize": PutMaxsize,
    "index get/put": IndexGet,
    "index put/get": IndexPut,
    "put/remove": PutRemove,
    "get/shutdown": GetShutdown,
    "put/shutdown": PutShutdown,
    "join/task_done": Join,
    "join/clear": JoinClear,
    "join/remove": JoinRemove,
    "submit/call ends": Submit,
    "submit/cancel": SubmitCancel,
    "submit/place elsewhere": SubmitOfAnotherLane,
    "submit/shutdown": SubmitShutdown,
}
if find_spec("numpy"):
    PAIRS |= {
        "index get_many/put_many": IndexGetMany,
        "index lingering get_many/put_many": IndexGetManyLinger,
    }
