"""What runs in a task: a map over Arrow batches, in the host that Spark is.

`Work` is sent to the executors, so it has only plain data and the function.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import DataType, StructType

from manytail.arrow.engine import ArrowMap, Host, describe, run
from manytail.mapping.frames import stay_connected

from ._progress import Channel, Reports
from ._sent import Sent
from ._types import ResultTypes, Views, session_zone

log = logging.getLogger("manytail.spark")

MAX_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
TIME_ZONE = "spark.sql.session.timeZone"


@dataclass(frozen=True)
class Work(Sent):
    """One `map_concurrent` or `concurrent_udf`, as it is sent to the tasks."""

    work: ArrowMap  # without its schema
    result: StructType
    time_zone: str
    names: tuple[str, ...] = ()  # of the input columns that the function sees; empty: it gets values, not a row
    types: tuple[DataType, ...] | None = None
    channel: Channel | None = None  # where it reports progress

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The body of mapInArrow."""
        options = self.work.options
        for shared in (*(limit.shared for limit in options.limits), options.remember):
            if shared is not None:
                stay_connected(shared)
        reports = None if self.channel is None else Reports(self.channel)
        if reports is not None:
            options = replace(options, progress=reports.send)
        records = int(setting(MAX_RECORDS, str(self.work.max_records)))
        types = ResultTypes()
        work = replace(
            self.work,
            options=options,
            schema=types.schema(self.result),
            max_records=records if records > 0 else 1 << 31,  # 0 or less: no limit
        )
        results = run(work, batches, SparkHost(self))
        # No `finally`: PySpark shows of each frame the line that ran last, which has to be the one that raised.
        with _Ended(results, reports, options.errors == "drop"), closing(results):
            for batch in results:
                yield batch.rename_columns([f"_{position}" for position in range(batch.num_columns)])
                del batch  # must not be kept during the wait for the next one


class _Ended:
    """At the end of the task: closes its reports, and logs how many rows were dropped. No generator, because some
    exceptions cannot be thrown into one."""

    def __init__(self, results: Any, reports: Reports | None, drops: bool) -> None:
        self._results, self._reports, self._drops = results, reports, drops

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        results = self._results
        if self._reports is not None:
            self._reports.close()
        if self._drops and results.error is None and (dropped := results.stats().failed):
            context = TaskContext.get()
            partition = None if context is None else context.partitionId()
            log.warning("%d rows failed and were dropped (partition %s)", dropped, partition)


class SparkHost(Host):
    """A task of Spark."""

    input_error_first = True

    def __init__(self, work: Work) -> None:
        self._work = work
        self.by_value = not work.names
        context = TaskContext.get()
        self.task_attempt = context.attemptNumber() if context is not None else 0

    def view(self, schema: pa.Schema) -> pa.Schema:
        """The input columns under the user's names. Where one has instants, Spark has written the session's time zone
        into its type."""
        work = self._work
        zone = next((tz for field in schema if (tz := _time_zone(field.type))), None)
        self.zone = session_zone(zone or setting(TIME_ZONE, work.time_zone))
        names = work.names or tuple(schema.names)
        kinds = work.types or [None] * len(names)
        self._views = Views(self.zone)  # kept, as its types are
        fields = zip(names, schema.types, kinds, strict=False)  # an input without a batch has none
        return pa.schema([pa.field(name, self._views.of(arrow, kind)) for name, arrow, kind in fields])

    def key_type(self, kind: pa.DataType) -> pa.DataType:
        return self._views.of(kind)

    def raised(self, error: BaseException, note: str | None) -> BaseException:
        return raisable(error, note)


def raisable(error: BaseException, note: str | None) -> Exception:
    """The exception to fail a task with. SystemExit and the like would end the Python worker, StopIteration cannot
    leave a generator, and some classes refuse attributes, such as a frozen dataclass: they are wrapped. What cannot be
    written as UTF-8 (lone surrogates) is replaced: PySpark's worker would fail to report it, and the job would hang."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        with suppress(Exception):
            error.__traceback__ = error.__traceback__  # as contextlib sets it, in PySpark and here
            if note is not None and note not in getattr(error, "__notes__", ()):
                error.add_note(note)
            "".join(traceback.format_exception(error)).encode()
            return error
    described = describe(error, 0)
    wrapped = RuntimeError(f"{described.type}: {described.message}")
    if note is not None:
        wrapped.add_note(note)
    wrapped.__cause__ = error
    try:
        "".join(traceback.format_exception(wrapped)).encode()
    except Exception:
        wrapped.__cause__ = None  # nor is its context shown
    return wrapped


def setting(name: str, default: str) -> str:
    """A session's setting when the job was started. Spark sends it with the task if it was set."""
    context = TaskContext.get()
    found = None if context is None else context.getLocalProperty(name)
    return default if found is None else found


def _time_zone(kind: pa.DataType) -> str | None:
    """The zone of the first timestamp in a type."""
    if pa.types.is_timestamp(kind):
        return kind.tz  # type: ignore[no-any-return]
    fields = [kind.field(position) for position in range(kind.num_fields)]
    return next((tz for field in fields if (tz := _time_zone(field.type))), None)
