"""Plain functions that exceed their timeout: the attempt fails, the thread is abandoned and replaced.

The test moves the runner's clock, and so decides when a call is overdue.
"""

import logging
import threading
from collections.abc import Iterator

import pytest
from support.maps import threads_of_maps
from support.scheduling import Clocked, Script, Source, batches
from support.threads import wait_until

from manytail.mapping import _workers


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Rows that are not released hang until the end of the test. Then their threads end too."""
    monkeypatch.setattr(_workers, "JOIN_TIMEOUT", 0.01)  # that of an abandoned thread at the end
    script = Script()
    yield script
    script.let_all_go()
    wait_until(lambda: not threads_of_maps())


def test_a_call_over_its_time_fails_its_row_and_another_thread_takes_its_place(script: Script) -> None:
    """Both threads hang. The other rows are called nevertheless, and as many abandoned threads as workers do not fail
    the map."""
    script.let_go(2, 3)
    with Clocked(script, batches(range(4), 4), workers=2) as run:
        script.wait(lambda: sorted(script.running) == [0, 1])
        run.pass_an_hour()
        assert run.result() == [None, None, 2, 3]
        assert run.errors() == [("TimeoutError", 1), ("TimeoutError", 1), None, None]


def test_abandoned_threads_that_have_ended_are_not_counted(script: Script) -> None:
    source = Source(batches(range(3), 1), hold_before=1)
    with Clocked(script, source, workers=1, max_in_flight=1, batch_rows=1) as run:
        script.wait_started(1)
        run.pass_an_hour()
        run.wait_values(1)
        script.let_go(0, 2)
        wait_until(lambda: "manytail-worker-1" not in threads_of_maps())
        source.go_on.set()
        script.wait(lambda: script.running == [1])
        run.pass_an_hour()
        assert run.result() == [None, None, 2]


def test_abandoned_threads_are_daemons_and_are_logged_at_the_end(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "manytail.spark"), Clocked(script, batches([0], 1), workers=1) as run:
        script.wait_started(1)
        run.pass_an_hour()
        assert run.result() == [None]
    left = [thread for thread in threading.enumerate() if thread.name.startswith("manytail-")]
    assert [thread.daemon for thread in left] == [True]
    assert caplog.messages == [f"1 calls that ran out of time are still running: {left[0].name}"]


def test_a_hanging_call_does_not_keep_a_failed_task(script: Script) -> None:
    def call(row: int) -> int:
        if row == 1:
            script.wait_started(1)
            raise ValueError("row 1")
        return script(row)  # type: ignore[no-any-return]

    with Clocked(call, batches(range(2), 2), workers=2, errors="raise") as run:
        wait_until(lambda: run.batch_map.runner.stopping)
        assert run.task.is_alive()
        run.pass_an_hour()
        error = run.task.outcome()
    assert isinstance(error, ValueError)
