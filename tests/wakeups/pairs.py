"""Every pair of a call that waits and a call that ends the wait, in a form that can be repeated in rounds.

A pair of kind `one` wakes exactly one waiter per round; a pair of kind `all` wakes all. A waiter calls a C callable, so
that its result is known even if a signal handler raises right after it (race.py).
"""
import functools
import threading
from collections.abc import Callable
from importlib.util import find_spec
from queue import SimpleQueue
from typing import Any, ClassVar

from support.threads import DEADLINE

from manytail import IndexMultiQueue, MultiQueue
from manytail.executor import KeyedExecutor

Wait = Callable[..., Any]
LINGER = 0.0002  # seconds; about as long as a restless waiter stays


class Pair:
    """The waiting side and the waking side of one queue; a new round begins where the last one ended."""

    wakes = "one"
    has_async = True  # there is a coroutine of the same name after an `a`
    has_timeout = True  # what waiting() returns takes `timeout`
    wake_waits = False  # wake() waits until somebody waits
    waits = "get"  # the name of the call that waits
    arguments: tuple[Any, ...] = ()
    options: ClassVar[dict[str, Any]] = {}
    rounds = 0
    queue: Any
    tail: Any

    def __init__(self) -> None:
        self.open()

    def open(self) -> None:
        """Make the queue, so that the call waits."""
        raise NotImplementedError

    def side(self) -> Any:
        """Whose method the call is."""
        return self.queue

    def begin(self) -> None:
        """Make the wait block again. No waiter has arrived yet, except those that an earlier round left waiting."""

    def waiting(self) -> Wait:
        """The call that waits; takes `timeout`. Valid for this round; for kind `one` also for later rounds."""
        return functools.partial(getattr(self.side(), self.waits), *self.arguments, **self.options)

    def waiting_async(self) -> Callable[[], Any]:
        """The same for a coroutine."""
        return functools.partial(getattr(self.side(), "a" + self.waits), *self.arguments, **self.options)

    def took(self, result: Any) -> None:
        """A waiter was woken with this result, and has not reported it yet."""

    def fill(self) -> object:
        """Put one more."""
        raise NotImplementedError

    def take(self) -> None:
        """Take one out."""
        raise NotImplementedError

    def wake(self) -> object:
        """False: it had no effect, which is an error."""
        return self.fill()

    def end(self) -> None:
        """All waiters that had to be woken have been woken."""

    def close(self) -> None:
        """After the last round: release everything."""


class Anew(Pair):
    """What wakes all waiters ends the queue: each round has a new one."""

    wakes = "all"

    def begin(self) -> None:
        self.close()
        self.open()
        self.rounds += 1

    def wake(self) -> object:
        return self.queue.shutdown(immediate=self.rounds % 2 == 0)

    def end(self) -> None:
        """Nothing to do: begin gives up what was got."""


class Full(Pair):
    """The one slot is taken whenever a round begins: the call waits for it."""

    waits = "put"
    arguments: tuple[Any, ...] = (1,)

    def open(self) -> None:
        super().open()
        self.fill()

    def wake(self) -> object:
        return self.take()


class Join(Pair):
    wakes = "all"
    waits = "join"

    def begin(self) -> None:
        self.fill()
        self.take()

    def wake(self) -> None:
        self.queue.task_done()


class Larger(Full):
    """Another bound lets one in."""

    def wake(self) -> object:
        self.side().maxsize = 2
        return None

    def end(self) -> None:
        self.side().maxsize = 1
        self.take()


MANY = {"waits": "get_many", "arguments": (5,)}
LINGERING = MANY | {"options": {"linger": LINGER}}  # ends in the middle too: the exception has what was taken
PUT_MANY = {"waits": "put_many", "arguments": ([1],), "has_async": False}


def pairs(table: dict[str, tuple[type[Pair] | dict[str, Any], ...]]) -> dict[str, type[Pair]]:
    """By name: the kinds of pairs that it is, and members that replace theirs."""
    made = {}
    for name, of in table.items():
        kinds = tuple(kind for kind in of if isinstance(kind, type))
        made[name] = type(name, kinds, of[-1] if isinstance(of[-1], dict) else {})
    return made


# ------------------------------------------------------------------------------------------------ who waits for an item
class Get(Pair):
    new: ClassVar[Callable[[], Any]] = MultiQueue

    def open(self) -> None:
        self.queue = type(self).new()
        self.tail = self.queue.add("a", maxsize=1)

    def fill(self) -> object:
        return self.tail.put(1)

    def take(self) -> None:
        self.queue.get()


class GetEnable(Get):
    """A put fills a disabled sub-queue; enabling that wakes."""

    def begin(self) -> None:
        self.tail.enabled = False
        self.fill()

    def wake(self) -> None:
        self.tail.enabled = True


class GetAddPut(Get):
    """A sub-queue that is added after the wait began."""

    def wake(self) -> None:
        self.queue.add("new").put(1)

    def end(self) -> None:
        self.queue.remove("new")


# -------------------------------------------------------------------------------------------- who waits for a free slot
class Put(Full, Get):
    def side(self) -> Any:
        return self.tail


class PutSized(Put):
    """Two sizes wait: what one leaves is too little for another of its kind, so nobody may be passed over who fits."""

    arguments = (2,)

    def open(self) -> None:
        self.queue = MultiQueue()
        self.tail = self.queue.add("a", maxsize=3, sizer=int)
        self.tail.put(2)


class PutRemove(Put):
    wakes = "all"

    def begin(self) -> None:
        self.tail = self.queue.add("full", maxsize=1)
        self.fill()

    def wake(self) -> None:
        self.queue.remove("full")


# ---------------------------------------------------------------------------------- who waits for a free slot in a lane
class Submit(Pair):
    """A full lane. Each of its calls waits for a signal. At a signal one ends, the next begins and frees its slot."""

    has_async = False
    has_timeout = False
    waits = "submit"

    def open(self) -> None:
        self.words: SimpleQueue[None] = SimpleQueue()
        self.arguments = (self.words.get,)
        self.executor = KeyedExecutor(1)
        self.lane = self.executor.lane("a", max_pending=1)
        self.fill()

    def fill(self) -> None:
        began = threading.Event()
        self.lane.submit(lambda: (began.set(), self.words.get()))
        assert began.wait(DEADLINE)
        self.lane.submit(self.words.get)

    def side(self) -> Any:
        return self.lane

    def wake(self) -> None:
        self.words.put(None)

    def close(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)
        self.words.put(None)
        self.executor.shutdown()


class SubmitOfAnotherLane(Submit):
    """The executor is full, the lane is not: the slot usually becomes free in another lane."""

    def open(self) -> None:
        self.words = SimpleQueue()
        self.arguments = (self.words.get,)
        self.executor = KeyedExecutor(1, max_pending=1)
        self.lane, self.other = self.executor.lane("a"), self.executor.lane("b")
        self.fill()

    def begin(self) -> None:
        self.lane, self.other = self.other, self.lane


class SubmitCancel(Submit):
    """Nothing runs. The pending call is cancelled, and the waiting submit takes its slot."""

    def fill(self) -> None:
        self.arguments = (int,)
        self.lane.pause()
        self.call = self.lane.submit(int)

    def took(self, result: Any) -> None:
        self.call = result

    def wake(self) -> None:
        assert self.call.cancel()

    def close(self) -> None:
        self.executor.shutdown()


class SubmitShutdown(SubmitCancel):
    """Shutdown of the lane, or of the executor."""

    wakes = "all"

    def begin(self) -> None:
        self.rounds += 1
        self.executor.shutdown()
        # Kept: a waiter must not free it, because a signal would interrupt that.
        self.old = [*getattr(self, "old", []), (self.executor, self.lane)]
        self.open()

    def wake(self) -> None:
        (self.lane if self.rounds % 2 else self.executor).shutdown(wait=False)


PAIRS = pairs({
    "get/put": (Get,),
    "get_with_key/put": (Get, {"waits": "get_with_key"}),
    "get_many/put_many": (Get, {**MANY, "wake": lambda self: self.tail.put_many([1])}),
    "lingering get_many/put_many": (Get, {**LINGERING, "wake": lambda self: self.tail.put_many([1])}),
    "get/put_front": (Get, {"wake": lambda self: self.tail.put_front(1)}),
    "get/enable": (GetEnable,),
    "get/add+put": (GetAddPut,),
    "put/get": (Put,),
    "put_front/get": (Put, {"waits": "put_front", "has_async": False}),
    "put_many/get_many": (Put, {**PUT_MANY, "wake": lambda self: self.queue.get_many(5)}),
    "put/clear": (Put, {"wake": lambda self: self.tail.clear()}),
    "put/discard": (Put, {"wake": lambda self: self.tail.discard(1)}),
    "sized put/get": (PutSized,),
    "sized put/discard": (PutSized, {"wake": lambda self: self.tail.discard(2)}),
    "put/maxsize": (Larger, Put),
    "index get/put": (Get, {"new": IndexMultiQueue}),
    "index put/get": (Put, {"new": IndexMultiQueue}),
    "put/remove": (PutRemove,),
    "get/shutdown": (Anew, Get),
    "put/shutdown": (Anew, Put),
    "join/task_done": (Join, Get),
    "join/clear": (Join, Get, {"begin": Get.fill, "wake": lambda self: self.tail.clear()}),
    "join/remove": (Join, Get, {
        "begin": lambda self: self.queue.add("going").put(1), "wake": lambda self: self.queue.remove("going"),
    }),
    "submit/call ends": (Submit,),
    "submit/cancel": (SubmitCancel,),
    "submit/place elsewhere": (SubmitOfAnotherLane,),
    "submit/shutdown": (SubmitShutdown,),
})
if find_spec("numpy"):  # what these return
    PAIRS |= pairs({
        f"index {name}": (PAIRS[name], {"new": IndexMultiQueue})
        for name in ("get_many/put_many", "lingering get_many/put_many")
    })
