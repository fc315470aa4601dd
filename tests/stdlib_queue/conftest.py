"""The kinds of queues that behave alike, and what tests need to inspect them."""
import pytest

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


class Locked(Queue):
    """A Queue in locked mode: it overrides a hook, with the same behaviour."""

    def _put(self, item):
        super()._put(item)


KINDS = {"kernel": Queue, "locked": Locked, "overriding": Overriding}


@pytest.fixture(params=KINDS)
def new(request):
    """Makes first-in, first-out queues, of each kind."""
    return KINDS[request.param]
