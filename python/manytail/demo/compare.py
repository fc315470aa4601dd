"""The usual way, to stand beside `enrich`: a thread pool per batch inside mapInArrow.

Written as well as it is usually written: the same `fetch`, connections kept for the whole task, retries, errors as a column, order kept by `map`.
What it does not have: turns between carriers, a limit per carrier, and calls that go on while the slowest call of a batch ends. A retry holds its
thread while it waits.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import urllib3
from pyspark.sql import DataFrame, Row
from pyspark.sql.types import StructType

from manytail.spark import Delivery

from .enrich import SCHEMA, Busy, connect, fetch

ERROR = "_error struct<type string, message string, attempts int, key string>"
RESULT = pa.schema(
    [
        *[(name, pa.float64()) for name in ("temp", "wind_speed", "precip", "visib")],
        ("attempts", pa.int32()),
        *[(name, pa.float64()) for name in ("started", "finished")],
        ("_error", pa.struct({"type": pa.string(), "message": pa.string(), "attempts": pa.int32(), "key": pa.string()})),
    ]
)
RETRIES, BACKOFF = 4, 0.05


def pool_per_batch(flights: DataFrame, url: str, *, workers: int) -> DataFrame:
    """The same rows and columns as `enrich`."""
    added = StructType.fromDDL(f"{SCHEMA}, {ERROR}")
    assert isinstance(added, StructType)
    schema = StructType(flights.schema.fields + added.fields)
    return flights.mapInArrow(_batches(url, workers), schema)


def _batches(url: str, workers: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with connect(url, workers) as connections:
            for batch in batches:
                with ThreadPoolExecutor(workers) as pool:
                    results = list(pool.map(lambda row: _call(Row(**row), connections), batch.to_pylist()))
                found = pa.RecordBatch.from_pylist(results, schema=RESULT)
                yield pa.RecordBatch.from_arrays([*batch.columns, *found.columns], names=[*batch.schema.names, *RESULT.names])

    return run


def _call(flight: Any, connections: urllib3.HTTPConnectionPool) -> dict[str, Any]:
    key = hashlib.blake2b(str(flight.seq).encode(), digest_size=16).hexdigest()
    for attempt in range(1, RETRIES + 2):
        try:
            return dict(fetch(flight, resource=connections, delivery=Delivery(attempt, 0, flight.carrier, key)))
        except Exception as error:
            if isinstance(error, Busy) and attempt <= RETRIES:
                time.sleep(BACKOFF * 2 ** (attempt - 1))
                continue
            kind = type(error)
            return {"_error": {"type": f"{kind.__module__}.{kind.__qualname__}", "message": str(error), "attempts": attempt, "key": flight.carrier}}
    raise AssertionError("unreachable: the last attempt returns")
