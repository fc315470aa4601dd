"""`shared`, `remember` and `budget` in Spark: what tasks, jobs and killed workers share."""

import datetime
import decimal
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F
from support.counts import LONG, count
from support.databases import Database
from support.notes import Notes

from manytail import Budget, Rate, Shared
from manytail.mapping._remember import BACKLOG
from manytail.spark import concurrent_udf, map_concurrent

EVERYTHING = (
    "n long, f float, s string, b binary, d decimal(9,2), day date, at timestamp, ntz timestamp_ntz, "
    "e interval day to second, "
    "xs array<timestamp>, m map<string, struct<at: timestamp, n: int>>, t struct<x: array<array<bigint>>, y: boolean>"
)


def test_results_of_every_type_come_back_as_they_were(spark: Any, database: Database, notes: Notes) -> None:
    def everything(row: Any) -> Any:
        notes.add(row.id)
        if row.id % 5 == 4:
            return None
        at = datetime.datetime(9999, 12, 31, 22, 30, 0, 123456)  # in UTC that is in the year 10000
        day = datetime.timedelta(days=row.id)
        nested = {"k": {"at": at - day, "n": None}, "l": None}
        text = "\0ü" * row.id
        return {
            "n": row.id, "f": 0.1, "s": text, "b": text.encode(), "d": decimal.Decimal("-1.50"),
            "day": (at - day).date(),
            "at": at, "ntz": at, "e": day, "xs": [at, None], "m": nested,
            "t": {"x": [[row.id, None], None, []], "y": True},
        }  # fmt: skip

    url = database.url
    shared = Shared(lambda: url, "types")  # a literal URL must not hold a password
    df = spark.range(0, 20, 1, 2)

    def run() -> Any:
        return df.transform(map_concurrent, everything, EVERYTHING, workers=2, remember=shared).select(
            *[F.col(name).cast("string") for name in ("n", "f", "s", "d", "day", "at", "ntz", "e", "xs", "m", "t")], "b"
        )

    first, second = run().collect(), run().collect()
    assert len(first) == 20
    assert sum(row.n is None for row in first) == 4
    assert first == second
    assert Counter(notes.read()) == Counter(str(n) for n in range(20))
    assert shared.remembered() == 20


def test_killed_workers_lose_nothing_and_pay_twice_for_little(spark: Any, sqlite: Database, notes: Notes) -> None:
    """Each job fails with its worker, and the next one goes on with what was recorded."""
    workers, rows, kills = 4, count(800, 10_000), count(1, 20)
    fatal = {rows * number // (kills + 1) for number in range(1, kills + 1)}
    shared = Shared(sqlite.url, "kill")

    def fn(row: Any, delivery: Any) -> Any:
        notes.add(row.id, delivery.idempotency_key)
        if row.id in fatal and sum(line.startswith(f"{row.id} ") for line in notes.read()) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return row.id * 2

    df = spark.range(0, rows, 1, 1).transform(map_concurrent, fn, "twice long", workers=workers, remember=shared)
    result, killed, recorded, paid = None, 0, set(), []
    while result is None:
        try:
            result = df.collect()
        except Exception as error:
            killed += 1
            if "Python worker exited unexpectedly" not in str(error):
                raise
        calls = [line.split() for line in notes.read()]
        assert not recorded & {key for _, key in calls[len(paid) :]}, "a recorded result was called again"
        paid = calls
        recorded = {row[0].hex() for row in sqlite.query("SELECT id FROM manytail_results")}
    assert [row.twice for row in result] == [2 * n for n in range(rows)]
    assert {number for number, _ in paid} == {str(n) for n in range(rows)}
    assert 1 <= killed <= kills  # a kill may come while another fatal row's call is made
    assert len(paid) - rows <= killed * (workers + BACKLOG)
    print(f"\n{killed} kills over {rows} rows: {len(paid) - rows} paid twice, no recorded one called again")


def test_a_budget_holds_over_tasks_and_jobs(spark: Any, sqlite: Database, notes: Notes) -> None:
    shared = Shared(sqlite.url, "budget")
    budget, rows, tasks = (1_000, 1_000, 4) if LONG else (31, 20, 2)

    def fn(row: Any) -> Any:
        notes.add(row.id)
        return row.id

    df = spark.range(0, rows, 1, tasks).transform(
        map_concurrent, fn, "n long", errors="column",
        limits=Budget(budget, cost=F.lit(3), shared=shared, name="budget"),
    )  # fmt: skip
    for _ in range(2):
        found = df.collect()
        assert len(found) == rows
        assert {row._error.type for row in found if row.n is None} == {"manytail.BudgetExceeded"}
        assert {row._error.attempts for row in found if row.n is None} == {0}
        assert len(notes.read()) == budget // 3
        assert Budget(budget, shared=shared, name="budget").used() == budget // 3 * 3


@pytest.mark.udf
def test_a_column_function_remembers_and_keeps_a_budget(spark: Any, sqlite: Database, notes: Notes) -> None:
    def double(n: Any) -> Any:
        notes.add(n)
        return n * 2

    shared = Shared(sqlite.url, "udf")
    budget = Budget(8, shared=shared, name="budget")
    column = concurrent_udf(double, "long", remember=shared, limits=budget, errors="column")
    df = spark.range(0, 10, 1, 1).select(column("id").alias("v"))
    for _ in range(2):
        rows = [row.v for row in df.collect()]
        assert sorted(row.value for row in rows if row.value is not None) == sorted(2 * int(n) for n in notes.read())
        assert len(notes.read()) == 8
        assert [row.error.type for row in rows if row.error] == ["manytail.BudgetExceeded"] * 2


@pytest.mark.udf
def test_options_that_do_not_fit(spark: Any, sqlite: Database) -> None:
    df = spark.range(3)
    secret = Shared("postgresql://me:secret@host/db", "a")
    for options, kind, said in (
        ({"limits": Budget(3)}, ValueError, r"limits: Budget\(3.0\) \(expected: shared, which"),
        ({"remember": True}, TypeError, "remember: True of type bool"),
        ({"limits": Rate(1, shared=secret, name="a")}, ValueError, r"limits: Shared\(.*expected: a URL without a pass"),
        ({"remember": secret}, ValueError, r"remember: .* \(expected: a URL without a password"),
    ):
        with pytest.raises(kind, match=said):
            df.transform(map_concurrent, print, "n long", **options)
        with pytest.raises(kind, match=said):
            concurrent_udf(print, "long", **options)


def shout(row: Any) -> str:
    return str(row).upper()


@pytest.mark.udf
def test_a_path_is_for_one_machine(spark: Any, conf: Any, tmp_path: Path) -> None:
    df = spark.range(3)
    path = tmp_path / "run.db"
    df.transform(map_concurrent, shout, "s string", remember=path)
    conf("spark.master", "spark://elsewhere:7077")
    said = r"remember: .*run.db.* \(expected: a path only where the master is local; a Shared in PostgreSQL"
    with pytest.raises(ValueError, match=said):
        df.transform(map_concurrent, shout, "s string", remember=path)
    with pytest.raises(ValueError, match=said):
        concurrent_udf(shout, "string", remember=f"sqlite:///{path}")("id")
    for elsewhere in (Shared(path, "a"), "env:RESULTS", "postgresql://host/results"):  # a file that all machines mount
        df.transform(map_concurrent, shout, "s string", remember=elsewhere)
