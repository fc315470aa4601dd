"""Checks of single values that users give: of options, and of what objects among them are made of.

A bad one raises ValueError or TypeError with the text "option: value (expected: ...)".
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
LARGEST_WEIGHT = 2**32 - 1  # of a MultiQueue


def by(check: Callable[..., Any], **more: Any) -> dict[str, Any]:
    """Marks a field of a dataclass as what a user gives. `check(name, value, **more)` returns the kept value, or
    raises."""
    return {"check": partial(check, **more)}


# ---------------------------------------------------------------------------------------------------- values
def shown(value: Any) -> str:
    """Its repr. Where that raises, what it is: Python refuses to write an int of thousands of digits."""
    try:
        return repr(value)
    except Exception:
        return f"an int of {value.bit_length()} bits" if isinstance(value, int) else f"<{type(value).__qualname__}>"


def bad_value(option: str, value: Any, expected: str) -> ValueError:
    return ValueError(f"{option}: {shown(value)} (expected: {expected})")


def bad_type(option: str, value: Any, expected: str) -> TypeError:
    return TypeError(f"{option}: {shown(value)} of type {type(value).__qualname__} (expected: {expected})")


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
    return _number(option, value, f"seconds, a number {'>' if positive else '>='} 0", positive)


def optional_seconds(option: str, value: Any) -> float | None:
    found = math.inf if value is None else seconds(option, value, positive=True)
    return None if math.isinf(found) else found


def finite(option: str, value: Any, *, positive: bool = False) -> float:
    found = seconds(option, value, positive=positive)
    if math.isinf(found):
        raise bad_value(option, value, f"seconds, a finite number {'>' if positive else '>='} 0")
    return found


def amount(option: str, value: Any, *, positive: bool = False, infinite: bool = False) -> float:
    """A finite number >= 0; > 0 where `positive`, and perhaps infinite."""
    expected = f"a {'' if infinite else 'finite '}number {'>' if positive else '>='} 0"
    found = _number(option, value, expected, positive)
    if math.isinf(found) and not infinite:
        raise bad_value(option, value, expected)
    return found


def _number(option: str, value: Any, expected: str, positive: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise bad_type(option, value, expected)
    try:
        found = float(value)
    except OverflowError:  # of an int
        raise bad_value(option, value, expected) from None
    if not (found > 0 if positive else found >= 0):
        raise bad_value(option, value, expected)
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
    """The names of parameters that can be passed by keyword when the first `arguments` are passed by position, and that
    no partial fills."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return set()
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    taken = {one.name for one in positional[:arguments]}
    named = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    return named - taken - filled(fn)


def filled(fn: Any) -> set[str]:
    """The names of parameters that a partial fills by keyword: whoever made it wants these values."""
    names: set[str] = set()
    while isinstance(fn, partial):
        names.update(fn.keywords)
        fn = fn.func
    return names


# ---------------------------------------------------------------------------------------------------- names
# What other libraries call our options, and what to write here.
ELSEWHERE = {
    **dict.fromkeys(
        ("max_workers", "num_workers", "n_workers", "n_jobs", "jobs", "processes", "threads", "num_threads",
         "concurrency", "max_concurrency", "max_concurrent", "concurrent", "parallelism", "max_at_once", "pool_size"),
        ("workers", "workers"),
    ),
    **dict.fromkeys(
        ("rate", "rate_limit", "ratelimit", "max_rate", "max_per_second", "rps", "requests_per_second", "rpm"),
        ("limits", 'limits=Rate(10, "second")'),
    ),
    **dict.fromkeys(("budget", "max_cost"), ("limits", "limits=Budget(5.0)")),
    **dict.fromkeys(("retries", "max_retries", "num_retries", "attempts", "max_attempts", "tries"), ("retry", "retry")),
    **dict.fromkeys(("backoff", "max_backoff", "delay", "wait"), ("retry", "retry=Retry(3, backoff=0.5)")),
    **dict.fromkeys(("chunksize", "chunk_size", "batch_size", "batchsize", "max_batch_size"), ("batch", "batch")),
    **dict.fromkeys(
        ("buffersize", "buffer_size", "prefetch", "prefetch_count", "max_queue", "maxsize", "max_pending"),
        ("max_in_flight", "max_in_flight"),
    ),
    **dict.fromkeys(("ordered", "preserve_order", "sort", "sorted"), ("order", "order")),
    **dict.fromkeys(("return_exceptions", "raise_exceptions", "on_error"), ("errors", 'errors="return"')),
    **dict.fromkeys(("cache", "memo", "memoize", "checkpoint", "resume"), ("remember", "remember")),
    **dict.fromkeys(("initializer", "init", "initargs"), ("setup", "setup")),
    **dict.fromkeys(("total_timeout", "max_time"), ("deadline", "deadline")),
    **dict.fromkeys(("verbose", "progress_bar", "show_progress", "tqdm", "desc"), ("progress", "progress")),
}  # fmt: skip


def refuse_unknown(function: str, given: Iterable[str], names: Sequence[str]) -> None:
    """TypeError: a name that is no option, with the one that is meant, if there is one of a similar name or meaning."""
    for name in given:
        if name not in names:
            option, written = ELSEWHERE.get(name, ("", ""))
            if option in names:
                raise TypeError(f"{name}: not an option of {function} (expected: {written}?)")
            nearest = max(names, key=partial(_likeness, name))
            near = _likeness(name, nearest) >= NEAR
            expected = f"{nearest}?" if near else f"one of {', '.join(names)}"
            raise TypeError(f"{name}: not an option of {function} (expected: {expected})")


NEAR = 0.75  # of 1: from here on a name is taken for a slip of another


def _likeness(name: str, other: str) -> float:
    return SequenceMatcher(None, name.lower().replace("_", ""), other.replace("_", "")).ratio()


def names_options(function: Callable[P, R]) -> Callable[P, R]:
    """A function, or the __init__ of a class, that refuses keywords that it does not know, with the nearest option that
    it does."""
    parameters = inspect.signature(function).parameters.values()
    options = tuple(one.name for one in parameters if one.default is not one.empty)
    others = {one.name for one in parameters if one.default is one.empty}
    shown_as = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        refuse_unknown(shown_as, named.keys() - others, options)
        return function(*arguments, **named)

    return call
