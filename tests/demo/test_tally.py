"""manytail.demo.tally: whatever does not add up is found, and nothing else."""

import dataclasses

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manytail.demo import tally
from manytail.demo.job import Outputs
from manytail.demo.service import Counts

# Five flights: 0 and 3 went well, the latter at its third call; 1 was cancelled, 2 has no weather, 4 was refused to the end.
ENRICHED = [(0, 1), (3, 3)]
DEAD = [(1, "Cancelled", 1), (2, "NoWeather", 2), (4, "Busy", 5)]
SERVICE = Counts(calls=11, found=2, missing=1, refused=7, slept=20.0)


def write(folder, names, rows):
    folder.mkdir()
    types = {"seq": pa.int64(), "attempts": pa.int32(), "reason": pa.string()}
    columns = {name: pa.array([row[place] for row in rows], types[name]) for place, name in enumerate(names)}
    pq.write_table(pa.table(columns), folder / "part-0.parquet")


@pytest.fixture
def count(tmp_path):
    """Counts outputs with the given rows."""

    def made(calls=range(5), enriched=ENRICHED, dead=DEAD, service=SERVICE, rows_in=5):
        outputs = Outputs.under(tmp_path)
        write(outputs.calls, ["seq"], [(seq,) for seq in calls])
        write(outputs.enriched, ["seq", "attempts"], enriched)
        write(outputs.dead, ["seq", "reason", "attempts"], dead)
        return tally.count(rows_in, outputs, service, seconds=2.0)

    return made


def test_what_adds_up_has_no_faults(count):
    counted = count()
    assert counted.faults() == []
    assert (counted.rows_in, counted.enriched, counted.dead, counted.lost) == (5, 2, 3, 0)
    assert (counted.calls, counted.retries) == (11, 7)
    assert counted.reasons == {"Cancelled": 1, "NoWeather": 1, "Busy": 1}
    assert (counted.rows_per_second, counted.speed_up) == (2.5, 10.0)


def test_a_call_that_only_the_service_has_counted_is_found(count):
    faults = count(service=dataclasses.replace(SERVICE, calls=12)).faults()
    assert faults == ["the service counted 12 calls, the job 11"]


def test_a_call_that_only_the_job_has_counted_is_found(count):
    assert count(service=dataclasses.replace(SERVICE, calls=10)).faults() == ["the service counted 10 calls, the job 11"]


def test_a_retry_without_a_refusal_is_found(count):
    faults = count(service=dataclasses.replace(SERVICE, refused=6)).faults()
    assert faults == ["the service refused 6 calls, the job retried 7"]


def test_a_lost_row_is_found(count):
    counted = count(rows_in=6)
    assert counted.lost == 1
    assert counted.faults() == ["6 rows in, but 2 enriched + 3 dead letters: 1 lost"]


def test_a_row_that_came_out_twice_is_found(count):
    counted = count(dead=[*DEAD, (5, "Cancelled", 1), (5, "Cancelled", 1)], rows_in=6, calls=range(6))
    assert (counted.lost, counted.doubled) == (0, 1)
    assert "1 rows came out more than once" in counted.faults()


def test_a_lost_row_is_not_made_up_for_by_a_doubled_one(count):
    faults = count(enriched=[(0, 1), (0, 3)]).faults()
    assert any("1 lost" in fault for fault in faults)
    assert any("more than once" in fault for fault in faults)


@pytest.mark.parametrize("calls", [[0, 2, 1, 3, 4], [1, 0, 2, 3, 4], [0, 1, 2, 4, 3]], ids=["middle", "start", "end"])
def test_output_that_is_out_of_order_is_found(count, calls):
    assert count(calls=calls).faults() == ["the output is not in schedule order"]


def test_enriched_rows_out_of_order_are_found(count):
    assert count(enriched=ENRICHED[::-1]).faults() == ["the output is not in schedule order"]


def test_a_call_that_is_still_open_is_found(count):
    assert count(service=dataclasses.replace(SERVICE, in_flight=1)).faults() == ["1 calls were still open at the end"]


def test_no_dead_letters_at_all_add_up(count):
    counted = count(calls=[0, 3], dead=[], rows_in=2, service=Counts(calls=4, found=2, refused=2, slept=1.0))
    assert counted.faults() == []
    assert counted.reasons == {}
