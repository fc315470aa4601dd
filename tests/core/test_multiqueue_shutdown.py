"""Both kinds of shutdown, and the accounting of unfinished tasks: task_done, join, ajoin."""
import asyncio
from queue import Full

import pytest
from support.queues import as_list, drain
from support.threads import DEADLINE, LONG, Threads, wait_getters, wait_putters

from manytail import ShutDown

PUTS = {
    "put": lambda tail: tail.put(9),
    "put without blocking": lambda tail: tail.put(9, block=False),
    "put_nowait": lambda tail: tail.put_nowait(9),
    "put_front": lambda tail: tail.put_front(9),
    "put_many": lambda tail: tail.put_many([9]),
    "put_many of an iterator": lambda tail: tail.put_many(iter([9])),
    "aput": lambda tail: asyncio.run(tail.aput(9)),
}
GETS = {
    "get": lambda queue: queue.get(),
    "get without blocking": lambda queue: queue.get(block=False),
    "timed get": lambda queue: queue.get(timeout=LONG),
    "get_nowait": lambda queue: queue.get_nowait(),
    "get_with_key": lambda queue: queue.get_with_key(),
    "get_many": lambda queue: queue.get_many(3),
    "aget": lambda queue: asyncio.run(queue.aget()),
    "aget_with_key": lambda queue: asyncio.run(queue.aget_with_key()),
    "aget_many": lambda queue: asyncio.run(queue.aget_many(3)),
}
WAITING_GETS = {name: get for name, get in GETS.items() if name not in ("get without blocking", "get_nowait")}


@pytest.fixture(params=[False, True], ids=["drain", "immediate"])
def immediate(request):
    return request.param


# ------------------------------------------------------------------------------------------------ shutdown
def test_is_shutdown(new, immediate):
    queue = new()
    assert queue.is_shutdown is False
    queue.shutdown(immediate)
    assert queue.is_shutdown is True
    queue.shutdown(immediate=immediate)  # a second one changes nothing
    assert queue.is_shutdown is True


@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
@pytest.mark.parametrize("maxsize", [0, 1])
def test_every_put_after_shutdown_is_shutdown_and_not_full(new, immediate, put, maxsize):
    queue = new()
    tail = queue.add("a", maxsize=maxsize)
    tail.put(1)
    queue.shutdown(immediate)
    before = queue.stats()
    with pytest.raises(ShutDown):
        put(tail)
    assert queue.stats() == before


def test_add_after_shutdown_is_shutdown(new, immediate):
    queue = new()
    tail = queue.add("a")
    queue.shutdown(immediate)
    with pytest.raises(ShutDown):
        queue.add("b")
    with pytest.raises(ShutDown):
        queue.setdefault("b")
    assert queue.setdefault("a") is tail
    assert list(queue.subqueues) == ["a"]


@pytest.mark.parametrize("get", GETS.values(), ids=GETS)
def test_gets_drain_then_raise_shutdown_and_not_empty(new_bulk, get):
    queue = new_bulk()
    queue.add("a").put_many([1, 2])
    queue.add("b", priority=-1).put(0)
    queue.add("hidden", enabled=False).put(7)
    queue.shutdown()
    assert queue.peek() == 0
    assert [queue.get(), queue.get(timeout=DEADLINE), queue.get_nowait()] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(ShutDown):
            get(queue)


@pytest.mark.parametrize("get", GETS.values(), ids=GETS)
def test_immediate_shutdown_empties_all_and_gets_raise(new_bulk, get):
    queue = new_bulk()
    tails = [queue.add("a"), queue.add("hidden", enabled=False), queue.add("b", priority=3, maxsize=2)]
    for tail in tails:
        tail.put_many([1, 2])
    queue.shutdown(immediate=True)
    with pytest.raises(ShutDown):
        get(queue)
    assert queue.qsize() == 0
    assert [tail.qsize() for tail in tails] == [0, 0, 0]
    assert [list(tail) for tail in tails] == [[], [], []]


def test_shutdown_then_immediate_empties(new):
    queue = new()
    queue.add("a").put(1)
    queue.shutdown()
    assert queue.qsize() == 1
    queue.shutdown(immediate=True)
    assert queue.qsize() == 0
    with pytest.raises(ShutDown):
        queue.get()


def test_enabling_after_shutdown_lets_the_items_drain(new):
    queue = new()
    tail = queue.add("a", enabled=False)
    tail.put(1)
    queue.shutdown()
    with pytest.raises(ShutDown):
        queue.get()
    tail.enabled = True
    assert queue.get() == 1


@pytest.mark.parametrize("get", WAITING_GETS.values(), ids=WAITING_GETS)
def test_shutdown_wakes_every_getter(new_bulk, immediate, get):
    queue = new_bulk()
    queue.add("a")
    with Threads() as threads:
        getters = [threads.start(get, queue) for _ in range(3)]
        wait_getters(queue, 3)
        queue.shutdown(immediate)
        assert [type(getter.outcome()) for getter in getters] == [ShutDown] * 3
    assert queue.stats().getters_waiting == 0


@pytest.mark.parametrize(
    "put",
    [PUTS["put"], PUTS["put_front"], PUTS["put_many"], PUTS["aput"]],
    ids=["put", "put_front", "put_many", "aput"],
)
def test_shutdown_wakes_every_putter_of_every_tail(new, immediate, put):
    queue = new()
    tails = [queue.add(key, maxsize=1, enabled=key != 1) for key in range(3)]
    for tail in tails:
        tail.put(1)
    with Threads() as threads:
        putters = [threads.start(put, tail) for tail in tails for _ in range(2)]
        wait_putters(queue, 6)
        queue.shutdown(immediate)
        assert [type(putter.outcome()) for putter in putters] == [ShutDown] * 6
    assert queue.stats().put == 3
    assert queue.stats().putters_waiting == 0
    assert [tail.qsize() for tail in tails] == [0 if immediate else 1] * 3


def test_shutdown_while_many_put_and_get_loses_nothing(new):
    """An item is got if its put returned, and is not in the queue if its put raised ShutDown."""
    queue = new()
    tails = [queue.add(key, maxsize=5) for key in range(3)]

    def put_until_shutdown(tail, start):
        done = []
        for item in range(start, start + 100_000):
            try:
                tail.put(item)
            except ShutDown:
                return done
            done.append(item)
        return done

    def get_until_shutdown():
        taken = []
        while True:
            try:
                taken.append(queue.get())
            except ShutDown:
                return taken
            if len(taken) == 500:
                queue.shutdown()

    with Threads() as threads:
        putters = [threads.start(put_until_shutdown, tail, n * 1_000_000) for n, tail in enumerate(tails)]
        getters = [threads.start(get_until_shutdown) for _ in range(3)]
        put = [item for putter in putters for item in putter.result()]
        got = [item for getter in getters for item in getter.result()]
    assert sorted(put) == sorted(got)


def test_looking_around_after_shutdown_works(new, immediate):
    queue = new()
    tail = queue.add("a", maxsize=3)
    tail.put(1)
    queue.shutdown(immediate)
    left = [] if immediate else [1]
    assert list(tail) == left
    assert (1 in tail) is not immediate
    assert queue.qsize() == tail.qsize() == len(left)
    assert tail.discard(1) is not immediate
    assert tail.clear() == 0
    tail.priority, tail.weight, tail.maxsize, tail.enabled = 1, 2, 3, False
    assert queue.remove("a") is tail
    assert queue.stats().subqueues == 0


# ------------------------------------------------------------------------------------------------ task_done and join
def test_join_returns_at_once_when_nothing_was_put(new):
    queue = new()
    assert queue.join() is True
    assert queue.join(0) is True
    queue.add("a")
    assert queue.join(timeout=0.001) is True


def test_join_waits_for_task_done_and_not_for_get(new):
    queue = new()
    tail = queue.add("a")
    tail.put_many([1, 2])
    drain(queue)
    assert queue.join(timeout=0.001) is False
    queue.task_done()
    assert queue.join(0) is False
    queue.task_done()
    assert queue.join() is True


def test_one_task_done_too_many_is_a_value_error(new):
    queue = new()
    with pytest.raises(ValueError, match="task_done"):
        queue.task_done()
    queue.add("a").put(1)
    queue.task_done()  # as in the standard library, the item need not have been got
    for _ in range(2):
        with pytest.raises(ValueError, match="task_done"):
            queue.task_done()
    assert queue.join(0) is True
    assert queue.qsize() == 1


def test_the_last_task_done_wakes_every_join(new):
    queue = new()
    queue.add("a").put_many([1, 2])
    with Threads() as threads:
        joins = [threads.start(queue.join) for _ in range(2)] + [threads.start(queue.join, LONG)]
        joins.append(threads.start(lambda: asyncio.run(queue.ajoin())))
        queue.task_done()
        assert queue.join(0.002) is False
        queue.task_done()
        assert [join.result() for join in joins] == [True, True, True, None]


TAKES_AWAY = {
    "clear": lambda queue, tail: tail.clear(),
    "discard": lambda queue, tail: [tail.discard(item) for item in (1, 2, 3)],
    "remove": lambda queue, tail: queue.remove("a"),
    "shutdown immediate": lambda queue, tail: queue.shutdown(immediate=True),
    "clear after disable": lambda queue, tail: (setattr(tail, "enabled", False), tail.clear()),
    "remove after disable": lambda queue, tail: (setattr(tail, "enabled", False), queue.remove("a")),
}


@pytest.mark.parametrize("take_away", TAKES_AWAY.values(), ids=TAKES_AWAY)
@pytest.mark.parametrize("got", [0, 1])
def test_what_is_taken_away_is_done_once(new, take_away, got):
    queue = new()
    tail = queue.add("a")
    tail.put_many([0] * got + [1, 2, 3])
    for _ in range(got):
        queue.get()
    with Threads() as threads:
        join = threads.start(queue.join)
        assert queue.join(0.002) is False
        take_away(queue, tail)
        assert queue.join(0) is (got == 0)  # an item that was got is still unfinished
        for _ in range(got):
            queue.task_done()
        assert join.result() is True
    with pytest.raises(ValueError, match="task_done"):
        queue.task_done()


def test_items_of_a_disabled_tail_count(new):
    queue = new()
    tail = queue.add("a", enabled=False)
    tail.put(1)
    assert queue.join(0) is False
    tail.enabled = True
    queue.get()
    tail.enabled = False
    assert queue.join(0) is False
    queue.task_done()
    assert queue.join(0) is True


def test_disabling_does_not_end_a_join(new):
    queue = new()
    tail = queue.add("a")
    tail.put(1)
    tail.enabled = False
    assert queue.join(0.001) is False


def test_a_detached_handle_counts_nothing(new):
    queue = new()
    tail = queue.add("a")
    tail.put_many([1, 2, 3])
    queue.add("b").put(4)
    queue.remove("a")
    assert queue.join(0) is False
    assert tail.discard(2)
    assert tail.clear() == 2
    assert queue.join(0) is False  # b's item is unfinished
    queue.task_done()
    assert queue.join(0) is True
    with pytest.raises(ValueError, match="task_done"):
        queue.task_done()


def test_a_failed_put_adds_no_task(new):
    queue = new()
    tail = queue.add("a", maxsize=1)
    tail.put(1)
    with pytest.raises(Full):
        tail.put_nowait(2)
    with pytest.raises(Full):
        tail.put_many([2, 3], timeout=0.001)
    queue.task_done()
    assert queue.join(0) is True


@pytest.mark.parametrize("take_away", TAKES_AWAY.values(), ids=TAKES_AWAY)
def test_what_was_done_before_it_was_got_is_not_done_again_when_it_is_taken_away(new, take_away):
    queue = new()
    tail = queue.add("a")
    tail.put_many([1, 2, 3])
    queue.task_done()
    queue.task_done()
    take_away(queue, tail)
    assert queue.join(0) is True
    with pytest.raises(ValueError, match="task_done"):
        queue.task_done()
    if not queue.is_shutdown:
        queue.add("b").put(4)
        assert queue.join(0) is False
        queue.task_done()
        assert queue.join(0) is True


def test_every_kind_of_put_adds_its_tasks(new):
    queue = new()
    tail = queue.add("a", maxsize=6)
    tail.put(1)
    tail.put_front(2)
    tail.put_nowait(3)
    tail.put_many([4])
    tail.put_many(iter([5]))
    with pytest.raises(Full):
        tail.put_many([6, 7], block=False)  # only 6 goes in
    for _ in range(6):
        assert queue.join(0) is False
        queue.task_done()
    assert queue.join(0) is True
    with pytest.raises(ValueError, match="task_done"):
        queue.task_done()


def test_shutdown_to_drain_leaves_the_tasks(new):
    queue = new()
    queue.add("a").put(1)
    queue.shutdown()
    assert queue.join(0) is False
    queue.get()
    queue.task_done()
    assert queue.join(0) is True


def test_immediate_shutdown_ends_a_join_of_what_was_never_got(new):
    queue = new()
    queue.add("a").put_many([1, 2])
    with Threads() as threads:
        joins = [threads.start(queue.join), threads.start(lambda: asyncio.run(queue.ajoin()))]
        assert queue.join(0.002) is False
        queue.shutdown(immediate=True)
        assert [join.result() for join in joins] == [True, None]


def test_a_peek_finishes_nothing(new):
    queue = new()
    queue.add("a").put(1)
    queue.peek()
    assert queue.join(0) is False


def test_workers_and_join(new_bulk):
    """The usual pattern: workers get and call task_done, the main thread joins. After that all work is done."""
    queue = new_bulk()
    tails = [queue.add(key, maxsize=10) for key in range(4)]
    done = []

    def work():
        while True:
            try:
                items = as_list(queue.get_many(3))
            except ShutDown:
                return
            for item in items:
                done.append(item)
                queue.task_done()

    with Threads() as threads:
        for _ in range(3):
            threads.start(work)
        for item in range(1000):
            tails[item % 4].put(item)
        assert queue.join(LONG) is True
        assert sorted(done) == list(range(1000))
        queue.shutdown()
