"""get_many(linger=...) of a multi-queue: what others do while it lingers, and that an exception gives everything back
as it stood. tests/contract/test_linger.py has what holds for every structure.
"""
import array
import asyncio
import gc
import threading
import weakref
from queue import Full

import pytest
import trio
from support.event_loops import in_every_kind_of_loop
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
        with pytest.raises(KeyboardInterrupt):
            queue.get_many(10**9, linger=LONG)

    most = 1_000_000
    _, put = with_four_putters(queue, 100_000, most, interrupted, interrupt_once)
    assert put < 4 * most
    assert queue.qsize() == put


# ------------------------------------------------------------------------------------------------ giving back
def interrupted(queue, n=50):
    """get_many that Ctrl-C ends while it lingers."""
    with acting_when(lambda: queue.stats().getters_waiting, ctrl_c), pytest.raises(KeyboardInterrupt):
        queue.get_many(n, linger=LONG)


def cancelled(queue, n=50):
    async def main():
        task = asyncio.ensure_future(queue.aget_many(n, linger=LONG))
        while not queue.stats().getters_waiting:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def cancelled_in_trio(queue, n=50):
    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: queue.aget_many(n, linger=LONG))
            while not queue.stats().getters_waiting:
                await trio.sleep(0)
            nursery.cancel_scope.cancel()

    trio.run(main)


def closed(queue, n=50):
    """A coroutine that is dropped in the middle."""
    loop = asyncio.new_event_loop()
    asyncio._set_running_loop(loop)
    try:
        coroutine = queue.aget_many(n, linger=LONG)
        while coroutine.send(None) is None:  # it lets the loop run
            continue
    finally:
        asyncio._set_running_loop(None)
    coroutine.close()
    loop.close()


ENDS = {"Ctrl-C": interrupted, "cancelled": cancelled, "cancelled in trio": cancelled_in_trio, "closed": closed}
pytestmark = pytest.mark.thread_unsafe(reason="signals")


@pytest.fixture(params=ENDS)
def end(request):
    return ENDS[request.param]


@pytest.mark.parametrize("selection", SELECTIONS, ids=["round_robin", "weighted", "oldest", "chosen"])
@pytest.mark.parametrize("n", [1, 5, 30])
def test_an_exception_gives_everything_back_as_it_stood(new_bulk, end, selection, n):
    queue = new_bulk(selection=selection)
    tails = [queue.add(key, weight=2) for key in "abc"]
    for item in range(n):
        tails[item % 3].put(item)
    inside = [list(tail) for tail in tails]
    end(queue)
    assert [list(tail) for tail in tails] == inside
    assert queue.stats()[-2:] == (n, 0)
    assert not queue.join(0)
    expected = list(range(n)) if selection == "oldest" else None
    got = drain(queue)
    assert sorted(got) == list(range(n))
    if expected is not None:
        assert got == expected
    for _ in range(n):
        queue.task_done()
    assert queue.join(0)
    with pytest.raises(ValueError, match="task_done"):
        queue.task_done()


def held(queue, act, cancel_first=False):
    """Act while a get_many holds all items, and interrupt it: afterwards, or before what act() does wakes it."""
    async def main():
        task = asyncio.ensure_future(queue.aget_many(50, linger=LONG))
        while not queue.stats().getters_waiting:
            await asyncio.sleep(0)
        assert queue.empty()
        for step in [task.cancel, act] if cancel_first else [act, task.cancel]:
            step()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_it_gives_back_whatever_the_bound():
    queue = MultiQueue()
    tail, sized = queue.add("a", maxsize=2), queue.add("b", maxsize=5, sizer=lambda item: item)
    tail.put_many([1, 2])
    sized.put(5)
    held(queue, lambda: (tail.put_many([3, 4], block=False), sized.put(4, block=False)))
    assert (list(tail), list(sized), sized.size) == ([1, 2, 3, 4], [5, 4], 9)
    for full in (tail, sized):
        assert full.full()
        with pytest.raises(Full):
            full.put(1, block=False)


@in_every_kind_of_loop
def test_what_belongs_to_a_removed_sub_queue_goes_back_to_its_handle_and_is_done(new_bulk):
    queue = new_bulk()
    tail, other = queue.add("a"), queue.add("b")
    tail.put_many([1, 2])
    other.put(3)
    held(queue, lambda: queue.remove("a"))
    assert (list(tail), list(other), queue.qsize()) == ([1, 2], [3], 1)
    assert queue.get() == 3
    queue.task_done()
    assert queue.join(0)


def test_a_removed_sub_queue_that_nobody_has_goes_with_its_items():
    class Item:
        """Something that can be watched."""

    queue = MultiQueue()
    item = Item()
    ref = weakref.ref(item)
    queue.add("a").put(item)
    del item
    held(queue, lambda: queue.remove("a"))
    gc.collect()
    assert ref() is None
    assert queue.join(0)


@in_every_kind_of_loop
def test_what_an_immediate_shutdown_would_have_taken_away_is_taken_away(new_bulk):
    queue = new_bulk()
    tail = queue.add("a")
    tail.put_many([1, 2, 3])
    held(queue, lambda: queue.shutdown(immediate=True), cancel_first=True)
    assert (list(tail), queue.qsize()) == ([], 0)
    assert queue.join(0)
    with pytest.raises(ShutDown):
        queue.get()


@pytest.mark.parametrize("act", ["clear", "disable", "put_front", "get", "move"])
def test_it_gives_back_to_a_sub_queue_that_has_changed(new_bulk, act):
    queue = new_bulk()
    tail = queue.add("a")
    tail.put_many([1, 2, 3])

    def change():
        tail.put_many([4, 5])
        acts = {
            "clear": tail.clear,
            "disable": lambda: setattr(tail, "enabled", False),
            "put_front": lambda: tail.put_front(0),
            "get": queue.get,
            "move": lambda: setattr(tail, "priority", 7),
        }
        acts[act]()

    held(queue, change)
    expected = {"clear": [1, 2, 3], "put_front": [1, 2, 3, 0, 4, 5], "get": [1, 2, 3, 5]}.get(act, [1, 2, 3, 4, 5])
    assert list(tail) == expected
    tail.enabled = True
    assert drain(queue) == expected


def test_what_is_given_back_wakes_a_getter(new_bulk):
    queue = new_bulk()
    queue.add("a").put_many([1, 2])
    with Threads() as threads:
        getters = []

        def wait_behind():
            getters.extend(threads.start(queue.get, timeout=LONG) for _ in range(2))
            wait_getters(queue, 3)

        held(queue, wait_behind)
        assert sorted(getter.result() for getter in getters) == [1, 2]


def test_a_selection_that_raises_later_ends_it_and_raises_again(new_bulk):
    asked = []

    def choose(ready):
        asked.append(ready)
        if len(asked) > 2:
            raise LookupError
        return ready[0]

    queue = new_bulk(selection=choose)
    queue.add("a").put_many([1, 2, 3])
    assert as_list(queue.get_many(5, linger=LONG)) == [1, 2]
    with pytest.raises(LookupError):
        queue.get_many(5, linger=LONG)
    assert queue.qsize() == 1


def test_a_buffer_that_cannot_be_written_is_refused_before_anything_is_taken():
    queue = IndexMultiQueue()
    queue.add("a").put(1)
    with pytest.raises(TypeError):
        queue.get_many_into(b"12345678", linger=LONG)
    assert queue.get_many_into(array.array("q"), linger=LONG) == 0
    assert queue.qsize() == 1
