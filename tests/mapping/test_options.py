"""The one list of options, `Options`: the signatures of the public functions agree with it."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import pytest

from manytail import aconcurrent_map, concurrent_map
from manytail.mapping._options import CHECKS, Options

DEFAULTS = {one.name: one.default for one in fields(Options)}


@pytest.mark.parametrize("function", [concurrent_map, aconcurrent_map])
def test_the_signature_has_every_option_with_its_default(function: Callable[..., Any]) -> None:
    given = {name: one for name, one in inspect.signature(function).parameters.items() if one.kind is one.KEYWORD_ONLY}
    assert set(given) == {*CHECKS, "key", "priority", "item_id", "progress"}
    assert {name: check(name, given[name].default) for name, check in CHECKS.items()} == {
        name: DEFAULTS[name] for name in CHECKS
    }


@pytest.mark.parametrize("name", CHECKS)
def test_every_default_passes_its_own_check(name: str) -> None:
    assert DEFAULTS[name] is not MISSING
    assert CHECKS[name](name, DEFAULTS[name]) == DEFAULTS[name]
