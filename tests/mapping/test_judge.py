"""What follows from an exception: `Scheduler.judge` and the options that it obeys, without a clock."""

import pytest

import manytail
from manytail import Breaker, Budget, Rate, Retry, RetryLater
from manytail.mapping._admission import Lane
from manytail.mapping._item import Batch, Item, Unfit
from manytail.mapping._options import Options
from manytail.mapping._scheduler import WINDOW_LIMIT, Kind, Scheduler, Verdict


def judge(
    attempt: int,
    error: BaseException,
    chance: float = 0.999_999_999_999,
    deferred: float | None = None,
    **options: object,
) -> Verdict:
    item = Item("item")
    item.attempts, item.deferred = attempt, deferred
    return Scheduler(Options(**options)).judge(item, error, chance)  # type: ignore[arg-type]


def test_a_float_backoff_doubles_up_to_max_backoff() -> None:
    waits = [
        judge(attempt, OSError(), retry=Retry(2_000, backoff=0.5, max_backoff=3)).seconds
        for attempt in (1, 2, 3, 4, 2_000)
    ]
    assert waits == pytest.approx([0.5, 1, 2, 3, 3])


def test_a_wait_is_spread_from_half_to_all_of_it() -> None:
    assert judge(1, OSError(), chance=0.0, retry=Retry(1, backoff=4)).seconds == 2
    assert judge(1, OSError(), chance=0.5, retry=Retry(1, backoff=4)).seconds == 3


def test_a_callable_backoff_gets_attempt_and_error_and_is_taken_as_it_is() -> None:
    error = OSError("busy")
    asked = []

    def backoff(attempt: int, raised: BaseException) -> float:
        asked.append((attempt, raised))
        return 1_000

    assert judge(3, error, chance=0.0, retry=Retry(3, backoff=backoff, max_backoff=1)) == Verdict(
        Kind.RETRY, 1_000, error
    )
    assert asked == [(3, error)]


def test_retries_are_used_up() -> None:
    error = OSError()
    assert judge(2, error, retry=Retry(1)) == Verdict(Kind.FAIL, error=error)


def test_retry_later_uses_up_no_retry() -> None:
    assert judge(1, RetryLater(5), retry=Retry(0)) == Verdict(Kind.DEFER, 5)


def test_deferrals_add_up_to_defer() -> None:
    assert judge(1, RetryLater(5), deferred=5, retry=Retry(0, defer=10)).kind is Kind.DEFER
    assert judge(1, RetryLater(5), deferred=5.1, retry=Retry(0, defer=10)).kind is Kind.FAIL


def test_an_on_that_answers_with_retry_later_defers_the_item() -> None:
    def on(error: BaseException) -> RetryLater:
        return RetryLater(7)

    error = OSError()
    assert judge(1, error, retry=Retry(0, on)) == Verdict(Kind.DEFER, 7)
    assert judge(9, error, retry=Retry(3, on)) == Verdict(Kind.DEFER, 7)  # it uses up no retry
    assert judge(1, error, deferred=5, retry=Retry(0, on, defer=10)) == Verdict(Kind.FAIL, 7, error, pauses=True)
    failed = judge(1, error, retry=Retry(0, lambda error: RetryLater(-1)))
    assert isinstance(failed.error, ValueError)
    assert failed.error.__cause__ is error


def test_an_on_is_asked_after_the_last_attempt_too() -> None:
    error = OSError()
    assert judge(2, error, retry=Retry(1, lambda error: True)) == Verdict(Kind.FAIL, error=error)
    assert judge(2, error, retry=Retry(1, lambda error: RetryLater(1))).kind is Kind.DEFER


def test_an_on_defers_the_items_of_a_batch_that_fn_got() -> None:
    batch, (called, _, refused, unreadable) = mixed_batch()
    error = OSError()
    scheduler = Scheduler(Options(batch=manytail.Batch(4), retry=Retry(0, lambda error: RetryLater(5), defer=8)))
    others = [None, Verdict(Kind.FAIL, error=refused.error), Verdict(Kind.FAIL, error=unreadable.error)]
    assert scheduler.judge_batch(batch, error, 0.0) == [Verdict(Kind.DEFER, 5), *others]
    called.deferred = 5.0
    assert scheduler.judge_batch(batch, error, 0.0) == [Verdict(Kind.FAIL, 5, error, pauses=True), *others]


def test_an_item_that_was_deferred_for_too_long_fails_and_its_key_pauses() -> None:
    scheduler = Scheduler(Options(retry=Retry(0, defer=1), errors="return"))
    items, later = [Item(0), Item(1)], RetryLater(5)
    scheduler.assign(items)
    scheduler.arrived(items, 0.0)
    _ends_with(scheduler, later)
    assert list(scheduler.output) == [items[0]]
    assert items[0].error is later
    assert scheduler.wake_at == 5.0
    with pytest.raises(manytail.Empty):
        scheduler.ready.get_nowait()
    scheduler.tick(5.0)
    assert scheduler.ready.get_nowait() is items[1]


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


@pytest.mark.parametrize("defer", [1.0, 600.0])
def test_a_deferral_of_a_key_pauses_nothing_but_its_calls(defer: float) -> None:
    rate = Rate(1e9)
    scheduler = Scheduler(Options(retry=Retry(0, defer=defer), errors="return", limits=(rate,), keyed=True))
    dispatched(scheduler, [Item(0, "a"), Item(1, "a"), Item(2, "b")])
    _ends_with(scheduler, RetryLater(5))
    scheduler.dispatch(1.0)
    assert [scheduler.ready.get_nowait().key, scheduler.ready.empty()] == ["b", True]


def _ends_with(scheduler: Scheduler, error: BaseException) -> None:
    """A worker takes the next call at the time 0, and it raises."""
    call = scheduler.ready.get_nowait()
    call.attempts += 1
    scheduler.failed(call, scheduler.judge(call, error, 0.0), 0.0)


def test_a_predicate_that_raises_fails_the_item_with_what_it_raised() -> None:
    def on(error: BaseException) -> bool:
        raise SystemExit(4)

    error = OSError()
    verdict = judge(1, error, retry=Retry(1, on))
    assert verdict.kind is Kind.FAIL
    assert isinstance(verdict.error, SystemExit)
    assert verdict.error.__cause__ is error


def mixed_batch() -> tuple[Batch, list[Item]]:
    """A batch with an item that fn gets, one whose result was recorded, one that the budget refused, and one whose
    recorded result cannot be read."""
    items = [Item(name) for name in ("called", "known", "refused", "unreadable")]
    called, known, refused, unreadable = items
    known.known, known.result = True, "recorded"
    unreadable.error = ValueError("unreadable")
    for item in items:
        item.lane = Lane(None, 1, [])
    batch = Batch(items)
    refused.error = OSError("refused")
    return batch, [called, known, refused, unreadable]


def test_retry_later_of_a_batch_defers_the_items_that_fn_got() -> None:
    batch, (called, known, refused, unreadable) = mixed_batch()
    verdicts = Scheduler(Options(batch=manytail.Batch(4), retry=Retry(1))).judge_batch(batch, RetryLater(5), 0.0)
    assert verdicts == [
        Verdict(Kind.DEFER, 5),
        None,
        Verdict(Kind.FAIL, error=refused.error),
        Verdict(Kind.FAIL, error=unreadable.error),
    ]
    assert (called.result, known.result) == (None, "recorded")


def test_a_batch_that_runs_out_of_time_fails_the_items_that_fn_got() -> None:
    batch, (_, _, refused, unreadable) = mixed_batch()
    late = TimeoutError()
    assert Scheduler(Options(batch=manytail.Batch(4))).lost(batch, late) == [
        Verdict(Kind.FAIL, error=late),
        None,
        Verdict(Kind.FAIL, error=refused.error),
        Verdict(Kind.FAIL, error=unreadable.error),
    ]


def test_a_result_of_the_wrong_length_fails_the_items_that_fn_got() -> None:
    batch, (_, _, refused, unreadable) = mixed_batch()
    batch.result = Unfit(wrong := ValueError())
    assert Scheduler(Options(batch=manytail.Batch(4))).judge_results(batch, 0.0) == [
        Verdict(Kind.FAIL, error=wrong),
        None,
        Verdict(Kind.FAIL, error=refused.error),
        Verdict(Kind.FAIL, error=unreadable.error),
    ]


def dispatched(scheduler: Scheduler, items: list[Item]) -> None:
    scheduler.assign(items)
    scheduler.arrived(items, 0.0)
    scheduler.dispatch(0.0)


def test_a_call_that_a_worker_has_taken_does_not_begin_when_its_breaker_has_opened() -> None:
    scheduler = Scheduler(Options(breaker=Breaker(1, reset=60), workers=2, errors="return"))
    items = [Item("fails"), Item("taken")]
    dispatched(scheduler, items)
    taken = [scheduler.ready.get_nowait() for _ in items]
    assert scheduler.gate is not None
    assert not scheduler.gate.late(taken[1], 0.0)
    scheduler.failed(taken[0], Verdict(Kind.FAIL, error=OSError()), 0.0)
    assert scheduler.gate.late(taken[1], 0.0)
    scheduler.missed(taken[1], 0.0)
    scheduler.tick(60.0)
    scheduler.dispatch(60.0)
    probe = scheduler.ready.get_nowait()
    assert probe is taken[1]
    assert not scheduler.gate.late(probe, 60.0)


def test_a_call_that_a_worker_has_taken_does_not_begin_while_its_key_pauses() -> None:
    scheduler = Scheduler(Options(limits=[Rate(1e9)], workers=2, errors="return"))
    items = [Item("defers"), Item("taken")]
    dispatched(scheduler, items)
    scheduler.dispatch(1.0)  # the second slot
    taken = [scheduler.ready.get_nowait() for _ in items]
    scheduler.failed(taken[0], Verdict(Kind.DEFER, 5.0), 1.0)
    assert scheduler.gate is not None
    assert scheduler.gate.late(taken[1], 1.0)


def test_the_window_grows_for_look_ups_up_to_its_limit() -> None:
    scheduler = Scheduler(Options(workers=16, batch=manytail.Batch(100)))
    while scheduler.grow_for_lookups():
        assert scheduler.room() > 0
    assert scheduler.window == WINDOW_LIMIT


def test_a_recorded_result_is_no_success_for_the_breaker() -> None:
    scheduler = Scheduler(Options(batch=manytail.Batch(2), breaker=Breaker(1, reset=60), errors="return"))
    items = [Item("known"), Item("called")]
    dispatched(scheduler, items)
    batch = scheduler.ready.get_nowait()
    items[0].known, items[0].result = True, "recorded"
    batch.result = batch.with_known([OSError()])
    scheduler.returned(batch, scheduler.judge_results(batch, 0.0), 0.0)
    assert batch.lane.limits.breaker.is_open(1.0)


# ---------------------------------------------------------------------------------------------------- within
def within(seconds: float, backoff: float = 1.0, **options: object) -> Scheduler:
    retry = Retry(9, backoff=lambda attempt, error: backoff, within=seconds)
    return Scheduler(Options(retry=retry, workers=1, errors="return", **options))  # type: ignore[arg-type]


def attempt(scheduler: Scheduler, now: float) -> Item:
    """A worker takes the next call, which fails at once."""
    scheduler.tick(now)
    scheduler.dispatch(now)
    call: Item = scheduler.ready.get_nowait()
    assert scheduler.gate is not None
    assert not scheduler.gate.late(call, now)
    error = OSError(now)
    if isinstance(call, Batch):
        call.attempts += 1
        verdict = scheduler.judge_batch(call, error, 0.0)
        if isinstance(verdict, list):
            scheduler.returned(call, verdict, now)
            return call
    else:
        call.attempts += 1
        verdict = scheduler.judge(call, error, 0.0)
    scheduler.failed(call, verdict, now)
    return call


def test_an_attempt_that_would_start_too_late_is_not_waited_for() -> None:
    scheduler, item = within(2.5), Item("item")
    dispatched(scheduler, [item])
    for now in (0.0, 1.0):
        attempt(scheduler, now)
        assert not scheduler.output
    attempt(scheduler, 2.0)  # the next one would start at 3
    assert list(scheduler.output) == [item]
    assert (item.error.args, item.attempts) == ((2.0,), 3)


def test_an_item_that_waits_for_a_worker_for_too_long_fails_with_its_last_error() -> None:
    scheduler, item = within(2.5), Item("item")
    dispatched(scheduler, [item])
    attempt(scheduler, 0.0)
    scheduler.tick(2.6)
    scheduler.dispatch(2.6)
    assert list(scheduler.output) == [item]
    assert (item.error.args, item.attempts) == ((0.0,), 1)


def test_a_retry_that_a_worker_takes_too_late_goes_back_and_fails() -> None:
    scheduler, item = within(2.5), Item("item")
    dispatched(scheduler, [item])
    attempt(scheduler, 0.0)
    scheduler.tick(2.5)
    scheduler.dispatch(2.5)
    call = scheduler.ready.get_nowait()
    assert scheduler.gate is not None
    assert not scheduler.gate.late(call, 2.5)
    assert scheduler.gate.late(call, 2.6)
    scheduler.missed(call, 2.6)
    scheduler.dispatch(2.6)
    assert list(scheduler.output) == [item]
    assert item.error.args == (0.0,)


def test_a_deferred_call_starts_no_time_for_attempts() -> None:
    scheduler, item = within(2.5), Item("item")
    dispatched(scheduler, [item])
    call = scheduler.ready.get_nowait()
    call.attempts += 1
    scheduler.failed(call, Verdict(Kind.DEFER, 60.0), 0.0)
    for now in (60.0, 61.0, 62.0):
        assert not scheduler.output
        attempt(scheduler, now)
    assert list(scheduler.output) == [item]
    assert (item.error.args, item.attempts) == ((62.0,), 3)


def test_the_items_of_a_batch_have_the_time_of_their_own_first_attempt() -> None:
    scheduler, items = within(2.5, batch=manytail.Batch(2)), [Item(0), Item(1)]
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
    scheduler, items = within(2.5, batch=manytail.Batch(2)), [Item(0), Item(1)]
    dispatched(scheduler, items)
    for now in (0.0, 1.0, 2.0):
        attempt(scheduler, now)
    scheduler.dispatch(late)
    assert scheduler.ready.qsize() == (1 if late < 2.5 else 0)
    assert list(scheduler.output) == ([] if late < 2.5 else items)
