"""Timeouts of every call of every structure that waits: which are refused, which run out, which never do."""
import math
import sys
from queue import Empty, Full

import pytest
from support.threads import Threads, wait_asleep

from contract.structures import ENDED
from contract.test_interrupts import WAITS, wait

__all__ = ["wait"]  # a fixture: a structure and a call that waits on it
BAD = [
    *((ValueError, timeout) for timeout in (-1, -0.001, -math.inf, math.nan, -(10**400))),
    *((TypeError, timeout) for timeout in ("1", object(), [1], 1j)),
]
pytestmark = pytest.mark.thread_unsafe(reason="each test has one structure")
BUT_JOIN = [name for name in WAITS if "join" not in name]


def let_go_on(on):
    """The call need not wait."""
    if on.inside():
        on.drain()
    else:
        on.put(1)


def test_a_bad_timeout_is_refused_by_name(wait):
    """Also where the call need not wait."""
    on, call = wait
    for let in (lambda on: None, let_go_on):
        let(on)
        before = on.inside()
        for error, timeout in BAD:
            with pytest.raises(error, match=f"(?s)timeout.*{timeout}" if error is ValueError else "timeout"):
                call(on, timeout=timeout)
            assert on.inside() == before


@pytest.mark.parametrize("wait", BUT_JOIN, indirect=True)
@pytest.mark.parametrize("timeout", [None, 0, -1, math.nan, math.inf, 1e300, "1", 1j], ids=str)
def test_without_blocking_the_timeout_is_ignored(wait, timeout):
    on, call = wait
    with pytest.raises((Empty, Full)):
        call(on, block=False, timeout=timeout)
    let_go_on(on)
    before = on.inside()
    call(on, block=False, timeout=timeout)
    assert abs(on.inside() - before) == 1


def test_a_short_timeout_runs_out(wait):
    on, call = wait
    before = on.inside()
    for timeout in (0, 0.0, -0.0, 1e-300, 0.003):
        try:
            assert call(on, timeout=timeout) is False, "only a join returns"
        except (Empty, Full):
            assert on.inside() == before


@pytest.mark.parametrize("wait", BUT_JOIN, indirect=True)
@pytest.mark.parametrize("timeout", [None, math.inf, 1e300, 2**80, pytest.param(10**400, id="10**400"), sys.maxsize])
def test_an_endless_or_huge_timeout_waits(wait, timeout):
    on, call = wait
    with Threads() as threads:
        waits = threads.start(call, on, timeout=timeout)
        wait_asleep(waits)
        assert waits.is_alive()
        on.shutdown(immediate=True)
        assert isinstance(waits.outcome(), ENDED)
