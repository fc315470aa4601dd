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
        raise bad_value(option, value, "limits that are all different, with different names")
    return tuple(limits)


def check_shared_limits(limits: Sequence[Limit]) -> None:
    """A call takes from all or from none: one transaction of one database."""
    where = {str(limit.shared).rpartition(", ")[0] for limit in limits if limit.shared is not None}
    if len(where) > 1:
        raise bad_value("limits", limits, "shared limits that use the same database")


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
    except (ValueError, IsADirectoryError) as error:  # of an argument that the user has not named
        kind = ValueError if isinstance(error, ValueError) else IsADirectoryError
        raise kind(f"remember: {str(error).removeprefix('where: ')}") from None


# ---------------------------------------------------------------------------------------------------- all options
class Option(NamedTuple):
    """What users see of an option."""

    name: str
    kind: str  # its type in the stubs; _T is that of an item
    default: Any
    check: Callable[[str, Any], Any]  # returns what is kept, or raises
    about: str
    of_callers: str  # the same for a Caller, which has no option without
    example: str


def option(
    kind: str, default: Any, about: str, check: Callable[..., Any], *, example: str, of_callers: str | None = None,
    **more: Any,
) -> Any:  # fmt: skip
    """A field of Options that users give. `check(name, value, **more)` returns what is kept, or raises. of_callers:
    what is said of it for a Caller; None: the same; empty: Callers have no such option."""
    checked = partial(check, **more)
    shown = about if of_callers is None else of_callers
    return field(default=checked("", default), metadata={"option": (kind, default, checked, about, shown, example)})


@dataclass(frozen=True)
class Options:
    """The checked options of a map. Picklable if the functions are."""

    workers: int = option(
        'int | tuple[int, int] | tuple[int, int, int] | Literal["inline"]', 16, """the number of concurrent calls. A
        plain function runs in that many threads, an `async def` function in that many coroutines. If you do not know
        how many concurrent calls the server tolerates, pass (least, most) or (least, start, most), and the map finds
        out. It begins with `start` calls (by default `least`) and doubles the number after each round of successes,
        until the first refusal. A refusal is a deferral, a timeout or a failure that is retried. From then on, each
        round of successes adds one, and a refusal halves the number, at most once in the time that one call takes. A
        round counts only if all workers were busy and calls had to wait only for a worker. Options that depend on
        `workers` use `most`. "inline" is for debugging and tests: calls are made one at a time, in the thread that
        takes the results, and no thread is started. The timeout and the deadline of a plain function are then checked
        only when it returns, and options that depend on `workers` treat it as 1.""",
        check_workers, of_callers="""the number of concurrent calls. A plain function runs in that many threads, an
        `async def` function in that many coroutines. With (least, most) or (least, start, most), the Caller finds a
        suitable number in that range, as a map does.""", example="workers=32, workers=(1, 200)",
    )  # fmt: skip
    max_in_flight: int | None = option(
        "int | None", None, """the maximum number of items taken from the input and not yet yielded. None: the limit
        begins at 4 x workers x batch. It doubles whenever a worker is idle because all items in the window are
        finished, or wait for an earlier item, for their key or for their look-up in `remember`. It grows up to 10,000,
        or 4 x workers x batch if that is more. Growth that only look-ups cause stops at 16 x workers x batch. A slow
        consumer never makes it grow, and it stops growing while the waiting items and results occupy 256 MB or more,
        according to nbytes or sys.getsizeof.""",
        optional_whole, low=1, of_callers="""the maximum number of submitted items that are not finished; beyond
        that, submitting an item waits until another one finishes. None: 10,000, or workers x batch if that is more.""",
        example="max_in_flight=100",
    )  # fmt: skip
    order: str = option(
        'Literal["input", "key", "completion"]', "input", """the order of the results. "input": the order of the items.
        "key": the order of the items within each key; results of different keys may overtake each other. "completion":
        the order in which calls finish. With "input" and "key", a slow item delays the results that come after it, but
        other calls continue.""",
        choice, allowed=ORDERS, of_callers="", example='order="completion"',
    )  # fmt: skip
    key: Callable[[Any], Any] | None = option(
        "Callable[[_T], Hashable] | None", None, """a function that returns the group of an item, for example its host
        or tenant. Groups take turns, and `per_key`, `weights`, `order="key"`, breakers and limits with per_key=True
        apply to each group. None: all items are one group.""",
        function_of_item, example="key=lambda item: item.tenant",
    )  # fmt: skip
    per_key: int | None = option(
        "int | None", None, """the maximum number of concurrent calls of each key. None: no limit. It needs `key`. An
        item that is waiting for its next attempt still counts.""",
        optional_whole, low=1, example="per_key=4",
    )  # fmt: skip
    weights: Mapping[Any, int] | None = option(
        "Mapping[Any, int] | None", None, """a mapping from keys to the number of calls that a key starts in each of its
        turns. Keys that are not in the mapping have a weight of 1. It needs `key`.""",
        check_weights, example='weights={"premium": 3}',
    )  # fmt: skip
    priority: Callable[[Any], Any] | None = option(
        "Callable[[_T], int | None] | None", None, """a function that returns the priority of an item. Lower numbers
        start first; None starts last. It applies to the items that are in flight, and affects when calls start, never
        the order of the results.""",
        function_of_item, example="priority=lambda item: item.level",
    )  # fmt: skip
    batch: Batch | None = option(
        "int | Batch | None", None, """calls fn with a list of up to this many items of one key; fn returns a sequence
        with one result for each. Batch(size, linger) also sets how long a batch waits for more items. If one of these
        results is an exception, only its item fails; if it is a RetryLater, only its item is deferred. A batch counts
        as one call for workers, per_key and timeout; its cost is the sum of the costs of its items. If a batch fails
        for good, each half is called separately. All items of a batch fail if the result is not a sequence of the right
        length, if the call times out, or if the deadline passes. None: one item per call.""",
        optional_policy, of=Batch, low=1, example="batch=Batch(100, linger=0.5)",
    )  # fmt: skip
    timeout: float | None = option(
        "float | None", None, """how many seconds one attempt may take; after that it fails with TimeoutError. None: no
        limit. A coroutine is cancelled. A plain function cannot be stopped: it continues in its thread and its result
        is dropped. If more than `workers` such calls are running, the map fails. Give your client a timeout that is a
        little shorter.""",
        optional_seconds, example="timeout=30",
    )  # fmt: skip
    deadline: float | None = option(
        "float | None", None, """the seconds that the whole map may take, counted from the first item. After that, every
        unfinished item fails with DeadlineExceeded, and the rest of the input is read without making any calls. None:
        no limit.""",
        optional_seconds, of_callers="", example="deadline=3_600",
    )  # fmt: skip
    retry: Retry = option(
        "int | Retry", 0, """how many times a failed call is made again: a number, or a Retry, which also says for which
        errors and after what pauses. Retry.http() knows the errors of HTTP clients. 0: never. An item that waits for
        its next attempt occupies no worker, and starts before new items with the same key and priority. RetryLater
        defers an item without using up an attempt.""",
        policy, of=Retry, low=0, example="retry=Retry.http()",
    )  # fmt: skip
    breaker: Breaker | None = option(
        "int | Breaker | None", None, """pauses a key (without `key`, the whole map) after this many failed calls in a
        row. After the pause, one call tests whether the key works again. A Breaker also sets the length of the pause.
        None: never.""",
        optional_policy, of=Breaker, low=1, example="breaker=Breaker(5, reset=30)",
    )  # fmt: skip
    errors: str = option(
        'Literal["raise", "return", "drop"]', "raise", """what happens to an item that fails for good. "raise": no
        further call starts; the results before it are yielded, then its exception is raised, with a note that names
        the item. "return": every item yields an Outcome, with its result or its error. "drop": the item is left
        out.""",
        choice, allowed=("raise", "return", "drop", "column"), of_callers="", example='errors="return"',
    )  # fmt: skip
    max_failures: int | None = option(
        "int | None", None, """the number of items that may fail. If more fail, the map ends with TooManyFailures, as
        with errors="raise". Needs errors="return" or "drop". None: no limit.""",
        optional_whole, low=0, of_callers="", example='errors="drop", max_failures=100',
    )  # fmt: skip
    fatal: On = option(
        "On", (), """errors that end the map at once, whatever `errors` says: exception classes, or a function that
        gets the error and returns a bool. They are not retried. Errors that do not come from fn, such as
        BudgetExceeded, count too.""",
        check_on, of_callers="", example="fatal=PermissionError",
    )  # fmt: skip
    limits: tuple[Limit, ...] = option(
        "Limit | Sequence[Limit]", (), """a Rate, a Budget, a Concurrency, or a list of them. A call starts when all of
        them have room for it. Maps that use the same limit object share the limit, and are served in the order in
        which they began to wait; a limit with `shared` is shared by everything that uses a limit of the same name in
        the same database. An item that can never fit a Budget fails with BudgetExceeded; a retry that cannot fit fails
        with the error that fn raised; all other items continue. A deferred call costs a Budget nothing.""",
        check_limits, example='limits=[Rate(475, "minute"), Concurrency(10)]',
    )  # fmt: skip
    item_id: Callable[[Any], Any] | None = option(
        "Callable[[_T], Any] | None", None, """a function that returns the value that identifies an item, for `dedup`,
        `remember` and the idempotency key. None: the item itself. The value may be None, a bool, int, float, str,
        bytes, date, time, Decimal or UUID, or a tuple, list, dict, NamedTuple or dataclass of them. With dedup or
        remember, an item whose value has any other type fails with TypeError.""",
        function_of_item, example="item_id=lambda item: item.id",
    )  # fmt: skip
    dedup: int | None = option(
        "int | None", None, """lets equal items share one call while it runs. Later equal items get the same result
        object, if it is among the results of the last `dedup` calls. After a failure, the next equal item causes a new
        call. None: a call is made for every item.""",
        optional_whole, low=1, example="dedup=10_000",
    )  # fmt: skip
    remember: Shared | None = option(
        "str | PathLike[str] | Shared | None", None, """records results in a database, so that the next run does not
        make these calls again: a path or URL, or a Shared. A path is short for a Shared with that path, named after the
        module and qualified name of fn. If fn has changed since results were recorded, a UserWarning says so once.
        Items are identified by `item_id`. Results are looked up in bulk, at most 1 s before the call. They are recorded
        after at most 0.5 s or 200 results, and always before the map ends. After a kill -9, you pay twice for at most
        the calls that were running and the results that were not recorded yet, of which there are at most 200. Failures
        are not recorded. If a result cannot be recorded, it is yielded, and then the map fails with TypeError; a Caller
        logs the first such error and continues. While the database is unavailable, no call starts; after the
        `outage_timeout` of the Shared, the map fails with SharedUnavailable.""",
        check_remember, example='remember="run.db"',
    )  # fmt: skip
    setup: Callable[[], Any] | None = option(
        "Callable[[], Any] | None", None, """a function that creates what fn gets as `resource=`, for example a client
        or a connection. It is called once per worker thread, before the first call of that thread; for an `async def`
        fn, it is called once, in the event loop. If it returns a context manager, it is entered first and exited at the
        end. Any other object is closed with its close() method, if it has one.""",
        optional_function, example="setup=httpx.Client",
    )  # fmt: skip
    progress: Any = option(
        "bool | Callable[[Stats], None]", False, """True shows a line of progress. A function is called with a Stats at
        most 5 times a second, and once at the end.""",
        check_progress, of_callers="", example="progress=True",
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
        costed = [limit.name for limit in settled if limit.cost is not None]
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
    """The options among the arguments `given` to a map, checked. `arguments`: how many positional arguments fn gets;
    None: not known yet. `failures`: the allowed values of `errors`. `columns`: options that are columns, and not
    kept."""
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
