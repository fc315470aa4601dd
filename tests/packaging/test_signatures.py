"""Every public class, function and method shows its parameters and has a docstring, for help(), editors and IPython."""

import enum
import importlib
import inspect
import re
import types
from collections.abc import Iterator
from typing import Any

import pytest

import manytail
from manytail import _version
from manytail.mapping._policies import Policy

MODULES = [
    "manytail",
    "manytail.arrow",
    "manytail.arrow.engine",
    "manytail.broker",
    "manytail.broker.channel",
    "manytail.broker.exceptions",
    "manytail.broker.spec",
    "manytail.errors",
    "manytail.executor",
    "manytail.mapping",
    "manytail.queue",
    "manytail.spark",
]
# Values: no method of theirs waits.
WITHOUT_PROGRESS = (tuple, BaseException, enum.Enum, Policy)
# `**options` are the keywords of another function that the docstring names; `*args` are passed on, or refused.
VARIADIC = {
    "ConnectionParameters",
    "Consumer.subscribe",
    "Delivery.spent",
    "Entry",
    "EntryQueue.aput",
    "EntryQueue.put_many",
    "KeyedExecutor.map",
    "KeyedExecutor.submit",
    "Lane.map",
    "Lane.submit",
    "LastValueQueue",
    "PriorityEntryQueue",
    "SortedEntryQueue",
    "SubQueue",
    "Subscriber",
    "Subscription",
}


def is_ours(thing: Any) -> bool:
    return (getattr(thing, "__module__", None) or "").startswith("manytail")


def exported() -> dict[str, Any]:
    """The classes and functions that public modules export, by qualified name."""
    found = {}
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and is_ours(value):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that a class of ours has from a class of ours."""
    for name in dir(cls):
        if not name.startswith("_"):
            owner = next((base for base in cls.__mro__ if name in vars(base)), object)
            if is_ours(owner):
                yield name, vars(owner)[name]


EXPORTED = exported()
CLASSES = {name: value for name, value in EXPORTED.items() if inspect.isclass(value)}
FUNCTIONS = {name: value for name, value in EXPORTED.items() if not inspect.isclass(value)}
METHODS = {
    f"{name}.{member}": getattr(cls, member)
    for name, cls in CLASSES.items()
    for member, value in members(cls)
    if callable(getattr(cls, member)) and not inspect.isclass(value)
}
PROPERTIES = {
    f"{name}.{member}": value
    for name, cls in CLASSES.items()
    for member, value in members(cls)
    if isinstance(value, property | types.GetSetDescriptorType)
}
CALLABLES = CLASSES | FUNCTIONS | METHODS


def test_there_is_something_to_look_at() -> None:
    """The four lists are made by reflection, which finds compiled members and Python's alike."""
    assert {"manytail.get_include", "manytail.mapping._map.concurrent_map"} <= FUNCTIONS.keys()
    assert {"manytail._multiqueue.SubQueue.put", "manytail.executor.KeyedExecutor.submit"} <= METHODS.keys()
    assert {"manytail._entries.Entry.item", "manytail.broker.channel.Channel.consumer_tags"} <= PROPERTIES.keys()


def variadic(name: str) -> bool:
    kinds = {parameter.kind for parameter in inspect.signature(CALLABLES[name]).parameters.values()}
    return bool(kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})


def test_inspect_tells_the_parameters() -> None:
    short = {name: re.sub(r"^.*?(?=[A-Z])", "", name) for name in CALLABLES if variadic(name)}
    inherited = {"aput", "put_many"}  # of the EntryQueues in other orders
    wrong = {
        name
        for name, its in short.items()
        if its not in VARIADIC
        and its.partition(".")[2] not in inherited
        and not (name in CLASSES and issubclass(CLASSES[name], BaseException))
    }
    assert wrong == set()


def test_a_docstring_says_what_each_does() -> None:
    assert [name for name, value in (CALLABLES | PROPERTIES).items() if not inspect.getdoc(value)] == []


def test_all_is_complete_and_without_repeats() -> None:
    assert len(manytail.__all__) == len(set(manytail.__all__))
    ours = {name for name, value in vars(manytail).items() if not name.startswith("_") and is_ours(value)}
    assert ours <= set(manytail.__all__)
    assert all(hasattr(manytail, name) for name in manytail.__all__)
    assert manytail.__version__ == _version.__version__


PROGRESS = re.compile(
    r"Blocking\b|is blocking|methods block\b|may block|may wait|lock-free|\bhold a lock|"
    r"waits in (?:your|the) event loop|[Ll]ocks (?:and|are)|other locks are"
)


@pytest.mark.parametrize("module", ["manytail", "manytail.executor", "manytail.queue"])
def test_classes_and_functions_that_may_wait_say_what_their_progress_is(module: str) -> None:
    """In the class's own docstring, or in that of the class that it is made from."""
    exported = [getattr(importlib.import_module(module), name) for name in importlib.import_module(module).__all__]
    ours = [value for value in exported if callable(value) and is_ours(value)]
    may_wait = [value for value in ours if not (inspect.isclass(value) and issubclass(value, WITHOUT_PROGRESS))]
    silent = []
    for value in may_wait:
        docs = [" ".join((inspect.getdoc(each) or "").split()) for each in getattr(value, "__mro__", (value,))]
        if value.__name__ != "get_include" and not any(PROGRESS.search(doc) for doc in docs):
            silent.append(value.__name__)
    assert silent == []
