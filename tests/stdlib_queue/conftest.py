"""The kinds of queues that behave alike, and what tests need to inspect them."""
import pytest
from support.threads import acting_when, ctrl_c

from manytail.queue import Queue


class Overriding(Queue):
    """A Queue that overrides every hook with the same behaviour."""

    def _init(self, maxsize):
        self.items = []

    def _qsize(self):
        return len(self.items)

    def _put(self, item):
        self.items.append(item)

    def _get(self):
        return self.items.pop(0)


def locked(maxsize=0):
    """A Queue that has entered locked mode."""
    queue = Queue(maxsize)
    assert not queue.mutex.locked()
    return queue


def interrupted(call):
    """Call it in the main thread. Ctrl-C comes after it has begun to wait, and ends it."""
    begun = []

    def begin():
        begun.append(True)
        call()

    with acting_when(lambda: begun, ctrl_c), pytest.raises(KeyboardInterrupt):
        begin()


KINDS = {"kernel": Queue, "locked": locked, "overriding": Overriding}


@pytest.fixture(params=KINDS)
def new(request):
    """Makes first-in, first-out queues, of each kind."""
    return KINDS[request.param]
