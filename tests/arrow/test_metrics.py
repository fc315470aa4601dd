"""`metrics=True`: what is measured of a call that was abandoned. test_map_arrow.py has the rest."""

import time
from typing import Any

import pytest

from manytail.arrow._metrics import CallMeter, Measure
from manytail.mapping._item import Item
from manytail.mapping._options import Options


def row_with(measure: Measure, attempts: int) -> Any:
    class Row(Item):
        __slots__ = ("measure",)

    row: Any = Row(None)
    row.measure, row.attempts = measure, attempts
    return row


def test_an_abandoned_call_counts_up_to_its_timeout_and_not_again_when_it_ends() -> None:
    row = row_with(Measure(time.monotonic()), 2)
    meter = CallMeter(Options(timeout=0.001))
    ends: list[Any] = []

    def first(item: Item) -> None:
        time.sleep(0.01)  # longer than the timeout: the next attempt begins in this time
        meter.measured(second)(item)
        ends.append(row.measure.ran)

    def second(item: Item) -> None:
        time.sleep(0.02)

    meter.measured(first)(row)
    (ran,) = ends
    assert ran >= 0.021
    assert row.measure.ran == ran  # the first call's end added nothing
    (found,) = meter.column([row]).to_pylist()
    assert (found["attempts"], found["ran"], found["remembered"]) == (2, ran, False)


def test_a_call_that_runs_when_its_row_is_emitted_is_settled() -> None:
    now = time.monotonic()
    row = row_with(Measure(now - 9), 1)
    row.error = TimeoutError()
    meter = CallMeter(Options(timeout=2.0))
    row.measure.calls = 1
    row.measure.running = [now - 5]
    (found,) = meter.column([row]).to_pylist()
    assert found["ran"] == 2.0
    assert found["waited"] == pytest.approx(4)
