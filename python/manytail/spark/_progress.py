"""`progress`: one live line over all tasks of a job.

Spark tells the driver about a task only when it has ended, so tasks report themselves. Each sends a UDP datagram to a
port of the driver, five times a second and at its end. A datagram has the totals of this attempt of the task, not
differences, so a lost one does not matter. A killed task leaves no connection open, no task waits for an answer, and an
unreachable driver costs a task nothing.

A datagram has a fixed size: a random token that only the tasks of this block know, then numbers. One with another size
or token is dropped. Of the attempts of a map's partition the newest counts.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark import TaskContext
from pyspark.errors import PySparkException

from manytail import _checks as checks
from manytail._progress import INTERVAL, Meter, display_of, draw
from manytail._sync import Held
from manytail.mapping import Stats

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("manytail.spark")

TOKEN_BYTES = 16
# Token; number of the map; stage, partition, attempt and number of the message; done, failed, in flight, retried,
# deferred, remembered.
MESSAGE = struct.Struct(f">{TOKEN_BYTES}s 11q")
SILENT = 5.0  # seconds without a message after which a task counts as ended, with nothing in flight
FORGOTTEN = 600.0  # seconds without a message after which a task's counts are kept only as part of the sum


class Counts(NamedTuple):
    """What a task reports of its Stats."""

    done: int = 0
    failed: int = 0
    in_flight: int = 0
    retried: int = 0
    deferred: int = 0
    remembered: int = 0

    @classmethod
    def of(cls, seen: Stats) -> Counts:
        return cls(*(getattr(seen, name) for name in cls._fields))

    def stats(self) -> Stats:
        return Stats(**self._asdict())


@dataclass(frozen=True)
class Channel:
    """Where the tasks of a map report. It is sent with the work."""

    host: str
    port: int
    token: bytes
    map: int = 0  # the number of the map in its block: two maps of one plan have the same stages and partitions


# ---------------------------------------------------------------------------------------------------- in a task
_logged: set[Channel] = set()  # channels that this process cannot reach and has logged, without their maps


class Reports:
    """Sends the counts of a task to the driver: `send` is the map's `progress`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        context = TaskContext.get()
        self._task = (
            (0, 0, 0) if context is None else (context.stageId(), context.partitionId(), context.taskAttemptId())
        )
        self._number = 0
        self._last = Counts()
        self._socket: socket.socket | None = None

    def send(self, seen: Stats) -> None:
        self._last = Counts.of(seen)
        self._send()

    def _send(self) -> None:
        self._number += 1
        sender = (self._channel.map, *self._task, self._number)
        message = MESSAGE.pack(self._channel.token, *sender, *self._last)
        try:
            if self._socket is None:
                found = socket.getaddrinfo(self._channel.host, self._channel.port, type=socket.SOCK_DGRAM)
                self._socket = socket.socket(*found[0][:3])
                self._socket.setblocking(False)
                self._socket.connect(found[0][4])
            self._socket.send(message)
        except OSError as error:
            if (block := replace(self._channel, map=0)) not in _logged:
                _logged.add(block)
                where = f"{self._channel.host}:{self._channel.port}"
                log.warning("progress: %s cannot be reached from here, the job goes on: %s", where, error)

    def close(self) -> None:
        """Send the last counts again, because datagrams may be lost. Only after the map has ended."""
        self._send()
        self._send()
        if self._socket is not None:
            self._socket.close()


# ---------------------------------------------------------------------------------------------------- in the driver
class _Task(NamedTuple):
    attempt: int
    number: int
    at: float
    counts: Counts


class Totals:
    """The sum of the counts of all tasks. Any thread may add and read."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._tasks: dict[tuple[int, int, int], _Task] = {}  # by map, stage and partition
        self._past = Counts()  # of forgotten tasks
        self.heard = False  # whether a task has reported

    def add(self, task: tuple[int, int, int], attempt: int, number: int, counts: Counts) -> None:
        """task: its map, stage and partition."""
        with Held(self._lock):
            self.heard = True
            known = self._tasks.get(task)
            if known is None or (known.attempt, known.number) < (attempt, number):
                self._tasks[task] = _Task(attempt, number, self._now(), counts)

    def counts(self) -> Counts:
        now = self._now()
        with Held(self._lock):
            gone = {key: task for key, task in self._tasks.items() if now - task.at > FORGOTTEN}
            for key in gone:
                del self._tasks[key]
            self._past = _sum([self._past, *[task.counts._replace(in_flight=0) for task in gone.values()]])
            known = [(task.at, task.counts) for task in self._tasks.values()]
        return _sum([self._past, *[one if now - at <= SILENT else one._replace(in_flight=0) for at, one in known]])


def _sum(counts: list[Counts]) -> Counts:
    return Counts(*map(sum, zip(*counts, strict=True)))


class Live:
    """The context manager that `progress` returns, for one block."""

    def __init__(self, host: str | None, why: str, show: Callable[[Stats], None] | None) -> None:
        """host: of the driver, as executors reach it. None: they cannot, because of `why`. show: draws a report."""
        self._host = host
        self._why = why
        self._totals = Totals()
        self._meter = Meter(lambda: self._totals.counts().stats(), show or (lambda seen: None))
        self._channel: Channel | None = None
        self._socket: socket.socket | None = None
        self._closed = False
        self._before: Token[Live | None] | None = None  # restores the block around this one
        self.maps = 0  # made in the block

    def seen(self) -> Counts:
        """The sum of what all tasks have reported: done, failed, in_flight, retried, deferred, remembered."""
        return self._totals.counts()

    def __enter__(self) -> Live:
        if self._before is not None:
            raise RuntimeError("progress: entered twice (expected: a new progress(spark) for each block)")
        if self._host is not None:
            self._open(self._host)
        if self._channel is None:
            log.warning("progress: there is none, jobs go on: %s", self._why)
        self._before = _block.set(self)
        return self

    def _open(self, host: str) -> None:
        try:
            self._socket = _bound(host)
        except OSError as error:
            self._why = f"no port can be opened on {host!r}: {error}"
            return
        self._channel = Channel(host, self._socket.getsockname()[1], secrets.token_bytes(TOKEN_BYTES))
        self._thread = threading.Thread(
            target=self._receive, args=(self._socket,), name="manytail-progress-port", daemon=True
        )
        self._thread.start()

    def _receive(self, port: socket.socket) -> None:
        token = self._channel.token if self._channel is not None else b""
        due = time.monotonic()
        while not self._closed:
            port.settimeout(max(0.001, due - time.monotonic()))  # 0 would mean not to wait at all
            message = b""
            with suppress(TimeoutError):
                message = port.recv(MESSAGE.size + 1)
            if time.monotonic() >= due:
                self._meter.report()
                due = time.monotonic() + INTERVAL
            if len(message) == MESSAGE.size and hmac.compare_digest(message[:TOKEN_BYTES], token):
                work, stage, partition, attempt, number, *counts = MESSAGE.unpack(message)[1:]
                self._totals.add((work, stage, partition), attempt, number, Counts(*counts))

    def __exit__(self, *error: object) -> None:
        assert self._before is not None
        _block.reset(self._before)
        if self._socket is None or self._channel is None:
            return
        self._closed = True
        with socket.socket(self._socket.family, socket.SOCK_DGRAM) as waker:
            waker.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()
        self._meter.report()
        if self.maps and not self._totals.heard:
            where = f"{self._channel.host}:{self._channel.port}"
            log.warning(
                "progress: no task has reported to %s: none ran in the block, or executors cannot reach it", where
            )

    def channel(self) -> Channel | None:
        """The channel for a map that is made in the block. None: tasks cannot report."""
        self.maps += 1
        return None if self._channel is None else replace(self._channel, map=self.maps)


def _bound(host: str) -> socket.socket:
    """A socket on a free port."""
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    port = socket.socket(*found[0][:3])
    try:
        port.bind(found[0][4])
    except OSError:
        port.close()
        raise
    return port


_block: ContextVar[Live | None] = ContextVar("manytail_progress", default=None)


def current_channel() -> Channel | None:
    """The channel of the block around this code, or None."""
    block = _block.get()
    return None if block is None else block.channel()


def progress(spark: SparkSession, address: str | None = None) -> Live:
    """Show one live line of progress for all tasks of the maps that are created inside the `with` block.

    Uses tqdm if it is installed; otherwise it writes to a terminal or notebook. If executors cannot reach the driver,
    you get one log line instead, and the job runs in the same way.

    Parameters
    ----------
    spark : SparkSession
        A classic session, or a Spark Connect session whose server is on this machine. For a server on another machine,
        pass `address`.
    address : str, optional
        The address at which executors reach this machine. A port is opened there until the block ends; tasks send their
        numbers to it, with a random token. None: `spark.driver.host`, or in local mode, the loopback address.

    Returns
    -------
    context manager
        Yields an object whose `seen()` returns done, failed, in_flight, retried, deferred and remembered, summed over
        all tasks.

    Raises
    ------
    ValueError, TypeError
        For a wrong argument; raised by the call itself.
    RuntimeError
        If the block is entered a second time.

    Examples
    --------
    >>> with progress(spark):  # doctest: +SKIP
    ...     urls.transform(map_concurrent, fetch, "status int").write.parquet("pages")
    """
    if not hasattr(spark, "addArtifacts"):
        raise checks.bad_type("spark", spark, "a SparkSession")
    if address is not None and not isinstance(address, str):
        raise checks.bad_type("address", address, "a host name or address of this machine, or None")
    if address == "":
        raise checks.bad_value("address", address, "a host name or address of this machine, or None")
    host, why = (address, "") if address is not None else _host(spark)
    return Live(host, why, display_of(True, None) or _notebook_line())


def _host(spark: Any) -> tuple[str | None, str]:
    """The driver's address as executors reach it, or None and the reason."""
    try:
        server = spark.client.host
    except (AttributeError, PySparkException):  # not Connect
        server = None
    if server is not None:
        if server in ("localhost", "127.0.0.1", "::1"):
            return "127.0.0.1", ""
        return None, f"the server is another machine, {server}: progress(spark, address=...) names this one"
    master = spark.conf.get("spark.master")
    if master.startswith("local") and not master.startswith("local-cluster"):
        return "127.0.0.1", ""
    return spark.conf.get("spark.driver.host"), ""


def _notebook_line() -> Callable[[Stats], None] | None:
    """A line in the output of a cell, where tqdm is not installed."""
    return draw if "ipykernel" in sys.modules else None
