"""Histories: what each thread called, when, and what the call returned or raised.

One C loop (`extend` over `map`) reads the clock immediately before and after the call. No bytecode runs in between, so
with a GIL no other thread runs in between unless the call itself waits. The intervals are as tight as Python allows.
Wider intervals would never accuse a correct queue; tighter ones catch more wrong queues.
"""
import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, NamedTuple

from support.threads import DEADLINE, Threads


class Raised(NamedTuple):
    """The result of a call that raised."""

    error: str
    count: int | None = None  # of a put_many: how many items went in; of a Lagged: how many were missed


EMPTY, SHUT, CLOSED, FULL = Raised("Empty"), Raised("ShutDown"), Raised("ClosedError"), Raised("Full")


@dataclass(frozen=True, slots=True)
class Call:
    thread: int
    start: int
    end: int
    name: str
    args: tuple[Any, ...]
    result: Any

    def __str__(self) -> str:
        return f"thread {self.thread} [{self.start}, {self.end}] {self.name}{self.args} -> {self.result}"


@dataclass(frozen=True, slots=True)
class Planned:
    """A call to be made: what the specification sees of it, and the function that makes it."""

    name: str
    args: tuple[Any, ...]
    function: Callable[[], Any]
    expected: tuple[type[Exception], ...] = ()  # what it may raise; any other exception fails the test


def timed(function: Callable[[], Any], expected: tuple[type[Exception], ...] = ()) -> tuple[int, int, Any]:
    """Call it: (start, end, result)."""
    taken: list[Any] = []
    try:
        taken.extend(map(operator.call, (perf_counter_ns, function, perf_counter_ns)))
    except expected as error:
        return (
            taken[0],
            perf_counter_ns(),
            Raised(type(error).__name__, getattr(error, "count", getattr(error, "missed", None))),
        )
    return taken[0], taken[2], taken[1]


def record(threads: Sequence[Sequence[Planned]]) -> list[Call]:
    """Run each list of calls in its own thread, from a common start."""
    barrier = threading.Barrier(len(threads))

    def run(thread: int, planned: Sequence[Planned]) -> list[Call]:
        barrier.wait(DEADLINE)
        timings = [timed(call.function, call.expected) for call in planned]
        return [Call(thread, start, end, call.name, call.args, result)
                for call, (start, end, result) in zip(planned, timings, strict=True)]

    with Threads() as group:
        tasks = [group.start(run, number, planned) for number, planned in enumerate(threads)]
    return [call for task in tasks for call in task.result()]
