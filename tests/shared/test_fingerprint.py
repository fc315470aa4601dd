"""`remember` with a path names results by fn alone: if fn has changed since, one warning says so, and they are used."""

import functools
import re
import sqlite3
import warnings
from typing import Any

import pytest

from manytail import Caller, Shared, concurrent_map
from manytail.mapping._fingerprint import fingerprint

pytestmark = pytest.mark.thread_unsafe(reason="warnings are of the whole process")

FETCH = 'def fetch(item, unit="m", *, scale=2):\n    """What it does."""\n    return f"{item * scale} {unit}"\n'
OTHERS = {
    "a constant": FETCH.replace('} {', '}_{'),
    "the code": FETCH.replace("item * scale", "item + scale"),
    "a default": FETCH.replace('"m"', '"km"'),
    "a default by name": FETCH.replace("=2", "=3"),
    "an inner function": FETCH.replace("return f", "return (lambda: 1)() and f"),
}
SAME = {
    "its text": FETCH,
    "the docstring": FETCH.replace("does", "did"),
    "a line": "\n\n" + FETCH + "# more\n",
}


def made(source: str, name: str = "fetch") -> Any:
    namespace: dict[str, Any] = {"__name__": "jobs", "functools": functools}
    exec(source, namespace)
    return namespace[name]


def warned(fn: Any, where: Any, **options: Any) -> tuple[list[str], list[Any]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = list(concurrent_map(fn, [1, 2], remember=where, **options))
    return [str(one.message) for one in caught if one.category is UserWarning], results


@pytest.mark.parametrize("workers", [2, "inline"])
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_results_of_a_fn_that_has_changed_are_used_with_one_warning(tmp_path, other, workers):
    where = tmp_path / "run.db"
    first, second = made(FETCH), made(other)
    assert warned(first, where, workers=workers) == ([], ["2 m", "4 m"])
    assert warned(first, where, workers=workers)[0] == []
    (text,), results = warned(second, where, workers=workers)
    assert re.fullmatch(
        r"remember: fn has changed since results were recorded for it, from \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S+ on, and "
        r"these are used\. Begin anew with Shared\(.*run\.db.*, 'jobs\.fetch'\)\.forget\(\), or with another name",
        text,
    )
    assert results == ["2 m", "4 m"]
    assert warned(second, where, workers=workers)[0] == []  # once for a change
    assert len(warned(first, where, workers=workers)[0]) == 1
    Shared(where, "jobs.fetch").forget()
    assert warned(second, where, workers=workers)[0] == []  # nothing is left of the other one
    assert Shared(where, "jobs.fetch").remembered() == 2


@pytest.mark.parametrize("same", SAME.values(), ids=SAME)
def test_what_does_not_count_warns_of_nothing(tmp_path, same):
    where = tmp_path / "run.db"
    warned(made(FETCH), where)
    assert warned(made(same), where) == ([], ["2 m", "4 m"])


def test_a_shared_with_a_name_of_its_own_warns_of_nothing(tmp_path):
    shared = Shared(tmp_path / "run.db", "mine")
    warned(made(FETCH), shared)
    assert warned(made(OTHERS["the code"]), shared) == ([], ["2 m", "4 m"])


def test_results_of_another_python_or_release_warn_of_nothing(tmp_path):
    where = tmp_path / "run.db"
    warned(made(FETCH), where)
    for statement in (
        "UPDATE manytail_names SET codec = 'cpython-27-0 x' WHERE name LIKE '%fn of%'",
        "DELETE FROM manytail_names WHERE name LIKE '%fn of%'",
    ):
        with sqlite3.connect(where) as connection:
            assert connection.execute(statement).rowcount == 1
        connection.close()
        assert warned(made(OTHERS["the code"]), where)[0] == []
    assert len(warned(made(FETCH), where)[0]) == 1


def test_a_caller_warns_too_in_each_database(database):
    where = database.url
    warned(made(FETCH), where)
    with pytest.warns(UserWarning, match="fn has changed"), Caller(made(OTHERS["the code"]), remember=where) as call:
        assert call(1) == "2 m"


DECORATED = """
def decorated(limit):
    def decorate(fn):
        @functools.wraps(fn)
        def wrapper(item):
            return fn(item)[:limit]
        return wrapper
    return decorate

@decorated({limit})
def fetch(item):
    return f"{{item}}{text}"
"""


def test_values_and_functions_of_a_closure_count():
    marks = [
        fingerprint(made(DECORATED.format(limit=limit, text=text)))
        for limit, text in [(3, "a"), (3, "a"), (4, "a"), (3, "b"), ("object()", "a"), ("object()", "a")]
    ]
    assert marks[0] == marks[1]
    assert len(set(marks)) == 4
    assert marks[4] == marks[5]  # what has no key does not count
    assert fingerprint(made("@functools.cache\n" + FETCH)) == fingerprint(made(FETCH))
    assert fingerprint(str.upper) is None


RECURSIVE = "def fetch(item):\n    return inner(item) in {'a', 'b', 'c'}\ndef inner(item):\n    return item\n"


def test_a_constant_set_counts_in_any_order():
    one, other = made(RECURSIVE), made(RECURSIVE.replace("'a', 'b', 'c'", "'c', 'b', 'a'"))
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint(one) != fingerprint(made(RECURSIVE.replace("'a', ", "")))
