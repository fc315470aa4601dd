"""`Shared` as a value: arguments, what repr and pickles show, and who imports what. No database is asked."""
import os
import pickle
import sys
from pathlib import Path

import pytest
from support.process import run_script
from support.threads import DEADLINE

from manytail import Shared, concurrent_map
from manytail.mapping import _shared_database

pytestmark = pytest.mark.thread_unsafe(reason="a database, an environment or a process of its own for each test")

SECRET = "s3cr:t@%"
QUOTED = "s3cr%3At%40%25"


def url_of_test() -> str:
    return f"postgresql://user:{QUOTED}@127.0.0.1/db"


@pytest.mark.parametrize(
    ("where", "wrong", "said"),
    [
        ("", ValueError, "in memory"),
        ("a\0b", ValueError, "with a null character"),
        ("sqlite:///a\0b", ValueError, "with a null character"),
        (":memory:", ValueError, "in memory"),
        (f"postgresql://user:{SECRET}@host:port/db", ValueError, "cannot be read"),
        (f"postgresql://user:{QUOTED}@host:port/db", ValueError, "cannot be read"),
        (f"postgresql://user:{QUOTED}@host/db?nothing=1", ValueError, "invalid connection option 'nothing'"),
        ("sqlite://", ValueError, "without a path"),
        ("sqlite:///:memory:", ValueError, "in memory"),
        ("sqlite:///file::memory:?uri=true", ValueError, "with parameters"),
        ("sqlite:///a.db?mode=memory", ValueError, "with parameters"),
        (f"mysql://user:{QUOTED}@host/db", ValueError, "'mysql'"),
        (f"postgresql+psycopg://user:{QUOTED}@host/db", ValueError, r"'postgresql\+psycopg'"),
        ("env:", ValueError, "environment variable"),
        ("env:not a name", ValueError, "environment variable"),
        (None, TypeError, "NoneType"),
        (b"sqlite:///a.db", TypeError, "bytes"),
        (lambda needed: "", TypeError, "without arguments"),
    ],
)
def test_what_names_no_database_is_refused_at_once_and_not_shown(where, wrong, said):
    with pytest.raises(wrong, match=said) as caught:
        Shared(where, "name")
    assert str(caught.value).startswith("where: ")
    assert "s3cr" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"name": ""}, ValueError),
        ({"name": "x" * 101}, ValueError),
        ({"name": "a\0b"}, ValueError),
        ({"name": "\ud800"}, ValueError),
        ({"name": 1}, TypeError),
        ({"max_age": 0}, ValueError),
        ({"max_age": -1}, ValueError),
        ({"max_age": "1"}, TypeError),
        ({"outage_timeout": -1}, ValueError),
        ({"outage_timeout": float("inf")}, ValueError),
        ({"outage_timeout": True}, TypeError),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments, wrong):
    with pytest.raises(wrong, match=rf"^{next(iter(arguments))}: "):
        Shared("sqlite:///a.db", **{"name": "name", **arguments})


@pytest.mark.parametrize("where", ["sqlite:///sub.db", "sub.db", Path("sub.db")])
def test_a_relative_path_is_made_absolute_here(where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shared = Shared(where, "name")
    monkeypatch.chdir("/")
    assert shared.remembered() == 0
    assert os.listdir(tmp_path)[0].startswith("sub.db")


@pytest.mark.parametrize("name", ["a?b.db", "a%20b#c.db", "env:A.db"])
def test_a_path_object_is_a_path_whatever_its_name(name, tmp_path):
    shared = Shared(tmp_path / name, "name")
    assert shared.remembered() == 0
    assert (tmp_path / name).exists()


def make_directory(path: Path) -> None:
    path.mkdir()


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes and symbolic links of POSIX")
@pytest.mark.parametrize(
    ("make", "wrong", "said"),
    [
        (make_directory, IsADirectoryError, "is a directory"),
        (make_pipe, ValueError, "is a device, a pipe or a socket"),
        (make_loop, ValueError, "Too many levels of symbolic links"),
    ],
)
def test_what_is_no_file_is_refused_where_it_is_named(make, wrong, said, tmp_path):
    path = tmp_path / "a.db"
    make(path)
    for where in (path, str(path), f"sqlite:///{path}"):
        with pytest.raises(wrong, match=rf"^where: .*{said} \(expected: a file for the SQLite database\)$"):
            Shared(where, "name")
        with pytest.raises(wrong, match=rf"^remember: .*{said} \(expected: a file for the SQLite database\)$"):
            concurrent_map(make_pipe, [1], remember=where)
    later = Shared(lambda: str(path), "name", outage_timeout=DEADLINE)  # it is asked where it is used
    with pytest.raises(wrong, match=said):
        later.remembered()


def test_a_name_that_is_too_long_for_a_file_is_refused_in_a_short_message(tmp_path):
    with pytest.raises(ValueError, match=r"^where: .* \(expected: a file for the SQLite database\)$") as caught:
        Shared(tmp_path / ("x" * 5000), "name")
    assert len(str(caught.value)) < 400


def test_repr_and_pickle_show_no_password():
    literal = Shared(url_of_test() + f"?password={QUOTED}&sslpassword=hidden", "a name")
    assert repr(literal) == "Shared('postgresql://user@127.0.0.1/db', 'a name')"
    assert repr(Shared("env:DATABASE", "n")) == "Shared('env:DATABASE', 'n')"
    assert repr(Shared(url_of_test, "n")) == "Shared(<callable url_of_test>, 'n')"
    for kept_elsewhere in (Shared("env:DATABASE", "n"), Shared(url_of_test, "n")):
        assert b"s3cr" not in pickle.dumps(kept_elsewhere)


@pytest.mark.parametrize(
    ("url", "has"),
    [
        (url_of_test(), True),
        ("postgresql://user@host/db", False),
        ("postgresql://user@host/db?password=x", True),
        ("postgresql://user@host/db?passfile=x", True),
        ("sqlite:///a.db", False),
        ("env:DATABASE", False),
        (url_of_test, False),
    ],
)
def test_it_knows_whether_its_pickle_holds_a_password(url, has):
    assert Shared(url, "name")._has_literal_password() is has


def test_a_pickle_is_the_same_with_a_connection_of_its_own(tmp_path):
    shared = Shared(f"sqlite:///{tmp_path}/a.db", "näme ' ; \n", max_age=9, outage_timeout=7)
    assert shared.remembered() == 0
    copy = pickle.loads(pickle.dumps(shared))
    assert (repr(copy), copy._max_age, copy._outage_timeout, copy._stores) == (repr(shared), 9.0, 7.0, {})
    assert copy.remembered() == 0


def test_a_url_from_the_environment_or_a_callable_is_read_where_it_is_used(tmp_path, monkeypatch):
    monkeypatch.delenv("MANYTAIL_TEST_URL", raising=False)
    unset = Shared("env:MANYTAIL_TEST_URL", "name")
    with pytest.raises(ValueError, match="'env:MANYTAIL_TEST_URL' is not set"):
        unset.remembered()
    monkeypatch.setenv("MANYTAIL_TEST_URL", f"sqlite:///{tmp_path}/a.db")
    assert unset.remembered() == 0
    assert Shared(lambda: f"sqlite:///{tmp_path}/a.db", "name").remembered() == 0
    monkeypatch.setenv("MANYTAIL_TEST_URL", f"mysql://u:{QUOTED}@h/db")
    with pytest.raises(ValueError, match="'mysql'") as caught:
        Shared("env:MANYTAIL_TEST_URL", "name").remembered()
    assert "s3cr" not in str(caught.value)
    with pytest.raises(TypeError, match="returned a NoneType"):
        Shared(lambda: None, "name").remembered()  # type: ignore[arg-type, return-value]


def test_secrets_are_scrubbed_in_every_form():
    found = _shared_database.database_of(url_of_test() + "?sslpassword=hidden")
    assert set(found.secrets) == {SECRET, QUOTED, "hidden"}


def test_init_runs_once(tmp_path):
    shared = Shared("sqlite:///a.db", "name")
    with pytest.raises(RuntimeError):
        shared.__init__("sqlite:///b.db", "name")  # type: ignore[misc]
    assert repr(Shared.__new__(Shared)) == "<Shared, not initialised>"


def test_drivers_are_imported_with_the_first_shared_that_needs_them():
    run_script("""
import sys
import manytail, manytail.mapping
manytail.Shared, manytail.concurrent_map
assert list(manytail.concurrent_map(str, [1])) == ["1"]
assert not {"sqlite3", "psycopg"} & set(sys.modules)
manytail.Shared("a.db", "name")
assert {"sqlite3", "psycopg"} & set(sys.modules) == {"sqlite3"}
""")


def test_a_driver_that_is_missing_is_named():
    run_script("""
import sys, manytail
sys.modules["psycopg"] = None
try:
    manytail.Shared("postgresql://u:s3cret@h/db", "name").remembered()
except ImportError as error:
    assert "pip install 'psycopg[binary]>=3.2'" in str(error) and "s3cret" not in str(error), error
else:
    raise AssertionError
""")


def test_no_thread_and_no_connection_before_it_is_used(tmp_path):
    Shared(f"sqlite:///{tmp_path}/a.db", "name")
    assert os.listdir(tmp_path) == []
