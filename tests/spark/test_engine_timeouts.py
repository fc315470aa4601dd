"""Plain functions that do not come back in time: the attempt fails, the thread is abandoned and replaced."""

import logging
import threading
import time
from collections.abc import Iterator

import pytest
from support.scheduling import Rows, Run, Script, Source, batches, finished
from support.threads import wait_until

ROOMY = 2.0  # for tests in which other calls must be in time, on a busy machine too


@pytest.fixture
def script() -> Iterator[Script]:
    """Rows that are not let go hang until the test is over; then their threads end too."""
    script = Script()
    yield script
    script.let_all_go()
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("manytail-")])


def test_an_attempt_over_its_time_fails_with_timeout_error(script: Script) -> None:
    script.let_go(0, 2)
    calls = finished(script, [Rows(range(3))], workers=3, timeout=ROOMY, errors="return")
    assert [call.result for call in calls] == [0, None, 2]
    assert [call.error and (call.error.type, call.error.attempts) for call in calls] == [None, ("TimeoutError", 1), None]


def test_the_timeout_is_per_attempt_and_is_retried_like_an_exception(script: Script) -> None:
    calls = finished(script, [Rows([0])], workers=2, timeout=0.1, retries=1, backoff=0, errors="return")
    assert script.started == [0, 0]
    assert calls[0].error is not None
    assert calls[0].error.attempts == 2


def test_a_timeout_that_retry_on_does_not_name_is_not_retried(script: Script) -> None:
    finished(script, [Rows([0])], timeout=0.1, retries=3, retry_on=ValueError, errors="return")
    assert script.started == [0]


def test_a_late_result_is_dropped(script: Script) -> None:
    with Run(script, [Rows(range(2))], workers=1, max_in_flight=2, timeout=0.3, errors="return", order="completion") as run:
        script.wait(lambda: script.started == [0, 1])  # 0 was given up on, or 1 could not have started
        script.let_go(0)
        script.wait(lambda: script.running == [1])
        script.let_go(1)
        out = run.result()
    assert out.count(None) >= 1
    assert 0 not in out
    assert len(out) == 2


def test_an_abandoned_thread_counts_no_longer_for_workers(script: Script) -> None:
    """One worker, two hanging rows: both others are called all the same, in threads that replace the first."""
    script.let_go(2, 3)
    calls = finished(script, [Rows(range(4))], workers=2, timeout=ROOMY, errors="return")
    assert [call.result for call in calls] == [None, None, 2, 3]


def test_an_abandoned_thread_counts_no_longer_for_per_key(script: Script) -> None:
    script.let_go(1)
    calls = finished(script, [Rows(range(2), key=lambda row: "k")], workers=2, per_key=1, retries=0, timeout=ROOMY, errors="return")
    assert [call.result for call in calls] == [None, 1]


def test_more_abandoned_threads_than_workers_fail_the_task(script: Script) -> None:
    with pytest.raises(RuntimeError, match=r"timeout: 3 calls run on after 0\.1 s \(expected: at most workers, 2\)"):
        finished(script, [Rows(range(10))], workers=2, timeout=0.1, errors="return")


def test_as_many_abandoned_threads_as_workers_do_not(script: Script) -> None:
    script.let_go(2)
    calls = finished(script, [Rows(range(3))], workers=2, timeout=ROOMY, errors="return")
    assert [call.result for call in calls] == [None, None, 2]


def test_abandoned_threads_that_have_ended_are_not_counted(script: Script) -> None:
    source = Source(batches(range(3), 1), hold_before=1)
    with Run(script, source, workers=1, timeout=ROOMY, errors="return") as run:
        run.wait_values(1)
        script.let_go(0, 2)
        wait_until(lambda: "manytail-worker-1" not in [thread.name for thread in threading.enumerate()])
        source.go_on.set()
        assert run.result() == [None, None, 2]  # row 1 hangs too, in the second thread


def test_abandoned_threads_are_daemons_and_are_logged_at_the_end(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "manytail.spark"):
        begin = time.monotonic()
        finished(script, [Rows([0])], timeout=0.1, errors="return")
        assert time.monotonic() - begin >= 1.0  # the moment that it gets
    left = [thread for thread in threading.enumerate() if thread.name.startswith("manytail-")]
    assert [thread.daemon for thread in left] == [True]
    assert caplog.messages == [f"1 calls that ran out of time are still running: {left[0].name}"]


def test_calls_in_time_are_left_alone() -> None:
    calls = finished(lambda row: row, batches(range(5_000), 500), workers=8, timeout=50)
    assert [call.result for call in calls] == list(range(5_000))


def test_a_hanging_call_does_not_keep_a_failed_task(script: Script) -> None:
    def call(row: int) -> int:
        if row == 1:
            script.wait_started(1)
            raise ValueError("row 1")
        return script(row)  # type: ignore[no-any-return]

    with pytest.raises(ValueError, match="row 1"):
        finished(call, [Rows(range(2))], workers=2, timeout=ROOMY)


def test_an_abandoned_thread_closes_its_resource_only_while_the_task_runs(script: Script) -> None:
    closed: list[str] = []

    class Resource:
        def close(self) -> None:
            closed.append(threading.current_thread().name)

    def call(row: int, resource: Resource) -> int:
        return script(row)  # type: ignore[no-any-return]

    finished(call, [Rows([0])], workers=1, timeout=0.1, errors="return", setup=Resource)
    before = list(closed)
    assert "manytail-worker-1" not in before
    script.let_all_go()
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("manytail-")])
    assert closed == before
