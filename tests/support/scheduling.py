"""For tests of `manytail.mapping.frames`: chunks of plain values, a function whose calls the test holds and releases,
and a run whose output a test can wait for."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from manytail.arrow._results import describe
from manytail.arrow._task import size_of
from manytail.mapping.frames import Frame, FrameResults, Options, Row, new_rows

from .threads import DEADLINE, LONG, Hang, Task, Threads


class Rows:
    """A batch whose rows are plain values."""

    def __init__(self, values: Sequence[Any], row_bytes: float = 8.0) -> None:
        self.values, self.size, self.row_bytes = list(values), len(values), row_bytes


def batches(values: Sequence[Any], size: int, row_bytes: float = 8.0) -> list[Rows]:
    return [Rows(values[start : start + size], row_bytes) for start in range(0, len(values), size)]


class Source:
    """An input iterator that counts the rows it has returned. A test may make it wait before a batch."""

    def __init__(self, batches: Iterable[Rows], hold_before: int | None = None) -> None:
        self._batches = iter(batches)
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

    def __call__(self, row: Any) -> Any:
        with self._change:
            self.started.append(row)
            self.running.append(row)
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


class Value(Row):
    """A row without a key."""

    __slots__ = ()

    def shown_key(self) -> None:
        return None


class BatchMap(Frame):
    """A map over batches, whose output batches are lists of rows. The function gets the row's value."""

    input_error_first = True
    size = staticmethod(size_of)

    def __init__(self, fn: Callable[..., Any], batch_rows: int = 10_000, **options: Any) -> None:
        options.setdefault("workers", 4)
        options.setdefault("max_in_flight", 4 * options["workers"])
        self.fn, self.options, self.batch_rows = fn, Options(**options), batch_rows

    def run(self, batches: Iterator[Rows]) -> Any:
        """The output batches, and their `close`."""
        return FrameResults(self, batches, None)

    def read(self, chunk: Rows) -> list[Any]:
        """New rows each time: a batch keeps no row alive."""
        return new_rows(Value, chunk, chunk.size)

    def call_with(self, resource: dict[str, Any]) -> Callable[[Any], Any]:
        return lambda row: self.fn(row.batch.values[row.index], **resource)

    def described(self, error: BaseException, attempts: int) -> Any:
        return describe(error, attempts)

    def build(self, rows: list[Any]) -> list[Any]:
        return rows


class Run:
    """A BatchMap over some batches, run by a thread of its own. Use as a context manager."""

    def __init__(self, fn: Callable[..., Any], source: Iterable[Rows], **options: Any) -> None:
        self.batch_map = BatchMap(fn, **options)
        self.outputs: list[list[Any]] = []
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
        self.output = self.batch_map.run(iter(self._source))
        for output in self.output:
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


def results(fn: Callable[..., Any], source: Iterable[Rows], **options: Any) -> list[Any]:
    return [item.result for output in BatchMap(fn, **options).run(iter(source)) for item in output]
