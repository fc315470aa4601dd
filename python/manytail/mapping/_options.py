"""The options of a map, checked at the call: "option: value (expected: ...)", ValueError or TypeError. Used by manytail.spark too."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

ORDERS = ("input", "key", "completion")
RetryOn = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]


@dataclass(frozen=True)
class Options:
    """What a map was told, checked. Picklable if the functions are."""

    workers: int = 16
    max_in_flight: int = 0
    order: str = "input"
    keyed: bool = False
    per_key: int = 0
    prioritised: bool = False
    timeout: float | None = None
    deadline: float | None = None
    retries: int = 0
    backoff: float | Callable[[int, BaseException], float] = 0.1
    max_backoff: float = 60.0
    retry_on: RetryOn = Exception
    never_retry: tuple[type[BaseException], ...] = ()
    defer_timeout: float = 600.0
    errors: str = "raise"
    setup: Callable[[], Any] | None = None
    is_async: bool = False

    def retries_on(self, error: BaseException) -> bool:
        """Whether an attempt that failed so may be tried again. Runs the user's predicate."""
        if isinstance(self.retry_on, (type, tuple)):
            return isinstance(error, self.retry_on)
        return bool(self.retry_on(error))


def check(fn: Any, given: Mapping[str, Any], *, arguments: int | None = 1, failures: tuple[str, ...] = ("raise", "return", "drop")) -> Options:
    """The options given, by name; `keyed`, `prioritised` and `weights` among them. `arguments`: how many fn gets by position, None: any number."""
    values = dict(given)
    weights, keyed = values.pop("weights", None), values.get("keyed", False)
    workers = whole("workers", values.get("workers", 16), 1)
    order = choice("order", values.get("order", "input"), ORDERS)
    per_key = whole("per_key", values.get("per_key", 0), 0)
    if not keyed:
        for option, value in (("per_key", per_key or None), ("weights", weights), ("order", order if order == "key" else None)):
            if value is not None:
                raise bad_value(option, value, "key is given")
    max_in_flight = whole("max_in_flight", values.get("max_in_flight", 0), 0)
    if 0 < max_in_flight < workers:
        raise bad_value("max_in_flight", max_in_flight, f"0, which means automatic, or at least workers, which is {workers}")
    setup = values.get("setup")
    if setup is not None:
        function("setup", setup)
    check_fn(fn, arguments, setup is not None)
    if setup is not None:
        check_setup(setup, fn)
    return Options(
        workers=workers,
        max_in_flight=max_in_flight,
        order=order,
        keyed=keyed,
        per_key=per_key,
        prioritised=values.get("prioritised", False),
        timeout=optional_seconds("timeout", values.get("timeout")),
        deadline=optional_seconds("deadline", values.get("deadline")),
        retries=whole("retries", values.get("retries", 0), 0),
        backoff=check_backoff(values.get("backoff", 0.1)),
        max_backoff=seconds("max_backoff", values.get("max_backoff", 60.0)),
        retry_on=check_retry_on(values.get("retry_on", Exception)),
        never_retry=values.get("never_retry", ()),
        defer_timeout=seconds("defer_timeout", values.get("defer_timeout", 600.0)),
        errors=choice("errors", values.get("errors", "raise"), failures),
        setup=setup,
        is_async=is_async(fn),
    )


# ---------------------------------------------------------------------------------------------------- single options
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


def choice(option: str, value: Any, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise bad_value(option, value, " or ".join(repr(one) for one in allowed))
    return value


def function(option: str, value: Any) -> Callable[..., Any]:
    if not callable(value):
        raise bad_type(option, value, "a callable")
    return value  # type: ignore[no-any-return]


def seconds(option: str, value: Any, *, positive: bool = False) -> float:
    """A number >= 0 or > 0; infinity is one."""
    expected = f"seconds, a number {'>' if positive else '>='} 0"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise bad_type(option, value, expected)
    if math.isnan(value) or value < 0 or (positive and value == 0):
        raise bad_value(option, value, expected)
    return float(value)


def optional_seconds(option: str, value: Any) -> float | None:
    found = math.inf if value is None else seconds(option, value, positive=True)
    return None if math.isinf(found) else found


def check_weights(value: Any) -> dict[Any, int] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise bad_type("weights", value, "a mapping from keys to ints >= 1")
    for key, weight in value.items():
        whole(f"weights[{key!r}]", weight, 1)
    return dict(value)


def check_backoff(value: Any) -> float | Callable[[int, BaseException], float]:
    if callable(value):
        if not accepts(value, 2):
            raise bad_type("backoff", value, "a callable that takes the attempt's number and the exception")
        return value  # type: ignore[no-any-return]
    found = seconds("backoff", value)
    if math.isinf(found):
        raise bad_value("backoff", value, "finite seconds, or a callable that gets the attempt's number and the exception")
    return found


def check_retry_on(value: Any) -> RetryOn:
    expected = "an exception class, a tuple of them, or a callable that takes the exception"
    if isinstance(value, (type, tuple)):
        for kind in value if isinstance(value, tuple) else (value,):
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise bad_type("retry_on", value, expected)
    elif not callable(value) or not accepts(value, 1):
        raise bad_type("retry_on", value, expected)
    return value  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------------- functions
def check_fn(fn: Any, arguments: int | None, has_setup: bool) -> None:
    """Refuse an fn that cannot be called with its item (None: any number of arguments), and `delivery=` and `resource=` as far as it takes them."""
    function("fn", fn)
    inner = unwrapped(fn)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise bad_type("fn", fn, "a function that returns its result; this one is a generator function")
    if arguments is None:
        return
    keywords = {"delivery"} & unfilled(fn, arguments) | ({"resource"} if has_setup else set())
    if not accepts(fn, arguments, keywords):
        takes = "one argument" if arguments == 1 else f"{arguments} arguments"
        given = ", with resource= because of setup" if has_setup else "; resource= comes from setup only"
        raise bad_type("fn", fn, f"a callable that takes {takes}{given}")


def check_setup(setup: Any, fn: Any) -> None:
    if not accepts(setup, 0):
        raise bad_type("setup", setup, "a callable without arguments")
    if is_async(setup) and not is_async(fn):
        raise bad_type("setup", setup, "a plain function, because fn is one: nothing would await what it returns")


def unwrapped(fn: Any) -> Any:
    """The function itself: of a partial, and of an object its `__call__`."""
    while isinstance(fn, partial):
        fn = fn.func
    return fn if inspect.isroutine(fn) or isinstance(fn, type) else getattr(type(fn), "__call__", fn)  # noqa: B004 - the method is meant


def is_async(fn: Any) -> bool:
    """Whether fn is a coroutine function, a partial of one, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(unwrapped(fn))


def accepts(fn: Any, arguments: int, keywords: set[str] | frozenset[str] = frozenset()) -> bool:
    """Whether fn can be called so. A builtin that does not say is believed."""
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
