"""Checks of single values that users give: of options, and of what objects among them are made of.

A bad one raises ValueError or TypeError with the text "option: value (expected: ...)".
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial, wraps
from itertools import takewhile
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
LARGEST_WEIGHT = 2**32 - 1  # of a MultiQueue


def by(check: Callable[..., Any], **more: Any) -> dict[str, Any]:
    """Marks a field of a dataclass as what a user gives. `check(name, value, **more)` returns the kept value, or
    raises."""
    return {"check": partial(check, **more)}


# ---------------------------------------------------------------------------------------------------- values
def bad_value(option: str, value: Any, expected: str) -> ValueError:
    return ValueError(f"{option}: {value!r} (expected: {expected})")


def bad_type(option: str, value: Any, expected: str) -> TypeError:
    return TypeError(f"{option}: {value!r} of type {type(value).__qualname__} (expected: {expected})")


def whole(option: str, value: Any, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_type(option, value, f"an int >= {low}")
    if value < low:
        raise bad_value(option, value, f"an int >= {low}")
    return value


def optional_whole(option: str, value: Any, low: int) -> int | None:
    return None if value is None else whole(option, value, low)


def choice(option: str, value: Any, allowed: Iterable[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise bad_value(option, value, " or ".join(repr(one) for one in allowed))
    return value


def function(option: str, value: Any) -> Callable[..., Any]:
    if not callable(value):
        raise bad_type(option, value, "a callable")
    return value  # type: ignore[no-any-return]


def optional_function(option: str, value: Any) -> Callable[..., Any] | None:
    return None if value is None else function(option, value)


def seconds(option: str, value: Any, *, positive: bool = False) -> float:
    """A number >= 0, or > 0 if `positive`. May be infinite."""
    expected = f"seconds, a number {'>' if positive else '>='} 0"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise bad_type(option, value, expected)
    try:
        found = float(value)
    except OverflowError:  # of an int
        raise bad_value(option, value, expected) from None
    if not (found > 0 if positive else found >= 0):
        raise bad_value(option, value, expected)
    return found


def optional_seconds(option: str, value: Any) -> float | None:
    found = math.inf if value is None else seconds(option, value, positive=True)
    return None if math.isinf(found) else found


def finite(option: str, value: Any, *, positive: bool = False) -> float:
    found = seconds(option, value, positive=positive)
    if math.isinf(found):
        raise bad_value(option, value, f"seconds, a finite number {'>' if positive else '>='} 0")
    return found


def check_weights(option: str, value: Any) -> dict[Any, int] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise bad_type(option, value, "a mapping from keys to ints >= 1")
    for key, weight in value.items():
        if whole(f"{option}[{key!r}]", weight, 1) > LARGEST_WEIGHT:
            raise bad_value(f"{option}[{key!r}]", weight, f"an int <= {LARGEST_WEIGHT}")
    return dict(value)


def check_flag(option: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise bad_type(option, value, "True or False")
    return value


# ---------------------------------------------------------------------------------------------------- functions
def unwrapped(fn: Any) -> Any:
    """The function itself: of a partial its function, of an object its `__call__`."""
    while isinstance(fn, partial):
        fn = fn.func
    if inspect.isroutine(fn) or isinstance(fn, type):
        return fn
    return getattr(type(fn), "__call__", fn)  # noqa: B004 - the method is meant


def is_async(fn: Any) -> bool:
    """Whether fn is a coroutine function, a partial of one, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(unwrapped(fn))


def accepts(fn: Any, arguments: int, keywords: set[str] | frozenset[str] = frozenset()) -> bool:
    """Whether fn can be called so. True for a builtin without a signature."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * arguments, **dict.fromkeys(keywords))
    except TypeError:
        return False
    return True


def unfilled(fn: Any, arguments: int) -> set[str]:
    """The names of parameters that can be passed by keyword when the first `arguments` are passed by position."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return set()
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    taken = {one.name for one in positional[:arguments]}
    return {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)} - taken


# ---------------------------------------------------------------------------------------------------- names
def refuse_unknown(function: str, given: Iterable[str], names: Sequence[str]) -> None:
    """TypeError: a name that is no option, with the nearest one that is."""
    for name in given:
        if name not in names:
            nearest = max(names, key=partial(_likeness, name))
            raise TypeError(f"{name}: no option of {function} (expected: {nearest}?)")


def _likeness(name: str, other: str) -> float:
    """The beginning counts most."""
    equal = takewhile(lambda pair: pair[0] == pair[1], zip(name, other, strict=False))
    return SequenceMatcher(None, name, other).ratio() + len(list(equal)) / len(name)


def names_options(function: Callable[P, R]) -> Callable[P, R]:
    """A function that refuses keywords that it does not know, with the nearest one that it does."""
    names = tuple(inspect.signature(function).parameters)

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        refuse_unknown(function.__name__, named, names)
        return function(*arguments, **named)

    return call
