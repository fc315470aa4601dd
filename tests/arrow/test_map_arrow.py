"""map_arrow: every clause of its contract, on real batches."""

import asyncio
import datetime
import enum
import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from support.databases import Database, sqlite
from support.maps import threads_of_maps
from support.scheduling import Script
from support.threads import Threads, wait_until

from manytail import Batch, Budget, Delivery, Rate, Retry, RetryLater, Shared, TooManyFailures
from manytail.arrow import ArrowResults, ResultError, map_arrow

__all__ = ["sqlite"]

LONG = pa.schema({"x": pa.int64()})
NUMBERS = pa.table({"n": pa.array(range(10), pa.int64()), "s": [f"t{number}" for number in range(10)]})


def rows_of(results: ArrowResults) -> list[dict[str, Any]]:
    return [row for batch in results for row in batch.to_pylist()]


def xs(results: ArrowResults) -> list[Any]:
    return [row["x"] for row in rows_of(results)]


def stream(*sizes: int) -> Iterator[pa.RecordBatch]:
    start = 0
    for size in sizes:
        yield pa.record_batch({"n": pa.array(range(start, start + size), pa.int64())})
        start += size


def even(row: Any) -> Any:
    if row.n % 2:
        raise ValueError(f"odd {row.n}")
    return row.n


# ------------------------------------------------------------------------------------------------------------- input
class Frame:
    """What other libraries hand over."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "data",
    [
        NUMBERS, NUMBERS.to_reader(), NUMBERS.combine_chunks().to_batches()[0], Frame(NUMBERS), NUMBERS.to_pandas(),
        NUMBERS.to_batches(3), iter(NUMBERS.to_batches(3)),
    ],
    ids=["table", "reader", "batch", "frame", "pandas", "list", "iterator"],
)  # fmt: skip
def test_what_gives_a_stream_or_batches_is_read(data: Any) -> None:
    results = map_arrow(lambda row: 2 * row.n, data, LONG)
    assert results.schema.names == ["n", "s", "x"]
    assert pa.table(results) == NUMBERS.append_column("x", pa.array(range(0, 20, 2)))


@pytest.mark.parametrize(
    "bad", [5, pa.chunked_array([[1]]), [1], ["a"], None], ids=["number", "chunked", "numbers", "texts", "none"]
)
def test_other_data_are_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"(?s)^data: .* \(expected: "):
        map_arrow(even, bad, LONG)


@pytest.mark.parametrize("later", [5, pa.record_batch({"m": [1]})])
def test_a_later_batch_must_be_like_the_first(later: Any) -> None:
    results = map_arrow(lambda row: row.n, [*stream(3), later], LONG)
    assert next(results).column("x").to_pylist() == [0, 1, 2]
    with pytest.raises((TypeError, ValueError), match=r"(?s)^data: .* \(expected: "):
        next(results)


def test_an_iterable_without_a_batch_has_no_input_columns() -> None:
    results = map_arrow(even, [], LONG, key="anything", errors="column")
    assert results.schema.names == ["x", "_error"]
    assert pa.table(results).num_rows == 0
    empty = map_arrow(even, NUMBERS.slice(0, 0), LONG)
    assert pa.table(empty).schema.names == ["n", "s", "x"]


@pytest.mark.thread_unsafe(reason="counts the threads of the process")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
def test_inline_is_one_call_at_a_time_in_this_thread(asynchronous: bool, sqlite: Database) -> None:
    before, calls = threading.enumerate(), []

    def fn(row: Any, resource: Any) -> Any:
        assert threading.enumerate() == before
        calls.append(row.n)
        return even(row)

    async def afn(row: Any, resource: Any) -> Any:
        return fn(row, resource)

    shared = Shared(sqlite.url, "inline")
    options: dict[str, Any] = {"remember": shared, "key": "n", "setup": list, "max_records": 4}
    for _ in range(2):
        function = afn if asynchronous else fn
        results = map_arrow(function, NUMBERS, LONG, workers="inline", errors="column", **options)
        batches = list(results)
        assert [len(batch) for batch in batches] == [4, 4, 2]
        assert [x for batch in batches for x in batch["x"].to_pylist()] == [0, None, 2, None, 4, None, 6, None, 8, None]
    assert calls == [*range(10), 1, 3, 5, 7, 9]


def test_it_is_lazy() -> None:
    taken: list[int] = []

    def source() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(stream(1, 1, 1)):
            taken.append(number)
            yield batch

    results = map_arrow(lambda row: taken.append(-1), source(), LONG)
    assert taken == [0]  # the schema is that of the first batch
    assert len(list(results)) > 0
    assert Counter(taken) == Counter({0: 1, 1: 1, 2: 1, -1: 3})


def broken(rows: int) -> Iterator[pa.RecordBatch]:
    if rows:
        yield from stream(rows)
    raise OSError("the input broke")


@pytest.mark.parametrize("rows", [0, 5])
def test_an_exception_of_data_comes_after_the_rows_before_it(rows: int) -> None:
    script = Script()
    results = map_arrow(lambda row: script(row.n), broken(rows), LONG, workers=5)
    found: list[Any] = []
    with Threads() as threads:
        task = threads.start(lambda: [found.extend(batch.column("x").to_pylist()) for batch in results])
        script.wait_started(rows)
        script.let_all_go()
        error = task.outcome()
    assert isinstance(error, OSError)
    assert results.error is error
    assert found == list(range(rows))


# ----------------------------------------------------------------------------------------------------------- columns
def test_columns_append_and_replace() -> None:
    metadata = {"unit": "m"}
    source = pa.table([pa.array([1])], schema=pa.schema([pa.field("n", pa.int64(), False, metadata)]))
    result = pa.schema([pa.field("x", pa.int64(), False, metadata), pa.field("y", pa.string())])
    kept = map_arrow(lambda row: (row.n, "a"), source, result)
    assert [*kept.schema] == [*source.schema, *result]
    assert [field.metadata for field in kept.schema] == [{b"unit": b"m"}] * 2 + [None]
    assert [*next(kept).schema] == [*kept.schema]
    alone = map_arrow(lambda row: {"y": "b", "x": 5}, source, result, columns="replace")
    assert [*alone.schema] == [*result]
    assert pa.table(alone).to_pylist() == [{"x": 5, "y": "b"}]
    assert xs(map_arrow(lambda row: row["n"], NUMBERS, pa.schema({"n": pa.int64(), "x": pa.int64()}).remove(0),
                        columns="replace")) == list(range(10))  # fmt: skip


def test_columns_of_any_kind_are_passed_on_as_they_are() -> None:
    table = pa.table({
        "d": pa.chunked_array([pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", None]).dictionary_encode()]),
        "u": pa.array([bytes([n] * 16) for n in range(4)], pa.uuid()),
        "v": pa.array(["a", "b", None, "c"], pa.string_view()),
        "t": pa.array([0, 1, 2, 1 << 62], pa.timestamp("ns", "Asia/Tokyo")),
        "l": pa.array([["a"], [], None, ["b"]], pa.list_(pa.string_view())),
    })  # fmt: skip
    seen: dict[int, Any] = {}

    def fn(row: Any) -> int:
        seen[row.u[0]] = (row.d, row.v, row.l)
        return 1

    out = pa.table(map_arrow(fn, table, LONG))
    assert out.schema.remove(5) == table.schema
    assert seen == {0: ("a", "a", ["a"]), 1: ("b", "b", []), 2: ("c", None, None), 3: (None, "c", ["b"])}
    assert out.drop_columns("x").to_pylist() == table.to_pylist()
    # Rows that overtake one another are put together from pieces.
    script = Script()
    results = map_arrow(lambda row: script(row.u[0]), table, LONG, order="completion", workers=4)
    with Threads() as threads:
        task = threads.start(lambda: pa.table(results))
        script.wait_started(4)
        for done, number in enumerate((2, 0, 3, 1)):
            script.let_go(number)
            wait_until(lambda done=done: results.stats().done == done + 1)
        out = task.result()
    assert out.schema.remove(5) == table.schema
    assert out["x"].to_pylist() == [2, 0, 3, 1]
    rows = table.to_pylist()
    assert out.drop_columns("x").to_pylist() == [rows[number] for number in (2, 0, 3, 1)]


def test_nullability_of_results() -> None:
    strict = pa.schema([pa.field("x", pa.int64(), False), pa.field("y", pa.int64())])
    answers = {0: None, 1: {"y": 1}, 2: (None, 1), 3: (1, None), 4: {"x": 1, "y": 2}}
    failing = map_arrow(lambda row: answers[row.n], NUMBERS.slice(0, 5), strict, errors="column")
    assert failing.schema.field("x").nullable  # a failed row has none
    rows = rows_of(failing)
    assert [row["x"] for row in rows] == [None, None, None, 1, 1]
    assert [row["_error"] and row["_error"]["message"] for row in rows] == [
        "column x: None of type NoneType does not fit (expected: not None) (key None)"
    ] * 3 + [None] * 2
    single = pa.schema([pa.field("x", pa.int64(), False)])
    assert not map_arrow(even, NUMBERS, single).schema.field("x").nullable
    with pytest.raises(ResultError, match=r"^column x: None .*expected: not None"):
        list(map_arrow(lambda row: None, NUMBERS, single))
    dropped = map_arrow(lambda row: {"x": row.n or None}, NUMBERS, single, errors="drop")
    assert xs(dropped) == list(range(1, 10))


# ------------------------------------------------------------------------------------------------------------ errors
def test_errors_raise() -> None:
    results = map_arrow(even, NUMBERS, LONG, key="s", workers=1, max_records=1)
    assert [next(results).column("x").to_pylist()] == [[0]]
    with pytest.raises(ValueError, match="odd 1") as caught:
        list(results)
    assert caught.value.__notes__ == ["manytail: the row with key 't1' failed after 1 attempt"]
    assert results.error is caught.value
    assert list(results) == []


def test_errors_column() -> None:
    results = map_arrow(even, NUMBERS, LONG, errors="column", error_column="why", key="s", retry=Retry(1, backoff=0))
    assert results.schema.field("why").type == pa.struct(
        {"type": pa.string(), "message": pa.string(), "attempts": pa.int32(), "key": pa.string()}
    )
    rows = rows_of(results)
    assert [row["x"] for row in rows] == [None if n % 2 else n for n in range(10)]
    assert rows[0]["why"] is None
    assert rows[3]["why"] == {"type": "ValueError", "message": "odd 3", "attempts": 2, "key": "t3"}


def test_errors_drop_and_max_failures() -> None:
    results = map_arrow(even, NUMBERS, LONG, errors="drop")
    assert rows_of(results) == [{"n": n, "s": f"t{n}", "x": n} for n in range(0, 10, 2)]
    assert (results.stats().done, results.stats().failed) == (10, 5)
    with pytest.raises(TooManyFailures, match="max_failures: 3 items failed"):
        list(map_arrow(even, NUMBERS, LONG, errors="drop", max_failures=2))


def test_what_does_not_fit_fails_its_row_and_is_not_retried() -> None:
    calls: list[int] = []

    def fn(row: Any) -> Any:
        calls.append(row.n)
        return "text" if row.n == 3 else row.n

    results = map_arrow(fn, NUMBERS, LONG, errors="column", retry=5, key="n")
    error = rows_of(results)[3]["_error"]
    assert error["type"] == "manytail.arrow.ResultError"
    assert error["message"] == "column x: 'text' of type str does not fit (expected: an int from " \
        f"{-2**63} to {2**63 - 1}, for int64) (key 3)"  # fmt: skip
    assert len(calls) == 10


# ----------------------------------------------------------------------------------------------------------- options
def test_kinds_of_functions() -> None:
    async def awaited(row: Any) -> int:
        await asyncio.sleep(0)
        return row.n + 1  # type: ignore[no-any-return]

    for workers in (3, (1, 3)):
        assert xs(map_arrow(awaited, NUMBERS, LONG, workers=workers)) == list(range(1, 11))
    sizes: list[int] = []

    def batched(rows: list[Any], delivery: Delivery, resource: int) -> list[Any]:
        sizes.append(len(rows))
        assert len(delivery.idempotency_keys) == len(rows)
        return [row.n * resource for row in rows]

    found = xs(map_arrow(batched, NUMBERS, LONG, batch=Batch(4, linger=10), setup=lambda: 3))
    assert found == list(range(0, 30, 3))
    assert sorted(sizes) == [2, 4, 4]


@pytest.mark.parametrize("key", ["s", lambda row: row.s, lambda row: row.n % 3])
def test_key_names_a_column_or_is_a_function_of_the_row(key: Any) -> None:
    seen: dict[int, Any] = {}

    def fn(row: Any, delivery: Delivery) -> Any:
        seen[row.n] = delivery.key
        raise ValueError

    results = map_arrow(fn, NUMBERS, LONG, key=key, order="key", per_key=1, errors="column", weights={"t1": 2})
    rows = rows_of(results)
    expected = {n: f"t{n}" if key == "s" else key(NumberRow(n)) for n in range(10)}
    assert seen == expected
    assert {row["n"]: row["_error"]["key"] for row in rows} == {n: str(value) for n, value in expected.items()}


class NumberRow:
    def __init__(self, n: int) -> None:
        self.n, self.s = n, f"t{n}"


@pytest.mark.parametrize("priority", ["p", lambda row: row.p])
def test_priority_names_a_column_or_is_a_function_of_the_row(priority: Any) -> None:
    order: list[Any] = []
    table = pa.table({"p": pa.array([0, 3, None, 1, 2], pa.int8())})
    script = Script(3, None, 1, 2)

    def fn(row: Any) -> None:
        order.append(row.p)
        script(row.p)

    results = map_arrow(fn, table, LONG, priority=priority, workers=1, max_in_flight=5, order="completion")
    with Threads() as threads:
        task = threads.start(lambda: list(results))
        script.wait_started(1)
        wait_until(lambda: results.stats().in_flight == 5)
        script.let_go(0)
        task.result()
    assert order == [0, 1, 2, 3, None]


@pytest.mark.parametrize("item_id", ["k", lambda row: row.k])
def test_item_id_names_a_column_or_is_a_function_of_the_row(item_id: Any) -> None:
    table = pa.table({"k": [1, 2, 1, 2], "n": range(4)})
    keys: list[str] = []

    def fn(row: Any, delivery: Delivery) -> int:
        keys.append(delivery.idempotency_key)
        return row.n  # type: ignore[no-any-return]

    assert xs(map_arrow(fn, table, LONG, item_id=item_id, dedup=10, workers=1)) == [0, 1, 0, 1]
    rows_of(map_arrow(fn, table, LONG, item_id=item_id, workers=1))
    assert keys[:2] * 2 == keys[2:]
    assert len(set(keys)) == 2
    assert xs(map_arrow(lambda row: row.n, table, LONG, dedup=10)) == [0, 1, 2, 3]  # they differ in n


@pytest.mark.parametrize("cost", ["c", lambda row: row.c])
def test_the_cost_of_a_limit_names_a_column_or_is_a_function_of_the_row(cost: Any) -> None:
    table = pa.table({"c": pa.array([1.0, 2.0, None, -1.0, 4.0])})
    budget = Budget(100, cost=cost)
    results = map_arrow(lambda row: 1, table, LONG, limits=[budget, Rate(1e9)], errors="column", metrics=True)
    rows = rows_of(results)
    assert [row["_call"]["cost"] for row in rows] == [1.0, 2.0, 0.0, 0.0, 4.0]
    assert [row["x"] for row in rows] == [1, 1, None, None, 1]
    assert all("cost: " in row["_error"]["message"] for row in rows if row["_error"])
    assert budget.used() == 7.0


def fail(row: Any) -> Any:
    raise KeyError(row.n)


@pytest.mark.parametrize("options", [{"key": fail, "order": "key"}, {"priority": fail}, {"item_id": fail, "dedup": 5}])
def test_a_function_of_the_row_that_raises_fails_its_row(options: dict[str, Any]) -> None:
    ((option, function), *_) = options.items()
    options[option] = lambda row: function(row) if row.n == 3 else (row.n if option == "priority" else str(row.n))
    rows = rows_of(map_arrow(lambda row: row.n, NUMBERS, LONG, errors="column", **options))
    assert [row["n"] for row in rows if row["_error"]] == [3]
    assert [row["_error"]["type"] for row in rows if row["_error"]] == ["KeyError"]
    with pytest.raises(KeyError):
        list(map_arrow(lambda row: row.n, NUMBERS, LONG, errors="drop", fatal=lambda error: True, **options))


def test_a_key_that_is_no_key_fails_its_row() -> None:
    results = map_arrow(lambda row: row.n, NUMBERS, LONG, errors="column", key=lambda row: [] if row.n == 3 else row.n)
    assert [row["n"] for row in rows_of(results) if row["_error"]] == [3]


def test_remembered_results_are_not_called_for(sqlite: Database) -> None:
    shared = Shared(sqlite.url, "arrow")
    kinds = {
        "t": pa.timestamp("us", "UTC"), "d": pa.duration("ms"), "m": pa.time64("us"), "u": pa.uuid(),
        "e": pa.dictionary(pa.int8(), pa.string()), "l": pa.list_(pa.struct({"a": pa.time32("s")})),
    }  # fmt: skip
    value = {
        "t": datetime.datetime(2024, 7, 1), "d": datetime.timedelta(seconds=1), "m": datetime.time(1, 2, 3, 4),
        "u": bytes(16), "e": "text", "l": [{"a": datetime.time(5)}, None],
    }  # fmt: skip
    calls: list[int] = []

    def fn(row: Any) -> Any:
        calls.append(row.n)
        return value

    first = pa.table(map_arrow(fn, NUMBERS, pa.schema(kinds), remember=shared, metrics=True))
    again = pa.table(map_arrow(fn, NUMBERS, pa.schema(kinds), remember=shared, metrics=True))
    assert sorted(calls) == list(range(10))
    assert first.drop_columns("_call").equals(again.drop_columns("_call"))
    assert first["t"][0].as_py() == datetime.datetime(2024, 7, 1, tzinfo=datetime.UTC)
    assert [call["remembered"] for call in again["_call"].to_pylist()] == [True] * 10
    with pytest.raises(ValueError, match="schema: "):
        list(map_arrow(fn, NUMBERS, LONG, remember=shared))


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
def test_metrics(asynchronous: bool) -> None:
    def fn(row: Any) -> int:
        if seen[row.n] == 0 and row.n in (1, 2):
            seen[row.n] += 1
            raise RetryLater(0.01) if row.n == 1 else ValueError
        return 1

    async def afn(row: Any) -> int:
        await asyncio.sleep(0.02)
        return fn(row)

    seen: Counter[int] = Counter()
    options: dict[str, Any] = {"metrics": True, "retry": Retry(1, backoff=0), "columns": "replace"}
    results = map_arrow(afn if asynchronous else fn, NUMBERS.slice(0, 3), LONG, **options)
    assert results.schema.names == ["x", "_call"]
    calls = [row["_call"] for row in rows_of(results)]
    assert [call["attempts"] for call in calls] == [1, 1, 2]
    assert [call["deferred"] for call in calls] == [0.0, 0.01, 0.0]
    assert all(call["ran"] > 0.019 * asynchronous and call["waited"] >= 0 for call in calls)


def test_a_batch_divides_its_time_among_its_rows_and_halves_are_calls() -> None:
    def fn(rows: Any) -> Any:
        time.sleep(0.01)
        if any(row.n == 3 for row in rows):
            raise ValueError
        return [row.n for row in rows]

    batch = Batch(4, linger=10)
    results = map_arrow(fn, NUMBERS.slice(0, 4), LONG, batch=batch, workers=1, errors="column", metrics=True)
    calls = [row["_call"] for row in rows_of(results)]
    assert [call["attempts"] for call in calls] == [2, 2, 3, 3]  # 0 to 3; 0 and 1, 2 and 3; 2, 3
    assert sum(call["ran"] for call in calls) >= 5 * 0.01
    assert calls[0]["ran"] == calls[1]["ran"]


def test_time_zone_is_that_of_naive_results_for_an_aware_column() -> None:
    schema = pa.schema({"aware": pa.timestamp("us", "Asia/Tokyo"), "naive": pa.timestamp("us")})
    noon = datetime.datetime(2024, 7, 1, 12)
    instants = {}
    for zone in ("UTC", "Europe/Berlin", "+05:30"):
        (row,) = rows_of(map_arrow(lambda row: (noon, noon), NUMBERS.slice(0, 1), schema, time_zone=zone))
        assert row["naive"] == noon
        instants[zone] = row["aware"].astimezone(datetime.UTC).time()
    assert instants == {
        "UTC": datetime.time(12), "Europe/Berlin": datetime.time(10), "+05:30": datetime.time(6, 30)
    }  # fmt: skip
    aware = noon.replace(tzinfo=datetime.UTC)
    (row,) = rows_of(map_arrow(lambda row: (aware, noon), NUMBERS.slice(0, 1), schema, time_zone="Europe/Berlin"))
    assert row["aware"] == aware


VALUES = [
    ({"key": "nope"}, r"^key: 'nope' \(expected: a column of the input, one of n, s\)"),
    ({"priority": "nope"}, r"^priority: 'nope' \(expected: a column of the input"),
    ({"item_id": "nope"}, r"^item_id: 'nope' "),
    ({"limits": Rate(1, cost="nope")}, r"^cost: 'nope' "),
    ({"columns": "keep"}, r"^columns: 'keep' \(expected: 'append' or 'replace'\)"),
    ({"errors": "return"}, r"^errors: 'return' \(expected: 'raise' or 'column' or 'drop'\)"),
    ({"error_column": ""}, r"^error_column: '' \(expected: a column name\)"),
    ({"error_column": "s", "errors": "column"}, r"^error_column: 's' \(expected: a name that no other column has\)"),
    ({"error_column": "_call", "errors": "column", "metrics": True}, r"^metrics: '_call' "),
    ({"schema": pa.schema({"n": pa.int64()})}, r"^schema: 'n' \(expected: names that no other result column and no in"),
    ({"schema": pa.schema([("x", pa.int64()), ("x", pa.int64())])}, r"^schema: 'x' \(expected: names that no "),
    ({"schema": pa.schema({"x": pa.struct([("a", pa.int8())] * 2)})}, r"^schema: .*\(expected: structs"),
    ({"schema": pa.schema([])}, r"^schema: .* \(expected: at least one column\)"),
    ({"time_zone": "Mars/Olympus"}, r"^time_zone: 'Mars/Olympus' \(expected: a time zone"),
    ({"max_records": 0}, r"^max_records: 0 \(expected: an int >= 1\)"),
    ({"per_key": 2}, r"^per_key: 2 \(expected: key as well\)"),
    ({"workers": 0}, r"^workers: 0 "),
    ({"workers": (5, 2)}, r"^workers: \(5, 2\) "),
    ({"data": pa.table([[1], [2]], names=["n", "n"])}, r"^data: 'n' \(expected: input columns with different names\)"),
]  # fmt: skip
TYPES = [
    ({"key": 5}, r"^key: 5 of type int \(expected: a column name or a function of the row\)"),
    ({"priority": "s"}, r"^priority: 's' of type str \(expected: an integral column; it is string\)"),
    ({"limits": Rate(1, cost="s")}, r"^cost: 's' of type str \(expected: a numeric column; it is string\)"),
    ({"schema": {"x": int}}, r"^schema: .* \(expected: a pyarrow.Schema\)"),
    ({"schema": pa.schema({"x": pa.dense_union([pa.field("a", pa.int8())])})}, r"^schema: .*Python val"),
    ({"error_column": 5}, r"^error_column: 5 "),
    ({"metrics": 1}, r"^metrics: 1 "),
    ({"time_zone": 1}, r"^time_zone: 1 "),
    ({"fn": lambda: 1}, r"^fn: .* \(expected: a callable that takes one argument"),
    ({"retries": 1}, r"^retries: not an option of map_arrow \(expected: retry\?\)"),
    ({"data": pa.table({"n": [[1]]}), "key": "n"}, r"^key: 'n' .*expected: a column of an atomic type; it is list<"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [(ValueError, *each) for each in VALUES] + [(TypeError, *each) for each in TYPES],
    ids=lambda value: "-".join(value)[:20] if isinstance(value, dict) else "",
)
def test_bad_options_are_refused_at_the_call(kind: type[Exception], options: dict[str, Any], message: str) -> None:
    chosen = {"fn": even, "data": NUMBERS, "schema": LONG, **options}
    with pytest.raises(kind, match=message):
        map_arrow(**chosen)


# ------------------------------------------------------------------------------------------------- batches and memory
@pytest.mark.parametrize(("odd", "text"), [("a\ud800", "a?"), (10**5000, "an int of 16610 bits")], ids=["str", "int"])
def test_a_key_that_a_column_cannot_hold_fails_no_other_row(odd: Any, text: str) -> None:
    def fn(row: Any) -> int:
        return 1 // row.n

    errors = map_arrow(fn, NUMBERS, LONG, key=lambda row: odd if row.n == 0 else "b", errors="column")
    assert [row["_error"] and row["_error"]["key"] for row in rows_of(errors)] == [text] + [None] * 9


class Colour(str, enum.Enum):  # noqa: UP042 - str() of a StrEnum is its value
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@pytest.mark.parametrize(("key", "text"), [(Colour.RED, "red"), (Level.LOW, "1"), (True, "true"), (b"\xff", "\ufffd")])
def test_the_key_of_an_error_is_the_text_of_its_value(key: Any, text: str) -> None:
    errors = map_arrow(lambda row: 1 // 0, NUMBERS[:1], LONG, key=lambda row: key, errors="column")
    assert [row["_error"]["key"] for row in rows_of(errors)] == [text]


def test_a_key_that_python_cannot_hold_fails_its_row_before_the_call() -> None:
    called = []

    def fn(row: Any, delivery: Delivery) -> int:
        called.append(delivery.key)
        return 1

    late = pa.array([10**12, 0], pa.int64()).cast(pa.timestamp("s"))  # years 33,658 and 1970
    (errors,) = map_arrow(fn, pa.record_batch({"at": late}), LONG, key="at", errors="column")
    types = [error and error["type"] for error in errors.column("_error").to_pylist()]
    assert types == ["ValueError", None]
    assert called == [datetime.datetime(1970, 1, 1)]


@pytest.mark.parametrize("sizes", [(1_000,), (1,) * 50, (0, 7, 0, 900, 3, 0)])
def test_batches_in_and_out_have_at_most_max_records(sizes: tuple[int, ...]) -> None:
    out = [batch.num_rows for batch in map_arrow(lambda row: row.n, stream(*sizes), LONG, max_records=64)]
    assert sum(out) == sum(sizes)
    assert max(out) <= 64


def test_max_records_has_no_largest_value() -> None:
    assert xs(map_arrow(lambda row: row.n, NUMBERS, LONG, max_records=1 << 70)) == list(range(10))


def test_a_large_batch_is_converted_in_pieces() -> None:
    """A table of one chunk does not become as many Python objects at once."""
    columns: set[int] = set()

    def fn(row: Any) -> int:
        columns.add(len(row._RowView__columns["n"]))
        return row.n  # type: ignore[no-any-return]

    assert xs(map_arrow(fn, stream(1_000), LONG, max_records=100)) == list(range(1_000))
    assert columns == {100}


# ------------------------------------------------------------------------------------------------------- the results
def test_a_consumer_takes_the_stream_whole() -> None:
    results = map_arrow(lambda row: row.n, NUMBERS, LONG)
    reader = pa.RecordBatchReader.from_stream(results)
    assert reader.schema == results.schema
    assert reader.read_all()["x"].to_pylist() == list(range(10))
    assert list(results) == []
    assert results.error is None


def test_an_exception_goes_through_the_stream_as_arrows_own_and_stands_in_error() -> None:
    results = map_arrow(even, NUMBERS, LONG)
    with pytest.raises(pa.ArrowException, match="odd 1"):
        pa.table(results)
    assert type(results.error) is ValueError
    assert str(results.error) == "odd 1"
    assert results.error.__notes__ == ["manytail: the row with key None failed after 1 attempt"]


def test_a_stream_that_is_dropped_ends_the_map() -> None:
    ended = threading.Event()

    def source() -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield from stream(1)
        finally:
            ended.set()

    results = map_arrow(lambda row: 1, source(), LONG, max_records=1)
    reader = pa.RecordBatchReader.from_stream(results)
    reader.read_next_batch()
    gone = weakref.ref(results)
    del results, reader
    gc.collect()
    assert gone() is None
    wait_until(lambda: gc.collect() >= 0 and ended.is_set() and not threads_of_maps())


def test_close_and_with_drop_what_was_not_taken() -> None:
    with map_arrow(lambda row: row.n, stream(*[1] * 100), LONG, max_records=1) as results:
        assert next(results).num_rows == 1
        assert results.stats().done >= 1
    assert list(results) == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("manytail-")]
    unread = map_arrow(lambda row: row.n, NUMBERS, LONG)
    unread.close()
    assert list(unread) == []
