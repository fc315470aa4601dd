"""The options of a map: the one table of their names, defaults and checks.

The signatures of maps and Callers are compared with it by tests; the docstring of `concurrent_map` says what each is.
The checks run when the map is called. A bad option raises ValueError or TypeError with the text "option: value
(expected: ...)".
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MethodDescriptorType, ModuleType
from typing import Any, NamedTuple

from manytail._checks import (
    accepts,
    bad_type,
    bad_value,
    check_weights,
    choice,
    filled,
    function,
    is_async,
    optional_function,
    optional_seconds,
    optional_whole,
    unfilled,
    unwrapped,
)

from .database.shared import Shared
from .limits.objects import Concurrency, Limit
from .outcomes import NO_NAMES, SpentNames
from .policies import Batch, Breaker, On, Retry, check_on
from .results.classes import MAIN, name_of_main
from .results.fingerprint import fingerprint

ORDERS = ("input", "key", "completion")


# ---------------------------------------------------------------------------------------------------- single options
def policy(option: str, value: Any, of: type[Any], low: int) -> Any:
    """An object of that kind. A number makes one."""
    if isinstance(value, of):
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_type(option, value, f"an int >= {low}, or a {of.__name__}")
    if value < low:
        raise bad_value(option, value, f"an int >= {low}, or a {of.__name__}")
    return of(value)


def check_workers(option: str, value: Any) -> Any:
    """How many calls may run at once, (least, most), (least, start, most), or "inline". Returns (least, start, most);
    of equal numbers one."""
    expected = 'an int >= 1, (least, most) or (least, start, most) with least <= start <= most, or "inline"'
    if value == "inline":
        return value
    three = value if isinstance(value, tuple) else (value, value)
    if len(three) not in (2, 3) or any(isinstance(one, bool) or not isinstance(one, int) for one in three):
        raise bad_type(option, value, expected)
    least, start, most = three if len(three) == 3 else (three[0], *three)
    if not 1 <= least <= start <= most:
        raise bad_value(option, value, expected)
    return most if least == most else (least, start, most)


def optional_policy(option: str, value: Any, of: type[Any], low: int) -> Any:
    return None if value is None else policy(option, value, of, low)


def function_of_item(option: str, value: Any) -> Any:
    if value is not None and not (callable(value) and accepts(value, 1)):
        raise bad_type(option, value, "a callable that takes one argument")
    return value


def check_progress(option: str, value: Any) -> Any:
    return value if isinstance(value, bool) else function_of_item(option, value)


def check_limits(option: str, value: Any) -> tuple[Limit, ...]:
    limits = (value,) if isinstance(value, Limit) else value
    expected = "a Rate, a Budget, a Concurrency, or a list of them"
    if isinstance(limits, (str, bytes)) or not isinstance(limits, Sequence):
        raise bad_type(option, value, expected)
    for limit in limits:
        if not isinstance(limit, Limit):
            raise bad_type(option, limit, expected)
    names = [limit.name for limit in limits if limit.name is not None]
    if len({id(limit) for limit in limits}) < len(limits) or len(set(names)) < len(names):
        raise bad_value(option, value, "limits that are all different, with different names")
    where = {str(limit.shared).rpartition(", ")[0] for limit in limits if limit.shared is not None}
    if len(where) > 1:  # a call takes from all or from none, which is one transaction
        raise bad_value(option, value, "shared limits of one database")
    return tuple(limits)


def refuse_limits_of_frames(limits: Sequence[Limit]) -> None:
    """Outside of Spark there are no tasks, and only frames have columns."""
    for limit in limits:
        if limit.per_task:
            raise bad_value("limits", limit, "per_task=False: only Spark has tasks")
        if limit.cost is not None and not callable(limit.cost):
            raise bad_value("limits", limit, "a cost that is a function; names of columns are for frames")


def check_remember(option: str, value: Any) -> Any:
    """A Shared, or a path, of which `remembering` makes one."""
    if value is not None and not isinstance(value, (str, os.PathLike, Shared)):
        raise bad_type(option, value, "a path, a URL or a Shared")
    return value


def remembering(fn: Any, value: Any) -> Shared | None:
    """The Shared that `remember` names. Of a path: with the name of fn."""
    if value is None or isinstance(value, Shared):
        return value
    name = name_of(fn)
    try:
        shared = Shared(value, name)
        shared.fingerprint = fingerprint(fn)
        return shared
    except ValueError as error:  # of an argument that the user has not named
        raise ValueError(f"remember: {str(error).removeprefix('where: ')}") from None


def name_of(fn: Any) -> str:
    """The name for the results of fn where a path stands for a Shared: its module and qualname. ValueError: fn has no
    name that means the same function in every process."""
    expected = "a function of a module or script; of another one name the results: Shared(path, name)"
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if isinstance(fn, MethodDescriptorType):  # str.upper has no module
        module = fn.__objclass__.__module__
    is_bound = not isinstance(getattr(fn, "__self__", None), type | ModuleType | None)  # to an object, with its state
    if module in MAIN:
        module = name_of_main(sys.modules.get(module))
    if not isinstance(module, str) or not isinstance(name, str) or is_bound or "<" in name:
        raise bad_value("remember", fn, expected)
    return f"{module}.{name}"


# ---------------------------------------------------------------------------------------------------- all options
class Option(NamedTuple):
    """An option that users give."""

    name: str
    default: Any
    check: Callable[[str, Any], Any]  # returns what is kept, or raises


def option(default: Any, check: Callable[..., Any], **more: Any) -> Any:
    """A field of Options that users give. `check(name, value, **more)` returns what is kept, or raises."""
    checked = partial(check, **more)
    return field(default=checked("", default), metadata={"option": (default, checked)})


@dataclass(frozen=True)
class Options:
    """The checked options of a map. Picklable if the functions are."""

    workers: int = option(16, check_workers)
    max_in_flight: int | None = option(None, optional_whole, low=1)
    order: str = option("input", choice, allowed=ORDERS)
    key: Callable[[Any], Any] | None = option(None, function_of_item)
    per_key: int | None = option(None, optional_whole, low=1)
    weights: Mapping[Any, int] | None = option(None, check_weights)
    priority: Callable[[Any], Any] | None = option(None, function_of_item)
    batch: Batch | None = option(None, optional_policy, of=Batch, low=1)
    timeout: float | None = option(None, optional_seconds)
    deadline: float | None = option(None, optional_seconds)
    retry: Retry = option(0, policy, of=Retry, low=0)
    breaker: Breaker | None = option(None, optional_policy, of=Breaker, low=1)
    errors: str = option("raise", choice, allowed=("raise", "return", "drop", "column"))
    max_failures: int | None = option(None, optional_whole, low=0)
    fatal: On = option((), check_on)
    limits: tuple[Limit, ...] = option((), check_limits)
    item_id: Callable[[Any], Any] | None = option(None, function_of_item)
    dedup: int | None = option(None, optional_whole, low=1)
    remember: Shared | None = option(None, check_remember)
    setup: Callable[[], Any] | None = option(None, optional_function)
    progress: Any = option(False, check_progress)
    # Derived: whether `key`, `priority` were given, which are columns in Spark; errors that retry cannot name;
    # whether fn is `async def`, and has a parameter `delivery`; whether `workers` is "inline", which counts as 1; the
    # least that `workers` names, else 0; whether fn is a partial with a `resource` of its own; with how many calls the
    # map begins, if that is another number.
    keyed: bool = False
    prioritised: bool = False
    never_retry: tuple[type[BaseException], ...] = ()
    is_async: bool = False
    wants_delivery: bool = False
    inline: bool = False
    least: int = 0
    own_resource: bool = False
    start: int = 0

    # Of limits: whether one has a cost; the only one that was given a cost, a Concurrency aside; for Delivery.spent.
    has_costs: bool = False
    settled_limit: Limit | None = None
    spent_names: SpentNames = NO_NAMES

    @property
    def begins_with(self) -> int:
        """How many calls may run at once at first."""
        return self.start or self.least or self.workers

    @property
    def calls_items(self) -> int:
        """How many items a call may have."""
        return 1 if self.batch is None else self.batch.size

    @property
    def identifies(self) -> bool:
        """Whether each item gets an idempotency key."""
        return self.dedup is not None or self.remember is not None

    @property
    def asks(self) -> bool:
        """Whether an item is made with functions of the user, or has an idempotency key."""
        return self.key is not None or self.priority is not None or self.has_costs or self.identifies


OPTIONS = tuple(Option(one.name, *one.metadata["option"]) for one in fields(Options) if one.metadata)
OF_MAPS = ("order", "deadline", "errors", "max_failures", "fatal", "progress")  # Callers have no such options


def check(
    fn: Any,
    given: Mapping[str, Any],
    *,
    arguments: int | None = 1,
    failures: tuple[str, ...] = ("raise", "return", "drop"),
    never_retry: tuple[type[BaseException], ...] = (),
    columns: Sequence[str] = (),
) -> Options:
    """The options among the arguments `given` to a map, checked. `arguments`: how many fn gets by position; None: not
    known yet. `failures`: the allowed values of `errors`. `columns`: options that are columns, and not kept."""
    keyed = given.get("key") is not None
    choice("errors", given.get("errors", "raise"), failures)
    kept = {
        one.name: one.check(one.name, given[one.name])
        for one in OPTIONS
        if one.name in given and one.name not in columns
    }
    workers = kept.get("workers")
    if workers == "inline":
        kept["workers"], kept["inline"] = 1, True
    elif isinstance(workers, tuple):
        kept["least"], kept["start"], kept["workers"] = workers
    prioritised = given.get("priority") is not None
    options = Options(**kept, keyed=keyed, prioritised=prioritised, never_retry=never_retry, is_async=is_async(fn))
    if not keyed:
        need = {"per_key": options.per_key is not None, "weights": options.weights is not None}
        need.update({"order": options.order == "key", "limits": any(limit.per_key for limit in options.limits)})
        for name, needed in need.items():
            if needed:
                raise bad_value(name, given[name], "key as well")
    if options.max_in_flight is not None and options.max_in_flight < options.workers * options.calls_items:
        product = "workers" if options.batch is None else "workers x batch"
        expected = (
            f"None, which means automatic, or at least {product}, which is {options.workers * options.calls_items}"
        )
        raise bad_value("max_in_flight", options.max_in_flight, expected)
    if options.max_failures is not None and options.errors == "raise":
        expected = f"only with errors={' or '.join(map(repr, failures[1:]))}"
        raise bad_value("max_failures", options.max_failures, expected)
    check_fn(fn, arguments, options.setup is not None)
    if options.setup is not None:
        check_setup(options.setup, fn)
    remember = remembering(fn, options.remember)
    options = replace(options, own_resource="resource" in filled(fn), remember=remember, **facts_of(options.limits))
    return options if arguments is None else replace(options, wants_delivery="delivery" in unfilled(fn, arguments))


def facts_of(limits: Sequence[Limit]) -> dict[str, Any]:
    """What Options derives from limits."""
    costed = [limit for limit in limits if limit.cost is not None and not isinstance(limit, Concurrency)]
    unsettled = [limit.name for limit in limits if isinstance(limit, Concurrency) and limit.name is not None]
    return {
        "has_costs": any(limit.cost is not None for limit in limits),
        "settled_limit": costed[0] if len(costed) == 1 else None,
        "spent_names": SpentNames(tuple(limit.name for limit in costed), tuple(unsettled)),
    }


# ---------------------------------------------------------------------------------------------------- functions
def check_fn(fn: Any, arguments: int | None, has_setup: bool) -> None:
    """Refuse an fn that cannot be called with its item (None: any number of arguments), and with `delivery=` and
    `resource=` if it takes them."""
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
