"""The scheduler and its parts, alone and without a clock: what the simulation (tests/simulation) does not draw."""

import math
import re
from collections import deque
from typing import Any

import pytest

from manytail import Batch, Breaker, Budget, Concurrency, Empty, Rate, Retry, RetryLater
from manytail.mapping import _admission
from manytail.mapping._admission import Admission, PriorityLabels
from manytail.mapping._item import Item, ItemBatch, Lane, Unfit
from manytail.mapping._options import Options
from manytail.mapping._scheduler import Kind, Scheduler, Verdict
from manytail.mapping._window import WINDOW_LIMIT


@pytest.mark.parametrize("deferred", [None, 6.0])
def test_a_deferral_without_a_key_pauses_the_rates_of_the_map_for_all_that_keep_them(deferred: float | None) -> None:
    """Also if the item has been deferred for too long. Limits of other kinds do not pause."""
    rates, money, later = (Rate(1e9), Rate(1e9)), Budget(1e9), RetryLater(5)
    scheduler = Scheduler(Options(retry=Retry(0, defer=10), errors="return", limits=(*rates, money)))
    item = Item(0)
    item.deferred, item.deferral = deferred, (1, later)
    dispatched(scheduler, [item])
    _ends_with(scheduler, later)
    assert bool(scheduler.output) is (deferred is not None)
    for limit, starts in ((rates[0], False), (rates[1], False), (money, True)):
        other = Scheduler(Options(limits=(limit,)))
        dispatched(other, [Item(1)])
        other.dispatch(1.0)
        assert other.ready.empty() is not starts
        other.dispatch(5.0)
        assert not other.ready.empty()


def _ends_with(scheduler: Scheduler, error: BaseException) -> None:
    """A worker takes the next call at the time 0, and it raises."""
    call = scheduler.ready.get_nowait()
    call.attempts += 1
    scheduler.failed(call, scheduler.judge(call, error, 0.0), 0.0)


# ---------------------------------------------------------------------------------------------------- deferrals
GATES: list[dict[str, Any]] = [{}, {"limits": (Concurrency(1e9),)}, {"keyed": True}, {"batch": Batch(1)}]
with_and_without_gates = pytest.mark.parametrize("options", GATES, ids=lambda options: ", ".join(options) or "plain")


class Deferring:
    """A map on a virtual clock, whose calls are all deferred at once."""

    def __init__(self, later: RetryLater | None, items: int, **options: Any) -> None:
        self.scheduler = Scheduler(Options(**{"workers": 64, "errors": "return", **options}))
        self.later, self.now, self.calls = later, 0.0, 0
        self.scheduler.assign(made := [Item(number, "key") for number in range(items)])
        self.scheduler.arrived(made, 0.0)

    def start(self) -> list[Any]:
        """The calls that start now."""
        scheduler, started = self.scheduler, []
        while True:
            if scheduler.gate is not None:
                scheduler.dispatch(self.now)
            try:
                call = scheduler.ready.get_nowait()
            except Empty:
                return started
            if scheduler.gate is not None:
                assert not scheduler.gate.late(call, self.now)
            call.attempts += 1
            started.append(call)

    def end(self, call: Any) -> None:
        """The call is deferred."""
        scheduler, self.calls = self.scheduler, self.calls + 1
        if isinstance(call, ItemBatch):
            verdicts = scheduler.judge_batch(call, self.later, 0.0)
            assert isinstance(verdicts, list)
            scheduler.returned(call, verdicts, self.now)
        else:
            scheduler.failed(call, scheduler.judge(call, self.later, 0.0), self.now)

    def run(self, until: float) -> None:
        while self.now < until:
            while calls := self.start():
                for call in calls:
                    self.end(call)
                if self.calls > 5_000 or self.scheduler.halted:
                    return
            if self.scheduler.wake_at == math.inf:
                return
            self.now = max(self.now, self.scheduler.wake_at)
            self.scheduler.tick(self.now)


@with_and_without_gates
@pytest.mark.parametrize("backoff", [0.0, 0.1, lambda attempt, error: 0.0], ids=["none", "number", "function"])
def test_a_server_that_asks_for_no_wait_for_ever_is_not_asked_for_ever(options: Any, backoff: Any) -> None:
    """The waits double."""
    world = Deferring(RetryLater(0), 3, retry=Retry(0, backoff=backoff), **options)
    world.run(60)
    assert 3 * 4 <= world.calls <= 3 * 20


@with_and_without_gates
def test_within_ends_what_is_deferred_for_ever(options: Any) -> None:
    world = Deferring(RetryLater(0), 3, retry=Retry(9, within=5), **options)
    world.run(math.inf)
    assert 3 * 3 <= world.calls <= 3 * 7
    assert [item.error for item in world.scheduler.output] == [world.later] * 3


def test_an_item_that_was_deferred_is_not_called_when_its_time_is_over() -> None:
    """It waited for a worker."""
    world = Deferring(RetryLater(1), 1, retry=Retry(0, within=5))
    (call,) = world.start()
    world.end(call)
    world.now = 6.0
    world.scheduler.tick(6.0)
    assert not world.start()
    assert [item.error for item in world.scheduler.output] == [world.later]


@with_and_without_gates
def test_a_wait_that_alone_is_too_long_pauses_nothing(options: Any) -> None:
    rate, days = Rate(1e9), 1_382_400.0
    limits = (*options.get("limits", ()), rate)
    world = Deferring(RetryLater(days), 5, retry=Retry(0), **{**options, "limits": limits})
    (call,) = world.start()
    world.end(call)
    world.now = 1.0
    world.scheduler.tick(1.0)
    assert world.start(), "the next call starts"
    (failed,) = world.scheduler.output
    assert failed.error is world.later
    (note,) = world.later.__notes__
    assert re.search(r"called again in 1.3824e\+06 s, at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC .*600 s of defer", note)
    other = Scheduler(Options(limits=(rate,)))
    dispatched(other, [Item(1)])
    other.dispatch(1.0 + 1e-6)
    assert not other.ready.empty()


@with_and_without_gates
def test_a_map_in_which_nothing_but_deferrals_happens_ends(options: Any) -> None:
    """Without that it would take `defer` seconds for each window of items."""
    world = Deferring(RetryLater(7), 500, retry=Retry(0, defer=100), **options)
    world.run(10_000)
    assert 100 <= world.now <= 130
    assert world.scheduler.error is world.later
    assert world.scheduler.halted


def test_what_else_happens_among_deferrals_keeps_a_map_going() -> None:
    world = Deferring(RetryLater(7), 30, retry=Retry(0, defer=100))
    calls = world.start()
    for now in range(0, 500, 50):
        world.now = float(now)
        world.end(calls.pop())
        world.scheduler.succeeded(calls.pop())
    assert not world.scheduler.halted
    for _ in range(3):
        world.now += 51.0
        assert not world.scheduler.halted
        world.end(calls.pop())
    assert world.scheduler.halted


def test_a_caller_does_not_end_because_of_deferrals() -> None:
    scheduler, later = Scheduler(Options(retry=Retry(0, defer=1), errors="return"), shared=True), RetryLater(0.9)
    for now in range(0, 200, 20):
        item = Item(now)
        scheduler.tick(now)
        scheduler.assign([item])
        scheduler.arrived([item], now)
        scheduler.failed(scheduler.ready.get_nowait(), scheduler.judge(item, later, 0.0), now)
        scheduler.tick(now + 9.5)
        call = scheduler.ready.get_nowait()
        scheduler.failed(call, scheduler.judge(item, later, 0.0), now + 9.5)
    assert not scheduler.halted
    assert scheduler.failures == 10


def test_a_key_that_pauses_is_kept_though_it_has_no_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_admission, "IDLE_LIMIT", 1)
    scheduler, later = Scheduler(Options(keyed=True, errors="return", retry=Retry(0, defer=6))), RetryLater(4)
    failed = Item(0, "a")
    failed.deferred, failed.deferral = 4.0, (1, later)
    scheduler.assign([failed])
    scheduler.arrived([failed], 0.0)
    scheduler.failed(scheduler.ready.get_nowait(), scheduler.judge(failed, later, 0.0), 0.0)
    assert failed.done
    again = [*(Item(number, number) for number in range(5)), Item(5, "a")]
    scheduler.assign(again)
    scheduler.arrived(again, 1.0)
    assert {scheduler.ready.get_nowait().key for _ in range(5)} == set(range(5))
    assert scheduler.ready.empty()


@with_and_without_gates
def test_starts_after_a_pause_are_spread(options: Any) -> None:
    """Over a tenth of it, a second at most, and none comes early."""
    for seconds, spread in ((5.0, 0.5), (50.0, 1.0)):
        world = Deferring(RetryLater(seconds), 128, retry=Retry(0), **options)
        for call in world.start():
            world.end(call)
        begin, started = world.now + seconds, 0
        starts: list[float] = []
        while len(starts) < 64:
            world.now = world.scheduler.wake_at
            world.scheduler.tick(world.now)
            starts += [world.now] * len(world.start())
        assert starts[0] == begin
        for number, at in enumerate(starts):
            assert begin + spread * number / 64 - 1e-6 <= at <= begin + spread * (number + 1) / 64 + 1e-6
        world.now = begin + spread
        world.scheduler.tick(world.now)
        started = len(world.start())
        assert 64 + started == (64 if world.scheduler.gate is not None else 128)


def test_a_rate_spreads_starts_by_itself() -> None:
    world = Deferring(RetryLater(50), 8, retry=Retry(0), limits=(Rate(1e9),))
    world.end(world.start()[0])
    world.now = 50.0
    world.scheduler.tick(50.0)
    assert len(world.start()) == 8


def test_a_pause_that_begins_while_starts_are_spread_holds_for_all() -> None:
    world = Deferring(RetryLater(5), 128, retry=Retry(0))
    first, *others = world.start()
    for call in others:
        world.end(call)
    world.scheduler.tick(5.25)  # half of them may start, and no worker has come
    world.now = 5.25
    world.end(first)
    assert not world.start()
    world.now = 10.25
    world.scheduler.tick(world.now)
    assert len(world.start()) == 1


def dispatched(scheduler: Scheduler, items: list[Item]) -> None:
    scheduler.assign(items)
    scheduler.arrived(items, 0.0)
    scheduler.dispatch(0.0)


def test_the_window_grows_for_look_ups_up_to_its_limit() -> None:
    scheduler = Scheduler(Options(workers=16, batch=Batch(100)))
    while scheduler.grow_for_lookups():
        assert scheduler.room() > 0
    assert scheduler.window.size == WINDOW_LIMIT


def test_a_recorded_result_is_no_success_for_the_breaker() -> None:
    scheduler = Scheduler(Options(batch=Batch(2), breaker=Breaker(1, reset=60), errors="return"))
    items = [Item("known"), Item("called")]
    dispatched(scheduler, items)
    batch = scheduler.ready.get_nowait()
    items[0].known, items[0].result = True, "recorded"
    batch.result = batch.with_known([OSError()])
    scheduler.returned(batch, scheduler.judge_results(batch, 0.0), 0.0)
    assert batch.lane.limits.breaker.is_open(1.0)


def test_a_call_that_a_worker_has_taken_does_not_begin_while_its_key_pauses() -> None:
    scheduler = Scheduler(Options(limits=[Rate(1e9)], workers=2, errors="return"))
    items = [Item("defers"), Item("taken")]
    dispatched(scheduler, items)
    scheduler.dispatch(1.0)  # the second slot
    taken = [scheduler.ready.get_nowait() for _ in items]
    scheduler.failed(taken[0], Verdict(Kind.DEFER, 5.0), 1.0)
    assert scheduler.gate is not None
    assert scheduler.gate.late(taken[1], 1.0)


def mixed_batch() -> tuple[ItemBatch, Item, Item]:
    """A batch with an item that fn gets, one whose result was recorded, one that the budget refused, and one whose
    recorded result cannot be read. Returns it with the last two."""
    items = [Item(name) for name in ("called", "known", "refused", "unreadable")]
    _, known, refused, unreadable = items
    known.known, known.result = True, "recorded"
    unreadable.error = ValueError("unreadable")
    for item in items:
        item.lane = Lane(None, 1, [])
    batch = ItemBatch(items)
    refused.error = OSError("refused")
    return batch, refused, unreadable


def test_what_becomes_of_a_batch_is_that_of_the_items_that_fn_got() -> None:
    batch, refused, unreadable = mixed_batch()
    others = [None, Verdict(Kind.FAIL, error=refused.error), Verdict(Kind.FAIL, error=unreadable.error)]
    scheduler = Scheduler(Options(batch=Batch(4), retry=Retry(1)))
    late = TimeoutError()
    assert scheduler.lost(batch, late) == [Verdict(Kind.FAIL, error=late), *others]
    later, error = RetryLater(5), OSError()
    assert scheduler.judge_batch(batch, later, 0.0) == [Verdict(Kind.DEFER, 5, later), *others]
    batch.result = Unfit(wrong := ValueError())
    assert scheduler.judge_results(batch, 0.0) == [Verdict(Kind.FAIL, error=wrong), *others]
    deferring = Scheduler(Options(batch=Batch(4), retry=Retry(0, lambda error: RetryLater(5))))
    assert deferring.judge_batch(batch, error, 0.0) == [Verdict(Kind.DEFER, 5, error), *others]


# ---------------------------------------------------------------------------------------------------- within
def within(seconds: float) -> Scheduler:
    """A scheduler of batches of two, with one worker. Attempts are a second apart."""
    retry = Retry(9, backoff=lambda attempt, error: 1.0, within=seconds)
    return Scheduler(Options(retry=retry, workers=1, errors="return", batch=Batch(2)))


def attempt(scheduler: Scheduler, now: float) -> None:
    """A worker takes the next batch, whose call fails at once."""
    scheduler.tick(now)
    scheduler.dispatch(now)
    batch = scheduler.ready.get_nowait()
    assert scheduler.gate is not None
    assert not scheduler.gate.late(batch, now)
    batch.attempts += 1
    verdict = scheduler.judge_batch(batch, OSError(now), 0.0)
    if isinstance(verdict, list):
        scheduler.returned(batch, verdict, now)
    else:
        scheduler.failed(batch, verdict, now)


def test_the_items_of_a_batch_have_the_time_of_their_own_first_attempt() -> None:
    scheduler, items = within(2.5), [Item(0), Item(1)]
    dispatched(scheduler, items)
    for now in (0.0, 1.0, 2.0):
        attempt(scheduler, now)
    assert not scheduler.output  # the batch has failed for good: each half is called
    attempt(scheduler, 2.1)
    attempt(scheduler, 2.2)
    assert list(scheduler.output) == items
    assert [(item.error.args, item.attempts) for item in items] == [((2.1,), 4), ((2.2,), 4)]


@pytest.mark.parametrize("late", [2.4, 2.6])
def test_a_half_of_a_batch_that_starts_too_late_is_not_called(late: float) -> None:
    scheduler, items = within(2.5), [Item(0), Item(1)]
    dispatched(scheduler, items)
    for now in (0.0, 1.0, 2.0):
        attempt(scheduler, now)
    scheduler.dispatch(late)
    assert scheduler.ready.qsize() == (1 if late < 2.5 else 0)
    assert list(scheduler.output) == ([] if late < 2.5 else items)


# ---------------------------------------------------------------------------------------------------- handing over
def end(scheduler: Scheduler, item: Item, now: float) -> None:
    """A worker reports the end of the call, and asks for the next one."""
    assert scheduler.gate is not None
    assert not scheduler.gate.late(item, now)
    scheduler.gate.hands_over = True
    scheduler.succeeded(item, now)
    scheduler.dispatch(now)


def test_a_call_is_handed_over_only_where_none_waits_before_it() -> None:
    scheduler = Scheduler(Options(limits=(Concurrency(9),), workers=2))
    gate, items = scheduler.gate, [Item(value) for value in range(6)]
    assert gate is not None
    dispatched(scheduler, items)
    end(scheduler, scheduler.ready.get_nowait(), 0.0)
    assert gate.handed is None, "item 1 is in the queue, and starts before item 2"
    first, second = scheduler.ready.get_nowait(), scheduler.ready.get_nowait()
    assert [first, second] == items[1:3]
    end(scheduler, first, 0.0)
    assert gate.handed is items[3]
    assert scheduler.ready.empty()


def test_of_several_calls_that_start_the_first_is_handed_over() -> None:
    scheduler = Scheduler(Options(limits=(Concurrency(9),), workers=2))
    gate, items = scheduler.gate, [Item(value) for value in range(4)]
    assert gate is not None
    dispatched(scheduler, items)
    first, second = scheduler.ready.get_nowait(), scheduler.ready.get_nowait()
    assert not gate.late(first, 0.0)
    scheduler.succeeded(first, 0.0)
    end(scheduler, second, 0.0)
    assert gate.handed is items[2]
    assert scheduler.ready.get_nowait() is items[3]


# ---------------------------------------------------------------------------------------------------- admission
def test_the_reader_may_assign_a_new_key_while_the_deadline_drains() -> None:
    """The simulation runs one event at a time and cannot show that."""
    admission = Admission(per_key=1, keyed=True, prioritised=False, in_order=False)

    class Meanwhile(deque[Any]):
        def clear(self) -> None:
            admission.assign([Item("new", key="another")])
            super().clear()

    items = [Item(number, key="one") for number in range(3)]
    admission.assign(items)
    items[0].lane.waiting = Meanwhile()
    admission.admit(items)
    assert {item.value for item in admission.drain()} == {0, 1, 2}


class Queue:
    priority = 0


def test_labels_stay_in_the_range_of_a_c_int() -> None:
    """Ever more urgent rows: the labels reach the lower limit and are assigned anew."""
    labels = PriorityLabels()
    queues = [Queue() for _ in range(40_000)]
    for number, queue in enumerate(queues):
        queue.priority = labels.label(-number)
        labels.join(-number, queue)
    given = [queue.priority for queue in queues]
    assert given == sorted(set(given), reverse=True)
    assert -(2**31) < given[-1] < given[0] < 2**31


@pytest.mark.parametrize("sign", [-1, 1])
def test_labels_keep_their_order_while_they_are_assigned_anew(sign: int) -> None:
    """Workers take in between."""
    labels = PriorityLabels()
    used: deque[Any] = deque()

    class Watched:
        given = 0

        @property
        def priority(self) -> int:
            return self.given

        @priority.setter
        def priority(self, label: int) -> None:
            self.given = label
            order = [queue.given for queue in used]
            assert order == sorted(set(order), reverse=sign < 0)

    for number in range(40_000):
        queue = Watched()
        queue.given = labels.label(sign * number)
        labels.join(sign * number, queue)
        used.append(queue)
        if number >= 10:
            labels.leave(sign * (number - 10), used.popleft())
