"""For tests of the thread runner as maps over Arrow batches use it: batches of plain values, a function whose calls the
test holds and releases, and a run whose output a test can wait for."""

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

from manytail.arrow import ArrowResults
from manytail.arrow._results import describe
from manytail.arrow._task import WINDOW_BYTES, Host, new_rows, size_of
from manytail.mapping._item import Item
from manytail.mapping._options import Options
from manytail.mapping._scheduler import Scheduler
from manytail.mapping._thread_runner import ThreadRunner

from .threads import DEADLINE, LONG, Hang, Task, Threads

HOUR = 3_600.0


Of = Callable[[Any], Any] | None  # of a value


class Rows:
    """A batch whose rows are plain values; `key` and `priority` are functions of a value."""

    def __init__(self, values: Sequence[Any], key: Of = None, priority: Of = None, row_bytes: float = 8.0) -> None:
        self.values, self.size, self.row_bytes = list(values), len(values), row_bytes
        self.keyed, self._key, self._priority = key is not None, key, priority

    def rows(self) -> list[Item]:
        """New Items each time: a batch keeps no item alive."""
        rows = new_rows(self, self.size)
        for row, value in zip(rows, self.values, strict=True):
            if self._key is not None:
                row.key = self._key(value)
            if self._priority is not None:
                number = self._priority(value)
                row.priority = float("inf") if number is None else number
        return rows

    def shown_key(self, row: Any) -> Any:
        return None if self._key is None else self._key(self.values[row.index])


def batches(values: Sequence[Any], size: int, **columns: Any) -> list[Rows]:
    return [Rows(values[start : start + size], **columns) for start in range(0, len(values), size)]


class Source:
    """An input iterator that counts the rows it has returned. A test may make it wait before a batch."""

    def __init__(self, batches: Iterable[Rows], hold_before: int | None = None) -> None:
        self._batches = iter(batches)
        self.keyed = isinstance(batches, list) and _keyed(batches)
        self._hold_before = hold_before
        self._number = 0
        self.rows = 0
        self.asked = threading.Event()  # set when the batch that waits is asked for
        self.go_on = threading.Event()

    def __iter__(self) -> Iterator[Rows]:
        return self

    def __next__(self) -> Rows:
        if self._number == self._hold_before:
            self.asked.set()
            if not self.go_on.wait(LONG):
                raise Hang("the source was never let go")
        self._number += 1
        batch = next(self._batches)
        self.rows += batch.size
        return batch


class Script:
    """A function of one row: records when calls start, and returns when the test releases the row. Returns the row."""

    def __init__(self, *free: Any) -> None:
        self._change = threading.Condition()
        self._free = set(free)
        self._all = False
        self.started: list[Any] = []
        self.running: list[Any] = []
        self.peak = 0
        self.peak_of: dict[Hashable, int] = {}
        self.key: Callable[[Any], Hashable] = lambda row: None

    def __call__(self, row: Any) -> Any:
        with self._change:
            self.started.append(row)
            self.running.append(row)
            self.peak = max(self.peak, len(self.running))
            key = self.key(row)
            same = sum(1 for other in self.running if self.key(other) == key)
            self.peak_of[key] = max(self.peak_of.get(key, 0), same)
            self._change.notify_all()
            if not self._change.wait_for(lambda: self._all or row in self._free, LONG):
                raise Hang(f"row {row!r} was never let go")
            self.running.remove(row)
            self._change.notify_all()
        return row

    def let_go(self, *rows: Any) -> None:
        with self._change:
            self._free.update(rows)
            self._change.notify_all()

    def let_all_go(self) -> None:
        with self._change:
            self._all = True
            self._change.notify_all()

    def wait(self, predicate: Callable[[], Any]) -> None:
        """Wait until the predicate holds. It is checked whenever a call starts or ends."""
        with self._change:
            if not self._change.wait_for(predicate, DEADLINE):
                raise Hang(f"started {self.started}, running {self.running}")

    def wait_started(self, count: int) -> None:
        self.wait(lambda: len(self.started) >= count)


class BatchMap:
    """A scheduler and a thread runner over batches, whose output batches are lists of rows. The function gets the row's
    value, and `resource=` where there is a setup."""

    def __init__(self, fn: Callable[..., Any], batch_rows: int = 10_000, weights: Any = None, **options: Any) -> None:
        options.setdefault("workers", 4)
        options.setdefault("max_in_flight", 4 * options["workers"])
        self.options = Options(**options)
        self.batch_rows = batch_rows
        self.scheduler = Scheduler(
            self.options,
            weight_of=None if weights is None else lambda item: weights.get(item.key, 1),
            buffer=batch_rows,
            window_bytes=WINDOW_BYTES,
            sizeof=size_of,
        )
        keep = None if self.options.errors == "raise" else describe
        call_with = lambda resource: lambda item: fn(item.batch.values[item.index], **resource)  # noqa: E731
        self.runner = ThreadRunner(self.scheduler, call_with, keep, input_error_first=True)

    def run(self, batches: Iterator[Rows]) -> Any:
        """The output batches, and their `close`."""
        return ArrowResults(Plan(self), batches, None)  # type: ignore[arg-type]


class Plan:
    """What ArrowResults needs of a Task."""

    def __init__(self, of: BatchMap) -> None:
        self.options, self.batch_rows, self.host, self.schema = of.options, of.batch_rows, Host("UTC"), None
        self.build = list
        self.runner = lambda: of.runner

    def start(self, runner: ThreadRunner, batches: Iterator[Rows]) -> None:
        def take(batch: Rows) -> list[Item]:
            rows = batch.rows()
            runner.scheduler.assign(rows)
            return rows

        runner.start(map(take, batches))


batch_map = BatchMap


class Run:
    """A BatchMap over some batches, run by a thread of its own. Use as a context manager."""

    def __init__(self, fn: Callable[..., Any], source: Iterable[Rows], **options: Any) -> None:
        self.batch_map = batch_map(fn, **{"keyed": _keyed(source), **options})
        self.outputs: list[list[Item]] = []
        self._source = source
        self._change = threading.Condition()
        self._threads = Threads()

    def __enter__(self) -> "Run":
        self._threads.__enter__()
        self.task: Task = self._threads.start(self._pull)
        return self

    def __exit__(self, *error: Any) -> None:
        self._threads.__exit__(*error)

    def _pull(self) -> list[Any]:
        for output in self.batch_map.run(iter(self._source)):
            with self._change:
                self.outputs.append(output)
                self._change.notify_all()
            del output  # only a test keeps rows
        return self.values

    @property
    def values(self) -> list[Any]:
        return [item.result for output in self.outputs for item in output]

    def wait_values(self, count: int) -> list[Any]:
        with self._change:
            if not self._change.wait_for(lambda: len(self.values) >= count, DEADLINE):
                raise Hang(f"only {self.values} came out")
            return self.values

    def result(self) -> list[Any]:
        return self.task.result()


class Clocked(Run):
    """A run with timeouts of an hour, whose clock the test moves."""

    def __init__(self, fn: Any, source: Any, **options: Any) -> None:
        super().__init__(fn, source, **{"timeout": HOUR, "errors": "return", **options})
        self._now = 0.0
        self.batch_map.runner.now = lambda: self._now

    def pass_an_hour(self) -> None:
        """Make every started call overdue, and every retry due."""
        runner = self.batch_map.runner
        with runner._lock:
            runner._handle()  # tells the scheduler about all started calls
            self._now += HOUR
        runner._timer._wakeup.set()

    def errors(self) -> list[Any]:
        return [item.error and (item.error.type, item.error.attempts) for output in self.outputs for item in output]


def _keyed(source: Iterable[Rows]) -> bool:
    """Whether the batches have keys, as far as that is known before they are read."""
    if isinstance(source, Source):
        return source.keyed
    return isinstance(source, list) and any(batch.keyed for batch in source)


def finished(fn: Callable[..., Any], source: Iterable[Rows], **options: Any) -> list[Item]:
    """All items of the output, in order."""
    outputs = batch_map(fn, **{"keyed": _keyed(source), **options}).run(iter(source))
    return [item for output in outputs for item in output]


def results(fn: Callable[..., Any], source: Iterable[Rows], **options: Any) -> list[Any]:
    return [item.result for item in finished(fn, source, **options)]
