"""The options of a map: the one table of their names, types, defaults, checks and documentation.

Signatures and docstrings of maps and Callers are made of it (`described`), and so are the stubs
(tools/mapping_stub.py). Those of manytail.spark, and the pages, are compared with it by tests. The checks run when the
map is called. A bad option raises ValueError or TypeError with the text "option: value (expected: ...)".
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from textwrap import fill, indent
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

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

from ._limits import Concurrency, Limit
from ._policies import Batch, Breaker, On, Retry, answer, check_on
from ._types import SpentNames

if TYPE_CHECKING:
    from ._shared import Shared

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
        raise bad_value(option, value, "each limit once, and different names")
    return tuple(limits)


def check_shared_limits(limits: Sequence[Limit]) -> None:
    """A call takes from all or from none: one transaction of one database."""
    where = {str(limit.shared).rpartition(", ")[0] for limit in limits if limit.shared is not None}
    if len(where) > 1:
        raise bad_value("limits", limits, "shared limits of one database")


def refuse_per_task(limits: Sequence[Limit]) -> None:
    """Outside of Spark, where there are no tasks."""
    for limit in limits:
        if limit.per_task:
            raise bad_value("limits", limit, "per_task=False: only Spark has tasks")


def check_remember(option: str, value: Any) -> Any:
    """A Shared, or a path, of which `remembering` makes one."""
    from ._shared import Shared

    if value is not None and not isinstance(value, (str, os.PathLike, Shared)):
        raise bad_type(option, value, "a path, a URL or a Shared")
    return value


def remembering(fn: Any, value: Any) -> Shared | None:
    """The Shared that `remember` names. Of a path: with the name of fn."""
    from ._fingerprint import fingerprint
    from ._shared import Shared, name_of

    if value is None or isinstance(value, Shared):
        return value
    name = name_of(fn)
    try:
        shared = Shared(value, name)
        shared._fingerprint = fingerprint(fn)
        return shared
    except ValueError as error:  # of an argument that the user has not named
        raise ValueError(f"remember: {str(error).removeprefix('where: ')}") from None


# ---------------------------------------------------------------------------------------------------- all options
class Option(NamedTuple):
    """What users see of an option."""

    name: str
    kind: str  # its type in the stubs; _T is that of an item
    default: Any
    check: Callable[[str, Any], Any]  # returns what is kept, or raises
    about: str
    of_callers: str  # the same for a Caller, which has no option without


def option(
    kind: str, default: Any, about: str, check: Callable[..., Any], *, of_callers: str | None = None, **more: Any
) -> Any:
    """A field of Options that users give. `check(name, value, **more)` returns what is kept, or raises. of_callers:
    what is said of it for a Caller; None: the same; empty: Callers have no such option."""
    checked = partial(check, **more)
    shown = about if of_callers is None else of_callers
    return field(default=checked("", default), metadata={"option": (kind, default, checked, about, shown)})


@dataclass(frozen=True)
class Options:
    """The checked options of a map. Picklable if the functions are."""

    workers: int = option(
        'int | tuple[int, int] | tuple[int, int, int] | Literal["inline"]', 16, """calls at once. A plain fn runs in so
        many threads, an `async def` in so many coroutines. (least, most): a number between them, found while the map
        runs. It begins with `least`, that of (least, start, most) with `start`. It doubles after each round of
        successes in which all workers were busy and calls waited only for a worker, until the first refusal: a
        deferral, a timeout or a failure that is retried. From then on it grows by one a round, and each refusal halves
        it, at most once in a round trip. What is said of `workers` elsewhere holds for `most`. "inline", for debuggers
        and tests: one call at a time, in the thread that takes the results, while it takes one; no thread is started.
        An `async def` runs in a loop that is kept for the map. The input is read, and the database asked, there too.
        timeout and deadline of a plain fn act between calls: a call that took too long fails when it returns. Where a
        text says `workers`, it is 1.""",
        check_workers, of_callers="""calls at once. A plain fn runs in so many threads, an `async def` in so many
        coroutines. (least, most), (least, start, most): a number between them, found while the Caller runs, as that of
        a map.""",
    )  # fmt: skip
    max_in_flight: int | None = option(
        "int | None", None, """items taken and not emitted. None: starts at 4 x workers x batch, and doubles up to
        10,000 (or 4 x workers x batch, if that is more) when a worker has nothing to run only because other items wait
        for an earlier one, for their key or (up to 16 x workers x batch) for their look-up. A slow consumer never makes
        it grow.""",
        optional_whole, low=1, of_callers="""items handed in and not done (None: 10,000, or workers x batch if that is
        more). Handing in waits while there are so many.""",
    )  # fmt: skip
    order: str = option(
        'Literal["input", "key", "completion"]', "input", """"input"; "key": items of one key in input order, keys
        overtake one another; "completion": as calls finish.""",
        choice, allowed=ORDERS, of_callers="",
    )  # fmt: skip
    key: Callable[[Any], Any] | None = option(
        "Callable[[_T], Hashable] | None", None, "the key of an item, for what is said of keys here.", function_of_item
    )
    per_key: int | None = option("int | None", None, "calls of a key at once, at most.", optional_whole, low=1)
    weights: Mapping[Any, int] | None = option(
        "Mapping[Any, int] | None", None, "keys are served round robin, by weight. An absent key has 1.", check_weights
    )
    priority: Callable[[Any], Any] | None = option(
        "Callable[[_T], int | None] | None", None, """of an item; the lowest starts first, None is last. Like keys it
        applies to the items in the window, and changes when calls start, never the promised order.""",
        function_of_item,
    )  # fmt: skip
    batch: Batch | None = option(
        "int | Batch | None", None, """a Batch, or its size: fn gets a list of up to so many items of one key and
        returns a sequence of as many results. An element that is an exception fails that item alone; a RetryLater
        defers it. It is one call for workers, per_key and timeout; what it costs is the sum of its items'. When a
        batch of several fails for good, each half is called on its own. A result that is no sequence or has another
        length, a timeout, and the deadline fail all its items.""",
        optional_policy, of=Batch, low=1,
    )  # fmt: skip
    timeout: float | None = option(
        "float | None", None, """seconds per attempt, then TimeoutError. A coroutine is cancelled; a plain call is
        abandoned and its late result dropped; more than `workers` live abandoned calls fail the map.""",
        optional_seconds,
    )  # fmt: skip
    deadline: float | None = option(
        "float | None", None, """seconds from the first item, for everything. Then every item that is not done fails
        with DeadlineExceeded, and the input is read to its end without calls.""",
        optional_seconds, of_callers="",
    )  # fmt: skip
    retry: Retry = option(
        "int | Retry", 0, """a Retry, or its times: how often and after what waits an item is called again whose call
        failed. A waiting item holds no worker, and goes before new items of its key and priority. RetryLater defers an
        item without using up a retry.""",
        policy, of=Retry, low=0,
    )  # fmt: skip
    breaker: Breaker | None = option(
        "int | Breaker | None", None, """a Breaker, or its failures: after so many failed calls of a key in a row (no
        key: of the map) none of it starts for a while, then one probe.""",
        optional_policy, of=Breaker, low=1,
    )  # fmt: skip
    errors: str = option(
        'Literal["raise", "return", "drop"]', "raise", """"raise": once an item has failed for good no call starts; the
        results before it are yielded, then fn's exception is raised with a note that names key and attempts. "return":
        an Outcome for every item. "drop": the item has no result.""",
        choice, allowed=("raise", "return", "drop", "column"), of_callers="",
    )  # fmt: skip
    max_failures: int | None = option(
        "int | None", None, """as soon as more items than that have failed, the map ends as with errors="raise", by
        TooManyFailures.""",
        optional_whole, low=0, of_callers="",
    )  # fmt: skip
    fatal: On = option(
        "On", (), """an error that it names, as `on` of a Retry does, ends the map as with errors="raise", whatever
        errors says, and is not retried. Errors that fn has not raised count, too, such as BudgetExceeded.""",
        check_on, of_callers="",
    )  # fmt: skip
    limits: tuple[Limit, ...] = option(
        "Limit | Sequence[Limit]", (), """a Rate, a Budget, a Concurrency, or a list of them. A call starts when all
        have room for it, and takes from all or from none. A limit that several maps use at the same time is kept by
        them together, in the order in which they came to wait. An item that can never fit a Budget fails with
        BudgetExceeded, a retry that cannot with fn's error; others continue. A deferred call costs a Budget nothing. A
        limit with `shared` holds for everything that uses its name there, in database time.""",
        check_limits,
    )  # fmt: skip
    item_id: Callable[[Any], Any] | None = option(
        "Callable[[_T], Any] | None", None, """what the idempotency key of an item is made of, or else the item: None,
        bool, int, float, str, bytes, dates, times, Decimal, UUID, and tuples, lists, dicts, NamedTuples and dataclasses
        of them. With dedup and remember another type fails the item with TypeError.""",
        function_of_item,
    )  # fmt: skip
    dedup: int | None = option(
        "int | None", None, """items of equal idempotency key share one call while it runs, and its result (the same
        object) among the last `dedup` ones. After a failure the next equal item is called.""",
        optional_whole, low=1,
    )  # fmt: skip
    remember: Shared | None = option(
        "str | PathLike[str] | Shared | None", None, """a Shared; or a path or URL, which stands for Shared(path, module
        and name of fn); then a UserWarning says once if fn has changed since results were recorded. Results are looked
        up there (in bulk, at most 1 s before the call or before a slot that it missed), and new ones recorded (at most
        0.5 s or 200 results after they came, and before the map ends). An item whose result was recorded when it was
        looked up is not called. After a kill -9 at most the calls that ran and that last group are paid for twice.
        Failures are not recorded. Items are told apart by their idempotency key. A result that the codec refuses is
        emitted, not recorded, and logged once. While the database is away no call starts; after its outage_timeout the
        map fails with SharedUnavailable.""",
        check_remember,
    )  # fmt: skip
    setup: Callable[[], Any] | None = option(
        "Callable[[], Any] | None", None, """called once per worker thread before its first call, for an async fn once
        in the loop. What it returns is passed to fn as `resource=`. A context manager is entered, and left at the end;
        of another resource close() is called, if it has one.""",
        optional_function,
    )  # fmt: skip
    progress: Any = option(
        "bool | Callable[[Stats], None]", False, """True draws a line; a callable gets Stats at most 5 times a
        second and once at the end.""",
        check_progress, of_callers="",
    )  # fmt: skip
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

    @property
    def gated(self) -> bool:
        """Whether something besides keys and priorities decides which item starts, and when."""
        others = (self.breaker, self.batch, self.dedup, self.retry.within)
        return bool(self.limits or self.least) or any(option is not None for option in others)

    @property
    def begins_with(self) -> int:
        """How many calls may run at once at first."""
        return self.start or self.least or self.workers

    @property
    def always(self) -> int:
        """How many calls may run at once whatever happens."""
        return self.least or self.workers

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
    def has_costs(self) -> bool:
        """Whether one of the limits has a cost."""
        return any(limit.cost is not None for limit in self.limits)

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


OPTIONS = tuple(Option(one.name, *one.metadata["option"]) for one in fields(Options) if one.metadata)
INLINE = ' | Literal["inline"]'  # where items come from a loop or from several threads, `workers` may not be that
LOOP_OPTIONS = tuple(one._replace(kind=one.kind.removesuffix(INLINE)) for one in OPTIONS)
CALLER_OPTIONS = tuple(one._replace(about=one.of_callers) for one in LOOP_OPTIONS if one.of_callers)


_Signed = TypeVar("_Signed")


def signed(options: Sequence[Option]) -> Callable[[_Signed], _Signed]:
    """Gives a function these options in its signature, in the place of `**options`."""

    def sign(function: _Signed) -> _Signed:
        signature = inspect.signature(function)  # type: ignore[arg-type]
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        keyword = inspect.Parameter.KEYWORD_ONLY
        more = [inspect.Parameter(one.name, keyword, default=one.default, annotation=one.kind) for one in options]
        function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return sign


OPTIONS_LINE = "Options: those of docs/reference/options.md."


def described(options: Sequence[Option], line: str = OPTIONS_LINE) -> Callable[[Any], Any]:
    """Gives a map or a Caller its signature, and puts the options' documentation into its docstring, in the place of
    `line`, which is what an editor shows that reads the source."""

    def describe(function: Any) -> Any:
        texts = [" ".join(f"{one.name}: {one.about}".split()) for one in options]
        filled = "\n".join(fill(text, 116) for text in texts)
        text = inspect.cleandoc(function.__doc__ or "").replace(line, filled)  # since 3.13 compiled without indentation
        function.__doc__ = indent(text, "    ").lstrip()
        return signed(options)(function)

    return describe


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
    check_shared_limits(options.limits)
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
    options = replace(options, remember=remembering(fn, options.remember), own_resource="resource" in filled(fn))
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
