"""The one table of options: what is made of it, what agrees with it, and that bad options are refused at the call:
what, its value, what was expected."""

import asyncio
import inspect
import re
import subprocess
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from manytail import AsyncCaller, Caller, Rate, Retry, aconcurrent_map, concurrent_map
from manytail._checks import is_async, unfilled
from manytail.mapping._options import CALLER_OPTIONS, OPTIONS, Option, Options

ROOT = Path(__file__).resolve().parents[2]
KEPT = {one.name: one.default for one in fields(Options)}
named = pytest.mark.parametrize("option", OPTIONS, ids=[one.name for one in OPTIONS])


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (concurrent_map, OPTIONS),
        (aconcurrent_map, OPTIONS),
        (Caller, CALLER_OPTIONS),
        (AsyncCaller, CALLER_OPTIONS),
    ],
)
def test_the_signature_has_every_option_with_its_default(function: Any, options: Any) -> None:
    parameters = inspect.signature(function).parameters
    assert next(iter(parameters)) == "fn"
    given = [one for one in parameters.values() if one.kind is one.KEYWORD_ONLY]
    assert [(one.name, one.default) for one in given] == [(one.name, one.default) for one in options]


@named
def test_a_default_passes_its_own_check_and_is_what_is_kept(option: Option) -> None:
    assert option.check(option.name, option.default) == KEPT[option.name]


@named
def test_the_docstring_says_what_an_option_does(option: Option) -> None:
    assert option.about.strip()
    assert f"\n    {option.name}: " in str(concurrent_map.__doc__)
    assert max(map(len, str(concurrent_map.__doc__).splitlines())) <= 120
    for kind in (Caller, AsyncCaller):
        assert (f"\n    {option.name}: " in str(kind.__doc__)) == (option.name in inspect.signature(kind).parameters)


def test_the_stubs_are_those_of_the_table() -> None:
    command = [sys.executable, str(ROOT / "tools" / "mapping_stub.py"), "--check"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr


@named
def test_the_pages_name_every_option(option: Option) -> None:
    pages = ["guides/mapping.md"] if option.name == "progress" else ["guides/mapping.md", "spark.md"]
    for page in pages:
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert re.search(rf"`[^`\n]*\b{option.name}\b[^`\n]*`", text), page


RATE = Rate(1)
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"retry": -1}, ValueError, "retry: -1 (expected: an int >= 0, or a Retry)"),
    ({"retry": True}, TypeError, "retry: True of type bool (expected: an int >= 0, or a Retry)"),
    ({"retry": None}, TypeError, "retry: None of type NoneType (expected: an int >= 0, or a Retry)"),
    ({"timeout": 0}, ValueError, "timeout: 0 (expected: seconds, a number > 0)"),
    ({"timeout": -1.5}, ValueError, "timeout: -1.5 (expected: seconds, a number > 0)"),
    ({"timeout": 10**400}, ValueError, "timeout: 10000"),
    ({"timeout": 10**5000}, ValueError, "timeout: an int of 16610 bits (expected: seconds, a number > 0)"),
    ({"weights": {"a": 1 << 32}, "key": str}, ValueError, "weights['a']: 4294967296 (expected: an int <= 4294967295)"),
    ({"workers": 0}, ValueError, "workers: 0 (expected: an int >= 1, (least, most) or (least, s"),
    ({"workers": True}, TypeError, "workers: True of type bool (expected: an int >= 1, (least, most) or "),
    ({"workers": "2"}, TypeError, "workers: '2' of type str (expected: an int >= 1, (least, most) or "),
    ({"workers": (0, 4)}, ValueError, "workers: (0, 4) (expected: an int >= 1, (least, most) or "),
    ({"workers": (5, 2)}, ValueError, "workers: (5, 2) (expected: an int >= 1, (least, most) or "),
    ({"workers": (2, 1, 4)}, ValueError, "workers: (2, 1, 4) (expected: an int >= 1, (least, most) or "),
    ({"workers": (1, 5, 4)}, ValueError, "workers: (1, 5, 4) (expected: an int >= 1, (least, most) or "),
    ({"workers": (1, 2, 3, 4)}, TypeError, "workers: (1, 2, 3, 4) of type tuple (expected: an int >= 1, (least, most)"),
    ({"workers": (1,)}, TypeError, "workers: (1,) of type tuple (expected: an int >= 1, (least, most) or "),
    ({"workers": ("a", 2)}, TypeError, "workers: ('a', 2) of type tuple (expected: an int >= 1, (least, most) or "),
    ({"workers": (True, 2)}, TypeError, "workers: (True, 2) of type tuple (expected: an int >= 1, (least, most) or "),
    ({"workers": [1, 2]}, TypeError, "workers: [1, 2] of type list (expected: an int >= 1, (least, most) or "),
    ({"workers": (1, 4), "max_in_flight": 3}, ValueError, "or at least workers, which is 4)"),
    ({"breaker": 0}, ValueError, "breaker: 0 (expected: an int >= 1, or a Breaker)"),
    ({"breaker": True}, TypeError, "breaker: True of type bool (expected: an int >= 1, or a Breaker)"),
    ({"limits": 3}, TypeError, "limits: 3 of type int (expected: a Rate, a Budget, a Concurrency, or a list of them)"),
    ({"limits": [RATE, RATE]}, ValueError, "(expected: limits that are all different, with"),
    ({"limits": [Rate(1, name="a"), Rate(2, name="a")]}, ValueError, "(expected: limits that are all"),
    ({"limits": Rate(2, per_key=True)}, ValueError, "(expected: key as well)"),
    ({"limits": Rate(2, cost="price")}, ValueError, "(expected: a cost that is a function"),
    ({"batch": 0}, ValueError, "batch: 0 (expected: an int >= 1, or a Batch)"),
    (
        {"batch": 10, "workers": 4, "max_in_flight": 39},
        ValueError,
        "(expected: None, which means automatic, or at least workers x batch, which is 40)",
    ),
    ({"max_in_flight": 0}, ValueError, "max_in_flight: 0 (expected: an int >= 1)"),
    ({"per_key": 0, "key": str}, ValueError, "per_key: 0 (expected: an int >= 1)"),
    ({"dedup": 0}, ValueError, "dedup: 0 (expected: an int >= 1)"),
    ({"dedup": 1.5}, TypeError, "dedup: 1.5 of type float (expected: an int >= 1)"),
    ({"max_failures": -1, "errors": "drop"}, ValueError, "max_failures: -1 (expected: "),
    ({"max_failures": True, "errors": "drop"}, TypeError, "max_failures: True of type bool (expected: "),
    ({"max_failures": 1}, ValueError, "max_failures: 1 (expected: "),
    ({"fatal": 1}, TypeError, "fatal: 1 of type int (expected: "),
    ({"fatal": (int,)}, TypeError, "fatal: (<class 'int'>,) of type tuple (expected: "),
    ({"remember": ":memory:"}, ValueError, "remember: an SQLite database in memory (expected: the path of a SQLite"),
    ({"remember": "a\0b"}, ValueError, "remember: a path with a null character (expected: the path of a SQLite file"),
    ({"remember": "mysql://host/db"}, ValueError, "remember: a URL of 'mysql' (expected: the path of a SQLite file,"),
    ({"item_id": "id"}, TypeError, "item_id: 'id' of type str (expected: a callable that takes one argument)"),
]


@pytest.mark.parametrize(("options", "kind", "message"), BAD, ids=[message for _, _, message in BAD])
def test_a_bad_option_is_refused_before_an_item_is_taken(
    options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    taken: list[int] = []
    with pytest.raises(kind, match=re.escape(message)):
        concurrent_map(str, map(taken.append, range(3)), **options)
    assert taken == []


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("retries", "retry"), ("worker", "workers"), ("breakers", "breaker"), ("perkey", "per_key")]
)
@pytest.mark.parametrize("function", [concurrent_map, aconcurrent_map, Caller, AsyncCaller])
def test_an_unknown_option_is_refused_with_the_nearest(function: Any, wrong: str, nearest: str) -> None:
    async def fn(item: int) -> int:
        return item

    with pytest.raises(TypeError, match=rf"^{wrong}: not an option of {function.__name__} \(expected: {nearest}\?\)"):
        function(*(fn, [1])[: 1 if isinstance(function, type) else 2], **{wrong: 1})


def test_the_documentation_of_a_policy_names_each_of_its_fields() -> None:
    for name in inspect.signature(Retry).parameters:
        assert re.search(rf"\b{name}\b", str(Retry.__doc__))
    assert {"times", *list(inspect.signature(Retry.http).parameters)[3:]} == set(
        inspect.signature(Retry).parameters
    ) - {"on"}


# ---------------------------------------------------------------------------------------------- kinds of functions
async def coroutine(row: Any) -> Any:
    return row


class Asynchronous:
    async def __call__(self, row: Any) -> Any:
        return row

    async def method(self, row: Any) -> Any:
        return row


class Plain:
    def __call__(self, row: Any) -> Any:
        return coroutine(row)


@pytest.mark.parametrize(
    ("function", "expected"),
    [(coroutine, True), (partial(coroutine), True), (partial(partial(coroutine)), True), (Asynchronous(), True),
     (partial(Asynchronous()), True),
     (Asynchronous().method, True), (abs, False), (Plain(), False), (lambda row: coroutine(row), False), (len, False),
     (asyncio.sleep, True)],
)  # fmt: skip
def test_which_functions_are_async(function: Any, expected: bool) -> None:
    assert is_async(function) is expected


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda row, delivery: 0, True),
        (lambda row, *, delivery: 0, True),
        (lambda row, delivery=None: 0, True),
        (partial(lambda row, delivery: 0), True),
        (lambda row, **kwargs: 0, False),
        (lambda row, **delivery: 0, False),
        (lambda row, *delivery: 0, False),
        (lambda row: 0, False),
        (lambda delivery: 0, False),
        (len, False),
    ],
)
def test_who_gets_a_delivery(function: Any, expected: bool) -> None:
    assert ("delivery" in unfilled(function, 1)) is expected
