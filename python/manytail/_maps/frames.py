"""Maps over frames, for `manytail.arrow`: the input comes in chunks of rows, and each output is built of many rows.

A Frame says what rows, calls and output are. FrameResults runs it: it takes finished rows until there are enough for
an output, FLUSH_INTERVAL has passed since the first of them, or no other row can make progress.

This is the only module of the maps' inside that `manytail.arrow`, `manytail.spark` and `manytail.doctor` import.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from manytail._checks import bad_value
from manytail._progress import Meter
from manytail._timings import now

from .database.connection import Link
from .database.kinds import Away
from .database.shared import Shared, database_of
from .engine.batched import BatchScheduler
from .engine.chunks import OUTPUT_BYTES, ChunkBatchScheduler, ChunkScheduler
from .engine.item import Batch, Call, Item, Kind, Verdict
from .engine.lanes import Lanes
from .engine.scheduler import Scheduler
from .engine.window import LEAST_BYTES
from .errors import add_note, shortened
from .maps import Plan, Results, cost_of, final_error, priority_of, refuse_awaitable
from .options import Options, check, facts_of
from .outcomes import Delivery
from .results.identity import encode
from .results.identity import key as idempotency_key
from .results.memory import BulkCodec, Memory
from .verdicts import Judge, Unfit, batch_result

__all__ = [
    "OUTPUT_BYTES", "BulkCodec", "Frame", "FrameResults", "Options", "Row", "ask_database", "batch_results", "check",
    "cost_of", "deliver", "encode", "has_literal_password", "idempotency_key", "is_file", "new_rows", "priority_of",
    "refuse_awaitable", "refuse_per_task", "stay_connected", "with_costs",
]  # fmt: skip

_T = TypeVar("_T")
FLUSH_INTERVAL = 1.0  # seconds that the first row of an output waits for others
IDLE_GRACE = 0.02  # seconds without a row in flight after which an output is built although more rows fit in


# ---------------------------------------------------------------------------------------------------- rows
class Row(Item):
    """A row of a chunk."""

    __slots__ = ("batch", "index")

    batch: Any  # the chunk
    index: int  # in that

    def shown_key(self) -> Any:
        """The key for messages, of any type."""
        raise NotImplementedError

    def note(self) -> str:
        """What the error of a row that has failed says of it. Not its columns: they may be many, and large."""
        attempts = f"{self.attempts} attempt{'' if self.attempts == 1 else 's'}"
        return f"manytail: the row with key {shortened(self.shown_key())} failed after {attempts}"


def new_rows(kind: Any, batch: Any, count: int) -> list[Any]:
    """The rows of a chunk, as Item.__init__ would make them. In one loop: a call per row would take as long as the rest
    of the loop."""
    rows: list[Any] = []
    read = now()
    for index in range(count):
        row = kind.__new__(kind)
        row.read, row.batch, row.index = read, batch, index
        row.value = row.key = row.number = row.result = row.error = None
        row.attempts = row.size = 0
        row.done = row.known = False
        rows.append(row)
    return rows


class Frame:
    """A map over rows that come in chunks, for one run."""

    options: Options
    batch_rows: int  # of an output, at most
    codec: BulkCodec | None = None  # for `remember`
    input_error_first = False  # the input's error ends the map at once, not after the rows
    key_of: Callable[[Any], Hashable] | None = None  # may raise; None: the rows that are read have their keys
    size: Callable[[Any], float]  # bytes of a row and of its result, if it has one

    def read(self, chunk: Any) -> list[Any]:
        """The rows of a chunk. What an option cannot say of a row is its error. In the reader's thread."""
        raise NotImplementedError

    def weight(self, row: Any) -> int:
        """Of the row's key, with the option `weights`."""
        raise NotImplementedError

    def call_with(self, resource: dict[str, Any]) -> Callable[..., Any]:
        """The function that a worker calls with each row, or with the option `batch` with the call and its rows; then
        it returns `batch_results`. It is `async def` if fn is. resource: keyword arguments for fn, from `setup`."""
        raise NotImplementedError

    def build(self, rows: list[Any]) -> Any:
        """The output of finished rows, in this order."""
        raise NotImplementedError

    def raised(self, error: BaseException, note: str | None) -> BaseException:
        """The exception that the map raises in place of `error`, which has the note already, unless its class does not
        accept notes."""
        return error


def batch_results(returned: Any, rows: list[Any], fit: Callable[[Any, Any], Any]) -> Any:
    """What fn returned for these rows, each result as `fit(row, result)` returns or raises it."""
    results = batch_result(returned, len(rows))
    return results if isinstance(results, Unfit) else [_fitted(fit, *pair) for pair in zip(rows, results, strict=True)]


def _fitted(fit: Callable[[Any, Any], Any], row: Any, result: Any) -> Any:
    if isinstance(result, BaseException):
        return result
    try:
        return fit(row, result)
    except Exception as error:
        return error


def deliver(call: Any, identify: Callable[[], Any], names: Any, task_attempt: int, key: Any) -> Delivery:
    """The Delivery of a call that begins. identify: makes its idempotency key, or those of a batch."""
    last = max(call.items(), key=lambda row: row.attempts)
    batch = isinstance(call, Batch)
    made = Delivery(last.attempts, task_attempt, key, last.last_error, batch=batch, identify=identify, names=names)
    call.delivery = made
    return made


# ---------------------------------------------------------------------------------------------------- the map
class RowJudge(Judge):
    """Of a row that fails without ending the map only the text of its error is kept: the traceback of each would keep
    frames alive, in thousands of rows."""

    keeps = True

    def _judge(self, call: Call, error: BaseException, attempt: int, chance: float) -> Verdict:
        verdict = super()._judge(call, error, attempt, chance)
        if verdict.kind is Kind.FAIL and not (self.keeps or verdict.fatal):
            verdict.error.__traceback__ = None
        return verdict


@dataclass(frozen=True)
class FramePlan(Plan):
    """A Frame as the engine takes it."""

    frame: Any = None
    makes: ClassVar[type[Scheduler]] = ChunkScheduler
    makes_batches: ClassVar[type[BatchScheduler]] = ChunkBatchScheduler

    def scheduler(self, kind: type[Lanes] = Lanes, skips: Any = ()) -> Scheduler:
        scheduler: Any = super().scheduler(kind, skips)
        scheduler.gather(self.frame.batch_rows, self.frame.size)
        return scheduler  # type: ignore[no-any-return]

    def weight_of(self, item: Any) -> int:
        return self.frame.weight(item)  # type: ignore[no-any-return]

    def memory(self) -> Memory | None:
        shared, options = self.options.remember, self.options
        return None if shared is None else Memory(shared, self.frame.codec, inline=options.inline)

    def judge(self) -> Judge:
        options = self.options
        judge = RowJudge(options.retry, options.fatal, options.never_retry)
        judge.keeps = options.errors == "raise" or options.max_failures is not None
        return judge

    def calling(self, resource: dict[str, Any]) -> Callable[[Any], Any]:
        function = self.frame.call_with({} if self.options.own_resource else resource)
        if self.options.batch is None:
            return function  # type: ignore[no-any-return]

        def call(batch: Batch) -> Any:
            batch.begin()
            return function(batch, batch.members)

        return call

    calling_async = calling

    def results(self, driver: Any, meter: Meter, values: Any) -> Generator[Any, None, None]:
        return gathering(self.frame, driver, meter, values)


class Chunks(Iterator[list[Item]]):
    """The rows of the input, a chunk at a time."""

    def __init__(self, frame: Frame, driver: Any, chunks: Iterable[Any]) -> None:
        self._frame, self._driver, self._chunks = frame, driver, iter(chunks)

    def __next__(self) -> list[Item]:
        try:
            rows = self._frame.read(next(self._chunks))
        except StopIteration:
            raise
        except BaseException as error:
            if self._frame.input_error_first:
                self._driver.fail(error)
            raise
        scheduler, key_of, size = self._driver.scheduler, self._frame.key_of, self._frame.size
        lanes, window = scheduler.lanes, scheduler.window
        for row in rows if lanes.lone is None else ():  # else the scheduler does
            try:
                if key_of is not None:
                    row.key = key_of(row)
                lanes.assign(row)
            except BaseException as error:
                row.error = error
                row.lane = lanes.new()
        if rows and size(rows[0]) >= LEAST_BYTES:  # all rows of a chunk have the same
            for row in rows:
                window.add(row, int(size(row)))
        return rows


def gathering(frame: Frame, driver: Any, meter: Meter, chunks: Iterable[Any]) -> Generator[Any, None, None]:
    """Start the map, and yield what is built of its rows. Whatever ends this, and the collector, ends the map."""
    scheduler, output = driver.scheduler, driver.output
    if driver.halted:  # stopped before it began
        return
    try:
        meter.begin()
        driver.start(Chunks(frame, driver, chunks), False)
        del chunks
        while output or not driver.ended:
            driver.wanted, driver.wait_until = 1, math.inf
            while not (output or driver.ended):
                driver.wait()
            wait_for_more(driver, frame.batch_rows)
            rows = scheduler.pop(output)
            if rows:
                driver.took(len(rows))
                meter.sample()
                built = frame.build(rows)
                del rows
                yield built
                del built
        driver.join()
        failing = scheduler.failing
        note = failing.note() if failing is not None and failing.error is scheduler.error else None
        error = final_error(driver, lambda error, row: add_note(error, row.note()))
        if error is not None:
            try:
                raise frame.raised(error, note)
            finally:
                del error, failing  # these refer to this frame
    finally:
        driver.abandon()


def wait_for_more(driver: Any, most: int) -> None:
    """There is a row for an output. Wait until there are enough."""
    scheduler, due = driver.scheduler, driver.now() + FLUSH_INTERVAL
    driver.wanted = most
    while len(driver.output) < most and not (scheduler.is_full or driver.ended or driver.halted):
        idle = scheduler.idle_since
        driver.wait_until = due if idle is None else min(due, idle + IDLE_GRACE)
        if driver.wait_until <= driver.now():
            break
        driver.wait()


class FrameResults(Results[_T]):
    """The iterator over the output of a Frame."""

    def __init__(self, frame: Frame, chunks: Iterable[Any], data: Any) -> None:
        """data: the input, of which progress shows the length, if it has one."""
        super().__init__(FramePlan(None, frame.options, frame), chunks, data)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------- limits, databases
_lasting: set[Link] = set()


def refuse_per_task(limits: Iterable[Any]) -> None:
    for limit in limits:
        if limit.per_task:
            raise bad_value("limits", limit, "per_task=False: only Spark has tasks")


def with_costs(options: Options, columns: Sequence[str | None]) -> Options:
    """The options, where the cost of each limit is that column; None: as before."""
    limits = tuple(_with_cost(*pair) for pair in zip(options.limits, columns, strict=True))
    return replace(options, limits=limits, **facts_of(limits))


def _with_cost(limit: Any, column: str | None) -> Any:
    named = limit._arguments()
    return type(limit)(**named if column is None else {**named, "cost": column})


def stay_connected(shared: Shared) -> None:
    """Keep the connection of this process for the next Shared with the same database: a worker process of Spark runs
    many tasks, each of which unpickles its own."""
    with suppress(ValueError, ImportError):  # of its `where`: the map raises them
        _lasting.add(shared.store().link)


def has_literal_password(shared: Shared) -> bool:
    """Whether a pickle of it contains a password."""
    return shared._has_literal_password()


def is_file(shared: Shared) -> bool:
    """Whether it is a file of SQLite, as far as that is known here."""
    return shared._is_file()


def ask_database(where: str) -> tuple[str, str]:
    """How the database is shown, and why it does not answer; empty: it does. ValueError, ImportError: of `where`."""
    found = database_of(where)
    link = Link(found, wait=10)
    try:
        link.run(lambda transaction: transaction.value("SELECT 1"), writes=False)
    except (Away, OSError, ValueError, RuntimeError) as error:
        return found.shown, str(error)
    finally:
        link.drop()
    return found.shown, ""
