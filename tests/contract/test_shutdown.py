"""What is left to do after a shutdown, of every structure. tests/contract/test_async.py has the waits that it ends."""
import asyncio

import pytest
from support.threads import DEADLINE, LONG

from contract.structures import ENDED
from contract.test_interrupts import WAITS, wait
from manytail import ShutDown

__all__ = ["wait"]  # a fixture: a structure and a call that waits on it
pytestmark = pytest.mark.thread_unsafe(reason="each test has one structure")


@pytest.fixture(params=[False, True], ids=["drain", "immediate"])
def immediate(request):
    return request.param


@pytest.mark.parametrize("wait", [name for name in WAITS if "join" not in name], indirect=True)
def test_every_call_is_shutdown_and_neither_empty_nor_full(wait, immediate):
    on, call = wait
    on.shutdown(immediate)
    before = on.inside()
    for way in ({}, {"block": False}, {"timeout": LONG}):
        with pytest.raises(ShutDown):
            call(on, **way)
    assert on.inside() == before


def test_every_coroutine_is_shutdown_and_a_join_has_ended(new_call):
    call = new_call()
    call.end()
    if call.wakes_all:
        assert asyncio.run(call()) is None
    else:
        with pytest.raises(ENDED):
            asyncio.run(call())


def test_what_is_in_can_be_got(structure):
    on = structure()
    on.put_many([1, 2, 3])
    assert not on.queue.is_shutdown
    on.shutdown()
    on.shutdown()
    assert on.queue.is_shutdown
    assert [on.get(), on.get(timeout=DEADLINE), on.get(block=False)] == [1, 2, 3]
    for _ in range(2):
        with pytest.raises(ShutDown):
            on.get()


def test_an_immediate_one_takes_all_away(structure):
    on = structure()
    on.put_many([1, 2, 3])
    on.shutdown(immediate=True)
    assert on.inside() == 0
    for get in (on.get, lambda: on.get_many(3)):
        with pytest.raises(ShutDown):
            get()
