"""Which order rows come out in, and who waits for whom."""

import pytest
from support.scheduling import Rows, Run, Script, Source, batches, results


def test_input_order_is_kept_whatever_finishes_first() -> None:
    script = Script()
    with Run(script, batches(range(8), 3), workers=8, order="input") as run:
        script.wait_started(8)
        for row in (7, 3, 5, 1, 0, 2, 6, 4):
            script.let_go(row)
            script.wait(lambda row=row: row not in script.running)
        assert run.result() == list(range(8))


def test_input_order_over_many_batches_and_threads() -> None:
    assert results(lambda row: row, batches(range(5_000), 7), workers=8) == list(range(5_000))


def test_none_gives_rows_as_they_finish() -> None:
    script = Script()
    with Run(script, batches(range(4), 4), workers=4, order="completion", batch_rows=1) as run:
        script.wait_started(4)
        for number, row in enumerate((2, 0, 3, 1), start=1):
            script.let_go(row)
            run.wait_values(number)
        assert run.result() == [2, 0, 3, 1]


def test_key_order_holds_inside_a_key_while_keys_overtake() -> None:
    script = Script()
    script.key = lambda row: row[0]
    rows = [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    with Run(script, [Rows(rows, key=script.key)], workers=4, order="key", batch_rows=1) as run:
        script.wait_started(4)
        script.let_go(("a", 2), ("b", 1), ("b", 2))  # a's second row is done and waits for a's first; b overtakes
        assert run.wait_values(2) == [("b", 1), ("b", 2)]
        script.let_go(("a", 1))
        assert run.result() == [("b", 1), ("b", 2), ("a", 1), ("a", 2)]


def test_calls_of_one_key_overlap_unless_per_key_is_1() -> None:
    script = Script()
    script.key = lambda row: "only"
    with Run(script, [Rows(range(3), key=script.key)], workers=3, order="key") as run:
        script.wait(lambda: len(script.running) == 3)
        script.let_all_go()
        assert run.result() == [0, 1, 2]
    alone = Script(*range(3))
    alone.key = lambda row: "only"
    assert results(alone, [Rows(range(3), key=alone.key)], workers=3, order="key", per_key=1) == [0, 1, 2]
    assert alone.peak == 1


@pytest.mark.parametrize("ordered", ["key", "completion"])
def test_a_slow_row_holds_back_only_rows_that_must_follow_it(ordered: str) -> None:
    script = Script(*range(1, 20))
    with Run(script, [Rows(range(20), key=lambda row: row % 5)], workers=2, max_in_flight=20, order=ordered, batch_rows=1) as run:
        others = 16 if ordered == "key" else 19  # in key order rows 5, 10 and 15 follow row 0
        assert set(run.wait_values(others)) == {row for row in range(1, 20) if ordered == "completion" or row % 5}
        script.let_go(0)
        assert sorted(run.result()) == list(range(20))


def test_a_slow_row_lets_calls_go_on_until_the_window_is_used_up() -> None:
    script = Script(*range(1, 100))
    with Run(script, batches(range(100), 10), workers=2, max_in_flight=16, order="input") as run:
        script.wait(lambda: len(script.started) == 16 and script.running == [0])
        assert run.outputs == []
        script.let_go(0)
        assert run.result() == list(range(100))
    assert sorted(script.started[:16]) == list(range(16))


def test_empty_input_and_empty_batches() -> None:
    assert results(lambda row: row, []) == []
    assert results(lambda row: row, [Rows([]), Rows([1]), Rows([]), Rows([2, 3]), Rows([])]) == [1, 2, 3]


def test_finished_rows_come_out_while_the_source_keeps_the_reader_waiting() -> None:
    source = Source(batches(range(6), 3), hold_before=1)
    with Run(lambda row: row, source) as run:
        assert run.wait_values(3) == [0, 1, 2]  # nothing else could go on
        source.go_on.set()
        assert run.result() == list(range(6))
