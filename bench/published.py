"""Rows of the published list: Qpid's lockless list (qpidlist.pyx) beside EntryQueue.

The list does a small part of what an EntryQueue does, and its memory is set aside before: it is there to say what the
order lock costs. docs/design/from-designs.md has the figures. `python bench/published.py` builds it alone.
"""
from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from pathlib import Path
from types import ModuleType
from typing import Any

import loops
from harness import ROOT, Factory, Measure, Row, Unavailable
from items import KINDS
from threaded import race

SOURCE = Path(__file__).with_name("qpidlist.pyx")
LIST = "published list"
BEHIND = 1_000  # acquired entries behind the one that is released
SUBSCRIPTIONS = 50


def module() -> ModuleType:
    """qpidlist, built for this interpreter into build/bench, if it is not there or its source is newer."""
    built = ROOT / "build" / "bench" / f"qpidlist{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not built.exists() or built.stat().st_mtime < SOURCE.stat().st_mtime:
        build(built)
    found = importlib.util.spec_from_file_location("qpidlist", built)
    assert found is not None
    assert found.loader is not None
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    return made


def build(built: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None or importlib.util.find_spec("Cython") is None:
        raise Unavailable("skipped: gcc or clang, and Cython, to build the published list")
    built.parent.mkdir(parents=True, exist_ok=True)
    made = built.with_suffix(".c")
    subprocess.run([sys.executable, "-m", "cython", "-3", str(SOURCE), "-o", str(made)], check=True)
    flags = ["-O3", "-g0", "-fno-strict-aliasing", "-w", "-shared", "-fPIC"]
    if sys.platform == "darwin":
        flags += ["-undefined", "dynamic_lookup"]
    include = f"-I{sysconfig.get_paths()['include']}"
    part = built.with_suffix(f".{time.time_ns()}")  # two runs may build it at the same time
    subprocess.run([compiler, *flags, include, str(made), "-o", str(part)], check=True)
    part.replace(built)


# ------------------------------------------------------------------------------------------------ the two contestants
def ours(puts: int, subscriptions: int) -> tuple[Any, list[Any], Callable[[], None]]:
    """A queue, its subscriptions, and what is called between two measurements."""
    from manytail import EntryQueue

    entries: Any = EntryQueue()
    return entries, [entries.subscribe() for _ in range(subscriptions)], lambda: None


def published(puts: int, subscriptions: int, **options: bool) -> tuple[Any, list[Any], Callable[[], None]]:
    entries = module().QpidList(puts, subscriptions, **options)
    return entries, [entries.subscribe() for _ in range(subscriptions)], entries.reset


Maker = Callable[[int, int], tuple[Any, list[Any], Callable[[], None]]]
CONTESTANTS: dict[str, Maker] = {"ours": ours, LIST: published, "with a lock": partial(published, locked=True)}


def measured(make: Maker, subscriptions: int, prepare: Callable[[Any, list[Any]], Callable[[int], float]],
             more: int = 0) -> Factory:
    """One queue for all rounds of a contestant, made in the first."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        made: list[tuple[Callable[[int], float], Callable[[], None]]] = []

        def measure(n: int) -> float:
            if not made:
                entries, subscribed, reset = make(2 * n + more, subscriptions)
                made.append((prepare(entries, subscribed), reset))
            run, reset = made[0]
            value = run(n)
            reset()
            return value

        yield measure

    return contestant


# ------------------------------------------------------------------------------------------------ what is measured
def acked(put: Callable[..., Any], gets: list[Callable[[], Any]], n: int) -> float:
    """ns for put, get and ack, each get on the next subscription."""
    turns = max(1, n // len(gets))
    began = time.thread_time_ns()
    for _ in repeat(None, turns):
        for get in gets:
            put(None)
            get().ack()
    return (time.thread_time_ns() - began) / (turns * len(gets))


def one_thread(entries: Any, subscribed: list[Any]) -> Callable[[int], float]:
    return partial(loops.fresh(acked), entries.put, [one.get for one in subscribed])


def ack_all(subscription: Any, n: int) -> None:
    get = subscription.get
    for _ in repeat(None, n):
        get().ack()


def crowd(kind: str) -> Callable[[Any, list[Any]], Callable[[int], float]]:
    """As many putters as subscriptions; ns per entry."""

    def prepare(entries: Any, subscribed: list[Any]) -> Callable[[int], float]:
        put_loop, get_loop = loops.fresh(KINDS[kind][1]), loops.fresh(ack_all)

        def run(n: int) -> float:
            share = max(1, n // len(subscribed))
            bodies = [partial(put_loop, entries, share) for _ in subscribed]
            bodies += [partial(get_loop, one, share) for one in subscribed]
            return max(race(bodies)) / (len(subscribed) * share) * 1e9

        return run

    return prepare


def releases(held: Any, put: Callable[..., Any], get: Callable[[], Any], n: int) -> tuple[float, Any]:
    """ns for a release, the get of that entry, and a put, get and ack of the one after it."""
    began = time.thread_time_ns()
    for _ in repeat(None, n):
        held.release()
        held = get()
        put(None)
        get().ack()
    return (time.thread_time_ns() - began) / n, held


def far_back(entries: Any, subscribed: list[Any]) -> Callable[[int], float]:
    """The first entry is released again and again; BEHIND that another subscription holds stand behind it."""
    us, other = subscribed
    loop = loops.fresh(releases)

    def run(n: int) -> float:
        entries.put("ours")
        held = us.get()
        for _ in repeat(None, BEHIND):
            entries.put(None)
        others = [other.get() for _ in repeat(None, BEHIND)]
        value, held = loop(held, entries.put, us.get, n)
        for delivery in [held, *others]:
            delivery.ack()
        return value

    return run


def rows(prefix: str, where: str) -> list[Row]:
    def row(name: str, what: str, subscriptions: int, prepare: Any, n: int, more: int = 0, **options: Any) -> Row:
        makers = {**CONTESTANTS, **options}
        contestants = {who: measured(make, subscriptions, prepare, more) for who, make in makers.items()}
        return Row(f"{prefix}published-{name}", f"{where}{what}", "ns", contestants, n=n, rounds=15, tiny=100)

    without_push = {f"{LIST}, pull": partial(published, push=False)}
    return [
        row("pair", "EntryQueue: put + get + ack on one thread", 1, one_thread, 100_000),
        row("1+1", "EntryQueue: 1 putter + 1 subscription, fresh tuples", 1, crowd("tuple"), 100_000),
        row("2+2", "EntryQueue: 2 putters + 2 subscriptions, fresh tuples", 2, crowd("tuple"), 100_000),
        row("1+1-none", "EntryQueue: 1 putter + 1 subscription, None", 1, crowd("none"), 100_000),
        row("2+2-none", "EntryQueue: 2 putters + 2 subscriptions, None", 2, crowd("none"), 100_000),
        row(
            "release",
            f"EntryQueue: release, get it, put, get and ack one behind it, {BEHIND:,} ACQUIRED entries between",
            2, far_back, 2_000, more=2 * BEHIND,
        ),
        row(
            "subscriptions", f"EntryQueue: put + get + ack, {SUBSCRIPTIONS} subscriptions that take turns",
            SUBSCRIPTIONS, one_thread, 50_000, **without_push,
        ),
    ]


ROWS = rows("", "")
FREE_THREADED_ROWS = rows("ft-", "free-threaded: ")

if __name__ == "__main__":
    print(module().__file__)
