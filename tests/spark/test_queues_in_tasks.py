"""examples/spark_queues: each program in tasks of local[2], and a thread of it that fails."""

import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value

EXAMPLES = Path(__file__).parents[2] / "examples" / "spark_queues"


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """A program as a module. Workers cannot import it, so its functions are pickled by value."""
    path = EXAMPLES / f"{request.param}.py"
    found = importlib.util.spec_from_file_location(f"{path.stem}_example", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    register_pickle_by_value(module)
    yield module
    unregister_pickle_by_value(module)
    del sys.modules[found.name]


def program(name: str) -> Any:
    return pytest.mark.parametrize("example", [name], indirect=True)


def test_each_program_is_in_this_file() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    programs = sorted(path.stem for path in EXAMPLES.glob("*.py"))
    assert programs == sorted({name for name in programs if f'@program("{name}")' in text})


def files(folder: Path) -> list[tuple[str, str]]:
    """Of three customers, one with more lines than its sub-queue holds."""
    rows = []
    for customer, size in (("big", 500), ("small", 7), ("empty", 0)):
        path = folder / f"{customer}.log"
        path.write_text("".join(f"{customer} {number}\n" for number in range(size)), encoding="utf-8")
        rows.append((customer, str(path)))
    return rows


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@program("readers_and_writers")
def test_readers_and_writers(spark: Any, example: Any, tmp_path: Path) -> None:
    rows = files(tmp_path)
    table = spark.createDataFrame(rows, "customer string, path string").repartition(4)  # more tasks than rows
    done = example.sent_lines(table, tmp_path)
    assert {row.customer: row.lines for row in done.collect()} == {"big": 500, "small": 7}
    for customer, path in rows:
        written = [line for out in tmp_path.glob(f"{customer}-*.txt") for line in lines(out)]
        assert Counter(written) == Counter(lines(Path(path)))


@program("readers_and_writers")
def test_a_reader_or_a_writer_that_fails_ends_the_others(example: Any, tmp_path: Path) -> None:
    missing = [*files(tmp_path), ("gone", str(tmp_path / "gone.log"))]
    with pytest.raises(FileNotFoundError):
        example.transfer(missing, lambda customer, line: None)

    def refuse(customer: str, line: str) -> None:
        raise ConnectionError(customer)

    with pytest.raises(ConnectionError):
        example.transfer(files(tmp_path), refuse)


@program("two_sinks")
def test_two_sinks(spark: Any, example: Any) -> None:
    done = example.in_one_pass(spark.range(1_000, numPartitions=2).withColumnRenamed("id", "amount")).collect()
    assert sorted((row.sink, row.amount) for row in done) == [
        ("largest", 499),
        ("largest", 999),
        ("total", sum(range(500))),
        ("total", sum(range(500, 1_000))),
    ]


@program("two_sinks")
def test_a_sink_that_fails_keeps_nothing_from_the_others(example: Any) -> None:
    batches = [pa.RecordBatch.from_pydict({"amount": [number]}) for number in range(50)]
    seen = []

    def fail(batches: Iterator[pa.RecordBatch]) -> int:
        next(batches)
        raise OSError("disk full")

    def count(batches: Iterator[pa.RecordBatch]) -> int:
        seen.extend(batch["amount"][0].as_py() for batch in batches)
        return len(seen)

    with pytest.raises(OSError, match="disk full"):
        example.feed(iter(batches), {"fail": fail, "count": count})
    assert seen == list(range(50))


@program("row_numbers")
def test_row_numbers(spark: Any, example: Any) -> None:
    rows = spark.range(1_000, numPartitions=2).selectExpr("format_string('h%d', id % 3) AS host", "id AS size")
    done = [tuple(row) for row in example.with_seconds(rows).collect()]
    assert done == [(f"h{number % 3}", number, 2 + number / 1000) for number in range(1_000)]


@program("row_numbers")
def test_a_call_that_fails_ends_the_other_threads(example: Any) -> None:
    batch = pa.RecordBatch.from_pydict({"host": ["a"] * 1_000 + ["b"], "size": list(range(1_001))})

    def refuse(host: str, sizes: list[int]) -> list[float]:
        if host == "b":
            raise ConnectionError(host)
        return [0.0] * len(sizes)

    with pytest.raises(ConnectionError):
        example.fill(batch, refuse)


@program("flaky_service")
def test_a_flaky_service(spark: Any, example: Any) -> None:
    done = {row.id: row for row in example.answered(spark.range(200, numPartitions=2)).collect()}
    assert sorted(done) == list(range(200))
    for number, row in done.items():
        if number % 100 == 99:
            assert (row.answer, row.tries, row.error) == (None, 3, "max_deliveries: no answer after 3 tries")
        else:
            assert (row.answer, row.tries, row.error) == (f"answer {number}", 2 if number % 3 == 0 else 1, None)


@program("flaky_service")
def test_an_error_that_is_not_tried_again_ends_the_other_threads(example: Any) -> None:
    def refuse(number: int, tries: int) -> str:
        if number == 3:
            raise ValueError("no such row")
        raise ConnectionError("down")

    with pytest.raises(ValueError, match="no such row"):
        example.ask_for_all([{"id": number} for number in range(20)], refuse)
