"""What `map_concurrent` and `concurrent_udf` are told, checked on the driver before anything runs.

Every message names the option, its value and what was expected. The exceptions are PySpark's, which are ValueErrors and TypeErrors too.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pyspark.errors import PySparkTypeError, PySparkValueError
from pyspark.sql.types import StructType

from ._engine import Settings
from ._results import ResultError, Results
from ._rows import session_zone

ORDERS = ("input", "key", "none")
LATER: dict[str, Any] = {"rate": None, "per_key_rate": None, "breaker": 0, "breaker_reset": 30.0, "breaker_open": "wait", "metrics": False}


def bad_value(option: str, value: Any, expected: str) -> PySparkValueError:
    return PySparkValueError(f"{option}: {value!r} (expected: {expected})")


def bad_type(option: str, value: Any, expected: str) -> PySparkTypeError:
    return PySparkTypeError(f"{option}: {value!r} of type {type(value).__qualname__} (expected: {expected})")


def refuse_later(options: Mapping[str, Any]) -> None:
    """Options of the contract that this version does not have yet."""
    for name, default in LATER.items():
        if name in options and options[name] != default:
            raise NotImplementedError(f"{name}: {options[name]!r} (expected: {default!r}; this version of manytail does not have this option yet)")


# ---------------------------------------------------------------------------------------------------- single options
def whole(option: str, value: Any, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_type(option, value, f"an int >= {low}")
    if value < low:
        raise bad_value(option, value, f"an int >= {low}")
    return value


def choice(option: str, value: Any, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise bad_value(option, value, " or ".join(repr(one) for one in allowed))
    return value


def name(option: str, value: Any) -> str:
    if not isinstance(value, str):
        raise bad_type(option, value, "a column name")
    if not value:
        raise bad_value(option, value, "a column name")
    return value


def function(option: str, value: Any) -> Callable[..., Any]:
    if not callable(value):
        raise bad_type(option, value, "a callable")
    return value  # type: ignore[no-any-return]


def seconds(option: str, value: Any, *, zero: bool) -> float:
    expected = f"seconds, a number {'>=' if zero else '>'} 0"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise bad_type(option, value, expected)
    if math.isnan(value) or value < 0 or (value == 0 and not zero):
        raise bad_value(option, value, expected)
    return float(value)


def _timeout(value: Any) -> float | None:
    if value is None:
        return None
    found = seconds("timeout", value, zero=False)
    return None if math.isinf(found) else found


def _backoff(value: Any) -> float | Callable[[int], float]:
    if callable(value):
        return value  # type: ignore[no-any-return]
    found = seconds("backoff", value, zero=True)
    if math.isinf(found):
        raise bad_value("backoff", value, "finite seconds, or a callable that gets the attempt's number")
    return found


def _retry_on(value: Any) -> type[BaseException] | tuple[type[BaseException], ...]:
    kinds = value if isinstance(value, tuple) else (value,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise bad_type("retry_on", value, "an exception class or a tuple of them")
    return value  # type: ignore[no-any-return]


def _max_in_flight(value: Any, workers: int) -> int:
    found = whole("max_in_flight", value, 0)
    if found and found < workers:
        raise bad_value("max_in_flight", value, f"0, which means automatic, or at least workers, which is {workers}")
    return found


def weights(value: Any, keyed: bool) -> dict[Any, int] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise bad_type("weight", value, "a mapping from keys to ints >= 1")
    for key, turns in value.items():
        whole(f"weight[{key!r}]", turns, 1)
    if not keyed:
        raise bad_value("weight", value, "None, because key is not given")
    return dict(value)


def result_types(option: str, result: StructType, zone: str) -> StructType:
    """The same, if a task will be able to check results against it."""
    try:
        Results(result, session_zone(zone))
    except TypeError as error:
        raise bad_type(option, result.simpleString(), "types that have Python and Arrow values") from error
    return result


# ---------------------------------------------------------------------------------------------------- functions
def is_async(fn: Callable[..., Any]) -> bool:
    """Whether fn is a coroutine function, a partial of one, or an object whose __call__ is one."""
    while isinstance(fn, partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004 - the method is meant


def takes(fn: Callable[..., Any], parameter: str, *, any_keyword: bool = False) -> bool:
    """Whether fn can be given a keyword argument of that name; by way of **kwargs only if `any_keyword`."""
    try:
        found = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return any_keyword  # a builtin that does not say
    one = found.get(parameter)
    if one is not None and one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD):
        return True
    return any_keyword and any(each.kind is each.VAR_KEYWORD for each in found.values())


def _setup(value: Any, fn: Callable[..., Any]) -> Callable[[], Any] | None:
    if value is None:
        return None
    function("setup", value)
    if not takes(fn, "resource", any_keyword=True):
        raise bad_type("setup", value, "None, or a function that takes what setup makes as `resource=`")
    return value  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------------- all together
def settings(
    fn: Callable[..., Any],
    *,
    workers: Any = 16,
    max_in_flight: Any = 0,
    ordered: Any = "input",
    keyed: bool = False,
    per_key: Any = 0,
    weighted: bool = False,
    prioritised: bool = False,
    timeout: Any = None,
    retries: Any = 0,
    backoff: Any = 0.1,
    retry_on: Any = Exception,
    errors: Any = "raise",
    allowed_errors: tuple[str, ...] = ("raise", "column", "drop"),
    setup: Any = None,
) -> Settings:
    """The scheduler's part of the options."""
    function("fn", fn)
    whole("workers", workers, 1)
    choice("ordered", ordered, ORDERS)
    whole("per_key", per_key, 0)
    if not keyed and per_key:
        raise bad_value("per_key", per_key, "0, because key is not given")
    if not keyed and ordered == "key":
        raise bad_value("ordered", ordered, "'input' or 'none', because key is not given")
    return Settings(
        workers=workers,
        max_in_flight=_max_in_flight(max_in_flight, workers),
        ordered=ordered,
        per_key=per_key,
        weighted=weighted,
        prioritised=prioritised,
        timeout=_timeout(timeout),
        retries=whole("retries", retries, 0),
        backoff=_backoff(backoff),
        retry_on=_retry_on(retry_on),
        never_retry=(ResultError,),
        errors=choice("errors", errors, allowed_errors),
        setup=_setup(setup, fn),
        is_async=is_async(fn),
    )
