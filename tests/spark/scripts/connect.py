"""map_concurrent, concurrent_udf, fan_out and an example through Spark Connect; test_elsewhere.py runs it.

The argument is a file with the example, which stands in docs/questions. The whole suite on Connect: `make test-long`,
or MANYTAIL_CONNECT=1.
"""

import datetime
import os
import sys
from pathlib import Path

from manytail.spark._java import prepare_environment

prepare_environment()
print(os.environ["JAVA_HOME"])
os.environ["SPARK_TESTING"] = "1"  # the server listens on a free port, and the client asks it for that

import pytest  # noqa: E402
from pyspark.errors import AnalysisException, PythonException  # noqa: E402
from pyspark.sql import Row, SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402
from pyspark.sql import types as T  # noqa: E402

from manytail.spark import bootstrap, concurrent_udf, fan_out, map_concurrent  # noqa: E402


def raises(kind, call, *words):
    with pytest.raises(kind) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


def enrich(row, delivery):
    if row.id == 3:
        raise ValueError("three")
    return 2 * row.id, delivery.key, row.t + datetime.timedelta(hours=1)


async def later(row):
    return row.id


spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect")
spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")

# Rows, keys, errors, session time
source = spark.range(0, 100, 1, 2).withColumn("t", F.timestamp_seconds(F.col("id")))
df = source.transform(
    map_concurrent,
    enrich,
    "twice long, key string, later timestamp",
    key=F.concat(F.lit("k"), "id"),
    per_key=1,
    errors="column",
)
rows = df.withColumn("hour", F.hour("later")).collect()
assert [row.id for row in rows] == list(range(100))
assert [row.twice for row in rows] == [None if number == 3 else 2 * number for number in range(100)]
assert rows[5].key == "k5"
assert rows[5].hour == 10
assert rows[3]._error == Row(type="ValueError", message="three", attempts=1, key="k3")

# The schema of the output
typed = spark.createDataFrame([(1,)], T.StructType([T.StructField("a", T.IntegerType(), False, {"unit": "m"})]))
output = typed.transform(
    map_concurrent, lambda row: row.a, T.StructType([T.StructField("x", T.IntegerType(), False)])
).schema
assert output["a"] == T.StructField("a", T.IntegerType(), False, {"unit": "m"}), output
assert output["x"].nullable

# Async functions and column functions
assert [row.x for row in source.transform(map_concurrent, later, "x long", workers=20).collect()] == list(range(100))
if hasattr(F, "arrow_udf"):  # concurrent_udf needs PySpark 4.1
    udf = concurrent_udf(lambda a, b: a + b, "bigint", workers=4)
    assert [row.x for row in spark.range(5).select(udf("id", F.lit(1)).alias("x")).collect()] == [1, 2, 3, 4, 5]


# Several sinks
def total(batches):
    return sum(sum(batch["id"].to_pylist()) for batch in batches)


def fails(batches):
    next(batches)
    raise StopIteration("no more")


done = fan_out(source, {"total": total, "fails": fails}, schema="n long", errors="column").collect()
assert [(row.partition, row.sink) for row in done] == [(part, sink) for part in (0, 1) for sink in ("total", "fails")]
assert sum(row.result.n for row in done if row.sink == "total") == sum(range(100))
assert {tuple(row.error) for row in done if row.error} == {("StopIteration", "no more")}
raises(
    PythonException, lambda: fan_out(source, {"fails": fails}).collect(), "StopIteration: no more", "the sink 'fails'"
)

# What is wrong is said at the call
for option in ("key", "priority", "item_id"):
    raises(
        AnalysisException,
        lambda option=option: source.transform(map_concurrent, later, "x long", **{option: "nope"}),
        "nope",
    )
    raises(
        AnalysisException,
        lambda option=option: source.transform(map_concurrent, later, "x long", **{option: F.col("nope") + 1}),
        "nope",
    )
raises(TypeError, lambda: source.transform(map_concurrent, later, "x long", priority="t"), "priority", "integral")
raises(ValueError, lambda: source.transform(map_concurrent, later, "ID long"), "schema", "ID")
raises(ValueError, lambda: source.transform(map_concurrent, later, "no type"), "schema", "no type")
spark.conf.set("spark.sql.caseSensitive", "true")
assert source.transform(map_concurrent, later, "ID long").columns == ["id", "t", "ID"]
raises(
    PythonException,
    lambda: source.transform(map_concurrent, lambda row: 1 // (row.id - 5), "x int", key="id").collect(),
    "ZeroDivisionError",
    "key 5",
)

# The package is sent to the workers; the example of docs/questions
bootstrap(spark)
assert len(source.transform(map_concurrent, later, "x long").collect()) == 100
if hasattr(F, "arrow_udf"):  # the example calls concurrent_udf
    example = Path(sys.argv[1])
    exec(compile(example.read_text(), str(example), "exec"), {"__name__": "example"})
spark.stop()
print("connect: ok")
