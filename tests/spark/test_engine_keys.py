"""Keys, their limit, their turns and priorities: which call starts next."""

import random
from collections.abc import Hashable
from typing import Any

import pytest
from support.scheduling import Rows, Run, Script, batches, engine, results
from support.threads import wait_until


def letter(row: tuple[str, int]) -> str:
    return row[0]


def starts_one_by_one(rows: list[Any], **settings: Any) -> list[Any]:
    """The order in which one worker starts the rows, all of which are in flight before the second start."""
    columns = {name: settings.pop(name) for name in ("key", "priority") if name in settings}
    first = ("first", 0)
    script = Script()
    values = [first, *rows]
    settings.setdefault("order", "completion")
    with Run(script, [Rows(values, **columns)], workers=1, max_in_flight=len(values), **settings) as run:
        script.wait_started(1)
        script.let_all_go()
        run.result()
    assert script.started[0] == first
    return script.started[1:]


def test_keys_take_turns() -> None:
    rows = [("a", number) for number in range(4)] + [("b", 0), ("b", 1), ("c", 0)]
    assert starts_one_by_one(rows, key=letter) == [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 1), ("a", 2), ("a", 3)]


def test_weight_gives_a_key_several_calls_per_turn() -> None:
    rows = [("a", number) for number in range(5)] + [("b", number) for number in range(3)]
    started = starts_one_by_one(rows, key=letter, weights={"a": 2})
    assert [row[0] for row in started] == ["a", "a", "b", "a", "a", "b", "a", "b"]


def test_lower_priority_goes_first_and_null_last() -> None:
    rows = [("a", 2), ("a", None), ("a", -1), ("a", 2**40), ("a", 0)]
    started = starts_one_by_one(rows, priority=lambda row: -(10**6) if row[0] == "first" else row[1], prioritised=True)
    assert started == [("a", -1), ("a", 0), ("a", 2), ("a", 2**40), ("a", None)]


def test_priority_comes_before_turns() -> None:
    rows = [("a", 1), ("b", 0), ("a", 0), ("a", 0), ("b", 1)]
    started = starts_one_by_one(rows, key=letter, priority=lambda row: row[1] - (row[0] == "first"), prioritised=True)
    assert started == [("b", 0), ("a", 0), ("a", 0), ("a", 1), ("b", 1)]


def test_random_priorities_start_in_order() -> None:
    chance = random.Random(5)
    rows = [("a", chance.choice([chance.randrange(-(2**63), 2**63), chance.randrange(-3, 3)])) for _ in range(300)]
    started = starts_one_by_one(rows, priority=lambda row: -(2**63) if row[0] == "first" else row[1], prioritised=True)
    assert started == sorted(rows, key=lambda row: row[1])


def test_in_key_order_a_key_has_the_priority_of_its_first_waiting_row() -> None:
    rows = [("a", 5), ("a", 0), ("a", 0), ("b", 1), ("b", 9), ("c", 3)]
    started = starts_one_by_one(rows, key=letter, priority=lambda row: row[1] - (row[0] == "first"), prioritised=True, order="key")
    # a waits behind its 5 although its next rows are 0; b has priority 1, and 9 once its first row is gone.
    assert started == [("b", 1), ("c", 3), ("a", 5), ("a", 0), ("a", 0), ("b", 9)]


def test_in_key_order_with_priorities_weights_still_count() -> None:
    rows = [("a", 0)] * 6 + [("b", 0)] * 2
    started = starts_one_by_one(
        rows, key=letter, priority=lambda row: row[1] - (row[0] == "first"), prioritised=True, order="key", weights={"a": 3}
    )
    assert [row[0] for row in started] == ["a", "a", "a", "b", "a", "a", "a", "b"]


@pytest.mark.parametrize("ordered", ["input", "key", "completion"])
@pytest.mark.parametrize("prioritised", [False, True])
@pytest.mark.parametrize("per_key", [1, 2])
def test_per_key_is_never_exceeded_and_used_up(ordered: str, prioritised: bool, per_key: int) -> None:
    script = Script()
    script.key = letter
    rows = [(key, number) for number in range(12) for key in "abc"]
    source = [Rows(rows, key=letter, priority=(lambda row: row[1] % 3) if prioritised else None)]
    with Run(script, source, workers=12, max_in_flight=36, order=ordered, per_key=per_key, prioritised=prioritised) as run:
        script.wait(lambda: len(script.running) == 3 * per_key)
        script.let_all_go()
        out = run.result()
    assert sorted(out) == sorted(rows)
    assert set(script.peak_of) == set("abc")
    assert max(script.peak_of.values()) == per_key
    if ordered == "input":
        assert out == rows
    if ordered == "key":
        for key in "abc":
            assert [row for row in out if row[0] == key] == [row for row in rows if row[0] == key]


def test_per_key_1_in_key_order_starts_in_input_order() -> None:
    started: dict[Hashable, list[int]] = {key: [] for key in range(5)}
    rows = [(number % 5, number) for number in range(2_000)]

    def fn(row: tuple[int, int]) -> tuple[int, int]:
        started[row[0]].append(row[1])
        return row

    results(fn, batches(rows, 100, key=letter), workers=8, max_in_flight=64, order="key", per_key=1)
    assert all(numbers == sorted(numbers) for numbers in started.values())


def test_a_key_at_its_limit_stops_no_other() -> None:
    script = Script(*[("b", number) for number in range(10)])
    rows = [("a", number) for number in range(5)] + [("b", number) for number in range(10)]
    with Run(script, [Rows(rows, key=letter)], workers=2, max_in_flight=15, per_key=1, order="completion", batch_rows=1) as run:
        assert sorted(run.wait_values(10)) == [("b", number) for number in range(10)]
        assert script.running == [("a", 0)]
        script.let_all_go()
        run.result()


def test_an_urgent_row_takes_the_slot_of_one_that_has_not_started() -> None:
    script = Script()
    # One worker is busy with another key; a's only slot is given to (a, 9) first, then (a, 1) and (a, 4) come.
    rows = [("first", 0), ("a", 9), ("a", 1), ("a", 4)]
    source = [Rows([row], key=letter, priority=lambda row: row[1]) for row in rows]
    with Run(script, source, workers=1, max_in_flight=4, per_key=1, retries=1, prioritised=True, order="completion") as run:
        script.wait_started(1)
        wait_until(lambda: run.engine.scheduler.in_flight == 4)
        script.let_all_go()
        run.result()
    assert script.started == [("first", 0), ("a", 1), ("a", 4), ("a", 9)]


def test_input_order_changes_with_no_key_or_priority() -> None:
    rows = [("abc"[number % 3], number) for number in range(500)]
    out = results(
        lambda row: row, batches(rows, 60, key=letter, priority=lambda row: -row[1]), workers=6, order="input", per_key=2, prioritised=True
    )
    assert out == rows


def test_many_keys_come_and_go() -> None:
    """Ten thousand keys, each seen twice far apart: lanes are forgotten and made again, no row is lost."""
    rows = [(number % 10_000, number) for number in range(20_000)]
    run = engine(lambda row: row, workers=8, order="key", per_key=1)
    out = [call.result for calls in run.run(iter(batches(rows, 1_000, key=letter))) for call in calls]
    assert sorted(out) == sorted(rows)
    assert len(run.scheduler.admission._lanes) <= 4_096 + 1
