"""map_concurrent in real Spark jobs: what goes in and what comes out."""

import datetime
import sys
import threading
from decimal import Decimal
from functools import reduce
from typing import Any

import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T
from support.notes import Notes

from manytail import Retry
from manytail.spark import _transform, map_concurrent

register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test module


def double(row: Any) -> int:
    return row.id * 2  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------------- rows in, rows out
def test_every_row_once_and_in_input_order(spark: Any) -> None:
    df = spark.range(0, 20_000, 1, 4).transform(map_concurrent, double, "twice long")
    assert [tuple(row) for row in df.collect()] == [(number, 2 * number) for number in range(20_000)]


def test_it_is_lazy(spark: Any, notes: Notes) -> None:
    """Not even the input is read."""

    def read(batches: Any) -> Any:
        notes.add("read")
        yield from batches

    options = {"key": "id", "item_id": "id", "priority": "id"}
    source = spark.range(3).mapInArrow(read, "id long")
    df = source.transform(map_concurrent, lambda row: notes.add("called"), "x int", **options)
    assert df.columns == ["id", "x"]
    assert notes.read() == []
    assert len(df.collect()) == 3
    assert {"read", "called"} == set(notes.read())


def test_appended_columns_keep_type_nullability_and_metadata_and_results_are_nullable(spark: Any) -> None:
    source_schema = T.StructType(
        [
            T.StructField("a", T.IntegerType(), False, {"comment": "an a"}),
            T.StructField("b", T.ArrayType(T.StringType(), False), True),
            T.StructField("c", T.StructType([T.StructField("d", T.ByteType(), False)]), False),
        ]
    )
    result = T.StructType([T.StructField("x", T.ArrayType(T.LongType(), False), False, {"unit": "m"})])
    df = spark.createDataFrame([(1, ["p"], (2,))], source_schema).transform(
        map_concurrent, lambda row: [row.a], result, errors="column"
    )
    assert df.schema.fields[:3] == source_schema.fields
    assert df.schema["x"] == T.StructField("x", T.ArrayType(T.LongType(), False), True, {"unit": "m"})
    assert df.schema["_error"].dataType.simpleString() == "struct<type:string,message:string,attempts:int,key:string>"
    assert df.collect() == [Row(a=1, b=["p"], c=Row(d=2), x=[1], _error=None)]


def test_replace_gives_result_columns_only(spark: Any) -> None:
    def fn(row: Any) -> tuple[int, int]:
        return row.id, 1 // row.id

    df = spark.range(3).transform(
        map_concurrent, fn, "id long, x int", columns="replace", errors="column", error_column="why"
    )
    assert df.columns == ["id", "x", "why"]
    assert [(row.id, row.x, row.why and row.why.type) for row in df.collect()] == [
        (None, None, "ZeroDivisionError"),
        (1, 1, None),
        (2, 0, None),
    ]


def test_values_are_those_of_a_collected_row(spark: Any) -> None:
    columns = {
        "byte": "tinyint(-3)", "text": "'ä'", "null_text": "cast(null as string)", "binary": "unhex('00ff')",
        "money": "cast('1.50' as decimal(10,2))", "day": "date'2024-02-29'",
        "ntz": "timestamp_ntz'2024-02-29 12:00:00.5'",
        "span": "interval '1 2' day to hour", "list": "array(1, null)", "map": "map('k', named_struct('d', 1))",
        "struct": "named_struct('a', 1, 'b', array(named_struct('c', 'x')))",
        "double": "double('NaN')", "float": "float(0.5)", "bool": "true", "nothing": "null",
    }  # fmt: skip
    columns_sql = [f"{expression} AS `{name}`" for name, expression in columns.items()]
    source = spark.range(1).selectExpr(*columns_sql, "parse_json('[1, 2]') AS variant")
    (collected,) = source.collect()
    expected = {name: repr(collected[name]) for name in columns}
    expected["binary"] = repr(b"\x00\xff")  # PySpark 4.0 collects a bytearray

    def fn(row: Any) -> tuple[list[str], bool]:
        found = {name: repr(row[name]) for name in expected}
        wrong = [f"{name}: {found[name]} is not {value}" for name, value in expected.items() if found[name] != value]
        return wrong, row.struct.b[0].c == "x" and row.variant.toPython() == [1, 2]

    assert source.transform(map_concurrent, fn, "wrong array<string>, rows boolean", columns="replace").collect() == [
        Row(wrong=[], rows=True)
    ]


def test_user_defined_types_both_ways(spark: Any) -> None:
    from pyspark.testing.objects import ExamplePoint, ExamplePointUDT

    schema = T.StructType(
        [T.StructField("p", ExamplePointUDT()), T.StructField("list", T.ArrayType(ExamplePointUDT()))]
    )
    result = T.StructType([T.StructField("turned", ExamplePointUDT())])
    source = spark.createDataFrame([(ExamplePoint(1.0, 2.0), [ExamplePoint(3.0, 4.0)])], schema)
    df = source.transform(map_concurrent, lambda row: ExamplePoint(row.p.y, row.list[0].x), result, columns="replace")
    assert df.collect() == [Row(turned=ExamplePoint(2.0, 3.0))]


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "JST", "GMT+9", "+09:00"])
def test_timestamps_are_naive_in_session_time_both_ways(spark: Any, conf: Any, zone: str) -> None:
    conf("spark.sql.session.timeZone", zone)

    def fn(row: Any) -> tuple[str, Any, Any, Any]:
        naive = datetime.datetime(2024, 7, 1, 9)
        return repr((row.t, row.nested.list[0])), naive, [naive], naive.replace(tzinfo=datetime.UTC)

    source = spark.sql(
        "SELECT timestamp'2024-07-01 09:00:00' AS t, "
        "named_struct('list', array(timestamp'2024-07-01 09:00:00')) AS nested"
    )
    df = source.transform(map_concurrent, fn, "seen string, t2 timestamp, t3 array<timestamp>, aware timestamp")
    local = "datetime.datetime(2024, 7, 1, 9, 0)"
    row = df.selectExpr(
        "seen", "t = t2", "t = t3[0]", "cast(t2 as string) AS text", "cast(aware as string) AS aware"
    ).collect()[0]
    assert tuple(row) == (f"({local}, {local})", True, True, "2024-07-01 09:00:00", "2024-07-01 18:00:00")


def test_a_string_that_is_not_utf_8_fails_only_the_row_that_reads_it(spark: Any) -> None:
    source = spark.range(0, 4, 1, 1).selectExpr("id", "if(id % 2 = 1, cast(X'61FF' AS string), 'ok') AS s")

    def fn(row: Any) -> Any:
        return row.s if row.id != 3 else "not read"

    options = {"key": "s", "per_key": 1, "weights": {"ok": 2}, "dedup": 4, "errors": "column", "columns": "replace"}
    rows = source.transform(map_concurrent, fn, "text string", **options).collect()
    assert [row.text for row in rows] == ["ok", None, "ok", "not read"]
    assert [row._error and row._error.type for row in rows] == [None, "ValueError", None, None]


FAR = "CASE WHEN id > 0 THEN TIMESTAMP'+10000-01-01 00:00:00' ELSE TIMESTAMP'2020-01-01 00:00:00' END"


@pytest.mark.parametrize("kind", ["timestamp", "date"])
def test_a_value_that_python_cannot_hold_fails_the_row_that_reads_it_alone(spark: Any, kind: str) -> None:
    """As a key it fails nothing."""
    df = spark.range(3).select("id", F.expr(f"CAST({FAR} AS {kind})").alias("at"))
    df = df.transform(
        map_concurrent, lambda row: 0 if row.id == 2 else row.at.year, "year int", key="at", per_key=1, weights={},
        errors="column",
    )  # fmt: skip
    rows = df.drop("at").orderBy("id").collect()
    assert [row.year for row in rows] == [2020, None, 0]
    assert rows[1]._error.type == "ValueError"
    assert "cannot be held in Python" in rows[1]._error.message


def test_session_time_is_that_of_the_job_not_of_the_call(spark: Any, conf: Any) -> None:
    df = (
        spark.range(1)
        .transform(map_concurrent, lambda row: datetime.datetime(2024, 7, 1, 9), "t timestamp")
        .select(F.col("t").cast("long"))
    )
    for zone, hour in (("Asia/Tokyo", 0), ("+05:00", 4)):
        conf("spark.sql.session.timeZone", zone)
        assert df.collect()[0].t == datetime.datetime(2024, 7, 1, hour, tzinfo=datetime.UTC).timestamp()


def test_all_types_of_results(spark: Any) -> None:
    schema = (
        "a boolean, b tinyint, c smallint, d int, e bigint, f float, g double, h string, i binary, j date, "
        "k timestamp_ntz, l decimal(20,3),"
        " m interval day to second, n array<struct<x:int,y:map<string,double>>>, o variant, "
        "p map<timestamp,array<timestamp_ntz>>, q void"
    )
    value = (
        True, -1, 2, 3, 4, 0.5, 1e300, "ä", b"\x00", datetime.date(2024, 2, 29), datetime.datetime(1, 1, 1),
        Decimal("12345678901234567.125"),
        datetime.timedelta(days=-3, microseconds=1), [{"x": 1, "y": {"k": 1.5}}], T.VariantVal.parseJson("[1]"),
        {datetime.datetime(2024, 7, 1, tzinfo=datetime.UTC): [datetime.datetime(2024, 7, 1)]},
        None,
    )  # fmt: skip
    if hasattr(T, "TimeType"):  # PySpark 4.1
        schema, value = f"{schema}, r time(6)", (*value, datetime.time(1, 2, 3, 4))
    df = spark.range(2).transform(map_concurrent, lambda row: value if row.id else None, schema, columns="replace")
    nothing, found = df.collect()
    assert tuple(nothing) == (None,) * len(value)
    assert tuple(found)[:13] == value[:13]
    assert found.n == [Row(x=1, y={"k": 1.5})]
    assert found.o.toJson() == "[1]"
    assert [list(values) for values in found.p.values()] == [[datetime.datetime(2024, 7, 1)]]
    assert tuple(found)[16:] == value[16:]


@pytest.mark.parametrize(
    "names", [["a.b", "with space", "`tick`"], ["_manytail_key", "c0", "ID"], ["asDict", "keys", "_index"]]
)
def test_any_column_name_will_do(spark: Any, names: list[str]) -> None:
    source = spark.createDataFrame([(1, 2, 3)], names)
    key = "`" + names[0].replace("`", "``") + "`"
    df = source.transform(map_concurrent, lambda row: sum(row.values()), "`s.um` long", key=key, per_key=1)
    assert df.columns == [*names, "s.um"]
    assert [tuple(row) for row in df.collect()] == [(1, 2, 3, 6)]


# ------------------------------------------------------------------------------------------- what Spark's iterator sees
class CountingWork(_transform.Work):
    """Notes the size of every batch that is read from Spark's iterator, and of every one that is handed back."""

    notes: Notes

    def run(self, batches: Any) -> Any:
        def counted() -> Any:
            for batch in batches:
                self.notes.add("read", batch.num_rows)
                yield batch

        for batch in super().run(counted()):
            self.notes.add("yielded", batch.num_rows)
            yield batch


@pytest.fixture
def counted(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> Notes:
    CountingWork.notes = notes
    monkeypatch.setattr(_transform, "Work", CountingWork)
    return notes


def sizes(notes: Notes, what: str) -> list[int]:
    return [int(line.split()[1]) for line in notes.read() if line.startswith(what)]


def test_output_batches_have_at_most_max_records_per_batch(spark: Any, conf: Any, counted: Notes) -> None:
    df = spark.range(0, 1_000, 1, 1).transform(map_concurrent, double, "twice long")
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", 64)  # when the job runs, not when it was described
    assert len(df.collect()) == 1_000
    assert sum(sizes(counted, "yielded")) == 1_000
    assert max(sizes(counted, "yielded")) == 64


def test_an_empty_partition_calls_nothing(spark: Any, notes: Notes) -> None:
    def fn(row: Any, resource: Any) -> int:
        return row.id  # type: ignore[no-any-return]

    source = spark.range(0, 4, 1, 1).repartition(8)
    df = source.transform(map_concurrent, fn, "x long", setup=lambda: notes.add("setup"))
    assert len(df.collect()) == 4
    assert len(notes.read()) <= 4
    assert df.where("false").count() == 0


# ---------------------------------------------------------------------------------------------------- failures
def test_raise_fails_the_job_with_the_functions_exception_key_and_attempts(spark: Any) -> None:
    def fn(row: Any) -> int:
        return 1 // (row.id - 5)  # type: ignore[no-any-return]

    df = spark.range(10).transform(map_concurrent, fn, "x int", key="id", retry=Retry(1, backoff=0))
    with pytest.raises(PythonException, match=r"ZeroDivisionError: .*\n.*the row with key 5 failed after 2 attempts"):
        df.collect()


def test_key_of_the_error_column_is_text(spark: Any) -> None:
    texts = {
        "true": "true", "'ä'": "ä", "cast(null as int)": None, "1.50": "1.50", "unhex('c3a4')": "ä",
        "date'2024-01-02'": "2024-01-02", "timestamp'2024-01-02 03:04:05'": "2024-01-02 03:04:05",
        "double('NaN')": "nan",
    }  # fmt: skip

    def fn(row: Any) -> None:
        raise ValueError

    of_each = [spark.range(1).transform(map_concurrent, fn, "x int", errors="column", key=F.expr(key)) for key in texts]
    assert [row._error.key for row in reduce(DataFrame.unionAll, of_each).collect()] == list(texts.values())


def test_inline_runs_in_the_tasks_own_thread(spark: Any) -> None:
    def fn(row: Any) -> Any:
        ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("manytail")]
        return row.id, threading.current_thread() is threading.main_thread(), ",".join(ours)

    df = spark.range(0, 100, 1, 2).transform(map_concurrent, fn, "x long, own boolean, ours string", workers="inline")
    assert [tuple(row) for row in df.collect()] == [(number, number, True, "") for number in range(100)]


def test_unknown_columns_are_analysis_exceptions_at_the_call(spark: Any) -> None:
    for option in ("key", "priority", "item_id"):
        for column in ("nope", F.col("nope"), F.col("nope") + 1):
            with pytest.raises(AnalysisException, match="nope"):
                spark.range(1).transform(map_concurrent, double, "x long", **{option: column})
