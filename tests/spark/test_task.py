"""The body of mapInArrow without Spark: what it logs, and what it raises."""

import logging
import traceback
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.util import try_simplify_traceback

from manytail.arrow.engine import ArrowMap, check_options
from manytail.spark import _task
from manytail.spark._task import Work


def run(fn: Any, **options: Any) -> list[pa.RecordBatch]:
    result = T.StructType([T.StructField("x", T.LongType())])
    work = Work(ArrowMap(fn, check_options(fn, options)), result, "UTC", ("id",), (T.LongType(),))
    return list(work.run(iter([pa.record_batch({"c0": range(100)})])))


def test_the_number_of_dropped_rows_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "manytail.spark"):
        out = run(lambda row: 1 // (row.id % 2), errors="drop")
        assert caplog.messages == ["50 rows failed and were dropped (partition None)"]
        assert sum(batch.num_rows for batch in out) == 50
        run(lambda row: 1, errors="drop")
    assert len(caplog.messages) == 1


def test_the_traceback_of_a_task_shows_the_lines_that_raised() -> None:
    """As PySpark shows it: of each frame the line that ran last."""

    def fail(row: Any) -> None:
        raise LookupError("of the function")

    with pytest.raises(LookupError) as caught:
        run(fail)
    frames = traceback.extract_tb(try_simplify_traceback(caught.tb))
    of_task = [frame.line for frame in frames if frame.filename == _task.__file__]
    assert of_task == ["for batch in results:"]
    assert frames[-1].line == 'raise LookupError("of the function")'


@dataclass(frozen=True)
class Frozen(Exception):
    """It refuses a note."""

    code: int


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), StopIteration(5), Frozen(404)])
def test_raise_wraps_what_is_no_exception_or_takes_no_note(error: BaseException) -> None:
    def fail(row: Any) -> None:
        raise error

    with pytest.raises(RuntimeError) as caught:
        run(fail)
    assert caught.value.__cause__ is error
    assert caught.value.__notes__ == ["manytail: the row with key None failed after 1 attempt"]
