"""Verdicts: what follows from the error of a call, by Retry and `fatal`. A worker asks, without a lock, because the
user's `fatal`, `on` and `backoff` run here. What one of them raises fails the item.

The call of a batch gets one verdict for all its items if it is to be made again as it is, or split; otherwise one for
each item: None for an item with a result. An element of the result that is an exception fails its item alone. A result
that is no sequence of that length fails all items for good, as does the end of the batch's time.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from manytail import _checks

from .engine.events import Failed, Returned
from .engine.item import Batch, Call, Item, Kind, Verdict
from .errors import add_note, asked, own_copy, set_cause
from .outcomes import RetryLater
from .policies import On, Retry, answer

DEFERRAL, SHORTEST = 0.1, 0.001  # seconds that a deferred item waits at first: where `backoff` is a function; at least
Verdicts = list[Verdict | None]  # None: the item has a result


class Judge:
    def __init__(
        self,
        retry: Retry,
        fatal: On = (),
        never_retry: tuple[type[BaseException], ...] = (),
        chance: Callable[[], float] = random.random,
    ) -> None:
        """never_retry: errors that no Retry names. chance: a random number in [0, 1), which spreads waits."""
        self._retry, self._fatal, self._never_retry, self._chance = retry, fatal, never_retry, chance

    def failed(self, call: Call, error: BaseException, overdue: bool = False) -> Failed | Returned:
        """The call raised, or was cancelled because its time is over (overdue)."""
        if isinstance(call, Item):
            return Failed(call, self(call, error))
        verdicts = self._lost(call, error) if overdue else self._batch_failed(call, error)
        return Failed(call, verdicts) if isinstance(verdicts, Verdict) else Returned(call, with_own_errors(verdicts))

    def returned(self, batch: Batch) -> Returned:
        """The call of a batch returned `batch.result`. Items get their results."""
        return Returned(batch, with_own_errors(self._results(batch)))

    def __call__(self, call: Call, error: BaseException) -> Verdict:
        return self._judge(call, error, call.attempts, self._chance())

    def _judge(self, call: Call, error: BaseException, attempt: int, chance: float) -> Verdict:
        try:
            return self._verdict(call, error, attempt, chance)
        except BaseException as wrong:
            if wrong is not error:
                set_cause(wrong, error)
            kinds = self._fatal if isinstance(self._fatal, (type, tuple)) else ()
            return Verdict(Kind.FAIL, error=wrong, fatal=isinstance(wrong, kinds))

    def _verdict(self, call: Call, error: BaseException, attempt: int, chance: float) -> Verdict:
        retry = self._retry
        if isinstance(error, RetryLater):
            return self._defer(call, error, error, chance)
        if self._is_fatal(error):
            return Verdict(Kind.FAIL, error=error, fatal=True)
        if isinstance(error, self._never_retry) or (attempt > retry.times and not callable(retry.on)):
            return Verdict(Kind.FAIL, error=error)
        # A callable is also asked after the last attempt: it may defer the item.
        found = asked("retry: on", retry.answer, error)
        if isinstance(found, RetryLater):
            return self._defer(call, found, error, chance)
        if attempt > retry.times or not found:
            return Verdict(Kind.FAIL, error=error)
        if callable(retry.backoff):
            wait = asked("retry: backoff", retry.backoff, attempt, error)
            return Verdict(Kind.RETRY, checked_seconds(f"backoff: for attempt {attempt}", wait), error)
        return Verdict(Kind.RETRY, self._backoff(retry.backoff, attempt - 1, chance), error)

    def _is_fatal(self, error: BaseException) -> bool:
        return bool(asked("fatal", answer, self._fatal, error))

    def _backoff(self, first: float, doublings: int, chance: float) -> float:
        wait = min(first * 2.0 ** min(doublings, 1_000), self._retry.max_backoff)
        return wait * (0.5 + chance / 2)

    def _defer(self, call: Call, later: RetryLater, error: BaseException, chance: float) -> Verdict:
        """The verdict for a call that asks to be made later; error: what it raised. The waits of an item double with
        each deferral, as those of a backoff do: what a server asks for may be 0, for ever."""
        retry = self._retry
        after, longest = checked_seconds("RetryLater.after", later.after), retry.defer
        if isinstance(call, Batch):  # each item has waits of its own, see `_batch_failed`
            return Verdict(Kind.DEFER, after, error)
        first = DEFERRAL if callable(retry.backoff) else max(retry.backoff, SHORTEST)
        wait = max(after, self._backoff(first, call.deferrals, chance))
        if call.deferred + wait <= longest:
            return Verdict(Kind.DEFER, wait, error)
        if after > longest:  # nothing pauses for a quota that is spent for days
            note_wait(error, after, longest)
        fatal = error is later and self._is_fatal(error)
        return Verdict(Kind.FAIL, 0.0 if after > longest else after, error, fatal, pauses=after <= longest)

    # ------------------------------------------------------------------------------------------------ batches
    def _batch_failed(self, batch: Batch, error: BaseException) -> Verdict | Verdicts:
        chance = self._chance()  # one for all: items with equal verdicts are called again together
        if isinstance(error, RetryLater):
            return [self._judge(item, error, batch.attempts, chance) for item in batch.members]
        verdict = self._judge(batch, error, batch.attempts, chance)
        if verdict.kind is Kind.DEFER:  # `on` has said so
            later = RetryLater(verdict.seconds)
            return [self._defer(item, later, error, chance) for item in batch.members]
        if verdict.kind is Kind.RETRY:
            return verdict
        if verdict.fatal:
            return [verdict for _ in batch.members]
        alone: Verdicts = [verdict]
        return verdict._replace(kind=Kind.SPLIT) if len(batch.members) > 1 else alone

    def _lost(self, batch: Batch, error: BaseException) -> Verdicts:
        """All its items fail."""
        try:
            verdict = Verdict(Kind.FAIL, error=error, fatal=self._is_fatal(error))
        except BaseException as wrong:
            if wrong is not error:
                set_cause(wrong, error)
            verdict = Verdict(Kind.FAIL, error=wrong)
        return [verdict] * len(batch.members)

    def _results(self, batch: Batch) -> Verdicts:
        if isinstance(batch.result, Unfit):
            return self._lost(batch, batch.result.error)
        verdicts: Verdicts = []
        chance = self._chance()
        for item, result in zip(batch.members, batch.result, strict=True):
            if isinstance(result, BaseException):
                verdicts.append(self._judge(item, result, batch.attempts, chance))
            else:
                item.result = result
                verdicts.append(None)
        return verdicts


class Unfit:
    """Replaces the result of a batch if it has the wrong type or length: all its items fail with `error`."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def batch_result(result: Any, length: int) -> list[Any] | Unfit:
    """The results that fn returned for a batch of that many items, or Unfit."""
    expected = f"a sequence of {length} results, one for each item"
    if not isinstance(result, Sequence) or isinstance(result, (str, bytes, bytearray, memoryview)):
        return Unfit(TypeError(f"batch: fn returned {type(result).__qualname__} (expected: {expected})"))
    results = list(result)  # what a lazy sequence raises fails the call
    if len(results) != length:
        return Unfit(ValueError(f"batch: fn returned {len(results)} results (expected: {expected})"))
    return results


def with_own_errors(verdicts: Verdicts) -> Verdicts:
    """Where items of a batch fail with one error, the others get copies: each is raised for another caller, which adds
    a traceback and a note."""
    seen: set[int] = set()
    own: Verdicts = []
    for verdict in verdicts:
        if verdict is not None and verdict.kind is Kind.FAIL:
            if id(verdict.error) in seen:
                verdict = verdict._replace(error=own_copy(verdict.error))
            seen.add(id(verdict.error))
        own.append(verdict)
    return own


def note_wait(error: BaseException, after: float, longest: float) -> None:
    """Say in the error of an item when its server wants to be asked again, which is too late for it. longest: `defer`
    of the Retry."""
    at = ""
    with suppress(OverflowError):
        at = f", at {datetime.now(UTC) + timedelta(seconds=after):%Y-%m-%d %H:%M:%S} UTC"
    add_note(error, f"manytail: to be called again in {after:g} s{at} (expected: within the {longest:g} s of defer)")


def checked_seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= sys.float_info.max:
        raise _checks.bad_value(name, value, "seconds, a finite number >= 0")
    return float(value)
