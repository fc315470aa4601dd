"""The options of a map, and their checks, which run when the map is called. manytail.spark uses them too.

A bad option raises ValueError or TypeError with the text "option: value (expected: ...)".
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ._checks import (
    accepts,
    bad_type,
    bad_value,
    by,
    check_weights,
    choice,
    function,
    is_async,
    optional_function,
    optional_seconds,
    optional_whole,
    unfilled,
    unwrapped,
    whole,
)
from ._limits import Budget, Concurrency, Limit, Rate
from ._policies import Batch, Breaker, On, Retry, answer, check_on
from ._types import SpentNames

if TYPE_CHECKING:
    from ._shared import Shared

ORDERS = ("input", "key", "completion")


# ---------------------------------------------------------------------------------------------------- single options
def policy(option: str, value: Any, kind: type[Any], low: int) -> Any:
    """An object of that kind. A number makes one."""
    if isinstance(value, kind):
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_type(option, value, f"an int >= {low}, or a {kind.__name__}")
    if value < low:
        raise bad_value(option, value, f"an int >= {low}, or a {kind.__name__}")
    return kind(value)


def optional_policy(option: str, value: Any, kind: type[Any], low: int) -> Any:
    return None if value is None else policy(option, value, kind, low)


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
        raise bad_value(option, value, "each limit once, and different names")
    return tuple(limits)


def _place(limit: Limit) -> str:
    """What a shared limit is for the database."""
    if isinstance(limit, Rate):
        return "per_key_rate" if limit.per_key else "rate" if limit.cost is None else "cost_rate"
    return "budget" if isinstance(limit, Budget) else "concurrency"


def check_shared_limits(options: Options) -> None:
    """Refuse what the database cannot keep together."""
    shared = [limit for limit in options.limits if limit.shared is not None]
    places = [_place(limit) for limit in shared]
    if len({(str(limit.shared), limit.shared.name) for limit in shared if limit.shared is not None}) > 1:
        raise bad_value("limits", shared, "shared limits of one Shared")
    if len(set(places)) < len(places) or "concurrency" in places:
        expected = "of shared limits at most one Rate per key, one without and one with cost, and one Budget"
        raise bad_value("limits", shared, expected)
    costs = {limit.cost for limit in shared if limit.cost is not None}
    if len(costs) > 1 or any(getattr(limit, "burst", 0) or (limit.per_key and limit.cost) for limit in shared):
        raise bad_value("limits", shared, "shared limits without burst and with one cost, which is not of a key's Rate")


def check_remember(option: str, value: Any) -> Any:
    """A Shared, or a path, of which `remembering` makes one."""
    from ._shared import Shared

    if value is not None and not isinstance(value, (str, os.PathLike, Shared)):
        raise bad_type(option, value, "a path, a URL or a Shared")
    return value


def remembering(fn: Any, value: Any) -> Shared | None:
    """The Shared that `remember` names. Of a path: with the name of fn."""
    from ._shared import Shared, name_of

    if value is None or isinstance(value, Shared):
        return value
    return Shared(value, name_of(fn))


# ---------------------------------------------------------------------------------------------------- all options
@dataclass(frozen=True)
class Options:
    """The checked options of a map. Picklable if the functions are.

    The only list of options: name, default and check. tests/mapping/test_options.py compares the signatures of the
    public functions with it.
    """

    workers: int = field(default=16, metadata=by(whole, low=1))
    max_in_flight: int | None = field(default=None, metadata=by(optional_whole, low=1))
    order: str = field(default="input", metadata=by(choice, allowed=ORDERS))
    per_key: int | None = field(default=None, metadata=by(optional_whole, low=1))
    weights: Mapping[Any, int] | None = field(default=None, metadata=by(check_weights))
    batch: Batch | None = field(default=None, metadata=by(optional_policy, kind=Batch, low=1))
    timeout: float | None = field(default=None, metadata=by(optional_seconds))
    deadline: float | None = field(default=None, metadata=by(optional_seconds))
    retry: Retry = field(default=Retry(0), metadata=by(policy, kind=Retry, low=0))
    breaker: Breaker | None = field(default=None, metadata=by(optional_policy, kind=Breaker, low=1))
    max_failures: int | None = field(default=None, metadata=by(optional_whole, low=0))
    fatal: On = field(default=(), metadata=by(check_on))
    limits: tuple[Limit, ...] = field(default=(), metadata=by(check_limits))
    dedup: int | None = field(default=None, metadata=by(optional_whole, low=1))
    remember: Shared | None = field(default=None, metadata=by(check_remember))
    errors: str = field(default="raise", metadata=by(choice, allowed=("raise", "return", "drop", "column")))
    setup: Callable[[], Any] | None = field(default=None, metadata=by(optional_function))
    # Derived from arguments that are not kept here: whether `key`, `priority` were given; errors that retry cannot
    # name; whether fn is `async def`, and has a parameter `delivery`.
    keyed: bool = False
    prioritised: bool = False
    never_retry: tuple[type[BaseException], ...] = ()
    is_async: bool = False
    wants_delivery: bool = False

    @property
    def gated(self) -> bool:
        """Whether something besides keys and priorities decides which item starts, and when."""
        others = (self.breaker, self.batch, self.dedup, self.retry.within)
        return bool(self.limits) or any(option is not None for option in others)

    @property
    def calls_items(self) -> int:
        """How many items a call may have."""
        return 1 if self.batch is None else self.batch.size

    @property
    def identifies(self) -> bool:
        """Whether each item gets an idempotency key."""
        return self.dedup is not None or self.remember is not None

    # ------------------------------------------------------------------------------------------------ limits
    @cached_property
    def local_limits(self) -> tuple[Limit, ...]:
        """Those of this process."""
        return tuple(limit for limit in self.limits if limit.shared is None)

    @cached_property
    def has_costs(self) -> bool:
        """Whether one of them has a cost."""
        return any(limit.cost is not None for limit in self.local_limits)

    @cached_property
    def settled_limit(self) -> Limit | None:
        """The one limit that was given `cost`, a Concurrency aside."""
        costed = [limit for limit in self.limits if limit.cost is not None and not isinstance(limit, Concurrency)]
        return costed[0] if len(costed) == 1 else None

    @cached_property
    def spent_names(self) -> SpentNames:
        """For Delivery.spent."""
        settled = [limit for limit in self.limits if not isinstance(limit, Concurrency)]
        unsettled = [limit.name for limit in self.limits if isinstance(limit, Concurrency) and limit.name is not None]
        costed = [limit.name or "" for limit in settled if limit.cost is not None]
        return SpentNames(tuple(costed), tuple(unsettled))

    @cached_property
    def shared_limits(self) -> dict[str, Limit]:
        """Those of a Shared, by what they are for the database: at most one of each."""
        return {_place(limit): limit for limit in self.limits if limit.shared is not None}

    @cached_property
    def limits_shared(self) -> Shared | None:
        """The Shared of these limits."""
        return next((limit.shared for limit in self.shared_limits.values()), None)

    @cached_property
    def costed(self) -> bool:
        """Whether one of the shared limits has a cost."""
        return any(limit.cost is not None for limit in self.shared_limits.values())

    def _shared_rate(self, place: str) -> float | None:
        limit: Any = self.shared_limits.get(place)
        return None if limit is None else 1 / limit.interval

    @property
    def rate(self) -> float | None:
        return self._shared_rate("rate")

    @property
    def per_key_rate(self) -> float | None:
        return self._shared_rate("per_key_rate")

    @property
    def cost_rate(self) -> float | None:
        return self._shared_rate("cost_rate")

    @property
    def budget(self) -> float | None:
        limit: Any = self.shared_limits.get("budget")
        return None if limit is None else limit.amount

    # ------------------------------------------------------------------------------------------------ fatal errors
    @property
    def fatal_kinds(self) -> tuple[type[BaseException], ...]:
        """The classes that `fatal` names; of a predicate none."""
        if isinstance(self.fatal, tuple):
            return self.fatal
        return (self.fatal,) if isinstance(self.fatal, type) else ()

    def is_fatal(self, error: BaseException) -> bool:
        """Whether this error ends the map. Runs the user's predicate."""
        return bool(answer(self.fatal, error))


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    one.name: one.metadata["check"] for one in fields(Options) if one.metadata
}


def check(
    fn: Any,
    given: Mapping[str, Any],
    *,
    arguments: int | None = 1,
    failures: tuple[str, ...] = ("raise", "return", "drop"),
    never_retry: tuple[type[BaseException], ...] = (),
) -> Options:
    """The options among the arguments `given` to a map, checked. `arguments`: how many fn gets by position; None: not
    known yet. `failures`: the allowed values of `errors`."""
    keyed = given.get("key") is not None
    choice("errors", given.get("errors", "raise"), failures)
    kept = {name: checked(name, given[name]) for name, checked in CHECKS.items() if name in given}
    prioritised = given.get("priority") is not None
    options = Options(**kept, keyed=keyed, prioritised=prioritised, never_retry=never_retry, is_async=is_async(fn))
    check_shared_limits(options)
    if not keyed:
        need = {"per_key": options.per_key is not None, "weights": options.weights is not None}
        need.update({"order": options.order == "key", "limits": any(limit.per_key for limit in options.limits)})
        for name, needed in need.items():
            if needed:
                raise bad_value(name, given[name], "key is given")
    if options.max_in_flight is not None and options.max_in_flight < options.workers * options.calls_items:
        product = "workers" if options.batch is None else "workers x batch"
        expected = (
            f"None, which means automatic, or at least {product}, which is {options.workers * options.calls_items}"
        )
        raise bad_value("max_in_flight", options.max_in_flight, expected)
    if options.max_failures is not None and options.errors == "raise":
        raise bad_value("max_failures", options.max_failures, f"errors is {' or '.join(map(repr, failures[1:]))}")
    check_fn(fn, arguments, options.setup is not None)
    if options.setup is not None:
        check_setup(options.setup, fn)
    options = replace(options, remember=remembering(fn, options.remember))
    return options if arguments is None else replace(options, wants_delivery="delivery" in unfilled(fn, arguments))


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
