"""Rows of EntryQueue against Java: the list of Qpid Broker-J's own queues, without a broker around it.

The list comes from Maven; its driver is bench/java-qpid, which says what of it is Qpid's. The Java process runs for the
whole row, so that its code is compiled and warm.
"""
from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lbmq
import published
from harness import Factory, Measure, Row

JAVA = "Qpid's list, Java"
SOURCE = Path(__file__).resolve().parent / "java-qpid"


def java(threads: int) -> Factory:
    """ns per entry: so many putters and as many subscriptions, or with 0 one thread for both."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        command = ["java", "-cp", lbmq.build(SOURCE), "org.apache.qpid.server.queue.ListDriver"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            ask, answer = process.stdin, process.stdout

            def measure(n: int) -> float:
                print(threads, n, file=ask, flush=True)
                return float(answer.readline())

            yield measure
            ask.close()  # end of input ends the driver

    return contestant


def rows(prefix: str, where: str) -> list[Row]:
    def row(name: str, what: str, subscriptions: int, prepare: Any, threads: int) -> Row:
        contestants = {"ours": published.measured(published.ours, subscriptions, prepare), JAVA: java(threads)}
        return Row(f"{prefix}{name}", f"{where}EntryQueue: {what}", "ns", contestants, n=200_000, rounds=15, tiny=200)

    return [
        row("entry-java", "put + get + ack, one thread", 1, published.one_thread, 0),
        row("entry-java-2+2", "2 putters + 2 subscriptions, fresh tuples", 2, published.crowd("tuple"), 2),
    ]


ROWS = rows("", "")
FREE_THREADED_ROWS = rows("ft-", "free-threaded: ")
