"""The one table of options: what is made of it, and what agrees with it."""

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

from manytail import AsyncCaller, Caller, Retry, aconcurrent_map, concurrent_map
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
        assert (f"\n    {option.name}: " in str(kind.__doc__)) == bool(option.of_callers)


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


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("retries", "retry"), ("worker", "workers"), ("breakers", "breaker"), ("perkey", "per_key")]
)
@pytest.mark.parametrize("function", [concurrent_map, aconcurrent_map, Caller, AsyncCaller])
def test_an_unknown_option_is_refused_with_the_nearest(function: Any, wrong: str, nearest: str) -> None:
    async def fn(item: int) -> int:
        return item

    with pytest.raises(TypeError, match=rf"^{wrong}: no option of {function.__name__} \(expected: {nearest}\?\)"):
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
