"""Failures of a database: a clear error without a secret, nothing lost, and work continues when it comes back."""
import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support import postgres
from support.process import run_script
from support.threads import DEADLINE, Threads, wait_until

from manytail import Shared, SharedUnavailable
from manytail.mapping._grants import Ask, Terms

pytestmark = pytest.mark.thread_unsafe(reason="a database, an environment or a process of its own for each test")

ID = b"0123456789abcdef"
posix = pytest.mark.skipif(sys.platform == "win32", reason="users and limits of a process as POSIX has them")
SECRETS = (postgres.PASSWORD, "pa%3Ass%40wo%2Frd", "s3cret")


@contextlib.contextmanager
def fails(wrong, said, caplog):
    """Expect that error. Neither it nor its causes nor the logs show a secret."""
    with caplog.at_level(logging.DEBUG), pytest.raises(wrong, match=said) as caught:
        yield
    error = caught.value
    while error is not None:
        assert not any(secret in f"{error} {error!r}" for secret in SECRETS)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert not any(secret in caplog.text for secret in SECRETS)


# ------------------------------------------------------------------------------------- errors that waiting cannot solve
def test_a_missing_directory(tmp_path, caplog):
    with fails(FileNotFoundError, "no directory", caplog):
        Shared(f"sqlite:///{tmp_path}/no/a.db", "a").remembered()


def test_a_file_that_is_a_directory(tmp_path, caplog):
    """Waiting does not help: SQLite reports it as it reports what may pass."""
    with fails(IsADirectoryError, "is a directory", caplog):
        Shared(f"sqlite:///{tmp_path}", "a").remembered()


def test_a_file_that_is_no_database(tmp_path, caplog):
    (tmp_path / "a.db").write_bytes(b"not a database at all" * 1_000)
    with fails(ValueError, "no SQLite database", caplog):
        Shared(f"sqlite:///{tmp_path}/a.db", "a").remembered()
    assert (tmp_path / "a.db").read_bytes() == b"not a database at all" * 1_000


@posix
def test_a_file_that_may_not_be_written(tmp_path):
    """In a process that does not run as root, which may write everything."""
    Shared(f"sqlite:///{tmp_path}/a.db", "a").remembered()
    os.chmod(tmp_path / "a.db", 0o444)
    script = f"""
import os, sys
from manytail import Shared
shared = Shared("sqlite:///{tmp_path}/a.db", "a")
Shared("sqlite:///{tmp_path}/b.db", "a").remembered()  # imports what a user without rights might not be able to read
if os.geteuid() == 0:
    os.chmod({str(tmp_path.parent)!r}, 0o755), os.chmod({str(tmp_path)!r}, 0o755)
    for folder in {[str(parent) for parent in tmp_path.parents]!r}:
        os.chmod(folder, os.stat(folder).st_mode | 0o111)
    os.seteuid(65534)
try:
    shared.remembered()
except PermissionError as error:
    assert "write" in str(error), error
else:
    raise AssertionError
"""
    run_script(script)


def test_a_wrong_password(server, caplog):
    for url in (server.url(password="s3cret"), server.url() + "?password=s3cret"):
        with fails(PermissionError, "password authentication failed", caplog):
            Shared(url, "a").remembered()


def test_a_database_or_user_that_is_not_there(server, caplog):
    with fails(PermissionError, 'database "nowhere" does not exist', caplog):
        Shared(server.url(database="nowhere"), "a").remembered()
    with fails(PermissionError, "authentication failed", caplog):
        Shared(server.url(user="nobody"), "a").remembered()


def test_an_option_that_is_none(server, caplog):
    with fails(ValueError, "invalid connection option", caplog):
        Shared(server.url() + "?no_such_option=1", "a").remembered()


def test_missing_rights(postgresql, server, caplog):
    name = postgresql.url.rsplit("/", 1)[1]
    role = f"guest_{name}"
    postgresql.query(f"CREATE ROLE {role} LOGIN PASSWORD 's3cret'")
    guest = server.url(user=role, password="s3cret", database=name)
    with fails(PermissionError, "permission denied", caplog):  # to create tables
        Shared(guest, "a").remembered()
    Shared(postgresql.url, "a")._store().record({ID: b"x"})
    with fails(PermissionError, "permission denied", caplog):  # to read them
        Shared(guest, "a").remembered()
    for table in ("names", "results", "limits", "holds"):
        postgresql.query(f"GRANT SELECT, INSERT, UPDATE, DELETE ON manytail_{table} TO {role}")
    postgresql.query(
        f"GRANT SELECT ON manytail_layout TO {role}", f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}"
    )
    shared = Shared(guest, "b")  # the tables exist; the right to create is missing
    shared._store().record({ID: b"y"})
    assert shared.remembered() == 1
    postgresql.query(f"REVOKE INSERT ON manytail_results FROM {role}")
    with fails(PermissionError, "permission denied", caplog):
        shared._store().record({ID: b"z"})
    assert shared.remembered() == 1


# ---------------------------------------------------------------------------------------------------- outages
def test_a_server_that_is_not_there(server, caplog):
    url = server.url().replace(str(server.port), "1")
    with fails(SharedUnavailable, r"unavailable for \d.*refused", caplog):
        Shared(url, "a", outage_timeout=0.3).remembered()


def test_a_lock_that_is_held_too_long(sqlite, monkeypatch):
    from manytail.mapping import _shared_database

    monkeypatch.setattr(_shared_database, "LOCK_WAIT", 0.01)
    shared = Shared(sqlite.url, "a", outage_timeout=0.1)
    shared._store().record({ID: b"x"})
    import sqlite3

    other = sqlite3.connect(sqlite.url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert shared._store().look_up([ID]) == {ID: b"x"}  # a reader does not wait for a writer
    with pytest.raises(SharedUnavailable, match="locked"):
        shared._store().record({ID[::-1]: b"y"})
    other.execute("COMMIT")
    other.close()
    shared._store().record({ID[::-1]: b"y"})
    assert shared.remembered() == 2


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_goes_away_and_comes_back(own_server, mode, caplog):
    shared = Shared(own_server.url(), "a", outage_timeout=10 * DEADLINE)
    store = shared._store()
    store.record({ID: b"before"})
    own_server.stop(mode)
    with caplog.at_level(logging.WARNING), Threads() as threads:
        recording = threads.start(store.record, {ID[::-1]: b"while away"})
        wait_until(lambda: "database is unavailable" in caplog.text)
        ask, terms = Ask(b"rate:r", b"rate:r", b"h", 1.0), {b"rate:r": Terms(1.0, 1.0)}
        leasing = threads.start(store.exchange, 0.1, terms, [ask], [[(0, 1.0)]])
        own_server.start()
        recording.result()
        assert leasing.result()[0][0].granted == 1.0
    assert store.look_up([ID, ID[::-1]]) == {ID: b"before", ID[::-1]: b"while away"}
    assert not any(secret in caplog.text for secret in SECRETS)


def test_a_server_that_stays_away(own_server, caplog):
    shared = Shared(own_server.url(), "a", outage_timeout=0.5)
    shared._store().record({ID: b"x"})
    own_server.stop()
    begin = time.monotonic()
    with fails(SharedUnavailable, "unavailable for", caplog):
        shared.remembered()
    assert time.monotonic() - begin >= 0.5
    own_server.start()
    assert shared.remembered() == 1


def test_a_connection_that_the_server_ends(postgresql):
    shared = Shared(postgresql.url, "a")
    shared._store().record({ID: b"x"})
    postgresql.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'manytail' AND datname = current_database()"
    )
    assert shared._store().look_up([ID]) == {ID: b"x"}


FULL = """
import resource, signal, sys
from manytail import Shared, SharedUnavailable
url = sys.argv[1]
shared = Shared(url, "a", outage_timeout=0.2)
store = shared._store()
store.record({b"1" * 16: b"before"})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limit[1]))
try:
    store.record({bytes([index]) * 16: b"x" * 100_000 for index in range(20)})
except SharedUnavailable as error:
    assert "disk" in str(error), error
else:
    raise AssertionError
assert store.look_up([b"1" * 16]) == {b"1" * 16: b"before"}
assert shared.remembered() == 1
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
store.record({bytes([index]) * 16: b"x" * 100_000 for index in range(20)})
assert shared.remembered() == 21
"""


@posix
def test_a_file_that_cannot_grow(sqlite):
    """A limit of the process replaces a full disk: writes fail in the middle."""
    run_script(FULL, arguments=[sqlite.url])


def mounted(folder: Path, size: str) -> bool:
    mount = f"mount -t tmpfs -o size={size} tmpfs {folder} 2>/dev/null"
    return sys.platform == "linux" and os.geteuid() == 0 and os.system(mount) == 0


def fill(file):
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as opened:
        while True:
            opened.write(b"x" * 4_096)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_full_disk(kind, request):
    """A small file system: full, then with space again."""
    # Not below tmp_path: pytest could not remove what a killed run leaves mounted there.
    parent = None if kind == "sqlite" else request.getfixturevalue("server").folder
    folder = Path(tempfile.mkdtemp(prefix="manytail-disk-", dir=parent))
    if not mounted(folder, "16m"):
        pytest.skip("a file system of 16 MB cannot be mounted here: that takes root and CAP_SYS_ADMIN")
    try:
        if kind == "sqlite":
            url, query = f"sqlite:///{folder}/a.db", None
        else:
            os.chown(folder, folder.parent.stat().st_uid, folder.parent.stat().st_gid)
            server = request.getfixturevalue("server")
            server.execute(f"CREATE TABLESPACE small LOCATION '{folder}'", "CREATE DATABASE small TABLESPACE small")
            url, query = server.url(database="small"), server.execute
        shared = Shared(url, "a", outage_timeout=0.2)
        store = shared._store()
        store.record({ID: b"before"})
        ballast = folder / "ballast"
        fill(ballast)
        many = {bytes([index]) * 16: os.urandom(1_000_000) for index in range(3)}
        with pytest.raises(SharedUnavailable, match=r"full|space"):
            store.record(many)
        assert store.look_up([ID]) == {ID: b"before"}
        ballast.unlink()
        store.record(many)
        assert store.look_up(list(many)) == many
        del shared, store
        if query is not None:
            query("DROP DATABASE small WITH (FORCE)", "DROP TABLESPACE small")
    finally:
        assert os.system(f"umount --lazy {folder}") == 0
        folder.rmdir()


def test_a_thread_that_gives_up_waits_no_longer(away):
    import threading

    shared = Shared(away, "a", outage_timeout=10 * DEADLINE)
    give_up = threading.Event()
    with Threads() as threads:
        task = threads.start(shared._store().look_up, [ID], give_up)
        give_up.set()
        with pytest.raises(SharedUnavailable):
            task.result()


def test_a_server_that_does_not_answer_is_waited_for(own_server):
    shared = Shared(own_server.url(), "a")
    shared._store().record({ID: b"x"})
    own_server.freeze(signal.SIGSTOP)
    with Threads() as threads:
        try:
            task = threads.start(shared._store().look_up, [ID])
        finally:
            own_server.freeze(signal.SIGCONT)
        assert task.result() == {ID: b"x"}
