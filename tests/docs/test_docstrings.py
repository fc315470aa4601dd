"""The examples in docstrings of public classes and functions print what they say. The API reference shows them."""

import doctest
import importlib
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.thread_unsafe(reason="doctest replaces sys.stdout")

MODULES = ["manytail", "manytail.mapping", "manytail.executor", "manytail.queue", "manytail.broker"]


def examples() -> Iterator[doctest.DocTest]:
    found: dict[str, doctest.DocTest] = {}
    finder = doctest.DocTestFinder(exclude_empty=True)
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        names = {name: getattr(module, name) for name in module.__all__}
        for name, value in names.items():
            for test in finder.find(value, name, module=False, globs=vars(importlib.import_module("manytail")) | names):
                if test.examples and "._" not in test.name:
                    found.setdefault(test.docstring, test)
    yield from found.values()


EXAMPLES = list(examples())
NAMES = {"MultiQueue", "EntryQueue", "PubSubQueue", "concurrent_map", "KeyedExecutor"}
assert {example.name for example in EXAMPLES} >= NAMES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_a_docstring_says_what_it_prints(example):
    example.globs = {**example.globs, "__name__": "__main__"}
    told: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(example, out=told.append, clear_globs=False)
    assert "".join(told) == ""
