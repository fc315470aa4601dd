"""What ends the waits of maps for a database that does not answer, is locked, or is gone; and forks meanwhile.

The tests hold up the database until the wait that they look at is over. Without what ends it they hang.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sqlite3
import sys
import threading

import pytest
from support.maps import CALLERS, INLINE, Way, asynchronous, mapped, rate, threads_of_maps
from support.process import run_script, start_script
from support.silence import Silence
from support.threads import DEADLINE, Threads, wait_asleep, wait_until

from manytail import AsyncCaller, Caller, Concurrency, DeadlineExceeded, Shared, SharedUnavailable, concurrent_map
from manytail._sync import Event
from manytail.mapping import _remember, _runner, _shared_database, _shared_store
from manytail.mapping._grants import Ask, Terms

pytestmark = pytest.mark.thread_unsafe(reason="a database, an environment or a process of its own for each test")

ID = b"0123456789abcdef"
posix = pytest.mark.skipif(sys.platform == "win32", reason="stops processes, or forks")
PATIENT = 10 * DEADLINE  # as outage_timeout: does not end a wait of these tests
USES = {
    "rate": lambda shared: {"limits": rate(shared, 1e6)},
    "concurrency": lambda shared: {"limits": Concurrency(5.0, shared=shared, name="c")},
    "remember": lambda shared: {"remember": shared},
}
WAYS = [Way("threads", is_async=False), INLINE[0], CALLERS[0]]
ways = pytest.mark.parametrize("mapped", WAYS, ids=[way.name for way in WAYS])
each_use = pytest.mark.parametrize("use", USES.values(), ids=USES)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """After the deadline. Connections that are left are closed: errors of the test may keep them in cycles."""
    monkeypatch.setattr(_runner, "LAST_WAIT", 0.2)
    monkeypatch.setattr(_shared_store, "GRACE", 0.2)
    yield
    for link in list(_shared_database._links.values()):
        if link.pause():
            link.go_on()


@contextlib.contextmanager
def locked(database, tables=True):
    """Another session holds all locks of the database, and does nothing."""
    shared = Shared(database.url, "other")
    if tables:
        shared.remembered()
    if database.kind == "sqlite":
        other = sqlite3.connect(database.url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
    else:
        import psycopg

        other = psycopg.connect(database.url)
        for table in ("names", "results", "limits", "holds"):
            other.execute(f"LOCK TABLE manytail_{table}")
    try:
        yield
    finally:
        other.close()


# ---------------------------------------------------------------------------------------------------- the deadline
@ways
@each_use
def test_the_deadline_ends_a_map_whose_database_is_locked(sqlite, mapped, use):
    shared = Shared(sqlite.url, "a", outage_timeout=PATIENT)
    with locked(sqlite):
        results = mapped(str, range(3), **use(shared), deadline=0.1, errors="return")
    assert [type(result.error) for result in results] == [DeadlineExceeded] * 3


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_the_deadline_ends_a_map_that_waits_for_a_row_of_a_server(postgresql, use):
    shared = Shared(postgresql.url, "a", outage_timeout=PATIENT)
    with locked(postgresql):
        results = mapped(str, range(3), **use(shared), deadline=0.1, errors="return")
    assert [type(result.error) for result in results] == [DeadlineExceeded] * 3


@ways
def test_the_deadline_ends_a_map_whose_results_cannot_be_recorded(sqlite, mapped):
    """They are yielded, and recorded later if the process lasts."""
    shared, lock = Shared(sqlite.url, "a", outage_timeout=PATIENT), contextlib.ExitStack()
    shared._store().record({ID: b"x"})

    def fn(item):
        if item == 0:
            lock.enter_context(locked(sqlite, tables=False))
        return item

    with lock:
        results = mapped(fn, range(2), remember=shared, deadline=0.5, workers=1, errors="return")
        assert [result.result for result in results][:1] == [0]
    wait_until(lambda: not threads_of_maps())


# ---------------------------------------------------------------------------------------------------- outage_timeout
@each_use
def test_an_outage_ends_a_map_that_waits_for_a_row_of_a_server(postgresql, use, monkeypatch):
    monkeypatch.setattr(_shared_database, "LOCK_WAIT", 0.1)
    shared = Shared(postgresql.url, "a", outage_timeout=0.1)
    with locked(postgresql), pytest.raises(SharedUnavailable, match="lock timeout"):
        mapped(str, range(3), **use(shared))


@pytest.fixture
def stopped(own_server):
    """A server whose processes are stopped: connections stay, and nothing is answered."""
    Shared(own_server.url(), "a").remembered()
    shared = Shared(own_server.url(), "a", outage_timeout=0.5)
    shared.remembered()
    own_server.freeze(signal.SIGSTOP)
    try:
        yield shared
    finally:
        own_server.freeze(signal.SIGCONT)


@posix
@each_use
def test_an_outage_ends_a_map_whose_server_is_stopped(stopped, use):
    with pytest.raises(SharedUnavailable, match=r"no answer|timeout"):
        mapped(str, range(3), **use(stopped))


@posix
@pytest.mark.parametrize("name", ["remembered", "forget", "reset"])
def test_an_outage_ends_a_call_of_a_shared_whose_server_is_stopped(stopped, name):
    with pytest.raises(SharedUnavailable, match=r"no answer|timeout"):
        getattr(stopped, name)()


def test_a_long_statement_is_waited_for_while_the_server_answers_others(postgresql, monkeypatch):
    shared = Shared(postgresql.url, "a", outage_timeout=0.1)
    store = shared._store()
    store.remembered()
    monkeypatch.setattr(store.link, "_wait", 1)
    monkeypatch.setattr(_shared_database, "STATEMENT_WAIT", 1.0)
    sleep = "SELECT 1 FROM pg_sleep(2.5)"
    assert store.run(lambda transaction, _: transaction.value(sleep), is_long=True) == 1
    with pytest.raises(SharedUnavailable, match=r"no answer|timeout"):
        store.run(lambda transaction, _: transaction.value(sleep))


@posix
def test_the_deadline_ends_maps_whose_server_is_stopped(own_server):
    shared = Shared(own_server.url(), "a", outage_timeout=PATIENT)
    shared.remembered()
    own_server.freeze(signal.SIGSTOP)
    try:
        with Threads() as threads:
            uses = [use(shared) for use in USES.values()]
            tasks = [threads.start(mapped, str, [1], **use, deadline=0.1, errors="return") for use in uses]
            for task in tasks:
                assert [type(result.error) for result in task.result()] == [DeadlineExceeded]
    finally:
        own_server.freeze(signal.SIGCONT)


# ---------------------------------------------------------------------------------------------------- each wait
def in_block(shared):
    with rate(shared, 1e6):
        raise AssertionError


def in_call(shared, **options):
    with Caller(str, **options) as call:
        call(1)


def in_future(shared, **options):
    with Caller(str, **options) as call:
        call.submit(1).result()


def in_leaving(shared, **options):
    with Caller(str, **options) as call:
        future = call.submit(1)
    future.result()


def in_async_call(shared, **options):
    async def main():
        async with AsyncCaller(asynchronous(str), **options) as call:
            await call(1)

    asyncio.run(main())


def in_async_leaving(shared, **options):
    async def main():
        async with AsyncCaller(asynchronous(str), **options) as call:
            task = asyncio.ensure_future(call(1))
            await asyncio.sleep(0)
        await task

    asyncio.run(main())


def waits():
    yield "block", lambda shared: in_block(shared)
    for wait in (in_call, in_future, in_leaving, in_async_call, in_async_leaving):
        for name, use in USES.items():
            yield f"{wait.__name__} {name}", lambda shared, wait=wait, use=use: wait(shared, **use(shared))


@pytest.mark.parametrize("wait", dict(waits()).values(), ids=dict(waits()))
def test_an_outage_ends_each_wait(sqlite, wait, monkeypatch):
    monkeypatch.setattr(_shared_database, "LOCK_WAIT", 0.05)
    with locked(sqlite), Threads() as threads:
        waiting = threads.start(wait, Shared(sqlite.url, "a", outage_timeout=0.05))
        with pytest.raises(SharedUnavailable, match="locked"):
            waiting.result()


# ---------------------------------------------------------------------------------------------------- other processes
# It is stopped between two statements of a transaction, in which it has locked the row of the limit.
STOPPED = """
import signal, sys, threading
from manytail import Rate, Shared, concurrent_map
from manytail.mapping import _shared_database, _shared_store
grant, stops = _shared_store.grant, [None]
_shared_database.IDLE_WAIT = 1.0

def stopping(*arguments):
    if stops:
        stops.pop()
        # Not os.kill: that is for any thread of the process, and this one may go on until another has taken it.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        _shared_database.IDLE_WAIT = 30.0  # a busy machine is no peer that was stopped
    return grant(*arguments)

_shared_store.grant = stopping
limit = Rate(1e6, shared=Shared(sys.argv[1], "a"), name="rate")
assert list(concurrent_map(str, range(3), limits=limit)) == ["0", "1", "2"]
"""


@posix
def test_a_process_that_is_stopped_in_an_exchange_blocks_no_other(postgresql):
    process = start_script(STOPPED, postgresql.url)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    try:
        shared = Shared(postgresql.url, "a", outage_timeout=PATIENT)
        with Threads() as threads:
            assert threads.start(mapped, str, range(3), limits=rate(shared, 1e6)).result() == ["0", "1", "2"]
    finally:
        os.kill(process.pid, signal.SIGCONT)
    _, said = process.communicate(timeout=4 * DEADLINE)
    assert process.returncode == 0, said  # it was told that its transaction was ended, and made it again


CHUNKS = 16  # more than an exchange sends


def test_a_process_that_falls_silent_anywhere_in_an_exchange_blocks_no_other(postgresql, server, monkeypatch):
    """The server ends its transaction after IDLE_WAIT, also if it was stopped between two rows that it changes."""
    monkeypatch.setattr(_shared_database, "IDLE_WAIT", 1.0)
    terms = {b"rate:k": Terms(10.0, 1.0), b"concurrency:c": Terms(5.0, lease=30.0)}
    asks = [Ask(b"rate:k:%d" % number, b"rate:k", b"h", 1.0) for number in range(5)]
    asks.append(Ask(b"concurrency:c", b"concurrency:c", b"h", 1.0))
    calls = [[(place, 1.0)] for place in range(6)]
    give_up, exchanges = Event(), []
    with Threads() as threads, contextlib.ExitStack() as exits:
        for count in range(CHUNKS):
            silence = exits.enter_context(Silence(server.port))
            url = postgresql.url.replace(f":{server.port}/", f":{silence.port}/")
            store = Shared(url, f"a{count}", outage_timeout=PATIENT)._store()
            store.exchange(1e9, terms, asks, calls)  # connects, and makes the rows
            silence.after(count)
            exchange = threads.start(store.exchange, 1e9, terms, asks, calls, give_up)
            wait_until(lambda silence=silence, exchange=exchange: silence.began.is_set() or not exchange.is_alive())
            exchanges.append(exchange)
        running = sum(exchange.is_alive() for exchange in exchanges)
        for count in range(CHUNKS):
            other = Shared(postgresql.url, f"a{count}", outage_timeout=PATIENT)._store()
            answers, _ = other.exchange(1e9, terms, asks, calls)
            assert all(answer.granted for answer in answers)
        give_up.set()
        ends = [type(exchange.outcome()) for exchange in exchanges]
    assert 5 < running < CHUNKS
    assert ends == [SharedUnavailable] * running + [type(None)] * (CHUNKS - running)


def test_a_process_that_falls_silent_while_it_sends_large_results_blocks_no_other(postgresql, server, monkeypatch):
    """It has recorded the small result, and is stopped somewhere in the large one."""
    monkeypatch.setattr(_shared_database, "IDLE_WAIT", 1.0)
    monkeypatch.setattr(_shared_store, "SLICE_BYTES", 1)
    rows, give_up, records = {b"1" * 16: b"x", b"2" * 16: bytes(1 << 24)}, Event(), []
    with Threads() as threads, contextlib.ExitStack() as exits:
        for count in range(8):
            silence = exits.enter_context(Silence(server.port))
            url = postgresql.url.replace(f":{server.port}/", f":{silence.port}/")
            store = Shared(url, f"a{count}", outage_timeout=PATIENT)._store()
            store.remembered()
            silence.after(count)
            records.append(threads.start(store.record, rows, give_up))
            wait_until(silence.began.is_set)
        for count in range(8):
            other = Shared(postgresql.url, f"a{count}", outage_timeout=PATIENT)
            other._store().record({b"1" * 16: b"x"})
            assert other.remembered() == 1
        give_up.set()
        assert [type(record.outcome()) for record in records] == [SharedUnavailable] * 8


# A fork comes while another thread of the parent is in a transaction: it waits for the end of that.
FORKS = """
import os, sys, threading, warnings
from support.threads import DEADLINE, Threads, wait_asleep
from manytail import Shared
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
shared = Shared(sys.argv[1], "a", outage_timeout=20.0)
shared.remembered()
inside, go_on = threading.Event(), threading.Event()

def hold(transaction, name):
    transaction.execute("UPDATE manytail_names SET codec = NULL")
    inside.set()
    go_on.wait(DEADLINE)

def fork():
    child = os.fork()
    if child == 0:
        try:
            shared._store().record({b"1" * 16: b"child"})
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]

with Threads() as threads:
    threads.start(shared._store().run, hold)
    inside.wait(DEADLINE)
    forking = threads.start(fork)
    wait_asleep(forking)
    go_on.set()
    assert forking.result() == 0
shared._store().record({b"2" * 16: b"parent"})
assert shared.remembered() == 2
"""


@posix
def test_a_fork_waits_for_the_transaction_of_another_thread(database):
    run_script(FORKS, arguments=[database.url])


# A fork comes while a thread that has used the connection waits for something else.
FORKS_LATER = """
import os, sys, threading, warnings
from pathlib import Path

def opened():
    files = Path("/proc/self/fd")
    found = [os.path.realpath(file) for file in files.iterdir()] if files.is_dir() else []
    return [file for file in found if "shared.db" in file]

os.register_at_fork(before=lambda: print(opened()))  # after manytail's, because it comes first

from support.threads import DEADLINE, Threads
from manytail import Shared
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
shared = Shared(sys.argv[1], "a")
used, go_on = threading.Event(), threading.Event()

def use():
    shared._store().record({b"1" * 16: b"thread"})
    used.set()
    go_on.wait(DEADLINE)

with Threads() as threads:
    threads.start(use)
    used.wait(DEADLINE)
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    go_on.set()
"""


@posix
def test_a_child_inherits_no_open_file_of_sqlite(sqlite):
    """SQLite would take its locks, of the parent's process, for the child's own: it stayed locked for ever."""
    assert run_script(FORKS_LATER, arguments=[sqlite.url]) == "[]\n"


# ---------------------------------------------------------------------------------------------------- logging
class Raising(logging.Handler):
    def emit(self, record):
        raise LookupError(record.getMessage())


@pytest.fixture
def raising():
    """A handler of the user that raises."""
    log, handler = logging.getLogger("manytail"), Raising()
    level = log.level
    log.setLevel(logging.DEBUG)
    log.addHandler(handler)
    yield
    log.removeHandler(handler)
    log.setLevel(level)


@ways
def test_a_handler_of_logging_that_raises_decides_nothing(sqlite, mapped, raising):
    shared = Shared(sqlite.url, "a")
    for _ in range(2):  # then how many were found is logged
        assert mapped(str, range(3), remember=shared, limits=rate(shared, 1e6)) == ["0", "1", "2"]
    assert mapped(str, range(3), limits=rate(shared, 2e6)) == ["0", "1", "2"]  # the change is logged
    with Caller(lambda item: {item}, remember=shared) as call:
        assert call(7) == {7}  # the codec refuses it


@ways
@each_use
def test_an_outage_ends_a_map_whatever_a_handler_of_logging_raises(away, mapped, use, raising):
    shared = Shared(away, "a", outage_timeout=0.1)
    with pytest.raises(SharedUnavailable, match="unavailable for"):
        mapped(str, range(3), **use(shared))


def test_results_that_cannot_be_recorded_end_a_map_whatever_a_handler_of_logging_raises(sqlite, raising, monkeypatch):
    def refuse(store, results, give_up=None):
        raise SharedUnavailable("no")

    monkeypatch.setattr(_shared_store.Store, "record", refuse)
    results = concurrent_map(str, range(3), remember=Shared(sqlite.url, "a"))
    with Threads() as threads:
        with pytest.raises(SharedUnavailable):
            threads.start(list, results).result()
        threads.start(results.close).result()


# ---------------------------------------------------------------------------------------------------- threads that end
def thread_of_limits():
    return next((one for one in threading.enumerate() if one.name == "manytail-limits"), None)


def idle_thread_of_limits():
    """The thread, which has nothing to do: it has answered all that was asked."""
    wait_until(thread_of_limits)
    wait_asleep(thread_of_limits())
    return thread_of_limits()


def leave_block(shared):
    with rate(shared, 10.0):
        idle_thread_of_limits()


def drop_map(shared):
    results = concurrent_map(str, range(100_000), limits=rate(shared, 10.0))
    next(results)


def drop_caller(shared):
    call = Caller(str, limits=rate(shared, 10.0))
    call(1)
    idle_thread_of_limits()


@pytest.mark.parametrize("use", [leave_block, drop_map, drop_caller])
def test_the_thread_of_limits_ends_with_their_last_user(sqlite, use):
    use(Shared(sqlite.url, "a"))
    wait_until(lambda: not threads_of_maps())


def test_the_thread_of_limits_ends_when_their_last_user_is_freed(sqlite):
    """Nobody has told it: an owner that is lost in a fork of the user's, or in a collection."""
    from manytail.mapping._limits import Owner

    limit = rate(Shared(sqlite.url, "a"), 10.0)
    owner = Owner((limit,), int)
    with limit:
        idle_thread_of_limits()
    assert thread_of_limits() is not None
    del owner
    gc.collect()
    wait_until(lambda: not threads_of_maps())


def test_a_worker_that_begins_to_wait_while_others_are_released_is_released_once(sqlite, monkeypatch):
    """It waits for the next record: what is released twice ended the map, and those after it waited for ever."""
    shared, waited, held = Shared(sqlite.url, "a"), [], _remember.Held
    memory = _remember.Memory(shared, None, inline=True)

    @contextlib.contextmanager
    def then_waiting(lock):
        with held(lock):
            yield
        if not waited:
            waited.append(None)
            memory._unrecorded = _remember.BACKLOG
            waited.append(memory.wait_for_backlog())

    monkeypatch.setattr(_remember, "Held", then_waiting)
    for _ in range(2):
        memory._record(shared._store(), [(ID, b"x")])
    assert waited[1].done()
    assert memory._waiting == []


# ---------------------------------------------------------------------------------------------------- size
def test_large_results_are_recorded_in_statements_of_some_megabytes(database, monkeypatch):
    monkeypatch.setattr(_shared_store, "SLICE_BYTES", 1_000)
    sizes, execute = [], _shared_database.Transaction.execute

    def measured(transaction, sql, parameters=()):
        sizes.append(sum(len(each) for each in parameters if isinstance(each, bytes)))
        return execute(transaction, sql, parameters)

    store = Shared(database.url, "a")._store()
    results = {bytes([index]) * 16: bytes(300 if index else 2_000) for index in range(10)}
    monkeypatch.setattr(_shared_database.Transaction, "execute", measured)
    store.record(results)
    assert max(sizes) == 2_016
    assert sorted(sizes)[-2] <= 1_000 + 3 * 16
    assert store.look_up(list(results)) == results


def test_workers_wait_while_large_results_are_not_recorded(sqlite, monkeypatch):
    monkeypatch.setattr(_remember, "BYTES", 1_000)
    shared, held = Shared(sqlite.url, "a"), []

    def fn(item):
        held.append(results._runner.memory._bytes)
        return bytes(600)

    results = concurrent_map(fn, range(40), remember=shared, workers=2)
    assert len(list(results)) == 40
    assert max(held) <= 1_000 + 2 * 700
    assert shared.remembered() == 40


# ---------------------------------------------------------------------------------------------------- deleted
@ways
def test_a_file_that_is_deleted_in_the_middle_is_made_anew(sqlite, mapped):
    """What comes after that goes into the new one."""
    shared, file = Shared(sqlite.url, "a"), sqlite.url.removeprefix("sqlite:///")

    def fn(item):
        if item == 20:
            for name in (file, f"{file}-wal", f"{file}-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(name)
            Shared(sqlite.url, "another").remembered()  # has the number in it that ours had before
        return item

    limits = [rate(shared, 1e6), Concurrency(5.0, shared=shared, name="c")]
    items = (item for item in range(100))
    assert mapped(fn, items, remember=shared, limits=limits, workers=1) == list(range(100))
    kept = "SELECT names.name, count(*) FROM manytail_results JOIN manytail_names AS names ON names.id = "
    rows = []

    def read():
        # SQLite removes -wal and -shm by their names, those of the new file too, when a connection to the old one ends.
        with contextlib.suppress(sqlite3.OperationalError):
            rows[:] = sqlite.query(kept + "manytail_results.name GROUP BY names.name")
        return rows

    wait_until(read, "the new file to be read")
    ((name, count),) = rows
    assert name == "a"
    assert 1 <= count <= 100


def test_tables_that_are_dropped_in_the_middle_are_made_anew(database):
    store = Shared(database.url, "a")._store()
    store.record({ID: b"x"})
    database.query(*(f"DROP TABLE manytail_{table}" for table in ("holds", "limits", "results", "names", "layout")))
    assert store.look_up([ID]) == {}
    store.record({ID: b"y"})
    assert store.look_up([ID]) == {ID: b"y"}


# ---------------------------------------------------------------------------------------------------- file systems
LACKING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>

static int lacks(const char *what) {
    const char *lack = getenv("LACKS");
    return lack && lack[0] == what[0];
}

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    void *(*next)(void *, size_t, int, int, int, off_t) = dlsym(RTLD_NEXT, "mmap");
    if (fd >= 0 && (flags & MAP_SHARED) && lacks("memory")) {
        errno = ENODEV;
        return MAP_FAILED;
    }
    return next(at, size, protection, flags, fd, offset);
}
void *mmap64(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    return mmap(at, size, protection, flags, fd, offset);
}

int fcntl(int fd, int command, ...) {
    int (*next)(int, int, ...) = dlsym(RTLD_NEXT, "fcntl");
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *);
    va_end(more);
    if ((command == F_SETLK || command == F_SETLKW || command == F_GETLK) && lacks("locks")) {
        errno = ENOLCK;
        return -1;
    }
    return next(fd, command, argument);
}
int fcntl64(int fd, int command, ...) {
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *);
    va_end(more);
    return fcntl(fd, command, argument);
}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a library is put before that of C")
@pytest.mark.parametrize(("lack", "said"), [("memory", "share files in memory"), ("locks", "lock files")])
def test_a_file_system_without_what_sqlite_needs_is_refused_at_once(lack, said, tmp_path):
    """As a mounted share may be: the calls fail in a library that stands before that of C."""
    (tmp_path / "lacking.c").write_text(LACKING)
    library = tmp_path / "lacking.so"
    assert os.system(f"cc -shared -fPIC -o {library} {tmp_path / 'lacking.c'} -ldl") == 0
    script = f"""
import os, subprocess, sys
code = '''
from manytail import Shared
try:
    Shared({str(tmp_path / "a.db")!r}, "a", outage_timeout=1_000.0).remembered()
except ValueError as error:
    assert str(error).startswith("where: ") and "file system (" in str(error), error
    assert {said!r} in str(error) and "postgresql://" in str(error), error
else:
    raise AssertionError
'''
environment = {{**os.environ, "LD_PRELOAD": {str(library)!r}, "LACKS": {lack!r}}}
subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout={DEADLINE})
"""
    run_script(script)
