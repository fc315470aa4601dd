"""The loops that are timed: one code for all contestants, unrolled so that the calls dominate.

CPython specialises bytecode in place, per code object. A loop that has run on one kind of callable is slower for the
next one, so every contestant gets its own copy (`fresh`).

A loop that runs on one thread and never waits is measured in CPU time of that thread: equal to elapsed time on a quiet
machine, and right when another process takes the core. A loop that waits is measured in elapsed time (threaded.py).
"""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import repeat
from types import FunctionType
from typing import Any, TypeVar

Call = Callable[..., Any]
Loop = TypeVar("Loop", bound=Callable[..., Any])


def fresh(function: Loop) -> Loop:
    """The same function with a code object that is not specialised yet."""
    code = function.__code__.replace()
    globals_, name, defaults = function.__globals__, function.__name__, function.__defaults__
    return FunctionType(code, globals_, name, defaults)  # type: ignore[return-value]


def pairs(put: Call, get: Call, n: int) -> float:
    """ns for one put and one get, one item in the queue at a time."""
    turns = max(1, n // 10)
    began = time.thread_time_ns()
    for _ in repeat(None, turns):
        put(None); get(); put(None); get(); put(None); get(); put(None); get(); put(None); get()      # noqa: E702
        put(None); get(); put(None); get(); put(None); get(); put(None); get(); put(None); get()      # noqa: E702
    return (time.thread_time_ns() - began) / (turns * 10)


def nothing(get: Call, empty: type[Exception], n: int) -> float:
    """ns for a get that finds nothing."""
    began = time.thread_time_ns()
    for _ in repeat(None, n):
        try:  # noqa: SIM105 (contextlib.suppress costs more than the get)
            get()
        except empty:
            pass
    return (time.thread_time_ns() - began) / n


def pairs_looked_up(queue: Any, n: int) -> float:
    """As `pairs`, with put and get looked up at each call."""
    turns = max(1, n // 10)
    began = time.thread_time_ns()
    for _ in repeat(None, turns):
        queue.put(None); queue.get(); queue.put(None); queue.get(); queue.put(None); queue.get()      # noqa: E702
        queue.put(None); queue.get(); queue.put(None); queue.get(); queue.put(None); queue.get()      # noqa: E702
        queue.put(None); queue.get(); queue.put(None); queue.get()                                    # noqa: E702
        queue.put(None); queue.get(); queue.put(None); queue.get()                                    # noqa: E702
    return (time.thread_time_ns() - began) / (turns * 10)


def pairs_on_five(puts: Sequence[Call], get: Call, n: int) -> float:
    """The same, on five sub-queues one after the other."""
    a, b, c, d, e = puts
    turns = max(1, n // 10)
    began = time.thread_time_ns()
    for _ in repeat(None, turns):
        a(None); get(); b(None); get(); c(None); get(); d(None); get(); e(None); get()                # noqa: E702
        a(None); get(); b(None); get(); c(None); get(); d(None); get(); e(None); get()                # noqa: E702
    return (time.thread_time_ns() - began) / (turns * 10)


def five_ready(puts: Sequence[Call], get: Call, n: int) -> float:
    """The same, with all five filled before the first get."""
    a, b, c, d, e = puts
    turns = max(1, n // 10)
    began = time.thread_time_ns()
    for _ in repeat(None, turns):
        a(None); b(None); c(None); d(None); e(None); get(); get(); get(); get(); get()                # noqa: E702
        a(None); b(None); c(None); d(None); e(None); get(); get(); get(); get(); get()                # noqa: E702
    return (time.thread_time_ns() - began) / (turns * 10)


def along(puts: Sequence[Call], gets: Sequence[Call], n: int) -> float:
    """ns for one put and one get, each pair on the next sub-queue of the list, over and over."""
    turns = max(1, n // len(puts))
    began = time.thread_time_ns()
    for _ in repeat(None, turns):
        for put, get in zip(puts, gets):                      # noqa: B905
            put(None)
            get()
    return (time.thread_time_ns() - began) / (turns * len(puts))


def fill_then_drain(puts: Sequence[Call], gets: Sequence[Call], n: int) -> float:
    """The same, with an item in every sub-queue before the first get."""
    turns = max(1, n // len(puts))
    began = time.thread_time_ns()
    for _ in repeat(None, turns):
        for put in puts:
            put(None)
        for get in gets:
            get()
    return (time.thread_time_ns() - began) / (turns * len(puts))


def bulks(put_many: Call, get_many: Call, items: Sequence[Any], n: int) -> float:
    """ns per item, moved len(items) at a time."""
    size = len(items)
    turns = max(1, n // size)
    began = time.thread_time_ns()
    for _ in repeat(None, turns):
        put_many(items)
        get_many(size)
    return (time.thread_time_ns() - began) / (turns * size)


def pairs_shared(put: Call, get: Call, n: int) -> float:
    """As `pairs`, with an object that is counted."""
    item = object()
    turns = max(1, n // 10)
    began = time.thread_time_ns()
    for _ in repeat(None, turns):
        put(item); get(); put(item); get(); put(item); get(); put(item); get(); put(item); get()      # noqa: E702
        put(item); get(); put(item); get(); put(item); get(); put(item); get(); put(item); get()      # noqa: E702
    return (time.thread_time_ns() - began) / (turns * 10)
