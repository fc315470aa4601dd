"""A streaming query through map_concurrent and concurrent_udf into Parquet; test_streaming.py kills its driver."""

import sys
import time
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
    place = sys.argv[1]

    def note_call(number):
        with Path(place, "calls").open("a") as file:
            file.write(f"{number}\n")
        time.sleep(0.005)

    start(session(), place, note_call).awaitTermination()
