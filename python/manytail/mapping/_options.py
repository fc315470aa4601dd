"""The options of a map, and their checks, which run when the map is called. manytail.spark uses them too.

A bad option raises ValueError or TypeError with the text "option: value (expected: ...)".
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
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
    optional_budget,
    optional_function,
    optional_rate,
    optional_seconds,
    optional_whole,
    unfilled,
    unwrapped,
    whole,
)
from ._policies import Batch, Breaker, Retry

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


def check_shared(option: str, value: Any) -> Shared | None:
    from ._shared import Shared  # here, because few maps have one

    if value is not None and not isinstance(value, Shared):
        raise bad_type(option, value, "a Shared")
    return value


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
    rate: float | None = field(default=None, metadata=by(optional_rate, what="starts"))
    per_key_rate: float | None = field(default=None, metadata=by(optional_rate, what="starts"))
    cost_rate: float | None = field(default=None, metadata=by(optional_rate, what="cost"))
    budget: float | None = field(default=None, metadata=by(optional_budget))
    dedup: int | None = field(default=None, metadata=by(optional_whole, low=1))
    shared: Shared | None = field(default=None, metadata=by(check_shared))
    remember: Shared | None = field(default=None, metadata=by(check_remember))
    errors: str = field(default="raise", metadata=by(choice, allowed=("raise", "return", "drop", "column")))
    setup: Callable[[], Any] | None = field(default=None, metadata=by(optional_function))
    # Derived from arguments that are not kept here: whether `key`, `priority`, `cost` were given; errors that retry
    # cannot name; whether fn is `async def`, and has a parameter `delivery`.
    keyed: bool = False
    prioritised: bool = False
    costed: bool = False
    never_retry: tuple[type[BaseException], ...] = ()
    is_async: bool = False
    wants_delivery: bool = False

    @property
    def gated(self) -> bool:
        """Whether something besides keys and priorities decides which item starts, and when."""
        others = (self.breaker, self.batch, self.dedup, self.rate, self.per_key_rate, self.cost_rate, self.budget)
        return self.retry.within is not None or any(option is not None for option in others)

    @property
    def calls_items(self) -> int:
        """How many items a call may have."""
        return 1 if self.batch is None else self.batch.size

    @property
    def identifies(self) -> bool:
        """Whether each item gets an idempotency key."""
        return self.dedup is not None or self.remember is not None


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
    prioritised, costed = given.get("priority") is not None, given.get("cost") is not None
    options = Options(
        **kept, keyed=keyed, prioritised=prioritised, costed=costed, never_retry=never_retry, is_async=is_async(fn)
    )
    if not keyed:
        need = {"per_key": options.per_key is not None, "weights": options.weights is not None}
        need.update({"order": options.order == "key", "per_key_rate": options.per_key_rate is not None})
        for name, needed in need.items():
            if needed:
                raise bad_value(name, given[name], "key is given")
    if options.max_in_flight is not None and options.max_in_flight < options.workers * options.calls_items:
        product = "workers" if options.batch is None else "workers x batch"
        expected = (
            f"None, which means automatic, or at least {product}, which is {options.workers * options.calls_items}"
        )
        raise bad_value("max_in_flight", options.max_in_flight, expected)
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
