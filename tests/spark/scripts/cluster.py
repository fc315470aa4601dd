"""map_concurrent on executors that are processes of their own, with a task that fails at first; run by test_elsewhere.py."""

import os
import sys

from manytail.spark._java import prepare_environment

prepare_environment()
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402

from manytail.spark import map_concurrent  # noqa: E402

spark = (
    SparkSession.builder.master("local-cluster[2,1,1024]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.executor.memory", "512m")
    .config("spark.executor.extraJavaOptions", os.environ.get("SPARK_SUBMIT_OPTS", ""))
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.log.level", "OFF")
    .getOrCreate()
)


def fn(row, delivery):
    """In the first attempt of each task some row kills it: one by an exception, one by the end of its process."""
    if delivery.task_attempt == 0 and row.id == 150:
        raise ValueError("first attempt")
    if delivery.task_attempt == 0 and row.id == 850:
        os._exit(1)
    return delivery.task_attempt, delivery.idempotency_key


source = spark.range(0, 1_000, 1, 4)
df = source.transform(map_concurrent, fn, "task_attempt int, k string", order="input", key=F.col("id") % 10, per_key=2)
rows = df.withColumn("part", F.spark_partition_id()).collect()
assert [row.id for row in rows] == list(range(1_000))  # none lost, none doubled
attempts = {row.part: row.task_attempt for row in rows}
assert attempts[0] >= 1, attempts
assert attempts[3] >= 1, attempts
again = spark.range(0, 1_000, 1, 1).transform(map_concurrent, lambda row, delivery: delivery.idempotency_key, "k string").collect()
assert [row.k for row in rows] == [row.k for row in again]
spark.stop()
print("cluster: ok")
