"""manytail.demo.timeline on rows whose times are known."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manytail.demo import timeline

NAN = float("nan")


def written(folder, carrier, started, finished, attempts=None):
    """A transform's output with these times; None: a failed row."""
    folder.mkdir()
    table = {
        "carrier": carrier,
        "attempts": pa.array(attempts or [None if end is None else 1 for end in finished], pa.int32()),
        "started": pa.array(started, pa.float64()),
        "finished": pa.array(finished, pa.float64()),
    }
    pq.write_table(pa.table(table), folder / "part-0.parquet")
    return folder


def test_a_row_is_held_back_from_the_first_call_behind_it_to_its_own(tmp_path):
    calls = written(tmp_path / "calls", ["A", "A", "B", "A"], [100.0, 103.0, 101.0, 102.5], [102.0, 104.0, 101.5, 103.0])
    times = timeline.read(calls)
    assert times.zero == 100.0
    assert times.held.tolist() == [0.0, 2.0, 0.0, 0.0]


def test_rows_in_hand_reach_from_the_first_that_has_not_ended_to_the_last_that_has_started(tmp_path):
    calls = written(tmp_path / "calls", ["A"] * 4, [0.0, 1.0, 2.0, 5.0], [4.0, 1.5, 3.0, 6.0])
    assert timeline.most_in_hand(timeline.read(calls)) == 3  # at 2.0; at 5.0 the first three have ended
    in_turn = written(tmp_path / "in_turn", ["A"] * 3, [0.0, 1.0, 2.0], [1.0, 2.0, 3.0])
    assert timeline.most_in_hand(timeline.read(in_turn)) == 1


def test_a_retried_row_and_a_failed_row_have_no_such_time(tmp_path):
    calls = written(tmp_path / "calls", ["A", "A", "A"], [1.0, None, 2.0], [2.0, None, 3.0], attempts=[1, None, 2])
    assert np.isnan(timeline.read(calls).held).tolist() == [False, True, True]


def test_open_calls_are_counted_at_every_change():
    times, open_calls = timeline.in_flight(np.array([0.0, 1.0, 2.0, NAN]), np.array([2.0, 3.0, 4.0, NAN]))
    assert times.tolist() == [0.0, 1.0, 2.0, 2.0, 3.0, 4.0]
    assert open_calls.tolist() == [1, 2, 1, 2, 1, 0]


def test_an_end_and_a_start_at_one_moment_are_one_call_at_once(tmp_path):
    times = timeline.read(written(tmp_path / "calls", ["A", "A"], [0.0, 1.0], [1.0, 2.0]))
    assert timeline.most_at_once(times) == 1


def test_the_rate_times_its_spans_is_the_number_of_rows():
    finished = np.append(np.linspace(0.1, 10.0, 400), NAN)
    middles, rates = timeline.rate(finished, parts=10)
    assert len(middles) == 10
    assert (rates * 1.0).sum() == pytest.approx(400)


def test_waits_per_carrier_come_busiest_first(tmp_path):
    calls = written(tmp_path / "calls", ["A", "B", "B", "C"], [0.2, 0.4, 0.0, None], [1.0, 1.0, 1.0, None])
    waits = timeline.waits(timeline.read(calls))
    assert [(wait.carrier, wait.rows, wait.at_once) for wait in waits] == [("B", 2, 2), ("A", 1, 1)]
    assert [wait.median for wait in waits] == pytest.approx([0.2, 0.2])


def test_a_run_without_a_single_call_has_an_empty_timeline(tmp_path):
    times = timeline.read(written(tmp_path / "calls", ["A"], [None], [None]))
    assert timeline.most_at_once(times) == 0
    assert timeline.waits(times) == []
    assert [len(part) for part in timeline.rate(times.finished)] == [0, 0]
