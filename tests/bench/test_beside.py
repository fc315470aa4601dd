"""The rows beside others' maps: who runs gives right answers, and who cannot run here is named with a reason."""

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from beside import MEMORY_ROWS, PLAIN, ROWS, calls_per_second, equal, processor_time, taken  # noqa: E402
from harness import Counted, Row, Unavailable, measure, table_lines  # noqa: E402
from throttled import ROWS as THROTTLED  # noqa: E402
from throttled import throttled  # noqa: E402
from ways import ASYNC_WAYS, BUFFERED, STREAMS, WAYS  # noqa: E402


def result_of(row, n):
    return measure(row, rounds=1, n=n, tick=lambda text: None)


@pytest.mark.parametrize("row", [*ROWS, *MEMORY_ROWS], ids=lambda row: row.name)
def test_every_way_is_measured_or_says_what_it_needs(row):
    found = result_of(row, 20)
    assert {*found.rounds, *found.missing} == set(row.contestants)
    assert row.ours in found.rounds
    for name, reason in found.missing.items():
        assert "is not installed for CPython" in reason or (name, reason) == (BUFFERED, "buffersize needs CPython 3.14")
        assert f"  skipped: {name}, {reason}" in table_lines([found])


def test_ways_of_both_kinds_and_their_streams_are_the_same_contestants():
    assert list(STREAMS) == list(ASYNC_WAYS)
    assert WAYS.keys() & ASYNC_WAYS.keys() == {"ours", "pyarallel"}


WRONG = {
    "lost": lambda items, at_once: list(items)[1:],
    "doubled": lambda items, at_once: [*items, *items],
    "out of order": lambda items, at_once: list(items)[::-1],
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_way_with_wrong_answers_is_not_measured(fault):
    with pytest.raises(AssertionError, match="lost, doubled or out of order"), processor_time(WRONG[fault])():
        pass


def test_seconds_are_made_calls_per_second():
    with calls_per_second(lambda items, at_once: list(items), equal)() as run:
        assert run(64) > 0


def test_memory_counts_what_a_consumer_took(monkeypatch):
    monkeypatch.setitem(WAYS, "loses", lambda call, items, at_once: iter(items[:-1]))
    with pytest.raises(AssertionError, match="lost or doubled"):
        taken(PLAIN, "loses", 10)


@pytest.mark.parametrize("row", THROTTLED, ids=lambda row: row.name)
def test_calls_of_an_api_that_refuses_all_come_to_an_end(row):
    if row.name.endswith("-async"):
        pytest.importorskip("httpx")  # the client of each way
    found = result_of(row, 8)
    assert {*found.rounds, *found.missing} == set(row.contestants)
    for name in found.rounds:
        assert found.counts[name] == {"refused": 0, "lost": 0}  # 8 calls are within the quota
        assert ", 0 refused, 0 lost" in found.shown(name)


def test_refused_and_lost_calls_are_counted():
    """No call is made twice: the API refuses what is more than its quota, and fails some."""

    def once(urls):
        from concurrent.futures import ThreadPoolExecutor
        from urllib.error import HTTPError

        from manytail.demo.local.job import fetch

        def tried(url):
            try:
                return fetch(url)
            except HTTPError:
                return None

        with ThreadPoolExecutor(64) as pool:
            return list(pool.map(tried, urls))

    with throttled(once, quota=1)() as run:  # a hundred calls in less than a hundred seconds
        sample = run(100)
    assert isinstance(sample, Counted)
    assert 0 < sample.counts["refused"] <= sample.counts["lost"] < 100


@pytest.mark.parametrize(
    "results",
    [lambda urls: ["answer 1", "answer 0", *["answer"] * (len(urls) - 2)], lambda urls: [None] * (len(urls) - 1)],
    ids=["out of order", "too few"],
)
def test_wrong_answers_of_the_api_are_not_measured(results):
    with pytest.raises(AssertionError, match="wrong, doubled or out of order"), throttled(results)():
        pass


def test_a_contestant_that_is_needed_and_missing_leaves_the_row_out():
    @contextmanager
    def missing():
        raise Unavailable("skipped: it is not here")
        yield

    with pytest.raises(Unavailable, match="it is not here"):
        result_of(Row("row", "what", "s", {"ours": missing}, n=1), 1)
