"""The one table of options, and what agrees with it: signatures, documentation, what editors show."""

import ast
import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from manytail._maps import AsyncCaller, Caller, aconcurrent_map, concurrent_map, maps
from manytail._maps.options import OF_MAPS, OPTIONS, Options

named = pytest.mark.parametrize("option", OPTIONS, ids=[one.name for one in OPTIONS])
FUNCTIONS = [concurrent_map, aconcurrent_map, Caller, AsyncCaller]
each_function = pytest.mark.parametrize("function", FUNCTIONS, ids=[one.__name__ for one in FUNCTIONS])


@each_function
def test_the_signature_has_every_option_with_its_default(function):
    parameters = inspect.signature(function).parameters
    assert next(iter(parameters)) == "fn"
    given = [one for one in parameters.values() if one.kind is one.KEYWORD_ONLY]
    wanted = [one for one in OPTIONS if not (isinstance(function, type) and one.name in OF_MAPS)]
    assert [(one.name, one.default) for one in given] == [(one.name, one.default) for one in wanted]


def test_the_types_of_an_option_are_the_same_in_all_signatures():
    first, *others = (inspect.signature(function).parameters for function in FUNCTIONS)
    for parameters in others:
        for name, one in parameters.items():
            if one.kind is one.KEYWORD_ONLY:
                assert one.annotation == first[name].annotation.replace(" | Literal['inline']", "")


@named
def test_a_default_passes_its_own_check_and_is_what_is_kept(option):
    kept = {one.name: one.default for one in fields(Options)}
    assert option.check(option.name, option.default) == kept[option.name]


@named
def test_the_docstring_says_what_an_option_does(option):
    """In the source, where editors read it."""
    (written,) = (
        ast.get_docstring(node)
        for node in ast.parse(Path(maps.__file__).read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "concurrent_map"
    )
    assert len(re.findall(rf"^{option.name}: \S", written, re.MULTILINE)) == 1
    assert written == inspect.getdoc(concurrent_map)


@pytest.mark.parametrize("kind", [Caller, AsyncCaller], ids=["Caller", "AsyncCaller"])
def test_the_docstring_of_a_caller_says_what_each_of_its_options_does(kind):
    text, of_maps = inspect.getdoc(kind), inspect.getdoc(concurrent_map)
    for one in OPTIONS:
        assert len(re.findall(rf"^{one.name}: \S", text, re.MULTILINE)) == (one.name not in OF_MAPS)
        (said,) = re.findall(rf"^{one.name}: .*(?:\n    .*)*", of_maps, re.MULTILINE)
        assert (said in text) == (one.name not in (*OF_MAPS, "workers", "max_in_flight"))
    assert "other options are those" not in text


@each_function
def test_an_unknown_option_is_refused_at_the_call(function):
    async def fn(item):
        return item

    with pytest.raises(TypeError, match="retries"):
        function(*(fn, [1])[: 1 if isinstance(function, type) else 2], retries=1)
