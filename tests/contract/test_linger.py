"""get_many(linger=...) of every structure: what ends its wait, and that an exception has or gives back everything.

A linger of LONG seconds ends by what the test does; one of a few thousandths ends by itself. No test depends on how
long either takes.
"""
import asyncio
import random
import signal
import time
from queue import Empty

import pytest
import trio
from support.counts import count
from support.queues import as_list, get_many_into
from support.threads import DEADLINE, LONG, Threads, acting_when, ctrl_c, main_thread_sleeps, wait_asleep, wait_until

from contract.structures import ENDED, STRUCTURES
from manytail import ShutDown

SHORT = 0.003
pytestmark = pytest.mark.thread_unsafe(reason="signals")


def get_many(out, n, linger, **wait):
    return as_list(out.get_many(n, linger=linger, **wait))


def aget_many(out, n, linger):
    return as_list(asyncio.run(out.aget_many(n, linger=linger)))


def aget_many_in_trio(out, n, linger):
    async def main():
        return await out.aget_many(n, linger=linger)

    return as_list(trio.run(main))


# The structure, its way out, and the call of that.
WAITING = {
    "MultiQueue.get_many": ("MultiQueue", 0, get_many),
    "IndexMultiQueue.get_many": ("IndexMultiQueue", 0, get_many),
    "IndexMultiQueue.get_many_into": ("IndexMultiQueue", 0, get_many_into),
    "EntryQueue.get_many": ("EntryQueue", 0, get_many),
    "Consumer.get_many": ("Consumer", 0, get_many),
    "get_many of a Consumer's subscription": ("Consumer", 1, get_many),
    "PubSubQueue.get_many": ("PubSubQueue", 0, get_many),
}
FORMS = {
    **WAITING,
    "MultiQueue.aget_many": ("MultiQueue", 0, aget_many),
    "MultiQueue.aget_many in trio": ("MultiQueue", 0, aget_many_in_trio),
    "IndexMultiQueue.aget_many": ("IndexMultiQueue", 0, aget_many),
}


class Form:
    """A call that lingers."""

    def __init__(self, name):
        structure, out, self.call = FORMS[name]
        self.on = STRUCTURES[structure]()
        self.out = self.on.outs[out]
        self.keeps = structure not in ("EntryQueue", "Consumer")  # in the exception; entries are released instead

    def __call__(self, n, linger, **wait):
        return [self.on.item(got) for got in self.call(self.out, n, linger=linger, **wait)]

    def put(self, *items):
        for item in items:
            self.on.put(item)

    def has_taken_all(self):
        wait_until(lambda: not self.on.inside(), "it lingers")


def made(name):
    if name.startswith("Index"):
        pytest.importorskip("numpy")
    form = Form(name)
    yield form
    form.on.close()


@pytest.fixture(params=FORMS)
def form(request):
    yield from made(request.param)


@pytest.fixture(params=WAITING)
def waiting(request):
    """A form that takes `block` and `timeout` too."""
    yield from made(request.param)


# ------------------------------------------------------------------------------------------------ what ends it
@pytest.mark.parametrize("linger", [LONG, float("inf")])
def test_it_ends_when_max_items_are_there(form, linger):
    form.put(0)
    with Threads() as threads:
        getter = threads.start(form, 3, linger)
        wait_asleep(getter)
        form.put(1)
        wait_asleep(getter)
        form.put(2, 3)
        assert getter.result() == [0, 1, 2]
    assert form.on.inside() == 1


def test_it_ends_when_its_time_is_over_and_returns_what_came(form):
    form.put(1, 2)
    began = time.monotonic()
    assert form(5, SHORT) == [1, 2]
    assert time.monotonic() - began >= SHORT
    assert form.on.inside() == 0


def test_it_counts_from_the_first_item(form):
    with Threads() as threads:
        getter = threads.start(form, 5, SHORT)
        getter.join(2 * SHORT)  # longer than it lingers: the first item has not come
        assert getter.is_alive()
        form.put(1)
        assert getter.result() == [1]


def test_all_that_is_there_is_taken_without_waiting(form):
    form.on.put_many(range(200))
    assert form(150, LONG) == list(range(150))
    assert form.on.inside() == 50


@pytest.mark.parametrize("immediate", [False, True])
def test_a_shutdown_ends_it_and_what_was_taken_is_returned(form, immediate):
    form.put(1, 2)
    with Threads() as threads:
        getter = threads.start(form.call, form.out, 5, linger=LONG)
        wait_asleep(getter)
        form.has_taken_all()
        form.on.shutdown(immediate)
        assert [form.on.item(got) for got in getter.result()] == [1, 2]
    with pytest.raises(ENDED):
        form(5, LONG)


@pytest.mark.parametrize("waiting", [name for name in WAITING if "MultiQueue" not in name], indirect=True)
def test_closing_ends_it(waiting):
    waiting.put(1)
    with Threads() as threads:
        getter = threads.start(waiting.call, waiting.out, 5, linger=LONG)
        wait_asleep(getter)
        waiting.has_taken_all()
        waiting.on.outs[0].close()
        assert [getattr(got, "item", got) for got in getter.result()] == [1]
    with pytest.raises(ENDED):
        waiting(5, LONG)


def test_the_timeout_ends_it_too_and_without_blocking_it_is_ignored(waiting):
    for wait in ({"timeout": SHORT}, {"block": False}):
        waiting.put(1)
        assert waiting(5, LONG, **wait) == [1]
        with pytest.raises(Empty):
            waiting(5, LONG, **wait)
    assert waiting(0, LONG) == []


@pytest.mark.parametrize(
    ("linger", "error"), [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError), (None, TypeError)]
)
def test_a_bad_linger_is_refused(form, linger, error):
    form.put(1)
    with pytest.raises(error, match=r"linger: .*expected"):
        form(1, linger)
    assert form.on.inside() == 1


def test_a_bad_linger_is_refused_without_blocking_too(waiting):
    waiting.put(1)
    with pytest.raises(ValueError, match=r"linger: .*expected"):
        waiting(1, -1, block=False)
    assert waiting.on.inside() == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, ShutDown, Empty])
def test_an_exception_of_a_signal_handler_ends_it_and_nothing_is_lost(waiting, error):
    """ShutDown and Empty too, which are not the queue's."""
    waiting.put(1, 2, 3)

    def handler(*_):
        raise error

    def lingers():
        return not waiting.on.inside() and main_thread_sleeps()

    before = signal.signal(signal.SIGINT, handler)
    try:
        with acting_when(lingers, ctrl_c), pytest.raises(error) as ended:
            waiting(5, LONG)
    finally:
        signal.signal(signal.SIGINT, before)
    had = getattr(ended.value, "items", [])
    assert had == ([1, 2, 3] if waiting.keeps else [])
    assert waiting.on.inside() == 3 - len(had)
    if not waiting.keeps:
        assert waiting(5, SHORT) == [1, 2, 3]


def test_time_outs_and_items_meet_in_every_order(waiting):
    each, got = count(200, 3_000), []

    def putter():
        chance = random.Random(3)
        for n in range(each):
            waiting.put(n)
            if chance.random() < 0.5:
                time.sleep(chance.random() * 0.0005)  # not to wait for anything: so that puts meet every state

    with Threads() as threads:
        threads.start(putter)
        while len(got) < each:
            got.extend(waiting(7, random.random() * 0.001, timeout=DEADLINE))
    assert got == list(range(each))
