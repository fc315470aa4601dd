"""What a multi-queue refuses after a shutdown, and items that are done before they are got.

test_multiqueue_model.py has the rest, tests/contract/test_shutdown.py what holds for every structure.
"""

import pytest

from manytail import ShutDown


@pytest.fixture(params=[False, True], ids=["drain", "immediate"])
def immediate(request):
    return request.param


# ------------------------------------------------------------------------------------------------ shutdown


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


# ------------------------------------------------------------------------------------------------ task_done and join


TAKES_AWAY = {
    "clear": lambda queue, tail: tail.clear(),
    "discard": lambda queue, tail: [tail.discard(item) for item in (1, 2, 3)],
    "remove": lambda queue, tail: queue.remove("a"),
    "shutdown immediate": lambda queue, tail: queue.shutdown(immediate=True),
    "clear after disable": lambda queue, tail: (setattr(tail, "enabled", False), tail.clear()),
    "remove after disable": lambda queue, tail: (setattr(tail, "enabled", False), queue.remove("a")),
}


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
