"""For tests of manytail.spark's scheduler without Spark: batches of plain values, a function whose calls the test holds and lets go, and a run
whose output a test can wait for."""

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from manytail.spark._call import Call
from manytail.spark._engine import Engine, Settings

from .threads import DEADLINE, LONG, Hang, Task, Threads


class Rows:
    """A batch whose rows are plain values; `key` and `priority` are functions of a value."""

    def __init__(
        self,
        values: Sequence[Any],
        key: Callable[[Any], Hashable] | None = None,
        priority: Callable[[Any], int | None] | None = None,
        weights: Mapping[Hashable, int] | None = None,
        row_bytes: float = 8.0,
    ) -> None:
        self.values = list(values)
        self.size = len(self.values)
        self.row_bytes = row_bytes
        self.keys = None if key is None else [key(value) for value in self.values]
        self.priorities = None if priority is None else [priority(value) for value in self.values]
        self.weights = weights or {}

    def key(self, index: int) -> Any:
        return None if self.keys is None else self.keys[index]

    def weight(self, index: int) -> int:
        return self.weights.get(self.key(index), 1)


def batches(values: Sequence[Any], size: int, **columns: Any) -> list[Rows]:
    return [Rows(values[start : start + size], **columns) for start in range(0, len(values), size)]


class Source:
    """An input iterator that counts the rows it has handed out, and that a test may make wait before a batch."""

    def __init__(self, batches: Iterable[Rows], hold_before: int | None = None) -> None:
        self._batches = iter(batches)
        self._hold_before = hold_before
        self._number = 0
        self.rows = 0
        self.asked = threading.Event()  # for the batch it waits before
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
    """A function of one row that notes when calls start, and returns when the test lets the row go. Rows are their own results."""

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
        """Until the predicate holds; looked at whenever a call starts or ends."""
        with self._change:
            if not self._change.wait_for(predicate, DEADLINE):
                raise Hang(f"started {self.started}, running {self.running}")

    def wait_started(self, count: int) -> None:
        self.wait(lambda: len(self.started) >= count)


class Run:
    """The scheduler over some batches, pulled by a thread of its own. Use as a context manager."""

    def __init__(self, fn: Callable[..., Any], source: Iterable[Rows], **settings: Any) -> None:
        self.engine = engine(fn, **settings)
        self.outputs: list[list[Call]] = []
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
        for output in self.engine.run(iter(self._source)):
            with self._change:
                self.outputs.append(output)
                self._change.notify_all()
            del output  # only a test keeps rows
        return self.values

    @property
    def values(self) -> list[Any]:
        return [call.value for output in self.outputs for call in output]

    def wait_values(self, count: int) -> list[Any]:
        with self._change:
            if not self._change.wait_for(lambda: len(self.values) >= count, DEADLINE):
                raise Hang(f"only {self.values} came out")
            return self.values

    def result(self) -> list[Any]:
        return self.task.result()


def engine(fn: Callable[..., Any], **settings: Any) -> Engine:
    """An engine whose function gets the row's value, and `resource=` where there is a setup."""
    settings.setdefault("workers", 4)
    settings.setdefault("max_in_flight", 4 * settings["workers"])

    def caller(resource: dict[str, Any]) -> Callable[[Call], Any]:
        return lambda call: fn(call.batch.values[call.index], **resource)

    return Engine(Settings(**settings), caller)


def finished(fn: Callable[..., Any], source: Iterable[Rows], **settings: Any) -> list[Call]:
    """All rows that come out, in this order."""
    return [call for output in engine(fn, **settings).run(iter(source)) for call in output]


def results(fn: Callable[..., Any], source: Iterable[Rows], **settings: Any) -> list[Any]:
    return [call.value for call in finished(fn, source, **settings)]
