"""manytail.demo.stopping: a signal ends the work in order, once."""

import os
import signal
import threading

import pytest

from manytail.demo.stopping import Stopped, Stopping, stoppable

DEADLINE = 60


def test_work_that_is_not_stopped_returns_its_result():
    assert stoppable(lambda stopping: threading.current_thread().name) != threading.main_thread().name


def test_an_exception_of_the_work_is_raised():
    def work(stopping: Stopping) -> None:
        raise LookupError("of the work")

    with pytest.raises(LookupError, match="of the work"):
        stoppable(work)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_what_can_be_ended_and_the_rest_is_not_begun(number):
    ended, begun = threading.Event(), []

    def work(stopping: Stopping) -> None:
        with stopping.by(ended.set):
            os.kill(os.getpid(), number)
            assert ended.wait(DEADLINE)
        stopping.check()
        begun.append("the next step")

    before = signal.getsignal(number)
    with pytest.raises(Stopped):
        stoppable(work)
    assert ended.is_set()
    assert begun == []
    assert signal.getsignal(number) is before


def test_whatever_the_ended_work_fails_with_is_stopped():
    ended = threading.Event()

    def work(stopping: Stopping) -> None:
        with stopping.by(ended.set):
            os.kill(os.getpid(), signal.SIGINT)
            assert ended.wait(DEADLINE)
            raise ConnectionError("Spark is gone")

    with pytest.raises(Stopped):
        stoppable(work)


def test_a_request_that_came_before_is_seen_when_the_end_is_registered():
    stopping, ended = Stopping(), threading.Event()
    stopping.ask()
    with pytest.raises(Stopped), stopping.by(ended.set):
        raise AssertionError("began")
    assert not ended.is_set()


def test_a_second_signal_does_not_stop_the_stopping():
    ended, tidied = threading.Event(), []

    def work(stopping: Stopping) -> None:
        with stopping.by(ended.set):
            os.kill(os.getpid(), signal.SIGINT)
            assert ended.wait(DEADLINE)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        tidied.append(True)
        stopping.check()

    with pytest.raises(Stopped):
        stoppable(work)
    assert tidied == [True]
