"""What ends the waits of `aconcurrent_map` and AsyncCaller for a database that is locked, stopped or restarted: the
outage_timeout, the deadline, aclose, the cancellation of who waits, and the database's return.

The tests hold up the database until the wait that they look at is over. Without what ends it they hang.
"""

import asyncio
import contextlib
import signal
import sqlite3
import sys

import pytest
from support.maps import rate, threads_of_maps, until
from support.threads import DEADLINE, Threads, wait_until

from manytail import AsyncCaller, Concurrency, DeadlineExceeded, Shared, SharedUnavailable, aconcurrent_map
from manytail.mapping import _loop_runner, _shared_database, _shared_store

pytestmark = pytest.mark.thread_unsafe(reason="a database of its own for each test")

PATIENT = 10 * DEADLINE  # as outage_timeout: does not end a wait of these tests
USES = {
    "rate": lambda shared: {"limits": rate(shared, 1e6)},
    "concurrency": lambda shared: {"limits": Concurrency(5.0, shared=shared, name="c")},
    "remember": lambda shared: {"remember": shared},
}
each_use = pytest.mark.parametrize("use", USES.values(), ids=USES)
calls: list[int] = []


async def fn(item):
    calls.append(item)
    return item


async def waits() -> None:
    """The map has asked the database, in a thread."""
    await until(threads_of_maps)


# ---------------------------------------------------------------------------------------------------- the databases
@contextlib.contextmanager
def locked_file(request):
    database = request.getfixturevalue("sqlite")
    Shared(database.url, "a").remembered()
    with contextlib.closing(sqlite3.connect(database.url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield database.url


@contextlib.contextmanager
def locked_rows(request):
    import psycopg

    database = request.getfixturevalue("postgresql")
    Shared(database.url, "a").remembered()
    with contextlib.closing(psycopg.connect(database.url)) as other:
        for table in ("names", "results", "limits", "holds"):
            other.execute(f"LOCK TABLE manytail_{table}")
        yield database.url


@contextlib.contextmanager
def stopped_server(request):
    if sys.platform == "win32":
        pytest.skip("stops processes")
    server = request.getfixturevalue("own_server")
    shared = Shared(server.url(), "a")
    shared.remembered()
    server.freeze(signal.SIGSTOP)
    try:
        yield server.url()
    finally:
        server.freeze(signal.SIGCONT)


@pytest.fixture(autouse=True)
def close_links():
    """Errors of a test may keep connections in cycles."""
    yield
    for link in list(_shared_database._links.values()):
        link.drop()


@pytest.fixture(params=[locked_file, locked_rows, stopped_server], ids=lambda way: way.__name__)
def silent(request, monkeypatch):
    """The URL of a database that does not answer."""
    calls.clear()
    monkeypatch.setattr(_shared_database, "LOCK_WAIT", 0.1)
    monkeypatch.setattr(_shared_store, "GRACE", 0.2)
    with request.param(request) as url:
        yield url
        wait_until(lambda: not threads_of_maps(), "the threads of the map to end")


# ---------------------------------------------------------------------------------------------------- what ends a wait
async def map_outage(options):
    with pytest.raises(SharedUnavailable):
        [each async for each in aconcurrent_map(fn, range(3), **options)]


async def map_deadline(options):
    results = aconcurrent_map(fn, range(3), deadline=0.1, errors="return", **options)
    assert [type(each.error) async for each in results] == [DeadlineExceeded] * 3


async def map_aclose(options):
    results = aconcurrent_map(fn, range(3), **options)
    taking = asyncio.ensure_future(anext(results, "ended"))
    await waits()
    await results.aclose()
    assert await taking == "ended"


async def map_cancelled(options):
    async with aconcurrent_map(fn, range(3), **options) as results:
        taking = asyncio.ensure_future(anext(results))
        await waits()
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking


async def caller_outage(options):
    async with AsyncCaller(fn, **options) as call:
        with pytest.raises(SharedUnavailable):
            await call(1)


async def caller_cancelled(options):
    async with AsyncCaller(fn, **options) as call:
        calling = asyncio.ensure_future(call(1))
        await waits()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await call.aclose(cancel=True)  # leaving the block waits until the turn of the item, which is skipped then


async def caller_aclose(options):
    async with AsyncCaller(fn, **options) as call:
        calling = asyncio.ensure_future(call(1))
        await waits()
        await call.aclose(cancel=True)
        with pytest.raises(asyncio.CancelledError):
            await calling


OUTAGES = [map_outage, caller_outage]
ENDS = [map_deadline, map_aclose, map_cancelled, caller_cancelled, caller_aclose]


@each_use
@pytest.mark.parametrize("end", [*OUTAGES, *ENDS], ids=lambda end: end.__name__)
def test_a_wait_for_a_database_that_does_not_answer_ends(silent, end, use, monkeypatch):
    monkeypatch.setattr(_loop_runner, "LAST_WAIT", 0.2, raising=False)
    shared = Shared(silent, "a", outage_timeout=0.3 if end in OUTAGES else PATIENT)
    with Threads() as threads:
        threads.start(asyncio.run, end(use(shared))).result()
    assert calls == []


@pytest.mark.parametrize("mode", ["fast", "immediate"])
@each_use
def test_a_server_that_restarts_is_waited_for(own_server, use, mode):
    calls.clear()
    shared = Shared(own_server.url(), "a", outage_timeout=PATIENT)
    shared.remembered()

    async def take():
        return [each async for each in aconcurrent_map(fn, range(3), **use(shared))]

    async def call_one():
        async with AsyncCaller(fn, **use(shared)) as call:
            return await call(3)

    async def main():
        own_server.stop(mode)
        waiting = asyncio.gather(take(), call_one())
        await waits()
        await asyncio.to_thread(own_server.start)
        return await waiting

    with Threads() as threads:
        assert threads.start(asyncio.run, main()).result() == [[0, 1, 2], 3]
    assert sorted(calls) == [0, 1, 2, 3]
