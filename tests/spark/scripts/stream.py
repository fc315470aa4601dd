"""A streaming query through map_concurrent and concurrent_udf into Parquet, which kills its own driver in a call.

python stream.py DIRECTORY CALLS: the call with the number CALLS, counted over all runs in this directory, sends
SIGKILL to the process group of this program: its Python and its JVM. It waits until a result is recorded.
"""

import math
import os
import signal
import sys
import time
from pathlib import Path

from pyspark.sql import functions as F

from manytail import Shared
from manytail.spark import concurrent_udf, map_concurrent


def shared_in(directory):
    """The database of what is remembered."""
    return Shared(f"sqlite:///{Path(directory, 'shared.db')}", "stream")


def noting(directory, last=math.inf, driver=0):
    """What notes the calls in directory/calls, and kills the driver's process group at the last one."""
    shared = shared_in(directory)

    def note(what):
        with Path(directory, "calls").open("a+") as file:
            file.write(f"{what}\n")
            file.flush()
            file.seek(0)
            number = sum(1 for _ in file)
        if number >= last:
            while not shared.remembered():
                time.sleep(0.01)
            os.killpg(driver, signal.SIGKILL)

    return note


def start(spark, directory, note):
    """The query over directory/in; its checkpoint and output are there too. `note` gets the name of each call."""

    def fetch(row, delivery):
        note(delivery.idempotency_key)
        return 2 * row.id

    files = spark.readStream.schema("id long").option("maxFilesPerTrigger", 4).parquet(str(Path(directory, "in")))
    rows = files.transform(
        map_concurrent,
        fetch,
        "twice long",
        workers=4,
        key=F.col("id") % 5,
        per_key=2,
        order="completion",
        remember=shared_in(directory),
    )
    after = F.col("id") + 1
    if hasattr(F, "arrow_udf"):  # concurrent_udf needs PySpark 4.1
        after = concurrent_udf(lambda number: number + 1, "long", workers=4)("id")
    rows = rows.select("id", "twice", after.alias("next"))
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(Path(directory, "checkpoint")))
    return writer.trigger(availableNow=True).start(str(Path(directory, "out")))


if __name__ == "__main__":
    from sessions import session

    place, last = sys.argv[1], int(sys.argv[2])
    start(session("local[2]"), place, noting(place, last, os.getpgrp())).awaitTermination()
