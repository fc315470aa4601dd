"""`progress`: tasks report by datagrams to a port of the driver."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import functions as F
from support.notes import Notes
from support.threads import wait_until

from manytail.spark import _progress, concurrent_udf, map_concurrent, progress
from manytail.spark._progress import FORGOTTEN, MESSAGE, SILENT, Channel, Counts, Live, Reports, Totals


def test_all_tasks_of_the_maps_made_in_the_block_are_counted(spark: Any, capfd: Any) -> None:
    def fn(row: Any) -> Any:
        if row.id % 10 == 0:
            raise ValueError
        return row.id

    df = spark.range(0, 100, 1, 4)
    with progress(spark) as line:
        made = df.transform(map_concurrent, fn, "n long", errors="column")
        assert made.count() == 100
        wait_until(lambda: line.seen().done == 100)
        assert line.seen() == Counts(done=100, failed=10)
        if hasattr(F, "arrow_udf"):
            df.select(concurrent_udf(lambda n: n, "long")("id")).collect()
            wait_until(lambda: line.seen().done == 200)
    assert _progress.current_channel() is None
    assert made.count() == 100  # the job runs without a listener
    assert line.seen().done >= 100


def test_maps_of_one_plan_are_counted_each(spark: Any) -> None:
    def fn(row: Any) -> Any:
        return row.id

    df = spark.range(0, 50, 1, 2)
    with progress(spark) as line:
        first = df.transform(map_concurrent, fn, "a long")
        assert first.transform(map_concurrent, fn, "b long").count() == 50  # in one stage
        wait_until(lambda: line.seen().done == 100)


def test_a_killed_task_breaks_nothing(spark: Any, notes: Notes) -> None:
    def fn(row: Any) -> Any:
        notes.add(row.id)
        if row.id == 30 and notes.read().count("30") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return row.id

    with progress(spark) as line:
        df = spark.range(0, 50, 1, 1).transform(map_concurrent, fn, "n long", workers=1)
        with pytest.raises(Exception, match="Python worker exited unexpectedly"):
            df.collect()
        before = line.seen().done
        assert df.count() == 50
        wait_until(lambda: line.seen().done >= before + 50)


def test_the_newest_attempt_of_a_partition_counts() -> None:
    now = [0.0]
    totals = Totals(lambda: now[0])
    assert totals.counts() == Counts()
    totals.add((1, 1, 0), 7, 1, Counts(done=5, in_flight=3))
    totals.add((1, 1, 1), 8, 2, Counts(done=1, in_flight=1))
    totals.add((1, 1, 1), 8, 1, Counts(done=9))  # an older message that arrives later
    assert totals.counts() == Counts(done=6, in_flight=4)
    totals.add((1, 1, 0), 9, 1, Counts(done=2, in_flight=2))  # the task was tried again
    totals.add((1, 1, 0), 7, 5, Counts(done=7))  # the earlier attempt is still ending
    assert totals.counts() == Counts(done=3, in_flight=3)
    now[0] += SILENT + 1
    totals.add((1, 2, 0), 10, 1, Counts(done=1, in_flight=1))
    assert totals.counts() == Counts(done=4, in_flight=1)  # a silent task has nothing in flight
    now[0] += FORGOTTEN
    assert totals.counts() == Counts(done=4)
    assert len(totals._tasks) == 1


@pytest.fixture
def block() -> Iterator[Live]:
    with Live("127.0.0.1", "", None) as made:
        yield made


def test_what_has_another_size_or_token_is_dropped(block: Live) -> None:
    channel = block.channel()
    assert channel is not None
    good = MESSAGE.pack(channel.token, 1, 1, 2, 3, 4, 50, 0, 0, 0, 0, 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for message in (b"", b"x", good[:-1], good + b"x", bytes(16) + good[16:], os.urandom(65_000)):
            sender.sendto(message, (channel.host, channel.port))
        assert not block._totals.heard
        sender.sendto(good, (channel.host, channel.port))
    wait_until(lambda: block.seen() == Counts(done=50))


def test_a_task_that_cannot_reach_the_driver_says_so_once(caplog: Any) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    for host in ("127.0.0.1", "no such host.invalid"):
        caplog.clear()
        channel = Channel(host, port, bytes(16))
        for _ in range(2):
            Reports(channel).close()
        (record,) = caplog.records
        assert f"progress: {host}:{port} cannot be reached from here, the job goes on" in record.getMessage()


def test_no_port(caplog: Any) -> None:
    with Live("192.0.2.77", "", None) as block:  # an address for documentation: not this machine's
        assert block.channel() is None
    (record,) = caplog.records
    assert "progress: there is none, jobs go on: no port can be opened on '192.0.2.77'" in record.getMessage()


def test_nobody_reports(caplog: Any) -> None:
    with Live("127.0.0.1", "", None) as block:
        block.channel()
    assert "none ran in the block, or executors cannot reach it" in caplog.text
    caplog.clear()
    with Live("127.0.0.1", "", None):
        caplog.set_level(logging.WARNING)
    assert not caplog.records


def test_a_block_is_entered_once_and_may_stand_in_another(block: Live) -> None:
    with pytest.raises(RuntimeError, match="entered twice"):
        block.__enter__()
    with Live("127.0.0.1", "", None) as inner:
        assert (channel := _progress.current_channel()) is not None
        assert channel == replace(inner._channel, map=1)
    assert (channel := _progress.current_channel()) is not None
    assert channel == replace(block._channel, map=1)


def test_no_thread_is_left() -> None:
    def names() -> list[str]:
        return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("manytail-progress"))

    with Live("127.0.0.1", "", None):
        assert names() == ["manytail-progress-port"]
    assert names() == []


def session(**settings: str) -> Any:
    return SimpleNamespace(
        addArtifacts=None, conf=SimpleNamespace(get={"spark.driver.host": "host"}.__or__(settings).get)
    )


@pytest.mark.parametrize(
    ("master", "expected"),
    [("local[2]", "127.0.0.1"), ("local", "127.0.0.1"), ("local-cluster[2,1,1024]", "host"), ("yarn", "host")],
)
def test_the_address_of_a_classic_session(master: str, expected: str) -> None:
    assert progress(session(**{"spark.master": master}))._host == expected
    assert progress(session(**{"spark.master": master}), "other")._host == "other"


def test_the_address_of_a_connect_session(caplog: Any) -> None:
    here = SimpleNamespace(addArtifacts=None, client=SimpleNamespace(host="localhost"))
    there = SimpleNamespace(addArtifacts=None, client=SimpleNamespace(host="spark.example"))
    assert progress(here)._host == "127.0.0.1"  # type: ignore[arg-type]
    with progress(there) as block:  # type: ignore[arg-type]
        assert block.channel() is None
    assert "the server is another machine, spark.example: progress(spark, address=...) names this one" in caplog.text


def test_bad_arguments(spark: Any) -> None:
    for bad, kind in ((5, TypeError), ("", ValueError)):
        with pytest.raises(kind, match=r"address: .* a host name or address of this machine"):
            progress(spark, bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="spark: None"):
        progress(None)  # type: ignore[arg-type]


def test_a_line_in_a_notebook(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ipykernel", SimpleNamespace())
    draw = _progress._notebook_line()
    assert draw is not None
    draw(_progress.Stats(done=3, failed=1, in_flight=2, rate=1.5, seconds=9.0))
    assert capsys.readouterr().err.rstrip() == "\r3 done, 1 failed, 2 in flight, 1.5/s"
