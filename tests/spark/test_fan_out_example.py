"""examples/flights/fan_out.py: each of its three outputs equals that of a separate Spark job over the same flights."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from pyspark.sql import functions as F

from manytail.demo import data

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights" / "fan_out.py"


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """The script as a module. Workers cannot import it, so its functions are pickled by value."""
    found = importlib.util.spec_from_file_location("fan_out_example", EXAMPLE)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    register_pickle_by_value(module)
    yield module
    unregister_pickle_by_value(module)
    del sys.modules[found.name]


def test_each_output_is_what_a_job_of_its_own_makes(spark: Any, example: Any, tmp_path: Path) -> None:
    pq.write_table(data.flights(), tmp_path / "flights.parquet")
    flights = spark.read.parquet(str(tmp_path / "flights.parquet")).repartition(3)
    folder = tmp_path / "late"
    folder.mkdir()
    done = example.in_one_pass(flights, folder).persist()

    told = done.select("partition", "sink", "rows", "error").collect()
    assert sorted((row.partition, row.sink) for row in told) == [
        (task, sink) for task in range(3) for sink in ("airports", "carriers", "late")
    ]
    assert all(row.error is None for row in told)
    assert {
        sink: sum(row.rows for row in told if row.sink == sink) for sink in ("airports", "carriers", "late")
    } == dict.fromkeys(("airports", "carriers", "late"), flights.count())

    for sink, key, delay in (("airports", "dest", "arr_delay"), ("carriers", "carrier", "dep_delay")):
        own = flights.groupBy(F.col(key).alias("key")).agg(
            F.count("*").alias("flights"),
            F.count(delay).alias("flown"),
            F.coalesce(F.sum(delay), F.lit(0)).alias("delay"),
        )
        assert {tuple(row) for row in example.added_up(done, sink).collect()} == {tuple(row) for row in own.collect()}

    columns = ["seq", "carrier", "flight", "origin", "dest", "dep_delay"]
    written = spark.read.json(example.late_files(done)).select(columns)
    own = flights.where(F.col("dep_delay") >= example.LATE).select(columns)
    found, expected = [tuple(row) for row in written.collect()], [tuple(row) for row in own.collect()]
    assert len(expected) > 5000
    assert sorted(found) == sorted(expected)
    done.unpersist()
