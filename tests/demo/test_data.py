"""manytail.demo.data: the real tables, in schedule order."""

import pyarrow.compute as pc
import pytest

from manytail.demo import data


def test_flights_are_numbered_in_schedule_order(flights):
    assert flights["seq"].to_pylist() == list(range(336_776))
    keys = flights.select(data.SCHEDULE).to_pylist()
    assert keys == sorted(keys, key=lambda flight: tuple(flight.values()))


def test_weather_is_found_by_airport_and_utc_hour():
    weather = data.weather()
    assert len(weather) == 26_115
    found = weather["EWR", "2013-01-01T06"]
    assert (found["temp"], found["wind_dir"], found["visib"]) == (39.02, 270.0, 10.0)
    # NA in the package's file is no text and no 0.
    assert sum(hour["wind_speed"] is None for hour in weather.values()) == 4


@pytest.mark.parametrize(
    ("month", "rows", "expected"),
    [(1, None, 27_004), (12, None, 28_135), (1, 300, 300), (None, 40_000, 40_000)],
    ids=["january", "december", "first-of-january", "first-of-year"],
)
def test_a_share_is_the_first_flights_of_its_month(flights, month, rows, expected):
    chosen = data.flights(month, rows)
    assert chosen.num_rows == expected
    first = chosen["seq"][0].as_py()
    assert chosen.equals(flights.slice(first, expected))
    assert pc.all(pc.equal(chosen["month"], month or 1)).as_py() or month is None
