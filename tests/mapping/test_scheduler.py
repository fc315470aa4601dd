"""The scheduler and its parts, alone and without a clock: what the simulation (tests/simulation) does not draw."""

from collections import deque
from typing import Any

import pytest

from manytail import Batch, Breaker, Budget, Concurrency, Rate, Retry, RetryLater
from manytail.mapping._admission import Admission, PriorityLabels
from manytail.mapping._item import Item, ItemBatch, Lane, Unfit
from manytail.mapping._options import Options
from manytail.mapping._scheduler import Kind, Scheduler, Verdict
from manytail.mapping._window import WINDOW_LIMIT


@pytest.mark.parametrize("defer", [1.0, 600.0])
def test_a_deferral_without_a_key_pauses_the_rates_of_the_map_for_all_that_keep_them(defer: float) -> None:
    """Also if the item has been deferred for too long. Limits of other kinds do not pause."""
    rates, money, later = (Rate(1e9), Rate(1e9)), Budget(1e9), RetryLater(5)
    scheduler = Scheduler(Options(retry=Retry(0, defer=defer), errors="return", limits=(*rates, money)))
    dispatched(scheduler, [Item(0)])
    _ends_with(scheduler, later)
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
    assert scheduler.judge_batch(batch, RetryLater(5), 0.0) == [Verdict(Kind.DEFER, 5), *others]
    batch.result = Unfit(wrong := ValueError())
    assert scheduler.judge_results(batch, 0.0) == [Verdict(Kind.FAIL, error=wrong), *others]
    deferring = Scheduler(Options(batch=Batch(4), retry=Retry(0, lambda error: RetryLater(5))))
    assert deferring.judge_batch(batch, OSError(), 0.0) == [Verdict(Kind.DEFER, 5), *others]


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
