"""What `manytail.arrow` builds on: maps whose input comes in chunks of rows, and whose output is built of many rows at
once. It, `manytail.spark` and `manytail.doctor` import no other private module of this package.

A Frame says what rows, calls and output are. FrameResults runs it: it takes finished rows until there are enough for
an output, FLUSH_INTERVAL has passed since the first of them, or no other row can make progress.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from manytail._timings import now

from ._idempotency import encode, idempotency_key
from ._inline_runner import InlineRunner
from ._item import Item, ItemBatch, Unfit, Work, batch_result, deliver_call, note_of
from ._map import Results, cost_of, final_error, priority_of, runner_of
from ._options import Options, check, refuse_per_task
from ._remember import BulkCodec, Memory
from ._scheduler import Scheduler
from ._shared import Shared, read
from ._thread_runner import ThreadRunner
from ._types import Delivery
from ._workers import refuse_awaitable

__all__ = [
    "BulkCodec", "Frame", "FrameResults", "Options", "Row", "ask_database", "batch_results", "check", "cost_of",
    "deliver", "encode", "has_literal_password", "idempotency_key", "is_file", "new_rows", "priority_of",
    "refuse_awaitable", "refuse_per_task", "stay_connected", "with_costs",
]  # fmt: skip

_T = TypeVar("_T")
FLUSH_INTERVAL = 1.0  # seconds that the first row of an output waits for others
IDLE_GRACE = 0.02  # seconds without a row in flight after which an output is built although more rows fit in
OUTPUT_BYTES = 64 << 20  # of an output
WINDOW_BYTES = 256 << 20  # of input rows and results: the automatic window does not grow beyond that

Call = Work  # a row, or a batch of rows: what a worker takes


class Row(Item):
    """A row of a chunk."""

    __slots__ = ("batch", "index")

    batch: Any  # the chunk
    index: int  # in that
    noun = "row"

    def shown_key(self) -> Any:
        """The key for messages, of any type."""
        raise NotImplementedError

    def shown(self) -> str:
        """Nothing: the columns of a row may be many, and large."""
        return ""


def new_rows(kind: Any, batch: Any, count: int) -> list[Any]:
    """The rows of a chunk, as Item.__init__ would make them. In one loop: a call per row would take as long as the rest
    of the loop."""
    rows: list[Any] = []
    read = now()
    for index in range(count):
        row = kind.__new__(kind)
        row.read = read
        row.batch, row.index = batch, index
        row.number, row.key, row.priority, row.attempts, row.deferred = None, None, 0, 0, None
        row.done = row.known = row.fatal = False
        row.result = row.error = None
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

    def described(self, error: BaseException, attempts: int) -> Any:
        """What is kept of the error of a row if that does not end the map: the traceback would keep frames alive."""
        return error

    def build(self, rows: list[Any]) -> Any:
        """The output of finished rows, in this order."""
        raise NotImplementedError

    def raised(self, error: BaseException, note: str | None) -> BaseException:
        """The exception that the map raises in place of `error`, which has the note already, unless its class does not
        accept notes."""
        return error

    # ------------------------------------------------------------------------------------------------ the engine's
    def runner(self) -> ThreadRunner | InlineRunner:
        options = self.options
        scheduler = self._scheduler = Scheduler(
            options,
            weight_of=None if options.weights is None else self.weight,
            buffer=self.batch_rows,
            buffer_bytes=OUTPUT_BYTES,
            window_bytes=WINDOW_BYTES,
            sizeof=self.size,
        )
        keep = None if options.errors == "raise" else self.described
        shared = options.remember
        memory = None if shared is None else Memory(shared, self.codec, inline=options.inline)
        function = self._call_batches_with if options.batch is not None else self.call_with
        return runner_of(options)(scheduler, function, keep, input_error_first=self.input_error_first, memory=memory)

    def start(self, runner: ThreadRunner | InlineRunner, chunks: Iterable[Any]) -> None:
        runner.start(map(self._take, chunks))

    def _take(self, chunk: Any) -> list[Item]:
        rows, key_of, assign = self.read(chunk), self.key_of, self._scheduler.assign
        if key_of is None:
            assign(rows)
        else:
            for row in rows:
                try:
                    row.key = key_of(row)
                    assign([row])
                except BaseException as error:
                    row.error = error
                    self._scheduler.admission.assign_alone(row)
        for row in rows:
            if row.error is not None:
                failure = self._scheduler.failure(row.error)
                row.error, row.fatal = failure.error, failure.fatal
        return rows

    def _call_batches_with(self, resource: dict[str, Any]) -> Callable[[ItemBatch], Any]:
        function = self.call_with(resource)

        def call(batch: ItemBatch) -> Any:
            rows = batch.to_call()
            return batch.with_known(function(batch, rows) if rows else [])

        async def call_async(batch: ItemBatch) -> Any:
            rows = batch.to_call()
            return batch.with_known(await function(batch, rows) if rows else [])

        return call_async if self.options.is_async else call


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
    return deliver_call(call, identify, names, task_attempt, key)


class FrameResults(Results[_T]):
    """The iterator over the output of a Frame."""

    _plan: Any

    def __init__(self, frame: Frame, chunks: Iterable[Any], data: Any) -> None:
        """data: the input, of which progress shows the length, if it has one."""
        super().__init__(frame, chunks, data)  # type: ignore[arg-type]

    def _next(self) -> _T:
        if self._over:
            raise StopIteration
        while not self._output:
            self._wait()
        self._fill()
        rows = self._runner.locked(_take_buffered, self._runner)
        if not rows:  # closed meanwhile
            raise StopIteration
        self._meter.sample()
        return self._plan.build(rows)  # type: ignore[no-any-return]

    def _fill(self) -> None:
        """Wait until there are enough rows for an output."""
        runner, scheduler, most = self._runner, self._scheduler, self._plan.batch_rows
        due = runner.now() + FLUSH_INTERVAL
        while len(self._output) < most and not (scheduler.window.buffer_full or scheduler.over or runner.stopping):
            idle = runner.idle_since
            wait = (due if idle is None else min(due, idle + IDLE_GRACE)) - runner.now()
            if wait <= 0:
                break
            runner.wait(most, wait)

    def _final_error(self) -> BaseException | None:
        scheduler, error = self._scheduler, final_error(self._runner)
        failing = scheduler.failing if scheduler.failing and scheduler.failing.error is scheduler.error else None
        return None if error is None else self._plan.raised(error, None if failing is None else note_of(failing))


def _take_buffered(runner: ThreadRunner | InlineRunner) -> list[Any]:
    scheduler = runner.scheduler
    rows = [scheduler.output.popleft() for _ in range(min(scheduler.window.buffered, len(scheduler.output)))]
    scheduler.took(len(rows))
    runner.go_on()
    return rows


# ---------------------------------------------------------------------------------------------------- limits, databases
def with_costs(options: Options, columns: Sequence[str | None]) -> Options:
    """The options, where the cost of each limit is that column; None: as before."""
    limits = tuple(_with_cost(*pair) for pair in zip(options.limits, columns, strict=True))
    return replace(options, limits=limits)


def _with_cost(limit: Any, column: str | None) -> Any:
    _, (kind, positional, named) = limit.__reduce__()
    return kind(*positional, **named if column is None else {**named, "cost": column})


def stay_connected(shared: Shared) -> None:
    """Keep the connection of this process for the next Shared with the same database: a worker process of Spark runs
    many tasks, each of which unpickles its own."""
    shared._stay_connected()


def has_literal_password(shared: Shared) -> bool:
    """Whether a pickle of it contains a password."""
    return shared._has_literal_password()


def is_file(shared: Shared) -> bool:
    """Whether it is a file of SQLite, as far as that is known here."""
    return shared._is_file()


def ask_database(where: str) -> tuple[str, str]:
    """How the database is shown, and why it does not answer; empty: it does. ValueError, ImportError: of `where`."""
    from ._shared_database import Away, Link, database_of  # it needs sqlite3, which a Python may lack

    found = database_of(read(where))
    link = Link(found, wait=10)
    try:
        link.run(lambda transaction: transaction.value("SELECT 1"), writes=False)
    except (Away, OSError, ValueError, RuntimeError) as error:
        return found.shown, str(error)
    finally:
        link.drop()
    return found.shown, ""
