"""manytail.demo.tally: whatever does not add up is found, and nothing else; times on rows whose times are known."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from manytail.demo.tally import Tally, in_flight

# Five flights: 0 and 3 succeeded, 3 at its third call; 1 was cancelled, 2 has no weather, 4 was always refused.
ENRICHED = [(0, 1), (3, 3)]
DEAD = [(1, "Cancelled", 1), (2, "NoWeather", 2), (4, "Busy", 5)]
COUNTS = Counter({"calls": 11, "200": 2, "404": 1, "503": 7, "open": 0})


def tally(calls=range(5), enriched=ENRICHED, dead=DEAD, counts=COUNTS, rows_in=5):
    return Tally(
        rows_in=rows_in,
        calls=pd.DataFrame({"seq": list(calls)}),
        enriched=pd.DataFrame(enriched, columns=["seq", "attempts"]).astype("int64"),
        dead_letters=pd.DataFrame(dead, columns=["seq", "reason", "attempts"]).astype(
            {"seq": "int64", "attempts": "int64"}
        ),
        service=SimpleNamespace(counts=counts, latency=20.0, history=[]),
        seconds=2.0,
        busy=0.5,
    )


def test_what_adds_up_has_no_faults():
    counted = tally()
    assert counted.faults() == []
    assert counted.lost == 0
    assert sorted(counted.attempts) == [1, 2, 3, 5]


OUT_OF_ORDER = ["the output is not in schedule order"]
TWICE = {"dead": [*DEAD, (5, "Cancelled", 1), (5, "Cancelled", 1)], "rows_in": 6, "calls": range(6)}
FAULTS = {
    "fewer calls than the job's": ({"counts": COUNTS | {"calls": 10}}, ["the service counted 10 calls, the job 11"]),
    "more calls than the job's": ({"counts": COUNTS | {"calls": 12}}, ["the service counted 12 calls, the job 11"]),
    "a retry too many": ({"counts": COUNTS | {"503": 6}}, ["the service refused 6 calls, the job retried 7"]),
    "a lost row": ({"rows_in": 6}, ["6 rows in, but 2 enriched + 3 dead letters: 1 lost"]),
    "a doubled row": (TWICE, ["1 rows came out more than once"]),
    "order in the middle": ({"calls": [0, 2, 1, 3, 4]}, OUT_OF_ORDER),
    "order at the start": ({"calls": [1, 0, 2, 3, 4]}, OUT_OF_ORDER),
    "order at the end": ({"calls": [0, 1, 2, 4, 3]}, OUT_OF_ORDER),
    "order of enriched rows": ({"enriched": ENRICHED[::-1]}, OUT_OF_ORDER),
    "an open call": ({"counts": COUNTS | {"open": 1}}, ["1 calls were still open at the end"]),
}


@pytest.mark.parametrize(("run", "faults"), FAULTS.values(), ids=FAULTS)
def test_what_does_not_add_up_is_found(run, faults):
    assert tally(**run).faults() == faults


def test_a_lost_row_is_not_made_up_for_by_a_doubled_one():
    faults = tally(enriched=[(0, 1), (0, 3)]).faults()
    assert any("1 lost" in fault for fault in faults)
    assert any("more than once" in fault for fault in faults)


def test_no_dead_letters_at_all_add_up():
    assert tally(calls=[0, 3], dead=[], rows_in=2, counts=Counter({"calls": 4, "503": 2})).faults() == []


def timed(carrier, started, finished, attempts=1):
    """The tally of a run whose rows have these times; NaN: a failed row."""
    calls = pd.DataFrame({"carrier": list(carrier), "started": started, "finished": finished, "attempts": attempts})
    return Tally(len(calls), calls, calls, calls, SimpleNamespace(), 1.0, 1.0)


NAN = float("nan")


def test_a_row_is_held_back_from_the_first_call_behind_it_to_its_own():
    times = timed("AABA", [100.0, 103.0, 101.0, 102.5], [102.0, 104.0, 101.5, 103.0]).times
    assert times.attrs["zero"] == 100.0
    assert times["held"].tolist() == [0.0, 2.0, 0.0, 0.0]


def test_a_retried_row_and_a_failed_row_have_no_such_time():
    times = timed("AAA", [1.0, NAN, 2.0], [2.0, NAN, 3.0], attempts=[1, np.nan, 2]).times
    assert times["held"].isna().tolist() == [False, True, True]


def test_calls_in_flight_are_counted_at_every_change():
    calls = in_flight(pd.DataFrame({"started": [0.0, 1.0, 2.0, NAN], "finished": [2.0, 3.0, 4.0, NAN]}))
    assert calls.to_dict() == {0.0: 1, 1.0: 2, 2.0: 2, 3.0: 1, 4.0: 0}


def test_an_end_and_a_start_at_one_moment_are_one_call_in_flight():
    assert in_flight(pd.DataFrame({"started": [0.0, 1.0], "finished": [1.0, 2.0]})).max() == 1


def test_waits_per_carrier_come_busiest_first():
    waits = timed("ABBC", [0.2, 0.4, 0.0, NAN], [1.0, 1.0, 1.0, NAN], attempts=[1, 1, 1, np.nan]).waits
    assert waits.index.tolist() == ["B", "A"]
    assert waits["rows"].tolist() == [2, 1]
    assert waits["at_once"].tolist() == [2, 1]
    assert waits["half"].tolist() == pytest.approx([0.2, 0.2])


def test_a_run_without_a_single_call_has_no_waits():
    run = timed("A", [NAN], [NAN], attempts=[np.nan])
    assert len(run.waits) == len(in_flight(run.times)) == 0
