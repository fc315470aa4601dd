"""Rows against the Java original, in its own benchmark's shape: 5 bounded sub-queues x 50 writer threads, 1 reader.

The original comes from Maven; its driver is bench/java. Both sides start the clock when all threads have started and
stop it when the reader has its items. The capacity of 1,000,000 is split evenly. Writers put one shared object until
they are stopped. The Java process runs for the whole row, so that its code is compiled and warm.
"""
from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from harness import Factory, Measure, Row, Target, Unavailable
from threaded import race

QUEUES = 5
WRITERS = 50
CAPACITY = 1_000_000
BULK = 1_000
JAVA = "Java original"
DRAIN = "Java original, drainTo"
SOURCE = Path(__file__).resolve().parent / "java"
BUILD_SECONDS = 300.0

Writer = Callable[[Any], None]
Reader = Callable[[Any, int], None]


# -------------------------------------------------------------------------------------------------------------- Java

def build(source: Path = SOURCE) -> str:
    """Compile a driver, in a cache outside the tree, and return its class path. Maven rebuilds what has changed."""
    maven, java = shutil.which("mvn"), shutil.which("java")
    if not maven or not java:
        raise Unavailable("skipped: no Maven or no Java on PATH, so no original to compare with")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "manytail" / f"bench-{source.name}"
    command = [maven, "-B", "-q", "-f", str(source / "pom.xml"), f"-Dbench.build={cache}", "process-classes"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"skipped: Maven did not finish within {BUILD_SECONDS:g} s") from None
    if done.returncode:
        reason = next((line for line in done.stdout.splitlines() if "ERROR" in line), "no reason given")
        raise Unavailable(f"skipped: Maven could not get the original ({reason[:200]})")
    return f"{cache / 'classes'}{os.pathsep}{cache / 'lib'}{os.sep}*"


def java(mode: str) -> Factory:
    """Items per second of the original; mode as bench/java's driver takes it.

    Before the first run there is one on 1 queue with 1 writer, for the compiler, as in the original's benchmark.
    """

    @contextmanager
    def contestant() -> Iterator[Measure]:
        command = ["java", "-cp", build(), "manytail.bench.Driver"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            ask, answer = process.stdin, process.stdout

            def drive(n: int, queues: int, writers: int) -> float:
                print(mode, queues, writers, CAPACITY, n, file=ask, flush=True)
                items, nanoseconds = map(int, answer.readline().split())
                return items / nanoseconds * 1e9

            warm = False

            def measure(n: int) -> float:
                nonlocal warm
                if not warm:
                    warm = True
                    drive(2 * n, 1, 1)
                return drive(n, QUEUES, WRITERS)

            yield measure
            ask.close()                                       # end of input ends the driver

    return contestant


# -------------------------------------------------------------------------------------------------------------- ours

def ours(write: Writer, read: Reader) -> Factory:
    @contextmanager
    def contestant() -> Iterator[Measure]:
        from manytail import MultiQueue

        def measure(n: int) -> float:
            owner: Any = MultiQueue()
            tails = [owner.add(key, priority=1, maxsize=CAPACITY // QUEUES) for key in range(QUEUES)]
            writers = [partial(until_shutdown, write, tail) for tail in tails for _ in range(WRITERS)]
            *_, seconds = race([*writers, partial(read_then_shutdown, read, owner, n)])
            return n / seconds

        yield measure

    return contestant


def until_shutdown(write: Writer, tail: Any) -> None:
    from manytail import ShutDown

    try:
        write(tail)
    except ShutDown:
        return                                                # the reader has all its items


def read_then_shutdown(read: Reader, owner: Any, n: int) -> float:
    read(owner, n)
    ended = time.perf_counter()
    owner.shutdown(immediate=True)
    return ended


def write_one_by_one(tail: Any) -> None:
    put, item = tail.put, object()
    for _ in repeat(None):
        put(item)


def read_one_by_one(owner: Any, n: int) -> None:
    get = owner.get
    for _ in repeat(None, n):
        get()


def write_in_bulk(tail: Any) -> None:
    put_many, items = tail.put_many, [object()] * BULK
    for _ in repeat(None):
        put_many(items)


def read_in_bulk(owner: Any, n: int) -> None:
    get_many = owner.get_many
    while n > 0:
        n -= len(get_many(min(n, BULK)))


SHAPE = "the original's benchmark, 5 sub-queues x 50 writers, 1 reader, capacity 1,000,000"
ROWS = [
    Row(
        "original",
        f"{SHAPE}, put and get",
        "items/s",
        {"ours": ours(write_one_by_one, read_one_by_one), JAVA: java("take")},
        n=10_000_000,
        rounds=5,
        tiny=20_000,
        targets=(Target(">=", 2.0, JAVA),),
    ),
    Row(
        "original-bulk",
        f"{SHAPE}, put_many and get_many of 1,000",
        "items/s",
        {"ours": ours(write_in_bulk, read_in_bulk), JAVA: java("take"), DRAIN: java("drain")},
        n=10_000_000,
        rounds=5,
        tiny=20_000,
        targets=(Target(">=", 2.0, JAVA),),
        note="the original has no bulk put; its reader drains 1,000 at a time in the third column",
    ),
]
