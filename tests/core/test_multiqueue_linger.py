"""get_many(linger=...) of a multi-queue: what others do while it lingers, and that an exception has what it has taken.
tests/contract/test_linger.py has what holds for every structure.
"""
import array
import asyncio
import threading
from queue import Full

import pytest
import trio
from support.queues import as_list, drain
from support.threads import DEADLINE, LONG, Threads, acting_when, ctrl_c, wait_getters

from manytail import IndexMultiQueue, MultiQueue, ShutDown

SHORT = 0.003
SELECTIONS = ["round_robin", "weighted", "oldest", lambda ready: ready[0]]


# ------------------------------------------------------------------------------------------------ while it waits
def test_what_it_has_taken_makes_room(new_bulk):
    """More than the bound comes into one batch."""
    queue = new_bulk()
    tail = queue.add("a", maxsize=2)
    with Threads() as threads:
        putter = threads.start(tail.put_many, range(20), timeout=LONG)
        assert as_list(queue.get_many(20, linger=LONG)) == list(range(20))
        putter.result()


def test_a_more_urgent_item_that_comes_later_does_not_overtake(new_bulk):
    queue = new_bulk()
    low, high = queue.add("low", priority=1), queue.add("high", priority=0)
    low.put(1)
    with Threads() as threads:
        getter = threads.start(queue.get_many, 2, linger=LONG)
        wait_getters(queue, 1)
        high.put(2)
        assert as_list(getter.result()) == [1, 2]


# ------------------------------------------------------------------------------------------------ while others put
def put_without_waiting(tail, run, most, begin, ended, meanwhile):
    """Put runs, each as far as it fits, until `ended` is set or there were `most`. Returns how many items were put."""
    put = 0
    begin.wait(DEADLINE)
    while put < most and not ended.is_set():
        meanwhile()
        try:
            put += tail.put_many(run, block=False)
        except Full as full:
            put += full.count
    return put


def with_four_putters(queue, room, most, act, meanwhile=lambda: None):
    """Act while four threads put faster than one gets. Returns the result, and how many items were put.

    room: of a tail. However late the getter runs, the putters cannot run ahead of it by more than that."""
    tails = [queue.add(key, maxsize=room) for key in range(4)]
    run = array.array("q", range(1000))
    run = run if isinstance(queue, IndexMultiQueue) else tuple(run)
    begin, ended = threading.Barrier(5), threading.Event()
    with Threads() as threads:
        putters = [threads.start(put_without_waiting, tail, run, most, begin, ended, meanwhile) for tail in tails]
        try:
            begin.wait(DEADLINE)
            result = act()
        finally:
            ended.set()
        return result, sum(putter.result() for putter in putters)


@pytest.mark.parametrize(
    ("selection", "room"), [("oldest", 100_000), (lambda ready: ready[0], 5_000)], ids=["oldest", "chosen"]
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_it_ends_when_its_time_is_over_while_others_put(new_bulk, selection, room, asynchronous):
    """One that does not end takes all, up to 4 million items: then it needs about 200 MB."""
    queue = new_bulk(selection=selection)
    most = 10 * room

    def call():
        if asynchronous:
            return asyncio.run(queue.aget_many(5 * most, linger=SHORT))
        return queue.get_many(5 * most, linger=SHORT)

    got, put = with_four_putters(queue, room, most, call)
    assert 0 < len(got) < 2 * most
    assert len(got) + queue.qsize() == put


def test_ctrl_c_ends_it_while_others_put(new_bulk):
    queue, sent = new_bulk(), threading.Lock()

    def interrupt_once():
        if not sent.locked() and queue.stats().got and sent.acquire(blocking=False):
            ctrl_c()

    def interrupted():
        with pytest.raises(KeyboardInterrupt) as error:
            queue.get_many(10**9, linger=LONG)
        return error.value.items

    most = 1_000_000
    taken, put = with_four_putters(queue, 100_000, most, interrupted, interrupt_once)
    assert put < 4 * most
    assert len(taken) + queue.qsize() == put


# ------------------------------------------------------------------------------------------------ exceptions
def interrupted(queue, n=50):
    """get_many that Ctrl-C ends while it lingers. Returns what the exception has."""
    with acting_when(lambda: queue.stats().getters_waiting, ctrl_c), pytest.raises(KeyboardInterrupt) as error:
        queue.get_many(n, linger=LONG)
    return error.value.items


def cancelled(queue, n=50):
    async def main():
        task = asyncio.ensure_future(queue.aget_many(n, linger=LONG))
        while not queue.stats().getters_waiting:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as error:
            await task
        return error.value.items

    return asyncio.run(main())


def cancelled_in_trio(queue, n=50):
    taken = []

    async def get():
        try:
            await queue.aget_many(n, linger=LONG)
        except trio.Cancelled as error:
            taken.extend(error.items)
            raise

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(get)
            while not queue.stats().getters_waiting:
                await trio.sleep(0)
            nursery.cancel_scope.cancel()

    trio.run(main)
    return taken


ENDS = {"Ctrl-C": interrupted, "cancelled": cancelled, "cancelled in trio": cancelled_in_trio}
pytestmark = pytest.mark.thread_unsafe(reason="signals")


@pytest.fixture(params=ENDS)
def end(request):
    return ENDS[request.param]


@pytest.mark.parametrize("selection", SELECTIONS, ids=["round_robin", "weighted", "oldest", "chosen"])
@pytest.mark.parametrize("n", [1, 5, 30])
def test_an_exception_has_what_was_taken_in_the_order_of_get(new_bulk, end, selection, n):
    def filled():
        queue = new_bulk(selection=selection)
        tails = [queue.add(key, weight=2) for key in "abc"]
        for item in range(n):
            tails[item % 3].put(item)
        return queue

    queue = filled()
    taken = end(queue)
    assert type(taken) is list
    assert taken == drain(filled())
    assert queue.stats()[-2:] == (n, n)
    assert queue.empty()
    for _ in range(n):
        queue.task_done()
    assert queue.join(0)


def test_a_coroutine_that_is_closed_drops_what_it_has_taken(new_bulk):
    """Nobody gets its exception."""
    queue, loop = new_bulk(), asyncio.new_event_loop()
    tail = queue.add("a")
    tail.put_many([1, 2])
    asyncio._set_running_loop(loop)
    try:
        coroutine = queue.aget_many(50, linger=LONG)
        while coroutine.send(None) is None:  # it lets the loop run
            continue
    finally:
        asyncio._set_running_loop(None)
    coroutine.close()
    loop.close()
    assert queue.stats()[-2:] == (2, 2)
    tail.put(3)
    assert queue.get() == 3


def test_an_exception_that_cannot_have_items_passes_through(new_bulk):
    class Closed(Exception):
        __slots__ = ()

        def __setattr__(self, name, value):
            raise AttributeError(name)

    asked = []

    def choose(ready):
        asked.append(ready)
        if len(asked) == 2:
            raise Closed
        return ready[0]

    queue = new_bulk(selection=choose)
    queue.add("a").put_many([1, 2, 3])
    with pytest.raises(Closed):
        queue.get_many(5, linger=LONG)
    assert drain(queue) == [2, 3]


def test_one_that_has_taken_nothing_passes_its_wake_up_on(new_bulk):
    """Two wait, and the one that is woken fails in its selection: the other one gets the item."""
    failed = []

    def choose(ready):
        if not failed:
            failed.append(True)
            raise LookupError
        return ready[0]

    queue = new_bulk(selection=choose)
    tail = queue.add("a")
    with Threads() as threads:
        getters = [threads.start(queue.get_many, 1, linger=LONG) for _ in range(2)]
        wait_getters(queue, 2)
        tail.put(1)
        ends = [getter.outcome() for getter in getters]
    assert sorted(type(end).__name__ for end in ends) == ["LookupError", "NoneType"]
    assert next(end for end in ends if end is not None).items == []
    assert queue.empty()


@pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt])
def test_a_selection_that_raises_later_has_what_was_taken(new_bulk, error):
    asked = []

    def choose(ready):
        asked.append(ready)
        if len(asked) > 2:
            raise error
        return ready[0]

    queue = new_bulk(selection=choose)
    queue.add("a").put_many([1, 2, 3])
    with pytest.raises(error) as raised:
        queue.get_many(5, linger=LONG)
    assert raised.value.items == [1, 2]
    assert queue.qsize() == 1


@pytest.mark.parametrize("outer", [0, 1])
def test_what_a_call_within_it_had_taken_comes_before_its_own(outer):
    """A selection gets from another queue, which raises with the item that was taken there."""

    def inner_choice(ready):
        if len(chosen) == 1:
            raise LookupError
        chosen.append(ready)
        return ready[0]

    def outer_choice(ready):
        if asked:
            inner.get_many(2)
        asked.append(ready)
        return ready[0]

    chosen, asked = [], [] if outer else [None]
    inner, queue = MultiQueue(selection=inner_choice), MultiQueue(selection=outer_choice)
    inner.add("a").put_many("xy")
    queue.add("b").put_many(range(5))
    with pytest.raises(LookupError) as raised:
        queue.get_many(3)
    assert raised.value.items == ["x", *range(outer)]
    assert (inner.qsize(), queue.qsize()) == (1, 5 - outer)


def test_a_selection_that_raises_shutdown_ends_no_queue():
    def choose(ready):
        if asked:
            raise ShutDown
        asked.append(ready)
        return ready[0]

    for asynchronous in (False, True):
        asked: list[object] = []
        queue = MultiQueue(selection=choose)
        queue.add("a").put_many("xy")
        with pytest.raises(ShutDown) as raised:
            asyncio.run(queue.aget_many(2)) if asynchronous else queue.get_many(2)
        assert raised.value.items == ["x"]


def test_a_buffer_that_cannot_be_written_is_refused_before_anything_is_taken():
    queue = IndexMultiQueue()
    queue.add("a").put(1)
    with pytest.raises(TypeError):
        queue.get_many_into(b"12345678", linger=LONG)
    assert queue.get_many_into(array.array("q"), linger=LONG) == 0
    assert queue.qsize() == 1
