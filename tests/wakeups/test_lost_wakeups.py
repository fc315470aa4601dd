"""No wake-up is lost: each pair of pairs.py, with a patient waiter of each kind and a restless one of each kind.

MANYTAIL_ROUNDS says how many rounds each (default 60, for a second or so; the long run is MANYTAIL_ROUNDS=100000, `make wakeups`).
A build with MANYTAIL_DELAYS=1 stretches the steps between which a wake-up could be lost (`make stress`).
"""
import os
import signal

import pytest
from support.threads import Hang, switching_often

from . import duel as duels
from .duel import duel
from .pairs import PAIRS, Get
from .toys import LosesWakeUps

ROUNDS = int(os.environ.get("MANYTAIL_ROUNDS", "60"))

pytestmark = pytest.mark.thread_unsafe(reason="signals, the switch interval, threads")


@pytest.fixture(autouse=True)
def often():
    with switching_often():
        yield


def kinds():
    for name, pair in PAIRS.items():
        for patient in ("thread", "coroutine"):
            for restless in ("time-outs", "cancellations", "signals"):
                if pair.has_async or (patient, restless) in [("thread", "time-outs"), ("thread", "signals")]:
                    yield pytest.param(pair, patient, restless, id=f"{name}: {patient}, {restless}")


@pytest.mark.parametrize(("pair", "patient", "restless"), list(kinds()))
def test_no_wake_up_is_lost(pair, patient, restless):
    if restless == "signals" and not hasattr(signal, "setitimer"):
        pytest.skip("no interval timers on this platform")
    fight = duel(pair(), ROUNDS, patient, restless)
    assert sum(fight.woken.values()) >= ROUNDS


def test_a_lost_wake_up_is_seen(monkeypatch):
    """The rounds must hang on a queue whose waiters take their wake-up with them when they give up."""
    class Lossy(Get):
        def __init__(self):
            self.queue = self.tail = LosesWakeUps()

    monkeypatch.setattr(duels, "DEADLINE", 2.0)
    pair = Lossy()
    with pytest.raises(Hang, match="lost wake-up"):
        duel(pair, 10_000, "thread", "time-outs")
    pair.queue.release()
