"""A connection's executor may refuse, be interrupted or be shut down: no lane stays ready for ever, no deadlock."""
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.process import run_script
from support.threads import DEADLINE, Threads, wait_until

from broker.own import broker
from manytail.broker import exceptions

__all__ = ["broker"]  # a fixture


def consuming(broker, executor, callback=lambda *delivery: None):
    """A channel with a consumer whose callback runs on that executor."""
    channel = broker.connect(executor=executor).channel()
    channel.queue_declare("q")
    channel.basic_consume("q", callback)
    return channel


def test_a_publish_that_is_interrupted_strands_no_lane(broker):
    """The task for the first message is interrupted before its submit. The second message submits one; both come."""

    class Interrupted(ThreadPoolExecutor):
        now = False

        def submit(self, *args, **kwargs):
            if self.now:
                self.now = False
                raise KeyboardInterrupt
            return super().submit(*args, **kwargs)

    got = []
    with Interrupted(1) as executor:
        channel = consuming(broker, executor, lambda channel, method, properties, body: got.append(body))
        executor.now = True
        with pytest.raises(KeyboardInterrupt):
            channel.basic_publish("", "q", b"1")
        channel.basic_publish("", "q", b"2")
        wait_until(lambda: got == [b"1", b"2"], f"{got}")


def test_a_shared_pool_that_is_shut_down_and_cancels_waits_for_nobody(broker):
    """The end of the first connection passes its message to the second one. Its task must not be submitted under the
    pool's own lock."""
    go_on = threading.Event()
    executor = ThreadPoolExecutor(1)
    executor.submit(go_on.wait, DEADLINE)
    with Threads() as threads:
        first = consuming(broker, executor)
        first.basic_publish("", "q", b"message")
        second = consuming(broker, executor)
        down = threads.start(executor.shutdown, cancel_futures=True)
        wait_until(lambda: first.connection.is_closed and second.connection.is_closed, "both connections to end")
        go_on.set()
        down.result()


def test_a_task_that_is_cancelled_between_two_blocks_closes_the_connection(broker):
    """A lane has 256 items of a task, and submits another one for the rest."""
    begun, begin, go_on = threading.Event(), threading.Event(), threading.Event()
    executor = ThreadPoolExecutor(1)
    channel = consuming(broker, executor, lambda *delivery: (begun.set(), begin.wait(DEADLINE)))
    for _ in range(300):
        channel.basic_publish("", "q", b"")
    assert begun.wait(DEADLINE)
    between = executor.submit(go_on.wait, DEADLINE)
    begin.set()
    wait_until(between.running)
    executor.shutdown(wait=False, cancel_futures=True)
    wait_until(lambda: channel.connection.is_closed, "the connection to end")
    go_on.set()


@pytest.mark.parametrize("how", ["start_consuming", "consume"])
def test_who_consumes_learns_that_the_executor_refuses(broker, how):
    executor = ThreadPoolExecutor(1)
    channel = consuming(broker, executor)
    with Threads() as threads:
        if how == "start_consuming":
            consumes = threads.start(channel.start_consuming)
            wait_until(lambda: channel._starters)
        else:
            consumes = threads.start(lambda: list(channel.consume("q")))
            wait_until(lambda: len(channel.consumer_tags) == 2)
        executor.shutdown()
        channel.connection.add_callback_threadsafe(int)
        assert isinstance(consumes.outcome(), exceptions.AMQPConnectionError)


def test_a_lane_that_never_gets_empty_does_not_keep_the_interpreter_alive():
    assert run_script("""
import threading
from manytail import broker
channel = broker.Broker().connect().channel()
channel.queue_declare("q")
seen = threading.Event()
def callback(channel, method, properties, body):
    seen.set()
    channel.basic_nack(method.delivery_tag)
channel.basic_consume("q", callback)
channel.basic_publish("", "q", b"")
seen.wait()
print("end")
""") == "end\n"
