"""A bulk put that fails says how many items went in, also if Ctrl-C comes just when it reports that."""
import gc

import pytest
from support.queues import with_interrupt_pending

from manytail import EntryQueue, Full, IndexMultiQueue, MultiQueue, PubSubQueue

pytestmark = pytest.mark.thread_unsafe(reason="signals are the main thread's")


def published(maxsize):
    queue = PubSubQueue(maxsize=maxsize)
    return queue.publish_many, queue.subscribe()


def serve_signals():
    """The interpreter does so at the latest when a Python function begins."""


CALLS = {
    "MultiQueue": lambda: (MultiQueue().add("a", maxsize=2).put_many, None),
    "sized MultiQueue": lambda: (MultiQueue().add("a", maxsize=3, sizer=int).put_many, None),
    "IndexMultiQueue": lambda: (IndexMultiQueue().add("a", maxsize=2).put_many, None),
    "EntryQueue": lambda: (EntryQueue("a", maxsize=2).put_many, None),
    "PubSubQueue": lambda: published(2),
}


@pytest.mark.parametrize("items", [list, iter])
@pytest.mark.parametrize("name", CALLS)
def test_ctrl_c_beside_a_failure_does_not_lose_its_count(name, items):
    put_many, subscriber = CALLS[name]()
    raised = None
    gc.disable()        # hypothesis has a callback there, Python code that would get the exception
    try:
        try:
            with_interrupt_pending(put_many, items([1, 2, 3]), block=False)
        except BaseException as error:
            raised = error
        serve_signals()
    except KeyboardInterrupt:
        pass
    finally:
        gc.enable()
        if subscriber is not None:
            subscriber.close()
    assert isinstance(raised, (Full, KeyboardInterrupt))
    assert raised.count == 2
