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


def test_a_row_enters_when_the_row_a_window_before_it_is_handed_on():
    # In order, the second row is handed on only when the first has ended, and a failed row with the row before it.
    finished = np.array([5.0, 1.0, NAN, 7.0, 8.0])
    assert timeline.entered(finished, 2).tolist() == [0.0, 0.0, 5.0, 5.0, 5.0]
    assert timeline.entered(finished, 3).tolist() == [0.0, 0.0, 0.0, 5.0, 5.0]
    assert timeline.entered(finished, 10).tolist() == [0.0] * 5


def test_waits_are_reckoned_from_there_to_the_start(tmp_path):
    calls = written(tmp_path / "calls", ["A", "B", "A"], [100.0, 100.5, 103.0], [102.0, 101.0, 104.0])
    times = timeline.read(calls, window=2)
    assert times.zero == 100.0
    assert times.waited.tolist() == [0.0, 0.5, 1.0]


def test_a_retried_row_and_a_failed_row_have_no_wait(tmp_path):
    calls = written(tmp_path / "calls", ["A", "A", "A"], [1.0, None, 2.0], [2.0, None, 3.0], attempts=[1, None, 2])
    assert np.isnan(timeline.read(calls, window=1).waited).tolist() == [False, True, True]


def test_open_calls_are_counted_at_every_change():
    times, open_calls = timeline.in_flight(np.array([0.0, 1.0, 2.0, NAN]), np.array([2.0, 3.0, 4.0, NAN]))
    assert times.tolist() == [0.0, 1.0, 2.0, 2.0, 3.0, 4.0]
    assert open_calls.tolist() == [1, 2, 1, 2, 1, 0]


def test_an_end_and_a_start_at_one_moment_are_one_call_at_once(tmp_path):
    times = timeline.read(written(tmp_path / "calls", ["A", "A"], [0.0, 1.0], [1.0, 2.0]), window=4)
    assert timeline.most_at_once(times) == 1


def test_the_rate_times_its_spans_is_the_number_of_rows():
    finished = np.append(np.linspace(0.1, 10.0, 400), NAN)
    middles, rates = timeline.rate(finished, parts=10)
    assert len(middles) == 10
    assert (rates * 1.0).sum() == pytest.approx(400)


def test_waits_per_carrier_come_busiest_first(tmp_path):
    calls = written(tmp_path / "calls", ["A", "B", "B", "C"], [0.0, 0.2, 0.4, None], [1.0, 1.0, 1.0, None])
    waits = timeline.waits(timeline.read(calls, window=8))
    assert [(wait.carrier, wait.rows, wait.at_once) for wait in waits] == [("B", 2, 2), ("A", 1, 1)]
    assert [wait.median for wait in waits] == pytest.approx([0.3, 0.0])


def test_a_run_without_a_single_call_has_an_empty_timeline(tmp_path):
    times = timeline.read(written(tmp_path / "calls", ["A"], [None], [None]), window=8)
    assert timeline.most_at_once(times) == 0
    assert timeline.waits(times) == []
    assert [len(part) for part in timeline.rate(times.finished)] == [0, 0]
