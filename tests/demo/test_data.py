"""manytail.demo.data: the real tables, in schedule order, and not half of them."""

import sqlite3
from contextlib import closing

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from manytail.demo import data
from manytail.demo.data import Share


def test_every_flight_and_every_hour_of_weather_is_there(inputs):
    assert pq.read_metadata(inputs.flights).num_rows == 336_776
    with closing(sqlite3.connect(inputs.weather)) as database:
        assert database.execute("SELECT count(*) FROM weather").fetchone() == (26_115,)


def test_flights_are_numbered_in_schedule_order(inputs):
    table = pq.read_table(inputs.flights, columns=["seq", *data.SCHEDULE])
    assert table["seq"].to_pylist() == list(range(336_776))
    assert table.drop_columns("seq").to_pylist() == sorted(table.drop_columns("seq").to_pylist(), key=lambda flight: tuple(flight.values()))


def test_weather_is_found_by_airport_and_utc_hour(inputs):
    with closing(sqlite3.connect(inputs.weather)) as database:
        row = database.execute("SELECT temp, wind_dir, visib FROM weather WHERE origin = 'EWR' AND hour = '2013-01-01T06'").fetchone()
        unknown = database.execute("SELECT count(*) FROM weather WHERE wind_speed IS NULL").fetchone()[0]
    assert row == (39.02, 270.0, 10.0)
    assert unknown == 4  # NA in the package's file, and not the text "NA"


@pytest.mark.parametrize(
    ("share", "rows"),
    [(Share(1, None), 27_004), (Share(12, None), 28_135), (Share(None, None), 336_776), (Share(1, 300), 300), (Share(None, 40_000), 40_000)],
    ids=["january", "december", "year", "first-of-january", "first-of-year"],
)
def test_a_share_is_the_first_flights_of_its_month(inputs, share, rows):
    chosen = data.select(inputs.flights, share)
    assert chosen.num_rows == rows
    assert pc.all(pc.equal(pc.pairwise_diff(chosen["seq"].combine_chunks())[1:], 1)).as_py()


def test_what_is_there_is_taken(inputs):
    before = [path.stat().st_mtime_ns for path in inputs]
    assert data.prepare(inputs.flights.parent) == inputs
    assert [path.stat().st_mtime_ns for path in inputs] == before


def test_a_failure_while_writing_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "SCHEDULE", ["no_such_column"])
    with pytest.raises(Exception, match="no_such_column"):
        data.prepare(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
