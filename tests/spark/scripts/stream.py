"""A streaming query through map_concurrent and concurrent_udf into Parquet, which kills its own driver in a call.

python stream.py DIRECTORY CALLS: the call with the number CALLS, counted over all runs in this directory, sends
SIGKILL to the process group of this program: its Python and its JVM.
"""

import os
import signal
import sys
from pathlib import Path

from pyspark.sql import functions as F

from manytail.spark import concurrent_udf, map_concurrent


def start(spark, directory, note):
    """The query over directory/in; its checkpoint and output are there too. `note` is called for each row."""

    def fetch(row):
        note(row.id)
        return 2 * row.id

    later = concurrent_udf(lambda number: number + 1, "long", workers=4)
    files = spark.readStream.schema("id long").option("maxFilesPerTrigger", 4).parquet(str(Path(directory, "in")))
    rows = files.transform(
        map_concurrent, fetch, "twice long", workers=4, key=F.col("id") % 5, per_key=2, order="completion"
    )
    rows = rows.select("id", "twice", later("id").alias("next"))
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(Path(directory, "checkpoint")))
    return writer.trigger(availableNow=True).start(str(Path(directory, "out")))


def session():
    from pyspark.sql import SparkSession

    from manytail.spark._java import prepare_environment

    prepare_environment()
    builder = SparkSession.builder.master("local[2]").config("spark.log.level", "OFF")
    for name in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(name, "false")
    return builder.getOrCreate()


if __name__ == "__main__":
    place, last = sys.argv[1], int(sys.argv[2])
    driver = os.getpgrp()

    def note_call(number):
        with Path(place, "calls").open("a+") as file:
            file.write(f"{number}\n")
            file.flush()
            file.seek(0)
            if sum(1 for _ in file) >= last:
                os.killpg(driver, signal.SIGKILL)

    start(session(), place, note_call).awaitTermination()
