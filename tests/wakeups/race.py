"""Wake-up races: rounds in which a wake-up must arrive. A patient waiter, a restless waiter and a waker start as close
together as possible.

In each round the waiters start to wait in a random order, the waker wakes after a random moment, and the round ends
when a waiter has reported that it was woken. The patient waiter waits without a timeout. The restless one tries once
per round and gives up by timeout, cancellation or a signal whose handler raises. If it gives up and keeps the wake-up,
no waiter ever reports: the round hangs, which is how a lost wake-up shows. It does not try again in the same round,
because it would find what the lost wake-up announced.

Reports go through queue.SimpleQueue, so that the test does not rely on what it tests. Deadlines only catch hangs.
"""
import asyncio
import faulthandler
import operator
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import _base
from contextlib import contextmanager
from queue import Empty, Full, SimpleQueue
from typing import Any

from support.threads import DEADLINE, Hang, Threads

from manytail import ClosedError, ShutDown

from .pairs import Pair

WOKEN, GAVE_UP = "woken", "gave up"
OVER = (ShutDown, ClosedError, RuntimeError)  # what shutdown or close makes a wait raise; executors raise RuntimeError
STDLIB = {threading.__file__, _base.__file__}
QUICKLY = 0.0002  # seconds within which a restless waiter gives up
STOP = None
Run = Callable[[Coroutine[Any, Any, Any]], Any]  # runs a coroutine in the event loop of the side's thread


class Interrupted(Exception):
    """Raised by the signal handler."""


def has_taken(error: BaseException) -> bool:
    """Whether a get_many that lingered had taken items when the exception ended it: then it was woken."""
    return bool(getattr(error, "items", None))


def expect(queue: "SimpleQueue[Any]", what: str) -> Any:
    try:
        return queue.get(timeout=DEADLINE)
    except Empty:
        faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
        raise Hang(f"a lost wake-up: nobody {what} within {DEADLINE} s (stacks on stderr)") from None


class Side:
    """A waiter: a queue that tells it to wait. It reports the outcome."""

    def __init__(self) -> None:
        self.orders: SimpleQueue[Any] = SimpleQueue()
        self.going: SimpleQueue[None] = SimpleQueue()  # an item just before it waits
        self.busy = False  # it was told to wait and has not reported; only the waker uses this

    def serve(self, attempt: Callable[[Pair, Run], str], reports: "SimpleQueue[tuple[Side, str]]") -> None:
        with asyncio.Runner() as runner:
            while (pair := self.orders.get()) is not STOP:
                self.going.put(None)
                reports.put((self, attempt(pair, runner.run)))


def once(pair: Pair, call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The outcome of a call that waits. The shutdown, removal or close that it waits for counts as woken."""
    try:
        result = call(*args, **kwargs)
    except OVER:
        return WOKEN
    except (Empty, Full):
        return GAVE_UP
    if result is False:  # a join that gave up
        return GAVE_UP
    pair.took(result)
    return WOKEN


# ------------------------------------------------------------------------------------------------ kinds of waiters
def patient_thread(pair: Pair, run: Run) -> str:
    return once(pair, pair.waiting())


def patient_coroutine(pair: Pair, run: Run) -> str:
    return once(pair, run, awaited(pair))


async def awaited(pair: Pair) -> Any:
    return await pair.waiting_async()()


def timing_out(pair: Pair, run: Run) -> str:
    return once(pair, pair.waiting(), timeout=random.random() * QUICKLY)


def cancelled(pair: Pair, run: Run) -> str:
    async def attempt() -> str:
        task = asyncio.ensure_future(awaited(pair))
        timer = asyncio.get_running_loop().call_later(random.random() * QUICKLY, task.cancel)
        try:
            pair.took(await task)
        except OVER:
            return WOKEN
        except asyncio.CancelledError as error:
            return WOKEN if has_taken(error) else GAVE_UP
        finally:
            timer.cancel()
        return WOKEN

    return run(attempt())


def interrupted(pair: Pair, run: Run) -> str:
    """In the main thread: SIGALRM ends the wait. `extend` over `map` runs no bytecode between the call and the storing
    of its result. So an exception that comes after success is recognised as such."""
    results: list[Any] = []
    waiting = pair.waiting()
    try:
        signal.setitimer(signal.ITIMER_REAL, random.random() * QUICKLY + 1e-6)
        try:
            results.extend(map(operator.call, (waiting,)))
        except OVER:
            results.append(ShutDown)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if has_taken(error):
            return WOKEN
    if results and results[0] is not ShutDown:
        pair.took(results[0])
    return WOKEN if results else GAVE_UP


PATIENT = {"thread": patient_thread, "coroutine": patient_coroutine}
RESTLESS = {"time-outs": timing_out, "cancellations": cancelled, "signals": interrupted}


# ------------------------------------------------------------------------------------------------ the rounds
class Race:
    def __init__(self, pair: Pair, rounds: int) -> None:
        self.pair, self.rounds = pair, rounds
        self.patient, self.restless = Side(), Side()
        self.sides = [self.patient, self.restless]
        self.reports: SimpleQueue[tuple[Side, str]] = SimpleQueue()
        self.woken = {self.patient: 0, self.restless: 0}

    def wake_rounds(self) -> None:
        """What the waker does."""
        try:
            for _ in range(self.rounds):
                self.one_round()
            self.send_home()
        finally:
            for side in self.sides:
                side.orders.put(STOP)

    def one_round(self) -> None:
        self.pair.begin()
        random.shuffle(self.sides)
        for side in self.sides:
            if not side.busy:
                side.busy = True
                side.orders.put(self.pair)
        expect(self.restless.going, "began to wait")
        if random.random() < 0.7:
            # Waits for nothing: varies whether the wake-up comes before, while or after the restless waiter gives up.
            time.sleep(random.random() * 1.5 * QUICKLY)
        assert self.pair.wake() is not False
        woken = self.collect()
        if self.pair.wakes == "one":
            assert woken == 1, f"one wake-up let {woken} waiters go"
        self.pair.end()

    def collect(self) -> int:
        """Wait until the restless waiter has reported, and every waiter that had to be woken."""
        woken = 0
        while self.restless.busy or (self.patient.busy if self.pair.wakes == "all" else woken == 0):
            side, outcome = expect(self.reports, "was let go")
            side.busy = False
            if outcome == WOKEN:
                woken += 1
                self.woken[side] += 1
            else:
                assert side is self.restless, "the patient waiter gave up"
        return woken

    def send_home(self) -> None:
        if self.patient.busy:
            self.pair.begin()
            self.pair.wake()
            side, outcome = expect(self.reports, "was let go at the end")
            assert (side, outcome) == (self.patient, WOKEN)


def race(pair: Pair, rounds: int, patient: str, restless: str) -> Race:
    """Run the rounds. The main thread takes signals: with signals it is the restless waiter, else the waker."""
    played = Race(pair, rounds)
    with Threads() as threads:
        threads.start(played.patient.serve, PATIENT[patient], played.reports)
        if restless == "signals":
            waker = threads.start(played.wake_rounds)
            with raising_alarms():
                played.restless.serve(interrupted, played.reports)
            waker.join()
        else:
            threads.start(played.restless.serve, RESTLESS[restless], played.reports)
            played.wake_rounds()
    return played


@contextmanager
def raising_alarms() -> Any:
    """SIGALRM raises, but only into a call that waits. Elsewhere it could come between a success and its report."""
    assert threading.current_thread() is threading.main_thread()

    def handler(number: int, frame: Any) -> None:
        # submit() makes a Future in Python code, before it does anything.
        while frame is not None and frame.f_code.co_filename in STDLIB:
            frame = frame.f_back
        if frame is not None and frame.f_code is interrupted.__code__:
            raise Interrupted
        while frame is not None:
            if frame.f_code is interrupted.__code__:  # it interrupted a finalizer that ran in there: try again
                signal.setitimer(signal.ITIMER_REAL, QUICKLY)
            frame = frame.f_back

    with handling(signal.SIGALRM, handler):
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def handling(number: int, handler: Any) -> Any:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
