"""The Spark job: every package is looked up at the paid service, then one pass over the answers makes three outputs.

`ask` does one call for one row and says by raising what went wrong. `look_up` runs many of them: that is what a user of
manytail writes, read it first. run.py starts this file as a program, twice; it may be killed at any moment.
"""

import argparse
import json
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import urllib3
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf

from manytail import Budget, Rate, Retry, RetryLater, Shared
from manytail.demo.cli import interrupt
from manytail.demo.session import spark_session
from manytail.spark import Delivery, fan_out, map_concurrent

TASKS, WORKERS, PER_KEY = 2, 32, 16
NAME = "installations of Debian packages"  # in the database: of the recorded results, the rate and the budget


class Unresolvable(Exception):
    """No package of the index meets a dependency (422). To ask again would not help."""


def ask(row: Any, *, resource: urllib3.HTTPConnectionPool, delivery: Delivery) -> Mapping[str, Any]:
    """What an installation of the package downloads."""
    headers = {"Idempotency-Key": delivery.idempotency_key}
    reply = resource.request("GET", f"/installation/{quote(row.package)}", headers=headers)
    if reply.status in (429, 503):
        raise RetryLater(retry_after(reply.headers))
    if reply.status == 422:
        raise Unresolvable(reply.json())
    if reply.status != 200:
        raise RuntimeError(f"HTTP status {reply.status}")
    return dict(reply.json())


def retry_after(headers: Mapping[str, str], default: float = 1.0) -> float:
    """Seconds, from a number or an HTTP date; `default` where there is neither."""
    value = headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return default
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def connect(url: str) -> urllib3.HTTPConnectionPool:
    """A kept-alive connection for one worker thread. No retries: map_concurrent retries and counts."""
    return urllib3.connection_from_url(url, maxsize=1, retries=False, timeout=30)


def look_up(packages: DataFrame, url: str, shared: Shared, *, rate: float, budget: float) -> DataFrame:
    """Every package with what its installation downloads, or why that is not known in `_error`.

    The rate and the budget hold over both tasks and over all runs that use the database. What is recorded there is not
    paid again. A refused call (429) defers its section; the calls of other sections go on.
    """
    return packages.repartition(TASKS, "section").transform(
        map_concurrent, ask, "packages long, bytes long", setup=partial(connect, url), workers=WORKERS,
        key="section", per_key=PER_KEY, order="completion", retry=Retry(2, urllib3.exceptions.HTTPError),
        remember=shared, item_id=sf.concat_ws("=", "package", "version"), errors="column", metrics=True,
        limits=[
            Rate(rate, shared=shared, name="calls"), Budget(budget, cost="price", shared=shared, name="money"),
        ],
    )  # fmt: skip


def edges(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Row]:
    """A sink that writes one row for each package and each package that it may depend on."""

    def sink(batches: Iterator[pa.RecordBatch]) -> Row:
        found = [
            {"package": row["package"], "group": number, "depends_on": name}
            for batch in batches
            for row in batch.select(["package", "depends"]).to_pylist()
            for number, group in enumerate(row["depends"])
            for name in group
        ]
        path = folder / f"edges-{uuid.uuid4().hex}.parquet"  # a retried task writes another; the returned one counts
        schema = pa.schema([("package", pa.string()), ("group", pa.int32()), ("depends_on", pa.string())])
        pq.write_table(pa.Table.from_pylist(found, schema=schema), path)
        return Row(rows=len(found), file=str(path), sections={})

    return sink


def dead_letters(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Row]:
    """A sink that writes one JSON line for each package that failed."""

    def sink(batches: Iterator[pa.RecordBatch]) -> Row:
        path, count = folder / f"dead-{uuid.uuid4().hex}.jsonl", 0
        with path.open("w", encoding="utf-8") as file:
            for batch in batches:
                for row in batch.select(["package", "section", "price", "_error"]).to_pylist():
                    if (error := row.pop("_error")) is not None:
                        reason = error["type"].rpartition(".")[2]
                        file.write(json.dumps(row | {"reason": reason, "message": error["message"]}) + "\n")
                        count += 1
        return Row(rows=count, file=str(path), sections={})

    return sink


def answered(batches: Iterator[pa.RecordBatch]) -> Row:
    """A sink that counts the packages of each section that have an answer."""
    counts = Counter(
        row["section"]
        for batch in batches
        for row in batch.select(["section", "_error"]).to_pylist()
        if row["_error"] is None
    )
    return Row(rows=counts.total(), file=None, sections=dict(counts))


def main(out: Path, url: str, rate: float, budget: float) -> None:
    shared = Shared(out / "shared.db", NAME)
    results = out / "results"
    results.mkdir(exist_ok=True)
    with spark_session(out) as spark:
        packages = spark.read.parquet(str(out / "asked.parquet"))
        started = time.perf_counter()
        done = packages.transform(look_up, url, shared, rate=rate, budget=budget)
        done.write.mode("overwrite").parquet(str(out / "calls"))
        sinks = {"edges": edges(results), "dead_letters": dead_letters(results), "answered": answered}
        schema = "rows long, file string, sections map<string, long>"
        rows = fan_out(spark.read.parquet(str(out / "calls")), sinks, schema=schema).collect()
        outputs = [{"sink": row.sink, **row.result.asDict()} for row in rows]
        seconds = time.perf_counter() - started
    (out / "job.json").write_text(json.dumps({"seconds": seconds, "outputs": outputs}), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("url")
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--budget", type=float, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, interrupt)
    try:
        main(options.out.resolve(), options.url, options.rate, options.budget)
    except KeyboardInterrupt:
        sys.exit(130)
