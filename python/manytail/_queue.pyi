"""Types of the queues of manytail.queue; what each member does is said in its docstring."""

from types import GenericAlias
from typing import Any, Generic, NoReturn, TypeVar

from typing_extensions import disjoint_base

_T = TypeVar("_T")
_Q = TypeVar("_Q", bound=type[Any])

def complete(cls: _Q) -> _Q:
    """A decorator for the public subclass. Gives it put and get of its own, because the interpreter calls those faster
    than inherited ones.
    """

@disjoint_base
class Fifo(Generic[_T]):
    """The base of the queues: a kernel with one sub-queue. `q` and `s` are NULL if the class overrides hooks.

    Each class defines put and get itself: the interpreter calls a built-in method fastest on the type that defines
    it.
    """
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...
    def __reduce__(self) -> NoReturn: ...

class SimpleQueue(Fifo[_T]):
    """A simple first-in, first-out queue without a size limit, like queue.SimpleQueue.

    put never waits for a getter and is safe in finalizers, weak reference callbacks and signal handlers, whatever this
    thread is doing to the queue. Blocking: one short lock for puts and one for gets; no lock is held while Python code
    runs.
    """
    def __init__(self) -> None: ...
    def put(self, item: _T, block: bool = True, timeout: float | None = None) -> None:
        """Append an item. Never waits; block and timeout exist for compatibility with Queue, and are ignored."""
    def put_nowait(self, item: _T) -> None:
        """put(item)"""
    def get(self, block: bool = True, timeout: float | None = None) -> _T:
        """Remove and return the next item. Waits for one if the queue is empty.

        timeout: seconds for the whole call; None waits without limit. block=False does not wait and ignores timeout.
        Raises Empty if no item comes in time, and ValueError if timeout is negative or NaN.
        """
    def get_nowait(self) -> _T:
        """get(block=False)"""
    def qsize(self) -> int:
        """Return the number of items. Other threads may have changed it by the time this returns."""
    def empty(self) -> bool:
        """Return whether get would have to wait."""

@disjoint_base
class BaseQueue(Fifo[_T]):
    """A first-in, first-out queue with a capacity, task counting and shutdown, like queue.Queue in Python 3.13.

    maxsize: the capacity; a put to a full queue waits. <= 0: no limit. You may assign to it; a larger value wakes
    waiting putters.

    A subclass that overrides `_init`, `_qsize`, `_put` or `_get` is in locked mode: put and get run under its `mutex`,
    and it has the attributes `mutex`, `not_empty`, `not_full`, `all_tasks_done` and `queue` of the standard library's
    class. Other queues have none of these; where you need them, use queue.Queue.
    Blocking: one short lock for puts and one for gets, or the mutex in locked mode.
    """
    maxsize: int
    unfinished_tasks: int
    def __init__(self, maxsize: int = 0) -> None: ...
    @property
    def is_shutdown(self) -> bool:
        """True once shutdown() has been called."""
    def put(self, item: _T, block: bool = True, timeout: float | None = None) -> None:
        """Append an item. Waits for a free slot if the queue is full.

        timeout: seconds for the whole call; None waits without limit. block=False does not wait. Without maxsize, block
        and timeout are ignored. Raises Full if no slot becomes free in time, ShutDown if the queue is shut down (also
        during the wait), and ValueError if timeout is negative or NaN. If it raises, nothing was put.
        """
    def put_nowait(self, item: _T) -> None:
        """put(item, block=False)"""
    def get(self, block: bool = True, timeout: float | None = None) -> _T:
        """Remove and return the next item. Waits for one if the queue is empty.

        timeout: seconds for the whole call; None waits without limit. block=False does not wait and ignores timeout.
        Raises Empty if no item comes in time, ShutDown if the queue is shut down and empty, and ValueError if timeout
        is negative or NaN.
        """
    def get_nowait(self) -> _T:
        """get(block=False)"""
    def qsize(self) -> int:
        """Return the number of items. Other threads may have changed it by the time this returns."""
    def empty(self) -> bool:
        """Return whether get would have to wait."""
    def full(self) -> bool:
        """Whether put would have to wait."""
    def task_done(self) -> None:
        """Count one item as done. Raises ValueError if it is called more often than items were put."""
    def join(self, timeout: float | None = None) -> bool:
        """Wait until every item that was put is done. Returns True, or False after `timeout` seconds."""
    def shutdown(self, immediate: bool = False) -> None:
        """Accept no more puts: put raises ShutDown, get drains the queue and then raises it. immediate=True removes all
        items, which count as done. Wakes all waiting calls.
        """
