"""Rows of manytail.queue beside the standard library's queue: one put and one get on one thread; an empty queue."""
from __future__ import annotations

import queue as standard
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import loops
from harness import Factory, Measure, Row, Target
from single import SIMPLE, multiqueue, pair, simple_queue


def ours() -> Any:
    from manytail import queue

    return queue


def bound(module: Callable[[], Any], name: str, loop: Any = loops.pairs) -> Factory:
    """put and get looked up once."""

    def make() -> tuple[Any, Any]:
        made = getattr(module(), name)()
        return made.put, made.get

    return pair(make, loop)


def looked_up(module: Callable[[], Any], name: str) -> Factory:
    """put and get looked up at each call, as most programs do."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        made = getattr(module(), name)()
        loop = loops.fresh(loops.pairs_looked_up)
        yield lambda n: loop(made, n)

    return contestant


def overriding(module: Callable[[], Any]) -> Factory:
    """A subclass that overrides two hooks."""

    def make() -> tuple[Any, Any]:
        class Overriding(module().Queue):  # type: ignore[misc]
            def _put(self, item: object) -> None:
                self.queue.append(item)

            def _get(self) -> object:
                return self.queue.popleft()

        made = Overriding()
        return made.put, made.get

    return pair(make)


def stdlib() -> Any:
    return standard


def fast_row(name: str, kind: str, build: str, target: float) -> Row:
    return Row(
        name, f"{build}manytail.queue.{kind}: put+get", "ns/pair",
        {
            "ours": bound(ours, kind), SIMPLE: pair(simple_queue),
            "ours, looked up": looked_up(ours, kind), "SimpleQueue, looked up": looked_up(stdlib, SIMPLE),
        },
        n=300_000, rounds=25, targets=(Target("<=", target, SIMPLE),),
    )


def shared_row(name: str, kind: str, build: str, target: float) -> Row:
    return Row(
        name, f"{build}manytail.queue.{kind}: put+get, one shared object", "ns/pair",
        {"ours": bound(ours, kind, loops.pairs_shared), SIMPLE: pair(simple_queue, loops.pairs_shared)},
        n=300_000, rounds=25, targets=(Target("<=", target, SIMPLE),),
    )


def nothing(make: Callable[[], Any]) -> Factory:
    """ns for a get_nowait that finds nothing."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        get = make().get_nowait
        loop = loops.fresh(loops.nothing)
        yield lambda n: loop(get, standard.Empty, n)

    return contestant


def nothing_row(prefix: str, build: str) -> Row:
    return Row(
        f"{prefix}empty", f"{build}get_nowait on an empty queue", "ns",
        {
            "ours": nothing(lambda: multiqueue(1)[0]),
            "manytail.queue.Queue": nothing(lambda: ours().Queue()),
            SIMPLE: nothing(standard.SimpleQueue),
            "Queue": nothing(standard.Queue),
        },
        n=100_000, rounds=25, targets=(Target("<=", 1.05, SIMPLE),),
    )


def slow_row(name: str, what: str, make_ours: Factory, make_theirs: Factory, build: str = "") -> Row:
    return Row(
        name, f"{build}{what}: put+get", "ns/pair", {"ours": make_ours, "the standard library's": make_theirs},
        n=30_000, rounds=25, targets=(Target("<=", 1.0, "the standard library's"),),
    )


def rows(prefix: str, build: str, target: float) -> list[Row]:
    return [
        nothing_row(prefix, build),
        fast_row(f"{prefix}queue", "Queue", build, target),
        fast_row(f"{prefix}queue-simple", "SimpleQueue", build, target),
        shared_row(f"{prefix}queue-shared", "Queue", build, target),
        slow_row(
            f"{prefix}queue-overriding", "a subclass of Queue with its own _put and _get", overriding(ours),
            overriding(stdlib), build,
        ),
    ]


ROWS = rows("", "", 1.1)
FREE_THREADED_ROWS = rows("ft-", "free-threaded: ", 1.1)
