"""Both kinds of shutdown of several sub-queues, and the accounting of unfinished tasks: task_done, join, ajoin.

tests/contract/test_shutdown.py has what holds for every structure.
"""
import asyncio

import pytest
from support.threads import DEADLINE, LONG, Threads

from manytail import ShutDown


@pytest.fixture(params=[False, True], ids=["drain", "immediate"])
def immediate(request):
    return request.param


# ------------------------------------------------------------------------------------------------ shutdown


def test_calls_that_do_not_wait_are_shutdown_and_neither_empty_nor_full(new, immediate):
    queue = new()
    tail = queue.add("a", maxsize=1)
    tail.put(1)
    queue.shutdown(immediate)
    for put in (tail.put_nowait, tail.put_front):
        with pytest.raises(ShutDown):
            put(9)
    tail.clear()
    with pytest.raises(ShutDown):
        queue.get_nowait()


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


def test_gets_drain_by_priority_and_pass_over_what_is_disabled(new):
    queue = new()
    queue.add("a").put_many([1, 2])
    queue.add("b", priority=-1).put(0)
    queue.add("hidden", enabled=False).put(7)
    queue.shutdown()
    assert queue.peek() == 0
    assert [queue.get(), queue.get(timeout=DEADLINE), queue.get_nowait()] == [0, 1, 2]
    with pytest.raises(ShutDown):
        queue.get()


def test_immediate_shutdown_empties_all(new):
    queue = new()
    tails = [queue.add("a"), queue.add("hidden", enabled=False), queue.add("b", priority=3, maxsize=2)]
    for tail in tails:
        tail.put_many([1, 2])
    queue.shutdown(immediate=True)
    assert queue.qsize() == 0
    assert [(tail.qsize(), list(tail)) for tail in tails] == [(0, [])] * 3


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


def test_immediate_shutdown_ends_a_join_of_what_was_never_got(new):
    queue = new()
    queue.add("a").put_many([1, 2])
    with Threads() as threads:
        joins = [threads.start(queue.join), threads.start(lambda: asyncio.run(queue.ajoin()))]
        assert queue.join(0.002) is False
        queue.shutdown(immediate=True)
        assert [join.result() for join in joins] == [True, None]
