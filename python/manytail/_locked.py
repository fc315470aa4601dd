# cython: infer_types=True
"""Locked mode: what a Queue does whose class overrides `_init`, `_qsize`, `_put` or `_get`. Its methods call these
functions with themselves as `q`.

Algorithm: that of the standard library's queue. The hooks store the items, and run under `q.mutex`. Threads wait for
the conditions `not_empty`, `not_full` and `all_tasks_done`.

Invariants
- A call that raises has changed no count, and wakes another thread in its place: it may not use what it was woken for,
  and a hook may raise after its work is done.
- `q.maxsize` and `q.is_shutdown` may change without the mutex. Whoever changes them wakes all waiting threads then.

This file is compiled: in interpreted code a signal handler could raise after `_get` has removed an item and before it
is returned, and the item would be lost.
"""

from __future__ import annotations

from typing import Any

from manytail._sync import Condition, Mutex
from manytail.errors import Empty, ShutDown


class OfTheMutex:
    """An attribute that only queues in locked mode have."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, q: Any, owner: type) -> Any:
        if q is None:
            return self
        try:
            return q.__dict__[self._name]
        except KeyError:
            raise no_attribute(self._name, q) from None

    def __set__(self, q: Any, value: object) -> None:
        if "mutex" not in q.__dict__:
            raise no_attribute(self._name, q)
        q.__dict__[self._name] = value


def no_attribute(name: str, q: Any) -> AttributeError:
    if "mutex" in q.__dict__:
        return AttributeError(f"{type(q).__name__!r} object has no attribute {name!r}: its _init has not set it")
    return AttributeError(
        f"{name}: a Queue of manytail has none unless its class overrides _init, _qsize, _put or _get (expected: "
        "queue.Queue of the standard library)"
    )


def begin(q: Any) -> None:
    """At its construction. Not by assignment: a class may have a __setattr__ of its own."""
    mutex = Mutex()
    conditions = {name: Condition(mutex) for name in ("not_empty", "not_full", "all_tasks_done")}
    q.__dict__.update(conditions, mutex=mutex)


def put(q: Any, item: object, timeout: float | None) -> bool:
    """False: there is no free slot in time."""
    own = q.__dict__
    with own["mutex"]:
        try:
            if (q.is_shutdown or _is_full(q)) and not _wait_for_room(q, timeout):
                return False
            q._put(item)
        except BaseException:
            _wake_both(q)
            raise
        q.unfinished_tasks += 1
        own["not_empty"].wake_one()
        return True


def get(q: Any, timeout: float | None) -> Any:
    own = q.__dict__
    with own["mutex"]:
        try:
            found = q._qsize() or _wait_for_item(q, timeout)
            item = q._get() if found else None
        except BaseException:
            _wake_both(q)
            raise
        if not found:
            raise Empty
        own["not_full"].wake_one()
        return item


def _wait_for_room(q: Any, timeout: float | None) -> bool:
    """False: there is none in time. With timeout 0 the mutex stays held."""
    has_room = timeout != 0 and q.not_full.wait_for(lambda: q.is_shutdown or not _is_full(q), timeout)
    if q.is_shutdown:
        raise ShutDown("the queue was shut down and takes no more items")
    return bool(has_room)


def _wait_for_item(q: Any, timeout: float | None) -> bool:
    has_item = timeout != 0 and q.not_empty.wait_for(lambda: q._qsize() or q.is_shutdown, timeout)
    if q.is_shutdown and not q._qsize():
        raise ShutDown("the queue was shut down and nothing is left to get")
    return bool(has_item)


def _wake_both(q: Any) -> None:
    q.not_full.wake_one()
    q.not_empty.wake_one()


def _is_full(q: Any) -> bool:
    """With the mutex held. `maxsize` is read once: `_qsize` may assign it."""
    return bool(0 < q.maxsize <= q._qsize())


def size(q: Any) -> Any:
    with q.mutex:
        return q._qsize()


def full(q: Any) -> bool:
    with q.mutex:
        return _is_full(q)


def wake_putters(q: Any) -> None:
    """After maxsize was assigned, with the mutex or without it."""
    q.not_full.wake_all()


def task_done(q: Any) -> bool:
    """False: there is no task that is not done."""
    with q.mutex:
        if q.unfinished_tasks <= 0:
            return False
        q.unfinished_tasks -= 1
        if q.unfinished_tasks == 0:
            q.all_tasks_done.wake_all()
        return True


def join(q: Any, timeout: float | None) -> bool:
    with q.mutex:
        return bool(q.all_tasks_done.wait_for(lambda: q.unfinished_tasks <= 0, timeout))


def shutdown(q: Any, immediate: bool) -> None:
    """`is_shutdown` is true."""
    gone = []  # keeps the items until the mutex is released
    with q.mutex:
        try:
            while immediate and q._qsize():
                gone.append(q._get())
                q.unfinished_tasks -= q.unfinished_tasks > 0
        finally:
            for condition in (q.all_tasks_done, q.not_empty, q.not_full):
                condition.wake_all()
